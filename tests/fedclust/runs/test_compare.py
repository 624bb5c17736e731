import csv
import io
import json
from pathlib import Path

import pytest

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
    assert ["fedgwc", "3", "0.900 ± 0.100", "0.750 ± 0.354 (2 of 3)"] in cells
    assert ["a|b", "1", "0.500", "0.250"] in cells


def test_markdown(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "markdown", "--metrics", "adjusted_rand_index"]) == 0
    assert capsys.readouterr().out == (
        "| strategy | seeds | adjusted rand index |\n"
        "| --- | ---: | ---: |\n"
        "| a\\|b | 1 | 0.250 |\n"
        "| fedgwc | 3 | 0.750 ± 0.354 (2 of 3) |\n"
        "\nmean ± sample standard deviation over seeds\n"
    )


def test_csv(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "csv"]) == 0
    single, several = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (single["strategy"], single["seeds"]) == ("a|b", "1")
    assert (single["adjusted_rand_index_mean"], single["adjusted_rand_index_std"]) == ("0.25", "")
    assert float(several["mean_client_accuracy_mean"]) == pytest.approx(0.9)
    assert float(several["mean_client_accuracy_std"]) == pytest.approx(0.1)


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
            "against must be one of a|b, fedgwc, got 'fedwgc' (did you mean",
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


def test_figures_with_the_personal_layer_that_each_run_chose(tmp_path, capsys) -> None:
    for seed, choice, accuracy in ((0, "prior", 0.75), (1, "prior", 0.85), (2, None, None)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        summary = {"strategy": "fedavg", "seed": seed, "mean_client_accuracy": 0.5}
        if choice:
            figures = {"none": {"mean_client_accuracy": 0.5}, choice: {"mean_client_accuracy": accuracy}}
            summary["personal"] = {"choice": choice, "figures": figures}
        (folder / "summary.json").write_text(json.dumps(summary))
    assert main([str(tmp_path), "--format", "markdown"]) == 0
    title, _, row, *_ = capsys.readouterr().out.splitlines()
    assert title == "| strategy | seeds | mean client accuracy | mean client accuracy, personal layer |"
    # 0.75 and 0.85: mean 0.8, sample deviation sqrt(2 · 0.05²) = 0.0707.
    assert row == "| fedavg | 3 | 0.500 ± 0.000 | 0.800 ± 0.071 (2 of 3) |"
    asked = ["--metrics", "personal.mean_client_accuracy", "--format", "csv"]
    assert main([str(tmp_path), *asked]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("fedavg,3,0.8")


@pytest.fixture
def paired(tmp_path: Path) -> Path:
    """Three strategies on the same three seeds; fmcl is better than fedavg by 0.1, 0.2 and 0.3."""
    figures = {"fedavg": (0.4, 0.4, 0.4), "fmcl": (0.5, 0.6, 0.7), "ifca": (0.45, 0.35, 0.4)}
    for strategy, accuracies in figures.items():
        for seed, accuracy in enumerate(accuracies):
            (tmp_path / f"{strategy}{seed}").mkdir()
            summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": accuracy, "seconds": 2.0}
            (tmp_path / f"{strategy}{seed}" / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_methods_are_tested_on_the_same_seeds(paired: Path, capsys) -> None:
    assert main([str(paired), "--format", "csv"]) == 0
    fedavg, fmcl, ifca = csv.DictReader(io.StringIO(capsys.readouterr().out))
    # All three signs are equal in 2 of 2³ ways: p = 0.25, times the 3 pairs of three methods.
    assert (float(fedavg["difference"]), float(fedavg["p_value"])) == (pytest.approx(-0.2), 0.75)
    assert (fmcl["difference"], fmcl["p_value"]) == ("", "")
    assert float(ifca["difference"]) == pytest.approx(-0.2)  # -0.05, -0.25, -0.3
    assert main([str(paired), "--against", "fedavg", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    # Two pairs with a method named before: 2 · 0.25. Of 0.05, -0.05, 0 every sum is as far from 0.
    assert "| fmcl | 3 | 0.600 ± 0.100 | 2.0 ± 0.0 | +0.200 ± 0.100 (0.5) |" in out
    assert "| ifca | 3 | 0.400 ± 0.050 | 2.0 ± 0.0 | +0.000 ± 0.050 (1) |" in out
    # 2 · 2 / 2ⁿ <= 0.05 from n = 7 on: 4 / 128 = 0.03, and 4 / 64 = 0.06.
    assert out.endswith("with 3 seeds it is at least 0.5, 7 seeds are needed for 0.05\n")


def test_the_least_is_the_best_of_seconds(paired: Path, capsys) -> None:
    for path in paired.glob("ifca*/summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 1.0}))
    assert main([str(paired), "--metrics", "seconds", "--format", "csv"]) == 0
    table = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert [row["difference"] for row in table] == ["1.0", "1.0", ""]


def test_latex_names_methods_as_their_papers_do(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--format", "latex", "--metrics", "adjusted_rand_index"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [r"\begin{tabular}{lrr}", r"\toprule", r"strategy & seeds & adjusted rand index \\"]
    assert lines[5] == r"FedGWC & 3 & 0.750 $\pm$ 0.354 (2 of 3) \\"
    assert lines[-1] == "% mean ± sample standard deviation over seeds"


def test_a_sweep_ends_with_its_best_method(paired: Path, capsys) -> None:
    (paired / "report.html").touch()
    end_sweep(paired)
    *table, best, page = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[3:6]] == ["fmcl", "fedavg", "ifca"]
    next_best = "next FedAvg, 0.400 ± 0.000, p 0.75"
    assert best == f"FMCL has the highest accuracy over 3 seeds, 0.600 ± 0.100; {next_best}"
    assert page == f"page: {paired / 'report.html'}"
    for path in paired.glob("fmcl*/summary.json"):  # now as good as fedavg
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mean_client_accuracy": 0.4}))
    end_sweep(paired)
    best = capsys.readouterr().out.splitlines()[-2]
    assert best == "FedAvg and FMCL share the highest accuracy over 3 seeds, 0.400 ± 0.000"
    (paired / "empty").mkdir()
    end_sweep(paired / "empty")  # as of task=inspect
    assert capsys.readouterr().out == ""
