import dataclasses
from itertools import product

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering.cfl import Changes, Parameters, bipartition, cut, is_stationary, norms, start, update
from fedclust.clustering.shared.grouping import cosine_distances

EVER = Parameters(eps_1=9, eps_2=0.1, relative=False, min_silhouette=None, min_cluster_size=1, projection=2)
LIMITS = Parameters(eps_1=0.5, eps_2=0.8, relative=False)


def _directions(*degrees: float) -> np.ndarray:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)


def _known(values: np.ndarray) -> Changes:
    return Changes(values, np.ones(len(values), dtype=bool), np.array([1.0, 1.0]))


def test_norms_of_the_mean_and_of_the_longest_change() -> None:
    # 1 sample of (3, 0), 3 samples of (0, 4): the mean is (3, 12) / 4, of length √(9 + 144) / 4.
    found = norms(np.array([[3.0, 0], [0, 4]]), np.array([3.0, 4.0]), np.array([1, 3]))
    np.testing.assert_allclose(found, [np.sqrt(153) / 4, 4])


@pytest.mark.parametrize(
    ("found", "stands"), [((0.4, 1), True), ((0.5, 1), False), ((0.4, 0.8), False), ((0.6, 0.7), False)]
)
def test_a_cluster_stands_still_on_average_only(found: tuple[float, float], stands: bool) -> None:
    assert is_stationary(np.array(found), np.array([7.0, 7.0]), LIMITS) is stands


def test_relative_limits_are_shares_of_the_first_round() -> None:
    limits = dataclasses.replace(LIMITS, relative=True)  # 0.5 · 0.6 = 0.3 and 0.8 · 2 = 1.6
    assert is_stationary(np.array([0.29, 1.7]), np.array([0.6, 2.0]), limits)
    assert not is_stationary(np.array([0.31, 1.7]), np.array([0.6, 2.0]), limits)
    assert not is_stationary(np.array([0.29, 1.5]), np.array([0.6, 2.0]), limits)


def _largest_across(vectors: np.ndarray, labels: np.ndarray) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float((unit @ unit.T)[labels[:, None] != labels].max())


def _algorithm_1(cosines: np.ndarray) -> set[frozenset[int]]:
    """CFL's Algorithm 1, line by line: join the most similar pairs first, until two groups are left."""
    number = len(cosines)
    groups = {frozenset([client]) for client in range(number)}
    for place in np.argsort(-cosines, axis=None):
        joined = [group for group in groups if group & {place // number, place % number}]
        groups = groups - {*joined} | {frozenset().union(*joined)}
        if len(groups) == 2:
            break
    return groups


@pytest.mark.parametrize("seed", range(10))
def test_cuts_are_algorithm_1s_and_the_best_of_all(seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(8, 4))
    distances = cosine_distances(vectors)
    found = bipartition(distances, Parameters().linkage)
    assert {frozenset(np.flatnonzero(found == part)) for part in (0, 1)} == _algorithm_1(1 - distances)
    # The cut leaves the smallest largest cosine of all 127 ways to cut eight clients in two.
    ways = (np.array([0, *rest]) for rest in product((0, 1), repeat=7) if any(rest))
    least = min(_largest_across(vectors, way) for way in ways)
    assert _largest_across(vectors, found) == pytest.approx(least)
    complete = AgglomerativeClustering(metric="cosine", linkage="complete").fit_predict(vectors)
    assert adjusted_rand_score(complete, bipartition(distances, "complete")) == 1


@pytest.mark.parametrize(("gamma_max", "is_cut"), [(0.0, True), (0.86, True), (0.87, False), (1.0, False)])
def test_a_cut_must_be_wider_than_noise(gamma_max: float, is_cut: bool) -> None:
    # The largest cosine across the cut is that of 0° and 120°, −1/2: √((1 + 1/2)/2) = 0.866.
    changes = _known(_directions(0, 0, 120, 130))
    found = cut(changes, np.arange(4), np.array([0.0, 1.0]), dataclasses.replace(EVER, gamma_max=gamma_max))
    assert (found.labels is not None) is is_cut


def test_no_cut_of_noise_of_small_parts_or_of_two() -> None:
    found = np.array([0.0, 1.0])
    careful = dataclasses.replace(EVER, min_silhouette=0.5)
    groups = _known(_directions(0, 5, 175, 180))
    assert cut(groups, np.arange(4), found, careful).labels.tolist() == [0, 0, 1, 1]
    noise = _known(np.eye(4))
    assert cut(noise, np.arange(4), found, careful).labels is None
    assert cut(noise, np.arange(4), found, EVER).labels is not None
    odd = _known(_directions(0, 5, 10, 180))
    assert cut(odd, np.arange(4), found, EVER).labels.tolist() == [0, 0, 0, 1]
    assert cut(odd, np.arange(4), found, dataclasses.replace(EVER, min_cluster_size=2)).labels is None
    assert cut(groups, np.array([0, 3]), found, EVER).labels.tolist() == [0, 1]
    assert cut(groups, np.array([3]), found, EVER).labels is None
    alike = _known(_directions(7, 7, 7))
    assert cut(alike, np.arange(3), found, EVER).labels is None  # √((1 − 1)/2) is not above γ_max = 0


def test_clients_that_never_answered_go_with_the_larger_part() -> None:
    changes = update(start(7, EVER), np.array([0, 1, 2, 5]), _directions(0, 5, 10, 180))
    members = np.array([0, 1, 2, 4, 5, 6])  # client 3 is in another cluster
    assert cut(changes, members, np.array([0.0, 1.0]), EVER).labels.tolist() == [0, 0, 0, 0, 1, 0]


def test_the_last_change_counts() -> None:
    changes = update(start(4, EVER), np.arange(4), _directions(0, 5, 180, 175), np.array([2.0, 3.0]))
    changes = update(changes, np.array([1]), _directions(170))
    assert cut(changes, np.arange(4), np.array([0.0, 1.0]), EVER).labels.tolist() == [0, 1, 1, 1]
    assert changes.first_norms.tolist() == [2, 3]
