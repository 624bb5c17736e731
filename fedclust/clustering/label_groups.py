"""Clusters from label counts, if clients differ and clusters should help; our rule for Clust-PSI-PFL's data.

The message is the paper's (Jimenez-Gutierrez et al., see :mod:`fedclust.clustering.clust_psi_pfl`): every
client reports its label counts once, before training. The paper's rule returns at least two clusters for any
federation. Here clients are split only if

1. a test refutes that all have the same label distribution (:func:`homogeneity`), and
2. a split is predicted to lower the clients' error (:func:`error_ratio`): each model has fewer classes to
   distinguish, but fewer examples of each.

Differences from the paper: features keep their sign, because the paper's index is the same for a surplus
and a shortage of a class (five pairs of classes: adjusted Rand 0.07 at most without the sign, 1 with it);
features are not standardised, because that makes the noise of rare classes as large as real differences;
client distributions are smoothed towards the federation's by one example instead of clipped; larger clients
weigh more in K-means; the predicted error decides, not the silhouette.

The test: Pearson's X² compares the table of label counts (clients × classes) with the counts expected from
one distribution for all. Its usual χ² reference fails if many cells expect less than one example, which is
common in a federation: with 20 examples per client, a cell expects 2 with 10 classes, but 1/3 with 62. The
mean and variance of X² when labels are assigned to clients at random, all totals fixed, are known exactly,
whatever the cells expect. A Gamma distribution with these two moments gives the p-value. Source of the two
moments: Haldane, "The mean and variance of χ², when used as a test of homogeneity, when expectations are
small", Biometrika 31, 1940; the form used here is Mielke and Berry's (1985).
"""

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedclust.clustering.shared import wording
from fedclust.clustering.shared.grouping import in_order_of_appearance, kmeans
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.metrics import label_shares
from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Homogeneity:
    """Outcome of the test that all clients draw their labels from one distribution.

    Attributes
    ----------
    statistic
        Pearson's X² of the label counts; 0 when all clients have the same shares.
    mean, variance
        Mean and variance of X² over all ways to assign the same labels to clients of the same sizes.
    p_value
        Probability of an X² at least as large when clients are alike, in [0, 1]; 1 if nothing can be tested
        (one client, one class, fewer than four examples, or one example on every client).
    """

    statistic: float
    mean: float
    variance: float
    p_value: float


