import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.clustering.fl_hc import Parameters
from fedclust.strategies import FLHC
from fedclust.strategies.fl_hc import compared


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


def test_all_clients_are_asked_also_those_that_do_not_take_part(started, watch) -> None:
    strategy = started(FLHC(parameters=Parameters(rounds=1), participation=0.5), 1, move=_two_ways)
    assert len(watch.rounds[0]["cohort"]) == 3
    assert strategy.assignment.tolist() == [0, 1] * 3


def test_a_client_that_fails_goes_with_the_largest_group(started, watch) -> None:
    strategy = started(
        FLHC(parameters=Parameters(rounds=1)),
        1,
        num_clients=7,
        move=_two_ways,
        error=lambda client, number: "gone" if (client, number) == (3, 2) else None,
    )
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
    model = ArrayRecord()
    model["norm.weight"] = Array(np.ones(2, dtype=np.float32))
    model["norm.running_mean"] = Array(np.full(2, 900, dtype=np.float32))
    model["norm.num_batches_tracked"] = Array(np.array(7))
    assert compared(model, frozenset({"norm.running_mean"})) == ("norm.weight",)


def test_cautions() -> None:
    assert FLHC(parameters=Parameters(threshold=2.0)).cautions(30, 11) == []
    (said,) = FLHC().cautions(30, 11)
    assert "without strategy.parameters.threshold or strategy.parameters.num_clusters, the mean" in said
    assert FLHC().cautions(30, 10) == [
        "clusters are formed after round 10 (strategy.parameters.rounds), and there are 10"
    ]
