import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder, SavedRun, saved_run
from fedclust.results.page.run import view_run
from fedclust.results.saved_run import ThinnedRun, shown


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


def test_what_a_finished_run_is_no_longer_compared_with(tmp_path: Path) -> None:
    folders = [tmp_path, *(tmp_path / "compare" / name for name in ("fedavg", "ifca"))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds.jsonl").touch()
    summary = {"strategy": "fmcl", "compare": {"fedavg": {}}}
    assert [*SavedRun(tmp_path).compared] == ["fedavg", "ifca"]  # it is running
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"made": {}}))
    assert [*SavedRun(tmp_path).compared] == [*ThinnedRun(tmp_path).compared] == ["fedavg"]


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
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n1')
    assert SavedRun(tmp_path).rounds == [{"round": 1}]


@pytest.mark.parametrize(
    ("line", "told"),
    [('{"round": 1', "Expecting"), ("1", "an object, got int"), ("[]", "an object, got list")],
)
def test_a_whole_line_that_is_no_object_is_named(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "rounds.jsonl").write_text(f'{{"round": 1}}\n{line}\n{{"round": 2}}\n')
    with pytest.raises(ValueError, match=rf"rounds.jsonl, line 2 must be JSON: {told}"):
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


CLIENTS = 10


def _run(folder: Path, rounds: int, evaluated: range) -> Path:
    with Recorder(folder, {"rounds": rounds}) as recorder:
        for number in range(1, rounds + 1):
            recorder.assignment(number, np.arange(CLIENTS) % 2 + number % 2, "regrouped")
            accuracy = {"client_accuracy": [0.5] * CLIENTS} if number in evaluated else {}
            strategy = {"0": {"mse": 0.5, "rewards": [0.1] * 9}, "pairs": [[0, 1]] * 9}
            line = {"round": number, "cohort": [0, 3], "failures": [], "num_clusters": 2, **accuracy}
            recorder.round(line | {"cluster_sizes": [5, 5], "strategy": strategy})
    return folder


def test_accuracies_are_those_of_the_rounds_that_are_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(saved_run, "MOST_CLIENTS", 3)
    assert shown(9, CLIENTS, most=40) == [0, 3, 5, 8]  # 40 accuracies are those of four rounds: 8/3, 16/3
    monkeypatch.setattr(saved_run.shown, "__defaults__", (40,))
    run = ThinnedRun(_run(tmp_path / "run", 18, range(2, 19, 2)))  # rounds 2, 4 … 18 are evaluated
    kept = [line["round"] for line in run.rounds if "client_accuracy" in line]
    assert kept == [2, 8, 12, 18]
    assert [line["round"] for line in run.rounds] == list(range(1, 19))
    assert run.rounds[0]["strategy"] == {"0": {"mse": 0.5}}
    assert run.rounds[0]["cohort"].tolist() == [0, 3]
    # All changes, with the clients that are shown; the last one, which is the assignment, with all.
    assert [len(change["assignment"]) for change in run.changes] == [3] * 17 + [CLIENTS]
    assert run.changes[0]["assignment"].tolist() == [1, 2, 1]
    assert run.changes[0]["sizes"].tolist() == [0, 5, 5]
    assert run.assignment.tolist() == [0, 1] * 5


def test_the_page_of_a_longer_run_takes_little_more_memory(tmp_path: Path) -> None:
    peaks = []
    for rounds in (40, 340):
        folder = _run(tmp_path / str(rounds), rounds, range(0))
        extra = {"curves": [0.25] * 400}  # what a method reports of a round and no page shows
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        text = "".join(json.dumps({**line, "strategy": extra}) + "\n" for line in lines)
        (folder / "rounds.jsonl").write_text(text)
        view_run(folder)  # imports
        tracemalloc.start()
        try:
            view_run(folder)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # 400 numbers of 24 bytes, and a list of 8 bytes for each, are 12,800 bytes a round.
    assert peaks[1] - peaks[0] < 300 * 12_800 / 2
