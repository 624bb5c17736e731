"""What all partitioners share: dividing rows, rounding, and checks."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.data.partitioners import (
    Assignment,
    ClientPartitioner,
    Conventions,
    Dirichlet,
    Domains,
    EmdKMeans,
    Examples,
    FlippedFeatures,
    Heterogeneity,
    Iid,
    Natural,
    Pathological,
    QuantitySkew,
    Similarity,
)
from fedclust.data.partitioners.base import apportion, blocks, deal, rows_by_client


@dataclass(frozen=True)
class Given(ClientPartitioner):
    """Assigns rows as given."""

    clients: tuple[int, ...] = ()

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        return Assignment(np.array(self.clients))


def test_blocks_differ_by_one_and_the_first_are_larger() -> None:
    assert blocks(10, 3).tolist() == [4, 3, 3]
    assert blocks(2, 4).tolist() == [1, 1, 0, 0]


def test_apportion_gives_what_is_left_to_the_largest_remainders() -> None:
    draws = np.random.default_rng(0)
    # Whole parts 0, 0, 1; two of three are still missing; remainders 0.2, 0.9, 0.9.
    assert apportion(np.array([0.2, 0.9, 1.9]), 3, draws).tolist() == [0, 1, 2]
    # 0.1 + 0.2 is 0.30000000000000004: a whole quota that is a rounding error short stays whole.
    assert apportion(np.array([2.9999999999999996, 1.0]), 4, draws).tolist() == [3, 1]


def test_apportion_breaks_ties_at_random() -> None:
    winners = {int(apportion(np.array([0.5, 0.5]), 1, np.random.default_rng(s)).argmax()) for s in range(20)}
    assert winners == {0, 1}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 500), st.integers(0, 99))
def test_apportion_keeps_the_sum_and_stays_within_one(weights: list[float], total: int, seed: int) -> None:
    quotas = np.array(weights) + 0.01
    quotas *= total / quotas.sum()
    whole = apportion(quotas, total, np.random.default_rng(seed))
    assert whole.sum() == total
    assert (np.abs(whole - quotas) < 1 + 1e-6).all()


def test_deal_gives_the_counts_and_leaves_the_rest_to_nobody() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    clients = deal(labels, np.array([[1, 1], [1, 0]]), np.random.default_rng(3))
    assert sorted(clients[labels == 0]) == [0, 1]
    assert sorted(clients[labels == 1]) == [-1, -1, 0]


def test_deal_draws_which_examples() -> None:
    labels = np.zeros(6, dtype=int)
    dealt = {tuple(deal(labels, np.array([[1]]), np.random.default_rng(seed))) for seed in range(60)}
    assert len(dealt) == 6


def test_rows_by_client_are_ascending_and_skip_nobody() -> None:
    rows = rows_by_client(np.array([1, -1, 0, 1]), 2)
    assert [client.tolist() for client in rows] == [[2], [0, 3]]


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (Iid(4), "at most the number of examples, 3, got 4"),
        (Given(3, (0, 2, 2)), "Given over 3 examples leaves 1 of 3 clients without any.*client 1"),
        (Given(None, (0, 2, 2)), "Given over 3 examples leaves 1 of 3 clients without any.*client 1"),
    ],
)
def test_every_client_must_get_an_example(partitioner: ClientPartitioner, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partitioner.assignment(Examples.of([0, 0, 0]))


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (Iid, {"num_clients": 0}, "num_clients must be >= 1, got 0"),
        (QuantitySkew, {"alpha": 0}, "alpha must be > 0 and finite, got 0"),
        (QuantitySkew, {"alpha": 1, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (Natural, {"min_samples": 0}, "min_samples must be >= 1, got 0"),
        (Similarity, {"similarity": -0.1}, r"similarity must be in \[0, 1\], got -0.1"),
        (Similarity, {"similarity": 1.1}, r"similarity must be in \[0, 1\], got 1.1"),
        (Pathological, {"classes_per_client": 0}, "classes_per_client must be >= 1, got 0"),
        (Pathological, {"classes_per_client": 1, "choice": "best"}, r"choice must be one of .*got 'best'"),
        (Dirichlet, {"alpha": 0}, "alpha must be > 0 and finite, got 0"),
        (Dirichlet, {"alpha": -1.0}, "alpha must be > 0 and finite, got -1.0"),
        (Dirichlet, {"alpha": float("inf")}, "alpha must be > 0 and finite, got inf"),
        (Dirichlet, {"alpha": 1, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (Dirichlet, {"alpha": 1, "samples_per_client": 5}, "needs equal_sizes=true, got 5 without"),
        (EmdKMeans, {"target": 0}, "target must be > 0, and <= 1 where it is relative, got 0"),
        (EmdKMeans, {"target": 1.5}, "target must be > 0, and <= 1 where it is relative, got 1.5"),
        (EmdKMeans, {"target": 0.5, "step": 0.6}, r"step must be in \(0, 0.5\], got 0.6"),
        (EmdKMeans, {"target": 0.5, "bins": 1}, "bins must be >= 2, got 1"),
        (EmdKMeans, {"target": 0.5, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (Heterogeneity, {"groups": [2, 2], "alphas": [1, 0]}, r"num_clients, 5, got \[2, 2\], in all 4"),
        (Heterogeneity, {"groups": [3, 2], "alphas": [1]}, "one per group, got 1 for 2 groups"),
        (Heterogeneity, {"groups": [3, 2], "alphas": [1, -1]}, r">= 0 and finite, got \[1, -1\]"),
        (Domains, {"clean": 0.5, "noise": 0.4}, r"got \[0\.5, 0\.4, 0\.0, 0\.0, 0\.0\], in all 0\.9"),
        (Domains, {"clean": 1.5, "noise": -0.5}, r">= 0 and add up to 1, got \[1\.5, -0\.5"),
        (Domains, {"clean": 1, "noise_std": -1}, "std must be >= 0, got -1"),
        (Conventions, {"groups": [20, 20]}, "groups must be >= 1 each and add up to num_clients, 5, got"),
        (Conventions, {"groups": []}, "groups must be >= 1 each and add up to num_clients, 5, got"),
        (Conventions, {"groups": [5, 0]}, "groups must be >= 1 each and add up to num_clients, 5, got"),
        (Conventions, {"groups": [5], "alpha": 1, "base": Iid(5)}, "alpha must be null where a base"),
        (Conventions, {"groups": [5], "base": Domains(5, clean=1.0)}, "without shifts of its own, got Dom"),
        (FlippedFeatures, {"groups": [1, 1, 3], "most": 7}, r"groups must be two sizes, .* got \[1, 1, 3\]"),
        (FlippedFeatures, {"groups": [1, 4], "most": 0}, "most must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(rule: type, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(**{"num_clients": 5, **settings})
