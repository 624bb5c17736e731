import numpy as np
import pytest

from fedclust.results.plots.cluster_tree import cluster_tree, stages

SPLITS = [
    {"round": 0, "assignment": [0, 0, 0, 0, 0]},
    {"round": 10, "assignment": [0, 1, 0, 1, 1]},
    {"round": 20, "assignment": [0, 1, 0, 2, 1]},
]


def test_stages_by_hand() -> None:
    first, second, third = stages(SPLITS, 40)
    assert [(each.start, each.end) for each in (first, second, third)] == [(0, 10), (10, 20), (20, 40)]
    # Five clients are 5 high; every gap is 6 % of them, 0.3. They are centred on 0.
    assert first.tops == {0: -2.5}
    assert second.tops == pytest.approx({0: -2.65, 1: -2.65 + 2.3})
    # Clusters 1 and 2 were one: they stay below cluster 0.
    assert third.tops == pytest.approx({0: -2.8, 1: -2.8 + 2.3, 2: -2.8 + 2.3 + 2.3})


def test_of_two_changes_in_one_round_the_later_one_lasted() -> None:
    changes = [*SPLITS[:2], {"round": 10, "assignment": [1, 1, 1, 0, 0]}]
    assert stages(changes, 12)[1].assignment.tolist() == [1, 1, 1, 0, 0]


def test_a_change_after_the_last_round_has_a_bar() -> None:
    last = stages(SPLITS, 20)[-1]
    assert (last.start, last.end) == (20, 21)


def test_bars_are_as_high_as_their_clusters_and_labelled() -> None:
    axes = cluster_tree(SPLITS, 40).axes[0]
    boxes = [bar.get_paths()[0].get_extents() for bar in axes.collections]
    np.testing.assert_allclose([box.height for box in boxes], [5, 2, 3, 2, 2, 1])
    # A split takes 4 % of the rounds to each side: 1.6.
    np.testing.assert_allclose([boxes[0].x0, boxes[0].x1, boxes[-1].x0, boxes[-1].x1], [0, 8.4, 21.6, 40])
    labels = [text.get_text() for text in axes.texts]
    assert {"0: 2 clients", "1: 2 clients", "2: 1 client"} <= set(labels)
    # 0 to 0 and 1; then 0 to 0, 1 to 1 and 2.
    assert len(axes.patches) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], r"of the same clients, got numbers of clients \[\]"),
        ([SPLITS[0], {"round": 1, "assignment": [0]}], r"numbers of clients \[1, 5\]"),
        (
            [{"round": moment, "assignment": [moment]} for moment in range(32)],
            "at most 30 to be drawn, got 31",
        ),
    ],
)
def test_what_cannot_be_drawn(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        cluster_tree(changes, 40)
