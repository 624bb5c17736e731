"""Cluster quality: by the clients' label distributions, and against a known grouping."""

import math

import numpy as np
from sklearn.metrics import adjusted_rand_score, rand_score, silhouette_score

from fedclust.clustering.shared import silhouettes
from fedclust.clustering.shared.scores import davies_bouldin
from fedclust.metrics.shares import label_shares
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "adjusted_rand_index",
    "rand_index",
    "wasserstein_adjusted_davies_bouldin",
    "wasserstein_adjusted_silhouette",
]


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
    if len(assignment) > silhouettes.MANY:
        return silhouettes.sampled_silhouette(frequencies, assignment)
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
