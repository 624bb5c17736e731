"""FMCL: clusters from foundation-model prototypes, before training.

Ali and Brattain, "FMCL: Class-Aware Client Clustering with Foundation Model Representations for
Heterogeneous Federated Learning", arXiv:2604.27510, 2026. Every client sends, per class, the mean embedding
of its examples under a frozen encoder (its prototype) and the class's share of its data. Clients with
similar prototypes of shared classes share a cluster.

Choices where the paper is not specific:

- If no two clients share a class, there is no finite distance to take percentiles of, and all distances are
  1. Percentiles are linear, over both orders of every pair.
- One cluster has silhouette 0. A local maximum is higher than both its neighbours in the window, so the
  window's ends do not count; the "largest" one has the highest silhouette. "The selected cluster count
  corresponds to the dominant local maximum of the silhouette curve" (Section 3.2.4): a local maximum below an
  end of the window is not dominant, and Algorithm 5 goes on as without one. That has the paper's K = 3 for 20
  clients, three classes and α = 0.1 in 39 of 40 draws; counting every local maximum has it in 22
  (docs/methods/fmcl.md). `local_maximum="any"` counts every one.
- A window reaches at most to K − 1 clusters, where the silhouette ends, and to `max_clusters`.

Beyond 4,096 clients distances are in single precision; a cosine's error is then about 10⁻⁷.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedclust.clustering.shared import grouping
from fedclust.clustering.shared.grouping import Agglomeration, agglomerate, silhouettes_by_number
from fedclust.typing import FloatArray, IntArray

LocalMaximum = Literal["dominant", "any"]

_MANY = 4096  # clients; distances of more are in single precision
# Entries of one block of a pairwise matrix, 32 MB in double precision; about six are in memory at a time.
_BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Parameters(Agglomeration):
    """Settings of FMCL, besides those of :class:`~fedclust.clustering.shared.grouping.Agglomeration`.

    Unless a number of clusters or a threshold is set, Algorithm 5 chooses the number, up to `max_clusters`
    (K_max).

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
    local_maximum
        Which local maxima of the silhouette Algorithm 5 counts: ``"dominant"``, those that nothing in the
        window exceeds, or ``"any"``.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(beta=0.0)
    Traceback (most recent call last):
        ...
    ValueError: beta must be > 0, got 0.0
    """

    alpha: Annotated[float, ">= 0"] = 1.0
    beta: Annotated[float, "> 0"] = 100.0
    epsilon: Annotated[float, "> 0"] = 1e-3
    overlap: bool = True
    local_maximum: LocalMaximum = "dominant"


@dataclass(frozen=True, eq=False)
class Details(grouping.Details):
    """Details of an assignment, besides those of :class:`~fedclust.clustering.shared.grouping.Details`.

    Attributes
    ----------
    variation
        Coefficient of variation of the distances, which determined the window.
    """

    variation: float


def pooled(prototypes: FloatArray, counts: IntArray, assignment: IntArray) -> tuple[FloatArray, FloatArray]:
    """Average the prototypes of each cluster's clients, weighted by examples.

    Parameters
    ----------
    prototypes
        Mean embedding of each class on each client, shape (K, C, d); ignored for a class that a client lacks.
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, 0…G−1, shape (K,).

    Returns
    -------
    means
        Mean embedding of each class in each cluster, shape (G, C, d); 0 for a class that none of its clients
        has.
    counts
        Examples of each class in each cluster, shape (G, C).

    Examples
    --------
    >>> means, counts = pooled(np.array([[[0.0]], [[4.0]]]), np.array([[1], [3]]), np.array([0, 0]))
    >>> means.tolist(), counts.tolist()  # (1 · 0 + 3 · 4) / 4
    ([[[3.0]]], [[4.0]])
    """
    number = int(assignment.max()) + 1
    sums, means = np.zeros((number, counts.shape[1])), np.zeros((number, *prototypes.shape[1:]))
    np.add.at(sums, assignment, counts)
    for index in range(counts.shape[1]):
        mine = np.flatnonzero(counts[:, index])
        weighted = prototypes[mine, index].astype(np.float64) * counts[mine, index, None]
        np.add.at(means[:, index], assignment[mine], weighted)
    return means / np.maximum(sums, 1)[..., None], sums


def distances(prototypes: FloatArray, shares: FloatArray, parameters: Parameters) -> FloatArray:
    """Compute the distances between clients from their prototypes of shared classes.

    Source: FMCL, Algorithm 3. Computed class by class, one matrix product each, in blocks of clients, in
    double precision up to 4,096 clients, whatever the precision of the prototypes.

    Parameters
    ----------
    prototypes
        Mean embedding of each class on each client, shape (K, C, d); ignored for a class that a client lacks.
    shares
        Share of each class among a client's examples, shape (K, C); 0 where it lacks the class.
    parameters
        Settings of the distances.

    Returns
    -------
    Distances >= 0, symmetric with diagonal 0, shape (K, K), float64; float32 beyond 4,096 clients.

    Examples
    --------
    >>> prototypes, shares = np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), np.array([[1.0], [1.0]])
    >>> distances(prototypes, shares, Parameters(epsilon=1e-9)).round(6)  # orthogonal, one class shared
    array([[0., 1.],
           [1., 0.]])
    """
    prototypes, shares = np.asarray(prototypes), np.asarray(shares, dtype=np.float64)
    num_clients, epsilon = len(shares), parameters.epsilon
    precision = np.float32 if num_clients > _MANY else np.float64
    matrix = np.empty((num_clients, num_clients), dtype=precision)
    height = max(1, _BLOCK_ENTRIES // num_clients)
    for start in range(0, num_clients, height):
        # Some rows, from the diagonal on; the rest of the matrix follows by symmetry.
        stop = min(start + height, num_clients)
        apart, shared = _block(prototypes[start:], shares[start:].astype(precision), stop - start, epsilon)
        if parameters.overlap:  # the power in double precision, which the smallest overlaps need
            overlap = np.maximum(shared.astype(np.float64), epsilon)
            apart *= np.minimum(overlap**-parameters.alpha, parameters.beta)
        apart[shared == 0] = np.inf
        upper = np.triu(apart[:, : stop - start], k=1)
        matrix[start:stop, start:stop] = upper + upper.T
        matrix[start:stop, stop:] = apart[:, stop - start :]
        matrix[stop:, start:stop] = apart[:, stop - start :].T

    undefined = np.isinf(matrix)
    if undefined.any():
        known = matrix[~undefined & ~np.eye(num_clients, dtype=bool)]
        p95, p99 = np.percentile(known, [95, 99], overwrite_input=True) if known.size else (0.5, 1.0)
        matrix[undefined] = min(2 * p95, p99)
    return matrix


def num_clusters(
    silhouettes: Mapping[int, float], variation: float, local_maximum: LocalMaximum = "dominant"
) -> int:
    """Choose the number of clusters.

    Source: FMCL, Algorithm 5 and Section 4.5. The variation of the distances sets a window of candidates. The
    highest local maximum of the silhouette in it wins, and of equal ones the fewest clusters; without a local
    maximum, the best of all numbers.

    Parameters
    ----------
    silhouettes
        Mean silhouette of each number of clusters, 1, 2, …
    variation
        Coefficient of variation of the distances.
    local_maximum
        Which local maxima count, see :class:`Parameters`.

    Examples
    --------
    >>> num_clusters({1: 0.0, 2: 0.4, 3: 0.7, 4: 0.5}, variation=0.5)  # window 2 to 6
    3
    >>> curve = {1: 0.0, 2: 0.81, 3: 0.34, 4: 0.1, 5: 0.11, 6: 0.1}
    >>> num_clusters(curve, variation=0.5), num_clusters(curve, variation=0.5, local_maximum="any")
    (2, 5)
    """
    # The limits are the same for all data sets.
    least, most = (1, 3) if variation < 0.35 else (2, 6) if variation < 0.70 else (3, 10)
    window = range(least, min(most, max(silhouettes)) + 1)
    inner = window[1:-1]
    peaks = [each for each in inner if silhouettes[each - 1] < silhouettes[each] > silhouettes[each + 1]]
    if local_maximum == "dominant":
        top = max((silhouettes[each] for each in window), default=0.0)
        peaks = [each for each in peaks if silhouettes[each] == top]
    return max(peaks or silhouettes, key=silhouettes.__getitem__)  # the first of equal ones, so the smallest


def cluster(distances: FloatArray, parameters: Parameters) -> tuple[IntArray, dict[int, float]]:
    """Group clients by agglomerative clustering.

    Source: FMCL, Algorithm 4; when neither a number nor a threshold is given, Algorithm 5 chooses the number.

    Parameters
    ----------
    distances
        Distances between clients, shape (K, K).
    parameters
        Linkage, and where to stop.

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    scores
        Mean silhouette of each number of clusters tried; empty when the number was not chosen.

    Raises
    ------
    ValueError
        If there are more clusters than clients.

    Examples
    --------
    >>> matrix = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    >>> cluster(matrix, Parameters(threshold=5.0))
    (array([0, 0, 1]), {})
    """
    number, scores = parameters.num_clusters, {}
    if number is not None and number > len(distances):
        raise ValueError(f"num_clusters must be <= {len(distances)}, the number of clients, got {number}")
    if number is None and parameters.threshold is None:
        scores = {1: 0.0} | silhouettes_by_number(distances, parameters)
        number = num_clusters(scores, variation(distances), parameters.local_maximum)
    return agglomerate(distances, number, parameters.threshold, parameters.linkage), scores


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
        As for :func:`cluster`.

    Examples
    --------
    >>> prototypes = np.array([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    >>> labels, details = assign(prototypes, np.ones((3, 1)), Parameters(threshold=0.5))
    >>> labels
    array([0, 0, 1])
    """
    matrix = distances(prototypes, shares, parameters)
    labels, scores = cluster(matrix, parameters)
    return labels, Details(distances=matrix, variation=variation(matrix), scores=scores)


