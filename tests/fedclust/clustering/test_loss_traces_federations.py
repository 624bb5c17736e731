"""What the method finds and does not find, on losses that follow whom the last model was averaged from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering.loss_traces import Outcome, Parameters, Trace, start, step
from fedclust.support.rng import cohort_size, draw


@dataclass(frozen=True)
class Federation:
    """What decides the clients' losses.

    The root of a client's loss is 1 plus its constant plus noise, less `effect` times how much larger the
    share of its group was in the probe than in the federation. `factor` is a reaction to each round that
    clients share, each as strongly as chance will have it: a continuum, no groups. Constant, noise and factor
    are standard deviations.
    """

    groups: tuple[int, ...]
    effect: float = 0.5
    noise: float = 0.1
    constant: float = 0.1
    factor: float = 0.0
    seed: int = 0

    def rounds(self, parameters: Parameters) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each round's cohort and losses, shape (cohort, 4)."""
        draws = np.random.default_rng(self.seed)
        groups = np.array(self.groups)
        shares = np.bincount(groups) / len(groups)
        constant = self.constant * draws.normal(size=len(groups))
        strength = self.factor * draws.normal(size=len(groups))
        size = cohort_size(len(groups), parameters.participation, 3)
        previous = shares
        while True:
            cohort = draw(np.arange(len(groups)), size, draws)
            roots = 1 + constant[cohort] + strength[cohort] * draws.normal()
            roots += self.noise * draws.normal(size=size) - self.effect * (previous - shares)[groups[cohort]]
            yield cohort, np.square(np.maximum(roots, 0.05))[:, None] * np.array([1.0, 0.9, 1.1, 7.0])
            probe = draws.choice(cohort, parameters.probe, replace=False)
            previous = np.bincount(groups[probe], minlength=len(shares)) / len(probe)


def run(
    federation: Federation, parameters: Parameters, rounds: int | None = None
) -> tuple[Trace, list[Outcome]]:
    """Run one cluster until it is split or settled, or for so many rounds."""
    state = start(np.arange(len(federation.groups)), parameters)
    outcomes: list[Outcome] = []
    for number, (cohort, losses) in enumerate(federation.rounds(parameters), start=1):
        state, outcome = step(state, cohort, losses, parameters, seed=number)
        outcomes.append(outcome)
        if outcome.labels is not None or state.settled or number == rounds:
            return state, outcomes
    raise AssertionError("unreachable")


TWENTY_TEN = (0,) * 20 + (1,) * 10
WHOLE, HALF = Parameters().resolve(1.0), Parameters().resolve(0.5)


@pytest.mark.parametrize(
    ("groups", "parameters", "earliest"),
    [
        (TWENTY_TEN, WHOLE, 7),
        ((0,) * 8 + (1,) * 8, WHOLE, 7),
        (TWENTY_TEN, HALF, 13),
        ((0,) * 8 + (1,) * 8 + (2,) * 8, WHOLE, 7),
        ((0, 1) * 20, Parameters().resolve(0.2), 31),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_found(groups: tuple[int, ...], parameters: Parameters, earliest: int, seed: int) -> None:
    federation = Federation(groups, effect=1.0, seed=seed)
    _, outcomes = run(federation, parameters)
    labels = outcomes[-1].labels
    # No group is divided; of three, one may be separated first, and the others later.
    whole = {(group, int(label)) for group, label in zip(groups, labels, strict=True)}
    assert len(whole) == max(groups) + 1
    # No earlier than after five sweeps, the first round and a sweep to confirm; hardly later.
    assert earliest <= len(outcomes) <= 2 * earliest


def test_an_odd_client_does_not_hide_the_groups() -> None:
    # A group of one is too small to be a part; it joins one of the others.
    federation = Federation((0,) * 12 + (1,) * 8 + (2,), effect=1.0, noise=0.05)
    _, outcomes = run(federation, WHOLE)
    labels = outcomes[-1].labels
    assert adjusted_rand_score(federation.groups[:20], labels[:20]) == 1.0
    assert labels.max() == 1


def test_the_same_average_every_time_shows_nothing() -> None:
    # What the probe is for: with the mean of all 24, composition never varies.
    federation = Federation((0,) * 12 + (1,) * 12, effect=1.0)
    everybody = replace(WHOLE, probe=24, sweeps=(5, 10))
    _, outcomes = run(federation, everybody)
    assert outcomes[-1].labels is None


KINDS = [{"constant": 0.0}, {"constant": 0.3}, {"factor": 0.3}, {"factor": 0.3, "noise": 0.02}]


def test_clients_of_one_kind_are_not_split() -> None:
    """24 federations without groups: noise, constants of their own, and reactions along a continuum."""
    parameters = Parameters(sweeps=(5, 10), max_clusters=2)
    splits, passes = 0, 0
    for seed in range(24):
        federation = Federation((0,) * (16 + seed % 9), **KINDS[seed % 4], seed=seed)
        resolved = parameters.resolve((1.0, 0.5)[seed // 4 % 2])
        _, outcomes = run(federation, resolved)
        splits += outcomes[-1].labels is not None
        passes += any(fit.separation >= 1 for outcome in outcomes for fit in outcome.fits)
        assert sum(outcome.tried for outcome in outcomes) >= 2
    assert splits == 0
    assert passes <= 3


def separations(outcomes: list[Outcome]) -> list[list[float]]:
    return [[fit.separation for fit in outcome.fits] for outcome in outcomes if outcome.tried]


def test_the_numbering_of_clients_makes_no_difference() -> None:
    federation = Federation(TWENTY_TEN, effect=1.0)
    order = np.random.default_rng(0).permutation(30)
    state = other = start(np.arange(30), HALF)
    found = []
    for number, (cohort, losses) in enumerate(federation.rounds(HALF), start=1):
        state, outcome = step(state, cohort, losses, HALF, seed=number)
        other, renumbered = step(other, order[cohort], losses, HALF, seed=number)
        if outcome.tried:
            found.append((outcome, renumbered))
        if outcome.labels is not None:
            break
    assert len(found) >= 2
    for ours, theirs in found:
        assert separations([ours]) == separations([theirs])  # to the bit
        for a, b in zip(ours.fits, theirs.fits, strict=True):
            assert adjusted_rand_score(a.labels, b.labels[order]) == 1.0
    assert found[-1][1].labels is not None


def test_failed_replies_are_gaps() -> None:
    # A third of the replies is lost each round, and now and then all but one.
    federation = Federation(TWENTY_TEN, effect=1.0)
    draws = np.random.default_rng(0)
    state = start(np.arange(30), WHOLE)
    for number, (cohort, losses) in enumerate(federation.rounds(WHOLE), start=1):
        kept = np.flatnonzero(draws.random(30) < 0.67)[: 1 if number % 6 == 0 else None]
        state, outcome = step(state, cohort[kept], losses[kept], WHOLE, seed=number)
        if outcome.labels is not None or state.settled:
            break
    assert adjusted_rand_score(TWENTY_TEN, outcome.labels) == 1.0
