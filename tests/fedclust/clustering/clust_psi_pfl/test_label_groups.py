import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.clust_psi_pfl.homogeneity import Homogeneity
from fedclust.clustering.clust_psi_pfl.label_groups import (
    Details,
    Parameters,
    assign,
    candidates,
    decision,
    features,
    max_candidates,
)


def planted(
    num_groups: int, examples: int, seed: int = 0, clients: int = 30
) -> tuple[np.ndarray, np.ndarray]:
    """Clients that hold a half, a third … of twelve classes, in no order."""
    draws = np.random.default_rng(seed)
    groups = draws.permutation(np.arange(clients) % num_groups)
    counts = np.zeros((clients, 12), dtype=np.int64)
    width = 12 // num_groups
    for client, group in enumerate(groups):
        own = draws.multinomial(examples, np.full(width, 1 / width))
        counts[client, group * width : (group + 1) * width] = own
    return counts, groups


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


def test_features_of_two_mirrored_clients() -> None:
    # q = (1/2, 1/2); client (3, 1) has P = (3.5/5, 1.5/5) = (0.7, 0.3), so P − q = (0.2, −0.2) and
    # P/q = (1.4, 0.6): x = (+√(0.2 ln 1.4), −√(−0.2 ln 0.6)).
    rows = features(np.array([[3, 1], [1, 3]]))
    surplus, shortage = math.sqrt(0.2 * math.log(1.4)), -math.sqrt(-0.2 * math.log(0.6))
    np.testing.assert_allclose(rows, [[surplus, shortage], [shortage, surplus]])


def test_surplus_and_shortage_of_a_class_differ_in_sign() -> None:
    rows = features(np.array([[9, 1, 5], [1, 9, 5]]))
    assert rows[0, 0] > 0 > rows[1, 0]
    np.testing.assert_allclose(rows[:, 2], 0.0, atol=1e-12)


def test_a_class_nobody_has_is_no_feature() -> None:
    np.testing.assert_array_equal(features(np.array([[3, 0, 1], [1, 0, 3]]))[:, 1], 0.0)


@given(arrays(np.int64, (5, 4), elements=st.integers(0, 50)))
def test_features_match_a_literal_loop(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    rows = features(counts)
    for i in range(5):
        for c in range(4):
            q = counts[:, c].sum() / counts.sum()
            p = (counts[i, c] + q) / (counts[i].sum() + 1)
            value = (p - q) * math.log(p / q) if q else 0.0
            assert rows[i, c] == pytest.approx(math.copysign(math.sqrt(max(value, 0)), p - q), abs=1e-7)


@pytest.mark.parametrize(
    ("clients", "classes", "expected"),
    [
        (3, 10, 2),  # K − 1
        (10, 10, 5),  # min(C, ⌊K/2⌋) = 5 > ⌈√10⌉ = 4
        (30, 10, 10),  # C = 10 > ⌈√30⌉ = 6
        (100, 2, 10),  # √100 = 10 > C = 2
        (101, 2, 11),  # ⌈√101⌉
        (10_000, 10, 32),  # the bound
        (2, 10, 1),
    ],
)
def test_how_many_clusters_are_tried(clients: int, classes: int, expected: int) -> None:
    assert max_candidates(clients, classes) == expected


@pytest.mark.parametrize("num_groups", [2, 3])
@pytest.mark.parametrize("examples", [20, 200])
def test_halves_and_thirds_of_the_classes_are_found(num_groups: int, examples: int) -> None:
    for seed in range(5):
        counts, groups = planted(num_groups, examples, seed)
        labels, details = assign(counts, Parameters(), seed)
        assert same(labels, groups)
        assert min(details.error_ratios, key=details.error_ratios.__getitem__) == num_groups
        assert details.homogeneity.p_value < 1e-6


def test_five_pairs_of_classes_are_found() -> None:
    # What the unsigned index cannot see: a surplus of two classes of ten looks alike whichever two they are.
    draws = np.random.default_rng(0)
    groups = np.arange(30) % 5
    shares = np.full((30, 10), 0.05)
    for client, group in enumerate(groups):
        shares[client, 2 * group : 2 * group + 2] = 0.3
    rows = features(np.stack([draws.multinomial(1000, row) for row in shares]))
    assert same(candidates(rows, np.full(30, 1000), 5, 0)[5], groups)


def test_alike_clients_are_one_cluster_in_95_of_100_federations() -> None:
    draws = np.random.default_rng(0)
    splits = 0
    for number in range(100):
        clients, examples = (10, 30)[number % 2], (20, 60, 200)[number % 3]
        counts = draws.multinomial(examples, draws.dirichlet(np.full(10, 3.0)), size=clients)
        splits += assign(counts, Parameters(), number)[0].max() > 0
    assert splits <= 5


def test_clients_that_differ_little_are_one_cluster() -> None:
    # Refuted (p ≈ 0), but half of the examples of everything is too high a price for a slightly easier task.
    counts = np.array([[120, 80], [80, 120]] * 10)
    labels, details = assign(counts, Parameters(), 0)
    assert details.homogeneity.p_value < 1e-6
    assert min(details.error_ratios.values()) > 0.7
    np.testing.assert_array_equal(labels, 0)


def test_clients_of_the_same_shares_are_one_cluster() -> None:
    labels, details = assign(np.tile([5, 3, 2], (7, 1)), Parameters(), 0)
    np.testing.assert_array_equal(labels, 0)
    assert details.error_ratios == {}
    assert details.homogeneity.p_value > 0.99
    np.testing.assert_allclose(details.stability, 0.0, atol=1e-12)


@pytest.mark.parametrize("counts", [[[5, 0]], [[9, 0], [0, 9]]])
def test_fewer_than_three_clients_are_one_cluster(counts: list[list[int]]) -> None:
    labels, details = assign(np.array(counts), Parameters(), 0)
    np.testing.assert_array_equal(labels, 0)
    assert details.error_ratios == {}


def test_one_class_is_one_cluster() -> None:
    np.testing.assert_array_equal(assign(np.array([[4, 0], [5, 0], [9, 0]]), Parameters(), 0)[0], 0)


def test_a_class_nobody_has_changes_nothing() -> None:
    counts, groups = planted(3, 50)
    labels, details = assign(np.insert(counts, 4, 0, axis=1), Parameters(), 0)
    assert same(labels, groups)
    assert details.error_ratios == pytest.approx(assign(counts, Parameters(), 0)[1].error_ratios)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(2, 3))
