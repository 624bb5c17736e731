"""Label skew by Dirichlet draws: over clients for each class, or over classes for each client.

Alpha means something else in each. *By class* (Yurochkin et al., "Bayesian Nonparametric Federated Learning
of Neural Networks", ICML 2019) every class is divided by shares ~ Dir(alpha, …, alpha) over the clients, so
clients differ in size. *By client* (Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019) every client of a fixed size draws its class shares
~ Dir(alpha·p), where p are the class shares of the data: alpha is the *sum* of the parameters, so 0.5 over
100 classes leaves nearly one class per client. FedGWC's equal-sized clients are drawn by client: in its
released partitions of CIFAR-100, alpha = 0.5 gives client 0 489 images of one class and 11 of another, and
alpha = 1000 gives each client 5 images of each class.
"""

from dataclasses import dataclass

import numpy as np

from fedclust.data.partitioners.base import (
    Assignment,
    ClientPartitioner,
    Examples,
    apportion,
    check_positive,
    deal,
)
from fedclust.typing import FloatArray, IntArray

_WHOLE_DRAWS = 50
_MIXING_SWEEPS = 10
_MOST_STEPS = 20_000  # 3 s for 100 clients and 10 classes; fewer where a step costs more
_MOST_SHARES = 20_000_000


@dataclass(frozen=True)
class Dirichlet(ClientPartitioner):
    """Label skew with one concentration alpha; the smaller it is, the more the clients differ.

    By class, the rule is that of flwr-datasets' DirichletPartitioner. That class is not used because it stops
    after ten draws: alpha = 0.05 over 100 clients (Clust-PSI-PFL, Table III) needs about thirty draws until
    no client is empty, and twenty thousand until each has the ten examples that the paper's tool requires.

    Attributes
    ----------
    num_clients
        Number of clients K.
    alpha
        Concentration, > 0; the module describes its two meanings.
    equal_sizes
        False: by class. True: by client, each of `samples_per_client`.
    samples_per_client
        Examples per client with `equal_sizes`; None uses the largest possible, ⌊N/K⌋.
    min_samples
        By class: least number of examples of a client; draws that leave a client fewer are rejected.
    self_balancing
        By class: a client that already has more than N/K examples gets nothing of the remaining classes, as
        in the code of the paper's authors, NIID-Bench and FedArtML (which Clust-PSI-PFL uses, with
        ``min_samples=10``).

    Raises
    ------
    ValueError
        If `alpha` is not above 0, `min_samples` is below 1, or `samples_per_client` is given without
        `equal_sizes`.
    """

    num_clients: int
    alpha: float
    equal_sizes: bool = False
    samples_per_client: int | None = None
    min_samples: int = 2
    self_balancing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be > 0 and finite, got {self.alpha}")
        check_positive(min_samples=self.min_samples)
        if self.samples_per_client is not None and not self.equal_sizes:
            raise ValueError(
                f"samples_per_client needs equal_sizes=true, got {self.samples_per_client} without"
            )

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw the clients' class counts, then the examples."""
        sizes = examples.class_sizes
        if self.equal_sizes:
            alphas = np.full(self.num_clients, self.alpha)
            samples = client_size(sizes, alphas, self.samples_per_client)
            counts = counts_by_client(sizes, alphas, samples, draws)
        else:
            counts = counts_by_class(
                sizes, self.num_clients, self.alpha, self.min_samples, self.self_balancing, draws
            )
        return Assignment(deal(examples.labels, counts, draws))


def counts_by_class(
    class_sizes: IntArray,
    num_clients: int,
    alpha: float,
    min_samples: int,
    self_balancing: bool,
    draws: np.random.Generator,
) -> IntArray:
    """Divide every class over the clients by Dirichlet shares, given each client's minimum.

    Source: Yurochkin et al. (2019), Section 5; the rounding is flwr-datasets'. If whole draws keep missing
    the minimum, one class at a time is redrawn, and kept if no more clients are short than before. Once no
    client is short, a few more sweeps over the classes follow. This is Gibbs sampling from the distribution
    that repeated whole draws sample: the Dirichlet, given that no client is short.

    Parameters
    ----------
    class_sizes
        Examples of each class, shape (C,).
    num_clients, alpha, min_samples, self_balancing
        As in :class:`Dirichlet`.
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
    total = int(class_sizes.sum())
    if num_clients * min_samples > total:
        raise ValueError(
            f"min_samples times num_clients must be at most the {total} examples, "
            f"got {min_samples} times {num_clients}"
        )
    num_classes = len(class_sizes)
    full = total / num_clients if self_balancing else None
    alphas = np.full(num_clients, alpha)

    def short_of(shares: FloatArray) -> tuple[int, IntArray]:
        counts = _cut(class_sizes, shares, full)
        return int((counts.sum(axis=1) < min_samples).sum()), counts

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
    raise ValueError(
        f"alpha must leave every one of {num_clients} clients at least {min_samples} examples of "
        f"{num_classes} classes, got {short} clients with fewer after {_WHOLE_DRAWS + steps} draws with "
        f"alpha {alpha}; raise alpha, ask for fewer clients or a smaller min_samples, or set equal_sizes=true"
    )


def _cut(class_sizes: IntArray, shares: FloatArray, full: float | None) -> IntArray:
    """Turn shares (C, K) into counts (K, C); clients above `full` get nothing more."""
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
        raise ValueError(
            f"samples_per_client must be between 1 and {total // num_clients}, the share of {num_clients} "
            f"clients in {total} examples, got {samples}"
        )
    short = one_class * samples > class_sizes
    if short.any():
        label = int(np.argmax(short))
        raise ValueError(
            f"samples_per_client must fit the classes: {one_class[label]} one-class clients share class "
            f"{label} of {class_sizes[label]} examples, got {samples}"
        )
    return samples


def counts_by_client(
    class_sizes: IntArray, alphas: FloatArray, samples: int, draws: np.random.Generator
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
    samples
        Examples per client, as :func:`client_size` allows.
    draws
        Random generator for the shares and for the classes of one-class clients.

    Returns
    -------
    Examples of each class that each client gets, shape (K, C); every row sums to `samples`.
    """
    counts = np.zeros((len(alphas), len(class_sizes)), dtype=np.int64)
    single = np.flatnonzero(alphas == 0)
    classes = draws.permutation(len(class_sizes))  # so that class 0 does not win every tie
    own = np.repeat(classes, _one_class_clients(class_sizes[classes], len(single)))
    counts[single, draws.permutation(own)] = samples

    stock = class_sizes - counts.sum(axis=0)
    if len(single):  # where possible, leave the others the class mix of the whole
        needed = samples * (len(alphas) - len(single))
        mixed = apportion(class_sizes * (needed / class_sizes.sum()), needed, draws)
        stock = mixed if (mixed <= stock).all() else stock
    # In descending order of alpha: clients with a large alpha need every class, the last ones only a few.
    for client in np.argsort(-alphas, kind="stable")[: len(alphas) - len(single)]:
        shares = np.zeros(len(class_sizes))
        left = np.flatnonzero(stock)
        shares[left] = draws.dirichlet(alphas[client] * stock[left] / stock.sum())
        counts[client] = _fill(shares, stock, samples, draws)
        stock = stock - counts[client]
    return counts


def _fill(shares: FloatArray, stock: IntArray, samples: int, draws: np.random.Generator) -> IntArray:
    """Take `samples` examples from the stock (C,), as close to the shares (C,) as it allows."""
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
