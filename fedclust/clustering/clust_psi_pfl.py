"""Clust-PSI-PFL: clusters from label counts, before training.

Jimenez-Gutierrez, Hassanzadeh, Anagnostopoulos, Chatzigiannakis and Vitaletti, "Clust-PSI-PFL: A Population
Stability Index Approach for Clustered Non-IID Personalized Federated Learning". Every client sends its number
of training examples of each class. Clients whose label distributions deviate similarly from the federation's
share a cluster.

Choices where the paper is not specific, and differences from it:

- Probabilities are clipped from below, because the index is infinite for a class that a client lacks; they
  are not renormalised. The released code adds a constant to every probability instead (`smoothing="add"`).
- The paper searches up to K − 1 clusters, and so does the default. Under mild Dirichlet skew the silhouette
  keeps rising as clusters get smaller (45 clusters of 100 clients were seen); ``max_clusters="sqrt"``, not in
  the paper, stops at ⌈√K⌉.
- Clients that are all equal, or fewer than three, form one cluster; the paper's loop would return nothing.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedclust.clustering.shared.grouping import in_order_of_appearance, kmeans
from fedclust.metrics import Smoothing, sample, silhouette, stability_index
from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of Clust-PSI-PFL.

    Attributes
    ----------
    epsilon
        Constant that keeps probabilities above 0: their lower bound, or the value added to them.
    smoothing
        ``"clip"`` raises probabilities below `epsilon` to it; ``"add"`` adds `epsilon` to every one, as the
        authors' released code does (with 1e-6).
    max_clusters
        Largest number of clusters tried, never more than K − 1: a number, ``"sqrt"`` for ⌈√K⌉, or None for
        K − 1 as in the paper.
    one_cluster
        Whether one cluster, with silhouette 0, is a candidate, as in the released code.
    num_starts
        Number of K-means runs with different initial centroids; the best one is used.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(max_clusters="sqrt").limit(101)  # ⌈√101⌉
    11
    """

    epsilon: Annotated[float, "in (0, 1)"] = 1e-4
    smoothing: Smoothing = "clip"
    max_clusters: int | Literal["sqrt"] | None = None
    one_cluster: bool = False
    num_starts: Annotated[int, ">= 1"] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        # bool is an int to Python, but `max_clusters: true` in a YAML file is a mistake.
        most = self.max_clusters
        if most not in ("sqrt", None) and (not isinstance(most, int) or isinstance(most, bool) or most < 2):
            raise ValueError(f"max_clusters must be a number >= 2, 'sqrt' or None, got {most!r}")

    def limit(self, num_clients: int) -> int | None:
        """Return `max_clusters` as a number for this many clients; None limits it to K − 1."""
        if self.max_clusters == "sqrt":
            return max(2, math.isqrt(num_clients - 1) + 1)  # ⌈√K⌉ without rounding error
        return self.max_clusters


@dataclass(frozen=True, eq=False)
class Details:
    """Details of an assignment, only for logs and plots.

    Attributes
    ----------
    scores
        Mean silhouette, in [-1, 1], of each number of clusters tried.
    stability
        Stability index of every client, PSI_i, in nats, shape (K,).
    weighted_stability
        WPSI: mean of `stability` weighted by the clients' numbers of examples, in nats.
    """

    scores: dict[int, float]
    stability: FloatArray
    weighted_stability: float


def features(
    counts: IntArray, epsilon: float = 1e-4, smoothing: Smoothing = "clip", federation: IntArray | None = None
) -> FloatArray:
    """Compute each client's standardised features: its index and the contribution of each class.

    Source: Clust-PSI-PFL, Section III-B; lines 3 and 4 of the selection algorithm.

    Parameters
    ----------
    counts, epsilon, smoothing, federation
        As for :func:`stability_index`; the federation's clients also determine each column's mean and
        variance.

    Returns
    -------
    Rows [PSI_i, PSI_{i,1} … PSI_{i,C}], each column with mean 0 and population variance 1, or 0 where all
    clients have the same value; shape (K, C + 1).

    Raises
    ------
    ValueError
        As for :func:`stability_index`.

    Examples
    --------
    >>> features(np.array([[3, 1], [1, 3]])).round(6)  # both have the same PSI
    array([[ 0., -1.,  1.],
           [ 0.,  1., -1.]])
    """
    whole = counts if federation is None else federation
    like = stability_index(whole, epsilon, smoothing)
    return _standardised(stability_index(counts, epsilon, smoothing, whole), like)


