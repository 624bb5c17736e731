import numpy as np
import pytest

from fedclust.clustering import auto
from fedclust.clustering.auto import Parameters, level_of_look, most_promising, most_spending, reason
from fedclust.proof import Comparison, compare, evidence


def test_a_cluster_must_make_two_parts() -> None:
    # Parts of two: five hospitals are looked at, three are not.
    assert [Parameters().can_split(number) for number in (2, 3, 4, 5)] == [False, False, True, True]
    assert not Parameters(min_cluster_size=3).can_split(5)


@pytest.mark.parametrize(
    ("warmup", "rounds", "due"),
    [
        (10, 130, [10, 20, 40, 80]),
        (10, 80, [10, 20, 40]),  # nothing could be tried after the last round
        (10, 81, [10, 20, 40, 80]),
        (10, 10, []),
        (1, 3, [1, 2]),
    ],
)
def test_looks_come_after_twice_as_many_rounds_each(warmup: int, rounds: int, due: list[int]) -> None:
    assert auto.due_rounds(warmup, rounds) == due


def test_a_look_whose_trials_cannot_end_does_not_begin() -> None:
    # A trial takes 1 + 6 rounds: that of the third look ends in round 47.
    assert [auto.due_rounds(10, rounds, probation=6) for rounds in (47, 46)] == [[10, 20, 40], [10, 20]]


def test_looks_share_what_is_left_of_the_level() -> None:
    # Three looks have a third each; of what a kept grouping leaves, later ones have equal parts.
    assert level_of_look(0.06, 3) == 0.02
    assert level_of_look(0.06 - 0.02, 2) == pytest.approx(0.02)
    assert level_of_look(0.06, 2) == 0.03
    assert level_of_look(0.06, 0) == 0.06


def test_clusters_are_paired_that_are_nearest_to_each_other() -> None:
    places = {1: 0.0, 2: 1.0, 5: 3.0, 6: 9.0, 7: 9.5}  # 5 is nearest to 2, which is nearer to 1
    assert auto.nearest_pairs({each: np.array([place]) for each, place in places.items()}) == [(1, 2), (6, 7)]
    assert auto.nearest_pairs({3: np.zeros(2)}) == []


def test_most_spending_by_hand() -> None:
    # 10 clients, half of them in a round: 5. One look, after round 2; it asks 10 clients. Then 4 proposals
    # train for one round and 2 finalists and a client alone for 3 more.
    parameters = Parameters(warmup=2, probation=3)
    first = 10 + (4 * 1 + 3 * 3) * 5
    assert most_spending(10, 0.5, 6, parameters) == auto.Spending(first, first / 5, 1)
    # After round 4 a second look, at 10 // 4 = 2 clusters at most. There may be 10 // 2 = 5 and 2 clients
    # alone: cohorts of 5 + 7 clients, but there are 10. Pairs of clusters train in all 4 rounds.
    second = 10 + (4 * 1 + 3 * 3 + 4) * 10
    assert most_spending(10, 0.5, 8, parameters) == auto.Spending(first + second, (first + second) / 5, 2)


def test_a_large_cluster_is_asked_in_part() -> None:
    # 1,000 clients, 50 in a round: 100 are asked, then (4 + 3 * 6) * 50 train; of four proposals no more
    # than four are finalists.
    assert most_spending(1000, 0.05, 20, Parameters()).trainings == 100 + 22 * 50
    assert most_spending(1000, 0.05, 20, Parameters(finalists=9)).trainings == 100 + 28 * 50


def test_too_few_clients_or_rounds_cost_nothing() -> None:
    assert most_spending(3, 1.0, 100, Parameters()) == auto.Spending(0, 0.0, 0)
    assert most_spending(30, 1.0, 10, Parameters()).trainings == 0


def comparison(p_value: float, gain: float = 0.1, clients: int = 5) -> Comparison:
    return Comparison(gain, p_value, clients, clients, 5 * clients, gain, p_value)


NOBODY = compare([])


