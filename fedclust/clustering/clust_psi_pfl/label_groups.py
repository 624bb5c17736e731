"""Clusters from label counts, if clients differ and clusters should help; our rule for Clust-PSI-PFL.

The message is the paper's (Jimenez-Gutierrez et al., "Clust-PSI-PFL", see
:mod:`fedclust.clustering.clust_psi_pfl`): every client reports its label counts once, before training. The
paper's rule returns at least two clusters for any federation. Here clients are split only if

1. a test refutes that all have the same label distribution (:mod:`.homogeneity`), and
2. a split is predicted to lower the clients' error (:mod:`.predicted_error`): each model has fewer classes to
   distinguish, but fewer examples of each.

Differences from the paper: features keep their sign, because the paper's index is the same for a surplus
and a shortage of a class (five pairs of classes: adjusted Rand 0.07 at most without the sign, 1 with it);
features are not standardised, because that makes the noise of rare classes as large as real differences;
client distributions are smoothed towards the federation's by one example instead of clipped; larger clients
weigh more in K-means; the predicted error decides, not the silhouette.
"""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedclust.clustering.clust_psi_pfl.homogeneity import Homogeneity, homogeneity
from fedclust.clustering.clust_psi_pfl.predicted_error import choose, error_ratio
from fedclust.clustering.shared import wording
from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.metrics.shares import label_shares
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Details",
    "Parameters",
    "alone",
    "assign",
    "candidates",
    "decision",
    "features",
    "max_candidates",
    "reason",
]


_FAR, _LARGE = 3.0, 1000.0  # times the median client, see alone()
_FEWEST, _MOST = 5, 5000  # clients: of fewer, none is odd; of more, all distances would be too many


@dataclass(frozen=True)
class Parameters:
    """When and how label counts split clients.

    Attributes
    ----------
    level
        Clients count as different if their p-value is below this, in (0, 1).
    max_error_ratio
        Largest predicted ratio of the clusters' error to one model's at which clients are split, in (0, 1].
    max_clusters
        Largest number of clusters ever tried, >= 2; see :func:`max_candidates`.
    num_starts
        Number of K-means runs with different initial centroids; the best one is used, >= 1.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    level: float = 0.05
    max_error_ratio: float = 0.7
    max_clusters: int = 32
    num_starts: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"level must be in (0, 1), got {self.level}")
        if not 0 < self.max_error_ratio <= 1:
            raise ValueError(f"max_error_ratio must be in (0, 1], got {self.max_error_ratio}")
        if self.max_clusters < 2:
            raise ValueError(f"max_clusters must be >= 2, got {self.max_clusters}")
        if self.num_starts < 1:
            raise ValueError(f"num_starts must be >= 1, got {self.num_starts}")


@dataclass(frozen=True, eq=False)
class Details:
    """Details of an assignment, only for logs and plots.

    Attributes
    ----------
    homogeneity
        Outcome of the test that all clients are alike.
    error_ratios
        Predicted error of each number of clusters, relative to one model's; its minimum is chosen. Empty if
        the test did not refute that clients are alike, or there are fewer than three.
    stability
        Smoothed stability index of every client, Σ_c x_ic², in nats, shape (K,).
    weighted_stability
        Mean of `stability` weighted by the clients' numbers of examples, in nats.
    alone
        Clients whose label counts are unlike everybody else's, see :func:`alone`, sorted.
    """

    homogeneity: Homogeneity
    error_ratios: dict[int, float] = field(default_factory=dict)
    stability: FloatArray = field(default_factory=lambda: np.zeros(0))
    weighted_stability: float = 0.0
    alone: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def features(counts: IntArray, federation: IntArray | None = None) -> FloatArray:
    """Describe each client by its surplus (> 0) or shortage (< 0) of every class.

    x_ic = sign(P − q) √((P − q) ln(P / q)), the signed root of the stability index (Clust-PSI-PFL, Eq. 2),
    where q_c is the federation's share of the class and P_ic = (n_ic + q_c)/(n_i + 1) the client's, smoothed
    by one example of the federation's distribution.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    federation
        The same of the clients whose examples make q_c; `counts` itself unless given.

    Returns
    -------
    Features, 0 where a client has the federation's share and for classes that no client has, shape (K, C).

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    label_shares(counts)
    table = np.asarray(counts, dtype=np.float64)
    whole = table if federation is None else np.asarray(federation, dtype=np.float64)
    everyone = whole.sum(axis=0) / whole.sum()
    each = (table + everyone) / (table.sum(axis=1, keepdims=True) + 1)
    held = everyone > 0
    difference = each - everyone
    ratio = np.divide(each, everyone, out=np.ones_like(each), where=np.broadcast_to(held, each.shape))
    return np.sign(difference) * np.sqrt(np.maximum(difference * np.log(ratio), 0.0))


