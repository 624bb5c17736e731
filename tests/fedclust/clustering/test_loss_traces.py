import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedclust.clustering import loss_traces
from fedclust.clustering.loss_traces import (
    Grouping,
    Parameters,
    Trace,
    cautions,
    children,
    deviations,
    start,
    step,
)


def test_the_schedule_of_the_full_cohort() -> None:
    # All clients take part: a sweep is a round. Sweeps 5, 7, 10 … and the first round, which is not used.
    parameters = Parameters().resolve(1.0)
    assert parameters.test_rounds(30) == (6, 8, 11, 15, 21, 29, 41)
    assert parameters.sweep(30) == 1


@pytest.mark.parametrize(
    ("clients", "participation", "first", "sweep"),
    [
        (30, 0.5, 11, 2),  # 5 * 30 / 15 + 1
        (30, 0.2, 26, 5),  # 5 * 30 / 6 + 1
        (100, 0.1, 51, 10),
        (300, 0.1, 51, 10),
        (30, 0.8, 8, 2),  # 150 / 24 = 6.25, so 7 + 1
        (20, 0.1, 35, 7),  # at least three take part: 100 / 3 = 33.3, so 34 + 1; 20 / 3 = 6.7
        (6, 0.1, 11, 2),
    ],
)
def test_first_test_and_sweep(clients: int, participation: float, first: int, sweep: int) -> None:
    parameters = Parameters().resolve(participation)
    assert parameters.test_rounds(clients)[0] == first
    assert parameters.sweep(clients) == sweep


def test_a_cluster_too_small_for_two_parts_is_never_tested() -> None:
    parameters = Parameters().resolve(1.0)
    assert [parameters.can_split(size) for size in (1, 5, 6)] == [False, False, True]
    assert parameters.test_rounds(5) == ()
    assert Parameters(min_cluster_size=2).resolve(1.0).can_split(4)
    (caution,) = cautions(parameters, 5, 10**6)
    assert caution == "no split can come: 5 clients are fewer than two clusters of min_cluster_size 3"
    assert cautions(parameters, 6, 10**6) == []


def test_participation_must_be_set_before_a_test() -> None:
    with pytest.raises(ValueError, match="participation must be set before the first round"):
        cautions(Parameters(), 10, 100)
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\] or None, got 0"):
        Parameters().resolve(0)


@pytest.mark.parametrize(
    ("num_clients", "participation", "earliest"),
    [
        (30, 1.0, 7),  # 5 rounds and the first, and one to confirm
        (30, 0.5, 13),  # sweeps of two rounds: 10 + 1 + 2
        (30, 0.2, 31),  # cohorts of 6, sweeps of five: 25 + 1 + 5
        (100, 0.1, 61),
        (10, 0.1, 22),  # cohorts of three all the same: ceil(5 * 10 / 3) + 1 + ceil(10 / 3) = 17 + 1 + 4
    ],
)
def test_a_run_must_be_longer_than_the_earliest_split(
    num_clients: int, participation: float, earliest: int
) -> None:
    parameters = Parameters().resolve(participation)
    assert cautions(parameters, num_clients, earliest + 1) == []
    (caution,) = cautions(parameters, num_clients, earliest)
    assert f"confirmed in round {earliest} at the earliest, of {earliest}" in caution


unhurried = settings(max_examples=50, deadline=None)


def example() -> Trace:
    state = Trace(np.array([4, 7, 9, 30]))
    state = state.recorded(np.array([2, 0]), np.array([0.5, -0.5]))
    return state.recorded(np.array([0, 3]), np.array([0.25, -0.25]))


def test_deviations_are_of_the_first_steps_root_mean_loss() -> None:
    # Means of the first three losses 1, 4, 9: roots 1, 2, 3, less their mean 2. Later steps do not count.
    losses = [np.array(each) for each in ([0.0, 1, 2, 50], [4.0, 4, 4, 0], [9.0, 8, 10, 0])]
    np.testing.assert_allclose(deviations(losses, 3), [-1, 0, 1])
    # One client ran one step: 4, 16 and 1 are roots 2, 4, 1, less 7/3.
    losses = [np.array([4.0]), np.array([16.0, 0.0]), np.array([1.0, 1.0, 1.0])]
    np.testing.assert_allclose(deviations(losses, 3), np.array([2, 4, 1]) - 7 / 3)


