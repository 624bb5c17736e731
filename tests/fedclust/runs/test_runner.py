"""One strategy's run: what it writes, what callbacks may do, who is served what, how a failed one ends."""

import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedclust
from fedclust import strategies
from fedclust.clustering import fesem
from fedclust.federation import Measured, RunFailed
from fedclust.federation.questions import Serving
from fedclust.results import SavedRun, recorder
from fedclust.runs.runner import StrategyRun

TRAINING = fedclust.LocalTraining(learning_rate=0.1, batch_size=4, epochs=1)
CLIENTS = [(np.full((8, 2), k, np.float32), np.arange(8) % 2) for k in range(4)]


def _simulate(folder: Path, strategy: Any = "fedavg", **given: Any) -> fedclust.Result:
    fixed = {"rounds": 2, "training": TRAINING, "folder": folder}
    return fedclust.simulate(strategy, nn.Linear(2, 2), CLIENTS, **fixed, **given)


def test_a_summary_is_written_after_the_rounds_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    replace_file = recorder.replace_file
    monkeypatch.setattr(
        recorder, "replace_file", lambda path, text: (written.append(path.name), replace_file(path, text))
    )
    _simulate(tmp_path / "run")
    assert written.count("summary.json") == 2


@pytest.mark.parametrize(
    ("strategy", "given", "guessed"),
    [("fedavg", {}, None), ("fesem", {}, 2), ("fesem", {"num_clusters": 3}, None)],
)
def test_a_number_of_groups_that_nobody_gave_is_in_the_summary(
    tmp_path: Path, strategy: str, given: dict[str, int], guessed: int | None
) -> None:
    asked = strategies.FeSEM(parameters=fesem.Parameters(**given)) if given else strategy
    assert _simulate(tmp_path / "run", asked).summary.get("groups_guessed") == guessed


def test_a_callback_that_changes_its_record_changes_nothing(tmp_path: Path) -> None:
    def greedy(record: dict[str, Any]) -> None:
        record["global_accuracy"] = 1.5

    result = _simulate(tmp_path / "run", on_round=greedy)
    assert len(result.rounds) == 2
    assert (result.rounds["global_accuracy"] <= 1).all()


def test_a_round_that_does_not_count_is_told_to_nobody(tmp_path: Path) -> None:
    seen: list[int] = []

    def metric(outputs: Tensor, targets: Tensor) -> float:
        if seen:
            raise RuntimeError("a full disk")
        return 0.5

    with pytest.raises(RunFailed, match="round 2 of 2, no client was evaluated: 4 of 4 clients: .*full disk"):
        _simulate(tmp_path / "run", metrics={"own": metric}, on_round=lambda each: seen.append(each["round"]))
    assert seen == [1]  # a tracker would keep its figures beside those of the resumed run's round 2
    assert [line["round"] for line in SavedRun(tmp_path / "run").rounds] == [1, 2]


def test_what_a_callback_takes_is_none_of_the_runs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, taken = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now() + taken[0])

    def slow(record: dict[str, Any]) -> None:
        taken[0] += 1e6

    result = _simulate(tmp_path / "run", on_round=slow)
    assert taken == [2e6]
    assert (result.rounds["seconds"].between(0, 1e5)).all()
    assert 0 < result.summary["seconds"] < 1e5


@pytest.mark.parametrize(("last", "left"), [(1, "it has no checkpoint yet, its rounds are in {}"), (2, None)])
def test_a_failed_run_names_what_is_left_of_it(tmp_path: Path, last: int, left: str | None) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == last:
            raise RunFailed("enough")

    left = left or "its newest checkpoint is round-000001; to go on from it: resume={}"
    with pytest.raises(RunFailed) as failed:
        _simulate(tmp_path / "run", on_round=stop, checkpoint_every=1)
    assert str(failed.value) == f"fedavg: enough; {left.format(tmp_path / 'run')}"
    assert len(SavedRun(tmp_path / "run").rounds) == last  # the failed round, too


def test_a_failed_runs_setting_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RunFailed("enough")

    with pytest.raises(RunFailed) as failed:
        _simulate(tmp_path / "my run", on_round=stop, checkpoint_every=1)
    assert shlex.split(str(failed.value).rpartition(": ")[2]) == [f"resume={tmp_path / 'my run'}"]


def test_clusters_are_served_their_own_model_or_the_one_for_all() -> None:
    run = object.__new__(StrategyRun)
    own: Any = ["a", "b", "c"]
    by_common = np.array([True, False, True, False])
    clusters, common = (np.array([0, 1, 0, 2]), own), (np.zeros(4, dtype=int), ["all"])
    run._serving = Serving(Measured(), clusters, common, by_common)  # type: ignore[arg-type]
    assignment, models = run.serving
    assert (assignment.tolist(), models) == ([0, 1, 0, 2], ["all", "b", "c"])
    assert own == ["a", "b", "c"]