def test_the_smallest_p_values_go_on_if_they_gained() -> None:
    tried = [comparison(0.4), comparison(0.01), comparison(0.6, gain=-0.1), comparison(0.02), NOBODY]
    assert most_promising(tried, [2] * 5, 2) == [1, 3]
    assert most_promising(tried, [2] * 5, 4) == [0, 1, 3]  # no loss and no silence goes on


def test_one_vote_does_not_keep_real_groups_from_going_on() -> None:
    # 29 clients gain 0.01 by the first grouping and lose as much by the second; the last votes −2 and +2. The
    # means of all are (0.29 − 2)/30 = −0.057 and 0.057.
    gains = ([0.01] * 29 + [-2.0], [-0.01] * 29 + [2.0])
    noise = np.array([-0.02, 0.0, 0.0, 0.02])
    tried = [compare([evidence(np.full(4, m) + noise * (abs(m) < 1)) for m in means]) for means in gains]
    assert [round(each.gain, 3) for each in tried] == [-0.057, 0.057]
    assert most_promising(tried, [2, 2], 2) == [0]


def test_of_equal_ones_the_larger_gain_then_the_coarser() -> None:
    tried = [comparison(0.01), comparison(0.01, gain=0.2), comparison(0.01)]
    assert most_promising(tried, [3, 3, 2], 1) == [1]
    assert most_promising(tried, [3, 3, 2], 2) == [1, 2]


@pytest.mark.parametrize(
    ("p_values", "parts", "proposals", "finer_gains", "kept", "corrected"),
    [
        # Alone: 0.02 as it is; with nine dropped proposals 0.02 * 10.
        ([0.02], [2], 1, False, 0, [0.02]),
        ([0.02], [2], 10, False, None, [0.2]),
        # Two as coarse that gain the same, of four: 0.001 * 4, then 0.002 * 3.
        ([0.002, 0.001], [2, 2], 4, False, 0, [0.006, 0.004]),
        # Finer and coarser, of two: 0.001 * 2, and Holm raises 0.002 * 1 to it. The finer only if it gains.
        ([0.001, 0.002], [3, 2], 2, False, 1, [0.002, 0.002]),
        ([0.001, 0.002], [3, 2], 2, True, 0, [0.002, 0.002]),
        # Only the finer passes, or only the coarser: it is kept.
        ([0.001, 0.5], [3, 2], 2, False, 0, [0.002, 0.5]),
        ([0.5, 0.001], [3, 2], 2, True, 1, [0.5, 0.002]),
        ([], [], 3, False, None, []),
    ],
)
def test_the_coarsest_that_passes_is_kept_or_a_finer_that_gains(
    p_values, parts, proposals, finer_gains, kept, corrected
) -> None:
    found = auto.corrected(p_values, proposals, 0.025)
    np.testing.assert_allclose(found, corrected)
    passed = [place for place, p in enumerate(found) if p <= 0.025]
    assert auto.choose(passed, parts, [0.1] * len(parts), finer_gains) == kept


@pytest.mark.parametrize(
    ("p_values", "alone", "proposals", "passed", "corrected"),
    [
        # The preferred one of three at half of the level: 0.01 * 2; the other, with one dropped, then has
        # all of it: 0.02 * 2.
        ([0.02, 0.01], [1], 3, [1], [0.04, 0.02]),
        # It fails, 0.03 * 2; the others have half: 0.006 * 2 * 2.
        ([0.006, 0.03], [1], 3, [0], [0.024, 0.06]),
        ([0.007, 0.03], [1], 3, [], [0.028, 0.06]),
        # A client alone has half of what is left, 0.006 * 4, and the other, with one dropped, the last
        # quarter and what it had: 0.006 * 2 * 2. If it fails, 0.007 * 4, that stays at 0.003 * 2 * 4.
        ([0.006, 0.03, 0.006], [1, 2], 4, [0, 2], [0.024, 0.06, 0.024]),
        ([0.003, 0.03, 0.007], [1, 2], 4, [0], [0.024, 0.06, 0.028]),
        # After one round the preferred one was dropped: the client has a half, two others share the rest.
        ([0.02, 0.012], [1], 3, [1], [0.04, 0.024]),
    ],
)
def test_what_the_updates_choose_is_tested_alone(p_values, alone, proposals, passed, corrected) -> None:
    found = auto.corrected(p_values, proposals, 0.025, alone)
    np.testing.assert_allclose(found, corrected)
    assert [place for place, p in enumerate(found) if p <= 0.025] == passed


