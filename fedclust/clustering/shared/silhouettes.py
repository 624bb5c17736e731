"""Silhouettes of many clients: no (K, K) matrix in double precision, and of some clients where all take long.

Source: Rousseeuw, "Silhouettes: A graphical aid to the interpretation and validation of cluster analysis",
1987. A client's silhouette is (b − a) / max(a, b), where a is its mean distance from the others of its
cluster and b that from the nearest other cluster; 0 for a client alone.
"""

from typing import Any

import numpy as np

from fedclust.typing import FloatArray, IntArray

__all__ = ["MANY", "SAMPLE", "mean_silhouette", "sample", "sampled_silhouette", "silhouettes"]

MANY = 4096
"""Beyond so many clients a mean silhouette is computed here, not by scikit-learn."""

SAMPLE = 2048
"""Clients whose silhouettes are averaged where those of all would take time quadratic in their number."""

_BLOCK = 256  # rows at a time
_DENSE = 256  # clusters: up to so many, who is in which is a matrix, which is faster


def silhouettes(distances: FloatArray, labels: IntArray, rows: IntArray) -> FloatArray:
    """Compute the silhouettes of some clients, each exactly.

    Parameters
    ----------
    distances
        Distances of these clients from all, shape (n, K).
    labels
        Cluster of each client, shape (K,), with at least two clusters.
    rows
        Their ids, shape (n,).

    Returns
    -------
    Silhouettes in [-1, 1], shape (n,).
    """
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    members: Any
    if len(sizes) > _DENSE:
        from scipy.sparse import csr_array

        members = csr_array((np.ones(len(codes)), codes, np.arange(len(codes) + 1)))
    else:
        members = np.zeros((len(codes), len(sizes)))
        members[np.arange(len(codes)), codes] = 1
    sums = np.asarray(np.asarray(distances, dtype=np.float64) @ members)
    own, each = codes[rows], np.arange(len(rows))
    within = sums[each, own] / np.maximum(sizes[own] - 1, 1)
    others = sums / sizes
    others[each, own] = np.inf
    nearest = others.min(axis=1)
    widest = np.maximum(within, nearest)
    known = (sizes[own] > 1) & (widest > 0)
    return np.divide(nearest - within, widest, out=np.zeros(len(rows)), where=known)


def mean_silhouette(distances: FloatArray, labels: IntArray) -> float:
    """Compute the mean silhouette of all clients, in blocks of rows.

    Parameters
    ----------
    distances
        Pairwise distances with diagonal 0, of any precision, shape (K, K).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.

    Returns
    -------
    Mean silhouette, in [-1, 1], rounded to 12 decimals as by
    :func:`fedclust.clustering.shared.grouping.silhouette`.
    """
    blocks = np.array_split(np.arange(len(labels)), -(-len(labels) // _BLOCK))
    total = sum(float(silhouettes(distances[rows], labels, rows).sum()) for rows in blocks)
    return round(total / len(labels), 12)


def sample(num_clients: int, seed: int) -> IntArray:
    """Draw the clients whose silhouettes stand for all, sorted; all of them up to :data:`MANY`.

    Parameters
    ----------
    num_clients
        Number of clients K.
    seed
        Seed of the draw.
    """
    if num_clients <= MANY:
        return np.arange(num_clients)
    return np.sort(np.random.default_rng(seed).choice(num_clients, SAMPLE, replace=False))


def sampled_silhouette(points: FloatArray, labels: IntArray, seed: int = 0) -> float:
    """Estimate the mean silhouette of Euclidean distances from some clients' exact silhouettes.

    The estimate has no bias. Its standard error is at most 1/√2048 = 0.022, where half of the clients have
    silhouette 1 and the others −1.

    Parameters
    ----------
    points
        A row per client, shape (K, d).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.
    seed
        Seed of the sample.

    Returns
    -------
    Mean silhouette of :func:`sample`, in [-1, 1].
    """
    from scipy.spatial.distance import cdist

    chosen = sample(len(points), seed)
    blocks = np.array_split(chosen, -(-len(chosen) // _BLOCK))
    total = sum(float(silhouettes(cdist(points[rows], points), labels, rows).sum()) for rows in blocks)
    return total / len(chosen)
