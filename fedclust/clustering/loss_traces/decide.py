"""A round of loss traces: record losses, test for groups, propose a split, confirm it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedclust.clustering.loss_traces.believable import believable
from fedclust.clustering.loss_traces.mixture import fit
from fedclust.clustering.loss_traces.parameters import Parameters
from fedclust.clustering.loss_traces.separation import parts_of, separate
from fedclust.clustering.loss_traces.trace import Trace, deviations
from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.typing import FloatArray, IntArray

__all__ = ["Grouping", "Outcome", "alone", "children", "groupings", "start", "step"]


@dataclass(frozen=True, eq=False)
class Grouping:
    """The result of a test for one number of groups.

    Attributes
    ----------
    num_groups
        Number of groups fitted.
    labels
        Part of each member after small groups joined others, numbered in order of first appearance, shape
        (K,).
    separation
        Distance of the nearest parts, relative to the required distance; they pass if it is at least 1. −∞
        if it could not be measured.
    """

    num_groups: int
    labels: IntArray
    separation: float

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a round. `labels` requests a split; the rest is for logs.

    Attributes
    ----------
    deviations
        Difference of each client's losses from the cohort's, in √nats, shape (n,); empty in the first round,
        with fewer than two replies, and once the cluster is settled.
    tried
        Whether the traces were tested.
    fits
        Result for each number of groups that could be fitted.
    agreement
        Largest adjusted Rand index of the parts that passed with the proposal to confirm; None if there was
        nothing to confirm or nothing passed.
    proposed
        Number of parts to be confirmed one sweep later; None without a proposal.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,), for :func:`children`; None if the
        cluster is not split.
    """

    deviations: FloatArray
    tried: bool = False
    fits: tuple[Grouping, ...] = ()
    agreement: float | None = None
    proposed: int | None = None
    labels: IntArray | None = None


def start(members: IntArray, parameters: Parameters) -> Trace:
    """Create the state of a cluster before its first round.

    Parameters
    ----------
    members
        Client ids in any order, shape (K,).
    parameters
        Give the smallest part; a cluster too small for two parts is settled from the beginning.

    Raises
    ------
    ValueError
        If there are no members or one is listed twice.
    """
    return Trace.start(members, settled=not parameters.can_split(len(members)))


def step(
    state: Trace,
    cohort: IntArray,
    losses: Sequence[FloatArray] | FloatArray,
    parameters: Parameters,
    seed: int,
) -> tuple[Trace, Outcome]:
    """Record a round's losses, and decide whether to split the cluster.

    In the rounds of :meth:`Parameters.test_rounds` groups are fitted; those that pass become a proposal. If
    several pass, it is the one with the most parts, and of these the one whose parts are furthest apart. One
    sweep later groups are fitted again; the cluster is split if groups pass that agree with the proposal,
    chosen in the same way. Fewer than two replies change nothing, and such a round is not counted.

    While the returned state is not `settled` and there are no labels, the caller should train the next round
    from the mean of `Parameters.probe` random replies.

    Parameters
    ----------
    state
        The cluster before the round.
    cohort
        Ids of the clients that replied, in any order, shape (n,).
    losses
        Loss of each of them before each local step, in nats, n arrays; the first steps that all ran are used.
    parameters
        Settings of tests and splits, with `participation` set.
    seed
        Seed >= 0 of the fits' starts.

    Returns
    -------
    state
        The cluster after the round.
    outcome
        Result of the round. If it has labels, :func:`children` creates the parts' states.

    Raises
    ------
    ValueError
        If a client is not a member or listed twice, `losses` does not match the cohort, a client has no
        losses, a loss is negative or not finite, or `parameters` lack a value that `resolve` sets.
    """
    tests = parameters.test_rounds(len(state.members))
    positions = state.locate(cohort)
    if len(losses) != len(positions):
        raise ValueError(f"losses must be of the cohort's {len(positions)} clients, got {len(losses)}")
    nothing = Outcome(np.zeros(0), proposed=_number(state.proposal))
    if len(positions) < 2:
        return state, nothing
    values = deviations(losses, parameters.first_steps)
    state = dataclasses.replace(state, rounds=state.rounds + 1)
    if state.settled or state.rounds == 1:  # before the first round there was no average to react to
        return state, nothing
    state = state.recorded(positions, values)
    outcome = dataclasses.replace(nothing, deviations=values)
    if state.rounds in tests or state.rounds == state.confirmed_at:
        state, outcome = _test(state, outcome, parameters, seed)
    over = state.rounds >= tests[-1] and state.proposal is None
    return dataclasses.replace(state, settled=over), outcome


