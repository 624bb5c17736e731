"""Silhouettes of many clients, by hand and against scikit-learn's."""

import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_samples, silhouette_score

from fedclust.clustering.shared import silhouettes
from fedclust.clustering.shared.silhouettes import mean_silhouette, sample, sampled_silhouette


def test_silhouettes_by_hand() -> None:
    # Points 0, 1, 4 on a line, the last alone. Client 0: a = 1, b = 4; client 1: a = 1, b = 3; client 2: 0.
    points = np.array([[0.0], [1.0], [4.0]])
    found = silhouettes.silhouettes(cdist(points, points), np.array([7, 7, 3]), np.arange(3))
    np.testing.assert_allclose(found, [3 / 4, 2 / 3, 0])


def test_as_many_clusters_as_pairs_of_clients_take_no_matrix_of_both() -> None:
    # Pairs at 0, 0, 1, 1, 2, 2 …: a = 0 and b = 1, so (1 − 0) / 1.
    labels = np.arange(6000) // 2
    points, rows = labels[:, None].astype(float), np.array([0, 2999, 5999])
    distances = cdist(points[rows], points)
    tracemalloc.start()
    try:
        found = silhouettes.silhouettes(distances, labels, rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tolist() == [1, 1, 1]
    assert peak < 6000 * 3000  # a byte for each client and cluster


def test_clients_at_one_place_have_silhouette_0() -> None:
    assert mean_silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_they_are_those_of_scikit_learn(dtype: type) -> None:
    draws = np.random.default_rng(0)
    points, labels = draws.normal(size=(700, 3)), draws.integers(0, 5, 700)
    labels[0] = 5  # alone
    distances = cdist(points, points).astype(dtype)
    expected = silhouette_samples(distances, labels, metric="precomputed")
    rows = np.array([0, 5, 699])
    np.testing.assert_allclose(
        silhouettes.silhouettes(distances[rows], labels, rows), expected[rows], atol=1e-6
    )
    assert mean_silhouette(distances, labels) == pytest.approx(expected.mean(), abs=1e-6)


def test_a_sample_estimates_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1)
    labels = draws.integers(0, 3, 900)
    points = draws.normal(size=(900, 2)) + 2 * labels[:, None]
    whole = silhouette_score(points, labels)
    assert sampled_silhouette(points, labels) == pytest.approx(whole)  # not so many: all
    monkeypatch.setattr(silhouettes, "MANY", 500)
    monkeypatch.setattr(silhouettes, "SAMPLE", 400)
    assert len(set(sample(900, 0).tolist())) == 400
    # Silhouettes spread by 0.4 at most here: four standard errors of 400 are 0.08.
    assert sampled_silhouette(points, labels) == pytest.approx(whole, abs=0.08)
    assert sampled_silhouette(points, labels) != whole
