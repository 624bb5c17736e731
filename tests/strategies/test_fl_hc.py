import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.clustering.fl_hc import Parameters
from fedclust.strategies import FLHC
from fedclust.strategies.fl_hc import compared
from tests.strategies.helpers import agglomerations


def _two_ways(client: int, server_round: int) -> list[float]:
    """Even clients pull along one axis, odd ones along the other, each a little differently."""
    return [1.0, 0.01 * client] if client % 2 == 0 else [0.01 * client, 1.0]


@pytest.mark.parametrize("metric", ["cosine", "l2", "l1"])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_clients_are_clustered_once_after_n_rounds(started, watch, metric, num_nodes: int) -> None:
    strategy = started(
        FLHC(parameters=Parameters(rounds=2, metric=metric, min_silhouette=0.5)), 3, num_nodes, move=_two_ways
    )
    assert watch.assignments == [(0, [0] * 6, "before round 1"), (2, [0, 1] * 3, "cluster 0 split in 2")]
    found = strategy.findings(strategy.clusters)
    # Clients 0 and 3 change (1, 0) and (0.03, 1).
    expected = {"cosine": 1 - 0.03 / np.hypot(0.03, 1), "l2": np.hypot(0.97, 1), "l1": 1.97}[metric]
    assert found.arrays["distances"][0, 3] == pytest.approx(expected, abs=1e-4)
    assert found.summary["silhouette"]["2"] > 0.9
    # Each cluster goes on from the common model: w after 2 rounds of everybody's mean, then its own.
    first, second = (model["w"].numpy() for model in strategy.clusters.models)
    assert first[0] - second[0] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("seed", range(40))
def test_rounds_are_those_of_a_literal_loop(started, seed: int) -> None:
    """FedAvg; one round of everybody; the two closest groups merge; FedAvg of each group."""
    draws, number = np.random.default_rng(seed), min(seed + 1, 6)
    moves = draws.integers(1, 6, (number, 6, 2)).astype(float)  # few values: equal changes, equal distances
    metric, linkage = ["l1", "l2", "cosine"][seed % 3], draws.choice(["single", "complete", "average"])
    (rounds, wanted), most = draws.integers(1, 4, 2).tolist(), 0.02 if metric == "cosine" else 3.0
    stopping = {"num_clusters": wanted} if seed % 2 else {"threshold": most}
    parameters = Parameters(rounds=rounds, metric=metric, linkage=linkage, **stopping)
    move = {"num_clients": number, "move": lambda client, r: moves[client, r].tolist()}
    strategy = started(FLHC(parameters=parameters, participation=1.0), 5, **move)

    def apart(one: int, other: int) -> float:
        a, b = moves[one, rounds + 1], moves[other, rounds + 1]
        cosine = a @ b / (a @ a * (b @ b)) ** 0.5
        return {"l1": abs(a - b).sum(), "l2": ((a - b) ** 2).sum() ** 0.5, "cosine": 1 - cosine}[metric]

    def stop(count: int, least: float) -> bool:
        return count <= wanted if seed % 2 else least > most + 1e-9

    found = {tuple(strategy.clusters.members(cluster)) for cluster in range(len(strategy.clusters.models))}
    assert found in agglomerations(apart, {(client,) for client in range(number)}, linkage, stop)
    for cluster, model in enumerate(strategy.clusters.models):
        expected = np.zeros(2)
        for r in range(1, 6):
            members = range(number) if r <= rounds else strategy.clusters.members(cluster)
            expected += np.average([moves[k, r] for k in members], axis=0, weights=[k + 1 for k in members])
        np.testing.assert_allclose(model["w"].numpy(), expected, rtol=1e-5)


def test_all_clients_are_asked_also_those_that_do_not_take_part(started, watch) -> None:
    strategy = started(FLHC(parameters=Parameters(rounds=1), participation=0.5), 1, move=_two_ways)
    assert len(watch.rounds[0]["cohort"]) == 3
    assert strategy.assignment.tolist() == [0, 1] * 3


def test_a_client_that_fails_goes_with_the_largest_group(started, watch) -> None:
    gone = {"error": lambda client, number: "gone" if (client, number) == (3, 2) else None}
    strategy = started(FLHC(parameters=Parameters(rounds=1)), 1, num_clients=7, move=_two_ways, **gone)
    assert strategy.assignment.tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert watch.rounds[0]["failures"] == [{"client": 3, "phase": "query.update", "reason": "gone"}]
    assert np.isnan(strategy.findings(strategy.clusters).arrays["distances"][3]).all()


def test_if_nobody_answers_all_stay_together_and_the_log_says_so(started, caplog) -> None:
    silent = {"move": _two_ways, "error": lambda _, number: "gone" if number == 2 else None}
    with caplog.at_level(logging.WARNING):
        strategy = started(FLHC(parameters=Parameters(rounds=1)), 1, **silent)
    assert strategy.assignment.tolist() == [0] * 6
    assert "no client answered in round 1" in caplog.text


def test_statistics_and_counters_are_not_compared() -> None:
    model = ArrayRecord({"norm.weight": Array(np.ones(2)), "norm.running_mean": Array(np.full(2, 900.0))})
    model["norm.num_batches_tracked"] = Array(np.array(7))
    assert compared(model, frozenset({"norm.running_mean"})) == ("norm.weight",)


def test_cautions() -> None:
    assert FLHC(parameters=Parameters(threshold=2.0)).cautions(30, 11) == []
    (said,) = FLHC().cautions(30, 11)
    assert "without strategy.parameters.threshold or strategy.parameters.num_clusters, the mean" in said
    assert FLHC().cautions(30, 10) == [
        "clusters are formed after round 10 (strategy.parameters.rounds), and there are 10"
    ]
