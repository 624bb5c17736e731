import numpy as np
import pytest

from fedclust.clustering import clust_psi_pfl
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
    # One quarter of all 160 examples is of each class, a half or none of a client's 20. Smoothed by one
    # example of the federation's distribution, a client has (10 + 1/4)/21 or (1/4)/21 of a class.
    more, less = 10.25 / 21, 0.25 / 21
    psi = 2 * (more - 0.25) * np.log(more / 0.25) + 2 * (less - 0.25) * np.log(less / 0.25)
    np.testing.assert_allclose(found.clients["psi"], np.full(8, psi))
    assert found.summary["weighted_stability"] == pytest.approx(psi)
    # Rows of a cluster are equal, so there are two to try at most. A cluster has 40 examples of two classes
    # and a quarter of one of the others, 81 in all; one model has as many of each class: 1 for scarcity.
    share = np.array([40.25, 40.25, 0.25, 0.25]) / 81
    ratio = (np.exp(-(share * np.log(share)).sum()) - 1) / (4 - 1)  # 0.359
    assert found.summary["error_ratios"] == {"2": pytest.approx(ratio)}
    np.testing.assert_array_equal(found.arrays["error_ratio_numbers"], [2])
    np.testing.assert_allclose(found.arrays["error_ratios"], [ratio])
    assert found.arrays["error_ratio_limit"] == 0.7
    # X² = 160 (8·2·10²/(20·40) - 1) = 160, against a mean of 160·7·3/159 = 21.
    assert found.summary["p_value"] < 1e-6
    assert found.summary["decision"] == (
        "2 clusters: clients' label shares differ (p < 0.001), and 2 clusters are predicted to make 0.36 of "
        "one model's error, below the limit of 0.70"
    )


def test_findings_of_the_papers_rule(started) -> None:
    strategy = started(ClustPSIPFL(parameters=clust_psi_pfl.Parameters()), 1, num_clients=8, counts=_disjoint)
    found = strategy.findings(strategy.clusters)
    assert found.summary["tau"] == 2
    # ⌈√8⌉ = 3 numbers of clusters at most: 2 and 3. Rows of a cluster are equal, so 2 scores 1.
    assert list(found.summary["silhouette"]) == ["2", "3"]
    assert found.summary["silhouette"]["2"] == pytest.approx(1.0)
    np.testing.assert_array_equal(found.arrays["silhouette_numbers"], [2, 3])
    # Shares are 1/4 overall, and 1/2 or 0 (clipped to 1e-4) on a client:
    # PSI = 2 (1/4 - 1/2) ln(1/2) + 2 (1/4 - 1e-4) ln(2500) = 0.34657 + 3.91045.
    psi = 2 * (-0.25) * np.log(0.5) + 2 * (0.25 - 1e-4) * np.log(2500)
    np.testing.assert_allclose(found.clients["psi"], np.full(8, psi))


def test_one_cluster_says_why(started) -> None:
    strategy = started(ClustPSIPFL(), 1, num_clients=6, counts=lambda _: [3, 3])
    assert len(strategy.clusters.models) == 1
    found = strategy.findings(strategy.clusters)
    assert found.arrays == {}
    assert found.summary == {
        "decision": "one cluster: clients' label shares differ no more than chance explains (p = 1)",
        "p_value": 1.0,  # equal shares: X² = 0
        "weighted_stability": 0.0,
        "alone": [],
    }


def _released(started, num_clients: int, seed: int = 0, **behaviour) -> ClustPSIPFL:
    return started(
        ClustPSIPFL(cohorts="released", participation=0.5, seed=seed),
        1,
        num_clients=num_clients,
        counts=lambda _: [1, 1],
        **behaviour,
    )


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