def cluster(features: FloatArray, parameters: Parameters, seed: int) -> tuple[IntArray, dict[int, float]]:
    """Group clients by K-means, with the number of clusters that has the best mean silhouette.

    Source: Clust-PSI-PFL, "PSI-based algorithm for selecting the number of clusters", lines 5 to 13. The
    smallest number wins a tie. Beyond 4,096 clients a score is the mean of 2,048 clients' silhouettes, each
    of them exact, the same clients for all numbers. K-means cannot make more clusters than there are distinct
    rows; larger numbers get the score of that finest grouping, as if K-means had been run.

    Parameters
    ----------
    features
        One row per client, shape (K, number of features).
    parameters
        Numbers of clusters to try, and number of K-means runs for each.
    seed
        Seed of K-means++, in [0, 2³²).

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,). All 0 when the rows are all
        the same or K < 3.
    scores
        Mean silhouette, in [-1, 1], of each number of clusters tried; empty if there was no choice.

    Examples
    --------
    >>> cluster(np.array([[0.0], [0.0], [9.0], [9.0]]), Parameters(max_clusters=2), seed=0)
    (array([0, 0, 1, 1]), {2: 1.0})
    """
    from scipy.spatial.distance import cdist

    num_clients = len(features)
    most = min(num_clients - 1, parameters.limit(num_clients) or num_clients - 1)
    num_distinct = len(np.unique(features, axis=0))
    labels: IntArray = np.zeros(num_clients, dtype=np.int64)
    scores = {1: 0.0} if parameters.one_cluster else {}
    if num_distinct == 1 or most < 2:
        return labels, scores

    clients = sample(num_clients, seed)
    distances = cdist(features[clients], features)
    best = 0.0 if parameters.one_cluster else -math.inf
    for number in range(2, min(most, num_distinct) + 1):
        candidate = kmeans(features, number, seed, parameters.num_starts)
        if np.unique(candidate).size < 2:
            continue
        scores[number] = silhouette(distances, candidate, clients)
        if scores[number] > best:
            best, labels = scores[number], candidate
    for number in range(num_distinct + 1, most + 1):
        if num_distinct in scores:
            scores[number] = scores[num_distinct]
    return in_order_of_appearance(labels), scores


def assign(counts: IntArray, parameters: Parameters, seed: int) -> tuple[IntArray, Details]:
    """Group clients by the label counts they reported.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    parameters
        Settings of the grouping.
    seed
        Seed of K-means++, in [0, 2³²).

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    details
        Details for logs and plots.

    Raises
    ------
    ValueError
        As for :func:`stability_index`.

    Examples
    --------
    >>> labels, details = assign(np.array([[9, 1], [9, 1], [1, 9], [1, 9]]), Parameters(), seed=0)
    >>> labels
    array([0, 0, 1, 1])
    >>> details.stability.round(4)  # 0.4 ln(0.9/0.5) − 0.4 ln(0.1/0.5) = 0.4 ln 9
    array([0.8789, 0.8789, 0.8789, 0.8789])
    """
    index = stability_index(counts, parameters.epsilon, parameters.smoothing)
    labels, scores = cluster(_standardised(index), parameters, seed)
    stability = index.sum(axis=1)
    weighted = np.average(stability, weights=np.asarray(counts, dtype=np.float64).sum(axis=1))  # Eq. 3
    return labels, Details(scores=scores, stability=stability, weighted_stability=float(weighted))


def _standardised(index: FloatArray, like: FloatArray | None = None) -> FloatArray:
    table = np.column_stack([index.sum(axis=1), index])
    whole = table if like is None else np.column_stack([like.sum(axis=1), like])
    mean, spread = whole.mean(axis=0), whole.std(axis=0)
    # A sum over classes in another order differs in its last bits. Scaled to variance 1, such a difference
    # would count as much as a real one: clients with one class each all have the same PSI_i, for example.
    precision = np.finfo(np.float64).eps
    constant = spread <= len(whole) * precision * np.maximum(np.abs(mean), precision)
    return np.where(constant, 0.0, (table - mean) / np.where(constant, 1.0, spread))
