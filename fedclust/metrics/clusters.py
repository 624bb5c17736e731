"""Cluster quality: how well clusters are separated, and how well they agree with a known grouping.

Source of silhouettes: Rousseeuw, "Silhouettes: A graphical aid to the interpretation and validation of
cluster analysis", 1987. A client's silhouette is (b − a) / max(a, b), where a is its mean distance from the
others of its cluster and b that from the nearest other cluster; 0 for a client alone.
"""

import math

import numpy as np

from fedclust.metrics.heterogeneity import label_shares
from fedclust.typing import FloatArray, IntArray

_BLOCK = 256  # rows at a time

# scikit-learn treats centroids closer than this as equal and then scores the clusters as perfectly separated.
_TOUCHING = 1e-8


def davies_bouldin(points: FloatArray, labels: IntArray) -> float:
    """Compute the Davies–Bouldin score: cluster width relative to cluster distance; smaller is better.

    Source: Davies and Bouldin, "A Cluster Separation Measure", IEEE TPAMI 1(2), 1979; FedGWC, Eq. 41.

    Parameters
    ----------
    points
        One row per client, shape (K, features).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.

    Returns
    -------
    Score >= 0; infinite if two clusters have the same centroid (a division by 0).

    Raises
    ------
    ValueError
        If the number of clusters is not in 2…K − 1.
    """
    from scipy.spatial.distance import pdist
    from sklearn.metrics import davies_bouldin_score

    kinds = np.unique(labels)
    if not 2 <= len(kinds) < len(points):
        raise ValueError(f"labels must have 2 to {len(points) - 1} clusters, got {len(kinds)}")
    centroids = np.stack([points[labels == kind].mean(axis=0) for kind in kinds])
    if pdist(centroids).min() <= _TOUCHING:
        return math.inf
    return float(davies_bouldin_score(points, labels))


MANY = 4096
"""Beyond so many clients the silhouettes of some stand for all."""

_SAMPLE = 2048


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
    from scipy.sparse import csr_array

    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    members = csr_array((np.ones(len(codes)), codes, np.arange(len(codes) + 1)))
    sums = np.asarray(np.asarray(distances, dtype=np.float64) @ members)
    own, each = codes[rows], np.arange(len(rows))
    within = sums[each, own] / np.maximum(sizes[own] - 1, 1)
    others = sums / sizes
    others[each, own] = np.inf
    nearest = others.min(axis=1)
    widest = np.maximum(within, nearest)
    known = (sizes[own] > 1) & (widest > 0)
    return np.divide(nearest - within, widest, out=np.zeros(len(rows)), where=known)