def _block(
    prototypes: FloatArray, shares: FloatArray, height: int, epsilon: float
) -> tuple[FloatArray, FloatArray]:
    """Compare the first `height` of these clients with all of them: d_cap and Ω, shape (height, K)."""
    apart = np.zeros((height, len(shares)), dtype=shares.dtype)
    shared = np.zeros_like(apart)
    for index in range(shares.shape[1]):
        theirs = np.flatnonzero(shares[:, index])  # clients that have the class, those of the block first
        mine = theirs[theirs < height]
        means = prototypes[theirs, index].astype(shares.dtype)
        norms, weights = np.linalg.norm(means, axis=1), shares[theirs, index]
        cosine = means[: len(mine)] @ means.T / (np.outer(norms[: len(mine)], norms) + epsilon)
        common = np.minimum.outer(weights[: len(mine)], weights)
        pairs = np.ix_(mine, theirs)
        # Rounding error can make the cosine of two long parallel vectors larger than 1.
        apart[pairs] += common * np.maximum(1 - cosine, 0)
        shared[pairs] += common
    return apart / (shared + epsilon), shared


def variation(distances: FloatArray) -> float:
    """Compute the coefficient of variation of the distances between different clients, shape (K, K).

    Examples
    --------
    >>> matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    >>> round(variation(matrix), 4)  # mean 2, standard deviation √(2/3)
    0.4082
    """
    between = distances[~np.eye(len(distances), dtype=bool)]
    if not between.any():
        return 0.0
    return float(between.std(dtype=np.float64) / between.mean(dtype=np.float64))