def max_candidates(num_clients: int, num_classes: int, max_clusters: int = 32) -> int:
    """Return the largest number of clusters to try: min(32, K − 1, max(⌈√K⌉, min(C, ⌊K/2⌋))).

    Parameters
    ----------
    num_clients
        Number of clients K >= 1.
    num_classes
        Number of classes C that some client has.
    max_clusters
        Upper bound for any K and C, the 32 above.

    Returns
    -------
    The number; below 2 if there is nothing to try.
    """
    root = math.isqrt(num_clients - 1) + 1  # ⌈√K⌉ without round-off
    return min(max_clusters, num_clients - 1, max(root, min(num_classes, num_clients // 2)))


def candidates(
    features: FloatArray, sizes: IntArray, max_clusters: int, seed: int, num_starts: int = 10
) -> dict[int, IntArray]:
    """Group clients by K-means, once for each number of clusters.

    Parameters
    ----------
    features
        One row per client, shape (K, C).
    sizes
        Examples on each client: its weight, > 0, shape (K,).
    max_clusters
        Largest number of clusters tried; numbers beyond the distinct rows are left out.
    seed
        Seed of K-means++, in [0, 2³²).
    num_starts
        K-means runs per number of clusters, >= 1.

    Returns
    -------
    For each number of clusters 2, 3 …, the cluster of each client, in order of first appearance, shape (K,).

    Raises
    ------
    ValueError
        If `seed` is outside its range.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), got {seed}")
    # K-means++ draws rows by position. The rows are sorted by values that do not depend on the numbering of
    # clients and classes, so that the clusters do not depend on it either.
    order = np.lexsort([*np.sort(features, axis=1).T, sizes])
    rows, weights = features[order], np.asarray(sizes, dtype=np.float64)[order]
    found = {}
    most = min(max_clusters, len(np.unique(features, axis=0)))
    # With one thread K-means adds up in the same order on every machine.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        # If rows differ only by round-off, K-means returns fewer clusters than requested; these are left out.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in range(2, most + 1):
            means = KMeans(number, init="k-means++", n_init=num_starts, random_state=seed)
            labels = np.empty(len(rows), dtype=np.int64)
            labels[order] = means.fit_predict(rows, sample_weight=weights)
            if np.unique(labels).size == number:
                found[number] = in_order_of_appearance(labels)
    return found


def alone(counts: IntArray, rows: FloatArray) -> IntArray:
    """List the clients whose label counts are unlike everybody else's, if they are few.

    That are those whose nearest other client's features are more than three times as far away as the median
    client's nearest, and those that say to have more than 1,000 times the median client's examples. More than
    a tenth of all clients are never listed: then being unlike others is how clients are.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    rows
        Their :func:`features`, shape (K, C).

    Returns
    -------
    Positions of the clients, ascending.
    """
    number = len(rows)
    if not _FEWEST <= number <= _MOST:
        return np.zeros(0, dtype=np.int64)
    apart = squareform(pdist(rows))
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(axis=1)
    sizes = np.sum(np.asarray(counts, dtype=np.float64), axis=1)
    odd = (nearest > _FAR * np.median(nearest)) | (sizes > _LARGE * np.median(sizes))
    found = np.flatnonzero(odd)
    return found if wording.few(len(found), number) else found[:0]


def assign(counts: IntArray, parameters: Parameters, seed: int) -> tuple[IntArray, Details]:
    """Group clients by the label counts they reported.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    parameters
        Settings of the split.
    seed
        Seed of K-means++, in [0, 2³²).

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,). All 0 when the test does
        not refute that clients are alike, no split is predicted to help, or K < 3.
    details
        Details for logs and plots.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, a client has no examples, or `seed` is outside
        its range.
    """
    told = np.asarray(counts)
    label_shares(told)
    counts = limit_sizes(told)
    tested = homogeneity(counts)
    rows, sizes = features(counts), np.sum(counts, axis=1)
    num_clients, num_classes = len(rows), int((np.sum(counts, axis=0) > 0).sum())
    grouped: dict[int, IntArray] = {}
    if tested.p_value < parameters.level and num_clients > 2:
        most = max_candidates(num_clients, num_classes, parameters.max_clusters)
        grouped = candidates(rows, sizes, most, seed, parameters.num_starts)
    ratios = {number: error_ratio(counts, labels) for number, labels in grouped.items()}
    chosen = choose(ratios, parameters.max_error_ratio)
    stability = (rows**2).sum(axis=1)
    return grouped.get(chosen, np.zeros(num_clients, dtype=np.int64)), Details(
        homogeneity=tested,
        error_ratios=ratios,
        stability=stability,
        weighted_stability=float(np.average(stability, weights=sizes)),
        alone=alone(told, rows),
    )


def reason(details: Details, parameters: Parameters) -> str:
    """Explain in words why label counts split clients, or why not.

    Parameters
    ----------
    details
        Details returned by :func:`assign`.
    parameters
        Its parameters.

    Returns
    -------
    Part of a sentence, the text after the colon in :func:`decision`.
    """
    chance = wording.chance(details.homogeneity.p_value)
    if details.homogeneity.p_value >= parameters.level:
        return f"clients' label shares differ no more than chance explains ({chance})"
    differ = f"clients' label shares differ ({chance})"
    if not details.error_ratios:
        few = len(details.stability) < 3
        return f"{differ}, but " + ("two clients are too few to group" if few else "too little to group by")
    ratios, limit = details.error_ratios, f"{parameters.max_error_ratio:.2f}"
    best = min(sorted(ratios), key=ratios.__getitem__)
    predicted = f"{ratios[best]:.2f} of one model's error"
    if choose(ratios, parameters.max_error_ratio) > 1:
        return f"{differ}, and {best} clusters are predicted to make {predicted}, below the limit of {limit}"
    return f"{differ}, but the best split, into {best}, is predicted to make {predicted}, limit {limit}"


def decision(details: Details, parameters: Parameters) -> str:
    """Explain in one sentence how many clusters label counts made, and why.

    Parameters
    ----------
    details
        Details returned by :func:`assign`.
    parameters
        Its parameters.

    Returns
    -------
    Such as ``one cluster: clients' label shares differ no more than chance explains (p = 0.43)``.
    """
    number = wording.clusters(choose(details.error_ratios, parameters.max_error_ratio))
    said = f"{number}: {reason(details, parameters)}"
    return f"{said}; {wording.alone(details.alone)}" if len(details.alone) else said
