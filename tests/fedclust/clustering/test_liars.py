"""Clients that lie in what clustering reads: the others keep their groups, and the liar is named."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering import label_groups, loss_traces, prototype_groups
from fedclust.clustering.loss_traces import believable, entries, unlike_others
from fedclust.clustering.placement import LabelRule
from fedclust.clustering.prototype_groups import class_variances
from fedclust.proof import compare, evidence, prove_grouping

LIAR = 2
TRUTH = np.repeat([0, 1], [20, 10])
HONEST = np.arange(30) != LIAR


# -- Losses -------------------------------------------------------------------------------------------------


def test_entries_without_neighbours() -> None:
    # Round 0: quartiles of 0, 1, 2, 3, 100 are 1 and 3; far is beyond 5 · 2 = 10. 100's second nearest is 98
    # away, 0's is 2. Round 1: 50 and 51 have one neighbour each, no second. Round 2 has too few entries.
    values = [0, 1, 2, 3, 100, 0, 1, 2, 3, 2.5, 50, 51, 0, 1, 100]
    rounds, clients = [0] * 5 + [1] * 7 + [2] * 3, [*range(5), *range(7), 0, 1, 4]
    trace = entries(np.array(rounds), np.array(clients), np.array(values, dtype=float))
    # Round 1's quartiles: of 0, 1, 2, 2.5, 3, 50, 51 the positions 1.5 and 4.5: 1.5 and 26.5. Nothing is far.
    assert np.flatnonzero(unlike_others(trace)).tolist() == [4]
    few = entries(np.zeros(9, int), np.arange(9), np.array([0, 1, 2, 3, 4, 5, 6, 50, 51], dtype=float))
    # Quartiles 2 and 6: far is beyond 20. The second nearest of 50 and of 51 are 44 and 45 away.
    assert np.flatnonzero(unlike_others(few)).tolist() == [7, 8]


def test_what_is_left_is_centred_again() -> None:
    # Client 4 is far away in both rounds, client 0 in the second.
    rows = np.array([[0.0, 1, 2, 3, 100], [-90, 1, 2, 3, 100]])
    rounds, clients = np.repeat([0, 1], 5), np.tile(np.arange(5), 2)
    left, kept, alone = believable(entries(rounds, clients, rows.ravel()))
    assert (kept.tolist(), alone.tolist()) == ([0, 1, 2, 3], [4])
    assert left.values.tolist() == [-1.5, -0.5, 0.5, 1.5, -1, 0, 1]  # less 6/4 and 6/3
    assert left.clients.tolist() == [0, 1, 2, 3, 1, 2, 3]


def _losses(lie: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None) -> tuple:
    """Let two groups' losses react in opposite ways to ten averages; return the groups that these show."""
    draws, state = np.random.default_rng(0), loss_traces.Trace(np.arange(30))
    for _ in range(10):
        level = 1 + 0.3 * draws.normal() * (TRUTH - 0.5)
        told = [np.abs(level[client] + draws.normal(0, 0.1, 3)) for client in range(30)]
        if lie is not None:
            told[LIAR] = lie(told[LIAR], draws)
        state = state.recorded(np.arange(30), loss_traces.deviations(told, 3))
    fits = loss_traces.groupings(state, loss_traces.Parameters(), 0)
    found = max(fits, key=lambda each: (each.separation >= 1) * each.num_parts)
    return found.labels, loss_traces.alone([state])


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        (None, False),
        (lambda true, _: 0 * true + 1e6, True),
        (lambda true, draws: draws.uniform(0, 1e6, len(true)), True),
        (lambda true, draws: true + 1e5 * (draws.random() < 0.3), False),  # now and then
        (lambda true, _: 0 * true, True),
        (lambda true, draws: draws.uniform(0, 3, len(true)), False),
        (lambda true, _: np.maximum(2.3 - true, 0), False),
    ],
)
def test_strange_losses(lie: Callable | None, named: bool) -> None:
    found, alone = _losses(lie)
    assert adjusted_rand_score(TRUTH[HONEST], found[HONEST]) == 1
    assert alone == ([LIAR] if named else [])


# -- Label counts -------------------------------------------------------------------------------------------