def test_numbering_of_clients_and_classes_does_not_matter(
    clients: list[int], classes: list[int], num_groups: int
) -> None:
    counts, _ = planted(num_groups, 40, clients=12)
    counts += np.random.default_rng(1).integers(0, 6, counts.shape)
    labels, details = assign(counts, Parameters(), 0)
    again, changed = assign(counts[clients][:, classes], Parameters(), 0)
    assert same(again, labels[clients])
    assert changed.error_ratios == pytest.approx(details.error_ratios)


def test_stability_is_the_sum_of_squared_features() -> None:
    # Client (3, 1) of two mirrored ones: 0.2 ln 1.4 − 0.2 ln 0.6 = 0.2 ln(7/3).
    details = assign(np.array([[3, 1], [1, 3]]), Parameters(), 0)[1]
    np.testing.assert_allclose(details.stability, 0.2 * math.log(7 / 3))
    counts = np.array([[30, 10], [1, 3], [4, 2]])
    details = assign(counts, Parameters(), 0)[1]
    assert details.weighted_stability == pytest.approx(
        (40 * details.stability[0] + 4 * details.stability[1] + 6 * details.stability[2]) / 50
    )


def test_candidates_stop_at_the_distinct_rows() -> None:
    rows = np.array([[0.0], [0.0], [1.0], [1.0], [2.0]])
    found = candidates(rows, np.ones(5), 4, 0)
    assert set(found) == {2, 3}
    np.testing.assert_array_equal(found[3], [0, 0, 1, 1, 2])


def test_larger_clients_weigh_more() -> None:
    # Three points on a line, 0, 1 and 2.1. Equal weights join 0 and 1 (spread 1/2 against 1.1²/2 = 0.605).
    # With 100 examples at 0 and 1, joining those costs 100²/200 = 50, joining 1 and 2.1 1.21·100/101 = 1.2.
    rows = np.array([[0.0], [1.0], [2.1]])
    np.testing.assert_array_equal(candidates(rows, np.array([1, 1, 1]), 2, 0)[2], [0, 0, 1])
    np.testing.assert_array_equal(candidates(rows, np.array([100, 100, 1]), 2, 0)[2], [0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 0.0}, "level must be in \\(0, 1\\), got 0.0"),
        ({"max_error_ratio": 1.5}, "max_error_ratio must be in \\(0, 1\\], got 1.5"),
        ({"max_clusters": 1}, "max_clusters must be >= 2, got 1"),
        ({"num_starts": 0}, "num_starts must be >= 1, got 0"),
    ],
)
def test_parameters_outside_their_range_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Parameters(**arguments)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="counts must have an example on every client, got none on client 1"):
        assign(np.array([[3, 1], [0, 0]]), Parameters(), 0)
    with pytest.raises(ValueError, match="seed must be in"):
        assign(planted(2, 20)[0], Parameters(), -1)


@pytest.mark.parametrize(
    ("p_value", "ratios", "clients", "expected"),
    [
        (0.43, {}, 9, "one cluster: clients' label shares differ no more than chance explains (p = 0.43)"),
        (0.05, {}, 9, "one cluster: clients' label shares differ no more than chance explains (p = 0.05)"),
        (
            0.02,
            {2: 0.9, 3: 0.8, 4: 0.85},
            9,
            "one cluster: clients' label shares differ (p = 0.02), but the best split, into 3, is predicted "
            "to make 0.80 of one model's error, limit 0.70",
        ),
        (
            1e-9,
            {2: 0.69, 3: 0.5, 4: 0.6},
            9,
            "3 clusters: clients' label shares differ (p < 0.001), and 3 clusters are predicted to make 0.50 "
            "of one model's error, below the limit of 0.70",
        ),
        (
            0.01,
            {},
            2,
            "one cluster: clients' label shares differ (p = 0.01), but two clients are too few to group",
        ),
        (0.01, {}, 9, "one cluster: clients' label shares differ (p = 0.01), but too little to group by"),
    ],
)
def test_the_decision_says_why(p_value: float, ratios: dict, clients: int, expected: str) -> None:
    details = Details(Homogeneity(1.0, 1.0, 1.0, p_value), ratios, np.zeros(clients))
    assert decision(details, Parameters()) == expected
