import numpy as np
import pytest

from fedclust.clustering import auto
from fedclust.clustering.auto import Choice, Parameters, level_of_look, most_promising, most_spending, reason
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


def test_all_looks_share_one_level() -> None:
    assert level_of_look(0.05, 1, 1) == 0.025
    assert level_of_look(0.05, 3, 2) == 0.05 / 8 / 2
    assert sum(level_of_look(0.05, look, 1) for look in range(1, 60)) <= 0.05


def test_most_spending_by_hand() -> None:
    # 10 clients, half of them in a round: 5. One look, after round 2 of 6; it asks 10 clients. Then 3
    # proposals for one round and 2 finalists for 3 more, but 4 rounds are left: 1 + 3.
    parameters = Parameters(warmup=2, probation=3)
    first = 10 + (3 * 1 + 2 * 3) * 5
    # After round 4 a second look, at most 10 // 4 = 2 clusters with cohorts of 5 + 2 at most; 2 rounds are
    # left, one for all proposals and one for the finalists; one model for two clusters trains in both.
    second = 10 + (3 * 1 + 2 * 1 + 2) * 7
    assert most_spending(10, 0.5, 6, parameters) == auto.Spending(first + second, (first + second) / 5, 2)


def test_a_large_cluster_is_asked_in_part() -> None:
    # 1,000 clients, 50 in a round: 100 are asked, then (3 + 2 * 6) * 50 train; of three proposals no more
    # than three are finalists.
    assert most_spending(1000, 0.05, 20, Parameters()).trainings == 100 + 15 * 50
    assert most_spending(1000, 0.05, 20, Parameters(finalists=9)).trainings == 100 + 21 * 50


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
    ("p_values", "parts", "proposals", "between", "kept", "corrected"),
    [
        # Alone: 0.02 as it is; with nine dropped proposals 0.02 * 10.
        ([0.02], [2], 1, None, 0, [0.02]),
        ([0.02], [2], 10, None, None, [0.2]),
        # Two as coarse that gain the same, of four: 0.001 * 4, then 0.002 * 3.
        ([0.002, 0.001], [2, 2], 4, None, 0, [0.006, 0.004]),
        # Finer and coarser, of two: a third test, not asked yet, counts with 1. 0.001 * 3, 0.002 * 2.
        ([0.001, 0.002], [3, 2], 2, None, 1, [0.003, 0.004]),
        # The finer one beats the coarser: 0.01 * 1 is within the level.
        ([0.001, 0.002], [3, 2], 2, 0.01, 0, [0.003, 0.004]),
        # It does not: 0.03 is above it.
        ([0.001, 0.002], [3, 2], 2, 0.03, 1, [0.003, 0.004]),
        # Only the finer passes: it stands.
        ([0.001, 0.5], [3, 2], 2, None, 0, [0.003, 1.0]),
        ([], [], 3, None, None, []),
    ],
)
def test_the_coarsest_that_passes_stands_or_what_beats_it(
    p_values, parts, proposals, between, kept, corrected
) -> None:
    other = None if between is None else comparison(between)
    choice = auto.choose([comparison(p) for p in p_values], parts, proposals, 0.025, other)
    assert choice.kept == kept
    np.testing.assert_allclose(choice.p_values, corrected)


def test_of_equally_coarse_ones_that_pass_the_one_that_gains_more_stands() -> None:
    finalists = [comparison(0.0001, gain=0.08), comparison(0.001, gain=0.14), comparison(0.5, gain=0.3)]
    assert auto.choose(finalists, [2, 2, 2], 3, 0.025).kept == 1  # the third does not pass: 0.5


def test_reasons() -> None:
    choice = Choice(0, (0.01, 0.02, 0.5))
    assert reason(0, choice, [2, 3, 2], 0.025) == "shown to be better at the level of 0.025"
    assert reason(1, choice, [2, 3, 2], 0.025) == "shown to be better than one model, but not than 2 parts"
    assert reason(2, choice, [2, 3, 2], 0.025) == "not shown to be better at the level of 0.025"
    finer = Choice(1, (0.01, 0.02, 0.02))
    assert reason(0, finer, [2, 3, 3], 0.025) == "beaten by 3 parts"
    assert reason(2, finer, [2, 3, 3], 0.025) == "another in as many parts gains more"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((2, 3, 18, 1, 0), "2 clusters: 1 of 18 groupings from 3 looks proved better on held-out rows"),
        ((1, 1, 1, 0, 0), "one cluster: none of one grouping from one look proved better on held-out rows"),
        ((1, 0, 0, 0, 0), "one cluster: no trial took place"),
        ((1, 2, 0, 0, 0), "one cluster: 2 looks proposed no grouping"),
        ((1, 1, 0, 0, 4), "one cluster: 4 groupings were still on trial when the run ended"),
    ],
)
def test_decision_in_one_sentence(numbers: tuple[int, ...], words: str) -> None:
    assert auto.decision(*numbers) == words
