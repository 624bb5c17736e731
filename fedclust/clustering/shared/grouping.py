"""Group clients: distances, agglomerative clustering, and the number of clusters by silhouettes."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedclust.metrics import silhouette
from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray

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

    Examples
    --------
    >>> in_order_of_appearance(["b", "a", "b"])
    array([0, 1, 0])
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def positions_of(clients: IntArray, members: IntArray) -> IntArray:
    """Find the positions of clients among the members of a cluster.

    Parameters
    ----------
    clients
        Client ids, shape (n,).
    members
        Ids of the cluster's clients, sorted, shape (K,).

    Returns
    -------
    Their positions in `members`, shape (n,).

    Raises
    ------
    ValueError
        If a client is not a member.

    Examples
    --------
    >>> positions_of(np.array([7]), members=np.array([3, 7]))
    array([1])
    """
    positions = np.searchsorted(members, clients)
    unknown = members.take(positions, mode="clip") != clients
    if unknown.any():
        raise ValueError(f"clients must be members of the cluster, got client {clients[unknown][0]}")
    return positions


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

    Examples
    --------
    >>> distances = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    >>> agglomerate(distances, num_clusters=None, threshold=5.0, linkage="average")
    array([0, 0, 1])
    """
    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)  # SciPy requires at least two
    pairs, heights = merges(distances, linkage)
    if threshold is not None:
        num_clusters = int(np.count_nonzero(heights > threshold)) + 1
    return cut(pairs, num_clusters or 1)


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

    Examples
    --------
    >>> distances = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
    >>> pairs, heights = merges(distances, "single")
    >>> pairs.tolist(), heights.tolist()  # clients 0 and 1 make cluster 3, which client 2 joins
    ([[0, 1], [2, 3]], [1.0, 4.0])
    """
    from scipy.cluster import hierarchy  # takes a while to import
    from scipy.spatial.distance import squareform

    tree = hierarchy.linkage(squareform(distances, checks=False), method=linkage)
    return tree[:, :2].astype(np.int64), tree[:, 2]


def cut(pairs: IntArray, num_clusters: int) -> IntArray:
    """Undo the last merges, until there are `num_clusters` clusters.

    Parameters
    ----------
    pairs
        Merges of :func:`merges`, shape (K − 1, 2).
    num_clusters
        Number of clusters, in 1 … K.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).

    Examples
    --------
    >>> cut(np.array([[0, 1], [2, 3]]), num_clusters=2)
    array([0, 0, 1])
    """
    num_clients = len(pairs) + 1
    labels = np.arange(2 * num_clients - 1)
    for merge in range(num_clients - num_clusters - 1, -1, -1):
        labels[pairs[merge]] = labels[num_clients + merge]  # the merged cluster already has its final label
    return in_order_of_appearance(labels[:num_clients])


def kmeans(
    points: FloatArray,
    number: int,
    seed: int,
    num_starts: int = 10,
    weights: FloatArray | None = None,
    tolerance: float = 1e-4,
) -> IntArray:
    """Group points by K-means with k-means++ seeding, on one thread, so that all machines sum alike.

    Parameters
    ----------
    points
        A row per client, shape (K, d).
    number
        Number of clusters.
    seed
        Seed of the starts, in [0, 2³²).
    num_starts
        Number of starts; the best one is used.
    weights
        Weight of each client, shape (K,); None for equal ones.
    tolerance
        Least change of the centres, relative to the points' variance, at which iteration continues.

    Returns
    -------
    Cluster of each client, shape (K,); fewer clusters than `number` if rows differ by round-off alone.

    Examples
    --------
    >>> labels = kmeans(np.array([[0.0], [1.0], [9.0]]), number=2, seed=0)
    >>> labels == labels[0]
    array([ True,  True, False])
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with thread_pools().limit(limits=1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer clusters
        means = KMeans(number, n_init=num_starts, random_state=seed, tol=tolerance)
        return means.fit_predict(points, sample_weight=weights).astype(np.int64)


@cache
def thread_pools() -> Any:
    """Return threadpoolctl's controller of the libraries that are loaded: looking for them takes 10 ms.

    Examples
    --------
    >>> with thread_pools().limit(limits=1, user_api="blas"):
    ...     np.eye(2) @ np.eye(2)
    array([[1., 0.],
           [0., 1.]])
    """
    import sklearn.cluster  # noqa: F401  # its OpenMP library is found only once it is loaded
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


_MOST_WITHOUT_BLAS = 128  # clients


@dataclass(frozen=True)
class Agglomeration(Checked):
    """Where agglomerative clustering stops.

    Attributes
    ----------
    linkage
        Distance between clusters: ``"single"``, ``"complete"`` or ``"average"``.
    num_clusters
        Number of clusters, or None.
    threshold
        Distance beyond which clusters stay apart, in the distances' unit, or None. When both are None, the
        mean silhouette chooses the number of clusters; setting both is an error.
    max_clusters
        Largest number that the silhouette chooses from, >= 1.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Agglomeration(num_clusters=2, threshold=0.5)
    Traceback (most recent call last):
        ...
    ValueError: num_clusters and threshold must not both be set, got 2 and 0.5
    """

    linkage: Linkage = "average"
    num_clusters: Annotated[int | None, ">= 1 or None"] = None
    threshold: Annotated[float | None, ">= 0 or None"] = None
    max_clusters: Annotated[int, ">= 1"] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clusters is not None and self.threshold is not None:
            given = f"{self.num_clusters} and {self.threshold}"
            raise ValueError(f"num_clusters and threshold must not both be set, got {given}")


@dataclass(frozen=True)
class Grouping(Agglomeration):
    """Settings of a method that groups clients by their distances, besides :class:`Agglomeration`'s.

    Attributes
    ----------
    min_silhouette
        If the mean silhouette chooses the number of clusters, its least value, in [-1, 1]; below it clients
        stay together. Clusters with 0.5 or more are called reasonable (Kaufman and Rousseeuw, "Finding
        Groups in Data", 1990). None of the papers has such a guard; None: off.

    Examples
    --------
    >>> Grouping(threshold=0.5).cautions()
    []
    """

    min_silhouette: Annotated[float | None, "in [-1, 1] or None"] = None

    def cautions(self) -> list[str]:
        """Warn where the silhouette stands in for the value that the paper sets per data set."""
        if self.num_clusters is not None or self.threshold is not None:
            return []
        least = ", at least 2 for three or more clients" if self.min_silhouette is None else ""
        return [
            "the paper sets a threshold or the number of clusters per data set; without "
            "strategy.parameters.threshold or strategy.parameters.num_clusters, the mean silhouette chooses "
            f"the number{least}"
        ]


@dataclass(frozen=True, eq=False)
class Details:
    """Details of an assignment, only for logs and plots.

    Attributes
    ----------
    distances
        Distances between clients, shape (K, K).
    scores
        Mean silhouette of each number of clusters tried; empty if the number was not chosen by it.
    """

    distances: FloatArray
    scores: dict[int, float]


def silhouettes_by_number(distances: FloatArray, stopping: Agglomeration) -> dict[int, float]:
    """Compute the mean silhouette of agglomerative clusters for each number that may be chosen.

    Parameters
    ----------
    distances
        Symmetric distances with diagonal 0, shape (K, K).
    stopping
        Linkage and largest number, which is never more than K − 1.

    Returns
    -------
    By number of clusters, from 2.

    Examples
    --------
    >>> points = np.array([0.0, 0.0, 9.0, 9.0])
    >>> distances = abs(np.subtract.outer(points, points))
    >>> silhouettes_by_number(distances, Agglomeration())  # of three clusters two are single clients
    {2: 1.0, 3: 0.5}
    """
    most = min(stopping.max_clusters, len(distances) - 1)
    if most < 2:
        return {}
    pairs, _ = merges(distances, stopping.linkage)
    return {number: silhouette(distances, cut(pairs, number)) for number in range(2, most + 1)}


def group(distances: FloatArray, grouping: Grouping) -> tuple[IntArray, Details]:
    """Group clients by agglomerative clustering. Nothing is random.

    Parameters
    ----------
    distances
        Distances between clients, shape (K, K).
    grouping
        Where to stop. A `num_clusters` above K counts as K.

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    details
        The distances, and the silhouettes that chose the number of clusters.

    Examples
    --------
    >>> points = np.array([0.0, 0.0, 9.0, 9.0])
    >>> labels, details = group(abs(np.subtract.outer(points, points)), Grouping())
    >>> labels
    array([0, 0, 1, 1])
    """
    number, scores = grouping.num_clusters, {}
    if number is None and grouping.threshold is None:
        scores = silhouettes_by_number(distances, grouping)
        best = max(scores, key=scores.__getitem__, default=1)  # the first of equal ones, so the fewest
        least = -np.inf if grouping.min_silhouette is None else grouping.min_silhouette
        number = best if scores.get(best, -np.inf) >= least else 1
    if number is not None:
        number = min(number, len(distances))
    labels = agglomerate(distances, number, grouping.threshold, grouping.linkage)
    return labels, Details(distances, scores)


def fill_in(
    labels: IntArray, distances: FloatArray, clients: IntArray, num_clients: int
) -> tuple[IntArray, FloatArray]:
    """Extend a grouping to clients that did not answer: they join the largest group.

    Parameters
    ----------
    labels
        Group of each client that answered, from 0 without gaps, shape (n,).
    distances
        Their distances, shape (n, n).
    clients
        Their ids, shape (n,).
    num_clients
        Number of all clients K.

    Returns
    -------
    assignment
        Group of each client, numbered in order of first appearance, shape (K,).
    distances
        Distances between all, NaN if one of the two did not answer, shape (K, K).

    Examples
    --------
    >>> labels, distances = np.array([0, 0, 1]), np.zeros((3, 3))
    >>> assignment, _ = fill_in(labels, distances, clients=np.array([0, 1, 3]), num_clients=4)
    >>> assignment
    array([0, 0, 0, 1])
    """
    assignment = np.full(num_clients, np.argmax(np.bincount(labels)), dtype=np.int64)
    assignment[clients] = labels
    matrix = np.full((num_clients, num_clients), np.nan)
    matrix[np.ix_(clients, clients)] = distances
    return in_order_of_appearance(assignment), matrix


def cosine_distances(vectors: FloatArray) -> FloatArray:
    """Compute 1 − cos of the angle between any two vectors; 1 if one of the two is zero.

    Parameters
    ----------
    vectors
        A row per client, shape (K, d).

    Returns
    -------
    Distances in [0, 2], symmetric with diagonal 0, shape (K, K), float64.

    Examples
    --------
    >>> cosine_distances(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
    array([[0., 1., 2.],
           [1., 0., 1.],
           [2., 1., 0.]])
    """
    rows = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    # On a busy machine BLAS's threads wait for each other: 0.6 s for 30 clients, 6 ms without them.
    cosines = unit @ unit.T if len(unit) > _MOST_WITHOUT_BLAS else np.einsum("kd,jd->kj", unit, unit)
    upper = np.triu(np.clip(1 - cosines, 0, 2), k=1)  # drops rounding errors on the diagonal
    return np.asarray(upper + upper.T)


def lp_distances(vectors: FloatArray, power: int) -> FloatArray:
    """Compute Manhattan (1) or Euclidean (2) distances between any two vectors.

    Parameters
    ----------
    vectors
        A row per client, shape (K, d).
    power
        1 or 2.

    Returns
    -------
    Distances >= 0, symmetric with diagonal 0, shape (K, K), float64.

    Examples
    --------
    >>> lp_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), power=2)
    array([[0., 5.],
           [5., 0.]])
    """
    from scipy.spatial.distance import pdist, squareform

    rows = np.asarray(vectors, dtype=np.float64)
    return np.asarray(squareform(pdist(rows, "cityblock" if power == 1 else "euclidean")))
