import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from safetensors import safe_open
from safetensors.torch import save_file

from fedclust.federation import Measured
from fedclust.federation.federation import RosterState
from fedclust.federation.run import RunState
from fedclust.messages.models import from_state
from fedclust.messages.packer import pack
from fedclust.messages.traffic import Traffic
from fedclust.metrics import outcomes
from fedclust.results.checkpoints import Checkpoints, load
from tests.fedclust.messages.test_packer import same


def _model(**tensors: torch.Tensor) -> ArrayRecord:
    return from_state(tensors)


def _state(server_round: int = 1, **more) -> RunState:
    models = (_model(w=torch.zeros(1)),)
    made = {"assignment": np.array([0, 0]), "models": models, "turns": np.array([1, 0])}
    return RunState(**{"server_round": server_round, **made, **more})


def test_everything_comes_back(tmp_path: Path) -> None:
    models = tuple(_model(**{"net.weight": torch.randn(3, 2), "a": torch.tensor(each)}) for each in (5, 6))
    counted = outcomes(np.array([0, 1]), np.array([0, 0]), np.array([[0.9, 0.1], [0.6, 0.4]]))
    plain = {"mse": 0.1 + 0.2, "none": None, "whole": 7}
    state = RunState(
        server_round=10,
        assignment=np.array([0, 1, 1]),
        models=models,
        turns=np.array([3, 4, 3]),
        memory={"matrix": np.array([[0.1, np.nan]]), "met": np.array([True, False]), **plain},
        aggregators=({"m_t{": None, "m_t{net.weight": np.ones((3, 2), dtype=np.float32)}, {}),
        measured=Measured({"accuracy": np.array([1.0, np.nan, 0.25])}, {2: counted}),
        failed_replies=2,
        traffic=Traffic(5, 7, np.array([2, 2, 1]), np.array([3, 3, 1])),
    )
    path = Checkpoints(tmp_path / "checkpoints", rounds=10).save(state)
    assert path == tmp_path / "checkpoints" / "round-000010.safetensors"
    read, _ = load(path)
    assert same(pack(read), pack(state))  # in order, too: aggregators and nodes rely on it
    with safe_open(path, framework="numpy") as file:
        assert file.get_tensor("models/1/a").tolist() == 6  # BatchNorm's counter is a scalar
    assert read.traffic.totals() == state.traffic.totals()


def test_a_checkpoint_without_what_later_ones_have_is_read(tmp_path: Path) -> None:
    state = _state(roster=RosterState(cautions=("north: its data must not change",)))
    path = Checkpoints(tmp_path, rounds=9).save(state)
    assert load(path)[0].roster.cautions == state.roster.cautions
    with safe_open(path, framework="pt") as file:
        about, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    plain = json.loads(about["state"])
    del plain["roster"]["cautions"]
    save_file(tensors, path, about | {"state": json.dumps(plain)})
    assert load(path)[0].roster.cautions == ()


def test_models_that_share_memory_are_written_for_each(tmp_path: Path) -> None:
    parent = _model(a=torch.arange(12.0).reshape(3, 4))  # after a split children have their parent's record
    read, last = load(Checkpoints(tmp_path, rounds=1).save(_state(models=(parent, parent))))
    assert last
    for model in read.models:
        np.testing.assert_array_equal(model["a"].numpy(), np.arange(12.0).reshape(3, 4))


def test_rounds_at_which_one_is_due(tmp_path: Path) -> None:
    every_third = Checkpoints(tmp_path, rounds=7, every=3)
    assert [number for number in range(1, 8) if every_third.due(number)] == [3, 6, 7]
    last = Checkpoints(tmp_path, rounds=7, every=0)
    assert [number for number in range(1, 8) if last.due(number)] == [6, 7]


def test_due_by_time(tmp_path: Path) -> None:
    now, due = 0.0, []
    checkpoints = Checkpoints(tmp_path, rounds=100, every="1min", clock=lambda: now)
    for number, now in enumerate((0.0, 60.0, 61.0, 119.0, 120.0), start=1):
        due.append(checkpoints.due(number))
        if now == 60.0:
            checkpoints.save(_state(2))
    assert due == [False, True, False, False, True]


