"""Partitioners: rules that assign examples to clients, each a frozen dataclass of its settings.

The settings are checked when a partitioner is created, without a dataset and without a heavy import. Every
example is assigned to at most one client.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np

from fedclust.data.shifts import Blur, FlipLabels, Invert, Noise, Opposite, Relabel, Rotate, Shift
from fedclust.data.targets import CLASSES, Target, to_text
from fedclust.support.checks import Checked, check
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, FloatArray, IntArray

NOBODY = -1  # stands for no client: nobody holds this example


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class Examples:
    """What a partitioner reads of the examples.

    Attributes
    ----------
    labels
        Class of each example, an index, shape (N,).
    num_classes
        Number of classes C.
    features
        Function that computes a vector of each example, shape (N, d).
    natural
        Writer, user or region of each example, negative if it has none, shape (N,); None if the data has no
        such owners.
    target
        What is predicted; the classes are its bins.
    """

    labels: IntArray
    num_classes: int
    features: Callable[[], FloatArray]
    natural: IntArray | None = None
    target: Target = CLASSES

    @property
    def size(self) -> int:
        """Number of examples N."""
        return len(self.labels)

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
        Writers, users or regions with too few examples to be a client: index to number of examples, -1 to
        that of those without an owner.
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
class ClientPartitioner(Checked, ABC):
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
        check(self, num_clients=">= 1 or None")
        super().__post_init__()

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
        size, wanted = examples.size, self.num_clients or 1
        if wanted > size:
            raise ValueError(f"num_clients must be at most the number of examples, {size}, got {wanted}")
        assignment = self.assign(examples, generator(seed, "partition"))
        held = np.bincount(assignment.clients[assignment.clients != NOBODY], minlength=wanted)
        if (empty := np.flatnonzero(held == 0)).size:
            left = f"{len(empty)} of {len(held)} clients without any, the first is client {empty[0]}"
            rule = f"every client must hold an example: {type(self).__name__} over {size} examples"
            raise ValueError(f"{rule} leaves {left}")
        return assignment


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
    """Divide `size` positions into consecutive blocks whose sizes differ by at most one.

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
    """Assign each client random examples, as many of each class as `counts` specifies.

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


# -- By one simple rule: IID, by quantity, by label, and by the data's own users ----------------------------


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
        Smallest allowed number of examples of a client.

    Raises
    ------
    ValueError
        If `alpha` is not above 0 or `min_samples` is below 1.
    """

    num_clients: int
    alpha: Annotated[float, "> 0 and finite"]
    min_samples: Annotated[int, ">= 1"] = 2

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw sizes, then deal the examples at random."""
        spare = _spare(examples.size, self.num_clients, self.min_samples)
        shares = draws.dirichlet(np.full(self.num_clients, self.alpha))
        return _dealt(self.min_samples + apportion(shares * spare, spare, draws), draws)


def _spare(size: int, num_clients: int, min_samples: int) -> int:
    """Return the number of examples left after every client has its minimum."""
    if (spare := size - num_clients * min_samples) < 0:
        rule = f"min_samples times num_clients must be at most the {size} examples"
        raise ValueError(f"{rule}, got {min_samples} times {num_clients}")
    return spare


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
    similarity: Annotated[float, "in [0, 1]"]

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
    classes_per_client: Annotated[int, ">= 1"]
    choice: Literal["first-deterministic", "deterministic", "random"] = "first-deterministic"

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Choose the classes of each client, then divide every class among its clients."""
        sizes = examples.class_sizes
        present = np.flatnonzero(sizes)
        if (wanted := self.classes_per_client) > (most := len(present)):
            raise ValueError(f"classes_per_client must be at most the {most} in the data, got {wanted}")
        counts = np.zeros((self.num_clients, len(sizes)), dtype=np.int64)
        for label, holds in zip(present, self._holders(len(present), draws).T, strict=True):
            if (many := int(holds.sum())) > (size := int(sizes[label])):
                rule = "clients that hold a class must be no more than its examples"
                raise ValueError(f"{rule}, got {many} clients for the {size} of class {label}")
            counts[holds, label] = blocks(size, many)
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
    min_samples: Annotated[int, ">= 1"] = 2

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Make each user with enough examples a client."""
        if examples.natural is None:
            rule = "a natural partition needs writers, users or regions"
            raise ValueError(f"{rule}: dataset.natural= names their column, the dataset has none")
        users, owner, sizes = np.unique(examples.natural, return_inverse=True, return_counts=True)
        somebody, few = users >= 0, sizes < self.min_samples
        chosen = np.flatnonzero(somebody & ~few)
        wanted = len(chosen) if self.num_clients is None else self.num_clients
        if not 0 < wanted <= len(chosen):
            fit = f"{len(chosen)}, the users with at least {self.min_samples} examples (of {len(users)})"
            raise ValueError(f"num_clients must be between 1 and {fit}, got {self.num_clients}")
        client_of = np.full(len(users), NOBODY, dtype=np.int64)
        client_of[np.sort(draws.permutation(chosen)[:wanted])] = np.arange(wanted)
        small = ~somebody | few
        left_out = dict(zip(users[small].tolist(), sizes[small].tolist(), strict=True))
        return Assignment(client_of[owner], left_out=left_out)


# -- Label skew by Dirichlet draws --------------------------------------------------------------------------

_WHOLE_DRAWS = 50
_MIXING_SWEEPS = 10
_MOST_STEPS = 20_000  # 3 s for 100 clients and 10 classes; fewer where a step costs more
_MOST_SHARES = 20_000_000


@dataclass(frozen=True)
class Dirichlet(ClientPartitioner):
    """Label skew with one concentration alpha; the smaller it is, the more the clients differ.

    Shares are drawn over the clients for each class, or over the classes for each client; alpha has a
    different meaning in each. *By class* (Yurochkin et al., "Bayesian Nonparametric Federated Learning of
    Neural Networks", ICML 2019) every class is divided by shares ~ Dir(alpha, …, alpha) over the clients, so
    clients differ in size. *By client* (Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019) every client of a fixed size draws its class
    shares ~ Dir(alpha·p), where p are the class shares of the data: alpha is the *sum* of the parameters, so
    0.5 over 100 classes leaves nearly one class per client. FedGWC's equal-sized clients are drawn by client:
    in its released partitions of CIFAR-100, alpha = 0.5 gives client 0 489 images of one class and 11 of
    another, and alpha = 1000 gives each client 5 images of each class.

    By class, the rule is that of flwr-datasets' DirichletPartitioner. That class is not used because it stops
    after ten draws: alpha = 0.05 over 100 clients (Clust-PSI-PFL, Table III) needs about thirty draws until
    no client is empty, and twenty thousand until each has the ten examples that the paper's tool requires.

    Attributes
    ----------
    num_clients
        Number of clients K.
    alpha
        Concentration, > 0, with the two meanings above.
    equal_sizes
        False: by class. True: by client, with `samples_per_client` examples each.
    samples_per_client
        Examples per client with `equal_sizes`; None uses the largest possible, ⌊N/K⌋.
    min_samples
        By class: smallest allowed number of examples of a client; draws that leave a client with fewer are
        rejected.
    self_balancing
        By class: whether a client that already has more than N/K examples gets nothing of the remaining
        classes, as in the code of the paper's authors, NIID-Bench and FedArtML (which Clust-PSI-PFL uses,
        with ``min_samples=10``).

    Raises
    ------
    ValueError
        If `alpha` is not above 0, `min_samples` is below 1, or `samples_per_client` is given without
        `equal_sizes`.
    """

    num_clients: int
    alpha: Annotated[float, "> 0 and finite"]
    equal_sizes: bool = False
    samples_per_client: int | None = None
    min_samples: Annotated[int, ">= 1"] = 2
    self_balancing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_client is not None and not self.equal_sizes:
            got = self.samples_per_client
            raise ValueError(f"samples_per_client must be null without equal_sizes=true, got {got}")

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw the clients' class counts, then the examples."""
        sizes, alphas = examples.class_sizes, np.full(self.num_clients, self.alpha)
        if self.equal_sizes:
            counts = counts_by_client(sizes, alphas, self.samples_per_client, draws)
        else:
            counts = counts_by_class(sizes, self, draws)
        return Assignment(deal(examples.labels, counts, draws))