def chi_square(counts: IntArray) -> float:
    """Compute how far label counts are from one distribution for all clients.

    X² = N (Σ n_ic² / (n_i N_c) − 1), which is Pearson's Σ (observed − expected)²/expected.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.

    Returns
    -------
    X² >= 0; at most N·(min(K, C) − 1).
    """
    table = np.asarray(counts, dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    total = table.sum()
    # Rows with the same shares must give exactly 0, not the round-off of a difference of two equal sums.
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    return float(((table - expected) ** 2 / expected).sum())


def permutation_moments(client_totals: IntArray, class_totals: IntArray) -> tuple[float, float]:
    """Return the exact mean and variance of X² over all ways to assign the labels to the clients.

    Source: Haldane (1940), in the form E = N(K−1)(C−1)/(N−1) and
    V = 2N/(N−3)·(v(K)−w_r)(v(C)−w_c) + N²/(N−1)·w_r·w_c with v(k) = (k−1)(N−k)/(N−1),
    w_r = (N Σ 1/n_i − K²)/(N−2) and w_c = (N Σ 1/N_c − C²)/(N−2).

    Parameters
    ----------
    client_totals
        Examples on each client, n_i > 0, shape (K,).
    class_totals
        Examples of each class, N_c > 0, shape (C,), with the same sum N >= 4.

    Returns
    -------
    mean, variance
        Mean and variance of X². The variance is 0 if X² is the same for every assignment.
    """
    rows, columns = np.asarray(client_totals, np.float64), np.asarray(class_totals, np.float64)
    total = float(rows.sum())

    def freedom(number: int) -> float:
        return (number - 1) * (total - number) / (total - 1)

    def imbalance(totals: FloatArray) -> float:
        return float(total * (1 / totals).sum() - totals.size**2) / (total - 2)

    mean = total * (rows.size - 1) * (columns.size - 1) / (total - 1)
    by_row, by_column = imbalance(rows), imbalance(columns)
    variance = 2 * total / (total - 3) * (freedom(rows.size) - by_row) * (freedom(columns.size) - by_column)
    variance += total**2 / (total - 1) * by_row * by_column
    return mean, max(float(variance), 0.0)


def gamma_tail(value: float, mean: float, variance: float) -> float:
    """Return the probability that a Gamma variable with this mean and variance is at least `value`.

    Its shape is mean²/variance and its scale variance/mean. For a variance of 0 it is 1.

    Parameters
    ----------
    value
        Lower end of the tail, >= 0.
    mean
        Mean >= 0.
    variance
        Variance >= 0.

    Returns
    -------
    Probability in [0, 1].
    """
    if variance <= 0 or mean <= 0:
        return 1.0
    from scipy.special import gammaincc  # not needed by a run with one model for all

    return float(gammaincc(mean**2 / variance, value * mean / variance))


def homogeneity(counts: IntArray) -> Homogeneity:
    """Test whether all clients draw their labels from one distribution.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.

    Returns
    -------
    The outcome; a small p-value refutes that clients are alike.
    """
    statistic = chi_square(counts)
    rows, columns = np.sum(counts, axis=1), np.sum(counts, axis=0)
    columns = columns[columns > 0]
    if rows.sum() < 4 or rows.size < 2 or columns.size < 2:
        return Homogeneity(statistic, 0.0, 0.0, 1.0)
    mean, variance = permutation_moments(rows, columns)
    # If every assignment has the same X² (one client has one example, the other the rest, classes of one
    # size), its computed variance is only round-off.
    if variance <= 1e-12 * mean**2:
        variance = 0.0
    return Homogeneity(statistic, mean, variance, gamma_tail(statistic, mean, variance))


def error_ratio(counts: IntArray, labels: IntArray) -> float:
    """Predict the clients' mean error with one model per cluster, relative to one model for all.

    A model's error is assumed to grow with the number of classes it must distinguish, B = exp(entropy) − 1,
    and to fall with the root of its examples of the class:

    R = (1/K) Σ_i [B(π_g(i)) / B(q)] · Σ_c (n_ic / n_i) √((N_c + q_c) / a_g(i)c),

    with a_gc = q_c + Σ_{i∈g} n_ic (plus one example of the federation's distribution, so that no class has
    probability 0), π_g = a_g / Σ_c a_gc, N_c the examples of class c and q_c their share.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    labels
        Cluster of each client, 0…G−1, shape (K,).

    Returns
    -------
    Ratio > 0; 1 for one cluster, and for one class. Below 1, clusters are predicted to help.
    """
    from scipy.special import entr

    table = np.asarray(counts, dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    totals = table.sum(axis=0)
    everyone = totals / totals.sum()
    breadth = float(np.expm1(entr(everyone).sum()))
    if breadth <= 0:
        return 1.0
    held_by = np.zeros((int(np.max(labels)) + 1, totals.size))
    np.add.at(held_by, labels, table)
    held_by += everyone
    breadths = np.expm1(entr(held_by / held_by.sum(axis=1, keepdims=True)).sum(axis=1))
    shares = table / table.sum(axis=1, keepdims=True)
    scarcity = (shares * np.sqrt((totals + everyone) / held_by)[labels]).sum(axis=1)
    return float((breadths[labels] / breadth * scarcity).mean())


def choose(error_ratios: dict[int, float], max_error_ratio: float = 0.7) -> int:
    """Choose the number of clusters with the least predicted error, if that is low enough.

    Parameters
    ----------
    error_ratios
        Predicted error of each number of clusters tried, relative to one model's.
    max_error_ratio
        The least error must be below this.

    Returns
    -------
    The number, the smallest one on a tie; 1 if no error is low enough.
    """
    best = min(sorted(error_ratios), key=error_ratios.__getitem__, default=1)
    return best if best in error_ratios and error_ratios[best] < max_error_ratio else 1


_FAR, _LARGE = 3.0, 1000.0  # times the median client, see alone()
_FEWEST, _MOST = 5, 5000  # clients: with fewer, none is odd; with more, there are too many distances


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of clusters by label counts.

    Attributes
    ----------
    level
        Clients count as different if the test's p-value is below this, in (0, 1).
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

    level: Annotated[float, "in (0, 1)"] = 0.05
    max_error_ratio: Annotated[float, "in (0, 1]"] = 0.7
    max_clusters: Annotated[int, ">= 2"] = 32
    num_starts: Annotated[int, ">= 1"] = 10


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
    alone
        Clients whose label counts are unlike all others', see :func:`alone`, sorted.
    """

    homogeneity: Homogeneity
    error_ratios: dict[int, float] = field(default_factory=dict)
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
        Counts of the clients whose examples determine q_c; `counts` itself unless given.

    Returns
    -------
    Features, 0 where a client has the federation's share and for classes that no client has, shape (K, C).
    """
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
    """
    # K-means++ draws rows by position. The rows are sorted by values that do not depend on the numbering of
    # clients and classes, so that the clusters do not depend on it either.
    order = np.lexsort([*np.sort(features, axis=1).T, sizes])
    rows, weights = features[order], np.asarray(sizes, dtype=np.float64)[order]
    groupings = {}
    for number in range(2, min(max_clusters, len(np.unique(features, axis=0))) + 1):
        labels = np.empty(len(rows), dtype=np.int64)
        labels[order] = kmeans(rows, number, seed, num_starts, weights)
        if np.unique(labels).size == number:
            groupings[number] = in_order_of_appearance(labels)
    return groupings


def alone(counts: IntArray, rows: FloatArray) -> IntArray:
    """List the clients whose label counts are unlike all others', if they are few.

    These are the clients that are more than three times as far from their nearest other client, by features,
    as the median client is, and those that report more than 1,000 times the median client's examples. If they
    are more than a tenth of all clients, none is listed: then clients generally differ from each other.

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
    from scipy.spatial.distance import pdist, squareform

    number = len(rows)
    if not _FEWEST <= number <= _MOST:
        return np.zeros(0, dtype=np.int64)
    apart = squareform(pdist(rows))
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(axis=1)
    sizes = np.sum(np.asarray(counts, dtype=np.float64), axis=1)
    odd = (nearest > _FAR * np.median(nearest)) | (sizes > _LARGE * np.median(sizes))
    outliers = np.flatnonzero(odd)
    return outliers if wording.few(len(outliers), number) else outliers[:0]


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
    reported = np.asarray(counts)
    label_shares(reported)
    counts = limit_sizes(reported)
    test = homogeneity(counts)
    rows, sizes = features(counts), np.sum(counts, axis=1)
    num_clients, num_classes = len(rows), int((np.sum(counts, axis=0) > 0).sum())
    grouped: dict[int, IntArray] = {}
    if test.p_value < parameters.level and num_clients > 2:
        most = max_candidates(num_clients, num_classes, parameters.max_clusters)
        grouped = candidates(rows, sizes, most, seed, parameters.num_starts)
    ratios = {number: error_ratio(counts, labels) for number, labels in grouped.items()}
    chosen = choose(ratios, parameters.max_error_ratio)
    return grouped.get(chosen, np.zeros(num_clients, dtype=np.int64)), Details(
        homogeneity=test,
        error_ratios=ratios,
        alone=alone(reported, rows),
    )
