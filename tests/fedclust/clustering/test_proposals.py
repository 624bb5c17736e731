import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.clustering import proposals
from fedclust.clustering.loss_traces import Trace, deviations
from fedclust.clustering.proposals import Proposal, by_labels, by_prototypes, by_updates, distinct, place
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


@pytest.mark.parametrize(("sizes", "position"), [((3, 2), 0), ((20, 10), 0), ((10, 10, 10), 1)])
def test_updates_show_planted_groups(sizes: tuple[int, ...], position: int) -> None:
    for seed in range(20):
        updates, groups = planted(np.random.default_rng(seed), sizes, 0.7)
        found = by_updates(updates, 2)
        np.testing.assert_array_equal(found[position].labels, groups)
        assert {each.source for each in found} == {"updates"}


@given(st.integers(0, 1000), st.integers(4, 12))
def test_updates_do_not_depend_on_numbers_nor_scale(seed: int, number: int) -> None:
    draws = np.random.default_rng(seed)
    updates, order = draws.normal(size=(number, 16)), draws.permutation(number)
    plain = by_updates(updates, 2)
    moved = by_updates(1000 * updates[order], 2)
    assert len(plain) == len(moved)
    for one, other in zip(plain, moved, strict=True):
        np.testing.assert_array_equal(in_order_of_appearance(one.labels[order]), other.labels)


def test_an_update_of_zero_is_no_error() -> None:
    assert all(np.isfinite(each.labels).all() for each in by_updates(np.zeros((5, 3)), 2))


def losses_of(groups: np.ndarray, rounds: int, draws: np.random.Generator) -> Trace:
    """Make traces whose groups' losses go up and down in opposite turns; one more client never took part."""
    trace = Trace(np.arange(len(groups) + 1))
    for _ in range(rounds):
        swing = draws.normal()
        losses = 1 + 0.2 * np.where(groups == 0, swing, -swing) + 0.02 * draws.normal(size=len(groups))
        trace = trace.recorded(np.arange(len(groups)), deviations(np.abs(losses)[:, None], 1))
    return trace


def test_losses_show_planted_groups_and_who_never_took_part_is_unknown() -> None:
    groups = np.array([0] * 6 + [1] * 6)
    (two, *_) = proposals.by_losses(losses_of(groups, 8, np.random.default_rng(0)), 2, seed=0)
    assert two.labels.tolist() == [*groups.tolist(), -1]


def test_nothing_comes_of_no_losses() -> None:
    assert proposals.by_losses(Trace(np.arange(6)), 2, seed=0) == []


def test_labels_propose_nothing_for_alike_clients() -> None:
    draws = np.random.default_rng(3)
    alike = draws.multinomial(50, [0.25] * 4, size=12)
    assert by_labels(alike, seed=0)[0] == []


def test_labels_show_planted_groups_and_who_has_none_is_unknown() -> None:
    counts = np.array([[40, 0, 1], [0, 40, 1], [38, 1, 0], [1, 38, 0], [0, 0, 0], [41, 0, 0], [0, 39, 1]])
    found, _ = by_labels(counts, seed=0)
    assert found[0].labels.tolist() == [0, 1, 0, 1, -1, 0, 1]


def test_labels_name_who_says_to_have_far_more_rows_than_all_others() -> None:
    counts = np.array([[50 + step, 50, 50, 50 - step] for step in range(12)])  # each as near to the next
    counts[4] = 0  # who has no rows is not compared, and moves nobody's place
    counts[9] *= 2000
    _, alone = by_labels(counts, seed=0)
    assert alone.tolist() == [9]


def test_prototypes_show_planted_groups_and_nothing_for_alike_clients() -> None:
    draws = np.random.default_rng(0)
    groups = np.array([0, 1] * 6)
    centres = 5 * draws.normal(size=(2, 3, 8))
    counts = np.full((12, 3), 20)
    scatter = np.full((12, 3), 8.0)  # of 8 dimensions with variance 1
    apart = centres[groups] + draws.normal(size=(12, 3, 8)) / np.sqrt(20)
    alike = centres[[0] * 12] + draws.normal(size=(12, 3, 8)) / np.sqrt(20)
    (found,), alone = by_prototypes(apart, counts, scatter, 2)
    assert alone.tolist() == []
    np.testing.assert_array_equal(found.labels, groups)
    assert by_prototypes(alike, counts, scatter, 2)[0] == []
    alike[7] += 100
    assert by_prototypes(alike, counts, scatter, 2)[1].tolist() == [7]


def test_many_groups_of_prototypes_are_also_put_in_two_and_three() -> None:
    # Classes are 10 apart from 0 along axes of their own, squared distance 200. Groups 0 and 1, and 2 and 3,
    # are 9 apart (81), these pairs 20 (400 and more).
    draws = np.random.default_rng(1)
    groups = np.repeat(np.arange(4), 3)
    axes = np.eye(8)
    moved = np.stack([0 * axes[3], 9 * axes[3], 20 * axes[4], 20 * axes[4] + 9 * axes[5]])
    prototypes = 10 * axes[:3] + moved[groups][:, None] + draws.normal(size=(12, 3, 8)) / 10
    found, _ = by_prototypes(prototypes, np.full((12, 3), 100), np.full((12, 3), 8.0), 2)
    by_number = {each.num_parts: each.labels.tolist() for each in found}
    assert by_number[4] == groups.tolist()
    assert by_number[2] == (groups // 2).tolist()
    assert set(by_number) == {2, 3, 4}


def labelled(source: str, *labels: int) -> Proposal:
    return Proposal(source, np.array(labels))


def test_equal_proposals_count_once_whatever_their_numbers() -> None:
    found = distinct(
        [
            labelled("updates", 0, 0, 1, 1),
            labelled("losses", 1, 1, 0, 0),  # the same, numbered otherwise
            labelled("labels", 0, 1, 1, 0),
            labelled("labels", 0, 1, 1, 1),  # a part of one
            labelled("labels", 0, 0, 0, 0),  # no grouping
            labelled("prototypes", 0, 1, 0, 1),
        ],
        min_size=2,
        most=2,
    )
    kept = [(each.source, each.labels.tolist()) for each in found]
    assert kept == [("updates", [0, 0, 1, 1]), ("labels", [0, 1, 1, 0])]


def test_every_part_must_have_clients_that_vote() -> None:
    # Of the second part only client 2 has held-out rows: nobody would have shown that its model is better.
    votes = np.array([True, True, True, False, True])
    one, other = labelled("updates", 0, 0, 1, 1, 0), labelled("losses", 0, 0, 1, -1, 1)
    assert distinct([one, other], 2, 9, votes) == [other]


def test_proposals_are_equal_where_they_agree_on_whom_both_know() -> None:
    known = labelled("updates", 0, 0, 1, 1, -1)
    same = labelled("losses", 1, 1, 0, -1, 0)
    assert distinct([known, same], 1, 9) == [known]
    # One that knows nobody of the other's second part is another grouping.
    other = labelled("losses", 0, 0, -1, -1, 1)
    assert distinct([known, other], 1, 9) == [known, other]


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
