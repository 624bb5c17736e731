"""Functions to group clients: renumbering, agglomerative clustering, silhouettes."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Linkage",
    "agglomerate",
    "check_distances",
    "check_linkage",
    "in_order_of_appearance",
    "silhouette",
]

Linkage = Literal["single", "complete", "average"]


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
    from sklearn.cluster import AgglomerativeClustering  # takes a second to import

    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)  # scikit-learn requires at least two
    if threshold is not None:
        # scikit-learn stops at a distance equal to the threshold; here such clusters still merge.
        threshold = float(np.nextafter(threshold, np.inf))
    tree = AgglomerativeClustering(
        num_clusters, metric="precomputed", linkage=linkage, distance_threshold=threshold
    )
    return in_order_of_appearance(tree.fit_predict(distances))


def check_distances(distances: ArrayLike, name: str = "distances") -> FloatArray:
    """Check a distance matrix and return it as float64.

    Parameters
    ----------
    distances
        Pairwise distances, shape (K, K).
    name
        Name of the matrix in the error message.

    Returns
    -------
    The same numbers, float64, shape (K, K).

    Raises
    ------
    ValueError
        If it is not a square matrix, K >= 1, of finite numbers >= 0, symmetric, with diagonal 0.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"{name} must have shape (clients, clients), got shape {matrix.shape}")
    wrong = ~(np.isfinite(matrix) & (matrix >= 0))
    if wrong.any():
        raise ValueError(f"{name} must be finite and >= 0, got {matrix[wrong][0]}")
    if np.diagonal(matrix).any():
        raise ValueError(f"{name} must be 0 on the diagonal, got {np.diagonal(matrix).max()}")
    if not np.allclose(matrix, matrix.T):
        raise ValueError(f"{name} must be symmetric, got differences up to {np.abs(matrix - matrix.T).max()}")
    return matrix


def check_linkage(linkage: str) -> None:
    """Check that `linkage` is valid; raise ValueError if not."""
    if linkage not in get_args(Linkage):
        raise ValueError(f"linkage must be one of {', '.join(get_args(Linkage))}, got {linkage!r}")
