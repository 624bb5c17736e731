import dataclasses

import numpy as np
import pytest

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Parameters
from fedclust.clustering.fedgwc.cautions import _change_by_chance, cautions
from fedclust.support.sampling import draw

PAPER = Parameters(max_davies_bouldin=1, patience=1, min_pair_coverage=0, min_cluster_size=1)
RELEASED = Parameters(
    cohort_size=10,
    limit_parts=True,
    patience=None,
    min_pair_coverage=0,
    min_cluster_size=1,
    max_davies_bouldin=1,
    reward_shares=True,
    initial="uniform",
    change="cohort",
)


def said(parameters: Parameters, num_clients: int, participation: float, rounds: int) -> list[str]:
    return cautions(parameters.resolve(participation), num_clients, participation, rounds)


def test_the_papers_setting_needs_no_warning() -> None:
    # alpha 0.1: 0.9^t < 1e-5 from t = 110 on. Chance: 2 * 0.01 / 1.9 * 0.00774 * 0.01 = 8e-7 < 1e-5.
    assert said(PAPER, 100, 0.1, 20_000) == []
    assert said(PAPER, 100, 0.1, 111) == []


def test_too_few_rounds_are_named_with_the_first_test() -> None:
    assert said(PAPER, 100, 0.1, 110) == [
        "no split can come before the last round: the first test is in round 110 or later, of 110 (tolerance "
        "1e-05 is reached in round 110 or later with step_size 0.1, min_pair_coverage 0 in round 1 or later "
        "with 10 of 100 clients a round, patience 1)"
    ]


def test_patience_and_coverage_put_the_first_test_off() -> None:
    # 0.5^t < 0.2 from t = 3 on. 30 clients have 435 pairs, 0.9 of them are 391.5; three a round have 3 pairs:
    # 130.5, so round 131. Ten rounds in a row end in round 140.
    parameters = Parameters(step_size=0.5, tolerance=0.2, min_cluster_size=3)
    assert said(parameters, 30, 0.1, 141) == []
    (caution,) = said(parameters, 30, 0.1, 140)
    assert "the first test is in round 140 or later, of 140" in caution
    assert "0.9 in round 131 or later with 3 of 30 clients a round, patience 10" in caution


def test_the_last_change_alone_has_no_first_round_but_that_of_patience() -> None:
    parameters = Parameters(
        step_size=0.1, change="last", patience=10, min_pair_coverage=0, min_cluster_size=1
    )
    assert said(parameters, 100, 0.1, 11) == []
    assert "the first test is in round 10 or later, of 10" in said(parameters, 100, 0.1, 10)[0]


@pytest.mark.parametrize("step_size", [0.1, 0.3, 0.5])
def test_no_first_test_is_earlier_than_the_warning_says(step_size: float) -> None:
    # Nothing changes after the first round: equal losses, everyone in every round, and P is soon all ones.
    parameters = Parameters(
        step_size=step_size, tolerance=1e-3, patience=2, min_cluster_size=1, min_pair_coverage=0
    )
    state, settled = fedgwc.start(np.arange(6), parameters), 0
    for server_round in range(1, 200):
        state, outcome = fedgwc.step(state, np.arange(6), np.ones((6, 1)), parameters, seed=0)
        settled = settled or (server_round if outcome.settled else 0)
        if outcome.tried:
            break
    assert outcome.tried
    assert cautions(parameters, 6, 1.0, settled) != []
    assert "in round" in cautions(parameters, 6, 1.0, 3)[0]


@pytest.mark.parametrize(
    ("parameters", "num_clients", "participation", "message"),
    [
        (PAPER, 2, 1.0, "no split can come: 2 clients are fewer than 3"),
        # 3 / 0.1 = 30 clients in each of two parts
        (
            Parameters(),
            59,
            0.1,
            "no split can come: 59 clients are fewer than two clusters of min_cluster_size 30",
        ),
        (RELEASED, 19, 0.1, "no split can come: 19 clients are fewer than two cohorts of cohort_size 10"),
    ],
)
def test_federations_that_are_too_small_are_named(
    parameters: Parameters, num_clients: int, participation: float, message: str
) -> None:
    assert said(parameters, num_clients, participation, 10**6) == [message]


def test_full_participation_is_named_with_the_change_by_chance() -> None:
    # alpha 1/2, all of 30: 2 * 0.25 / 1.5 * (0.57735 - 0.5) / 10 = 0.00258.
    assert said(PAPER, 30, 1.0, 1000) == [
        "no split is likely: chance alone keeps the mean squared change near 0.003, above tolerance 1e-05 "
        "(step_size 0.5, 30 of 30 clients a round, 10 local steps; more with fewer)"
    ]


@pytest.mark.parametrize(
    ("parameters", "num_clients", "cohort"),
    [
        (Parameters(step_size=0.1, min_cluster_size=1), 100, 40),
        (Parameters(step_size=0.5, min_cluster_size=1), 60, 60),
        (RELEASED, 20, 10),
    ],
)
def test_the_change_by_chance_is_what_independent_normal_losses_leave(
    parameters: Parameters, num_clients: int, cohort: int
) -> None:
    state, draws = fedgwc.start(np.arange(num_clients), parameters), np.random.default_rng(1)
    untested = dataclasses.replace(parameters, patience=10**6)
    step_size, mses = parameters.step_size_of(num_clients), []
    for _ in range(600):
        clients = draw(np.arange(num_clients), cohort, draws)
        state, outcome = fedgwc.step(state, clients, draws.normal(size=(cohort, 10)), untested, seed=0)
        mses.append(outcome.mse)
    expected = _change_by_chance(parameters, step_size, cohort, num_clients)
    # Eq. 1's mean and variance are those of the cohort, not of the distribution: hence not the last percent.
    assert np.mean(mses[200:]) == pytest.approx(expected, rel=0.15)
