from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from fedclust.clustering.shared.grouping import (
    Linkage,
    agglomerate,
    check_distances,
    check_linkage,
    cut,
    in_order_of_appearance,
    merges,
    silhouette,
)


def test_clusters_are_numbered_as_they_first_appear() -> None:
    np.testing.assert_array_equal(in_order_of_appearance([7, 2, 7, 9, 2]), [0, 1, 0, 2, 1])
    np.testing.assert_array_equal(in_order_of_appearance([]), [])


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_numbering_keeps_the_grouping(labels: list[int]) -> None:
    renamed = in_order_of_appearance(labels)
    before, after = np.array(labels), np.asarray(renamed)
    np.testing.assert_array_equal(before[:, None] == before, after[:, None] == after)
    # The next new cluster is always the next number.
    assert all(label <= max(after[:i], default=-1) + 1 for i, label in enumerate(after))


# Points 0, 1, 3 and 7 on a line.
LINE = np.abs(np.subtract.outer([0.0, 1.0, 3.0, 7.0], [0.0, 1.0, 3.0, 7.0]))


def test_agglomeration_merges_the_closest_first() -> None:
    np.testing.assert_array_equal(agglomerate(LINE, 4, None, "average"), [0, 1, 2, 3])
    np.testing.assert_array_equal(agglomerate(LINE, 3, None, "average"), [0, 0, 1, 2])
    np.testing.assert_array_equal(agglomerate(LINE, 2, None, "average"), [0, 0, 0, 1])
    np.testing.assert_array_equal(agglomerate(LINE, 1, None, "average"), [0, 0, 0, 0])


@pytest.mark.parametrize(("linkage", "second"), [("single", 2.0), ("average", 2.5), ("complete", 3.0)])
def test_clusters_exactly_a_threshold_apart_merge(linkage: Any, second: float) -> None:
    # {0, 1} and {3} are 2, (3 + 2) / 2 or 3 apart.
    np.testing.assert_array_equal(agglomerate(LINE, None, second, linkage), [0, 0, 0, 1])
    np.testing.assert_array_equal(agglomerate(LINE, None, np.nextafter(second, 0), linkage), [0, 0, 1, 2])
    np.testing.assert_array_equal(agglomerate(LINE, None, 0.0, linkage), [0, 1, 2, 3])


def test_one_client_is_one_cluster() -> None:
    np.testing.assert_array_equal(agglomerate(np.zeros((1, 1)), None, 1.0, "average"), [0])


def test_silhouette_of_two_pairs() -> None:
    # Points 0, 1 | 3, 7. a: 1, 1, 4, 4. b: 5, 4, 2.5, 6.5. (b - a) / max: 4/5, 3/4, -1.5/4, 2.5/6.5.
    expected = (4 / 5 + 3 / 4 - 1.5 / 4 + 2.5 / 6.5) / 4
    assert silhouette(LINE, np.array([0, 0, 1, 1])) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"scores must have shape \(clients, clients\), got shape \(2, 3\)"),
        (np.zeros((0, 0)), "scores must have shape"),
        ([[0.0, np.nan], [np.nan, 0.0]], "scores must be finite and >= 0, got nan"),
        ([[0.0, -1.0], [-1.0, 0.0]], r"scores must be finite and >= 0, got -1\.0"),
        ([[0.5, 1.0], [1.0, 0.0]], r"scores must be 0 on the diagonal, got 0\.5"),
        ([[0.0, 1.0], [3.0, 0.0]], r"scores must be symmetric, got differences up to 2\.0"),
    ],
)
def test_what_is_no_distance_matrix_is_refused(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_distances(matrix, "scores")


def test_unknown_linkage_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="must be one of single, complete, average, got 'ward'"):
        check_linkage("ward")


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_cuts_of_one_tree_are_scikit_learns_clusters(linkage: Linkage) -> None:
    points = np.random.default_rng(2).normal(size=(25, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    pairs, heights = merges(distances, linkage)
    assert (np.diff(heights) >= 0).all()
    for number in range(1, 26):
        tree = AgglomerativeClustering(number, metric="precomputed", linkage=linkage)
        expected = in_order_of_appearance(tree.fit_predict(distances))
        np.testing.assert_array_equal(cut(pairs, number), expected)
