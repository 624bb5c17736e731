import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.clustering import proposals
from fedclust.clustering.proposals import MOST_PROPOSALS, by_updates, is_large_enough, lone, place, spread
from fedclust.clustering.shared.grouping import in_order_of_appearance

# Seven points on a line: two pairs close together, a triple, and everything else far apart.
LINE = np.array([0.0, 1.0, 10.0, 11.0, 100.0, 101.0, 102.0])


def on_a_line(points: np.ndarray) -> np.ndarray:
    return np.abs(points[:, None] - points[None])


def test_a_cut_in_two_and_in_three() -> None:
    in_two, in_three = [0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2, 2]
    found = proposals.cuts(on_a_line(LINE), [2, 3, 4], 2)  # seven clients do not make four parts of two
    assert {number: labels.tolist() for number, labels in found.items()} == {2: in_two, 3: in_three}
    assert proposals.cuts(on_a_line(LINE), [3], 2)[3].tolist() == in_three
    assert not proposals.cuts(on_a_line(LINE[:3]), [2], 2)


def test_an_odd_client_does_not_take_the_place_of_a_part() -> None:
    # A plain cut in two would be {1000} and the rest; it joins the nearest large part.
    odd = np.append(LINE, 1000.0)
    assert proposals.cuts(on_a_line(odd), [2], 2)[2].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert proposals.cuts(on_a_line(odd), [2], 1)[2].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def planted(draws: np.random.Generator, sizes: tuple[int, ...], strength: float) -> tuple:
    """Draw updates of length about √2: a common direction, a group's of some strength, and noise."""
    width = 512
    units = draws.normal(size=(1 + len(sizes), width)) / np.sqrt(width)
    groups = draws.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = draws.normal(size=(len(groups), width)) / np.sqrt(width)
    return units[0] + strength * units[1 + groups] + noise, in_order_of_appearance(groups)


@pytest.mark.parametrize("sizes", [(3, 2), (20, 10), (10, 10, 10)])
def test_updates_show_planted_groups_first(sizes: tuple[int, ...]) -> None:
    for seed in range(20):
        updates, groups = planted(np.random.default_rng(seed), sizes, 0.7)
        found = by_updates(updates, 2)
        np.testing.assert_array_equal(found[0], groups)
        assert len(found) <= MOST_PROPOSALS


@given(st.integers(0, 1000), st.integers(4, 12))
def test_updates_do_not_depend_on_numbers_nor_scale(seed: int, number: int) -> None:
    draws = np.random.default_rng(seed)
    updates, order = draws.normal(size=(number, 16)), draws.permutation(number)
    plain = by_updates(updates, 2)
    moved = by_updates(1000 * updates[order], 2)
    assert len(plain) == len(moved)
    for one, other in zip(plain, moved, strict=True):
        np.testing.assert_array_equal(in_order_of_appearance(one[order]), other)


def test_an_update_of_zero_is_no_error() -> None:
    assert all(np.isfinite(labels).all() for labels in by_updates(np.zeros((5, 3)), 2))


def test_four_groups_are_also_put_in_two_and_three() -> None:
    # Groups 0 and 1, and 2 and 3, have a cosine of 0.8 and those of different pairs 0: four parts fit best.
    centres = np.array([[1, 0, 0, 0], [0.8, 0.6, 0, 0], [0, 0, 1, 0], [0, 0, 0.8, 0.6]])
    four, two, three = by_updates(np.repeat(centres, 3, axis=0), 2)
    assert two.tolist() == [0] * 6 + [1] * 6
    assert three.max() == 2
    assert four.tolist() == np.repeat(range(4), 3).tolist()


def test_a_client_unlike_all_others_stands_alone_if_it_has_rows_to_show_it() -> None:
    updates = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]])
    assert lone(updates, np.array([5, 5, 5, 30])) == 3
    assert lone(updates, np.array([50, 50, 50, 29])) is None
    # Two against two: the last merge is of groups.
    assert lone(updates * [[1], [1], [-1], [1]], np.full(4, 99)) is None
    assert lone(updates[:2], np.full(2, 99)) is None


def test_every_part_must_have_clients_that_vote() -> None:
    labels = np.array([0, 0, 1, 1, -1])
    assert is_large_enough(labels, 2)
    assert not is_large_enough(labels, 3)
    # Of the second part only client 2 has held-out rows: nobody would have shown that its model is better.
    assert not is_large_enough(labels, 2, np.array([True, True, True, False, True]))
    assert is_large_enough(labels, 2, np.array([True, True, True, True, False]))
    # Nobody of the last part votes.
    assert not is_large_enough(np.array([0, 1, 2]), 1, np.array([True, True, False]))


def test_who_did_not_answer_is_in_no_part() -> None:
    assert spread(np.array([0, 1, 0]), np.array([4, 1, 2]), 5).tolist() == [-1, 1, 0, -1, 0]


def test_unknown_clients_join_the_part_that_fits_or_the_largest() -> None:
    labels = np.array([0, 1, 1, -1, -1, -1])
    assert place(labels, {3: 0, 4: 1}).tolist() == [0, 1, 1, 0, 1, 1]
    assert labels.tolist() == [0, 1, 1, -1, -1, -1]


def test_moves_that_leave_a_cluster_too_small_are_undone_until_none_is() -> None:
    # 0 leaves cluster 0, which keeps one of two; with 0 back there, cluster 1, which 3 and 4 leave, has one.
    before, wanted = np.array([0, 0, 1, 1, 1, 2, 2]), {0: 1, 3: 2, 4: 2}
    votes = np.ones(7, dtype=bool)
    assert proposals.moved(before, wanted, votes, 2).tolist() == before.tolist()
    assert proposals.moved(before, wanted, votes, 1).tolist() == [1, 0, 1, 2, 2, 2, 2]
    assert proposals.moved(before, wanted).tolist() == [1, 0, 1, 2, 2, 2, 2]
    # Cluster 1 keeps three clients without 3, and one that votes.
    votes[[2, 5]] = False
    assert proposals.moved(before, {3: 2, 5: 1}, votes, 2).tolist() == before.tolist()
