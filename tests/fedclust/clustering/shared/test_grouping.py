import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering

from fedclust.clustering.shared import grouping
from fedclust.clustering.shared.grouping import Grouping, agglomerate, cosine_distances, group, lp_distances


def test_clusters_are_numbered_as_they_first_appear() -> None:
    np.testing.assert_array_equal(grouping.in_order_of_appearance([7, 2, 7, 9, 2]), [0, 1, 0, 2, 1])
    np.testing.assert_array_equal(grouping.in_order_of_appearance([]), [])


# Points 0, 1, 3 and 7 on a line.
LINE = np.abs(np.subtract.outer([0.0, 1.0, 3.0, 7.0], [0.0, 1.0, 3.0, 7.0]))


def test_agglomeration_merges_the_closest_first() -> None:
    np.testing.assert_array_equal(agglomerate(LINE, 4, None, "average"), [0, 1, 2, 3])
    np.testing.assert_array_equal(agglomerate(LINE, 3, None, "average"), [0, 0, 1, 2])
    np.testing.assert_array_equal(agglomerate(LINE, 2, None, "average"), [0, 0, 0, 1])
    np.testing.assert_array_equal(agglomerate(LINE, 1, None, "average"), [0, 0, 0, 0])


@pytest.mark.parametrize(("linkage", "second"), [("single", 2.0), ("average", 2.5), ("complete", 3.0)])
def test_clusters_exactly_a_threshold_apart_merge(linkage, second: float) -> None:
    # {0, 1} and {3} are 2, (3 + 2) / 2 or 3 apart.
    np.testing.assert_array_equal(agglomerate(LINE, None, second, linkage), [0, 0, 0, 1])
    np.testing.assert_array_equal(agglomerate(LINE, None, np.nextafter(second, 0), linkage), [0, 0, 1, 2])
    np.testing.assert_array_equal(agglomerate(LINE, None, 0.0, linkage), [0, 1, 2, 3])


@pytest.mark.parametrize("number", [1, 2])
def test_few_clients_are_one_cluster(number: int) -> None:
    assert agglomerate(np.zeros((number, number)), None, 1.0, "average").tolist() == [0] * number
    assert group(LINE[:number, :number], Grouping())[0].tolist() == [0] * number


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_cuts_of_one_tree_are_scikit_learns_clusters(linkage: grouping.Linkage) -> None:
    points = np.random.default_rng(2).normal(size=(25, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    pairs, heights = grouping.merges(distances, linkage)
    assert (np.diff(heights) >= 0).all()
    for number in range(1, 26):
        tree = AgglomerativeClustering(number, metric="precomputed", linkage=linkage)
        expected = grouping.in_order_of_appearance(tree.fit_predict(distances))
        np.testing.assert_array_equal(grouping.cut(pairs, number), expected)


# Four clients on a line, at 0, 1, 10 and 11.
PAIRS = np.abs(np.subtract.outer([0.0, 1.0, 10.0, 11.0], [0.0, 1.0, 10.0, 11.0]))


def test_the_silhouette_chooses_the_number() -> None:
    labels, details = group(PAIRS, Grouping())
    scores = details.scores
    assert labels.tolist() == [0, 0, 1, 1]
    # The outer two have 1 at home and (10 + 11)/2 abroad, the inner two 1 and (9 + 10)/2.
    assert scores[2] == pytest.approx(1 - (1 / 10.5 + 1 / 9.5) / 2)
    # Three clusters: two clients alone, who count 0; the pair {0, 1} has 10 and 9, or 11 and 10, abroad.
    assert scores[3] == pytest.approx((2 - (1 / 10 + 1 / 9)) / 4)


def test_the_least_number_that_is_warned_of_is_the_one_chosen() -> None:
    alike = np.ones((3, 3)) - np.eye(3)
    assert [group(alike[:number, :number], Grouping())[0].max() + 1 for number in (2, 3)] == [1, 2]
    assert Grouping().cautions()[0].endswith("chooses the number, at least 2 for three or more clients")
    guarded = Grouping(min_silhouette=0.5)  # 0 for clients that are all as far apart
    assert group(alike, guarded)[0].tolist() == [0, 0, 0]
    assert guarded.cautions()[0].endswith("the mean silhouette chooses the number")


def test_no_number_that_is_good_enough_is_one_cluster() -> None:
    assert group(PAIRS, Grouping(min_silhouette=0.9))[0].tolist() == [0, 0, 0, 0]
    assert group(1 - np.eye(5), Grouping(min_silhouette=0.01))[0].tolist() == [0] * 5  # all silhouettes are 0


@pytest.mark.parametrize(
    ("grouping", "labels"),
    [
        (Grouping(num_clusters=1), [0, 0, 0, 0]),
        (Grouping(num_clusters=9), [0, 1, 2, 3]),  # no more than clients
        (Grouping(threshold=0.5), [0, 1, 2, 3]),
        (Grouping(threshold=1), [0, 0, 1, 1]),
        (Grouping(threshold=9, linkage="single"), [0, 0, 0, 0]),
        (Grouping(threshold=10.9, linkage="complete"), [0, 0, 1, 1]),
        (Grouping(threshold=10, linkage="average"), [0, 0, 0, 0]),  # (9 + 10 + 10 + 11) / 4
        (Grouping(threshold=9.9, linkage="average"), [0, 0, 1, 1]),
    ],
)
def test_a_number_or_a_threshold_decides_where_it_is_given(grouping: Grouping, labels: list[int]) -> None:
    found, details = group(PAIRS, grouping)
    assert found.tolist() == labels
    assert details.scores == {}


def test_cosine_distances() -> None:
    # (1, 0) against (0, 2), (-3, 0), (1, 1) and nothing: 1 - 0, 1 - (-1), 1 - 1/√2, and 1.
    found = cosine_distances(np.array([[1.0, 0], [0, 2], [-3, 0], [1, 1], [0, 0]]))
    np.testing.assert_allclose(found[0], [0, 1, 2, 1 - 1 / np.sqrt(2), 1])
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diagonal(found), 0)


def test_cosine_distances_of_many_clients_are_those_of_few() -> None:
    vectors = np.random.default_rng(0).normal(size=(150, 3))
    whole, part = cosine_distances(vectors), cosine_distances(vectors[:9])
    np.testing.assert_allclose(whole[:9, :9], part, atol=1e-12)


def test_manhattan_and_euclidean_distances() -> None:
    assert lp_distances(np.array([[0.0, 0], [3, 4]]), 1)[0, 1] == 7
    assert lp_distances(np.array([[0.0, 0], [3, 4]]), 2)[0, 1] == 5


def test_clients_that_did_not_answer_go_with_the_largest_group() -> None:
    distances = np.array([[0.0, 5, 1], [5, 0, 5], [1, 5, 0]])
    assignment, matrix = grouping.fill_in(np.array([0, 1, 0]), distances, np.array([1, 3, 4]), 5)
    assert assignment.tolist() == [0, 0, 0, 1, 0]
    assert matrix[1, 3] == matrix[3, 4] == 5
    assert matrix[1, 4] == 1
    assert np.isnan(matrix[[0, 2]]).all()


def test_positions_of_members() -> None:
    members = np.array([2, 5, 9])
    assert grouping.positions_of(np.array([9, 2]), members).tolist() == [2, 0]
    for stranger in (1, 4, 10):
        with pytest.raises(ValueError, match=f"members of the cluster, got client {stranger}"):
            grouping.positions_of(np.array([2, stranger]), members)