def _saved(folder: Path, *rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, rounds=20, every=1)
    for number in rounds:
        checkpoints.save(_state(number))
    return checkpoints


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    (tmp_path / "round-000001.safetensors.partial").write_bytes(b"torso")  # a killed run left it
    (tmp_path / ".tmpAb3dEf").write_bytes(b"torso")
    assert Checkpoints(tmp_path / "none yet", rounds=20).newest() is None
    checkpoints = _saved(tmp_path, 1, 2, 9, 10)
    assert [path.stem for path in checkpoints.files()] == ["round-000009", "round-000010"]
    assert sorted(tmp_path.iterdir()) == checkpoints.files()
    assert checkpoints.newest().server_round == 10


def test_the_older_one_replaces_a_damaged_newest_and_none_is_an_error(tmp_path: Path) -> None:
    checkpoints = _saved(tmp_path, 1, 2)
    older, newest = checkpoints.files()
    newest.write_bytes(newest.read_bytes()[:-3])
    assert checkpoints.newest().server_round == 1
    older.write_bytes(older.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoints must hold a readable one, .* has none: .*000002"):
        checkpoints.newest()


def test_one_of_rounds_that_were_not_written_gives_way(tmp_path: Path) -> None:
    """As where a machine stopped before its disk had the last lines of rounds.jsonl."""
    checkpoints = _saved(tmp_path, 4, 6)
    assert checkpoints.newest(written=6).server_round == 6
    assert checkpoints.newest(written=5).server_round == 4
    with pytest.raises(ValueError, match=r"rounds.jsonl has only the first 3 rounds"):
        checkpoints.newest(written=3)


def test_a_longer_run_goes_on_before_what_was_the_last_round(tmp_path: Path) -> None:
    """It was evaluated because it was the last; in the longer run it is not."""
    finished, longer = Checkpoints(tmp_path, rounds=6), Checkpoints(tmp_path, rounds=9)
    finished.save(_state(5))
    before = finished.files()
    finished.save(_state(6))
    assert finished.newest().server_round == 6
    assert longer.newest().server_round == 5
    assert Checkpoints(tmp_path, rounds=1).newest().server_round == 6  # who wants its models
    before[0].write_bytes(b"damaged")
    assert longer.newest().server_round == 6
    longer.save(_state(7))
    assert longer.newest().server_round == 7


def test_a_longer_run_than_one_round_starts_over(tmp_path: Path) -> None:
    Checkpoints(tmp_path, rounds=1).save(_state(1))
    assert Checkpoints(tmp_path, rounds=1).newest().server_round == 1
    assert Checkpoints(tmp_path, rounds=2).newest() is None


def test_a_write_that_fails_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = _saved(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedclust.results.checkpoints.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(_state(2))
    assert checkpoints.newest().server_round == 1


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    save_file({"w": torch.zeros(1)}, tmp_path / "foreign")
    save_file({"w": torch.zeros(1)}, tmp_path / "old", {"fedclust": '{"format": 1}'})
    for name in ("text", "foreign", "old"):
        with pytest.raises(ValueError, match="checkpoint must be one written by fedclust, got"):
            load(tmp_path / name)
    with pytest.raises(ValueError, match="rounds must be >= 1, got 0"):
        Checkpoints(tmp_path, rounds=0)


def test_a_checkpoint_of_too_many_arrays_or_too_deep_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = {"fedclust": "[" * 100_000, "state": "{}"}
    save_file({"a": torch.zeros(1)}, tmp_path / "deep", metadata=deep)
    with pytest.raises(ValueError, match="^checkpoint must be one written by fedclust, got .*recursion"):
        load(tmp_path / "deep")
    (path,) = _saved(tmp_path, 1).files()
    monkeypatch.setattr("fedclust.results.checkpoints._MOST_ARRAYS", 0)
    with pytest.raises(ValueError, match="it must have at most 0 arrays, got"):
        load(path)
