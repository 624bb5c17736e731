"""Silhouettes of many clients, by hand and against scikit-learn's."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_samples, silhouette_score

from fedclust import metrics
from fedclust.metrics import adjusted_rand_index, davies_bouldin, rand_index, sample, silhouette, silhouettes

was, wadb = metrics.wasserstein_adjusted_silhouette, metrics.wasserstein_adjusted_davies_bouldin


def test_each_cluster_counts_with_its_most_similar_one() -> None:
    # Centroids 1, 12 and 20 with widths 1, 2 and 0: ratios 3/11, 1/19 and 2/8, so (3/11 + 3/11 + 1/4) / 3.
    points = np.array([[0.0], [2.0], [10.0], [14.0], [20.0]])
    score = davies_bouldin(points, np.array([5, 5, 7, 7, 6]))
    assert score == pytest.approx((3 / 11 + 3 / 11 + 1 / 4) / 3)


@pytest.mark.parametrize(
    "points",
    [
        [[1.0], [1.0], [1.0], [1.0]],  # all the same: scikit-learn gives a perfect 0
        [[0.0], [2.0], [-1.0], [3.0]],  # centroids 1 and 1, widths 1 and 2: scikit-learn leaves the pair out
    ],
)
def test_clusters_with_one_centroid_are_not_apart_at_all(points: list[list[float]]) -> None:
    assert davies_bouldin(np.array(points), np.array([0, 0, 1, 1])) == math.inf


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_one_cluster_and_singletons_are_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="labels must have 2 to 2 clusters, got"):
        davies_bouldin(np.arange(3.0)[:, None], np.array(labels))


def test_silhouettes_by_hand() -> None:
    # Points 0, 1, 4 on a line, the last alone. Client 0: a = 1, b = 4; client 1: a = 1, b = 3; client 2: 0.
    points = np.array([[0.0], [1.0], [4.0]])
    found = silhouettes(cdist(points, points), np.array([7, 7, 3]), np.arange(3))
    np.testing.assert_allclose(found, [3 / 4, 2 / 3, 0])


def test_as_many_clusters_as_pairs_of_clients_take_no_matrix_of_both() -> None:
    # Pairs at 0, 0, 1, 1, 2, 2 …: a = 0 and b = 1, so (1 − 0) / 1.
    labels = np.arange(6000) // 2
    points, rows = labels[:, None].astype(float), np.array([0, 2999, 5999])
    distances = cdist(points[rows], points)
    tracemalloc.start()
    try:
        found = silhouettes(distances, labels, rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tolist() == [1, 1, 1]
    assert peak < 6000 * 3000  # a byte for each client and cluster


def test_clients_at_one_place_have_silhouette_0() -> None:
    assert silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_they_are_those_of_scikit_learn(dtype: type) -> None:
    draws = np.random.default_rng(0)
    points, labels = draws.normal(size=(700, 3)), draws.integers(0, 5, 700)
    labels[0] = 5  # alone
    distances = cdist(points, points).astype(dtype)
    expected = silhouette_samples(distances, labels, metric="precomputed")
    rows = np.array([0, 5, 699])
    np.testing.assert_allclose(silhouettes(distances[rows], labels, rows), expected[rows], atol=1e-6)
    assert silhouette(distances, labels) == pytest.approx(expected.mean(), abs=1e-6)


def test_a_sample_estimates_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1)
    labels = draws.integers(0, 3, 900)
    points = draws.normal(size=(900, 2)) + 2 * labels[:, None]
    whole = silhouette_score(points, labels)
    assert sample(900, 0).tolist() == list(range(900))  # not so many: all
    monkeypatch.setattr(metrics, "MANY", 500)
    monkeypatch.setattr(metrics, "_SAMPLE", 400)
    rows = sample(900, 0)
    assert len(set(rows.tolist())) == 400
    # Silhouettes spread by 0.4 at most here: four standard errors of 400 are 0.08.
    assert silhouette(cdist(points[rows], points), labels, rows) == pytest.approx(whole, abs=0.08)


# Sorted frequencies (1, 0), (0.9, 0.1), (0.5, 0.5) and (0.6, 0.4): on a line at 1, 0.9, 0.5 and 0.6, with
# distances stretched by sqrt(2), which cancels in both scores.
COUNTS = np.array([[0, 10], [9, 1], [10, 10], [4, 6]])


def test_silhouette_of_balanced_and_unbalanced_clients() -> None:
    # Own distance 0.1 everywhere. Other cluster: 1 to {0.5, 0.6} 0.45; 0.9: 0.35; 0.5: 0.45; 0.6: 0.35.
    expected = (2 * (0.45 - 0.1) / 0.45 + 2 * (0.35 - 0.1) / 0.35) / 4
    assert was(COUNTS, np.array([0, 0, 1, 1])) == pytest.approx(expected)


def test_davies_bouldin_of_balanced_and_unbalanced_clients() -> None:
    # Centroids 0.95 and 0.55, mean distances from them 0.05: (0.05 + 0.05) / 0.4.
    assert wadb(COUNTS, np.array([0, 0, 1, 1])) == pytest.approx(0.25)


def test_which_classes_are_frequent_makes_no_difference() -> None:
    draws = np.random.default_rng(0)
    counts = draws.integers(1, 50, (12, 5))
    shuffled = draws.permuted(counts, axis=1) * draws.integers(1, 9, (12, 1))  # nor how many examples
    assignment = np.arange(12) % 3
    for score in (was, wadb):
        assert score(shuffled, assignment) == pytest.approx(score(counts, assignment))


@pytest.mark.parametrize("assignment", [[0, 0, 0, 0], [3, 1, 2, 0], [0]])
def test_one_cluster_and_singletons_are_undefined(assignment: list[int]) -> None:
    counts = COUNTS[: len(assignment)]
    assert was(counts, np.array(assignment)) is None
    assert wadb(counts, np.array(assignment)) is None


def test_clusters_with_the_same_mean_are_undefined_by_davies_bouldin() -> None:
    # One class per client: sorted, all frequencies are (1, 0, 0). Nobody is nearer to anyone.
    counts, assignment = np.eye(3)[[0, 1, 2, 0]], np.array([0, 0, 1, 1])
    assert wadb(counts, assignment) is None
    assert was(counts, assignment) == 0.0


@pytest.mark.parametrize("score", [was, wadb])
def test_other_clients_and_clients_without_examples_are_refused(score: type) -> None:
    with pytest.raises(ValueError, match=r"assignment must have shape \(4\), got \(3,\)"):
        score(COUNTS, np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="counts must have an example on every client, got none on client 0"):
        score(np.array([[0, 0], [1, 2]]), np.array([0, 1]))


def test_rand_index_matches_a_literal_loop() -> None:
    draws = np.random.default_rng(1)
    a, b = draws.integers(0, 3, 40), draws.integers(0, 4, 40)
    agreeing = sum((a[i] == a[j]) == (b[i] == b[j]) for i in range(40) for j in range(i))
    assert rand_index(a, b) == pytest.approx(agreeing / math.comb(40, 2))
    assert rand_index(b, a) == rand_index(a, b)


def test_rand_index_of_equal_groupings_is_one() -> None:
    assert rand_index(np.array([0, 1, 1]), np.array([7, 2, 2])) == 1.0
    assert rand_index(np.array([4]), np.array([0])) == 1.0


def test_adjusted_rand_index_by_hand() -> None:
    # Pairs together in both: 01 and 45, 2. In a: 3 + 3 = 6; in b: 3, of 15. Expected 6·3 / 15 = 1.2, at most
    # (6 + 3) / 2 = 4.5: (2 − 1.2) / (4.5 − 1.2).
    a, b = np.array([0, 0, 0, 1, 1, 1]), np.array([4, 4, 3, 3, 2, 2])
    assert adjusted_rand_index(a, b) == pytest.approx(0.8 / 3.3)
    assert adjusted_rand_index(b, a) == pytest.approx(0.8 / 3.3)


def test_one_cluster_for_all_scores_nothing() -> None:
    # The default run's groups of 20 and 10 clients: 190 + 45 of 435 pairs are together, on the plain index
    # 0.54; all 435 in one cluster, expected 235, so nothing is left.
    groups, together = np.repeat([0, 1], [20, 10]), np.zeros(30, dtype=int)
    assert rand_index(groups, together) == pytest.approx(235 / 435)
    assert adjusted_rand_index(groups, together) == 0.0
    assert adjusted_rand_index(groups, 7 - groups) == 1.0
