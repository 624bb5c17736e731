import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedclust
from fedclust.federation import FederationError, RunFailed
from fedclust.results import Checkpoints, Recorder, SavedRun, comparable


def test_a_folder_with_another_run_is_refused_and_other_things_stay(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("from Hydra")
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 1})
    with pytest.raises(FileExistsError, match="output_dir must not hold another run, got .*rounds.jsonl"):
        Recorder(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round": 1}\n'
    assert (tmp_path / "run.log").exists()


def test_configuration_as_text_or_mapping(tmp_path: Path) -> None:
    config = {"seed": np.int64(3), "strategy": {"name": "fedgwc", "steps": (1, 2)}}
    Recorder(tmp_path / "mapping", config).close()
    Recorder(tmp_path / "text", "seed: 3  # ours\n").close()
    found = SavedRun(tmp_path / "mapping").config
    assert found == {"seed": 3, "strategy": {"name": "fedgwc", "steps": [1, 2]}}
    assert (tmp_path / "text" / "config.yaml").read_text() == "seed: 3  # ours\n"


def test_rounds_are_there_before_the_run_ends(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.round({"round": 1, "loss": np.float32(0.5), "cohort": np.array([2, 0]), "auc": float("nan")})
    recorder.round({"round": np.int64(5)})
    first = {"round": 1, "loss": 0.5, "cohort": [2, 0], "auc": None}
    assert SavedRun(tmp_path).rounds == [first, {"round": 5}]
    recorder.close()


@pytest.mark.parametrize("number", [None, 2, 1, 2.5, "3"])
def test_rounds_must_rise(tmp_path: Path, number: object) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 2})
        with pytest.raises(ValueError, match="round must be an integer > 2, got"):
            recorder.round({"round": number})
        with pytest.raises(TypeError, match="value must be something JSON can hold"):
            recorder.round({"round": 3, "loss": object()})
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round": 2}\n'


def test_every_change_of_assignment_is_kept_and_no_other(tmp_path: Path) -> None:
    assignment, changed = np.array([0, 0, 0]), []  # its owner changes it in place: that counts as new
    with Recorder(tmp_path) as recorder:
        for number, client, reason in ((0, 0, "start"), (3, 0, "none"), (4, 1, "split"), (9, 2, "split ü")):
            assignment[client] = client
            changed.append(recorder.assignment(number, assignment, reason))
            json.loads((tmp_path / "clusters.json").read_text())  # whole after every change
    assert changed == [True, False, True, True]
    assert SavedRun(tmp_path).changes == [
        {"round": 0, "assignment": [0, 0, 0], "reason": "start"},
        {"round": 4, "assignment": [0, 1, 0], "reason": "split"},
        {"round": 9, "assignment": [0, 1, 2], "reason": "split ü"},
    ]


def test_tables_and_matrices_that_could_not_be_read_are_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(ValueError, match=r"client and cluster, got \['client'\]"):
            recorder.clients(pd.DataFrame({"client": [0]}))
        with pytest.raises(ValueError, match="matrix x must hold numbers or strings"):
            recorder.matrices(x=np.array([object()]))


