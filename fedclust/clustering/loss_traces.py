"""Clusters from the course of clients' losses, their loss traces; our rule for FedGWC.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340, have every client report its loss before each local step. The
mathematics here is ours. Two findings on recorded losses led to it:

- The signal is in the first local steps, and depends on the clients in the last average: after an average
  with more clients of one kind, that kind's losses are lower than the other's. Rewards relative to the
  cohort's mean (the paper's Eq. 1) lose most of this signal.
- If all or most clients take part, the average hardly varies. So the caller makes it vary: while a cluster
  is undecided, its next *training* model is the mean of a few random replies (the *probe*); the model that
  is evaluated and served is still the mean of all.

The differences of a client's losses from its cohort's over the rounds are its *trace* (:class:`Trace`). At a
few rounds (:meth:`Parameters.test_rounds`) groups are fitted to the traces: all clients of a group share a
course over the rounds, up to a constant per client (:func:`fedclust.clustering.mixture.fit`). A fit is
accepted if its parts are further apart than the halves of a continuum would be
(:func:`fedclust.clustering.mixture.separate`), and the cluster is split if the fit is found again one sweep
later (:func:`step`). A sweep is the number of rounds in which every client can take part once.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import numpy as np

from fedclust.clustering.mixture import Entries, believable, entries, fit, parts_of, separate
from fedclust.clustering.shared.grouping import in_order_of_appearance, positions_of
from fedclust.support.checks import Checked, check_entries, check_shapes
from fedclust.support.rng import cohort_size
from fedclust.typing import FloatArray, IntArray

_SMALLEST_COHORT = 3  # FedGWC, Theorem A.5


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of loss traces.

    Attributes
    ----------
    probe
        Number of random replies, >= 2, whose mean is the next training model of an undecided cluster; None
        for the mean of all. With fewer replies the losses of different groups differ more, but the mean is
        less anonymous. Used only by the caller.
    first_steps
        Number of a round's first local steps that are used, >= 1.
    sweeps
        Numbers of sweeps after which the traces are tested, increasing, each >= 2. A sweep is ⌈K/n⌉ rounds
        for cohorts of n of K clients.
    max_clusters
        Most parts of one split, >= 2.
    min_cluster_size
        Smallest part of a split, >= 2; clients of smaller ones join another.
    significance
        α in (0, 0.5): probability to underestimate the spread within two parts.
    min_agreement
        Adjusted Rand index in (0, 1] that two fits one sweep apart must have for a split.
    participation
        Share ρ in (0, 1] of a cluster's clients that takes part in a round. None uses the strategy's, set by
        :meth:`resolve`.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    probe: Annotated[int | None, ">= 2 or None"] = 3
    first_steps: Annotated[int, ">= 1"] = 3
    sweeps: Sequence[int] = (5, 7, 10, 14, 20, 28, 40)
    max_clusters: Annotated[int, ">= 2"] = 4
    min_cluster_size: Annotated[int, ">= 2"] = 3
    significance: Annotated[float, "in (0, 0.5)"] = 0.001
    min_agreement: Annotated[float, "in (0, 1]"] = 0.9
    participation: Annotated[float | None, "in (0, 1] or None"] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sweeps", tuple(self.sweeps))  # a list from YAML
        super().__post_init__()
        if not self.sweeps or self.sweeps[0] < 2 or any(b <= a for a, b in pairwise(self.sweeps)):
            raise ValueError(f"sweeps must be increasing, each >= 2, at least one, got {self.sweeps}")

    def resolve(self, participation: float) -> "Parameters":
        """Set the share of clients that takes part in a round, in (0, 1]."""
        return dataclasses.replace(self, participation=participation)

    def can_split(self, num_members: int) -> bool:
        """Return whether a cluster of `num_members` clients is large enough for two parts."""
        return num_members >= 2 * self.min_cluster_size

    def sweep(self, num_members: int) -> int:
        """Compute the rounds of a sweep of a cluster of `num_members` clients, ⌈K/n⌉.

        Raises
        ------
        ValueError
            If `participation` is not set.
        """
        return -(-num_members // self._cohort_size(num_members))

    def test_rounds(self, num_members: int) -> tuple[int, ...]:
        """List the rounds after which a cluster of `num_members` clients is tested, counted from its first.

        ⌈qK/n⌉ + 1 for each of the sweeps q: the first round has no previous average, so it is not used.
        The earliest split is one sweep after the first test.

        Returns
        -------
        Rounds, increasing; empty for a cluster too small to be split.

        Raises
        ------
        ValueError
            If `participation` is not set.
        """
        if not self.can_split(num_members):
            return ()
        size = self._cohort_size(num_members)
        rounds = [-(-sweeps * num_members // size) + 1 for sweeps in self.sweeps]
        return tuple(sorted(set(rounds)))

    def _cohort_size(self, num_members: int) -> int:
        if self.participation is None:
            raise ValueError("participation must be set before the first round, as by resolve, got None")
        return cohort_size(num_members, self.participation, _SMALLEST_COHORT)


def cautions(parameters: Parameters, num_clients: int, rounds: int) -> list[str]:
    """List reasons why no split can happen.

    Parameters
    ----------
    parameters
        Settings of tests and splits, with `participation` set.
    num_clients
        Number of clients K of the federation, >= 1.
    rounds
        Rounds of the run, >= 1.

    Returns
    -------
    Sentences with the numbers; empty if a split can happen before the last round.

    Raises
    ------
    ValueError
        If `participation` is not set.
    """
    tests = parameters.test_rounds(num_clients)
    if not tests:
        return [
            f"no split can come: {num_clients} clients are fewer than two clusters of min_cluster_size "
            f"{parameters.min_cluster_size}"
        ]
    sweep = parameters.sweep(num_clients)
    if tests[0] + sweep >= rounds:
        return [
            f"no split can come before the last round: losses are tested in round {tests[0]} and groups "
            f"confirmed in round {tests[0] + sweep} at the earliest, of {rounds} (participation "
            f"{parameters.participation:g}: every client takes part once in {sweep} "
            f"{'round' if sweep == 1 else 'rounds'})"
        ]
    return []


@dataclass(frozen=True, eq=False)
class Trace:
    """The loss traces of one cluster.

    A round adds two small arrays and shares all others with the previous state. An entry takes 8 bytes,
    and no round is recorded after the last test: with the default sweeps at most 41 entries per client, so
    3.3 MB for 10,000 clients.

    Attributes
    ----------
    members
        Client ids, sorted, shape (K,).
    rounds
        Rounds of this cluster with at least two valid replies.
    positions
        For each recorded round, the positions of its clients in `members`, int32, shape (n,).
    values
        For each recorded round, their entries x, float32, shape (n,).
    proposal
        Part of each member, shape (K,), if a test found parts that are not confirmed yet; else None. It is
        −1 for a member that joined later.
    confirmed_at
        The round in which the proposal is tested again; 0 without a proposal.
    settled
        Whether the last test is over, so that this cluster is never split.
    """

    members: IntArray
    rounds: int = 0
    positions: tuple[IntArray, ...] = field(default=(), repr=False)
    values: tuple[FloatArray, ...] = field(default=(), repr=False)
    proposal: IntArray | None = None
    confirmed_at: int = 0
    settled: bool = False

    def joined(self, newcomers: IntArray) -> "Trace":
        """Add clients; in a proposal their part is −1, for not known.

        Parameters
        ----------
        newcomers
            Client ids larger than those of all members, sorted, shape (n,).
        """
        members = np.concatenate([self.members, newcomers])
        proposal = self.proposal
        if proposal is not None:
            proposal = np.pad(proposal, (0, len(newcomers)), constant_values=-1)
        return dataclasses.replace(self, members=members, proposal=proposal)

    def recorded(self, positions: IntArray, values: FloatArray) -> "Trace":
        """Add a round's entries.

        Parameters
        ----------
        positions
            Positions of its clients in `members`, shape (n,).
        values
            Their entries, shape (n,).
        """
        order = np.argsort(positions)
        return dataclasses.replace(
            self,
            positions=(*self.positions, positions[order].astype(np.int32)),
            values=(*self.values, values[order].astype(np.float32)),
        )

    def entries(self) -> tuple[Entries, IntArray]:
        """Arrange the trace for a fit.

        Clients are numbered by the mean of their entries, so that later random draws and sums do not depend
        on the federation's numbering.

        Returns
        -------
        entries
            The entries of the clients that have any, sorted by round and client.
        observed
            Positions of these clients in `members`, in the order of their numbers.
        """
        clients = np.concatenate(self.positions).astype(np.int64) if self.positions else np.zeros(0, np.int64)
        values = np.concatenate(self.values).astype(np.float64) if self.values else np.zeros(0)
        rounds = np.repeat(np.arange(len(self.positions)), [len(row) for row in self.positions])
        observed, numbers, times = np.unique(clients, return_inverse=True, return_counts=True)
        order = np.argsort(np.bincount(numbers, values, len(observed)) / times, kind="stable")
        numbers = np.argsort(order)[numbers]
        by_round = np.lexsort((numbers, rounds))
        return entries(rounds, numbers[by_round], values[by_round]), observed[order]


def deviations(losses: Sequence[FloatArray] | FloatArray, first_steps: int) -> FloatArray:
    """Compute a round's entries: the differences of clients' losses from their cohort's.

    y_k = √(mean of the first min(`first_steps`, S) losses), x_k = y_k − mean of y over the cohort. The root
    makes the spread of losses depend less on their size.

    Parameters
    ----------
    losses
        Loss of each client before each local step, in nats, >= 0, n >= 1 arrays; S is the least of their
        lengths.
    first_steps
        Number of steps to use, >= 1.

    Returns
    -------
    Entries x in √nats, with mean 0, shape (n,).

    Raises
    ------
    ValueError
        If a client reports no loss, or one that is negative or not finite.
    """
    num_steps = min(first_steps, *(len(series) for series in losses))
    first = np.array([np.asarray(series, dtype=np.float64)[:num_steps] for series in losses])
    check_shapes(losses=(first, "clients steps"))
    check_entries("finite and >= 0", losses=first)
    roots = np.sqrt(first.mean(axis=1))
    return roots - np.sort(roots).mean()  # sorted: the order of replies must not decide the last bit


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
    """
    return Trace(np.sort(members), settled=not parameters.can_split(len(members)))


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
        If a client is not a member, a client has no losses, a loss is negative or not finite, or `parameters`
        lack a value that `resolve` sets.
    """
    tests = parameters.test_rounds(len(state.members))
    positions = positions_of(cohort, state.members)
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
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    entries, observed = state.entries()
    entries, kept, _ = believable(entries)
    observed = observed[kept]
    found = []
    # With one thread, sums have the same order on every machine; so few columns need no more.
    with threadpool_limits(1):
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


def alone(states: Sequence[Trace]) -> list[int]:
    """List the clients whose losses are unlike everybody else's in most of their rounds.

    Groups are found without them, see :mod:`fedclust.clustering.mixture`.

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
    """
    return [start(state.members[labels == part], parameters) for part in range(labels.max() + 1)]


def _test(state: Trace, outcome: Outcome, parameters: Parameters, seed: int) -> tuple[Trace, Outcome]:
    """Confirm the proposal if this is its round, or propose a split if this is a round of tests."""
    from sklearn.metrics import adjusted_rand_score

    num_members = len(state.members)
    found = groupings(state, parameters, seed)
    passing = [one for one in found if one.separation >= 1]
    passing.sort(key=lambda one: (-one.num_parts, -one.separation))
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


def _number(labels: IntArray | None) -> int | None:
    return None if labels is None else int(labels.max()) + 1
