"""The base class of our partitioners, which assign every example to at most one client.

A partitioner's settings are a frozen dataclass that is checked when it is made, without a dataset and without
a heavy import.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedclust.data.shifts import Shift
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray

NOBODY = -1  # instead of a client's id: no client holds this example


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class Examples:
    """What a partitioner reads of the examples that it assigns.

    Attributes
    ----------
    size
        Number of examples N.
    columns
        By name, each of shape (N, …): ``"label"``, class indices; ``"natural"``, the example's writer, user
        or region, negative if it has none; ``"features"``, vectors.
    num_classes
        Number of classes C.
    """

    size: int
    columns: Mapping[str, NDArray[Any]]
    num_classes: int = 0

    @classmethod
    def of(cls, label: ArrayLike, **columns: ArrayLike) -> "Examples":
        """Take the labels, and other columns by name."""
        labels = np.asarray(label)
        others = {name: np.asarray(column) for name, column in columns.items()}
        return cls(len(labels), {"label": labels, **others}, int(labels.max()) + 1)

    @property
    def labels(self) -> IntArray:
        """Class of each example, shape (N,)."""
        return self.columns["label"]

    @property
    def class_sizes(self) -> IntArray:
        """Examples of each class, shape (C,)."""
        return np.bincount(self.labels, minlength=self.num_classes)


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
        Writers, users or regions with too few examples to be a client, and their numbers of examples.
    """

    clients: IntArray
    groups: IntArray | None = None
    shifts: tuple[Shift | None, ...] = ()
    left_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return int(self.clients.max()) + 1


@dataclass(frozen=True)
class ClientPartitioner(ABC):
    """A rule that assigns all examples at once, in milliseconds for thousands of clients.

    Attributes
    ----------
    num_clients
        Number of clients K; None if the data determines it.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    num_clients: int | None

    def __post_init__(self) -> None:
        if self.num_clients is not None:
            check_positive(num_clients=self.num_clients)

    @abstractmethod
    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Assign the examples to clients.

        Parameters
        ----------
        examples
            The examples.
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

    def assignment(self, examples: Examples, seed: int = 0) -> Assignment:
        """Assign the examples; the same seed and examples give the same clients.

        Raises
        ------
        ValueError
            If there are more clients than examples, or a client would hold no example.
        """
        size = examples.size
        if self.num_clients is not None and self.num_clients > size:
            raise ValueError(
                f"num_clients must be at most the number of examples, {size}, got {self.num_clients}"
            )
        assignment = self.assign(examples, generator(seed, "partition"))
        held = np.bincount(assignment.clients[assignment.clients != NOBODY], minlength=self.num_clients or 1)
        if held.min() == 0:
            empty = np.flatnonzero(held == 0)
            raise ValueError(
                f"every client must hold an example: {type(self).__name__} over {size} examples leaves "
                f"{len(empty)} of {len(held)} clients without any, the first is client {empty[0]}"
            )
        return assignment


def check_positive(**settings: int) -> None:
    """Check settings that must be at least 1."""
    for name, value in settings.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")


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
