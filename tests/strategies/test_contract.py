"""What every strategy keeps, on real digits: one cluster per client, same seed same run, failures borne."""

import copy
import importlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_object
from omegaconf import DictConfig

from fedclust import strategies
from fedclust.federation import Federation
from fedclust.messages.models import is_finite
from fedclust.messages.packer import pack, unpack
from fedclust.settings.composition import CONF, compose
from fedclust.strategies import ClusteredStrategy
from fedclust.strategies.base import NetworkStrategy
from tests.fedclust.messages.test_packer import same
from tests.strategies.helpers import Keeping, Lossy, assert_same_models, built, kept

FOLDER = Path(strategies.__file__).parent
STRATEGIES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))
AGGREGATORS = sorted(path.stem for path in (CONF / "aggregator").glob("*.yaml"))
SMALL = "rounds=3 partition.num_clients=8 partition.groups=[5,3] participation=0.8 training.steps=2"
FEW = {"num_inputs": 32, "steps": 2, "num_points": 5}
SOON = ["strategy.parameters.warmup=1", "strategy.parameters.probation=1"]  # a look, trials, a decision
LIGHT = [f"strategy.parameters.{name}={value}" for name, value in FEW.items()]
# What makes methods form clusters within three rounds, of eight clients that hardly differ.
EAGER = {"cfl": ["min_rounds=0", "eps_1=9", "eps_2=0.01"], "fl_hc": ["rounds=1"]}
FAILING = 2
REMEMBERING = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")  # aggregators with a state between rounds


@cache  # composing costs more than the few rounds of a test
def _config(name: str) -> DictConfig:
    light = LIGHT if name.startswith("fedgmcc") else []
    cohort = ["strategy.parameters.cohort_size=4"] if name == "fedgwc_released" else []
    soon = {"auto": SOON, "private_groups": ["strategy.parameters.warmup=1"]}.get(name, [])
    eager = [f"strategy.parameters.{setting}" for setting in EAGER.get(name, [])]
    return compose([f"strategy={name}", *SMALL.split(), *light, *cohort, *soon, *eager])


@cache
def _aggregator(name: str) -> DictConfig:
    return compose([f"aggregator={name}"]).aggregator


def _build(name: str, aggregator: str = "fedavg", num_nodes: int = 1):
    """Make a strategy, the grid of its clients and the model they start from."""
    config = copy.deepcopy(_config(name))
    config.aggregator, config.engine.num_nodes = _aggregator(aggregator), num_nodes
    return built(config)


