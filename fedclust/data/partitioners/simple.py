"""Partitions by one simple rule: IID, by quantity, by label, and by the data's own users."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedclust.data.partitioners.base import (
    NOBODY,
    Assignment,
    ClientPartitioner,
    Examples,
    apportion,
    blocks,
    check_positive,
    deal,
)
from fedclust.support.checks import check_choice
from fedclust.typing import BoolArray, IntArray

Choice = Literal["first-deterministic", "deterministic", "random"]


@dataclass(frozen=True)
class Iid(ClientPartitioner):
    """Equal shares of the data in random order.

    Attributes
    ----------
    num_clients
        Number of clients K; their sizes differ by at most one example.
    """

    num_clients: int

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Deal the examples at random."""
        return _dealt(blocks(examples.size, self.num_clients), draws)


@dataclass(frozen=True)
class QuantitySkew(ClientPartitioner):
    """IID clients of very different sizes.

    Source: Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, quantity skew: sizes follow
    shares ~ Dir(alpha, …, alpha) over the clients. Here every client first gets `min_samples` examples and
    the shares divide the rest, so that no draw has to be repeated.

    Attributes
    ----------
    num_clients
        Number of clients K.
    alpha
        Concentration, > 0; the smaller it is, the more the sizes differ.
    min_samples
        Least number of examples of a client.

    Raises
    ------
    ValueError
        If `alpha` is not above 0 or `min_samples` is below 1.
    """

    num_clients: int
    alpha: float
    min_samples: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be > 0 and finite, got {self.alpha}")
        check_positive(min_samples=self.min_samples)

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw sizes, then deal the examples at random."""
        spare = examples.size - self.num_clients * self.min_samples
        if spare < 0:
            raise ValueError(
                f"min_samples times num_clients must be at most the {examples.size} examples, "
                f"got {self.min_samples} times {self.num_clients}"
            )
        shares = draws.dirichlet(np.full(self.num_clients, self.alpha))
        return _dealt(self.min_samples + apportion(shares * spare, spare, draws), draws)


def _dealt(sizes: IntArray, draws: np.random.Generator) -> Assignment:
    """Deal all examples at random to clients of given sizes, shape (K,)."""
    clients = np.repeat(np.arange(len(sizes)), sizes)
    clients[draws.permutation(len(clients))] = clients.copy()
    return Assignment(clients)


@dataclass(frozen=True)
class Similarity(ClientPartitioner):
    """A share of the data dealt at random, the rest sorted by label and dealt in blocks.

    Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020;
    Clust-PSI-PFL, Section IV-A (b). Clients are in the order of their blocks' labels.

    Attributes
    ----------
    num_clients
        Number of clients K.
    similarity
        Share S of the data that is dealt at random: 1 is IID; with 0 most clients have one or two classes.

    Raises
    ------
    ValueError
        If `similarity` is outside [0, 1].
    """

    num_clients: int
    similarity: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.similarity <= 1:
            raise ValueError(f"similarity must be in [0, 1], got {self.similarity}")

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Deal both parts so that clients' sizes differ by at most one example."""
        labels = examples.labels
        order = draws.permutation(len(labels))
        random = round(self.similarity * len(labels))
        alike = blocks(random, self.num_clients)
        rest = order[random:]
        rest = rest[np.argsort(labels[rest], kind="stable")]

        clients = np.empty(len(labels), dtype=np.int64)
        everyone = np.arange(self.num_clients)
        clients[order[:random]] = np.repeat(everyone, alike)
        clients[rest] = np.repeat(everyone, blocks(len(labels), self.num_clients) - alike)
        return Assignment(clients)


@dataclass(frozen=True)
class Pathological(ClientPartitioner):
    """A fixed number of classes per client.

    Source: Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022. The clients that hold a class
    share its examples evenly. A class that no client holds is left out. The rule and its three choices are
    those of flwr-datasets' PathologicalPartitioner, which is slower: it takes 10 ms per client.

    Attributes
    ----------
    num_clients
        Number of clients K.
    classes_per_client
        Number of classes of each client.
    choice
        How classes are chosen: ``"first-deterministic"`` (the paper's: client k holds class k mod C and
        random others), ``"deterministic"`` (k, k+1, … mod C) or ``"random"``.

    Raises
    ------
    ValueError
        If `classes_per_client` is below 1 or `choice` is none of these.
    """

    num_clients: int
    classes_per_client: int
    choice: Choice = "first-deterministic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(classes_per_client=self.classes_per_client)
        check_choice("choice", self.choice, get_args(Choice))

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Choose the classes of each client, then divide every class among its clients."""
        sizes = examples.class_sizes
        present = np.flatnonzero(sizes)
        if self.classes_per_client > len(present):
            raise ValueError(
                f"classes_per_client must be at most the {len(present)} classes in the data, "
                f"got {self.classes_per_client}"
            )
        counts = np.zeros((self.num_clients, len(sizes)), dtype=np.int64)
        for label, holds in zip(present, self._holders(len(present), draws).T, strict=True):
            if holds.sum() > sizes[label]:
                raise ValueError(
                    f"clients that hold a class must be no more than its examples, got {holds.sum()} clients "
                    f"for the {sizes[label]} of class {label}"
                )
            if holds.any():
                counts[holds, label] = blocks(int(sizes[label]), int(holds.sum()))
        return Assignment(deal(examples.labels, counts, draws))

    def _holders(self, num_classes: int, draws: np.random.Generator) -> BoolArray:
        """Return whether each client holds each class, shape (K, C)."""
        first = np.arange(self.num_clients)[:, None] % num_classes
        if self.choice == "deterministic":
            order = (first + np.arange(num_classes)) % num_classes
        else:
            priority = draws.random((self.num_clients, num_classes))
            if self.choice == "first-deterministic":
                np.put_along_axis(priority, first, -1.0, axis=1)
            order = np.argsort(priority, axis=1)
        holders = np.zeros((self.num_clients, num_classes), dtype=bool)
        np.put_along_axis(holders, order[:, : self.classes_per_client], True, axis=1)
        return holders


@dataclass(frozen=True)
class Natural(ClientPartitioner):
    """Every writer, user or region is a client, in ascending order of its id.

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018 (FEMNIST by writer); Hsu, Qi &
    Brown, "Federated Visual Classification with Real-World Data Distribution", ECCV 2020 (Landmarks and
    iNaturalist by user).

    Attributes
    ----------
    num_clients
        Number of users to draw as clients; None uses all of them.
    min_samples
        A user with fewer examples is left out.

    Raises
    ------
    ValueError
        If `min_samples` is below 1.
    """

    num_clients: int | None = None
    min_samples: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(min_samples=self.min_samples)

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Make each user with enough examples a client."""
        users, owner, sizes = np.unique(examples.columns["natural"], return_inverse=True, return_counts=True)
        somebody, few = users >= 0, sizes < self.min_samples
        chosen = np.flatnonzero(somebody & ~few)
        wanted = len(chosen) if self.num_clients is None else self.num_clients
        if not 0 < wanted <= len(chosen):
            raise ValueError(
                f"num_clients must be between 1 and {len(chosen)}, the users with at least "
                f"{self.min_samples} examples (of {len(users)} users in all), got {self.num_clients}"
            )
        client_of = np.full(len(users), NOBODY, dtype=np.int64)
        client_of[np.sort(draws.permutation(chosen)[:wanted])] = np.arange(wanted)
        small = somebody & few
        left_out = dict(zip(users[small].tolist(), sizes[small].tolist(), strict=True))
        return Assignment(client_of[owner], left_out=left_out)