def silhouette(distances: FloatArray, labels: IntArray, rows: IntArray | None = None) -> float:
    """Compute the mean silhouette: how much closer clients are to their own cluster than to the next.

    Computed in blocks of rows. Of some clients it estimates the mean of all without a bias; the standard
    error is at most 1/√2048 = 0.022 for those of :func:`sample`, where half of the clients have silhouette 1
    and the others −1.

    Parameters
    ----------
    distances
        Distances of some clients from all, of any precision, with 0 from themselves, shape (n, K).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.
    rows
        Ids of the n clients; None for all.

    Returns
    -------
    Mean silhouette, in [-1, 1], rounded to 12 decimals so that rounding errors do not decide ties.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
    total = sum(float(silhouettes(distances[block], labels, rows[block]).sum()) for block in blocks)
    return round(total / len(rows), 12)


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
    return np.sort(np.random.default_rng(seed).choice(num_clients, _SAMPLE, replace=False))


def wasserstein_adjusted_silhouette(counts: IntArray, assignment: IntArray) -> float | None:
    """Compute the silhouette of clusters by how unbalanced the clients' labels are (WAS).

    Source: FedGWC, Section 6 and Appendix B: the silhouette of the clients' class frequencies, each client's
    sorted in descending order. For sorted frequencies the Euclidean distance is a Wasserstein distance up to
    a constant (Eq. 38, p = 2), which cancels. Which classes are the frequent ones does not matter. Beyond
    4,096 clients it is the mean over 2,048 of them, drawn with a fixed seed.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,).

    Returns
    -------
    Mean silhouette in [-1, 1], larger is better; None if it is undefined, with one cluster or as many
    clusters as clients.

    Raises
    ------
    ValueError
        If the shapes do not fit, a count is negative, or a client has no examples.
    """
    frequencies, assignment = _sorted_frequencies(counts, assignment)
    if not _scorable(assignment):
        return None
    if len(assignment) > MANY:
        from scipy.spatial.distance import cdist

        rows = sample(len(assignment), 0)
        return silhouette(cdist(frequencies[rows], frequencies), assignment, rows)
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(frequencies, assignment))


def wasserstein_adjusted_davies_bouldin(counts: IntArray, assignment: IntArray) -> float | None:
    """Compute the Davies–Bouldin score of clusters by how unbalanced the clients' labels are (WADB).

    Source: FedGWC, Section 6 and Appendix B: the Davies–Bouldin score of the frequencies of
    :func:`wasserstein_adjusted_silhouette`.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,).

    Returns
    -------
    Score >= 0, smaller is better; None if it is undefined, with one cluster, as many clusters as clients, or
    two clusters with the same mean.

    Raises
    ------
    ValueError
        If the shapes do not fit, a count is negative, or a client has no examples.
    """
    frequencies, assignment = _sorted_frequencies(counts, assignment)
    if not _scorable(assignment):
        return None
    score = davies_bouldin(frequencies, assignment)
    return score if math.isfinite(score) else None


def rand_index(a: IntArray, b: IntArray) -> float:
    """Compute the agreement of two groupings.

    Source: Rand, "Objective Criteria for the Evaluation of Clustering Methods", 1971; FedGWC, Appendix E.

    Parameters
    ----------
    a, b
        Group of each client in either grouping, shape (K,); the numbering does not matter.

    Returns
    -------
    Share of the pairs of clients that both groupings put together or both keep apart, in [0, 1]; 1 for a
    single client.

    Raises
    ------
    ValueError
        If the groupings are empty or of different clients.
    """
    from sklearn.metrics import rand_score

    return float(rand_score(*_groupings(a, b)))


def adjusted_rand_index(a: IntArray, b: IntArray) -> float:
    """Compute the agreement of two groupings, adjusted for chance.

    Source: Hubert and Arabie, "Comparing Partitions", 1985. For a single cluster or random clusters the plain
    index can exceed one half by chance; the adjusted index is then 0 on average.

    Parameters
    ----------
    a, b
        Group of each client in either grouping, shape (K,); the numbering does not matter.

    Returns
    -------
    (index − expected) / (1 − expected), from the Rand index and its expectation over groupings with the same
    sizes; in [-0.5, 1], 0 on average for random groupings, 1 for equal groupings and for a single client.

    Raises
    ------
    ValueError
        If the groupings are empty or of different clients.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_groupings(a, b)))


def _groupings(a: IntArray, b: IntArray) -> tuple[IntArray, IntArray]:
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape or not a.size:
        raise ValueError(f"a and b must have shape (clients,), at least one, got {a.shape}, {b.shape}")
    return a, b


def _sorted_frequencies(counts: IntArray, assignment: IntArray) -> tuple[FloatArray, IntArray]:
    shares, assignment = label_shares(counts), np.asarray(assignment)
    if assignment.shape != shares.shape[:1]:
        raise ValueError(f"assignment must have shape {shares.shape[:1]} like counts, got {assignment.shape}")
    return np.sort(shares, axis=1)[:, ::-1], assignment


def _scorable(assignment: IntArray) -> bool:
    return 1 < len(np.unique(assignment)) < len(assignment)