def counts_by_class(class_sizes: IntArray, rule: Dirichlet, draws: np.random.Generator) -> IntArray:
    """Divide every class over the clients by Dirichlet shares, subject to each client's minimum.

    Source: Yurochkin et al. (2019), Section 5; the rounding is flwr-datasets'. If whole draws keep missing
    the minimum, one class at a time is redrawn, and kept if no more clients are short than before. Once no
    client is short, a few more sweeps over the classes follow. This is Gibbs sampling from the distribution
    that repeated whole draws sample: the Dirichlet, given that no client is short.

    Parameters
    ----------
    class_sizes
        Examples of each class, shape (C,).
    rule
        Settings: number of clients, alpha, minimum, and self-balancing.
    draws
        Random generator for the shares.

    Returns
    -------
    Examples of each class that each client gets, shape (K, C); every example is given.

    Raises
    ------
    ValueError
        If no draw gives every client `min_samples` examples.
    """
    total, num_classes, num_clients = int(class_sizes.sum()), len(class_sizes), rule.num_clients
    _spare(total, num_clients, rule.min_samples)
    full = total / num_clients if rule.self_balancing else None
    alphas = np.full(num_clients, rule.alpha)

    def short_of(shares: FloatArray) -> tuple[int, IntArray]:
        counts = _cut(class_sizes, shares, full)
        return int((counts.sum(axis=1) < rule.min_samples).sum()), counts

    for _ in range(_WHOLE_DRAWS):
        shares = draws.dirichlet(alphas, size=num_classes)
        short, counts = short_of(shares)
        if short == 0:
            return counts

    steps = int(np.clip(_MOST_SHARES // (num_clients * num_classes), num_classes, _MOST_STEPS))
    mixing = _MIXING_SWEEPS * num_classes
    for _ in range(steps):
        redrawn = shares.copy()
        redrawn[draws.integers(num_classes)] = draws.dirichlet(alphas)
        now, redrawn_counts = short_of(redrawn)
        if now <= short:
            shares, short, counts = redrawn, now, redrawn_counts
        mixing -= short == 0
        if mixing == 0:
            return counts
    if short == 0:
        return counts
    wanted = f"alpha must leave each of {num_clients} clients {rule.min_samples} examples"
    got = f"{short} with fewer after {_WHOLE_DRAWS + steps} draws with alpha {rule.alpha}"
    advice = "raise alpha, ask for fewer clients or a smaller min_samples, or set equal_sizes=true"
    raise ValueError(f"{wanted}, got {got}; {advice}")


def _cut(class_sizes: IntArray, shares: FloatArray, full: float | None) -> IntArray:
    """Convert shares (C, K) to counts (K, C); clients above `full` get nothing more."""
    held = np.zeros(shares.shape[1], dtype=np.int64)
    counts = np.empty(shares.shape[::-1], dtype=np.int64)
    for label, (size, share) in enumerate(zip(class_sizes, shares, strict=True)):
        if full is not None:
            share = np.where(held > full, 0.0, share)
            if share.sum() == 0:  # the remaining clients' shares have underflowed: use equal ones
                share = (held <= full).astype(float)
            share /= share.sum()
        cuts = (np.cumsum(share) * size).astype(np.int64)
        cuts[-1] = size
        counts[:, label] = np.diff(cuts, prepend=0)
        held += counts[:, label]
    return counts


def client_size(class_sizes: IntArray, alphas: FloatArray, samples: int | None) -> int:
    """Compute the number of examples of each client when all clients are equal in size.

    A client of alpha 0 takes all its examples from one class, and on average the others need every class in
    proportion to its size. So the largest size that leaves enough examples for every client's draw is the
    largest n with n·(z_c + (K − Z)·p_c) ≤ N_c for every class c, where z_c of the Z one-class clients hold
    class c.

    Parameters
    ----------
    class_sizes
        Examples of each class N_c, shape (C,).
    alphas
        Concentration of each client, shape (K,).
    samples
        The requested size; None requests the largest.

    Returns
    -------
    Examples per client.

    Raises
    ------
    ValueError
        If the data, or one class, has fewer examples than the requested size needs.
    """
    total, num_clients = int(class_sizes.sum()), len(alphas)
    one_class = _one_class_clients(class_sizes, int((alphas == 0).sum()))
    if samples is None:
        demand = one_class + (num_clients - one_class.sum()) * class_sizes / total
        held = demand > 0
        return max(1, int(np.floor((class_sizes[held] / demand[held]).min() + 1e-9)))
    if samples < 1 or samples * num_clients > total:
        share = f"{total // num_clients}, the share of {num_clients} clients in {total} examples"
        raise ValueError(f"samples_per_client must be between 1 and {share}, got {samples}")
    if (short := np.flatnonzero(one_class * samples > class_sizes)).size:
        clients, label = one_class[short[0]], f"class {short[0]} of {class_sizes[short[0]]} examples"
        rule = f"must fit the classes: {clients} one-class clients share {label}"
        raise ValueError(f"samples_per_client {rule}, got {samples}")
    return samples


def counts_by_client(
    class_sizes: IntArray, alphas: FloatArray, samples_per_client: int | None, draws: np.random.Generator
) -> IntArray:
    """Draw the class shares of each client and the counts that follow.

    Source: Hsu et al. (2019), Section 3, with two differences. Counts are rounded shares, not samples, so a
    large alpha gives equal counts without multinomial noise. And p, the mean of a client's draw, holds the
    class shares of the examples that remain at its turn: with a fixed p, classes run out, and the last
    clients get the remaining examples whatever they drew.

    Parameters
    ----------
    class_sizes
        Examples of each class, shape (C,).
    alphas
        Concentration of each client, shape (K,); 0 means one class.
    samples_per_client
        Examples per client; None uses the largest possible number, see :func:`client_size`.
    draws
        Random generator for the shares and for the classes of one-class clients.

    Returns
    -------
    Examples of each class that each client gets, shape (K, C); all rows have the same sum.

    Raises
    ------
    ValueError
        As :func:`client_size`.
    """
    samples = client_size(class_sizes, alphas, samples_per_client)
    counts = np.zeros((len(alphas), len(class_sizes)), dtype=np.int64)
    single = np.flatnonzero(alphas == 0)
    classes = draws.permutation(len(class_sizes))  # so that class 0 does not win every tie
    own = np.repeat(classes, _one_class_clients(class_sizes[classes], len(single)))
    counts[single, draws.permutation(own)] = samples

    stock = mix = class_sizes - counts.sum(axis=0)
    if len(single):  # where possible, the others together get the class mix of the whole
        needed = samples * (len(alphas) - len(single))
        whole = apportion(class_sizes * (needed / class_sizes.sum()), needed, draws)
        mix = whole if (whole <= stock).all() else stock
    # In descending order of alpha: clients with a large alpha need every class, the last ones only a few.
    for client in np.argsort(-alphas, kind="stable")[: len(alphas) - len(single)]:
        shares = np.zeros(len(class_sizes))
        left = np.flatnonzero(mix)
        shares[left] = draws.dirichlet(alphas[client] * mix[left] / mix.sum())
        counts[client] = _fill(shares, stock, samples, draws)
        stock = stock - counts[client]
        mix = np.maximum(mix - counts[client], 0)
    return counts


def _fill(shares: FloatArray, stock: IntArray, samples: int, draws: np.random.Generator) -> IntArray:
    """Take `samples` examples from the stock (C,), as close to the shares (C,) as the stock allows."""
    taken = np.zeros(len(stock), dtype=np.int64)
    while (missing := samples - int(taken.sum())) > 0:
        left = stock - taken
        open_shares = np.where(left > 0, shares, 0.0)
        if open_shares.sum() == 0:
            open_shares = left.astype(float)
        quotas = missing * (open_shares / open_shares.sum())
        taken += np.minimum(apportion(quotas, missing, draws), left)
    return taken


def _one_class_clients(class_sizes: IntArray, num_clients: int) -> IntArray:
    """Assign one-class clients to classes, each where its share of the class is largest (D'Hondt)."""
    seats = np.zeros(len(class_sizes), dtype=np.int64)
    for _ in range(num_clients):
        seats[np.argmax(class_sizes / (seats + 1))] += 1
    return seats


# -- Known groups of consecutive clients, which a clustering method should find -----------------------------


@dataclass(frozen=True)
class Heterogeneity(ClientPartitioner):
    """Groups of equal-sized clients, each group with its own label skew.

    Source: FedGWC, Section 7.3 and Table 3. The groups of its released partitions may share images. Here an
    example has one owner, so with clients as large as the paper's (500 images, as many as CIFAR-100 has per
    class) the other groups do not leave enough examples of some classes for one-class clients. Therefore
    `samples_per_client` defaults to the largest size that leaves enough for every group's draw
    (:func:`~fedclust.data.partitioners.client_size`).

    Beside one-class clients, the others draw around the class mix of the whole. A client with a small alpha
    gets what it draws as far as there are examples: with Table 3's third setting its largest class has 0.85.

    Attributes
    ----------
    num_clients
        Number of clients K.
    groups
        Number of clients in each group.
    alphas
        Concentration of each group, as in :class:`Dirichlet` with equal sizes; 0: one class per client.
    samples_per_client
        Examples per client; None uses the largest size, see above.

    Raises
    ------
    ValueError
        If the numbers of alphas and groups differ, an alpha is negative, or the sizes do not add up to
        `num_clients`.
    """

    num_clients: int
    groups: Sequence[int]
    alphas: Sequence[float]
    samples_per_client: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.groups, self.num_clients)
        if (got := len(self.alphas)) != len(self.groups):
            raise ValueError(f"alphas must be one per group, got {got} for {len(self.groups)} groups")
        if not all(0 <= alpha < np.inf for alpha in self.alphas):
            raise ValueError(f"alphas must be >= 0 and finite, got {list(self.alphas)}")

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw every client's class shares with its group's alpha."""
        groups = np.repeat(np.arange(len(self.groups)), self.groups)
        alphas = np.array(self.alphas, dtype=float)[groups]
        counts = counts_by_client(examples.class_sizes, alphas, self.samples_per_client, draws)
        return Assignment(deal(examples.labels, counts, draws), groups)


@dataclass(frozen=True, kw_only=True)
class _Shifted(ClientPartitioner):
    """Groups of clients over any other partition, each with its own shift.

    Attributes
    ----------
    alpha
        None: examples are dealt IID. A number: by :class:`Dirichlet` over the classes.
    base
        Partition to apply the groups to, instead of `alpha`. Its clients are shuffled first, so that groups
        do not depend on their order.
    """

    alpha: float | None = None
    base: ClientPartitioner | None = None

    def __post_init__(self) -> None:
        check(self, num_clients=">= 1")
        super().__post_init__()
        if self.alpha is not None and self.base is not None:
            raise ValueError(f"alpha must be null if a base partition is given, got {self.alpha}")
        if isinstance(self.base, _Shifted):
            raise ValueError(f"base must be without shifts of its own, got {type(self.base).__name__}")
        self._below()

    def _below(self) -> ClientPartitioner:
        """Return the partition underlying the groups, with `num_clients` clients."""
        if self.base is not None:
            return replace(self.base, num_clients=self.num_clients)
        number = self.num_clients or 1  # None was refused above
        return Iid(number) if self.alpha is None else Dirichlet(number, self.alpha)

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Assign by the underlying partition, renumber its clients at random, and shift each group."""
        below = self._below().assign(examples, draws)
        clients = below.clients
        renumbered = np.append(draws.permutation(clients.max() + 1), NOBODY)  # index -1 is NOBODY's
        sizes, kinds = self.kinds(examples, draws)
        kind_of = np.repeat(np.arange(len(kinds)), sizes)
        _, groups = np.unique(kind_of, return_inverse=True)
        shifts = tuple(kinds[kind] for kind in kind_of.tolist())
        return Assignment(renumbered[clients], groups, shifts, below.left_out)

    @abstractmethod
    def kinds(self, examples: Examples, draws: np.random.Generator) -> tuple[Any, Sequence[Shift | None]]:
        """Return how many clients have each shift, and the shifts."""


@dataclass(frozen=True)
class Domains(_Shifted):
    """Groups of clients whose images are clean, noisy, blurred, rotated or inverted, over any partition.

    Source: FedGWC, Section 7.3, Table 4 and Appendix H, for noise and blur; the strengths are not given.

    Attributes
    ----------
    num_clients
        Number of clients K.
    clean, noise, blur, rotation, invert
        Share of the clients in each domain. Groups are in this order; an empty domain is not a group.
    noise_std, blur_sigma, rotation_degrees
        Strength: see :mod:`fedclust.data.shifts`.
    alpha, base
        The underlying partition: by Dirichlet over the classes, or any; without them, examples are dealt IID.

    Raises
    ------
    ValueError
        If a share is negative, shares do not add up to 1, both `alpha` and `base` are given, or `base` has
        shifts of its own.
    """

    num_clients: int
    clean: float
    noise: float = 0.0
    blur: float = 0.0
    rotation: float = 0.0
    invert: float = 0.0
    noise_std: float = 0.2
    blur_sigma: float = 2.0
    rotation_degrees: float = 90.0

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self._shares()
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            rule = "shares of the domains must be >= 0 and add up to 1"
            raise ValueError(f"{rule}, got {shares} with sum {sum(shares):g}")
        self._domains()

    def _shares(self) -> list[float]:
        return [float(each) for each in (self.clean, self.noise, self.blur, self.rotation, self.invert)]

    def _domains(self) -> tuple[Shift | None, ...]:
        noise, blur = Noise(self.noise_std), Blur(self.blur_sigma)
        return None, noise, blur, Rotate(self.rotation_degrees), Invert()

    def kinds(self, _: Examples, draws: np.random.Generator) -> Any:
        """Draw how many clients each domain has."""
        sizes = apportion(np.array(self._shares()) * self.num_clients, self.num_clients, draws)
        return sizes, self._domains()


@dataclass(frozen=True)
class Conventions(_Shifted):
    """Groups of clients with different names for the classes, over any partition.

    Group 0 keeps the dataset's names; see :func:`conventions` for the others. Of amounts, a second group has
    the mirror images at the middle of their range; of times, those of opposite risks.

    Attributes
    ----------
    num_clients
        Number of clients K.
    groups
        Number of clients in each group.
    alpha, base
        As in :class:`Domains`.

    Raises
    ------
    ValueError
        If the sizes do not add up to `num_clients`, both `alpha` and `base` are given, or `base` has shifts
        of its own.
    """

    num_clients: int
    groups: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.groups, self.num_clients)

    def kinds(self, examples: Examples, draws: np.random.Generator) -> Any:
        """Draw each group's class names; turn round amounts or times in the second of two groups.

        Raises
        ------
        ValueError
            If there are more groups than classes, or more than two for amounts or times.
        """
        if examples.target.numeric:
            if len(self.groups) > 2:
                rule = f"groups must be at most two for {examples.target.kind}, as they are and turned round"
                raise ValueError(f"{rule}, got {len(self.groups)} groups")
            return self.groups, (None, Opposite(to_text(examples.target)))[: len(self.groups)]
        names = conventions(len(self.groups), examples.num_classes, draws)
        return self.groups, (None, *(Relabel(tuple(each)) for each in names[1:].tolist()))


