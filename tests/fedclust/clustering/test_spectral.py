"""Spectral clustering against scikit-learn, and single precision against double."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding, spectral_embedding
from sklearn.metrics import davies_bouldin_score

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Parameters, affinity, few_eigenvectors, join_small

# How clients of three kinds perceive each other: so nearly alike that no kind is cut off from the others,
# for then the eigenvalues would be equal, and the vectors any rotation of each other.
PERCEPTION = 0.5 + 0.1 * np.array([[0.9, 0.3, 0.2], [0.4, 0.8, 0.2], [0.2, 0.3, 0.6]])


def candidates(
    affinities: np.ndarray, max_clusters: int, seed: int, **how: Any
) -> dict[int, tuple[np.ndarray, float]]:
    return fedgwc.candidates(affinities, max_clusters, Parameters(min_cluster_size=1, **how), seed)


def perceived(size: int, seed: int = 0, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Draw the kinds of clients, and an interaction matrix after many rounds."""
    draws = np.random.default_rng(seed)
    kinds = draws.integers(0, 3, size)
    matrix = PERCEPTION[np.ix_(kinds, kinds)] + noise * draws.standard_normal((size, size))
    return kinds, np.clip(matrix, 0, 1)


def test_eigenvectors_span_what_scikit_learn_finds() -> None:
    affinities = affinity(perceived(600)[1], 0.1)
    found = few_eigenvectors(affinities.astype(np.float32), 3, seed=0)
    wanted = spectral_embedding(affinities, n_components=3, drop_first=False, random_state=0)
    # Cosines of the angles between the two spaces of three vectors, which three kinds span.
    angles = np.linalg.svd(np.linalg.qr(found)[0].T @ np.linalg.qr(wanted)[0], compute_uv=False)
    np.testing.assert_allclose(angles, 1, atol=1e-5)
    assert np.ptp(found[:, 0]) <= 1e-4 * found[0, 0]  # connected clients: the first is constant


def test_a_client_like_no_other_has_finite_coordinates() -> None:
    affinities = np.eye(12, dtype=np.float32)
    affinities[:11, :11] = 0.5
    assert np.isfinite(few_eigenvectors(affinities, 3, seed=0)).all()


def test_clients_alike_are_found_among_those_that_are_like_nobody() -> None:
    affinities = np.eye(300, dtype=np.float32)
    affinities[:10, :10] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = candidates(affinities, 2, seed=0)
    assert found[2][0].tolist() == [0] * 10 + [1] * 290
    # The ten rows are the same: width 0. The others are unit vectors, √(1 − 1/290) from their mean, and the
    # two means √(10 + 1/290) apart: 0.998 / 3.163.
    assert found[2][1] == pytest.approx(np.sqrt((1 - 1 / 290) / (10 + 1 / 290)), rel=1e-4)


def test_divisions_are_those_of_double_precision() -> None:
    kinds, matrix = perceived(300)
    affinities = affinity(matrix, 0.5)
    dense = candidates(affinities, 3, seed=0)
    found = candidates(affinities.astype(np.float32), 3, seed=0)
    assert list(found) == list(dense) == [2, 3]
    for number, (labels, score) in found.items():
        np.testing.assert_array_equal(labels, dense[number][0])
        assert score == pytest.approx(dense[number][1], rel=1e-3)
    groups = {tuple(kinds[found[3][0] == part]) for part in range(3)}
    assert all(len(set(group)) == 1 for group in groups)


def noisy_groups(num_groups: int, size: int, seed: int) -> np.ndarray:
    draws = np.random.default_rng(seed)
    groups = draws.integers(0, num_groups, size)
    noise = draws.uniform(0.0, 0.3, (size, size))
    result = 0.3 + 0.4 * (groups[:, None] == groups) + (noise + noise.T) / 2
    np.fill_diagonal(result, 1.0)
    return result


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(((a[:, None] == a) == (b[:, None] == b)).all())


@pytest.mark.parametrize("num_groups", [2, 3, 5])
def test_labels_are_those_of_spectral_clustering(num_groups: int) -> None:
    affinities = noisy_groups(num_groups, 40, seed=num_groups)
    labels, score = candidates(affinities, 5, seed=0)[num_groups]
    expected = SpectralClustering(num_groups, affinity="precomputed", random_state=0).fit_predict(affinities)
    assert same_partition(labels, expected)
    assert score == pytest.approx(davies_bouldin_score(affinities, expected))


