"""What every strategy keeps, on real digits: one cluster per client, same seed same run, failures borne."""

import copy
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from hydra.utils import get_object
from omegaconf import DictConfig

from fedclust import strategies
from fedclust.federation import Federation
from fedclust.grids.client_grid import WrappedGrid
from fedclust.messages.models import is_finite
from fedclust.messages.packer import pack, unpack
from fedclust.settings.composition import CONF, compose
from tests.strategies.helpers import Keeping, assert_same_models, built, kept

STRATEGIES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))
AGGREGATORS = sorted(path.stem for path in (CONF / "aggregator").glob("*.yaml"))
SMALL = [
    "rounds=3",
    "partition.num_clients=8",
    "partition.groups=[5,3]",
    "participation=0.8",
    "training.steps=2",
]
FEW = {"num_inputs": 32, "steps": 2, "num_points": 5}
SOON = ["strategy.parameters.warmup=1", "strategy.parameters.probation=1"]  # a look, trials, a decision
LIGHT = [f"strategy.parameters.{name}={value}" for name, value in FEW.items()]
# What makes methods form clusters within three rounds, of eight clients that hardly differ.
EAGER = {
    "cfl": ["min_rounds=0", "min_silhouette=-1", "eps_1=9", "eps_2=0.01"],
    "cfl_paper": ["min_rounds=0", "eps_1=9", "eps_2=0.01"],
    "fecfl": ["min_silhouette=-1"],
    "fedclust_weights": ["min_silhouette=-1"],
    "fl_hc": ["min_silhouette=-1", "rounds=1"],
    "pacfl": ["min_silhouette=-1"],
}
FAILING = 2
REMEMBERING = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")  # aggregators with a state between rounds