@dataclass(frozen=True)
class FlippedFeatures(_Shifted):
    """Two groups of clients, over any partition; one has other labels at positions of frequent tokens.

    Source: FedGMCC's concept shift between genomic reads (Section V and Appendix B).

    Attributes
    ----------
    num_clients
        Number of clients K.
    groups
        Number of clients in each of two groups; the second group's labels are flipped.
    most
        Number of most frequent tokens; see :class:`fedclust.data.shifts.FlipLabels`.
    alpha, base
        As in :class:`Domains`.

    Raises
    ------
    ValueError
        If there are not two groups, or a setting is outside its range.
    """

    num_clients: int
    groups: Sequence[int]
    most: Annotated[int, ">= 1"]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.groups, self.num_clients)
        if len(self.groups) != 2:
            raise ValueError(f"groups must be two sizes, unchanged and flipped, got {list(self.groups)}")

    def kinds(self, _: Examples, __: np.random.Generator) -> Any:
        """Flip the labels of the second group."""
        return self.groups, (None, FlipLabels(self.most))


def conventions(num_groups: int, num_classes: int, draws: np.random.Generator) -> IntArray:
    """Draw class names so that no two groups use the same name for any class.

    The classes are put in a random circle; group g gives each class the name of the class g steps ahead.

    Parameters
    ----------
    num_groups
        Number of groups G.
    num_classes
        Number of classes C.
    draws
        Random generator for the circle.

    Returns
    -------
    Name that each group gives each class, shape (G, C); the first row is 0 … C−1.

    Raises
    ------
    ValueError
        If there are more groups than classes: two of them would share a name.
    """
    if num_groups > num_classes:
        raise ValueError(f"groups must be at most the {num_classes} classes, got {num_groups} groups")
    circle = draws.permutation(num_classes)
    names = np.empty((num_groups, num_classes), dtype=np.int64)
    for group in range(num_groups):
        names[group, circle] = np.roll(circle, -group)
    return names


def _check_groups(groups: Sequence[int], num_clients: int) -> None:
    if not groups or min(groups) < 1 or sum(groups) != num_clients:
        rule = f"groups must be >= 1 each and add up to num_clients, {num_clients}"
        raise ValueError(f"{rule}, got {list(groups)} with sum {sum(groups)}; give partition.groups=, too")
