"""Functions to group clients: renumbering, agglomerative clustering, silhouettes."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedclust.clustering.shared import silhouettes
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Linkage",
    "agglomerate",
    "check_distances",
    "check_linkage",
    "cut",
    "in_order_of_appearance",
    "merges",
    "silhouette",
]

Linkage = Literal["single", "complete", "average"]

_BLOCK = 1024  # rows checked at a time


def in_order_of_appearance(labels: ArrayLike) -> IntArray:
    """Renumber clusters 0, 1, 2 … in order of first appearance.

    Two labellings of the same grouping become equal, so assignments can be compared between runs.

    Parameters
    ----------
    labels
        Any label per client, shape (K,).

    Returns
    -------
    Labels 0…n−1 without gaps, int64, shape (K,).
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def silhouette(distances: FloatArray, labels: IntArray) -> float:
    """Compute the mean silhouette: how much closer clients are to their own cluster than to the next.

    Parameters
    ----------
    distances
        Pairwise distances with diagonal 0, shape (K, K).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.

    Returns
    -------
    Mean silhouette, in [-1, 1], rounded to 12 decimals so that rounding errors do not decide ties.
    """
    if len(labels) > silhouettes.MANY:
        return silhouettes.mean_silhouette(distances, labels)
    from sklearn.metrics import silhouette_score

    return round(float(silhouette_score(distances, labels, metric="precomputed")), 12)


def agglomerate(
    distances: FloatArray, num_clusters: int | None, threshold: float | None, linkage: Linkage
) -> IntArray:
    """Cluster agglomeratively: merge the two closest clusters repeatedly, starting from single clients.

    Parameters
    ----------
    distances
        Symmetric distances with diagonal 0, shape (K, K).
    num_clusters
        Stop at this many clusters, 1…K; or None.
    threshold
        Stop when the closest two are farther apart than this; or None. Exactly one of `num_clusters` and
        `threshold` must be given.
    linkage
        Distance between clusters: the smallest, the largest or the mean distance between their clients.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).
    """
    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)  # SciPy requires at least two
    pairs, heights = merges(distances, linkage)
    if threshold is not None:
        num_clusters = int(np.count_nonzero(heights > threshold)) + 1
    assert num_clusters is not None
    return cut(pairs, num_clusters)


def merges(distances: FloatArray, linkage: Linkage) -> tuple[IntArray, FloatArray]:
    """Merge the two closest clusters repeatedly, from single clients to one cluster.

    Parameters
    ----------
    distances
        Symmetric distances with diagonal 0, shape (K, K), K >= 2.
    linkage
        As for :func:`agglomerate`.

    Returns
    -------
    pairs
        The two clusters of each merge, shape (K − 1, 2): clients are 0 … K − 1, and merge i makes K + i.
    heights
        Their distance, shape (K − 1,), never decreasing.
    """
    from scipy.cluster import hierarchy  # takes a while to import
    from scipy.spatial.distance import squareform

    tree = hierarchy.linkage(squareform(distances, checks=False), method=linkage)
    return tree[:, :2].astype(np.int64), tree[:, 2]


def cut(pairs: IntArray, num_clusters: int) -> IntArray:
    """Undo the last merges, until there are so many clusters.

    Parameters
    ----------
    pairs
        Merges of :func:`merges`, shape (K − 1, 2).
    num_clusters
        Number of clusters, in 1 … K.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).
    """
    num_clients = len(pairs) + 1
    labels = np.arange(2 * num_clients - 1)
    for merge in range(num_clients - num_clusters - 1, -1, -1):
        labels[pairs[merge]] = labels[num_clients + merge]  # what it made has been named by a later one
    return in_order_of_appearance(labels[:num_clients])


def check_distances(distances: ArrayLike, name: str = "distances") -> FloatArray:
    """Check a distance matrix and return it as float64, or in single precision if it is.

    Parameters
    ----------
    distances
        Pairwise distances, shape (K, K).
    name
        Name of the matrix in the error message.

    Returns
    -------
    The same numbers, shape (K, K).

    Raises
    ------
    ValueError
        If it is not a square matrix, K >= 1, of finite numbers >= 0, symmetric, with diagonal 0.
    """
    matrix = np.asarray(distances)
    if matrix.dtype != np.float32:
        matrix = matrix.astype(np.float64, copy=False)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"{name} must have shape (clients, clients), got shape {matrix.shape}")
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(matrix), _BLOCK)]
    for rows in blocks:
        wrong = ~(np.isfinite(matrix[rows]) & (matrix[rows] >= 0))
        if wrong.any():
            raise ValueError(f"{name} must be finite and >= 0, got {matrix[rows][wrong][0]}")
    if np.diagonal(matrix).any():
        raise ValueError(f"{name} must be 0 on the diagonal, got {np.diagonal(matrix).max()}")
    if not all(np.allclose(matrix[rows], matrix[:, rows].T) for rows in blocks):
        most = max(float(np.abs(matrix[rows] - matrix[:, rows].T).max()) for rows in blocks)
        raise ValueError(f"{name} must be symmetric, got differences up to {most}")
    return matrix


def check_linkage(linkage: str) -> None:
    """Check that `linkage` is valid; raise ValueError if not."""
    if linkage not in get_args(Linkage):
        raise ValueError(f"linkage must be one of {', '.join(get_args(Linkage))}, got {linkage!r}")
