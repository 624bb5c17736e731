"""Partitions with a known grouping of the clients, which a clustering method should find.

Groups are consecutive clients: with sizes 20 and 10, clients 0 to 19 are group 0 and 20 to 29 group 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedclust.data.partitioners.base import (
    NOBODY,
    Assignment,
    ClientPartitioner,
    Examples,
    apportion,
    deal,
)
from fedclust.data.partitioners.dirichlet import Dirichlet, client_size, counts_by_client
from fedclust.data.partitioners.simple import Iid
from fedclust.data.shifts import Blur, FlipLabels, Invert, Noise, Relabel, Rotate, Shift
from fedclust.typing import IntArray


@dataclass(frozen=True)
class Heterogeneity(ClientPartitioner):
    """Groups of equal-sized clients, each group with its own label skew.

    Source: FedGWC, Section 7.3 and Table 3. The groups of its released partitions may share images. Here an
    example has one owner, so with clients as large as the paper's (500 images, as many as CIFAR-100 has per
    class) the other groups do not leave enough examples of some classes for one-class clients. Therefore
    `samples_per_client` defaults to the largest size that leaves enough for every group's draw
    (:func:`~fedclust.data.partitioners.dirichlet.client_size`).

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
        if len(self.alphas) != len(self.groups):
            raise ValueError(
                f"alphas must be one per group, got {len(self.alphas)} for {len(self.groups)} groups"
            )
        if not all(0 <= alpha < np.inf for alpha in self.alphas):
            raise ValueError(f"alphas must be >= 0 and finite, got {list(self.alphas)}")

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Draw every client's class shares with its group's alpha."""
        groups = np.repeat(np.arange(len(self.groups)), self.groups)
        alphas = np.array(self.alphas, dtype=float)[groups]
        samples = client_size(examples.class_sizes, alphas, self.samples_per_client)
        counts = counts_by_client(examples.class_sizes, alphas, samples, draws)
        return Assignment(deal(examples.labels, counts, draws), groups)


@dataclass(frozen=True)
class Domains(ClientPartitioner):
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
    alpha
        None: examples are dealt IID. A number: by :class:`Dirichlet` over the classes.
    base
        Partition to apply the domains to, instead of `alpha`. Its clients are shuffled first, so that domains
        do not depend on their order.

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
    alpha: float | None = None
    base: ClientPartitioner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self._shares()
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(
                f"shares of the domains must be >= 0 and add up to 1, got {shares}, in all {sum(shares):g}"
            )
        self._kinds()
        _base(self.num_clients, self.alpha, self.base)

    def _shares(self) -> list[float]:
        return [float(each) for each in (self.clean, self.noise, self.blur, self.rotation, self.invert)]

    def _kinds(self) -> tuple[Shift | None, ...]:
        return None, Noise(self.noise_std), Blur(self.blur_sigma), Rotate(self.rotation_degrees), Invert()

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Deal the examples by the base partition, then give each client its domain."""
        clients = _shuffled(_base(self.num_clients, self.alpha, self.base), examples, draws)
        kinds = self._kinds()
        sizes = apportion(np.array(self._shares()) * self.num_clients, self.num_clients, draws)
        domains = np.repeat(np.arange(len(kinds)), sizes)
        _, groups = np.unique(domains, return_inverse=True)
        return Assignment(clients, groups, tuple(kinds[domain] for domain in domains))


@dataclass(frozen=True)
class Conventions(ClientPartitioner):
    """Groups of clients with different names for the classes, over any partition.

    Group 0 keeps the dataset's names; see :func:`conventions` for the others.

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
    alpha: float | None = None
    base: ClientPartitioner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.groups, self.num_clients)
        _base(self.num_clients, self.alpha, self.base)

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Deal the examples by the base partition, then give each group its class names."""
        clients = _shuffled(_base(self.num_clients, self.alpha, self.base), examples, draws)
        names = conventions(len(self.groups), examples.num_classes, draws)
        groups = np.repeat(np.arange(len(self.groups)), self.groups)
        shifts = (None, *(Relabel(tuple(permutation)) for permutation in names[1:].tolist()))
        return Assignment(clients, groups, tuple(shifts[group] for group in groups))


@dataclass(frozen=True)
class FlippedFeatures(ClientPartitioner):
    """Two groups of clients, over any partition; one has other labels wherever a frequent token stands.

    Source: FedGMCC's concept shift between genomic reads (Section V and Appendix B).

    Attributes
    ----------
    num_clients
        Number of clients K.
    groups
        Number of clients in each of two groups; the second group's labels are flipped.
    most
        How many of the most frequent tokens; see :class:`fedclust.data.shifts.FlipLabels`.
    base
        Partition to apply the groups to, as in :class:`Domains`.

    Raises
    ------
    ValueError
        If there are not two groups, or a setting is outside its range.
    """

    num_clients: int
    groups: Sequence[int]
    most: int
    base: ClientPartitioner | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups(self.groups, self.num_clients)
        _base(self.num_clients, None, self.base)
        if len(self.groups) != 2:
            raise ValueError(
                f"groups must be two sizes, of clients as they are and flipped, got {list(self.groups)}"
            )
        FlipLabels(self.most)

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Deal the examples by the base partition, then flip the labels of the second group."""
        clients = _shuffled(_base(self.num_clients, None, self.base), examples, draws)
        groups = np.repeat([0, 1], self.groups)
        flip = FlipLabels(self.most)
        return Assignment(clients, groups, tuple(flip if group else None for group in groups))


def conventions(num_groups: int, num_classes: int, draws: np.random.Generator) -> IntArray:
    """Draw class names so that no two groups use the same name for any class.

    The classes are put in a random circle; group g gives each class the name of the class g steps further on.

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
        raise ValueError(
            f"groups must be >= 1 each and add up to num_clients, {num_clients}, got {list(groups)}, "
            f"in all {sum(groups)}"
        )


def _base(num_clients: int, alpha: float | None, base: ClientPartitioner | None) -> ClientPartitioner:
    """Return the partition below the groups, with `num_clients` clients."""
    if base is None:
        return Iid(num_clients) if alpha is None else Dirichlet(num_clients, alpha)
    if alpha is not None:
        raise ValueError(f"alpha must be null where a base partition is given, got {alpha}")
    if isinstance(base, Domains | Conventions | FlippedFeatures):
        raise ValueError(f"base must be a partition without shifts of its own, got {type(base).__name__}")
    return replace(base, num_clients=num_clients)


def _shuffled(base: ClientPartitioner, examples: Examples, draws: np.random.Generator) -> IntArray:
    """Assign the examples by `base`, then renumber the clients at random."""
    clients = base.assign(examples, draws).clients
    renumbered = np.append(draws.permutation(clients.max() + 1), NOBODY)  # the last entry, index -1, stays -1
    return renumbered[clients]
