import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from fedclust import metrics
from fedclust.clustering.clust_psi_pfl import Parameters, assign, cluster, features
from fedclust.metrics import stability_index

# Three kinds of clients over six classes, two classes each, in no order, with noise below the difference.
GROUPS = np.array([0, 1, 2, 2, 1, 0, 0, 1, 2, 1, 0, 2])


EVERY = Parameters(max_clusters=None)


def grouped_counts(seed: int = 0) -> np.ndarray:
    held = np.arange(6) // 2 == GROUPS[:, None]
    return np.where(held, np.random.default_rng(seed).integers(40, 60, size=held.shape), 0)


def test_released_code_adds_to_every_probability() -> None:
    # With 0.1: P = (0.6, 0.6), P_0 = (1.1, 0.1): -0.5 ln(6/11) = 0.30306790, 0.5 ln 6 = 0.89587973.
    index = stability_index(np.array([[2, 0], [0, 2]]), epsilon=0.1, smoothing="add")
    np.testing.assert_allclose(index[0], [0.30306790, 0.89587973], atol=1e-8)


def test_a_class_nobody_has_contributes_nothing() -> None:
    index = stability_index(np.array([[3, 0, 1], [1, 0, 3]]))
    np.testing.assert_array_equal(index[:, 1], 0.0)


def test_clients_of_one_distribution_have_index_zero_whatever_their_size() -> None:
    np.testing.assert_array_equal(stability_index(np.array([[1, 2, 4], [3, 6, 12], [7, 14, 28]])), 0.0)


@given(arrays(np.int64, (5, 4), elements=st.integers(0, 50)))
def test_features_match_a_literal_loop(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    total = np.maximum(counts.sum(axis=0) / counts.sum(), 1e-4)
    table = []
    for row in counts:
        own = np.maximum(row / row.sum(), 1e-4)
        parts = [(p - q) * math.log(p / q) for p, q in zip(total, own, strict=True)]
        table.append([math.fsum(parts), *parts])
    for column, expected in zip(features(counts).T, np.transpose(table), strict=True):
        if expected.std() > 1e-9:
            np.testing.assert_allclose(column, (expected - expected.mean()) / expected.std(), atol=1e-5)
        elif np.ptp(expected) == 0:
            np.testing.assert_array_equal(column, 0.0)


def test_constant_columns_become_zero_even_where_sums_differ_in_their_last_bits() -> None:
    # One class per client: every PSI_i is the same number, summed in another order.
    rows = features(np.diag([7] * 6))
    np.testing.assert_array_equal(rows[:, 0], 0.0)
    np.testing.assert_allclose(rows[:, 1:].std(axis=0), 1.0)


def test_cluster_is_the_papers_loop() -> None:
    rows = np.random.default_rng(1).normal(size=(9, 3))
    best, expected, scores = -math.inf, np.zeros(9), {}
    for number in range(2, 9):
        candidate = KMeans(number, init="k-means++", n_init=10, random_state=5).fit_predict(rows)
        scores[number] = silhouette_score(rows, candidate)
        if scores[number] > best:
            best, expected = scores[number], candidate
    labels, curve = cluster(rows, EVERY, seed=5)
    np.testing.assert_array_equal(labels[:, None] == labels, expected[:, None] == expected)
    assert list(curve) == list(range(2, 9))
    assert curve == pytest.approx(scores)


@pytest.mark.parametrize("maximum", [None, 4, "sqrt"])
def test_groups_with_disjoint_classes_are_found_exactly(maximum) -> None:
    labels, details = assign(grouped_counts(), Parameters(max_clusters=maximum), seed=0)
    np.testing.assert_array_equal(labels, GROUPS)
    assert max(details.scores, key=details.scores.__getitem__) == 3
    assert max(details.scores) == (11 if maximum is None else 4)


def test_one_class_per_client_and_no_two_alike_is_a_tie_that_the_smallest_number_wins() -> None:
    # All distances are equal, so every clustering has silhouette 0.
    rows = features(np.diag([7] * 6))
    labels, scores = cluster(rows, EVERY, seed=0)
    assert scores == pytest.approx(dict.fromkeys(range(2, 6), 0.0), abs=1e-12)
    assert set(labels) == {0, 1}
    np.testing.assert_array_equal(cluster(rows, Parameters(one_cluster=True), seed=0)[0], 0)


@pytest.mark.filterwarnings("error")  # K-means warns when it is asked for more clusters than there are rows
def test_clients_with_one_of_two_classes_are_two_clusters() -> None:
    counts = np.array([[5, 0], [0, 5], [5, 0], [0, 5], [0, 5]])
    labels, details = assign(counts, Parameters(max_clusters=None), seed=3)
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 1])
    # Both groups are single points: silhouette 1. Three and four clusters end as the same two: a tie.
    assert details.scores == {2: 1.0, 3: 1.0, 4: 1.0}


