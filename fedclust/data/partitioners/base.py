"""The base class of our partitioners, which assign every example to at most one client."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from fedclust.data.shifts import Shift
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray

__all__ = ["NOBODY", "Assignment", "ClientPartitioner", "apportion", "blocks", "deal", "rows_by_client"]

NOBODY = -1  # instead of a client's id: no client holds this example


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class Assignment:
    """The client of each example. Each example has one entry, so two clients never hold the same one.

    Attributes
    ----------
    clients
        Client of each example, shape (N,); -1 for an example that no client holds.
    groups
        Known group of each client, an index from 0, shape (K,); None if there is none.
    shifts
        Shift of each client or None, K entries; empty if no client has one.
    left_out
        Users (values of the column that the rule uses) with too few examples to be a client: user to number
        of examples.
    """

    clients: IntArray
    groups: IntArray | None = None
    shifts: tuple[Shift | None, ...] = ()
    left_out: Mapping[int, int] = field(default_factory=dict)


class ClientPartitioner(Partitioner):
    """A flwr-datasets partitioner that assigns all examples at once.

    flwr-datasets' own partitioners build each client's dataset on request; here `indices` holds all clients'
    rows as arrays, which takes milliseconds for thousands of clients. Example::

        partitioner = Dirichlet(num_clients=10, alpha=0.1)
        partitioner.dataset = datasets.load_dataset("mnist", split="train")
        partitioner.load_partition(3)

    Parameters
    ----------
    num_clients
        Number of clients K; None if the data determines it.
    seed
        Seed of every draw; the same seed and data give the same partition.
    partition_by
        Column that the rule uses; the labels unless documented otherwise.

    Raises
    ------
    ValueError
        If `num_clients` is below 1.
    """

    def __init__(self, num_clients: int | None, seed: int = 0, partition_by: str = "label") -> None:
        super().__init__()
        if num_clients is not None and num_clients < 1:
            raise ValueError(f"num_clients must be >= 1, got {num_clients}")
        self.num_clients = num_clients
        self.seed = seed
        self.partition_by = partition_by

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the dataset that the rule uses."""
        return (self.partition_by,)

    @abstractmethod
    def assign(self, draws: np.random.Generator) -> Assignment:
        """Assign the examples of `dataset` to clients.

        Parameters
        ----------
        draws
            Random generator for all draws.

        Returns
        -------
        The client of each example.

        Raises
        ------
        ValueError
            If the data cannot meet the request.
        """

    @cached_property
    def assignment(self) -> Assignment:
        """The client of each example, computed once.

        Raises
        ------
        ValueError
            If there are more clients than examples, or a client would hold no example.
        """
        size = len(self.dataset)
        if self.num_clients is not None and self.num_clients > size:
            raise ValueError(
                f"num_clients must be at most the number of examples, {size}, got {self.num_clients}"
            )
        assignment = self.assign(generator(self.seed, "partition"))
        held = np.bincount(assignment.clients[assignment.clients != NOBODY], minlength=self.num_clients or 1)
        if held.min() == 0:
            empty = np.flatnonzero(held == 0)
            raise ValueError(
                f"every client must hold an example: {type(self).__name__} over {size} examples leaves "
                f"{len(empty)} of {len(held)} clients without any, the first is client {empty[0]}"
            )
        return assignment

    @cached_property
    def indices(self) -> tuple[IntArray, ...]:
        """Rows of each client, ascending, K arrays."""
        return rows_by_client(self.assignment.clients, self.num_partitions)

    @property
    def groups(self) -> IntArray | None:
        """Known group of each client, shape (K,), or None."""
        return self.assignment.groups

    @property
    def shifts(self) -> tuple[Shift | None, ...]:
        """Shift of each client or None, K entries."""
        return self.assignment.shifts or (None,) * self.num_partitions

    @property
    def num_partitions(self) -> int:
        """Number of clients K."""
        return int(self.assignment.clients.max()) + 1

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the examples of one client.

        Raises
        ------
        ValueError
            If `partition_id` is out of range.
        """
        if not 0 <= partition_id < self.num_partitions:
            raise ValueError(f"partition_id must be in [0, {self.num_partitions}), got {partition_id}")
        return self.dataset.select(self.indices[partition_id])

    def column(self, name: str | None = None) -> NDArray[Any]:
        """Return a column of `dataset` as an array, by default the one to partition by.

        Raises
        ------
        ValueError
            If the dataset has no such column.
        """
        name = name or self.partition_by
        if name not in self.dataset.column_names:
            raise ValueError(
                f"{type(self).__name__} reads column {name!r}, the dataset has {self.dataset.column_names}"
            )
        # Reading a column without a format creates Python objects, a hundred times slower.
        return np.asarray(self.dataset.with_format("numpy", columns=[name])[:][name])

    def labels(self) -> tuple[IntArray, int]:
        """Return the labels as class indices.

        Returns
        -------
        Class of each example, shape (N,), and the number of classes. The classes are those of the column's
        `ClassLabel`; if it has none, they are the distinct values in ascending order.
        """
        values = self.column()
        feature = self.dataset.features[self.partition_by]
        if isinstance(feature, ClassLabel):
            return values.astype(np.int64), int(feature.num_classes)
        distinct, labels = np.unique(values, return_inverse=True)
        return labels.astype(np.int64), len(distinct)


def rows_by_client(clients: IntArray, num_clients: int) -> tuple[IntArray, ...]:
    """List the rows that each client holds.

    Parameters
    ----------
    clients
        Client of each row, shape (N,); -1 for a row that no client holds.
    num_clients
        Number of clients K.

    Returns
    -------
    Rows of each client, ascending, K arrays.
    """
    order = np.argsort(clients, kind="stable")  # stable: rows stay ascending within a client
    first = np.searchsorted(clients[order], np.arange(num_clients + 1))
    return tuple(order[start:stop] for start, stop in pairwise(first))


def blocks(size: int, num_clients: int) -> IntArray:
    """Divide `size` positions into consecutive blocks whose sizes differ by one at most.

    Returns
    -------
    Size of each client's block, shape (num_clients,); the first clients have the larger blocks.
    """
    return (size + num_clients - 1 - np.arange(num_clients)) // num_clients


def apportion(quotas: FloatArray, total: int, draws: np.random.Generator) -> IntArray:
    """Round quotas to whole numbers with a given sum, by largest remainders; ties are drawn at random.

    Parameters
    ----------
    quotas
        Non-negative numbers, shape (C,), whose sum is `total` up to rounding.
    total
        Sum of the result.
    draws
        Random generator for ties.

    Returns
    -------
    Whole numbers within 1 of the quotas, shape (C,).
    """
    # A quota that is whole up to rounding error must count as whole.
    whole = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.lexsort((draws.random(len(quotas)), whole - quotas))
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def deal(labels: IntArray, counts: IntArray, draws: np.random.Generator) -> IntArray:
    """Assign each client random examples, as many of each class as `counts` gives.

    Parameters
    ----------
    labels
        Class of each example, shape (N,).
    counts
        Examples of each class that each client gets, shape (K, C); no column may sum to more than the class
        has.
    draws
        Random generator for the examples.

    Returns
    -------
    Client of each example, shape (N,); -1 for the remaining examples of a class.
    """
    num_clients = len(counts)
    left = np.bincount(labels, minlength=counts.shape[1]) - counts.sum(axis=0)
    owners = np.append(np.arange(num_clients), NOBODY)
    by_class = np.lexsort((draws.random(len(labels)), labels))
    clients = np.empty(len(labels), dtype=np.int64)
    clients[by_class] = np.repeat(np.tile(owners, counts.shape[1]), np.vstack([counts, left]).T.ravel())
    return clients
