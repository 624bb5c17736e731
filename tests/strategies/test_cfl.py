import numpy as np
import pytest

from fedclust.clustering.cfl import Parameters
from fedclust.federation import Clusters
from fedclust.strategies import CFL

SOON = {"eps_1": 0.7, "eps_2": 0.8, "relative": False, "min_rounds": 1}
EAGER = Parameters(**SOON, min_silhouette=0.5, min_cluster_size=1, projection=4096)


def _to(degrees: float) -> list[float]:
    return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]


def _opposite(client: int, server_round: int) -> list[float]:
    """Even clients pull one way, odd ones the other."""
    return _to(180 * (client % 2) + client)


def _run(started, rounds: int, num_nodes: int = 1, participation: float = 1.0, **behaviour) -> CFL:
    strategy = CFL(parameters=EAGER, participation=participation)
    return started(
        strategy, rounds, num_nodes, **{"num_examples": lambda _: 5, "move": _opposite, **behaviour}
    )


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_opposite_clients_are_cut_though_nodes_answer_with_means(started, watch, num_nodes: int) -> None:
    strategy = _run(started, 3, num_nodes)
    # Not in round 1. The mean of six unit vectors that nearly cancel is short, each is longer than 0.8.
    assert watch.assignments == [(0, [0] * 6, "before round 1"), (2, [0, 1] * 3, "cluster 0 split in 2")]
    told = watch.rounds[1]["strategy"]["0"]
    assert told["cut"] is True
    assert told["max_norm"] == pytest.approx(1)
    assert told["mean_norm"] < 0.1
    # Clients 0 and 1 pull to 0° and 181°, 0 and 2 to 0° and 2°.
    found = strategy.findings(strategy.clusters).arrays["distances"]
    np.testing.assert_allclose(found[0, 1:3], 1 - np.cos(np.radians([181, 2])), atol=1e-4)
    # Afterwards each cluster moves as a whole.
    assert watch.rounds[2]["strategy"]["1"]["mean_norm"] > 0.9


def test_clients_that_agree_stay_together(started, watch) -> None:
    _run(started, 4, move=lambda client, _: _to(client))
    assert watch.assignments == [(0, [0] * 6, "before round 1")]
    assert all(record["strategy"]["0"]["mean_norm"] > 0.9 for record in watch.rounds)


def test_two_cuts_in_a_row_keep_every_client_exactly_once(started, watch) -> None:
    """Three ways to pull, of three clients each; the second cut is of a cluster whose ids have gaps.

    Clients at 0° and 100° stay together first: their mean is cos 50° = 0.64 long, so they part a round later.
    """
    ways = (0, 100, 220)
    strategy = _run(started, 5, num_clients=9, move=lambda client, _: _to(ways[client % 3]))
    assert [sorted(record["cluster_sizes"]) for record in watch.rounds[-1:]] == [[3, 3, 3]]
    same = np.equal.outer(np.arange(9) % 3, np.arange(9) % 3)
    np.testing.assert_array_equal(np.equal.outer(strategy.assignment, strategy.assignment), same)
    assert len(watch.assignments) == 3


def test_a_client_that_was_not_sampled_is_placed_by_its_last_update_or_asked(started, watch) -> None:
    strategy = _run(started, 4, num_clients=8, participation=0.5)
    (_, (cut, *_)) = watch.assignments
    sampled = {client for record in watch.rounds[:cut] for client in record["cohort"]}
    assert len(sampled) < 8
    assert strategy.assignment.tolist() == [0, 1] * 4


def test_a_run_does_not_stop_before_the_first_cut_may_come(toy) -> None:
    clusters = Clusters.of([0, 0], toy.model())
    assert CFL().settled(clusters, 1)
    waits = CFL(parameters=Parameters(min_rounds=20))
    assert [waits.settled(clusters, number) for number in (20, 21)] == [False, True]


def test_cautions() -> None:
    relative = CFL(parameters=Parameters(relative=True, min_rounds=20))
    assert relative.cautions(30, 130) == []
    (said,) = relative.cautions(30, 20)
    assert said == "no cut comes before round 21 (strategy.parameters.min_rounds), and there are 20"
    assert relative.cautions(1, 130) == ["too few for a cut: 1 client"]
    (said,) = CFL().cautions(2, 1)
    assert "with strategy.parameters.relative=true they are shares of the first round's" in said
