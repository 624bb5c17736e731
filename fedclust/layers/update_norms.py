"""A cap on the length of updates, so that one client's numbers cannot outweigh all others'.

An update of 1e30 is finite, and the mean of it and of a thousand honest ones is useless. Honest updates of
one round differ by small factors, whatever the clients' data (docs/SECURITY.md has figures), so one that is
many times as long as the round's median is left out, and its client named.

Below that cap a single client can still turn a weighted mean around, with a long update or with rows that
it does not have. What moves the mean is the product of both, the pull: with ``update_pull_cap`` a client's
weight is lowered until its pull is at most so many times the median's. It is off unless set: honest clients
reach ten where they have many times the others' rows and see them all each round (docs/ATTACKS.md), and it
needs each client's own model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from flwr.app import ArrayRecord

from fedclust.settings.run_options import DEFAULT_CAP, check_cap
from fedclust.support.array_bytes import to_numpy

__all__ = [
    "ANY",
    "DEFAULT_CAP",
    "Caps",
    "check_cap",
    "limited_weights",
    "too_long",
    "too_long_line",
    "update_norm",
]

_FEWEST = 3  # of two, either may be the one that is wrong


@dataclass(frozen=True)
class Caps:
    """How far clients may move a cluster's model.

    Attributes
    ----------
    norm
        How many times the median an update may be long; None for any length.
    pull
        How many times the median samples times length of an update count for at most; None for any.

    Raises
    ------
    ValueError
        If one is not above 1 and finite.
    """

    norm: float | None = None
    pull: float | None = None

    def __post_init__(self) -> None:
        check_cap(self.norm)
        check_cap(self.pull, "update_pull_cap")


ANY = Caps()
"""Any length and any pull."""


def update_norm(model: ArrayRecord, start: ArrayRecord) -> float:
    """Compute the length of what training changed, over all floating-point arrays; both are finite."""
    squares = 0.0
    with np.errstate(over="ignore"):
        for name, before in start.items():
            old = to_numpy(before)
            if old.dtype.kind != "f":
                continue
            new = to_numpy(model[name])
            change = np.subtract(new, old).ravel()
            square = float(np.dot(change, change))
            if not math.isfinite(square):  # squares of numbers that float32 holds may be none that it holds
                wide = new.astype(np.float64).ravel() - old.astype(np.float64).ravel()
                square = float(np.dot(wide, wide))
            squares += square
    return math.sqrt(squares)


def too_long(
    models: Sequence[float], clients: Sequence[float], clusters: Sequence[int], cap: float
) -> dict[int, float]:
    """Find the replies whose model moved too far.

    Parameters
    ----------
    models
        Length of the update of each reply's model, which several may share, shape (n,).
    clients
        Length of the update of each client itself, as it or its node says, shape (n,).
    clusters
        Cluster of each, shape (n,).
    cap
        How many times the median of `clients` an update may be long.

    Returns
    -------
    By position, the median that was exceeded. The median is over the reply's cluster, over all clusters
    where it has fewer than three replies; of fewer than three in all, none can be said to be too long.
    """
    if len(models) < _FEWEST:
        return {}
    medians = _medians(clients, clusters)
    return {
        position: medians[cluster]
        for position, (norm, cluster) in enumerate(zip(models, clusters, strict=True))
        if 0 < medians[cluster] < norm / cap
    }


def too_long_line(norm: float, median: float, cap: float) -> str:
    """Say why an update is left out."""
    most = f"{cap:g} times as long as the median of {median:.3g}"
    return f"update must be at most {most}, its length is {norm:.3g}"


def limited_weights(
    num_examples: Sequence[int], norms: Sequence[float], clusters: Sequence[int], cap: float
) -> list[int]:
    """Lower the numbers of samples of replies whose pull on a weighted mean is too large.

    Parameters
    ----------
    num_examples
        What each reply says, >= 1, shape (n,).
    norms
        Length of the update of each reply's own model, shape (n,).
    clusters
        Cluster of each, shape (n,).
    cap
        How many times the median a pull may be.

    Returns
    -------
    At least 1 and at most `num_examples`, shape (n,): so many that samples times the length of the update is
    at most `cap` times the median of that product, over the same replies as in :func:`too_long`.
    """
    if len(norms) < _FEWEST:
        return list(num_examples)
    medians = _medians([number * norm for number, norm in zip(num_examples, norms, strict=True)], clusters)
    limited = []
    for number, norm, cluster in zip(num_examples, norms, clusters, strict=True):
        most = cap * medians[cluster]
        limited.append(max(1, math.floor(most / norm)) if 0 < most < number * norm else number)
    return limited


def _medians(values: Sequence[float], clusters: Sequence[int]) -> dict[int, float]:
    """Compute each cluster's median; of clusters of fewer than three, that of all clusters."""
    everyone = median(values)
    by_cluster: dict[int, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        by_cluster.setdefault(cluster, []).append(value)
    return {cluster: median(own) if len(own) >= _FEWEST else everyone for cluster, own in by_cluster.items()}