@unhurried
@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.floats(0.01, 100))
def test_deviations_scale_with_the_root_of_the_losses(losses: list[float], factor: float) -> None:
    values = np.array(losses)[:, None]
    scaled = deviations(factor * values, 3)
    np.testing.assert_allclose(scaled, np.sqrt(factor) * deviations(values, 3), atol=1e-9)
    assert scaled.sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([np.ones(2), np.ones(0)], "losses must have shape"),
        ([np.array([1.0, np.nan])], "losses must be finite and >= 0, got nan"),
        ([np.array([-1.0])], "losses must be finite and >= 0, got -1.0"),
    ],
)
def test_bad_losses_are_refused(losses: list[np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        deviations(losses, 3)


def test_a_round_leaves_the_state_before_it_as_it_was() -> None:
    before = example()
    after = before.recorded(np.array([1]), np.array([0.0]))
    assert len(before.values) == 2
    assert all(a is b for a, b in zip(before.values, after.values, strict=False))


def test_entries_leave_out_clients_that_never_took_part() -> None:
    # Members 4, 7, 9, 30; rounds {9: 0.5, 4: -0.5} and {4: 0.25, 30: -0.25}; 7 is nowhere.
    # Means: 4 has -0.125, 9 has 0.5, 30 has -0.25, which numbers them 1, 2 and 0.
    entries, observed = example().entries()
    np.testing.assert_array_equal(observed, [3, 0, 2])
    table = np.full((entries.num_rounds, entries.num_clients), np.nan)
    table[entries.rounds, entries.clients] = entries.values
    np.testing.assert_array_equal(table, [[np.nan, -0.5, 0.5], [-0.25, 0.25, np.nan]])
    np.testing.assert_array_equal(entries.lengths, [1, 2, 1])
    np.testing.assert_array_equal(entries.rounds, [0, 0, 1, 1])


def test_the_order_of_replies_makes_no_difference() -> None:
    state = Trace(np.arange(3))
    one = state.recorded(np.array([2, 0]), np.array([0.5, -0.5]))
    other = state.recorded(np.array([0, 2]), np.array([-0.5, 0.5]))
    np.testing.assert_array_equal(one.positions[0], other.positions[0])
    np.testing.assert_array_equal(one.values[0], other.values[0])


def test_some_clients_can_be_kept() -> None:
    entries, _ = example().entries()
    kept = entries.of_clients(np.array([0, 2]))
    np.testing.assert_array_equal(kept.values, [0.5, -0.25])
    np.testing.assert_array_equal(kept.clients, [1, 0])
    np.testing.assert_array_equal(kept.rounds, [0, 1])


EVERYBODY = Parameters().resolve(1.0)
HALVES = np.array([0] * 5 + [1] * 5)
OTHER = np.array([0, 1] * 5)
THIRDS = np.array([0] * 4 + [1] * 3 + [2] * 3)


def scripted(monkeypatch, found: dict[int, list[tuple[np.ndarray, float]]]) -> list[int]:
    """Replace test results by these labels and separations, by round; return the list of tested rounds."""
    tested: list[int] = []

    def groupings(state: Trace, parameters: Parameters, seed: int) -> list[Grouping]:
        tested.append(state.rounds)
        return [
            Grouping(int(labels.max()) + 1, labels, apart) for labels, apart in found.get(state.rounds, [])
        ]

    monkeypatch.setattr(loss_traces, "groupings", groupings)
    return tested


def run(parameters: Parameters, rounds: int, size: int = 10) -> tuple[Trace, dict[int, np.ndarray], list]:
    state, splits, outcomes = start(np.arange(10), parameters), {}, []
    for number in range(1, rounds + 1):
        cohort = np.arange(10)[:size]
        state, outcome = step(state, cohort, np.ones((size, 3)), parameters, seed=0)
        outcomes.append(outcome)
        if outcome.labels is not None:
            splits[number] = outcome.labels
    return state, splits, outcomes


def test_what_passes_twice_is_split(monkeypatch) -> None:
    tested = scripted(monkeypatch, {6: [(HALVES, 1.0)], 7: [(HALVES, 1.2)]})
    _, splits, outcomes = run(EVERYBODY, 7)
    assert tested == [6, 7]
    assert list(splits) == [7]
    np.testing.assert_array_equal(splits[7], HALVES)
    assert [outcome.proposed for outcome in outcomes] == [None] * 5 + [2, None]
    assert outcomes[6].agreement == 1.0
    assert [outcome.tried for outcome in outcomes] == [False] * 5 + [True, True]


def test_what_does_not_pass_is_not_proposed(monkeypatch) -> None:
    tested = scripted(monkeypatch, {number: [(HALVES, 0.999)] for number in range(60)})
    state, splits, _ = run(EVERYBODY, 60)
    assert tested == [6, 8, 11, 15, 21, 29, 41]
    assert not splits
    assert state.settled


def test_other_parts_a_sweep_later_are_no_confirmation(monkeypatch) -> None:
    # One client of ten moved: pairs together 20 of 45 and 21, both 16, so adjusted Rand
    # (16 - 20 * 21 / 45) / (20.5 - 20 * 21 / 45) = 0.597 < 0.9.
    moved = HALVES.copy()
    moved[0] = 1
    found = {6: [(HALVES, 2.0)], 7: [(moved, 2.0)], 8: [(moved, 2.0)], 9: [(moved, 2.0)]}
    tested = scripted(monkeypatch, found)
    _, splits, outcomes = run(EVERYBODY, 9)
    assert tested == [6, 7, 8, 9]
    assert outcomes[6].agreement == pytest.approx((16 - 28 / 3) / (20.5 - 28 / 3))
    assert outcomes[6].proposed is None
    np.testing.assert_array_equal(splits[9], moved)
    loose = dataclasses.replace(EVERYBODY, min_agreement=0.59)
    assert list(run(loose, 7)[1]) == [7]


def test_nothing_a_sweep_later_is_no_confirmation(monkeypatch) -> None:
    scripted(monkeypatch, {6: [(HALVES, 2.0)], 7: [(HALVES, 0.5)]})
    _, splits, outcomes = run(EVERYBODY, 7)
    assert not splits
    assert outcomes[6].agreement is None


def test_most_parts_first_then_furthest_apart(monkeypatch) -> None:
    both = [(HALVES, 9.0), (THIRDS, 1.1), (np.roll(THIRDS, 1), 1.3), (OTHER, 0.9)]
    scripted(monkeypatch, {6: both, 7: both})
    _, splits, _ = run(EVERYBODY, 7)
    np.testing.assert_array_equal(splits[7], np.roll(THIRDS, 1))


def test_a_proposal_is_confirmed_by_any_parts_that_agree(monkeypatch) -> None:
    # Thirds pass as well a sweep later, but they are not what was proposed.
    scripted(monkeypatch, {6: [(HALVES, 1.5)], 7: [(HALVES, 1.5), (THIRDS, 1.1)]})
    _, splits, _ = run(EVERYBODY, 7)
    np.testing.assert_array_equal(splits[7], HALVES)


def test_a_confirmation_that_fails_may_be_the_next_proposal(monkeypatch) -> None:
    # 8 of 10 clients: tests after ⌈5 * 10 / 8⌉ + 1 = 8 and ⌈7 * 10 / 8⌉ + 1 = 10 rounds, a sweep of 2.
    parameters = Parameters().resolve(0.8)
    found = {8: [(HALVES, 2.0)], 10: [(OTHER, 2.0)], 12: [(OTHER, 2.0)]}
    tested = scripted(monkeypatch, found)
    _, splits, outcomes = run(parameters, 12, size=8)
    assert tested == [8, 10, 12]
    assert outcomes[9].proposed == 2
    np.testing.assert_array_equal(splits[12], OTHER)


def test_the_last_test_is_confirmed_too(monkeypatch) -> None:
    parameters = Parameters(sweeps=(2,)).resolve(1.0)
    tested = scripted(monkeypatch, {3: [(HALVES, 2.0)], 4: []})
    state, _, _ = run(parameters, 3)
    assert not state.settled
    state, _, outcomes = run(parameters, 9)
    assert tested[-2:] == [3, 4]
    assert state.settled
    # Nothing is recorded once it is: rounds 2, 3 and 4 were.
    assert len(state.values) == 3
    assert state.rounds == 9
    assert [len(outcome.deviations) for outcome in outcomes] == [0, 10, 10, 10, 0, 0, 0, 0, 0]


def test_rounds_with_fewer_than_two_replies_do_not_count() -> None:
    state = start(np.arange(10), EVERYBODY)
    for cohort in (np.zeros(0, dtype=int), np.array([3])):
        after, outcome = step(state, cohort, np.ones((len(cohort), 3)), EVERYBODY, seed=0)
        assert after is state
        assert not outcome.tried
        assert outcome.labels is None


def test_the_first_round_is_not_recorded() -> None:
    state, _ = step(start(np.arange(10), EVERYBODY), np.arange(10), np.ones((10, 3)), EVERYBODY, seed=0)
    assert (state.rounds, state.values) == (1, ())
    state, outcome = step(state, np.array([4, 2]), [np.array([4.0]), np.array([1.0, 3.0])], EVERYBODY, seed=0)
    # Roots 2 and 1, less 1.5; positions ascend.
    np.testing.assert_array_equal(outcome.deviations, [0.5, -0.5])
    np.testing.assert_array_equal(state.positions[0], [2, 4])
    np.testing.assert_array_equal(state.values[0], [-0.5, 0.5])


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_few_clients_stay_together(clients: int) -> None:
    state = start(np.arange(clients), EVERYBODY)
    assert state.settled
    for number in range(60):
        losses = np.arange(clients)[:, None] + np.ones(3)
        state, outcome = step(state, np.arange(clients), losses, EVERYBODY, seed=number)
        assert not outcome.tried
    assert state.values == ()


def test_equal_losses_are_no_groups() -> None:
    state, splits, outcomes = run(EVERYBODY, 45)
    assert not splits
    assert state.settled
    assert sum(outcome.tried for outcome in outcomes) == 7
    assert all(outcome.fits == () for outcome in outcomes)


@pytest.mark.parametrize("sign", [1, -1])
def test_members_that_never_took_part_join_the_largest_part(sign: int) -> None:
    draws = np.random.default_rng(0)
    side = sign * np.array([1] * 4 + [-1] * 6)
    state = start(np.arange(12), EVERYBODY)
    for number in range(1, 8):
        roots = 2 + side * draws.choice([-0.5, 0.5]) + 0.02 * draws.normal(size=10)
        cohort = np.arange(1, 11)  # 0 and 11 never reply
        state, outcome = step(state, cohort, np.square(roots)[:, None], EVERYBODY, seed=number)
    assert outcome.labels is not None
    np.testing.assert_array_equal(outcome.labels == outcome.labels[0], [True] + [False] * 4 + [True] * 7)


def test_children_start_over() -> None:
    state = dataclasses.replace(start(np.arange(3, 13), EVERYBODY), rounds=7)
    state = state.recorded(np.arange(10), np.ones(10))
    first, second = children(state, np.array([0, 1] * 2 + [0] * 6), EVERYBODY)
    np.testing.assert_array_equal(first.members, [3, 5, 7, 8, 9, 10, 11, 12])
    np.testing.assert_array_equal(second.members, [4, 6])
    assert (first.rounds, first.values, first.settled) == (0, (), False)
    assert second.settled  # two clients cannot be split
