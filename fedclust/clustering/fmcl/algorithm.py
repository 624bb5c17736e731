"""FMCL: clusters from foundation-model prototypes, before training.

Ali and Brattain, "FMCL: Class-Aware Client Clustering with Foundation Model Representations for
Heterogeneous Federated Learning", arXiv:2604.27510, 2026. Every client sends, per class, the mean embedding
of its examples under a frozen encoder (its prototype) and the class's share of its data. Clients with
similar prototypes of shared classes share a cluster.

Choices where the paper is not specific:

- If no two clients share a class, there is no finite distance to take percentiles of, and all distances are
  1. Percentiles are linear, over both orders of every pair.
- One cluster has silhouette 0. A local maximum is higher than both its neighbours in the window, so the
  window's ends do not count; the "largest" one has the highest silhouette.
- A window reaches at most to K − 1 clusters, where the silhouette ends, and to `max_clusters`.

Beyond 4,096 clients distances are in single precision, see :mod:`fedclust.clustering.fmcl.large`.
"""

from dataclasses import dataclass

import numpy as np

from fedclust.clustering.fmcl import large
from fedclust.clustering.shared.grouping import (
    Linkage,
    agglomerate,
    check_distances,
    check_linkage,
    cut,
    merges,
    silhouette,
)
from fedclust.typing import FloatArray, IntArray

__all__ = ["Details", "Parameters", "assign", "cluster", "distances", "num_clusters"]