def groupings(state: Trace, parameters: Parameters, seed: int) -> list[Grouping]:
    """Fit 2 … `max_clusters` + 1 groups to a cluster's traces, and measure how far apart they are.

    One group more than the allowed parts is fitted, for a group of unusual clients. Members that never took
    part join the largest part, and so do those of :func:`alone`.

    Returns
    -------
    One per number of groups, ascending, that could be fitted and left 2 … `max_clusters` parts.
    """
    # With one thread, sums have the same order on every machine; so few columns need no more.
    with threadpool_limits(1):
        return _groupings(state, parameters, seed)


def alone(states: Sequence[Trace]) -> list[int]:
    """List the clients whose losses are unlike everybody else's in most of their rounds.

    Groups are found without them, see :mod:`fedclust.clustering.loss_traces.believable`.

    Parameters
    ----------
    states
        The clusters.

    Returns
    -------
    Client ids, sorted.
    """
    found: set[int] = set()
    for state in states:
        entries, observed = state.entries()
        found |= set(state.members[observed[believable(entries)[2]]].tolist())
    return sorted(found)


def children(state: Trace, labels: IntArray, parameters: Parameters) -> list[Trace]:
    """Create the states of the parts of a split cluster.

    Each starts without entries, as losses relative to another cohort and after other averages do not
    describe it.

    Parameters
    ----------
    state
        The cluster.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,).
    parameters
        As for :func:`start`.

    Returns
    -------
    One state per part, in the order of their numbers; every member is in exactly one.

    Raises
    ------
    ValueError
        If `labels` does not have one entry per member or skips a number.
    """
    labels = np.asarray(labels)
    if labels.shape != state.members.shape:
        raise ValueError(f"labels must have shape {state.members.shape}, got {labels.shape}")
    numbers = np.unique(labels)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ValueError(f"labels must be 0, 1, … without gaps, got {numbers.tolist()}")
    return [start(state.members[labels == number], parameters) for number in numbers]


def _test(state: Trace, outcome: Outcome, parameters: Parameters, seed: int) -> tuple[Trace, Outcome]:
    """Confirm the proposal if this is its round, or propose a split if this is a round of tests."""
    num_members = len(state.members)
    found = groupings(state, parameters, seed)
    best_first = sorted(found, key=lambda one: (-one.num_parts, -one.separation))
    passing = [one for one in best_first if one.separation >= 1]
    agreement, labels = None, None
    if state.proposal is not None and state.rounds == state.confirmed_at:
        there = state.proposal >= 0
        agreeing = [float(adjusted_rand_score(state.proposal[there], one.labels[there])) for one in passing]
        agreement = max(agreeing, default=None)
        confirmed = [o for o, a in zip(passing, agreeing, strict=True) if a >= parameters.min_agreement]
        labels = confirmed[0].labels if confirmed else None
        state = dataclasses.replace(state, proposal=None, confirmed_at=0)
    due = state.rounds in parameters.test_rounds(num_members)
    if due and passing and labels is None and state.proposal is None:
        at = state.rounds + parameters.sweep(num_members)
        state = dataclasses.replace(state, proposal=passing[0].labels, confirmed_at=at)
    return state, dataclasses.replace(
        outcome,
        tried=True,
        fits=tuple(found),
        agreement=agreement,
        proposed=_number(state.proposal),
        labels=labels,
    )


def _groupings(state: Trace, parameters: Parameters, seed: int) -> list[Grouping]:
    entries, observed = state.entries()
    entries, kept, _ = believable(entries)
    observed = observed[kept]
    found = []
    for num_groups in range(2, parameters.max_clusters + 2):
        fitted = fit(entries, num_groups, seed)
        parts = None if fitted is None else parts_of(fitted, parameters.min_cluster_size)
        if fitted is None or parts is None or not 2 <= parts.number <= parameters.max_clusters:
            continue
        labels = np.full(len(state.members), np.bincount(parts.labels).argmax())
        labels[observed] = parts.labels
        separation = separate(entries, parts, fitted.estimate, parameters.significance)
        found.append(Grouping(num_groups, in_order_of_appearance(labels), separation))
    return found


def _number(labels: IntArray | None) -> int | None:
    return None if labels is None else int(labels.max()) + 1
