import numpy as np
import pytest

from fedclust.clustering.fedgwc import Parameters
from fedclust.selection import LeastSampled, Uniform
from fedclust.strategies import ClusteredStrategy, FedGWC
from fedclust.support.rng import generator

# 0.9^t < 0.01 from t = 44 on, and patience 10: tests from round 53.
SETTLED = {"tolerance": 1e-2, "step_size": 0.1, "patience": 10, "min_pair_coverage": 0.9}
GUARDED = Parameters(**SETTLED, max_davies_bouldin=0.5, min_cluster_size=6)


def _two_kinds(client: int, server_round: int) -> list[float]:
    """Losses of the first 10 clients are near 1, those of the others near 3."""
    noise = generator(0, "test", server_round, client).normal(scale=0.1, size=4)
    return list((1.0 if client < 10 else 3.0) + noise)


def test_two_kinds_of_losses_become_two_clusters(started, watch) -> None:
    strategy = started(
        FedGWC(parameters=GUARDED, participation=0.5, seed=0), 120, 2, num_clients=16, losses=_two_kinds
    )
    split = watch.assignments[1]
    assert split[1] in ([0] * 10 + [1] * 6, [1] * 10 + [0] * 6)
    assert split[2] == "cluster 0 split in 2"
    tried = [r["strategy"]["0"] for r in watch.rounds if r["strategy"].get("0", {}).get("split")]
    assert len(tried) == 1
    assert tried[0]["davies_bouldin"]["2"] < 0.5
    assert tried[0]["pair_coverage"] >= 0.9
    # The affinity that was split covers all clients; since then only pairs within a cluster are compared.
    found = strategy.findings(strategy.clusters).arrays
    assert np.isfinite(found[f"affinity_round_{split[0]}"]).all()
    assert np.isnan(found["affinity"]).sum() == 2 * 10 * 6
    # The losses of the last round before the split are kept.
    assert found["cohort_round"] == split[0]
    assert found["cohort_clients"].tolist() == watch.rounds[split[0] - 1]["cohort"]
    expected = [_two_kinds(int(client), split[0]) for client in found["cohort_clients"]]
    np.testing.assert_allclose(found["cohort_losses"], expected)


def test_many_clients_have_no_matrices_of_pairs(started, monkeypatch) -> None:
    monkeypatch.setattr("fedclust.strategies.fedgwc._MOST_CLIENTS", 15)
    method = FedGWC(parameters=GUARDED, participation=0.5, seed=0)
    strategy = started(method, 120, 2, num_clients=16, losses=_two_kinds)
    found = strategy.findings(strategy.clusters)
    assert sorted(found.arrays) == ["cohort_clients", "cohort_losses", "cohort_round"]
    assert len(found.clients["gaussian_weight"]) == 16


def test_cohorts_are_a_share_of_three_at_least_or_fixed_and_prefer_who_took_part_least() -> None:
    strategy, fixed = FedGWC(participation=0.1), FedGWC(parameters=Parameters(cohort_size=4))
    assert [strategy.cohort_size(size) for size in (2, 12, 50)] == [2, 3, 5]
    assert [fixed.cohort_size(size) for size in (2, 12)] == [2, 4]
    assert isinstance(strategy.selection, LeastSampled)
    assert isinstance(FedGWC(selection=Uniform()).selection, Uniform)


def test_settings_without_a_split_are_reported_before_round_1() -> None:
    # 3 / 0.1 = 30 clients in each of two parts, there are 59.
    strategy = FedGWC(participation=0.1, parameters=Parameters(min_cluster_size=None))
    (caution,) = strategy.cautions(59, 1000)
    assert caution == "no split can come: 59 clients, fewer than two clusters of min_cluster_size 30"
    assert strategy.cautions(60, 1100) == []
    assert ClusteredStrategy().cautions(1, 1) == []


def _interaction(started, failing) -> np.ndarray:
    """Run six clients, of whom some fail, for three rounds; return the interaction matrix."""
    strategy = FedGWC(parameters=GUARDED, participation=1.0)
    started(strategy, 3, error=lambda client, _: "down" if client in failing else None)
    return strategy.findings(strategy.clusters).arrays["interaction"]


def test_clients_that_fail_leave_no_trace_in_the_matrix(started) -> None:
    interaction = _interaction(started, {2})
    assert (interaction[2] == 0).all()
    assert (interaction[:, 2] == 0).all()
    assert (interaction[np.ix_([0, 1, 3, 4, 5], [0, 1, 3, 4, 5])] > 0).all()


@pytest.mark.parametrize("failing", [5, 6])
def test_a_round_with_fewer_than_two_replies_updates_nothing(started, failing) -> None:
    assert not _interaction(started, range(failing)).any()