class Failing(WrappedGrid):
    """A grid on which one client never answers a round of training or evaluation."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        for reply in super().send_and_receive(messages, timeout=timeout):
            asked = reply.metadata.message_type in ("train", "evaluate")
            if asked and reply.metadata.src_node_id == FAILING:
                reply = Message(Error(5, "gone"), reply_to=Message(reply.content, FAILING, "train"))
            yield reply


@cache  # composing costs more than the few rounds of a test
def _config(name: str) -> DictConfig:
    light = LIGHT if name.startswith("fedgmcc") else []
    cohort = ["strategy.parameters.cohort_size=4"] if name == "fedgwc_released" else []
    soon = {"auto": SOON, "private_groups": ["strategy.parameters.warmup=1"]}.get(name, [])
    eager = [f"strategy.parameters.{setting}" for setting in EAGER.get(name, [])]
    return compose([f"strategy={name}", *SMALL, *light, *cohort, *soon, *eager])


@cache
def _aggregator(name: str) -> DictConfig:
    return compose([f"aggregator={name}"]).aggregator


def _build(name: str, aggregator: str = "fedavg", num_nodes: int = 1):
    """Make a strategy, the grid of its clients and the model they start from."""
    config = copy.deepcopy(_config(name))
    config.aggregator, config.engine.num_nodes = _aggregator(aggregator), num_nodes
    return built(config)


def _run(name: str, watch, failing: bool = False):
    strategy, grid, initial = _build(name)
    strategy.observer = watch
    strategy.start(Failing(grid) if failing else grid, initial, 3)
    return strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_contract(name: str, watch) -> None:
    strategy = _run(name, watch)
    filled = set(strategy.assignment.tolist())
    assert filled <= set(range(len(strategy.clusters.models)))  # nobody may have chosen one of the models
    assert strategy.assignment.shape == (8,)
    for server_round, assignment, _ in watch.assignments:
        assert len(assignment) == 8, f"round {server_round}"
    assert [record["round"] for record in watch.rounds] == [1, 2, 3]
    assert all(sum(record["cluster_sizes"]) == 8 for record in watch.rounds)
    assert np.isfinite([record["loss"] for record in watch.rounds]).all()
    assert np.isfinite(strategy.measured.figures["accuracy"]).all()
    again = type(watch)()
    _run(name, again)
    assert [{**record, "seconds": 0} for record in watch.rounds] == [
        {**record, "seconds": 0} for record in again.rounds
    ]
    for values in (*strategy.findings(strategy.clusters).clients.values(),):
        assert values.shape == (8,)


@pytest.mark.parametrize("name", STRATEGIES)
def test_survives_a_failing_client(name: str, watch) -> None:
    strategy = _run(name, watch, failing=True)
    assert [record["round"] for record in watch.rounds] == [1, 2, 3]
    failures = [failure for record in watch.rounds for failure in record["failures"]]
    assert {failure["client"] for failure in failures} == {FAILING}
    assert strategy.run.failed_replies == len(failures)
    for record in watch.rounds:
        trained = [failure for failure in record["failures"] if failure["phase"] == "train"]
        assert len(trained) == (FAILING in record["cohort"])
    assert np.isnan(strategy.measured.figures["accuracy"][FAILING])
    assert np.isfinite(np.delete(strategy.measured.figures["accuracy"], FAILING)).all()
    assert all(is_finite(model) for model in strategy.clusters.models)


def _allowed(name: str) -> list[str]:
    # A rule that remembers nothing leaves nothing to resume but what FedAvg's runs do: one method is enough.
    # A method that makes its models itself refuses those that remember.
    kind = get_object(_config(name).strategy["_target_"])
    return AGGREGATORS if name == "fedgwc" else ["fedavg", *(REMEMBERING if kind.aggregates else ())]


@pytest.mark.parametrize(
    ("name", "aggregator"), [(name, aggregator) for name in STRATEGIES for aggregator in _allowed(name)]
)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(
    name: str, aggregator: str, tmp_path: Path
) -> None:
    whole, grid, initial = _build(name, aggregator)
    seen = Keeping(whole, tmp_path, 2)
    whole.start(grid, initial, 4)
    resumed, grid, initial = _build(name, aggregator, num_nodes=3)
    again = Keeping(resumed, tmp_path)
    resumed.start(grid, initial, 4, resume=kept(tmp_path, 2))
    assert [record["round"] for record in again.rounds] == [3, 4]
    assert again.rounds == seen.rounds[2:]
    assert resumed.run.failed_replies == whole.run.failed_replies
    assert_same_models(whole, resumed)
    remembered, restored = whole.run_state().aggregators, resumed.run_state().aggregators
    assert any(remembered) == (aggregator in REMEMBERING)
    for mine, twin in zip(remembered, restored, strict=True):
        one, other = pack(mine, dict[str, Any]), pack(twin, dict[str, Any])
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(other[key]), err_msg=key)
    found, other = whole.findings(whole.clusters), resumed.findings(resumed.clusters)
    assert found.summary == other.summary
    for key, array in (found.arrays | found.clients).items():
        np.testing.assert_array_equal(array, (other.arrays | other.clients)[key])


@pytest.mark.parametrize("name", STRATEGIES)
def test_hooks_leave_nothing_behind(name: str) -> None:
    """Called twice with the same values, each hook returns the same."""
    strategy, grid, initial = _build(name)
    federation = Federation(grid, num_rounds=3)
    first, again = (strategy.begin(federation, initial) for _ in range(2))
    _assert_same(strategy, first, again)
    strategy.observer = once = Repeating(strategy)
    strategy.after_round = once.after_round  # what the run calls
    strategy.cohort = once.cohort
    strategy.start(grid, initial, 3)
    assert once.calls == 6


class Repeating:
    """Calls a strategy's hooks twice and compares."""

    def __init__(self, strategy) -> None:
        self._strategy, self.calls = strategy, 0
        self._after_round, self._cohort = strategy.after_round, strategy.cohort

    def after_round(self, *values):
        first, again = self._after_round(*values), self._after_round(*values)
        _assert_same(self._strategy, first, again)
        self.calls += 1
        return again

    def cohort(self, *values):
        first, again = self._cohort(*values), self._cohort(*values)
        np.testing.assert_array_equal(first, again)
        self.calls += 1
        return again

    def assignment(self, *_) -> None:
        pass

    round = assignment


def _assert_same(strategy, one, other) -> None:
    np.testing.assert_array_equal(one.assignment, other.assignment)
    assert (one.report, one.reason) == (other.report, other.reason)
    for model, twin in zip(one.models, other.models, strict=True):
        for key in model:
            np.testing.assert_array_equal(model[key].numpy(), twin[key].numpy())
    state, again = pack(one.memory, strategy.memory_type), pack(other.memory, strategy.memory_type)
    assert list(state) == list(again)
    for key in state:
        np.testing.assert_array_equal(np.asarray(state[key]), np.asarray(again[key]))
    # And what is listed is all that there is: it makes the same memory.
    restored = pack(unpack(strategy.memory_type, state), strategy.memory_type)
    for key in state:
        np.testing.assert_array_equal(np.asarray(state[key]), np.asarray(restored[key]))


def test_every_strategy_has_a_choice() -> None:
    chosen = {get_object(_config(name).strategy["_target_"]) for name in STRATEGIES}
    assert chosen == {getattr(strategies, name) for name in strategies.__all__}
