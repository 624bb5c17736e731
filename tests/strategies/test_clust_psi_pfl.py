import numpy as np
import pytest

from fedclust.strategies import ClustPSIPFL
from tests.strategies.helpers import weights_of


def _disjoint(client: int) -> list[int]:
    """Count 20 examples of classes 0 and 1 on even clients, of classes 2 and 3 on odd ones."""
    return [10, 10, 0, 0] if client % 2 == 0 else [0, 0, 10, 10]


def test_disjoint_labels_become_clusters_before_round_1(started, watch) -> None:
    strategy = started(ClustPSIPFL(), 2, 3, num_clients=8, counts=_disjoint)
    assert watch.assignments == [(0, [0, 1] * 4, "before round 1")]
    # Even clients 0, 2, 4, 6 weigh 1, 3, 5, 7: (0 + 6 + 20 + 42) / 16 a round; odd 1, 3, 5, 7 weigh
    # 2, 4, 6, 8: (2 + 12 + 30 + 56) / 20.
    np.testing.assert_allclose(weights_of(strategy), [2 * 68 / 16, 2 * 100 / 20], rtol=1e-6)


def test_findings(started) -> None:
    strategy = started(ClustPSIPFL(), 1, num_clients=8, counts=_disjoint)
    found = strategy.findings(strategy.clusters)
    assert found.summary["tau"] == 2
    # Up to 8 - 1 clusters. Rows of a cluster are equal, so 2 scores 1.
    assert list(found.summary["silhouette"]) == ["2", "3", "4", "5", "6", "7"]
    assert found.summary["silhouette"]["2"] == pytest.approx(1.0)
    np.testing.assert_array_equal(found.arrays["silhouette_numbers"], range(2, 8))
    # Shares are 1/4 overall, and 1/2 or 0 (clipped to 1e-4) on a client:
    # PSI = 2 (1/4 - 1/2) ln(1/2) + 2 (1/4 - 1e-4) ln(2500) = 0.34657 + 3.91045.
    psi = 2 * (-0.25) * np.log(0.5) + 2 * (0.25 - 1e-4) * np.log(2500)
    np.testing.assert_allclose(found.clients["psi"], np.full(8, psi))


def _released(started, num_clients: int, seed: int = 0, **behaviour) -> ClustPSIPFL:
    strategy = ClustPSIPFL(cohorts="released", participation=0.5, seed=seed)
    return started(strategy, 1, num_clients=num_clients, counts=lambda _: [1, 1], **behaviour)


@pytest.mark.parametrize(("num_clients", "cohort"), [(3, 2), (4, 2), (5, 2), (7, 3), (9, 4)])
def test_released_cohorts_are_rounded_down_to_two(num_clients: int, cohort: int, started, watch) -> None:
    _released(started, num_clients)
    assert [len(record["cohort"]) for record in watch.rounds] == [cohort]


def test_a_lone_client_takes_part_in_every_released_round(started, watch) -> None:
    # Two of its four copies are drawn; both come back with the model moved by 5, and so does their mean.
    strategy = _released(started, 1, move=lambda *_: 5.0)
    assert watch.rounds[0]["cohort"] == [0]
    np.testing.assert_array_equal(strategy.clusters.models[0]["w"].numpy(), [5.0, 5.0])


def test_a_released_pair_is_weighted_by_the_copies_drawn(started) -> None:
    # Four of eight copies. Client 0 has 1 sample and stays at 0, client 1 has 2 and moves by 1: with m copies
    # of client 1 the mean is 2m / (2m + 4 - m) = 2m / (m + 4), or 1 where client 0 was left out.
    means = {m: 2 * m / (m + 4) for m in range(5)}
    found = []
    for seed in range(20):
        strategy = _released(started, 2, seed)
        (weight,) = weights_of(strategy)
        found.append(min(means, key=lambda m: abs(means[m] - weight)))
        assert weight == pytest.approx(means[found[-1]])
    assert {1, 2, 3} <= set(found)