def test_released_code_scores_the_embedding_of_its_labels() -> None:
    affinities = noisy_groups(3, 40, seed=1)
    found = candidates(affinities, 4, seed=0, score_on="embedding", assign_labels="cluster_qr")
    assert list(found) == [2, 3, 4]
    for number, (labels, score) in found.items():
        same = {"affinity": "precomputed", "random_state": 0}
        expected = SpectralClustering(number, assign_labels="cluster_qr", **same).fit_predict(affinities)
        embedding = SpectralEmbedding(number, **same).fit_transform(affinities)
        assert same_partition(labels, expected)
        assert score == pytest.approx(davies_bouldin_score(embedding, expected), rel=1e-6)


def test_labels_are_numbered_in_order_of_appearance() -> None:
    for labels, _ in candidates(noisy_groups(3, 30, seed=2), 5, seed=0).values():
        _, first = np.unique(labels, return_index=True)
        assert (np.diff(first) > 0).all()


def test_numbers_stop_below_the_number_of_clients() -> None:
    affinities = noisy_groups(2, 4, seed=3)
    assert max(candidates(affinities, 10, seed=0)) <= 3
    assert candidates(affinities[:2, :2], 10, seed=0) == {}
    assert max(candidates(affinities, 10, seed=0, score_on="embedding")) <= 2


def test_fewer_distinct_clusters_than_asked_for_are_left_out() -> None:
    # Two groups without any noise: their members are identical.
    affinities = np.where(np.arange(12)[:, None] % 2 == np.arange(12) % 2, 1.0, 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = candidates(affinities, 2, seed=0)
    assert list(found) == [2]
    assert found[2][1] == pytest.approx(0.0)


def test_large_seeds_are_seeds_too() -> None:
    affinities = noisy_groups(3, 20, seed=4)
    assert list(candidates(affinities, 4, seed=2**63 - 1)) == [2, 3, 4]


# Two pairs and a single client, nearer to the second pair: with rows a = [1, 1, 0, 0, 0.1] of clients 0 and 1
# and b = [0, 0, 1, 1, 0.4] of 2 and 3, its own [0.1, 0.1, 0.4, 0.4, 1] is at a squared distance of
# 2 * 0.9² + 2 * 0.4² + 0.9² = 2.75 from a and 2 * 0.1² + 2 * 0.6² + 0.6² = 1.1 from b.
PAIRS = np.array(
    [
        [1.0, 1.0, 0.0, 0.0, 0.1],
        [1.0, 1.0, 0.0, 0.0, 0.1],
        [0.0, 0.0, 1.0, 1.0, 0.4],
        [0.0, 0.0, 1.0, 1.0, 0.4],
        [0.1, 0.1, 0.4, 0.4, 1.0],
    ]
)


@pytest.mark.parametrize(
    ("labels", "smallest", "expected"),
    [
        ([0, 0, 1, 1, 2], 1, [0, 0, 1, 1, 2]),
        ([0, 0, 1, 1, 2], 2, [0, 0, 1, 1, 1]),
        ([7, 7, 3, 3, 5], 2, [0, 0, 1, 1, 1]),  # whatever their numbers
        # The single client first; of [2, 3] the pair of clients 0 and 1 is too small then, and one is left.
        ([0, 0, 1, 1, 2], 3, [0, 0, 0, 0, 0]),
        # Client 4 goes to [2, 3], client 1 to client 0: its row is client 0's.
        ([0, 1, 2, 2, 3], 2, [0, 0, 1, 1, 1]),
        ([0, 0, 0, 0, 0], 9, [0, 0, 0, 0, 0]),
    ],
)
def test_small_clusters_join_those_nearest_to_their_clients(
    labels: list[int], smallest: int, expected: list[int]
) -> None:
    before = np.array(labels)
    np.testing.assert_array_equal(join_small(PAIRS, before, smallest), expected)
    np.testing.assert_array_equal(before, labels)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 2**31), st.data())
def test_no_small_cluster_is_left_but_a_single_one(
    size: int, smallest: int, seed: int, data: st.DataObject
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
    draws = np.random.default_rng(seed).random((size, size))
    joined = join_small(draws + draws.T, labels, smallest)
    sizes = np.bincount(joined)
    assert sizes.sum() == size
    assert len(sizes) == 1 or sizes.min() >= smallest
    for part in np.unique(labels):  # what was large enough stays together
        assert (labels == part).sum() < smallest or len(set(joined[labels == part])) == 1
