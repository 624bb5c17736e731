import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering import label_groups
from fedclust.clustering.label_groups import Parameters, assign, candidates, choose, error_ratio, gamma_tail


@pytest.mark.parametrize(
    ("sizes", "labels"),
    [
        ([1, 2, 3], [0, 0, 0, 1, 1, 2]),
        ([4, 3], [0, 0, 1, 1, 1, 1, 2]),
        ([2, 2, 2, 1], [0, 0, 0, 0, 0, 1, 1]),
        ([3, 3], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_moments_are_those_of_every_deal(sizes: list[int], labels: list[int]) -> None:
    # All n! ways to deal the labels out to places on clients.
    values = []
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for dealt in itertools.permutations(labels):
        table = np.zeros((len(sizes), max(labels) + 1), dtype=np.int64)
        np.add.at(table, (owner, np.array(dealt)), 1)
        values.append(label_groups.chi_square(table))
    mean, variance = label_groups.permutation_moments(np.array(sizes), np.bincount(labels))
    assert mean == pytest.approx(np.mean(values))
    assert variance == pytest.approx(np.var(values), abs=1e-9)


def test_tails_of_gamma_variables() -> None:
    # Mean 3, variance 9: shape 1, scale 3; P(X >= 6) = e^−2. Mean 4, variance 8: shape 2, scale 2;
    # P(X >= x) = e^{−x/2}(1 + x/2) = 4 e^−3 at x = 6.
    assert gamma_tail(6.0, 3.0, 9.0) == pytest.approx(math.exp(-2))
    assert gamma_tail(6.0, 4.0, 8.0) == pytest.approx(4 * math.exp(-3))
    assert gamma_tail(0.0, 4.0, 8.0) == 1.0


def test_outcome_of_a_small_table() -> None:
    # N = 8, K = C = 2: E = 8/7; w_r = w_c = (8·(1/4 + 1/4) − 4)/6 = 0; v = 6/7;
    # V = (16/5)(6/7)² = 2.35102041; X² = 2.
    tested = label_groups.homogeneity(np.array([[3, 1], [1, 3]]))
    assert (tested.statistic, tested.mean) == pytest.approx((2.0, 8 / 7))
    assert tested.variance == pytest.approx(16 / 5 * 36 / 49)
    assert tested.p_value == pytest.approx(gamma_tail(2.0, 8 / 7, 16 / 5 * 36 / 49))


@pytest.mark.parametrize(
    "counts",
    [
        [[5, 3]],  # one client
        [[5, 0], [3, 0], [9, 0]],  # one class
        [[1, 0], [0, 1], [1, 0]],  # three examples
        [[1, 0], [0, 1], [1, 0], [0, 1], [0, 1]],  # one example each
        [[1, 0], [9, 10]],  # every deal has the same X²
    ],
)
def test_where_nothing_can_be_tested_clients_are_alike(counts: list[list[int]]) -> None:
    assert label_groups.homogeneity(np.array(counts)).p_value == 1.0


@given(arrays(np.int64, (6, 4), elements=st.integers(0, 50)), arrays(np.int64, 6, elements=st.integers(0, 2)))
def test_error_ratio_matches_a_literal_loop(counts: np.ndarray, labels: np.ndarray) -> None:
    counts[:, 0] += 1
    counts[0, 1] += 1  # two classes at least
    total = counts.sum(axis=0)
    q = [n / total.sum() for n in total]

    def breadth(weights: list[float]) -> float:
        whole = math.fsum(weights)
        return math.exp(-math.fsum(w / whole * math.log(w / whole) for w in weights if w)) - 1

    ratios = []
    for i in range(6):
        a = [q[c] + math.fsum(counts[j, c] for j in range(6) if labels[j] == labels[i]) for c in range(4)]
        parts = [
            counts[i, c] / counts[i].sum() * math.sqrt((total[c] + q[c]) / a[c]) for c in range(4) if total[c]
        ]
        ratios.append(breadth(a) / breadth(q) * math.fsum(parts))
    assert error_ratio(counts, labels) == pytest.approx(math.fsum(ratios) / 6)


def test_choice() -> None:
    assert choose({2: 0.5, 3: 0.4, 4: 0.6}) == 3
    assert choose({2: 0.4, 3: 0.4}) == 2  # the smallest of equals
    assert choose({2: 0.7, 3: 0.8}) == 1  # not below 0.7
    assert choose({2: 0.7, 3: 0.8}, 0.75) == 2
    assert choose({}) == 1


def planted(num_groups: int, examples: int, seed: int = 0, clients: int = 30) -> tuple:
    """Clients that hold a half, a third … of twelve classes, in no order."""
    draws = np.random.default_rng(seed)
    groups = draws.permutation(np.arange(clients) % num_groups)
    shares = np.eye(num_groups).repeat(12 // num_groups, axis=1) * num_groups / 12
    return draws.multinomial(examples, shares[groups]), groups


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@given(arrays(np.int64, (5, 4), elements=st.integers(0, 50)))
def test_features_match_a_literal_loop(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    rows = label_groups.features(counts)
    for i in range(5):
        for c in range(4):
            q = counts[:, c].sum() / counts.sum()
            p = (counts[i, c] + q) / (counts[i].sum() + 1)
            value = (p - q) * math.log(p / q) if q else 0.0
            assert rows[i, c] == pytest.approx(math.copysign(math.sqrt(max(value, 0)), p - q), abs=1e-7)


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
    shares = np.where(np.arange(10) // 2 == groups[:, None], 0.3, 0.05)
    rows = label_groups.features(draws.multinomial(1000, shares))
    assert same(candidates(rows, np.full(30, 1000), 5, 0)[5], groups)


def test_clients_that_differ_little_are_one_cluster() -> None:
    # Refuted (p ≈ 0), but half of the examples of everything is too high a price for a slightly easier task.
    counts = np.array([[120, 80], [80, 120]] * 10)
    labels, details = assign(counts, Parameters(), 0)
    assert details.homogeneity.p_value < 1e-6
    assert min(details.error_ratios.values()) > 0.7
    np.testing.assert_array_equal(labels, 0)


def test_where_chance_explains_the_shares_no_number_of_clusters_is_tried() -> None:
    labels, details = assign(np.random.default_rng(0).multinomial(50, np.full(5, 0.2), 10), Parameters(), 0)
    assert details.homogeneity.p_value > 0.05
    assert (labels.max(), details.error_ratios) == (0, {})


def test_clients_of_the_same_shares_are_one_cluster() -> None:
    labels, details = assign(np.tile([5, 3, 2], (7, 1)), Parameters(), 0)
    np.testing.assert_array_equal(labels, 0)
    assert details.error_ratios == {}
    assert details.homogeneity.p_value > 0.99


@pytest.mark.parametrize("counts", [[[5, 0]], [[9, 0], [0, 9]], [[4, 0], [5, 0], [9, 0]]])
def test_fewer_than_three_clients_and_one_class_are_one_cluster(counts: list[list[int]]) -> None:
    labels, details = assign(np.array(counts), Parameters(), 0)
    np.testing.assert_array_equal(labels, 0)
    assert details.error_ratios == {}


def test_a_class_nobody_has_changes_nothing() -> None:
    counts, groups = planted(3, 50)
    labels, details = assign(np.insert(counts, 4, 0, axis=1), Parameters(), 0)
    assert same(labels, groups)
    assert details.error_ratios == pytest.approx(assign(counts, Parameters(), 0)[1].error_ratios)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(2, 3))
def test_numbering_of_clients_and_classes_does_not_matter(clients, classes, num_groups) -> None:
    counts, _ = planted(num_groups, 40, clients=12)
    counts += np.random.default_rng(1).integers(0, 6, counts.shape)
    labels, details = assign(counts, Parameters(), 0)
    again, changed = assign(counts[clients][:, classes], Parameters(), 0)
    assert same(again, labels[clients])
    assert changed.error_ratios == pytest.approx(details.error_ratios)


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


def test_a_client_without_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="counts must have an example on every client, got none on client 1"):
        assign(np.array([[3, 1], [0, 0]]), Parameters(), 0)


def test_how_many_clusters_are_tried() -> None:
    # K − 1; min(C, ⌊K/2⌋) = 5 > ⌈√10⌉ = 4; C = 10 > ⌈√30⌉ = 6; √100 = 10 > C = 2; ⌈√101⌉; the bound; one.
    sizes = [(3, 10), (10, 10), (30, 10), (100, 2), (101, 2), (10_000, 10), (2, 10)]
    assert [label_groups.max_candidates(*each) for each in sizes] == [2, 5, 10, 10, 11, 32, 1]
