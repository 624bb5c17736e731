import csv
import io
import json
import os
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

from fedclust.data.targets import Amounts, to_values
from fedclust.results.page.sweep import view_sweep
from fedclust.runs.compare import end_sweep, main


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two strategies: three seeds, one without a Rand index; and one seed."""
    rows = [("fedgwc", 0, 0.8, 1.0), ("fedgwc", 1, 0.9, None), ("fedgwc", 2, 1.0, 0.5), ("a|b", 0, 0.5, 0.25)]
    for strategy, seed, accuracy, rand in rows:
        folder = tmp_path / f"{strategy}{seed}"
        folder.mkdir()
        summary = {
            "strategy": strategy,
            "seed": seed,
            "mean_client_accuracy": accuracy,
            "adjusted_rand_index": rand,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_text(sweep: Path, capsys) -> None:
    assert main([str(sweep)]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["strategy", "seeds", "mean client accuracy", "adjusted rand index"] in cells
    # 0.8, 0.9, 1.0: mean 0.9, sample deviation 0.1. 1.0 and 0.5: mean 0.75, deviation sqrt(0.125) = 0.354.
    best = cells.index(["FedGWC", "3", "0.900 ± 0.100", "0.750 ± 0.354 (2 of 3)"])
    assert cells[best + 1] == ["a|b", "1", "0.500", "0.250"]


def test_markdown(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "markdown", "--metrics", "adjusted_rand_index"]) == 0
    assert capsys.readouterr().out == (
        "| strategy | seeds | adjusted rand index |\n"
        "| --- | ---: | ---: |\n"
        "| FedGWC | 3 | 0.750 ± 0.354 (2 of 3) |\n"
        "| a\\|b | 1 | 0.250 |\n"
        "\nmean ± sample standard deviation over seeds\n"
    )


def test_csv(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "csv"]) == 0
    several, single = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (single["strategy"], single["seeds"]) == ("a|b", "1")
    assert (single["adjusted_rand_index_mean"], single["adjusted_rand_index_std"]) == ("0.25", "")
    assert float(several["mean_client_accuracy_mean"]) == pytest.approx(0.9)
    assert float(several["mean_client_accuracy_std"]) == pytest.approx(0.1)


def test_runs_of_which_none_has_an_accuracy(tmp_path: Path, capsys) -> None:
    (tmp_path / "summary.json").write_text('{"strategy": "fmcl", "seed": 0, "mean_client_accuracy": null}')
    assert main([str(tmp_path), "--format", "csv"]) == 0
    heads, values = capsys.readouterr().out.splitlines()
    assert heads == "strategy,seeds,mean_client_accuracy_mean,mean_client_accuracy_std"
    assert values == "fmcl,1,,"


def test_left_out_runs_are_listed(sweep: Path, capsys) -> None:
    for number in range(5):
        (sweep / f"cut{number}").mkdir()
        (sweep / f"cut{number}" / "rounds.jsonl").touch()
    assert main([str(sweep)]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith("left out, not finished: ")
    assert errors.endswith("cut2 and 2 more\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{folder}", "--metrics", "loss"],
            "must be one of seed, mean_client_accuracy, adjusted_rand_index, got 'loss'",
        ),
        (
            ["{folder}", "--against", "fedwgc"],
            "against must be one of a|b, fedgwc, all, got 'fedwgc' (did you mean",
        ),
        (["{folder}/nowhere"], "folder must exist, got"),
        (["{folder}/empty"], "folders must hold at least one finished run"),
        (["{folder}/broken"], "summary.json must be JSON"),
    ],
)
def test_one_line_says_what_is_wrong(sweep: Path, run, arguments: list[str], message: str) -> None:
    (sweep / "empty").mkdir()
    if "broken" in arguments[0]:
        (sweep / "broken").mkdir()
        (sweep / "broken" / "summary.json").write_text("{")
    code, out, errors = run("compare", *(argument.format(folder=sweep) for argument in arguments))
    assert (code, out) == (2, "")
    assert errors.startswith("fedclust compare: ")
    assert message in errors
    assert errors.count("\n") == 1


def test_figures_without_the_personal_layers_that_serve(tmp_path, capsys) -> None:
    for seed, without in ((0, 0.75), (1, 0.85), (2, None)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        summary = {"strategy": "fedavg", "seed": seed, "mean_client_accuracy": 0.9}
        if without:
            summary["without_layer"] = {"mean_client_accuracy": without}
        (folder / "summary.json").write_text(json.dumps(summary))
    assert main([str(tmp_path), "--format", "markdown"]) == 0
    title, _, row, *_ = capsys.readouterr().out.splitlines()
    assert title == "| strategy | seeds | mean client accuracy | mean client accuracy, without layer |"
    # 0.75 and 0.85: mean 0.8, sample deviation sqrt(2 · 0.05²) = 0.0707.
    assert row == "| FedAvg | 3 | 0.900 ± 0.000 | 0.800 ± 0.071 (2 of 3) |"
    asked = ["--metrics", "without_layer.mean_client_accuracy", "--format", "csv"]
    assert main([str(tmp_path), *asked]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("fedavg,3,0.8")


def write(folder: Path, figures: dict[str, tuple[float, ...]], **more: object) -> Path:
    """Write a run for each strategy and seed, with its accuracy."""
    for strategy, accuracies in figures.items():
        for seed, accuracy in enumerate(accuracies):
            (folder / f"{strategy}{seed}").mkdir()
            summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": accuracy, "seconds": 2.0}
            (folder / f"{strategy}{seed}" / "summary.json").write_text(json.dumps(summary | more))
    return folder


@pytest.fixture
def paired(tmp_path: Path) -> Path:
    """Three strategies on the same five seeds; fmcl is better than fedavg by 0.1, 0.2, 0.2, 0.2 and 0.3."""
    figures = {"fedavg": (0.4,) * 5, "fmcl": (0.5, 0.6, 0.6, 0.6, 0.7), "ifca": (0.45, 0.35, 0.4, 0.45, 0.35)}
    return write(tmp_path, figures)


def test_methods_are_tested_against_fedavg(paired: Path, capsys) -> None:
    assert main([str(paired), "--format", "csv"]) == 0
    table = {row["strategy"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert next(iter(table)) == "fmcl"  # the best first
    assert (table["fedavg"]["difference"], table["fedavg"]["p_value"]) == ("", "")
    # Mean 0.2, deviation sqrt(0.02 / 4): t² = 0.04 · 5 / 0.005 = 40. With 4 degrees of freedom the two tails
    # are 1 − 3/4 · t/√(1 + t²/4) · (1 − t²/(12 + 3t²)) = 1 − 3/4 · 1.9069 · 0.69697 = 0.0032; of two tests
    # the lower p-value counts twice.
    assert float(table["fmcl"]["difference"]) == pytest.approx(0.2)
    tails = 1 - 0.75 * (40 / 11) ** 0.5 * (1 - 40 / 132)
    assert float(table["fmcl"]["p_value"]) == pytest.approx(2 * tails)
    assert float(table["ifca"]["p_value"]) == pytest.approx(1.0)  # the mean is 0
    assert main([str(paired), "--format", "markdown", "--metrics", "mean_client_accuracy"]) == 0
    out = capsys.readouterr().out
    assert "| strategy | seeds | mean client accuracy | from FedAvg (p) |" in out
    assert "| FMCL | 5 | 0.600 ± 0.071 | +0.200 ± 0.071 (0.0064) |" in out
    assert "| IFCA | 5 | 0.400 ± 0.050 | +0.000 ± 0.050 (1) |" in out
    # 2 · 2 / 2ⁿ <= 0.05 from n = 7 on: 4 / 128 = 0.03, and 4 / 64 = 0.06.
    assert out.endswith(
        "; p: each method against FedAvg on the same seeds, two-sided, by a paired t test, which takes the "
        "differences as normal (sign flips do not, but need 7 seeds); corrected by Holm for the 2 tests of a "
        "setting\n"
    )
    assert main([str(paired), "--against", "fmcl"]) == 0
    out = capsys.readouterr().out
    assert "from FMCL (p)" in out
    assert "−0.200 ± 0.071 (0.0064)" in out
    assert "--against=STRATEGY" not in out


def test_every_two_methods_are_tested_when_asked(paired: Path, capsys) -> None:
    assert main([str(paired), "--against", "all", "--format", "csv"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    pairs = [(row["strategy"], row["against"]) for row in rows]
    assert {frozenset(pair) for pair in pairs} == {
        *map(frozenset, combinations(("FedAvg", "FMCL", "IFCA"), 2))
    }
    # The least of three p-values counts three times; FMCL is better than IFCA by 0.05, 0.25, 0.2, 0.15, 0.35:
    # deviation 0.11, so FedAvg's 0.0032 is the least.
    tails = 1 - 0.75 * (40 / 11) ** 0.5 * (1 - 40 / 132)
    assert float(rows[pairs.index(("FMCL", "FedAvg"))]["p_value"]) == pytest.approx(3 * tails)
    assert main([str(paired), "--against", "all", "--format", "latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == r"strategy & against & seeds & mean client accuracy, difference (p) \\"
    assert r"FMCL & FedAvg & 5 & +0.200 $\pm$ 0.071 (0.0096) \\" in lines


def test_the_least_is_the_best_of_seconds(paired: Path, capsys) -> None:
    for path in paired.glob("ifca*/summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 1.0}))
    assert main([str(paired), "--metrics", "seconds", "--format", "csv"]) == 0
    table = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert table[0]["strategy"] == "ifca"
    # All differences are −1: without a spread, t is infinite. All others are 0.
    assert (table[0]["difference"], table[0]["p_value"]) == ("-1.0", "0.0")
    assert (table[2]["difference"], table[2]["p_value"]) == ("0.0", "1.0")


def test_latex_has_the_best_set_in_bold(tmp_path: Path, capsys) -> None:
    figures = {"fedavg": (0.4,) * 5, "clust_psi_pfl": (0.55, 0.55, 0.6, 0.65, 0.6)}
    write(tmp_path, figures | {"fmcl": (0.5, 0.6, 0.6, 0.6, 0.7)}, num_clusters=2)
    asked = ["--metrics", "mean_client_accuracy,num_clusters", "--format", "latex"]
    assert main([str(tmp_path), *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [r"\begin{table}", r"\centering"]
    assert lines[3:6] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"strategy & seeds & mean client accuracy & num clusters & from FedAvg (p) \\",
    ]
    # FMCL is better than FedAvg, p 0.0032 · 2, and than Clust-PSI-PFL by −0.05, 0.05, 0, −0.05 and 0.1:
    # t = 0.01 · √5 / 0.065 = 0.34 is not significant. No number of clusters is the best.
    assert [line.split(" & ")[0] for line in lines[7:10]] == ["FMCL", "Clust-PSI-PFL", "FedAvg"]
    assert [line.split(" & ")[2] for line in lines[7:10]] == [
        r"\textbf{0.600 $\pm$ 0.071}",
        r"\textbf{0.590 $\pm$ 0.042}",
        r"0.400 $\pm$ 0.000",
    ]
    assert "".join(lines).count("textbf") == 2
    assert lines[10:] == [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    caption = (
        r"\caption{mean $\pm$ sample standard deviation over seeds; bold: the best of each setting and, "
    )
    assert lines[2].startswith(caption + "with at least 5 seeds, those not significantly worse (at 0.05, ")


@pytest.mark.parametrize(
    ("key", "first"), [("rmse", "FedAvg"), ("mae", "FedAvg"), ("r2", "FMCL"), ("concordance", "FMCL")]
)
def test_latex_has_the_least_error_of_amounts_and_the_best_order_of_times_in_bold(
    tmp_path: Path, capsys, key: str, first: str
) -> None:
    for method, values in {"fedavg": (2.0, 2.1, 2.2, 2.1, 2.0), "fmcl": (4.0, 4.1, 4.3, 4.0, 4.1)}.items():
        for seed, value in enumerate(values):
            (folder := tmp_path / f"{method}{seed}").mkdir()
            summary = {"strategy": method, "seed": seed, key: value}
            (folder / "summary.json").write_text(json.dumps(summary))
    assert main([str(tmp_path), "--metrics", key, "--format", "latex"]) == 0
    rows = capsys.readouterr().out.splitlines()[7:9]
    assert [(row.split(" & ")[0], "textbf" in row) for row in rows] == [
        (first, True),
        ({"FedAvg", "FMCL"}.difference([first]).pop(), False),
    ]


def test_with_too_few_seeds_for_a_test_the_best_alone_is_bold(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "latex", "--metrics", "adjusted_rand_index"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[7:9] == [
        r"FedGWC & 3 & \textbf{0.750 $\pm$ 0.354 (2 of 3)} \\",
        r"a|b & 1 & 0.250 \\",
    ]


@pytest.mark.parametrize(("groups", "there"), [([0, 1, 2, 3], "; the data have 4"), (None, "")])
def test_a_number_of_groups_that_nobody_gave_is_marked(
    tmp_path: Path, capsys, groups: list[int] | None, there: str
) -> None:
    write(tmp_path, {"fedavg": (0.5,)})
    write(tmp_path, {"ifca": (0.6,)}, groups_guessed=2)
    if groups:
        pd.DataFrame({"cluster": [0, 0, 1, 1], "group": groups}).to_parquet(
            tmp_path / "ifca0" / "clients.parquet"
        )
    note = f"number of groups not given: 2 by default{there}"
    asked = [str(tmp_path), "--metrics", "mean_client_accuracy", "--format"]
    assert main([*asked, "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["| IFCA† | 1 | 0.600 |", "| FedAvg | 1 | 0.500 |"]
    assert lines[-1].endswith(f"; † {note}")
    assert main([*asked, "latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith(rf"; $^\dagger$ {note}}}")
    assert lines[7] == r"IFCA$^\dagger$ & 1 & \textbf{0.600} \\"


def test_a_sweep_ends_with_its_best_method(paired: Path, capsys) -> None:
    (paired / "report.html").touch()
    end_sweep(paired)
    *table, best, page = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[3:6]] == ["FMCL", "FedAvg", "IFCA"]
    next_best = "next FedAvg, 0.400 ± 0.000, p 0.0096 over all 3 pairs"  # three times 0.0032
    assert best == f"FMCL has the highest accuracy over 5 seeds, 0.600 ± 0.071; {next_best}"
    assert page == f"page: {paired / 'report.html'}"
    for path in paired.glob("fmcl*/summary.json"):  # now as good as fedavg
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mean_client_accuracy": 0.4}))
    end_sweep(paired)
    best = capsys.readouterr().out.splitlines()[-2]
    assert best == "FedAvg and FMCL share the highest accuracy over 5 seeds, 0.400 ± 0.000"
    (paired / "empty").mkdir()
    end_sweep(paired / "empty")  # as of task=inspect
    assert capsys.readouterr().out == ""


def test_a_sweep_of_classes_and_amounts_compares_only_what_the_newest_predicts(paired: Path, capsys) -> None:
    folder = paired / "amounts"
    folder.mkdir()
    summary = {"strategy": "cfl", "seed": 0, "mean_client_accuracy": 0.9}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").touch()
    (folder / "inputs.json").write_text(
        json.dumps({"target": to_values(Amounts(low=0.0, high=1.0, edges=(0.5,)))})
    )
    os.utime(folder / "summary.json", (1, 1))
    end_sweep(paired)
    printed = capsys.readouterr()
    assert "CFL" not in printed.out
    assert printed.err == f"left out, not of classes, as the newest run: {folder}\n"
    view = view_sweep(paired)
    assert [row[0] for row in view["rows"]] == ["FMCL", "FedAvg", "IFCA"]
    assert view["lines"][-1] == "1 run not of classes, as the newest is, only on their own pages"