def test_matrices_add_up_and_replace(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.matrices(affinity=[[1.0, 0.5], [0.5, 1.0]], class_names=["cat", "dog"])
        recorder.matrices(affinity=np.eye(2), distances=np.zeros((2, 2)))
    arrays = dict(SavedRun(tmp_path).matrices())
    assert list(arrays) == ["affinity", "class_names", "distances"]
    np.testing.assert_array_equal(arrays["affinity"], np.eye(2))
    assert arrays["class_names"].tolist() == ["cat", "dog"]


def test_summary_is_strict_json(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.summary({"strategy": "fedgwc", "auc": float("nan"), "assignment": np.array([0, 1])})
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert read == {"strategy": "fedgwc", "auc": None, "assignment": [0, 1]}


def test_compared_strategies_have_their_own_folders(tmp_path: Path) -> None:
    assert Recorder.compared_folder(tmp_path, "fedavg") == tmp_path / "compare" / "fedavg"
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(ValueError, match="name must be usable as a folder name"):
            Recorder.compared_folder(tmp_path, name)


def test_two_runs_compare_but_for_their_times() -> None:
    strategy = {"fit_seconds": 1, "mse": [{"seconds": 3, "a": 1}]}
    first = {"round": 1, "seconds": 0.1, "loss": 2.0, "bytes_down": 7, "strategy": strategy}
    assert comparable([first]) == [{"round": 1, "loss": 2.0, "strategy": {"mse": [{"a": 1}]}}]
    assert first["seconds"] == 0.1  # the records themselves stay


_TRAINING = fedclust.LocalTraining(learning_rate=0.2, batch_size=8, epochs=1, mode="sequential")


def _clients() -> list[tuple[np.ndarray, np.ndarray]]:
    made = []
    for client in range(4):
        labels = np.full(24, client % 2)
        inputs = 3.0 * np.eye(2, 5)[labels] + np.random.default_rng(client).normal(size=(24, 5))
        made.append((inputs.astype(np.float32), labels))
    return made


def _simulate(folder: Path, **changes) -> fedclust.Result:
    linear = nn.Linear(5, 2)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    options = {"rounds": 4, "training": _TRAINING, "checkpoint_every": 1, "folder": folder, **changes}
    return fedclust.simulate("fedavg", linear, _clients(), **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A run that nothing happens to."""
    return _simulate(tmp_path_factory.mktemp("whole") / "run").saved


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _full(method: Callable, folder: Path, number: int) -> Callable:
    """Make a method of a run's files fail like a full disk at one call, below one folder."""
    calls = []

    def write(self, *arguments, **named):
        if self.folder.is_relative_to(folder):
            calls.append(1)
            if len(calls) >= number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return method(self, *arguments, **named)

    return write


def _assert_goes_on(error: RunFailed, temporary: Path, rounds: int, whole: SavedRun) -> None:
    found = re.search(r"now in (\S+); to resume: fedclust resume=\1$", str(error))
    assert found, error
    folder = Path(found[1])
    assert folder.parent == temporary
    assert len(SavedRun(folder).rounds) == rounds
    again = _simulate(folder, resume=True).saved
    assert comparable(again.rounds) == comparable(whole.rounds)
    assert again.changes == whole.changes
    assert again.summary["mean_client_accuracy"] == whole.summary["mean_client_accuracy"]


@pytest.mark.parametrize(
    ("written", "method", "number", "rounds"),
    [(Checkpoints, "save", 3, 3), (Recorder, "clients", 1, 4)],  # clients.parquet comes after the last round
)
def test_a_full_disk(written, method, number, rounds, tmp_path, temporary, monkeypatch, whole) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(written, method, _full(getattr(written, method), folder, number))
    why = f"in round {rounds} of 4, .*/run cannot be written .No space left"
    with pytest.raises(RunFailed, match=why) as error:
        _simulate(folder)
    _assert_goes_on(error.value, temporary, rounds, whole)


def test_a_folder_that_is_removed(tmp_path: Path, temporary: Path, whole: SavedRun) -> None:
    folder = tmp_path / "run"

    def remove(line) -> None:
        if line["round"] == 2:
            shutil.rmtree(folder)

    # The checkpoint of round 2 makes the folder anew; that the rounds are gone is seen in round 3.
    with pytest.raises(RunFailed, match="in round 3 of 4, .*No such file or directory") as error:
        _simulate(folder, on_round=remove)
    _assert_goes_on(error.value, temporary, 3, whole)


def test_a_run_is_not_resumed_while_it_goes_on(tmp_path: Path, whole: SavedRun) -> None:
    folder = tmp_path / "run"

    def resume(line) -> None:
        if line["round"] == 2:
            with pytest.raises(FileExistsError, match=f"that no other run is writing to, got {folder}"):
                _simulate(folder, resume=True)

    assert comparable(_simulate(folder, on_round=resume).saved.rounds) == comparable(whole.rounds)


def test_nowhere_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    folder = tmp_path / "run"
    monkeypatch.setattr(Checkpoints, "save", _full(Checkpoints.save, folder, 2))
    with pytest.raises(RunFailed, match=r"nor can .*/gone .*: only the last checkpoint"):
        _simulate(folder)
    assert [path.stem for path in (folder / "checkpoints").iterdir()] == ["round-000001"]


def test_a_resumed_run_that_stops_has_no_figures_of_an_earlier_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert _simulate(folder, rounds=2).summary["figures_of_round"] == 2

    def stop(line) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _simulate(folder, resume=True, on_round=stop)
    assert not (folder / "summary.json").exists()
    assert _simulate(folder, resume=True).summary["figures_of_round"] == 4


def test_a_resumed_run_that_is_refused_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    folder, parts = tmp_path / "run", ("config.yaml", "summary.json", "rounds.jsonl", "clusters.json")
    _simulate(folder, rounds=2)
    before = {name: (folder / name).read_bytes() for name in parts}
    with pytest.raises(FederationError, match="must go on without such a choice of personal"):
        _simulate(folder, rounds=3, personal="ditto", resume=True)
    assert {name: (folder / name).read_bytes() for name in parts} == before
    assert len(_simulate(folder, rounds=3, resume=True).saved.rounds) == 3
    assert (folder / "config.yaml").read_bytes() != before["config.yaml"]  # now of 3 rounds


def test_a_resume_that_finds_no_room_leaves_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, parts = tmp_path / "run", ("config.yaml", "summary.json", "rounds.jsonl", "clusters.json")
    _simulate(folder, rounds=2)
    before = {name: (folder / name).read_bytes() for name in parts}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "assignment", full)
        with pytest.raises(OSError, match="No space left"):
            Recorder.resume(folder, 1, "rounds: 3\n")
    assert {name: (folder / name).read_bytes() for name in parts} == before
    # After a process that was killed before its first new round the run is finished, and can be resumed.
    Recorder.resume(folder, 1, before["config.yaml"].decode())._rounds.close()
    assert (folder / "summary.json").read_bytes() == before["summary.json"]
    assert len(_simulate(folder, rounds=2, resume=True).saved.rounds) == 2
    assert not list(folder.glob("partial.*"))


def test_a_resumed_run_that_stops_early_has_the_page_of_its_last_round(tmp_path: Path, pages: None) -> None:
    pytest.importorskip("altair")
    folder = tmp_path / "run"
    _simulate(folder, rounds=2)
    with pytest.raises(FederationError):
        _simulate(folder, rounds=3, personal="ditto", resume=True)
    assert "Not finished" not in (folder / "report.html").read_text()


def test_failures_after_the_last_round_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def confuse(federation, clusters) -> dict:  # as one that asks, and is refused
        federation.failed(2, "query.confusion", "disk on fire")
        return {}

    monkeypatch.setattr("fedclust.federation.questions.confuse_clusters", confuse)
    summary = _simulate(tmp_path / "run", rounds=1).summary
    assert summary["late_failures"] == [{"client": 2, "phase": "query.confusion", "reason": "disk on fire"}]
    assert summary["failed_replies"] == 1


def test_arguments_about_faults_are_checked(tmp_path: Path) -> None:
    for wrong in ({"timeout": 0}, {"min_replies": 1.5}, {"keep_matrices": "some"}):
        (name,) = wrong
        with pytest.raises(ValueError, match=name):
            _simulate(tmp_path / "run", **wrong)


@pytest.mark.parametrize("damage", [b"", b'{"round": 3, "lo', b"\x00" * 20, b"\xff\xfe\n"])
def test_what_a_power_failure_leaves_in_rounds_jsonl(damage: bytes, tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.assignment(0, [0, 0], "start")
        recorder.round({"round": 1})
        recorder.round({"round": 2})
    with (tmp_path / "rounds.jsonl").open("ab") as file:
        file.write(damage)
    assert Recorder.rounds_in(tmp_path) == 2
    with (tmp_path / "clusters.json").open("rb+") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 2)
    with Recorder.resume(tmp_path, 2) as recorder:
        recorder.round({"round": 3})
    assert [line["round"] for line in SavedRun(tmp_path).rounds] == [1, 2, 3]
    assert [line["assignment"] for line in SavedRun(tmp_path).changes] == [[0, 0]]
