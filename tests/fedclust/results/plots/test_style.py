import numpy as np
import pytest

from fedclust.results.plots.style import cluster_edges, new_figure, sparse_ticks


@pytest.mark.parametrize(
    ("labels", "most", "ticks"),
    [(3, 3, [0, 1, 2]), (4, 3, [0, 2]), (7, 3, [0, 5]), (100, 4, [0, 50]), (0, 3, [])],
)
def test_ticks_at_round_steps(labels: int, most: int, ticks: list[int]) -> None:
    axis = new_figure(2, 2).subplots().xaxis
    sparse_ticks(axis, [f"n{place}" for place in range(labels)], most)
    assert axis.get_ticklocs().tolist() == ticks
    assert [label.get_text() for label in axis.get_ticklabels()] == [f"n{place}" for place in ticks]


def test_where_clusters_start_and_end() -> None:
    assert cluster_edges(np.array([0, 0, 3, 5, 5])).tolist() == [0, 2, 3, 5]
    assert cluster_edges(np.array([2])).tolist() == [0, 1]