def _own(name: str) -> str:
    """Return the aggregator of a method's whole run: one that remembers, unless the method refuses these."""
    return "fedavg" if name in ("fedgmcc", "fedsoft") else "fedavgm"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return what runs a method for four rounds, once: the strategy, what was seen, and the checkpoint."""

    @cache
    def run(name: str, aggregator: str) -> tuple[Any, Keeping, Path]:
        folder = tmp_path_factory.mktemp(name)
        strategy, grid, initial = _build(name, aggregator)
        seen = Keeping(strategy, folder, 2)
        strategy.start(grid, initial, 4)
        return strategy, seen, folder

    return run


@pytest.mark.parametrize("name", STRATEGIES)
def test_contract(name: str, whole, tmp_path: Path) -> None:
    """Every client is in one cluster; called twice with the same values each hook returns the same."""
    strategy, seen, _ = whole(name, _own(name))
    filled = set(strategy.assignment.tolist())
    assert filled <= set(range(len(strategy.clusters.models)))  # nobody may have chosen one of the models
    assert {len(assignment) for _, assignment, _ in seen.assignments} == {8}
    assert [record["round"] for record in seen.rounds] == [1, 2, 3, 4]
    assert all(sum(record["cluster_sizes"]) == 8 for record in seen.rounds)
    assert np.isfinite([record["loss"] for record in seen.rounds]).all()
    assert np.isfinite(strategy.measured.figures["accuracy"]).all()
    assert all(each.shape == (8,) for each in strategy.findings(strategy.clusters).clients.values())
    assert strategy.run.failed_replies == 0
    # Again, with the same seed: the run is the same, though each hook is called twice.
    again, grid, initial = _build(name, _own(name))
    federation = Federation(grid, num_rounds=4)
    _assert_same(again, *(again.begin(federation, initial) for _ in range(2)))
    twice = Repeating(again, tmp_path)
    again.start(grid, initial, 4)
    assert twice.rounds == seen.rounds
    assert twice.calls == 8


@pytest.mark.parametrize("name", STRATEGIES)
def test_survives_a_failing_client(name: str, watch) -> None:
    strategy, grid, initial = _build(name)
    strategy.observer = watch
    lost = lambda client, kind, _: client == FAILING and kind in ("train", "evaluate")  # noqa: E731
    strategy.start(Lossy(grid, lost), initial, 3)
    assert [record["round"] for record in watch.rounds] == [1, 2, 3]
    failures = [failure for record in watch.rounds for failure in record["failures"]]
    assert {failure["client"] for failure in failures} == {FAILING}
    assert strategy.run.failed_replies == len(failures)
    for record in watch.rounds:
        trained = [failure for failure in record["failures"] if failure["phase"] == "train"]
        assert len(trained) == (FAILING in record["cohort"])
    known = np.isfinite(strategy.measured.figures["accuracy"])
    assert known.tolist() == [client != FAILING for client in range(8)]
    assert all(is_finite(model) for model in strategy.clusters.models)


# A rule that remembers nothing leaves nothing to resume but what FedAvg's runs do: one method is enough.
RESUMED = [("fedgwc", aggregator) for aggregator in AGGREGATORS]
RESUMED += [(name, "own") for name in STRATEGIES if name != "fedgwc"]


@pytest.mark.parametrize(("name", "aggregator"), RESUMED)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(name, aggregator, whole, tmp_path) -> None:
    aggregator = _own(name) if aggregator == "own" else aggregator
    first, seen, folder = whole(name, aggregator)
    resumed, grid, initial = _build(name, aggregator, num_nodes=3)
    again = Keeping(resumed, tmp_path)
    resumed.start(grid, initial, 4, resume=kept(folder, 2))
    assert again.rounds == seen.rounds[2:]
    assert_same_models(first, resumed)
    remembered, restored = first.run_state().aggregators, resumed.run_state().aggregators
    assert any(remembered) == (aggregator in REMEMBERING)
    for mine, twin in zip(remembered, restored, strict=True):
        assert same(pack(mine, dict[str, Any]), pack(twin, dict[str, Any]))
    found, other = first.findings(first.clusters), resumed.findings(resumed.clusters)
    assert found.summary == other.summary
    _assert_equal(found.arrays | found.clients, other.arrays | other.clients)


class Repeating(Keeping):
    """Calls a strategy's hooks twice and compares."""

    def __init__(self, strategy, folder: Path) -> None:
        super().__init__(strategy, folder)
        self.calls = 0
        self._after_round, self._cohort = strategy.after_round, strategy.cohort
        strategy.after_round, strategy.cohort = self.after_round, self.cohort

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


def _assert_same(strategy, one, other) -> None:
    np.testing.assert_array_equal(one.assignment, other.assignment)
    assert (one.report, one.reason) == (other.report, other.reason)
    for model, twin in zip(one.models, other.models, strict=True):
        for key in model:
            np.testing.assert_array_equal(model[key].numpy(), twin[key].numpy())
    state, again = pack(one.memory, strategy.memory_type), pack(other.memory, strategy.memory_type)
    assert same(state, again)
    # And what is listed is all that there is: it makes the same memory.
    assert same(state, pack(unpack(strategy.memory_type, state), strategy.memory_type))


def _assert_equal(one, other) -> None:
    assert list(one) == list(other)
    for key, value in one.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(other[key]), err_msg=key)


def test_every_strategy_is_listed_and_has_a_choice() -> None:
    modules = [importlib.import_module(f"{strategies.__name__}.{p.stem}") for p in FOLDER.glob("[!_]*.py")]
    found = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
    own = {kind for kind in found if issubclass(kind, ClusteredStrategy)} - {NetworkStrategy}
    assert {kind.__name__ for kind in own} == set(strategies.__all__)
    assert own == {get_object(_config(name).strategy["_target_"]) for name in STRATEGIES}
