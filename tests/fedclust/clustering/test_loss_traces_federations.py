"""What losses show and do not show, where they follow whom the last model was averaged from."""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering.loss_traces import Grouping, Parameters, Trace, deviations, groupings
from fedclust.support.rng import draw


@dataclass(frozen=True)
class Federation:
    """What decides the clients' losses.

    The root of a client's loss is 1 plus its constant plus noise, less `effect` times how much larger the
    share of its group was in the last cohort than in the federation. `factor` is a reaction to each round
    that clients share, each as strongly as chance will have it: a continuum, no groups. Constant, noise and
    factor are standard deviations.
    """

    groups: tuple[int, ...]
    effect: float = 0.5
    noise: float = 0.1
    constant: float = 0.1
    factor: float = 0.0
    seed: int = 0

    def traced(self, share: float, rounds: int = 40, order: np.ndarray | None = None) -> Trace:
        """Record the losses of so many rounds, in each of which a share takes part, perhaps renumbered."""
        draws, groups = np.random.default_rng(self.seed), np.array(self.groups)
        order = np.arange(len(groups)) if order is None else order
        shares = np.bincount(groups) / len(groups)
        constant = self.constant * draws.normal(size=len(groups))
        strength = self.factor * draws.normal(size=len(groups))
        trace, size, previous = Trace(np.arange(len(groups))), round(share * len(groups)), shares
        for _ in range(rounds):
            cohort = draw(np.arange(len(groups)), size, draws)
            roots = 1 + constant[cohort] + strength[cohort] * draws.normal()
            roots += self.noise * draws.normal(size=size) - self.effect * (previous - shares)[groups[cohort]]
            losses = np.square(np.maximum(roots, 0.05))[:, None] * np.array([1.0, 0.9, 1.1, 7.0])
            trace = trace.recorded(order[cohort], deviations(losses, 3))
            previous = np.bincount(groups[cohort], minlength=len(shares)) / size
        return trace


def shown(trace: Trace, seed: int = 0) -> list[Grouping]:
    """List the groupings that are far enough apart."""
    return [each for each in groupings(trace, Parameters(), seed) if each.separation >= 1]


TWENTY_TEN = (0,) * 20 + (1,) * 10


@pytest.mark.parametrize("groups", [TWENTY_TEN, (0,) * 8 + (1,) * 8, (0,) * 8 + (1,) * 8 + (2,) * 8])
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_found(groups: tuple[int, ...], seed: int) -> None:
    found = shown(Federation(groups, effect=2.0, seed=seed).traced(0.5))
    labels = max(found, key=lambda each: each.num_parts).labels
    assert adjusted_rand_score(groups, labels) == 1.0


def test_an_odd_client_does_not_hide_the_groups() -> None:
    # A group of one is too small to be a part; it joins one of the others.
    federation = Federation((0,) * 12 + (1,) * 8 + (2,), effect=2.0, noise=0.05)
    (labels,) = {tuple(each.labels[:20]) for each in shown(federation.traced(0.5))}
    assert adjusted_rand_score(federation.groups[:20], labels) == 1.0


def test_the_same_average_every_time_shows_nothing() -> None:
    assert shown(Federation((0,) * 12 + (1,) * 12, effect=2.0).traced(1.0)) == []


KINDS = [{"constant": 0.0}, {"constant": 0.3}, {"factor": 0.3}, {"factor": 0.3, "noise": 0.02}]


def test_clients_of_one_kind_are_rarely_shown_apart() -> None:
    """24 federations without groups: noise, constants of their own, and reactions along a continuum."""
    passes = 0
    for seed in range(24):
        federation = Federation((0,) * (16 + seed % 9), **KINDS[seed % 4], seed=seed)
        passes += bool(shown(federation.traced((1.0, 0.5)[seed // 4 % 2], 10), seed))
    assert passes <= 3


def test_the_numbering_of_clients_makes_no_difference() -> None:
    federation, order = Federation(TWENTY_TEN, effect=2.0), np.random.default_rng(0).permutation(30)
    ours = groupings(federation.traced(0.5), Parameters(), 0)
    theirs = groupings(federation.traced(0.5, order=order), Parameters(), 0)
    assert [each.separation for each in ours] == [each.separation for each in theirs]  # to the bit
    for one, other in zip(ours, theirs, strict=True):
        assert adjusted_rand_score(one.labels, other.labels[order]) == 1.0
