"""Every strategy, on real digits, when a client joins in round 3 of 5 and another has left by round 4."""

import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate

from fedclust.federation import Federation
from fedclust.grids.client_grid import ClientGrid, WrappedGrid
from fedclust.layers.standard import Attendance, Seen
from fedclust.strategies import ClusteredStrategy
from tests.strategies.helpers import Keeping, assert_same_models, initial_model, kept, nodes_of
from tests.strategies.test_contract import STRATEGIES, _config

NEW, GONE = 5, 2  # clients of the partition: it joins in round 3; it leaves after round 3
ROUNDS = 5
POOLING = ("centralised", "centralised_groups")  # their messages name clients of the partition


class Moving(WrappedGrid):
    """A node for each client; one comes later and one leaves."""

    def __init__(self, grid) -> None:
        super().__init__(grid)
        self.round = 1

    def get_node_ids(self) -> list[int]:
        nodes = list(self._grid.get_node_ids())
        away = ({NEW} if self.round < 3 else set()) | ({GONE} if self.round > 3 else set())
        return [node for place, node in enumerate(nodes) if place not in away]


class Moves(Keeping):
    """Moves the nodes with the rounds."""

    def __init__(self, strategy, nodes: Moving, path: Path, *after: int) -> None:
        super().__init__(strategy, path, *after)
        self._nodes = nodes

    def round(self, record: dict) -> None:
        super().round(record)
        self._nodes.round = record["round"] + 1


def _start(name: str, path: Path, save_after: int = 0, state=None):
    config = copy.deepcopy(_config(name))
    config.engine.num_nodes = 8
    nodes = Moving(nodes_of(config))
    grid = ClientGrid(nodes, min_clients=1)
    roster, known = None, []
    if state is not None:
        nodes.round = state.server_round + 1
        roster, known = state.roster.roster(), state.roster.places
    grid.connect(known)
    options = {"participation": config.participation, "seed": config.seed}
    aggregator = partial(instantiate, config.aggregator)
    strategy = instantiate(config.strategy, aggregator=aggregator, **options)
    Moves(strategy, nodes, path, save_after)
    federation = Federation(grid, ROUNDS, roster=roster)
    federation.describe()
    strategy.start(grid, initial_model(config), ROUNDS, federation=federation, resume=state)
    return strategy, federation, grid


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in POOLING])
def test_a_client_joins_and_another_leaves(name: str, tmp_path: Path) -> None:
    strategy, federation, grid = _start(name, tmp_path, save_after=4)
    # Client 7 is the partition's 5, and the partition's 2 is client 2.
    assert grid.places == (0, 1, 2, 3, 4, 6, 7, 5)
    rounds = strategy.observer.rounds
    assert [record["round"] for record in rounds] == [1, 2, 3, 4, 5]
    assert [record.get("joined") for record in rounds] == [None, None, [7], None, None]
    assert [record.get("left") for record in rounds] == [None, None, None, [2], None]
    assert [sum(record["cluster_sizes"]) for record in rounds] == [7, 7, 8, 8, 8]
    accuracy = strategy.measured.figures["accuracy"]
    assert np.isnan(accuracy).tolist() == [client == 2 for client in range(8)]
    seen = _seen(strategy)
    assert seen.last_round.tolist() == [5, 5, 3, 5, 5, 5, 5, 5]
    assert np.isfinite(seen.last_accuracy).all()
    assert sum("client 7 joined" in reason for _, _, reason in strategy.observer.assignments) == 1
    assert strategy.run.federation.joined.tolist() == [0] * 7 + [3]
    assert strategy.run.federation.turns.shape == (8,)
    found = strategy.findings(strategy.clusters)
    assert all(values.shape == (8,) for values in found.clients.values())
    assert all(7 not in values.shape or values.ndim != 2 for values in found.arrays.values())
    # What it is compared with, afterwards, begins with the clients of then.
    federation.close()
    assert [federation.run(ROUNDS, 9.0, after).num_clients for after in (0, 2, 3)] == [7, 7, 8]
    # And a run that goes on after the join is the run that was not interrupted.
    again, _, _ = _start(name, tmp_path, state=kept(tmp_path, 4))
    assert again.observer.rounds == rounds[4:]
    assert_same_models(strategy, again)
    assert _seen(again).last_round.tolist() == seen.last_round.tolist()


def _seen(strategy) -> Seen:
    return strategy.layer(Attendance).state(strategy.run)


def test_the_rows_of_a_client_that_joins_are_capped(toy, tmp_path: Path) -> None:
    # Seven clients with one row each move by 1 in three rounds. One that joins in the third says to have a
    # million and moves by −1; three count: 1 + 1 + (7 · 1 − 3 · 1) / (7 + 3) = 2.4.
    clients = toy(
        num_clients=8,
        move=lambda client, _: -1.0 if client == NEW else 1.0,
        num_examples=lambda client: 10**6 if client == NEW else 1,
        counts=lambda client: [10**6 if client == NEW else 1, 0],
    )
    nodes, strategy = Moving(clients.nodes(8)), ClusteredStrategy(row_cap=3.0)
    grid = ClientGrid(nodes, min_clients=1)
    grid.connect()
    Moves(strategy, nodes, tmp_path)
    federation = Federation(grid, 3)
    federation.describe()
    strategy.start(grid, toy.model(), 3, federation=federation)
    assert strategy.run.federation.joined.tolist() == [0] * 7 + [3]
    np.testing.assert_allclose(strategy.clusters.models[0]["w"].numpy(), 2.4, atol=1e-6)
