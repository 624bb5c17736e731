import csv
import io
import json
from pathlib import Path

import pytest

from fedclust.runs.compare import main


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two strategies: three seeds, one without a Rand index; and one seed."""
    rows = [("fedgwc", 0, 0.8, 1.0), ("fedgwc", 1, 0.9, None), ("fedgwc", 2, 1.0, 0.5), ("a|b", 0, 0.5, 0.25)]
    for strategy, seed, accuracy, rand in rows:
        folder = tmp_path / f"{strategy}{seed}"
        folder.mkdir()
        summary = {"strategy": strategy, "seed": seed, "mean_client_accuracy": accuracy, "rand_index": rand}
        (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_text(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep)]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["strategy", "seeds", "mean client accuracy", "rand index"] in cells
    # 0.8, 0.9, 1.0: mean 0.9, sample deviation 0.1. 1.0 and 0.5: mean 0.75, deviation sqrt(0.125) = 0.354.
    assert ["fedgwc", "3", "0.900 ± 0.100", "0.750 ± 0.354 (2 of 3)"] in cells
    assert ["a|b", "1", "0.500", "0.250"] in cells


def test_markdown(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep), "--format", "markdown", "--metrics", "rand_index"]) == 0
    assert capsys.readouterr().out == (
        "| strategy | seeds | rand index |\n"
        "| --- | ---: | ---: |\n"
        "| a\\|b | 1 | 0.250 |\n"
        "| fedgwc | 3 | 0.750 ± 0.354 (2 of 3) |\n"
    )


def test_csv(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep), "--format", "csv"]) == 0
    single, several = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (single["strategy"], single["seeds"], single["rand_index_mean"], single["rand_index_std"]) == (
        "a|b", "1", "0.25", "",
    )  # fmt: skip
    assert float(several["mean_client_accuracy_mean"]) == pytest.approx(0.9)
    assert float(several["mean_client_accuracy_std"]) == pytest.approx(0.1)


def test_left_out_runs_are_listed(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (["{folder}", "--metrics", "loss"], "must be among seed, mean_client_accuracy, rand_index, got loss"),
        (["{folder}/nowhere"], "folder must exist, got"),
        (["{folder}/empty"], "folders must hold at least one finished run"),
        (["{folder}/broken"], "summary.json must be JSON"),
    ],
)
def test_one_line_says_what_is_wrong(sweep: Path, capsys, arguments: list[str], message: str) -> None:
    (sweep / "empty").mkdir()
    if "broken" in arguments[0]:
        (sweep / "broken").mkdir()
        (sweep / "broken" / "summary.json").write_text("{")
    assert main([argument.format(folder=sweep) for argument in arguments]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("fedclust.runs.compare: ")
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
    title, _, row = capsys.readouterr().out.splitlines()
    assert title == "| strategy | seeds | mean client accuracy | mean client accuracy, personal layer |"
    # 0.75 and 0.85: mean 0.8, sample deviation sqrt(2 · 0.05²) = 0.0707.
    assert row == "| fedavg | 3 | 0.500 ± 0.000 | 0.800 ± 0.071 (2 of 3) |"
    asked = ["--metrics", "personal.mean_client_accuracy", "--format", "csv"]
    assert main([str(tmp_path), *asked]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("fedavg,3,0.8")
