"""Spectral clustering of an affinity matrix for several numbers of clusters, each with its score."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import spectral_embedding
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedclust.clustering.fedgwc import large
from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.clustering.shared.scores import davies_bouldin
from fedclust.typing import FloatArray, IntArray

__all__ = ["AssignLabels", "Candidate", "ScoreOn", "best", "candidates", "join_small"]

ScoreOn = Literal["affinity", "embedding"]
AssignLabels = Literal["kmeans", "cluster_qr"]

# Affinities are raised to this for the embedding, which divides by their square root: a client with smaller
# ones only would get coordinates whose squares overflow.
SMALLEST = 1e-100

# Off-diagonal affinities that differ by less count as equal: the difference is rounding error.
SAME = 1e-12


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to divide the clients.

    Attributes
    ----------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    davies_bouldin
        Davies–Bouldin score >= 0, finite; smaller is better.
    """

    labels: IntArray
    davies_bouldin: float


def candidates(
    affinity: FloatArray,
    max_clusters: int,
    seed: int,
    *,
    min_cluster_size: int = 1,
    score_on: ScoreOn = "affinity",
    assign_labels: AssignLabels = "kmeans",
) -> dict[int, Candidate]:
    """Divide clients into 2, 3 … `max_clusters` clusters and score each division.

    The labels are those of ``sklearn.cluster.SpectralClustering(n, affinity="precomputed")`` on the matrix,
    after :func:`join_small`: one unusual client must not prevent a division of the others.
    The eigenvectors do not depend on n, so they are computed once and each n uses the first n of them.

    Parameters
    ----------
    affinity
        Symmetric affinities in [0, 1], shape (K, K); of float32 ones only the eigenvectors that are needed
        are computed, see :func:`fedclust.clustering.fedgwc.large.embedding`.
    max_clusters
        Largest number tried; cut to K − 1, above which the score is undefined.
    seed
        Seed >= 0 of the eigensolver's start and of K-means.
    min_cluster_size
        Smallest part of a candidate, >= 1.
    score_on
        Davies–Bouldin on the rows of ``"affinity"``, or on the spectral ``"embedding"`` in n dimensions
        (eigenvectors 2 to n + 1, as ``sklearn.manifold.SpectralEmbedding`` has it).
    assign_labels
        Method that assigns labels in the embedding, as in scikit-learn.

    Returns
    -------
    Candidates by requested number of clusters, without those that have fewer distinct clusters than
    requested, a single part of `min_cluster_size`, or an undefined score; empty if all affinities are equal.
    """
    num_clients = len(affinity)
    beyond = score_on == "embedding"  # one more eigenvector, since the first one is constant
    most = min(max_clusters, num_clients - 1 - beyond)
    if most < 2 or np.ptp(_off_diagonal(affinity)) <= SAME:
        return {}
    random_state = seed % 2**32  # the range scikit-learn accepts
    if affinity.dtype == np.float32:
        graph, embedding = affinity, large.embedding(affinity, most + beyond, random_state)
    else:
        graph = np.maximum(affinity, SMALLEST)
        embedding = spectral_embedding(
            graph, n_components=most + beyond, random_state=random_state, drop_first=False
        )
    divisions = {}
    # With one thread, K-means sums in the same order on every machine; so few columns need no more.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        # Fewer distinct clusters than requested: such a candidate is left out below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in range(2, most + 1):
            if assign_labels == "kmeans":
                means = KMeans(number, n_init=10, random_state=random_state)
                labels = means.fit_predict(embedding[:, :number])
            else:
                # scikit-learn offers this labelling only together with its own embedding.
                spectral = SpectralClustering(
                    number, affinity="precomputed", assign_labels=assign_labels, random_state=random_state
                )
                labels = spectral.fit_predict(graph)
            if len(np.unique(labels)) < number:
                continue
            labels = join_small(affinity, labels, min_cluster_size)
            if labels.any():
                divisions[number] = labels
    if beyond:
        scores = [
            davies_bouldin(embedding[:, 1 : number + 1], labels) for number, labels in divisions.items()
        ]
    elif affinity.dtype == np.float32:
        scores = large.davies_bouldin(affinity, list(divisions.values()))
    else:
        scores = [davies_bouldin(affinity, labels) for labels in divisions.values()]
    return {
        number: Candidate(labels, score)
        for (number, labels), score in zip(divisions.items(), scores, strict=True)
        if math.isfinite(score)
    }


def join_small(affinity: FloatArray, labels: IntArray, min_cluster_size: int) -> IntArray:
    """Dissolve clusters that are too small, the smallest first.

    Each client of such a cluster joins the one, of all others, whose mean row of the matrix is nearest to
    its own row; then sizes and means are recomputed, until no cluster is too small or one is left.

    Parameters
    ----------
    affinity
        Affinities, shape (K, K).
    labels
        Cluster of each client, shape (K,).
    min_cluster_size
        Smallest cluster that stays, >= 1.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).
    """
    labels = in_order_of_appearance(labels)
    while (sizes := np.bincount(labels)).min() < min_cluster_size and len(sizes) > 1:
        smallest = int(sizes.argmin())
        clients = labels == smallest
        means = np.stack([affinity[labels == part].mean(axis=0) for part in range(len(sizes))])
        distances = cdist(affinity[clients], means)
        distances[:, smallest] = np.inf
        labels[clients] = distances.argmin(axis=1)
        labels = in_order_of_appearance(labels)
    return labels


def best(found: Mapping[int, Candidate], max_davies_bouldin: float) -> IntArray | None:
    """Pick the division with the smallest score.

    Parameters
    ----------
    found
        Candidates by number of clusters, in ascending order: the fewest clusters win a tie.
    max_davies_bouldin
        Largest acceptable score.

    Returns
    -------
    Its labels, shape (K,); None if there is no candidate or its score is not acceptable.
    """
    smallest = min(found.values(), key=lambda candidate: candidate.davies_bouldin, default=None)
    if smallest is None or smallest.davies_bouldin > max_davies_bouldin:
        return None
    return smallest.labels


def _off_diagonal(matrix: FloatArray) -> FloatArray:
    # Without its last entry a K × K matrix in memory is K − 1 rows that begin on the diagonal: no copy.
    size = len(matrix)
    return np.ascontiguousarray(matrix).ravel()[:-1].reshape(size - 1, size + 1)[:, 1:]
