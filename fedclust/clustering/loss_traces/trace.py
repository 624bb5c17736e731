"""A cluster's recorded losses: one number per client and round in which it took part."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedclust.clustering.shared.arrays import read_only
from fedclust.clustering.shared.members import member_ids, positions_of
from fedclust.typing import FloatArray, IntArray

__all__ = ["Entries", "Trace", "deviations"]


@dataclass(frozen=True, eq=False)
class Entries:
    """The existing entries of a trace, as three parallel arrays of shape (N,).

    Attributes
    ----------
    rounds
        Round of each entry, 0 … num_rounds − 1; every round has at least one.
    clients
        Client of each entry, 0 … num_clients − 1; every client has at least one, and at most one per round.
    values
        The entries x.
    num_rounds, num_clients
        T and K.
    """

    rounds: IntArray
    clients: IntArray
    values: FloatArray
    num_rounds: int
    num_clients: int

    @cached_property
    def lengths(self) -> FloatArray:
        """Number of entries T_k of each client, shape (K,)."""
        return self.sum_by_client(np.ones(len(self.values)))

    @cached_property
    def powers(self) -> tuple[csr_array, csr_array, csr_array]:
        """Client by round, shape (K, T): 1, x and x² where there is an entry."""
        shape = (self.num_clients, self.num_rounds)
        order = np.lexsort((self.rounds, self.clients))
        columns, values = self.rounds[order], self.values[order]
        ends = np.concatenate([[0], np.cumsum(np.bincount(self.clients, minlength=self.num_clients))])
        ones, plain, squares = (
            csr_array((each, columns, ends), shape=shape)
            for each in (np.ones(len(values)), values, np.square(values))
        )
        return ones, plain, squares

    def sum_by_client(self, values: FloatArray) -> FloatArray:
        """Add up one value per entry, shape (N,), for each client, shape (K,)."""
        sums = np.bincount(self.clients, values, self.num_clients)
        return np.asarray(sums, dtype=np.float64)

    def of_clients(self, chosen: IntArray) -> "Entries":
        """Select clients, given by their numbers in ascending order; they are renumbered from 0."""
        kept = np.isin(self.clients, chosen)
        return entries(self.rounds[kept], np.searchsorted(chosen, self.clients[kept]), self.values[kept])


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

    @classmethod
    def start(cls, members: IntArray, *, settled: bool = False) -> "Trace":
        """Create the state of a cluster before its first round.

        Parameters
        ----------
        members
            Client ids in any order, shape (K,).
        settled
            Whether it is too small ever to be split.

        Raises
        ------
        ValueError
            If there are no members or one is listed twice.
        """
        return cls(read_only(member_ids(members)), settled=settled)

    def joined(self, newcomers: IntArray) -> "Trace":
        """Add clients; in a proposal their part is −1, for not known.

        Parameters
        ----------
        newcomers
            Client ids larger than those of all members, sorted, shape (n,).
        """
        if not len(newcomers):
            return self
        members = read_only(member_ids(np.concatenate([self.members, newcomers])))
        if self.proposal is None:
            return dataclasses.replace(self, members=members)
        proposal = read_only(np.pad(self.proposal, (0, len(newcomers)), constant_values=-1))
        return dataclasses.replace(self, members=members, proposal=proposal)

    def locate(self, clients: IntArray) -> IntArray:
        """Find the positions of clients in `members`.

        Parameters
        ----------
        clients
            Client ids, shape (n,).

        Returns
        -------
        Positions, shape (n,).

        Raises
        ------
        ValueError
            If a client is not a member or listed twice.
        """
        return positions_of(clients, self.members)

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
            positions=(*self.positions, read_only(positions[order].astype(np.int32))),
            values=(*self.values, read_only(values[order].astype(np.float32))),
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

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name, for a checkpoint."""
        nothing = np.zeros(0, dtype=np.int64)
        return {
            "members": self.members.copy(),
            "progress": np.array([self.rounds, self.confirmed_at, self.settled], dtype=np.int64),
            "lengths": np.array([len(row) for row in self.positions], dtype=np.int64),
            "positions": np.concatenate([np.zeros(0, np.int32), *self.positions]),
            "values": np.concatenate([np.zeros(0, np.float32), *self.values]),
            "proposal": nothing if self.proposal is None else self.proposal.copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Trace":
        """Rebuild a state from the arrays of :meth:`to_arrays`.

        Raises
        ------
        ValueError
            If an array is missing or arrays do not fit each other.
        """
        names = ("members", "progress", "lengths", "positions", "values", "proposal")
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ValueError(f"arrays must hold {', '.join(names)}, got none of {', '.join(missing)}")
        members, progress, lengths, positions, values, proposal = (np.asarray(arrays[name]) for name in names)
        total = int(lengths.sum())
        if progress.shape != (3,) or positions.shape != (total,) or values.shape != (total,):
            raise ValueError(
                f"progress, positions and values must have shapes (3,), ({total},) and ({total},), got "
                f"{progress.shape}, {positions.shape} and {values.shape}"
            )
        if total and not 0 <= positions.min() <= positions.max() < len(members):
            raise ValueError(f"positions must be in [0, {len(members)}), got {positions.max()}")
        if proposal.size and proposal.shape != members.shape:
            raise ValueError(f"proposal must have shape {members.shape} or (0,), got {proposal.shape}")
        ends = np.cumsum(lengths)[:-1]
        recorded = bool(len(lengths))
        return dataclasses.replace(
            cls.start(members, settled=bool(progress[2])),
            rounds=int(progress[0]),
            confirmed_at=int(progress[1]),
            positions=tuple(map(_owned, np.split(positions.astype(np.int32), ends))) if recorded else (),
            values=tuple(map(_owned, np.split(values.astype(np.float32), ends))) if recorded else (),
            proposal=read_only(proposal.astype(np.int64)) if proposal.size else None,
        )


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
    if num_steps < 1:
        raise ValueError("losses must be of >= 1 step for every client, got 0 steps")
    first = np.array([np.asarray(series, dtype=np.float64)[:num_steps] for series in losses])
    wrong = ~(np.isfinite(first) & (first >= 0))
    if wrong.any():
        raise ValueError(f"losses must be finite and >= 0, got {first[wrong][0]}")
    roots = np.sqrt(first.mean(axis=1))
    return roots - np.sort(roots).mean()  # sorted: the order of replies must not decide the last bit


def entries(rounds: IntArray, clients: IntArray, values: FloatArray) -> Entries:
    """Create entries of clients that are numbered without gaps; rounds without an entry are removed."""
    found, numbers = np.unique(rounds, return_inverse=True)
    num_clients = int(clients.max()) + 1 if len(clients) else 0
    return Entries(numbers, clients, values, len(found), num_clients)


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    return read_only(array.copy())
