"""Single precision against double, and the partial eigensolver against scikit-learn's."""

import warnings

import numpy as np
import pytest
from sklearn.manifold import spectral_embedding
from threadpoolctl import threadpool_limits

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Parameters, affinity, large, start, step
from fedclust.clustering.fedgwc.spectral import candidates
from fedclust.clustering.shared.scores import davies_bouldin

# How clients of three kinds perceive each other: so nearly alike that no kind is cut off from the others,
# for then the eigenvalues would be equal, and the vectors any rotation of each other.
PERCEPTION = 0.5 + 0.1 * np.array([[0.9, 0.3, 0.2], [0.4, 0.8, 0.2], [0.2, 0.3, 0.6]])


def perceived(size: int, seed: int = 0, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Draw the kinds of clients, and an interaction matrix after many rounds."""
    draws = np.random.default_rng(seed)
    kinds = draws.integers(0, 3, size)
    matrix = PERCEPTION[np.ix_(kinds, kinds)] + noise * draws.standard_normal((size, size))
    return kinds, np.clip(matrix, 0, 1)


@pytest.mark.parametrize("size", [3, 40, 700, 1025])  # fewer and more rows than a tile and a strip
def test_affinity_is_the_dense_one(size: int) -> None:
    _, matrix = perceived(size)
    found = affinity(matrix.astype(np.float32), 0.5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, affinity(matrix, 0.5), rtol=2e-4)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(found.diagonal(), 1)


def test_affinity_is_that_of_any_number_of_threads() -> None:
    matrix = perceived(1300)[1].astype(np.float32)
    with threadpool_limits(1):
        one = affinity(matrix, 0.5)
    with threadpool_limits(3):
        np.testing.assert_array_equal(affinity(matrix, 0.5), one)


def test_affinity_leaves_its_argument_alone() -> None:
    matrix = perceived(20)[1].astype(np.float32)
    before = matrix.copy()
    affinity(matrix, 0.5)
    np.testing.assert_array_equal(matrix, before)


def test_eigenvectors_span_what_scikit_learn_finds() -> None:
    affinities = affinity(perceived(600)[1], 0.1)
    found = large.embedding(affinities.astype(np.float32), 3, seed=0)
    wanted = spectral_embedding(affinities, n_components=3, drop_first=False, random_state=0)
    # Cosines of the angles between the two spaces of three vectors, which three kinds span.
    angles = np.linalg.svd(np.linalg.qr(found)[0].T @ np.linalg.qr(wanted)[0], compute_uv=False)
    np.testing.assert_allclose(angles, 1, atol=1e-5)
    assert np.ptp(found[:, 0]) <= 1e-4 * found[0, 0]  # connected clients: the first is constant


def test_a_client_like_no_other_has_finite_coordinates() -> None:
    affinities = np.eye(12, dtype=np.float32)
    affinities[:11, :11] = 0.5
    assert np.isfinite(large.embedding(affinities, 3, seed=0)).all()


def test_clients_alike_are_found_among_those_that_are_like_nobody() -> None:
    affinities = np.eye(300, dtype=np.float32)
    affinities[:10, :10] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = candidates(affinities, 2, seed=0)
    assert found[2].labels.tolist() == [0] * 10 + [1] * 290
    # The ten rows are the same: width 0. The others are unit vectors, √(1 − 1/290) from their mean, and the
    # two means √(10 + 1/290) apart: 0.998 / 3.163.
    assert found[2].davies_bouldin == pytest.approx(np.sqrt((1 - 1 / 290) / (10 + 1 / 290)), rel=1e-4)


def test_score_by_hand() -> None:
    # Clusters {0, 2} on a line: centroid 1, width 1; {10, 14}: centroid 12, width 2; (1 + 2) / 11.
    points = np.array([[0], [2], [10], [14]], dtype=np.float32)
    # {0, 14} and {2, 10}: centroids 7 and 6, widths 7 and 4; (7 + 4) / 1.
    # {0, 2}, {10}, {14}: (1 + 0) / 9, (1 + 0) / 9 (or 0 / 4) and (1 + 0) / 13 (or 0 / 4).
    divisions = [np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0]), np.array([0, 0, 1, 2])]
    expected = [3 / 11, 11, (1 / 9 + 1 / 9 + 1 / 13) / 3]
    assert large.davies_bouldin(points, divisions) == pytest.approx(expected)
    assert large.davies_bouldin(points, []) == []


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    draws = np.random.default_rng(seed)
    points, labels = draws.random((50, 50)), draws.permutation(np.arange(50) % 4)
    found = large.davies_bouldin(points.astype(np.float32), [labels, labels[::-1]])
    assert found == pytest.approx([davies_bouldin(points, each) for each in (labels, labels[::-1])], rel=1e-4)


def test_clusters_at_one_place_have_an_infinite_score() -> None:
    points, labels = np.ones((4, 2), dtype=np.float32), np.array([0, 0, 1, 1])
    assert large.davies_bouldin(points, [labels]) == [np.inf]


def test_divisions_are_those_of_double_precision() -> None:
    kinds, matrix = perceived(300)
    affinities = affinity(matrix, 0.5)
    dense = candidates(affinities, 3, seed=0)
    found = candidates(affinities.astype(np.float32), 3, seed=0)
    assert list(found) == list(dense) == [2, 3]
    for number, candidate in found.items():
        np.testing.assert_array_equal(candidate.labels, dense[number].labels)
        assert candidate.davies_bouldin == pytest.approx(dense[number].davies_bouldin, rel=1e-3)
    groups = {tuple(kinds[found[3].labels == part]) for part in range(3)}
    assert all(len(set(group)) == 1 for group in groups)


def test_a_run_of_a_cluster_of_many_is_that_of_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 clients of one kind and 16 of another, all in every round, until they are split."""
    parameters = Parameters(tolerance=0.01, patience=1, min_cluster_size=3).resolve(0.5)
    losses = np.where(np.arange(24) % 3, 2.0, 0.5)[:, None] + np.arange(24)[:, None] * 0.01

    def rounds() -> tuple[np.ndarray, list[fedgwc.Interaction], fedgwc.Interaction]:
        state = start(np.arange(24), parameters)
        for _ in range(60):
            state, outcome = step(state, np.arange(24), losses, parameters, seed=0)
            if outcome.labels is not None:
                return outcome.labels, fedgwc.children(state, outcome.labels), state
        raise AssertionError("never split")

    labels, _, double = rounds()
    monkeypatch.setattr(large, "MANY", 20)
    found, parts, single = rounds()
    np.testing.assert_array_equal(found, labels)
    assert single.matrix.dtype == np.float32
    assert parts[0].matrix.dtype == np.float64  # they are few
    np.testing.assert_allclose(single.matrix, double.matrix, rtol=1e-6)
    back = fedgwc.Interaction.from_arrays(single.to_arrays())
    assert back.matrix.dtype == np.float32
    np.testing.assert_array_equal(back.matrix, single.matrix)
