"""The strategies that two pages of docs/ show work as they are written there."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fedclust
import fedclust.clustering
from fedclust import strategies
from fedclust.messages.models import from_state
from tests.strategies.helpers import Weights

DOCS = Path(__file__).parent.parent / "docs"


def _modules(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Make the two modules of a page; the mathematics is importable as the page imports it."""
    mathematics, strategy = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    pure = types.ModuleType(f"fedclust.clustering.{name}")
    exec(mathematics, pure.__dict__)
    monkeypatch.setitem(sys.modules, pure.__name__, pure)
    monkeypatch.setattr(fedclust.clustering, name, pure, raising=False)
    module = types.ModuleType(f"{strategies.__name__}.{name}")
    exec(strategy, module.__dict__)
    return module


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    return _modules("A_ONE_SHOT_STRATEGY.md", "by_size", monkeypatch)


@pytest.fixture
def ifca(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    return _modules("A_STRATEGY_WITH_ROUNDS.md", "ifca", monkeypatch)


def test_a_one_shot_strategy(by_size: types.ModuleType, toy, watch) -> None:
    strategy = by_size.BySize(threshold=4)
    strategy.observer = watch
    strategy.start(toy(num_clients=6).grid(2), toy.model(), num_rounds=1)
    # Client k has k + 2 samples: clients 0 and 1 have fewer than 4.
    assert watch.assignments == [(0, [0, 0, 1, 1, 1, 1], "before round 1")]


def test_its_mathematics(by_size: types.ModuleType) -> None:
    assign = by_size.by_size.assign
    np.testing.assert_array_equal(assign(np.array([5, 100, 99]), 100), [0, 1, 0])
    np.testing.assert_array_equal(assign(np.array([5, 6]), 100), [0, 0])
    np.testing.assert_array_equal(assign(np.array([500, 600]), 100), [0, 0])
    with pytest.raises(ValueError, match="threshold must be >= 1, got 0"):
        assign(np.array([5]), 0)


def test_ifca_lets_clients_choose(ifca: types.ModuleType, toy, watch) -> None:
    strategy = ifca.IFCA(network=Weights(5, 5), num_clusters=2)
    strategy.observer = watch
    federation = toy(num_clients=6, move=lambda *_: 0.0)
    strategy.start(federation.grid(2), from_state(Weights(5, 5).state_dict()), num_rounds=1)
    # The toy's loss is |client − first entry|: clients 0, 1, 2 are nearer to 0, clients 3, 4, 5 to 5.
    assert strategy.assignment.tolist() == [0, 0, 0, 1, 1, 1]
    assert watch.assignments[1] == (1, [0, 0, 0, 1, 1, 1], "clients chose")
    started = {client: start for client, _, start in federation.trained}
    assert [round(started[client]) for client in range(6)] == [0, 0, 0, 5, 5, 5]


def test_a_client_that_cannot_choose_stays(ifca: types.ModuleType, toy, watch) -> None:
    strategy = ifca.IFCA(network=Weights(5, 5), num_clusters=2)
    strategy.observer = watch
    federation = toy(num_clients=6, error=lambda client, r: "busy" if (client, r) == (5, 0) else None)
    strategy.start(federation.grid(), from_state(Weights(5, 5).state_dict()), num_rounds=1)
    assert strategy.assignment[5] == 0
    failed = [(failure["client"], failure["phase"]) for failure in watch.rounds[0]["failures"]]
    assert failed == [(5, "query.losses"), (5, "query.losses")]  # before the round, and before evaluation
