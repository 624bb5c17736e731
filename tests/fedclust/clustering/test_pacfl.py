import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fedclust.clustering import pacfl
from fedclust.clustering.pacfl import Parameters, assign, distances
from fedclust.clustering.placement import SubspaceRule
from fedclust.models.class_prototypes import basis

WIDTH, VECTORS = 7, 3


def _line(degrees: float) -> np.ndarray:
    """Make the basis of a client whose only class lies on a line through 0, shape (1, 2, 1)."""
    points = np.outer([1.0, -2, 3], [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
    return basis(points, 1)[None]


def _random(num_examples: list[list[int]], seed: int = 0) -> np.ndarray:
    """Make bases of clients with so many random examples of each class."""
    draws = np.random.default_rng(seed)
    return np.array([[basis(draws.normal(size=(n, WIDTH)), VECTORS) for n in own] for own in num_examples])


@pytest.mark.parametrize("measure", ["smallest", "sum", "mean"])
def test_two_lines_at_30_degrees(measure) -> None:
    found = distances(np.stack([_line(10), _line(40), _line(190)]), measure)
    # A line at 190 degrees is the line at 10: singular vectors have no sign.
    np.testing.assert_allclose(found, [[0, 30, 0], [30, 0, 30], [0, 30, 0]], atol=1e-5)


def test_two_planes_that_share_a_line() -> None:
    # span(e1, e2) and span(e1, cos 50° e2 + sin 50° e3): angles 0 and 50 degrees.
    tilt = np.radians(50)
    planes = np.zeros((2, 1, 3, 2))
    planes[:, 0, 0, 0] = 1
    planes[0, 0, 1, 1] = 1
    planes[1, 0, 1:, 1] = np.cos(tilt), np.sin(tilt)
    for measure, expected in (("smallest", 0), ("sum", 50), ("mean", 0)):
        np.testing.assert_allclose(distances(planes, measure)[0, 1], expected, atol=1e-5)


def test_a_basis_is_the_directions_of_the_largest_singular_values() -> None:
    # Examples 3 e2, 1 e0 and 2 e1: singular values 3, 2, 1 along e2, e1, e0.
    examples = np.array([[0, 0, 3.0], [1, 0, 0], [0, 2, 0]])
    np.testing.assert_allclose(np.abs(basis(examples, 2)), [[0, 0], [0, 1], [1, 0]], atol=1e-12)


def test_a_basis_has_no_more_directions_than_the_examples() -> None:
    found = basis(np.array([[3.0, 4], [6, 8]]), 3)
    np.testing.assert_allclose(np.abs(found), [[0.6, 0, 0], [0.8, 0, 0]], atol=1e-12)
    np.testing.assert_array_equal(basis(np.zeros((0, 4)), 2), np.zeros((4, 2)))
    np.testing.assert_array_equal(basis(np.zeros((5, 4)), 2), np.zeros((4, 2)))


def _by_the_paper(bases: np.ndarray, measure: str) -> np.ndarray:
    """Compute the distances one pair and one class at a time."""
    found = np.zeros((len(bases), len(bases)))
    for one, other in itertools.permutations(range(len(bases)), 2):
        by_class = []
        for pair in zip(bases[one], bases[other], strict=True):
            mine, theirs = (each[:, each.any(axis=0)] for each in pair)
            if mine.size and theirs.size:
                by_class.append(np.degrees(subspace_angles(mine, theirs)))
        if not by_class:
            found[one, other] = 90 * VECTORS * bases.shape[1] if measure == "sum" else 90
        elif measure == "sum":
            found[one, other] = sum(each.sum() for each in by_class)
        else:
            found[one, other] = {"smallest": min, "mean": np.mean}[measure]([each.min() for each in by_class])
    return found


@pytest.mark.parametrize("measure", ["smallest", "sum", "mean"])
@pytest.mark.parametrize("pairs", [1, 10, 10**6])
def test_distances_are_those_of_the_literal_loop(measure, pairs: int, monkeypatch) -> None:
    monkeypatch.setattr(pacfl, "_BLOCK_PAIRS", pairs)
    # Some classes are missing, some have fewer examples than vectors, client 3 shares no class with client 4.
    bases = _random([[9, 9, 9], [9, 0, 9], [2, 9, 1], [5, 0, 0], [0, 9, 5], [1, 1, 1]])
    np.testing.assert_allclose(distances(bases, measure), _by_the_paper(bases, measure), atol=1e-5)
    largest = 90 * VECTORS * 3 if measure == "sum" else 90
    assert distances(bases, measure)[3, 4] == largest


def test_clients_on_two_lines_become_two_clusters() -> None:
    bases = np.stack([_line(degrees) for degrees in (0, 40, 2, 41, 1)])
    labels, report = assign(bases, Parameters(vectors=1))
    assert labels.tolist() == [0, 1, 0, 1, 0]
    assert report.scores[2] > 0.9
    assert assign(bases, Parameters(vectors=1, threshold=30.0, measure="sum"))[0].tolist() == [0, 1, 0, 1, 0]
    assert assign(bases, Parameters(vectors=1, threshold=45.0))[0].tolist() == [0] * 5


def _rule(degrees: Iterable[float], labels: list[int]) -> SubspaceRule:
    """Make the rule for newcomers to clusters of such lines."""
    bases = np.stack([_line(each) for each in degrees])
    return SubspaceRule.of(bases, np.array(labels), distances(bases), Parameters(vectors=1))


def test_a_newcomer_goes_to_the_cluster_of_the_least_mean_angle() -> None:
    # One class, one vector each, in the plane: clients at 0, 10 and 80 degrees, in clusters 0, 0 and 1.
    rule = _rule([0, 10, 80], [0, 0, 1])
    found = rule.place(_line(20))
    # 20 and 10 degrees from cluster 0, mean 15; 60 from cluster 1.
    assert found.cluster == 0
    assert found.evidence["degrees"]["0"] == pytest.approx(15, abs=1e-3)
    assert found.evidence["degrees"]["1"] == pytest.approx(60, abs=1e-3)
    # The clusters are 80 and 70 apart, mean 75. 160 degrees is a line 20 from that at 0: 20 and 30.
    assert rule.place(_line(160)).cluster == 0
    assert rule.place(_line(62)).cluster == 1
    # Clusters 10 apart: 45 degrees is farther from both.
    assert _rule([0, 10], [0, 1]).place(_line(45)).cluster is None


def test_at_most_ten_clients_of_a_cluster_are_kept_the_most_central() -> None:
    rule = _rule(range(12), [0] * 12)
    # The two at the ends, 0 and 11 degrees, have the largest sums of distances.
    np.testing.assert_allclose(rule.bases, np.stack([_line(degrees) for degrees in range(1, 11)]), rtol=1e-6)