# Entries of one float64 block of a pairwise matrix, 32 MB; about six such blocks live at a time.
_BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Parameters:
    """Settings of FMCL.

    Attributes
    ----------
    alpha
        How steeply distance grows as label overlap falls, >= 0.
    beta
        Upper bound of that growth, > 0.
    epsilon
        Small constant that keeps denominators and overlap above 0, > 0.
    overlap
        Whether distances are scaled by label overlap; off for the paper's ablation.
    linkage
        Distance between clusters: ``"single"``, ``"complete"`` or ``"average"``.
    num_clusters
        A fixed number of clusters, or None.
    threshold
        Distance beyond which clusters stay apart, or None. When both are None, Algorithm 5 chooses the number
        of clusters; setting both is an error.
    max_clusters
        Largest number of clusters Algorithm 5 tries (K_max).

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    alpha: float = 1.0
    beta: float = 100.0
    epsilon: float = 1e-3
    overlap: bool = True
    linkage: Linkage = "average"
    num_clusters: int | None = None
    threshold: float | None = None
    max_clusters: int = 10

    def __post_init__(self) -> None:
        _check_scaling(self.alpha, self.beta, self.epsilon)
        _check_stopping(self.num_clusters, self.threshold, self.max_clusters)
        check_linkage(self.linkage)


@dataclass(frozen=True, eq=False)
class Details:
    """Details of an assignment, only for logs and plots.

    Attributes
    ----------
    distances
        Distances between clients, shape (K, K).
    variation
        Coefficient of variation of the distances, which determined the window.
    scores
        Mean silhouette, in [-1, 1], of each number of clusters tried; empty when the number was not chosen.
    """

    distances: FloatArray
    variation: float
    scores: dict[int, float]


def distances(
    prototypes: FloatArray,
    shares: FloatArray,
    alpha: float = 1.0,
    beta: float = 100.0,
    epsilon: float = 1e-3,
    overlap: bool = True,
) -> FloatArray:
    """Compute the distances between clients from their prototypes of shared classes.

    Source: FMCL, Algorithm 3. Computed class by class, one matrix product each, in blocks of clients; all
    products and sums are in double precision, whatever the precision of the prototypes.

    Parameters
    ----------
    prototypes
        Mean embedding of each class on each client, shape (K, C, d); ignored for a class that a client lacks.
    shares
        Share of each class among a client's examples, shape (K, C); 0 where it lacks the class.
    alpha
        How steeply distance grows as label overlap falls, >= 0.
    beta
        Upper bound of that growth, > 0.
    epsilon
        Small constant that keeps denominators and overlap above 0, > 0.
    overlap
        Whether distances are scaled by label overlap.

    Returns
    -------
    Distances >= 0, symmetric with diagonal 0, shape (K, K), float64; float32 beyond 4,096 clients.

    Raises
    ------
    ValueError
        If shapes do not fit, a share is negative or not finite, the prototype of a class that a client has is
        not finite, or a number is outside its range.
    """
    _check_scaling(alpha, beta, epsilon)
    prototypes, shares = _checked(prototypes, shares)
    num_clients = len(shares)
    if num_clients > large.MANY:
        return large.distances(prototypes, shares, alpha, beta, epsilon, overlap)
    matrix = np.empty((num_clients, num_clients))
    height = max(1, _BLOCK_ENTRIES // num_clients)
    for start in range(0, num_clients, height):
        # Some rows, from the diagonal on; the rest of the matrix follows by symmetry.
        stop = min(start + height, num_clients)
        apart, shared = _block(prototypes[start:], shares[start:], stop - start, epsilon)
        if overlap:
            apart *= np.minimum(np.maximum(shared, epsilon) ** -alpha, beta)
        apart[shared == 0] = np.inf
        upper = np.triu(apart[:, : stop - start], k=1)
        matrix[start:stop, start:stop] = upper + upper.T
        matrix[start:stop, stop:] = apart[:, stop - start :]
        matrix[stop:, start:stop] = apart[:, stop - start :].T

    undefined = np.isinf(matrix)
    if undefined.any():
        known = matrix[~undefined & ~np.eye(num_clients, dtype=bool)]
        matrix[undefined] = min(2 * np.percentile(known, 95), np.percentile(known, 99)) if known.size else 1.0
    return matrix


def num_clusters(distances: FloatArray, max_clusters: int = 10, linkage: Linkage = "average") -> int:
    """Choose the number of clusters.

    Source: FMCL, Algorithm 5. The variation of the distances sets a window of candidates. The highest local
    maximum of the silhouette wins, and of equal ones the fewest clusters; without a local maximum, the best
    of all numbers up to `max_clusters`.

    Parameters
    ----------
    distances
        Distances between clients, shape (K, K).
    max_clusters
        Largest number tried, >= 1, cut to K − 1.
    linkage
        Distance between clusters: ``"single"``, ``"complete"`` or ``"average"``.

    Returns
    -------
    Number of clusters, in 1…max(K − 1, 1).

    Raises
    ------
    ValueError
        If `distances` is not a distance matrix, or another argument is outside its range.
    """
    _check_stopping(None, None, max_clusters)
    check_linkage(linkage)
    matrix = check_distances(distances)
    return _choose(_silhouettes(matrix, max_clusters, linkage), _variation(matrix))


def cluster(
    distances: FloatArray,
    num_clusters: int | None = None,
    threshold: float | None = None,
    linkage: Linkage = "average",
) -> IntArray:
    """Group clients by agglomerative clustering.

    Source: FMCL, Algorithm 4; when neither a number nor a threshold is given, Algorithm 5 chooses the number.

    Parameters
    ----------
    distances
        Distances between clients, shape (K, K).
    num_clusters
        Number of clusters, 1…K, or None.
    threshold
        Distance beyond which clusters are not merged, >= 0, or None.
    linkage
        Distance between clusters: ``"single"``, ``"complete"`` or ``"average"``.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).

    Raises
    ------
    ValueError
        If `distances` is not a distance matrix, both a number and a threshold are given, or an argument is
        outside its range.
    """
    parameters = Parameters(num_clusters=num_clusters, threshold=threshold, linkage=linkage)
    return _grouped(check_distances(distances), parameters)[0]


def assign(prototypes: FloatArray, shares: FloatArray, parameters: Parameters) -> tuple[IntArray, Details]:
    """Group clients by their class prototypes. Nothing is random, so there is no seed.

    Parameters
    ----------
    prototypes
        Mean embedding of each class on each client, shape (K, C, d).
    shares
        Share of each class among a client's examples, shape (K, C).
    parameters
        Settings of the distances and the grouping.

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    details
        Details for logs.

    Raises
    ------
    ValueError
        As for :func:`distances` and :func:`cluster`.
    """
    matrix = distances(
        prototypes, shares, parameters.alpha, parameters.beta, parameters.epsilon, parameters.overlap
    )
    labels, scores = _grouped(matrix, parameters)
    return labels, Details(distances=matrix, variation=_variation(matrix), scores=scores)


def _block(
    prototypes: FloatArray, shares: FloatArray, height: int, epsilon: float
) -> tuple[FloatArray, FloatArray]:
    """Compare the first `height` of these clients with all of them: d_cap and Ω, shape (height, K)."""
    apart = np.zeros((height, len(shares)))
    shared = np.zeros((height, len(shares)))
    for index in range(shares.shape[1]):
        theirs = np.flatnonzero(shares[:, index])  # clients that have the class, those of the block first
        mine = theirs[theirs < height]
        means = prototypes[theirs, index].astype(np.float64)
        norms, weights = np.linalg.norm(means, axis=1), shares[theirs, index]
        cosine = means[: len(mine)] @ means.T / (np.outer(norms[: len(mine)], norms) + epsilon)
        common = np.minimum.outer(weights[: len(mine)], weights)
        pairs = np.ix_(mine, theirs)
        # Rounding error can make the cosine of two long parallel vectors larger than 1.
        apart[pairs] += common * np.maximum(1 - cosine, 0)
        shared[pairs] += common
    return apart / (shared + epsilon), shared


def _silhouettes(matrix: FloatArray, max_clusters: int, linkage: Linkage) -> dict[int, float]:
    scores = {1: 0.0}
    most = min(max_clusters, len(matrix) - 1)
    pairs = merges(matrix, linkage)[0] if most > 1 else None  # the same for every number
    for number in range(2, most + 1):
        assert pairs is not None
        scores[number] = silhouette(matrix, cut(pairs, number))
    return scores


def _variation(matrix: FloatArray) -> float:
    if len(matrix) > large.MANY:
        return large.variation(matrix)
    between = matrix[~np.eye(len(matrix), dtype=bool)]
    return float(between.std() / between.mean()) if between.any() else 0.0


def _choose(scores: dict[int, float], variation: float) -> int:
    # Section 4.5 of the paper; the limits are the same for all data sets.
    least, most = (1, 3) if variation < 0.35 else (2, 6) if variation < 0.70 else (3, 10)
    inner = range(least + 1, min(most, max(scores)))
    peaks = [number for number in inner if scores[number - 1] < scores[number] > scores[number + 1]]
    return max(peaks or scores, key=scores.__getitem__)  # the first of equal ones, so the smallest


def _grouped(matrix: FloatArray, parameters: Parameters) -> tuple[IntArray, dict[int, float]]:
    number, scores = parameters.num_clusters, {}
    if number is not None and number > len(matrix):
        raise ValueError(f"num_clusters must be <= {len(matrix)}, the number of clients, got {number}")
    if number is None and parameters.threshold is None:
        scores = _silhouettes(matrix, parameters.max_clusters, parameters.linkage)
        number = _choose(scores, _variation(matrix))
    return agglomerate(matrix, number, parameters.threshold, parameters.linkage), scores


def _checked(prototypes: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    prototypes, shares = np.asarray(prototypes), np.asarray(shares, dtype=np.float64)
    if shares.ndim != 2 or not shares.size:
        raise ValueError(f"shares must have shape (clients, classes), got shape {shares.shape}")
    if prototypes.ndim != 3 or prototypes.shape[:2] != shares.shape:
        raise ValueError(
            f"prototypes must have shape {(*shares.shape, 'width')}, got shape {prototypes.shape}"
        )
    wrong = ~(np.isfinite(shares) & (shares >= 0))
    if wrong.any():
        raise ValueError(f"shares must be finite and >= 0, got {shares[wrong][0]}")
    # Client by client: a mask of all prototypes at once would need another quarter of their memory.
    for client, (means, present) in enumerate(zip(prototypes, shares > 0, strict=True)):
        broken = np.flatnonzero(present & ~np.isfinite(means).all(axis=1))
        if broken.size:
            raise ValueError(f"prototypes must be finite, got client {client}, class {broken[0]}")
    return prototypes, shares


def _check_scaling(alpha: float, beta: float, epsilon: float) -> None:
    if not alpha >= 0:
        raise ValueError(f"alpha must be >= 0, got {alpha}")
    if not beta > 0:
        raise ValueError(f"beta must be > 0, got {beta}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be > 0, got {epsilon}")


def _check_stopping(num_clusters: int | None, threshold: float | None, max_clusters: int) -> None:
    if num_clusters is not None and threshold is not None:
        raise ValueError(
            f"num_clusters and threshold must not both be set, got {num_clusters} and {threshold}"
        )
    if num_clusters is not None and num_clusters < 1:
        raise ValueError(f"num_clusters must be >= 1, got {num_clusters}")
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold must be >= 0, got {threshold}")
    if max_clusters < 1:
        raise ValueError(f"max_clusters must be >= 1, got {max_clusters}")