def _halves() -> np.ndarray:
    """Give 20 clients the classes 0 to 4, and 10 the classes 5 to 9, 50 examples each."""
    draws = np.random.default_rng(71)
    some = draws.multinomial(50, [0.2] * 5, size=30)
    nothing = np.zeros_like(some)
    return np.where((TRUTH == 0)[:, None], np.hstack([some, nothing]), np.hstack([nothing, some]))


_COUNTS = {
    "one class": lambda own, _: np.where(np.arange(10) == 3, own.sum(), 0),
    "a million times": lambda own, _: own * 10**6,
    "all there can be of one": lambda own, _: np.where(np.arange(10) == 3, 2**48, 0),
    "permuted": lambda own, draws: draws.permutation(own),
}


@pytest.mark.parametrize("lie", _COUNTS)
@pytest.mark.parametrize("grouped", [True, False])
def test_false_label_counts(lie: str, grouped: bool) -> None:
    draws = np.random.default_rng(1)
    counts = _halves() if grouped else draws.multinomial(50, [0.1] * 10, size=30)
    counts[LIAR] = _COUNTS[lie](counts[LIAR], draws)
    labels, details = label_groups.assign(counts, label_groups.Parameters(), 0)
    truth = TRUTH if grouped else 0 * TRUTH
    assert adjusted_rand_score(truth[HONEST], labels[HONEST]) == 1
    if grouped or lie != "permuted":  # permuted, its counts are as even as the others'
        assert details.alone.tolist() == [LIAR]


def test_nobody_stands_alone_among_honest_clients() -> None:
    draws = np.random.default_rng(2)
    alike = draws.multinomial(50, [0.1] * 10, size=30)
    skewed = np.array([draws.multinomial(50, draws.dirichlet([0.1] * 10)) for _ in range(30)])
    for counts in (alike, skewed, _halves()):
        _, details = label_groups.assign(counts, label_groups.Parameters(), 0)
        assert details.alone.size == 0


# -- Prototypes ---------------------------------------------------------------------------------------------


def _prototypes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Let two groups name the six classes differently; classes are 4√2 apart, a class's variance is 8."""
    draws = np.random.default_rng(3)
    centres = 4 * np.eye(6, 8)
    names = np.where((TRUTH == 0)[:, None], np.arange(6), np.roll(np.arange(6), 2))
    means = centres[names] + draws.normal(0, np.sqrt(1 / 8), (30, 6, 8))  # of 8 examples each
    return means.astype(np.float32), np.full((30, 6), 8), np.full((30, 6), 8.0)


_PROTOTYPES = {
    "random": lambda m, n, s: (np.random.default_rng(4).normal(0, 2, m.shape), n, s),
    "a thousand times": lambda m, n, s: (1e3 * m, n, s),
    "1e38": lambda m, n, s: (np.sign(m) * 1e38, n, s),
    "another class's": lambda m, n, s: (np.roll(m, 1, axis=0), n, s),
    "scatter": lambda m, n, s: (m, n, 1e6 * s),
    "no scatter": lambda m, n, s: (m, n, 0 * s),
    "counts": lambda m, n, s: (np.roll(m, 1, axis=0), 10**6 * n, s),
}


@pytest.mark.parametrize("lie", _PROTOTYPES)
@pytest.mark.parametrize("grouped", [True, False])
def test_false_prototypes(lie: str, grouped: bool) -> None:
    means, counts, scatter = _prototypes()
    if not grouped:
        means[20:] = np.roll(means[20:], -2, axis=1)  # all use the same names then
    means[LIAR], counts[LIAR], scatter[LIAR] = _PROTOTYPES[lie](means[LIAR], counts[LIAR], scatter[LIAR])
    parameters = prototype_groups.Parameters()
    labels, details = prototype_groups.assign(means, counts, scatter, parameters)
    truth = TRUTH if grouped else 0 * TRUTH
    assert adjusted_rand_score(truth[HONEST], labels[HONEST]) == 1
    assert details.alone.tolist() == ([] if "scatter" in lie else [LIAR])


