import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.clustering.fl_hc import Parameters, assign, distances

# Δ of three clients: the second is the first times 10, the third turns by 90 degrees.
CHANGES = np.array([[1.0, 0], [10, 0], [0, 1]])


@pytest.mark.parametrize(
    ("metric", "expected", "labels"),
    [
        # |10 - 1| = 9; √(1 + 1); √(100 + 1)
        ("l2", [9, np.sqrt(2), np.sqrt(101)], [0, 1, 0]),
        ("l1", [9, 2, 11], [0, 1, 0]),
        ("cosine", [0, 1, 1], [0, 0, 1]),
    ],
)
def test_three_changes(metric, expected: list[float], labels: list[int]) -> None:
    found = distances(CHANGES, metric)
    np.testing.assert_allclose([found[0, 1], found[0, 2], found[1, 2]], expected, atol=1e-12)
    assert assign(CHANGES, Parameters(metric=metric, num_clusters=2))[0].tolist() == labels
    # The threshold reaches the closest pair and no further.
    alike = min(expected)
    assert assign(CHANGES, Parameters(metric=metric, threshold=alike + 0.1))[0].tolist() == labels


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_groups_are_those_of_the_literal_loop(linkage) -> None:
    changes = np.random.default_rng(1).normal(size=(9, 3))
    clusters = [[client] for client in range(9)]
    far = {"single": np.min, "complete": np.max, "average": np.mean}[linkage]
    while len(clusters) > 1:
        apart = {
            (one, other): far(
                [np.linalg.norm(changes[i] - changes[j]) for i in clusters[one] for j in clusters[other]]
            )
            for one in range(len(clusters))
            for other in range(one)
        }
        one, other = min(apart, key=apart.__getitem__)
        if apart[one, other] > 2.0:
            break
        clusters[other] += clusters.pop(one)
    labels = assign(changes, Parameters(metric="l2", linkage=linkage, threshold=2.0))[0]
    assert 1 < len(clusters) < 9
    assert {frozenset(np.flatnonzero(labels == each)) for each in set(labels)} == set(
        map(frozenset, clusters)
    )


@given(st.permutations(range(5)))
def test_numbering_clients_otherwise_changes_nothing(order: list[int]) -> None:
    changes = np.array([[1.0, 0], [2, 0.3], [-1, 0.1], [-2, 0], [3, 0.2]])
    labels, whole = assign(changes[order], Parameters())[0], assign(changes, Parameters())[0]
    assert len(set(whole.tolist())) == 2
    np.testing.assert_array_equal(np.equal.outer(labels, labels), np.equal.outer(whole[order], whole[order]))
