from pathlib import Path

import pytest

from fedclust.results import Recorder, client_table, summarise
from fedclust.runs.report import main


def test_an_unfinished_run_is_shown_as_far_as_it_got(tmp_path, capsys) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 1, "num_clusters": 1, "mean_client_accuracy": 0.5})
    assert main([str(tmp_path)]) == 0
    picture = tmp_path / "plots" / "accuracy_per_round.png"
    assert capsys.readouterr().out == (
        f"{tmp_path}: no summary.json, the run has not finished\n{picture}\n{tmp_path / 'report.html'}\n"
    )
    assert picture.is_file()
    assert "Not finished" in (tmp_path / "report.html").read_text()


def test_a_folder_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        table = client_table([0], [4], [2], [[3, 1]], [{"accuracy": 0.5}])
        with Recorder(tmp_path / str(seed), {"choices": {"strategy": "fmcl"}}) as recorder:
            recorder.round({"round": 1, "mean_client_accuracy": 0.5})
            recorder.summary(summarise(table, strategy="fmcl", seed=seed, rounds=1, seconds=1))
    assert main([str(tmp_path)]) == 0
    page = tmp_path / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert "FMCL, seed 1" in page.read_text()


def test_no_plots(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 1, "mean_client_accuracy": 0.5})
    assert main(["--no-plots", str(tmp_path)]) == 0
    assert not (tmp_path / "plots").exists()


def test_one_line_says_what_is_wrong(tmp_path: Path, run) -> None:
    assert run("report", str(tmp_path)).complained.startswith(
        "fedclust report: folders must hold at least one finished run"
    )
    (tmp_path / "summary.json").write_text("{")
    code, _, complained = run("report", str(tmp_path))
    assert code == 2
    assert "summary.json must be JSON" in complained