@pytest.mark.parametrize(
    ("number", "alone", "shares"),
    [
        (3, [], [1 / 3, 1 / 3, 1 / 3]),
        (3, [1], [1 / 4, 1 / 2, 1 / 4]),  # two share the other half
        (5, [2, 4], [1 / 12, 1 / 12, 1 / 2, 1 / 12, 1 / 4]),  # three share the last quarter
        (2, [0, 1], [1 / 2, 1 / 4]),
    ],
)
def test_the_least_gain_is_that_of_the_share_of_the_level_that_the_first_test_has(
    number: int, alone: list[int], shares: list[float]
) -> None:
    np.testing.assert_allclose(auto.first_shares(number, alone), shares)
    # Whatever the others do, a p-value just below the share of the level passes, one just above does not.
    for place, share in enumerate(shares):
        for times in (0.999, 1.001):
            p_values = [1.0] * number
            p_values[place] = 0.05 * share * times
            assert (auto.corrected(p_values, number, 0.05, alone)[place] <= 0.05) == (times < 1)


def test_a_client_alone_goes_on_besides_if_it_gained() -> None:
    tried = [comparison(0.4), comparison(0.01), comparison(0.6, gain=-0.1), comparison(0.02)]
    assert most_promising(tried, [2] * 4, 2, lone=0) == [0, 1, 3]
    assert most_promising(tried, [2] * 4, 2, lone=1) == [1, 3]  # the best anyway
    assert most_promising(tried, [2] * 4, 2, lone=2) == [1, 3]  # it has lost


def test_the_preferred_proposal_goes_on_if_it_gained() -> None:
    tried = [comparison(0.4), comparison(0.01), comparison(0.6, gain=-0.1), comparison(0.02)]
    assert most_promising(tried, [2] * 4, 2, preferred=0) == [0, 1]
    assert most_promising(tried, [2] * 4, 2, preferred=2) == [1, 3]  # it has lost


def test_of_equally_coarse_ones_that_pass_the_one_that_gains_more_stands() -> None:
    assert auto.choose([0, 1], [2, 2, 2], gains=[0.08, 0.14, 0.3]) == 1  # the third has not passed


def test_reasons() -> None:
    of = {"passed": [0, 1], "kept": 0, "parts": [2, 3, 2], "level": 0.025}
    assert reason(0, **of) == "shown to be better at the level of 0.025"
    assert reason(1, **of) == "shown to be better than one model, but not than 2 parts"
    assert reason(2, **of) == "not shown to be better at the level of 0.025"
    finer = {"passed": [0, 1, 2], "kept": 1, "parts": [2, 3, 3], "level": 0.025}
    assert reason(0, **finer) == "beaten by 3 parts"
    assert reason(2, **finer) == "another in as many parts gains more"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((2, 3, 18, 1, 0), "2 clusters: 1 of 18 groupings from 3 looks proved better on held-out rows"),
        ((1, 1, 1, 0, 0), "one cluster: none of one grouping from one look proved better on held-out rows"),
        ((1, 0, 0, 0, 0), "one cluster: no trial took place"),
        ((1, 2, 0, 0, 0), "one cluster: 2 looks proposed no grouping"),
        ((1, 1, 0, 0, 4), "one cluster: 4 groupings still on trial when the run ended"),
        ((1, 1, 0, 0, 1), "one cluster: one grouping still on trial when the run ended"),
    ],
)
def test_decision_in_one_sentence(numbers: tuple[int, ...], words: str) -> None:
    assert auto.decision(*numbers) == words