def test_a_scatter_counts_as_at_most_ten_times_the_median() -> None:
    # Scatter 1, 2, 3 and 1e9 of 3 examples each: the last counts as 25, the median being 2.5.
    found = class_variances(np.full((4, 1), 3), np.array([[1.0], [2.0], [3.0], [1e9]]))
    assert found.tolist() == [(1 + 2 + 3 + 25) / 4]


def test_prototypes_of_a_liar_count_for_ten_clients_in_the_group_that_newcomers_are_compared_with() -> None:
    # Four clients of two rows at 1, one that says to have 1e9 at 11: the median size is 2, it counts as 20.
    # (4 · 2 · 1 + 20 · 11) / 28 = 8.14; it were 11.
    means = np.array([[[1.0]]] * 4 + [[[11.0]]])
    counts, scatter = np.array([[2]] * 4 + [[10**9]]), np.full((5, 1), 1.0)
    clients, _ = prototype_groups.measured(means, counts, scatter)
    np.testing.assert_allclose(clients.pooled(np.zeros(5, dtype=int)).means, 228 / 28)


def test_counts_of_a_liar_count_for_ten_clients_in_the_centre_that_newcomers_are_compared_with() -> None:
    # Sizes 10, 10, 10, 1e9 and 10: the median is 10, the liar's 1e9 count as 100.
    counts = np.array([[9, 1, 0], [9, 1, 0], [9, 1, 0], [0, 10**9, 0], [0, 0, 10]])
    honest = np.array([[9, 1, 0], [9, 1, 0], [9, 1, 0], [0, 100, 0], [0, 0, 10]])
    labels = np.array([0, 0, 0, 0, 1])
    told, meant = LabelRule(counts, labels), LabelRule(honest, labels)
    np.testing.assert_allclose(told.centres()[1], meant.centres()[1])
    rows = label_groups.features(honest)
    np.testing.assert_allclose(told.centres()[1][0], (10 * rows[:3].sum(axis=0) + 100 * rows[3]) / 130)


# -- The proof ----------------------------------------------------------------------------------------------


def test_a_gain_that_one_vote_makes_is_none() -> None:
    # (−9 · 0.1 + 2)/10 = 0.11, and −0.1 without the extremes: not even with p = 1/2.
    rows = np.tile([-0.2, 0.0], 50)
    found = compare([*[evidence(rows)] * 9, evidence(np.full(100, 2.0))])
    assert found.gain == pytest.approx(0.11)
    assert found.gain_of_others == pytest.approx(-0.1)
    assert not found.gains
    assert found.p_value > 0.5


@pytest.mark.parametrize(("liars", "loss", "most"), [(1, 0.0, 0.12), (1, 0.04, 0.01), (3, 0.04, 0.05)])
def test_invented_votes_rarely_make_a_verdict(liars: int, loss: float, most: float) -> None:
    # 30 clients of 10 rows; some say that theirs is better by all there is, for certain. The others' gain has
    # a standard error of 0.3/√300 = 0.017. Three votes of +2 alone make a gain of 0.2.
    draws, fooled = np.random.default_rng(5), 0
    for _ in range(300):
        rows = draws.normal(-loss, 0.3, (30, 10))
        told = {client: evidence(each) for client, each in enumerate(rows)}
        told |= {client: evidence(np.full(10, 2.0)) for client in (0, 10, 25)[:liars]}
        fooled += prove_grouping(TRUTH, told, {}, method="FMCL").verdict.grouped
    assert fooled / 300 <= most


def test_a_client_with_a_thousand_rows_counts_for_three() -> None:
    # 29 clients of ten rows lose 0.1; one of 30 rows, which is all that count of its thousand, gains 2. With
    # as many as it has, the mean would be 1.5.
    found = compare([*[evidence(np.tile([-0.2, 0.0], 5))] * 29, evidence(np.full(30, 2.0))])
    assert found.gain == pytest.approx((-29 + 60) / 320)
    assert not found.gains


def test_two_wide_rows_hide_no_gain_of_the_others() -> None:
    # 29 clients of five rows gain 0.2; the last, of two rows, has differences of −2 and 2.
    honest = [evidence(0.2 + np.array([-0.3, -0.15, 0.0, 0.15, 0.3]))] * 29
    assert compare([*honest, evidence(np.array([-2.0, 2.0]))]).p_value < 1e-4
