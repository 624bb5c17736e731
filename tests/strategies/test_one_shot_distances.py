"""PACFL, FECFL and the last layer's weights: one question before round 1."""

import numpy as np
import pytest
from torch import nn

import fedclust
from fedclust.clustering import fecfl, pacfl
from fedclust.federation import FederationError
from fedclust.strategies import FECFL, PACFL
from tests.strategies.helpers import agglomerations


def test_pacfl_groups_by_the_angles_of_what_clients_answer(started, watch) -> None:
    def lines(client: int) -> np.ndarray:
        tilt = np.radians(client + 60 * (client % 2))
        return np.array([[[np.cos(tilt)], [np.sin(tilt)]]])

    strategy = started(PACFL(parameters=pacfl.Parameters(vectors=1)), 1, 2, subspaces=lines)
    assert watch.assignments == [(0, [0, 1] * 3, "before round 1")]
    found = strategy.findings(strategy.clusters)
    assert found.arrays["distances"][0, 1] == pytest.approx(61, abs=1e-3)
    assert list(found.summary["silhouette"]) == ["2", "3", "4", "5"]


def test_pacfl_refuses_answers_of_another_shape(toy) -> None:
    with pytest.raises(FederationError, match=r"client 0: subspaces must have shape \(classes, width, 3\)"):
        PACFL().start(toy().grid(), toy.model(), num_rounds=1)


def test_fecfl_groups_by_clients_mean_embeddings(started, watch) -> None:
    clients = {"counts": lambda client: [9, 1] if client < 2 else [1, 9]}
    clients |= {"prototypes": lambda client: [[1.0, 0.0], [0.0, 1.0]]}
    strategy = started(FECFL(parameters=fecfl.Parameters(num_clusters=2)), 1, 2, **clients)
    assert watch.assignments == [(0, [0, 0, 1, 1, 1, 1], "before round 1")]
    # Mean embeddings (0.9, 0.1) and (0.1, 0.9): 1 - 0.18 / 0.82.
    assert strategy.findings(strategy.clusters).arrays["distances"][0, 2] == pytest.approx(1 - 0.18 / 0.82)


@pytest.mark.parametrize("seed", range(8))
def test_fecfl_is_the_literal_loop_over_rows(seed: int) -> None:
    """A mean over rows, cosines between means, the two closest groups merge; client 0's mean is 0."""
    draws, number = np.random.default_rng(seed), min(seed + 1, 6)
    rows = [draws.integers(0, 3, (draws.integers(1, 9), 2)).astype("f4") for _ in range(number)]
    rows[0] = np.array([[1, 2], [-1, -2]], dtype="f4")
    clients = [((x, draws.integers(0, 2, len(x))), None, (x, np.ones(len(x), int))) for x in rows]
    linkage, wanted = str(draws.choice(["single", "complete", "average"])), int(draws.integers(1, number + 1))
    stopping = {"num_clusters": wanted} if seed % 2 else {"threshold": 0.1}
    parameters = fecfl.Parameters(input="pixels", linkage=linkage, **stopping)
    how = fedclust.LocalTraining(learning_rate=0.1, batch_size=9, steps=1)
    strategy = FECFL(parameters=parameters)
    found = fedclust.simulate(strategy, nn.Linear(2, 2), clients, rounds=1, training=how)

    def apart(one: int, other: int) -> float:
        a, b = (sum(row.astype(float) for row in rows[k]) / len(rows[k]) for k in (one, other))
        return 1 - a @ b / (a @ a * (b @ b)) ** 0.5 if a.any() and b.any() else 1.0

    def stop(count: int, least: float) -> bool:
        return count <= wanted if seed % 2 else least > 0.1

    groups = {tuple(np.flatnonzero(found.assignment == cluster)) for cluster in {*found.assignment}}
    assert groups in agglomerations(apart, {(client,) for client in range(number)}, linkage, stop)


def test_a_client_that_cannot_answer_stops_the_run(toy) -> None:
    grid = toy().grid()
    grid.send_and_receive = lambda *_, **__: []
    with pytest.raises(FederationError, match="client 0 must answer before round 1, it failed: no reply"):
        PACFL().start(grid, toy.model(), num_rounds=1)
