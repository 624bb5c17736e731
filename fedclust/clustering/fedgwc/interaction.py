"""FedGWC's immutable state of one cluster, and the result of a round."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.clustering.fedgwc import large
from fedclust.clustering.shared.arrays import read_only
from fedclust.clustering.shared.members import member_ids, positions_of
from fedclust.typing import BoolArray, FloatArray, IntArray

__all__ = ["Interaction", "Outcome"]

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Interaction:
    """FedGWC's state of one cluster.

    A round changes only the rows of its cohort. The matrices are therefore stored as tuples of read-only
    rows: the next state has new rows for the cohort and shares all others with this one. So a round of n
    clients copies n rows, not K, and earlier states do not change.

    Attributes
    ----------
    members
        Client ids, sorted, shape (K,).
    rows
        Rows of the interaction matrix P, entries in [0, 1], K arrays of shape (K,) in `members` order;
        float32 for very many clients, see :data:`fedclust.clustering.fedgwc.large.MANY`.
    met
        For each client, whether each client was ever in one cohort with it, K arrays of shape (K,).
    num_pairs_met
        Number of pairs of different clients that were ever in one cohort.
    weights
        Gaussian weight γ of each client (Eq. 2), in [0, 1], shape (K,); low for a client unlike its cohorts.
        Only for output.
    mse
        Running mean of the matrix's squared change; 1 before the first update.
    rounds_settled
        Number of consecutive rounds in which the matrix was settled; reset after each test for a split.
    """

    members: IntArray
    rows: tuple[FloatArray, ...] = field(repr=False)
    met: tuple[BoolArray, ...] = field(repr=False)
    num_pairs_met: int
    weights: FloatArray = field(repr=False)
    mse: float = 1.0
    rounds_settled: int = 0

    @classmethod
    def start(cls, members: IntArray, value: float) -> "Interaction":
        """Create the state of a cluster in which no clients have met.

        Parameters
        ----------
        members
            Client ids in any order, shape (K,).
        value
            Initial value of every entry of the matrix.

        Raises
        ------
        ValueError
            If there are no members or one is listed twice.
        """
        ids = member_ids(members)
        size = len(ids)
        row, met = (
            read_only(np.full(size, value, dtype=_precision(size))),
            read_only(np.zeros(size, dtype=np.bool_)),
        )
        return cls(read_only(ids), (row,) * size, (met,) * size, 0, read_only(np.zeros(size)))

    def joined(self, newcomers: IntArray) -> "Interaction":
        """Add clients that have met nobody; their entries are 0.

        Parameters
        ----------
        newcomers
            Client ids larger than those of all members, sorted, shape (n,).
        """
        size, number = len(self.members), len(newcomers)
        if not number:
            return self
        later = Interaction.start(np.concatenate([self.members, newcomers]), 0.0)
        return dataclasses.replace(
            self,
            members=later.members,
            rows=(*(read_only(np.pad(row, (0, number))) for row in self.rows), *later.rows[size:]),
            met=(*(read_only(np.pad(each, (0, number))) for each in self.met), *later.met[size:]),
            weights=read_only(np.pad(self.weights, (0, number))),
        )

    @property
    def matrix(self) -> FloatArray:
        """Interaction matrix P as one array, shape (K, K); a new copy on each access."""
        return np.stack(self.rows)

    @property
    def pair_coverage(self) -> float:
        """Share of the pairs of different clients that have met, in [0, 1]; 1 for a single client."""
        num_pairs = len(self.members) * (len(self.members) - 1) // 2
        return self.num_pairs_met / num_pairs if num_pairs else 1.0

    def positions(self, clients: IntArray) -> IntArray:
        """Return the positions of clients in the matrix.

        Parameters
        ----------
        clients
            Client ids, shape (n,).

        Returns
        -------
        Their positions in `members`, shape (n,).

        Raises
        ------
        ValueError
            If a client is not a member or listed twice.
        """
        return positions_of(clients, self.members)

    def block(self, positions: IntArray) -> FloatArray:
        """Return the entries of the matrix between n clients, shape (n, n)."""
        return _block(self.rows, positions)

    def with_cohort(
        self, positions: IntArray, block: FloatArray, weights: FloatArray, mse: float
    ) -> "Interaction":
        """Return the state after a round.

        Parameters
        ----------
        positions
            Positions of the round's clients, shape (n,).
        block
            New entries of the matrix between them, shape (n, n).
        weights
            Their new Gaussian weights, shape (n,).
        mse
            New running mean of the squared change.
        """
        everybody = np.ones((len(positions), len(positions)), dtype=np.bool_)
        all_weights = self.weights.copy()
        all_weights[positions] = weights
        return dataclasses.replace(
            self,
            rows=_with_block(self.rows, positions, block),
            met=_with_block(self.met, positions, everybody),
            num_pairs_met=self.num_pairs_met + _num_pairs(~_block(self.met, positions)),
            weights=read_only(all_weights),
            mse=mse,
        )

    def to_arrays(self) -> dict[str, NDArray | float | int]:
        """Return the attributes as arrays and numbers by name, for :meth:`from_arrays`."""
        return {
            "members": self.members,
            "matrix": self.matrix,
            "met": np.stack(self.met),
            "weights": self.weights,
            "mse": self.mse,
            "rounds_settled": self.rounds_settled,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> "Interaction":
        """Rebuild a state from the values of :meth:`to_arrays`."""
        met = np.asarray(arrays["met"], dtype=np.bool_)
        return cls(
            members=read_only(np.array(arrays["members"], dtype=np.int64)),
            rows=_owned(np.asarray(arrays["matrix"], dtype=_precision(len(met)))),
            met=_owned(met),
            num_pairs_met=_num_pairs(met),
            weights=read_only(np.array(arrays["weights"], dtype=np.float64)),
            mse=float(arrays["mse"]),
            rounds_settled=int(arrays["rounds_settled"]),
        )

    def part(self, positions: IntArray) -> "Interaction":
        """Return the state of a cluster of some members: their rows and columns, not settled.

        Parameters
        ----------
        positions
            Positions of the members, ascending, shape (n,).
        """
        met = _block(self.met, positions)
        return Interaction(
            members=read_only(self.members[positions]),
            rows=_owned(self.block(positions).astype(_precision(len(positions)))),
            met=_owned(met),
            num_pairs_met=_num_pairs(met),
            weights=read_only(self.weights[positions]),
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a round. `labels` requests a split; the rest is for logs.

    Attributes
    ----------
    rewards
        Reward ω of each client of the cohort in (0, 1], shape (n,); empty if fewer than two replied.
    mse
        Running mean of the matrix's squared change that this round's test used.
    pair_coverage
        Share of the cluster's pairs that have met.
    settled
        Whether the matrix was settled this round.
    tried
        Whether a split was tried.
    davies_bouldin
        Score of each number of clusters tried that gave at least two parts of an acceptable size.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,), for :func:`children`; None if the
        cluster is not split.
    """

    rewards: FloatArray
    mse: float
    pair_coverage: float
    settled: bool = False
    tried: bool = False
    davies_bouldin: dict[int, float] = field(default_factory=dict)
    labels: IntArray | None = None


def _precision(size: int) -> type[np.float32 | np.float64]:
    return np.float32 if size >= large.MANY else np.float64


def _owned(matrix: NDArray[Scalar]) -> tuple[NDArray[Scalar], ...]:
    # A view of one row would keep the whole matrix in memory.
    return tuple(read_only(row.copy()) for row in matrix)


def _block(rows: tuple[NDArray[Scalar], ...], positions: IntArray) -> NDArray[Scalar]:
    return np.stack([rows[position][positions] for position in positions])


def _with_block(
    rows: tuple[NDArray[Scalar], ...], positions: IntArray, block: NDArray[Scalar]
) -> tuple[NDArray[Scalar], ...]:
    replaced = list(rows)
    for position, values in zip(positions, block, strict=True):
        row = rows[position].copy()
        row[positions] = values
        replaced[position] = read_only(row)
    return tuple(replaced)


def _num_pairs(together: BoolArray) -> int:
    return int(np.count_nonzero(np.triu(together, k=1)))
