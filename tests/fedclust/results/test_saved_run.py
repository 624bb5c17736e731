from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder, SavedRun


def test_a_finished_run(finished_run: Path) -> None:
    run = SavedRun(finished_run)
    assert run.strategy == "fedgwc"
    assert run.config["choices"]["dataset"] == "digits"
    assert [change["round"] for change in run.changes] == [0, 2]
    np.testing.assert_array_equal(run.assignment, [0, 0, 1, 1])
    np.testing.assert_array_equal(run.groups, [0, 0, 1, 1])
    np.testing.assert_array_equal(run.label_counts, [[6, 2], [4, 4], [1, 7], [0, 8]])
    assert [name for name, _ in run.side_by_side] == ["fedgwc", "fedavg"]
    np.testing.assert_array_equal(run.compared["fedavg"].assignment, [0, 0, 0, 0])
    rounds, accuracy = run.series("mean_client_accuracy")
    np.testing.assert_array_equal(rounds, [1, 2, 3])
    # (1 + 0.5 + 1 + 0.75) / 4 = 0.8125 in the last round, 0.1 less in each before.
    np.testing.assert_allclose(accuracy, [0.6125, 0.7125, 0.8125])


def test_a_run_that_stopped_early(tmp_path: Path) -> None:
    with Recorder(tmp_path / "cut") as recorder:
        recorder.assignment(0, [0, 1], "start")
        recorder.round({"round": 1, "loss": 1.0})
        recorder.round({"round": 2, "loss": None})
    run = SavedRun(tmp_path / "cut")
    assert (run.summary, run.config, run.clients, run.groups, run.label_counts) == ({}, {}, None, None, None)
    assert run.strategy == "cut"
    assert run.compared == {}
    assert list(run.matrices()) == []
    np.testing.assert_array_equal(run.assignment, [0, 1])
    np.testing.assert_array_equal(run.series("loss"), [[1], [1.0]])


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{"round": 2, "lo')
    assert SavedRun(tmp_path).rounds == [{"round": 1}]
    (tmp_path / "rounds.jsonl").write_text('{"round": 1\n{"round": 2}\n')
    with pytest.raises(ValueError, match=r"rounds.jsonl, line 1 must be JSON"):
        SavedRun(tmp_path).rounds  # noqa: B018


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"folder must hold a run \(rounds.jsonl, .*\), got"):
        SavedRun(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{", "summary.json must be JSON"),
        ("summary.json", "[]", "summary.json must hold a mapping, got list"),
        ("config.yaml", "a: [", "config.yaml must be YAML"),
        ("config.yaml", "words", "config.yaml must hold a mapping, got str"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "rounds.jsonl").touch()
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        getattr(SavedRun(tmp_path), name.split(".")[0])
