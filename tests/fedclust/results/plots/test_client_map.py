import numpy as np
import pytest
from matplotlib.axes import Axes

from fedclust.results.plots.client_map import client_map, distances_of, places

# A rectangle of 3 by 4, whose diagonals are 5: it fits the plane.
CORNERS = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
RECTANGLE = np.linalg.norm(CORNERS[:, None] - CORNERS[None], axis=-1)
CLUSTERS = np.array([0, 0, 5, 5])


def between(found: np.ndarray) -> np.ndarray:
    return np.linalg.norm(found[:, None] - found[None], axis=-1)


def test_distances_that_fit_the_plane_are_kept() -> None:
    found, stress = places(RECTANGLE)
    np.testing.assert_allclose(between(found), RECTANGLE, atol=0.01)
    assert stress < 0.01
    np.testing.assert_array_equal(places(RECTANGLE)[0], found)


def test_stress_of_four_points_as_far_from_each_other() -> None:
    found, stress = places(1.0 - np.eye(4))
    off = between(found)[~np.eye(4, dtype=bool)]
    assert stress == pytest.approx(np.sqrt(((off - 1) ** 2).sum() / 12))  # 12 ordered pairs of distance 1
    assert stress > 0.1


def test_larger_is_more_alike_or_not() -> None:
    alike = np.array([[1.0, 0.75, 0.5], [0.25, 1.0, 0.5], [0.5, 0.5, 1.0]])
    # Off the diagonal the largest is 0.75; a pair is the mean of its two entries: (0 + 0.5) / 2.
    np.testing.assert_allclose(
        distances_of("affinity", alike), [[0, 0.25, 0.25], [0.25, 0, 0.25], [0.25, 0.25, 0]]
    )
    evidence = np.array([[np.nan, -2.0, 3.0], [-2.0, np.nan, 0.0], [3.0, 0.0, np.nan]])
    np.testing.assert_allclose(distances_of("evidence", evidence), [[0, 0, 5], [0, 0, 2], [5, 2, 0]])
    np.testing.assert_allclose(distances_of("distances", RECTANGLE), RECTANGLE)


def drawn(axes: Axes) -> dict[tuple[str, str], int]:
    return {
        (line.get_markerfacecolor(), line.get_marker()): len(line.get_xdata()) for line in axes.get_lines()
    }


def test_colours_are_clusters_and_markers_are_known_groups() -> None:
    figure = client_map(RECTANGLE, CLUSTERS, np.array([0, 1, 1, 1]))
    axes = figure.axes[0]
    assert drawn(axes) == {("#0072B2", "o"): 1, ("#0072B2", "s"): 1, ("#D55E00", "s"): 2}
    assert [text.get_text() for text in axes.texts] == ["0", "5"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["cluster 0 (2)", "cluster 5 (2)", "group 0", "group 1"]
    at = np.concatenate([np.array(line.get_data()).T for line in axes.get_lines()])
    np.testing.assert_allclose(np.sort(between(at), axis=1), np.sort(RECTANGLE, axis=1), atol=0.01)


def test_without_groups_each_cluster_has_its_own_marker() -> None:
    axes = client_map(RECTANGLE, CLUSTERS).axes[0]
    assert drawn(axes) == {("#0072B2", "o"): 2, ("#D55E00", "s"): 2}
    assert not axes.texts


def test_a_number_covers_no_client() -> None:
    star = np.array([[0.0, 0.0], [1, 0], [-1, 0], [0, 1], [0, -1.0]])
    axes = client_map(between(star), np.array([0, 0, 0, 0, 1]), np.zeros(5, dtype=int)).axes[0]
    at = np.concatenate([np.array(line.get_data()).T for line in axes.get_lines()])
    step = 0.17 / 3.4 * np.ptp(at, axis=0).max()
    for text in axes.texts:
        assert np.linalg.norm(at - text.get_position(), axis=1).min() >= step * 0.999


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: distances_of("distances", [[0, np.nan], [1, 0]]),
            "every pair of clients, 1 entries have none",
        ),
        (
            lambda: distances_of("confusion", np.eye(2)),
            "name must start with one of interaction, .* got confusion",
        ),
        (lambda: distances_of("distances", np.ones(3)), r"must have shape \(clients, clients\), got \(3,\)"),
        (lambda: places(np.zeros((2, 2))), "must have 3 to 1500 clients, got 2"),
        (lambda: places(np.zeros((3, 3))), "must not all be 0"),
        (lambda: client_map(RECTANGLE, np.zeros(3, dtype=int)), r"got \(4, 4\), \(3,\)"),
    ],
)
def test_what_cannot_be_drawn(draw, message) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
