"""FMCL: distances against a literal loop, in both precisions, and the choice of the number of clusters."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest

from fedclust.clustering import fmcl
from fedclust.clustering.fmcl import (
    LocalMaximum,
    Parameters,
    assign,
    cluster,
    distances,
    num_clusters,
    variation,
)


def literal_distances(prototypes: np.ndarray, shares: np.ndarray, of: Parameters) -> np.ndarray:
    """Algorithm 3, line by line."""
    matrix = np.full((len(shares), len(shares)), math.inf)
    for i, j in itertools.combinations(range(len(shares)), 2):
        total = num = 0.0
        for c in np.flatnonzero(shares[i] * shares[j]):
            weight = min(shares[i, c], shares[j, c])
            first, second = prototypes[i, c].astype(float), prototypes[j, c].astype(float)
            cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second) + of.epsilon)
            total, num = total + weight, num + weight * (1 - cosine)
        if total:
            scale = min(max(total, of.epsilon) ** -of.alpha, of.beta) if of.overlap else 1.0
            matrix[i, j] = matrix[j, i] = num / (total + of.epsilon) * scale
    finite = matrix[np.isfinite(matrix)]
    far = min(2 * np.percentile(finite, 95), np.percentile(finite, 99)) if finite.size else 1.0
    matrix[np.isinf(matrix)] = far
    np.fill_diagonal(matrix, 0)
    return matrix


def random_clients(seed: int, clients: int, classes: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """About half of the classes absent on each client, their prototypes not a number."""
    draws = np.random.default_rng(seed)
    counts = draws.integers(0, 6, size=(clients, classes)) * draws.integers(0, 2, size=(clients, classes))
    counts[np.arange(clients), draws.integers(0, classes, size=clients)] += 1
    prototypes = draws.normal(size=(clients, classes, width)).astype(np.float32)
    prototypes[counts == 0] = np.nan
    return prototypes, counts / counts.sum(axis=1, keepdims=True)


def between(*groups: int, near: float = 0.1, far: float = 1.0) -> np.ndarray:
    """Distances of groups of these sizes: `near` inside, `far` across."""
    label = np.repeat(np.arange(len(groups)), groups)
    matrix = np.where(label[:, None] == label, near, far)
    np.fill_diagonal(matrix, 0)
    return matrix


@pytest.mark.parametrize("entries", [2**22, 1, 20])
@pytest.mark.parametrize("overlap", [True, False])
def test_distances_match_a_literal_loop_whatever_the_blocks(entries: int, overlap: bool, monkeypatch) -> None:
    monkeypatch.setattr(fmcl, "_BLOCK_ENTRIES", entries)
    prototypes, shares = random_clients(seed=3, clients=9, classes=5, width=4)
    parameters = Parameters(alpha=1.5, beta=4.0, epsilon=1e-2, overlap=overlap)
    result = distances(prototypes, shares, parameters)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, literal_distances(prototypes, shares, parameters), rtol=1e-12)


@pytest.mark.parametrize("overlap", [True, False])
def test_distances_of_many_clients_are_those_of_the_loop_in_single_precision(overlap, monkeypatch) -> None:
    prototypes, shares = random_clients(seed=2, clients=200, classes=3, width=8)
    parameters = Parameters(overlap=overlap)
    expected, details = assign(prototypes, shares, parameters)
    monkeypatch.setattr(fmcl, "_BLOCK_ENTRIES", 200 * 64)  # four blocks, the last one smaller
    monkeypatch.setattr(fmcl, "_MANY", 199)
    found, single = assign(prototypes, shares, parameters)
    assert single.distances.dtype == np.float32
    np.testing.assert_array_equal(single.distances, single.distances.T)
    assert not np.diagonal(single.distances).any()
    literal = literal_distances(prototypes, shares, parameters)
    np.testing.assert_allclose(single.distances, literal, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found, expected)
    assert single.variation == pytest.approx(details.variation, rel=1e-4)


def test_the_variation_is_that_of_different_clients() -> None:
    matrix = np.array([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]])
    # Distances 1, 2, 3, each twice: mean 2, variance 2/3.
    assert variation(matrix) == pytest.approx(np.sqrt(2 / 3) / 2)
    assert variation(np.zeros((3, 3))) == 0


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30, 0.0])
def test_prototypes_of_absent_classes_do_not_leak(junk: float) -> None:
    prototypes, shares = random_clients(seed=4, clients=6, classes=4, width=3)
    prototypes[shares == 0] = junk
    clean = np.where((shares > 0)[..., None], prototypes, 7.0)
    found, expected = (distances(each, shares, Parameters()) for each in (prototypes, clean))
    np.testing.assert_array_equal(found, expected)


def test_far_is_twice_the_95th_percentile_when_that_is_less_than_the_99th() -> None:
    # Clients of one class, all parallel but the last, and one client of another class. With 30, 58 of 870
    # entries involve the odd one (distance 1 / 1.001), above 5 %: P95 = P99. With 100, 198 of 9,900, 2 %:
    # P95 is small, P99 is not.
    for clients, twice in ((30, False), (100, True)):
        prototypes = np.tile([1.0, 0.0], (clients + 1, 2, 1))
        prototypes[clients - 1, 0] = [0.0, 1.0]
        shares = np.tile([1.0, 0.0], (clients + 1, 1))
        shares[clients] = [0.0, 1.0]
        near, odd = (1 - 1 / 1.001) / 1.001, 1 / 1.001
        result = distances(prototypes, shares, Parameters())
        np.testing.assert_allclose(result[clients, 0], 2 * near if twice else odd)


def test_no_two_clients_share_a_class() -> None:
    result = distances(np.full((3, 3, 2), 5.0), np.eye(3), Parameters())
    np.testing.assert_array_equal(result, 1 - np.eye(3))
    np.testing.assert_array_equal(assign(np.ones((3, 3, 2)), np.eye(3), Parameters())[0], [0, 0, 0])


def test_identical_clients_are_one_cluster() -> None:
    prototypes, shares = random_clients(seed=5, clients=1, classes=4, width=3)
    labels, details = assign(np.repeat(prototypes, 7, 0), np.repeat(shares, 7, 0), Parameters())
    np.testing.assert_array_equal(labels, 0)
    assert details.variation == pytest.approx(0, abs=1e-6)
    assert details.scores == dict.fromkeys(range(1, 7), 0.0)


def test_a_class_nobody_has_changes_nothing() -> None:
    prototypes, shares = random_clients(seed=6, clients=5, classes=3, width=3)
    wider = np.concatenate([prototypes, np.full((5, 1, 3), np.nan)], axis=1)
    found = distances(wider, np.column_stack([shares, np.zeros(5)]), Parameters())
    np.testing.assert_array_equal(found, distances(prototypes, shares, Parameters()))


@pytest.mark.parametrize(("clients", "expected"), [(1, [0]), (2, [0, 0])])
def test_fewer_than_three_clients_are_one_cluster(clients: int, expected: list[int]) -> None:
    labels, _ = assign(np.eye(2)[:clients, None], np.ones((clients, 1)), Parameters())
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize(
    ("groups", "near", "far", "variation", "expected"),
    [
        # The coefficient of variation is checked below, so that each window is used.
        ((6, 6), 0.6, 1.0, (0.0, 0.35), 2),  # {1, 2, 3}
        ((6, 6, 6, 6), 0.1, 1.0, (0.35, 0.7), 4),  # {2 … 6}
        ((8, 8), 0.05, 1.0, (0.7, 9.0), 2),  # {3 … 10} has no local maximum: the best of 1 … 10
        ((12, 3, 3, 3, 3), 0.01, 1.0, (0.35, 0.7), 5),
    ],
)
def test_number_of_clusters_of_clear_groups(groups, near, far, variation, expected) -> None:
    matrix = between(*groups, near=near, far=far)
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    assert variation[0] <= off_diagonal.std() / off_diagonal.mean() < variation[1]
    np.testing.assert_array_equal(cluster(matrix, Parameters())[0], np.repeat(np.arange(len(groups)), groups))


@pytest.mark.parametrize(
    ("variation", "scores", "dominant", "any_peak"),
    [
        (0.34, {1: 0.0, 2: 0.1, 3: 0.05, 4: 0.2, 5: 0.9}, 2, 2),  # 4 and 5 lie outside {1, 2, 3}
        # 4 is the only inner maximum of {2 … 6}; the end 6 is higher, so the best of all wins, in or outside.
        (0.35, {1: 0.0, 2: 0.1, 3: 0.05, 4: 0.2, 5: 0.1, 6: 0.3}, 6, 4),
        (0.35, {1: 0.0, 2: 0.1, 3: 0.05, 4: 0.2, 5: 0.1, 6: 0.3, 7: 0.4}, 7, 4),
        (0.35, {1: 0.0, 2: 0.1, 3: 0.05, 4: 0.3, 5: 0.1, 6: 0.3}, 4, 4),  # as high as an end
        (0.35, {1: 0.0, 2: 0.1, 3: 0.3, 4: 0.2, 5: 0.3, 6: 0.1}, 3, 3),  # a tie: the smaller
        (0.35, {1: 0.0, 2: 0.1, 3: 0.3, 4: 0.3, 5: 0.1, 6: 0.1}, 3, 3),  # a plateau is none: best of all
        (
            0.69,
            {1: 0.0, 2: -0.2, 3: -0.1, 4: -0.3, 5: -0.4, 6: -0.5},
            3,
            3,
        ),  # a maximum below S(1) still wins
        (0.70, {1: 0.0, 2: 0.9, 3: 0.1, 4: 0.3, 5: 0.2, 6: 0.1}, 4, 4),  # 2 lies outside {3 … 10}
        (0.70, {1: 0.0, 2: 0.8, 3: 0.9, 4: 0.3, 5: 0.1, 6: 0.2, 7: 0.1}, 3, 6),  # noise at 6; 3 is an end
        (0.70, {1: 0.0, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.2}, 2, 2),  # falling: best of 1 … K_max
        (0.70, {1: 0.0, 2: -0.5, 3: -0.1}, 1, 1),  # K = 4: the window is {3}
        (0.10, {1: 0.0, 2: 0.5}, 2, 2),  # K = 3: the window is {1, 2}, without an inner point
        (2.00, {1: 0.0}, 1, 1),  # K = 2
    ],
)
def test_choice_from_a_silhouette_curve(
    variation: float, scores: dict[int, float], dominant: int, any_peak: int
) -> None:
    assert num_clusters(scores, variation) == dominant
    assert num_clusters(scores, variation, "any") == any_peak


def test_noise_within_two_groups_counts_only_if_asked_for() -> None:
    noise = np.triu(np.random.default_rng(0).uniform(0, 0.1, (16, 16)), 1)
    matrix = between(8, 8, near=0.3) + noise + noise.T
    found = {rule: cluster(matrix, Parameters(local_maximum=rule)) for rule in get_args(LocalMaximum)}
    np.testing.assert_array_equal(found["dominant"][0], np.repeat([0, 1], 8))
    labels, scores = found["any"]
    number = int(labels.max()) + 1
    assert 3 <= number < 10
    assert scores[number - 1] < scores[number] > scores[number + 1]
    assert scores[number] < scores[2] - 0.2


def test_max_clusters_bounds_the_choice() -> None:
    matrix = between(4, 4, 4, 4, near=0.01)
    assert cluster(matrix, Parameters())[0].max() == 3
    assert cluster(matrix, Parameters(max_clusters=3))[0].max() <= 2


def test_fixed_number_and_threshold() -> None:
    matrix = between(2, 3, near=0.2, far=0.8)
    np.testing.assert_array_equal(cluster(matrix, Parameters(num_clusters=1))[0], [0] * 5)
    np.testing.assert_array_equal(cluster(matrix, Parameters(num_clusters=2))[0], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(cluster(matrix, Parameters(num_clusters=5))[0], range(5))
    np.testing.assert_array_equal(cluster(matrix, Parameters(threshold=0.1))[0], range(5))
    np.testing.assert_array_equal(cluster(matrix, Parameters(threshold=0.2))[0], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(cluster(matrix, Parameters(threshold=0.8, linkage="complete"))[0], [0] * 5)


def test_bad_arguments_of_the_grouping_are_refused() -> None:
    with pytest.raises(ValueError, match="num_clusters must be <= 4, the number of clients, got 5"):
        cluster(between(2, 2), Parameters(num_clusters=5))