@pytest.mark.filterwarnings("error")
def test_rows_equal_but_for_round_off_do_not_warn_or_fail() -> None:
    rows = np.array([[1.0], [1.0 + 1e-16], [1.0 + 4e-16], [1.0 + 8e-16], [1.0 + 2e-15]])
    assert cluster(rows, EVERY, seed=0)[0].shape == (5,)


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_clients_are_one_cluster(clients: int) -> None:
    labels, details = assign(np.array([[9, 1], [1, 9]])[:clients], Parameters(), seed=0)
    np.testing.assert_array_equal(labels, [0] * clients)
    assert details.scores == {}


def test_identical_clients_are_one_cluster() -> None:
    labels, details = assign(np.tile([1, 2, 3], (8, 1)), Parameters(), seed=0)
    np.testing.assert_array_equal(labels, 0)
    assert details.scores == {}
    assert details.weighted_stability == 0.0
    assert cluster(np.ones((8, 2)), Parameters(one_cluster=True), seed=0)[1] == {1: 0.0}


def test_one_cluster_is_a_candidate_only_when_asked() -> None:
    # Corners of a square. Two sides: 1 - 1 / ((1 + sqrt 2) / 2) = 0.17157288. One side and two lone corners:
    # lone ones count 0, and a corner of the side is as far from its partner as from the nearest lone one.
    square = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    _, scores = cluster(square, Parameters(max_clusters=None, one_cluster=True), seed=0)
    assert scores == pytest.approx({1: 0.0, 2: 0.17157288, 3: 0.0})
    assert 1 not in cluster(square, EVERY, seed=0)[1]


def test_weighted_stability_weighs_clients_by_their_examples() -> None:
    counts = np.array([[30, 10], [0, 20]])
    # P = (1/2, 1/2). PSI_0 = (ln 3)/4 = 0.27465307; PSI_1 = 0.34657359 + 4.25774487 = 4.60431846.
    _, details = assign(counts, Parameters(), seed=0)
    np.testing.assert_allclose(details.stability, [0.27465307, 4.60431846])
    assert details.weighted_stability == pytest.approx((40 * 0.27465307 + 20 * 4.60431846) / 60)


@pytest.mark.parametrize(
    ("clients", "limit"), [(1, 2), (2, 2), (4, 2), (5, 3), (9, 3), (10, 4), (100, 10), (101, 11)]
)
def test_a_limit_may_be_the_root_of_the_number_of_clients_rounded_up(clients: int, limit: int) -> None:
    assert Parameters(max_clusters="sqrt").limit(clients) == limit
    assert Parameters(max_clusters=7).limit(clients) == 7
    assert Parameters().limit(clients) is None  # K − 1, as in the paper


def test_many_clients_are_scored_by_some_silhouettes(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    features = draws.normal(size=(300, 2)) + 8 * draws.integers(0, 3, 300)[:, None]
    expected, whole = cluster(features, Parameters(max_clusters=5), seed=0)
    monkeypatch.setattr(metrics, "MANY", 299)
    monkeypatch.setattr(metrics, "_SAMPLE", 150)
    labels, scores = cluster(features, Parameters(max_clusters=5), seed=0)
    np.testing.assert_array_equal(labels, expected)
    assert scores.keys() == whole.keys()
    assert scores != whole
    assert all(abs(scores[number] - whole[number]) < 0.1 for number in scores)
