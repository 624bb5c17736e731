"""Spectral clustering of an affinity matrix for several numbers of clusters, each with its score.

Affinities in single precision are those of many clients, whose decomposition would take time cubic in their
number. Their few eigenvectors are computed by products with the matrix, and are less exact.
"""

import math
import warnings
from typing import Literal

import numpy as np

from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.metrics import davies_bouldin
from fedclust.typing import FloatArray, IntArray

ScoreOn = Literal["affinity", "embedding"]
AssignLabels = Literal["kmeans", "cluster_qr"]

SMALLEST = 1e-100
"""Affinities are raised to this for the embedding, which divides by their square root: a client with smaller
ones only would get coordinates whose squares overflow."""

_ITERATIONS = 30  # of LOBPCG: groups are found in a few; without groups the vectors mean nothing
_TOLERANCE = 1e-4
_SPARE = 3  # vectors beyond those wanted, with which the wanted ones converge sooner
_LINK = 1e-30  # between any two clients, so that the graph is connected also where affinities are 0

# Off-diagonal affinities that differ by less count as equal: the difference is rounding error.
SAME = 1e-12


def candidates(
    affinity: FloatArray,
    max_clusters: int,
    seed: int,
    *,
    min_cluster_size: int = 1,
    score_on: ScoreOn = "affinity",
    assign_labels: AssignLabels = "kmeans",
) -> dict[int, tuple[IntArray, float]]:
    """Divide clients into 2, 3 … `max_clusters` clusters and score each division.

    The labels are those of ``sklearn.cluster.SpectralClustering(n, affinity="precomputed")`` on the matrix,
    after :func:`join_small`: one unusual client must not prevent a division of the others.
    The eigenvectors do not depend on n, so they are computed once and each n uses the first n of them.

    Parameters
    ----------
    affinity
        Symmetric affinities in [0, 1], shape (K, K). For float32 ones the eigenvectors are those of
        :func:`few_eigenvectors`.
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
    By requested number of clusters, the cluster of each client, numbered in order of first appearance, shape
    (K,), and the finite Davies–Bouldin score; smaller is better. Without those that have fewer distinct
    clusters than requested, a single part of `min_cluster_size`, or an undefined score; empty if all
    affinities are equal.
    """
    from sklearn.cluster import KMeans, SpectralClustering
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.manifold import spectral_embedding
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    beyond = score_on == "embedding"  # one more eigenvector, since the first one is constant
    most = min(max_clusters, len(affinity) - 1 - beyond)
    if most < 2 or np.ptp(_off_diagonal(affinity)) <= SAME:
        return {}
    random_state = seed % 2**32  # the range scikit-learn accepts
    found = {}
    # With one thread, K-means sums in the same order on every machine; so few columns need no more.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        # Fewer distinct clusters than requested: such a candidate is left out below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        vectors = most + beyond
        if affinity.dtype == np.float32:
            graph, embedding = affinity, few_eigenvectors(affinity, vectors, random_state)
        else:
            graph = np.maximum(affinity, SMALLEST)
            embedding = spectral_embedding(
                graph, n_components=vectors, random_state=random_state, drop_first=False
            )
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
                score = davies_bouldin(embedding[:, 1 : number + 1] if beyond else affinity, labels)
                if math.isfinite(score):
                    found[number] = labels, score
    return found


def few_eigenvectors(affinity: FloatArray, size: int, seed: int) -> FloatArray:
    """Compute the first eigenvectors of the normalised Laplacian, as ``sklearn.manifold.spectral_embedding``.

    Only products with the matrix are needed (LOBPCG: Knyazev, "Toward the optimal preconditioned
    eigensolver", SIAM Journal on Scientific Computing 23(2), 2001). The iteration ends after a fixed number
    of steps: vectors that have not converged by then belong to eigenvalues that are nearly the same, which
    no division into groups explains. Affinities count as 10⁻³⁰ more than they are: clients that are like
    nobody are then one part, as they are in double precision, where no affinity is below 10⁻¹⁰⁰.

    Parameters
    ----------
    affinity
        Affinity W, float32, shape (K, K); the diagonal does not count.
    size
        Number of vectors.
    seed
        Seed >= 0 of the first vectors.

    Returns
    -------
    Shape (K, size), the first column of equal sign and, for connected clients, constant.
    """
    from scipy.linalg import LinAlgWarning
    from scipy.sparse.linalg import LinearOperator, lobpcg

    clients = len(affinity)
    diagonal = affinity.diagonal().astype(np.float64)
    degrees = np.maximum(affinity.sum(axis=1, dtype=np.float64) - diagonal, 0) + (clients - 1) * _LINK
    scale = 1 / np.sqrt(degrees)

    def product(vectors: FloatArray) -> FloatArray:
        scaled = vectors * scale[:, None]
        single = scaled.astype(np.float32)  # on the diagonal, too: there the products must cancel
        whole = (affinity @ single).astype(np.float64) - diagonal[:, None] * single
        return scale[:, None] * (whole + _LINK * (scaled.sum(axis=0) - scaled))

    operator = LinearOperator(
        (clients, clients), matvec=lambda x: product(x.reshape(-1, 1)).ravel(), matmat=product, dtype=float
    )
    first = np.random.default_rng(seed).standard_normal((clients, size + _SPARE))
    first[:, 0] = np.sqrt(degrees)  # the eigenvector of the largest eigenvalue, 1
    with warnings.catch_warnings():
        for kind in (UserWarning, LinAlgWarning):  # of vectors that have not converged, see above
            warnings.simplefilter("ignore", kind)
        values, vectors = lobpcg(operator, first, largest=True, tol=_TOLERANCE, maxiter=_ITERATIONS)
    chosen = np.argsort(-values, kind="stable")[:size]
    found = vectors[:, chosen] * scale[:, None]
    return np.asarray(found * np.sign(found[np.abs(found).argmax(axis=0), np.arange(size)]))


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
    from scipy.spatial.distance import cdist

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


def _off_diagonal(matrix: FloatArray) -> FloatArray:
    # Without its last entry a K × K matrix in memory is K − 1 rows that begin on the diagonal: no copy.
    size = len(matrix)
    return np.ascontiguousarray(matrix).ravel()[:-1].reshape(size - 1, size + 1)[:, 1:]
