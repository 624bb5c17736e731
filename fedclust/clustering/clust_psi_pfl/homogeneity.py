"""Test whether all clients have the same label distribution, by exact moments of their label counts.

Pearson's X² compares the table of label counts (clients × classes) with the counts expected from one
distribution for all. Its usual χ² reference fails if many cells expect less than one example, which is common
in a federation: with 20 examples per client, a cell expects 2 with 10 classes, but 1/3 with 62. The mean and
variance of X² when labels are assigned to clients at random, all totals fixed, are known exactly, whatever
the cells expect. A Gamma distribution with these two moments gives the p-value.

Source of the two moments: Haldane, "The mean and variance of χ², when used as a test of homogeneity, when
expectations are small", Biometrika 31, 1940; the form used here is Mielke and Berry's (1985).
"""

from dataclasses import dataclass

import numpy as np

from fedclust.metrics.shares import label_shares
from fedclust.typing import FloatArray, IntArray

__all__ = ["Homogeneity", "chi_square", "gamma_tail", "homogeneity", "permutation_moments"]


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
    """Measure how far label counts are from one distribution for all clients.

    X² = N (Σ n_ic² / (n_i N_c) − 1), which is Pearson's Σ (observed − expected)²/expected.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C). Classes that no client has are ignored.

    Returns
    -------
    X² >= 0; at most N·(min(K, C) − 1).

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    shares = label_shares(counts)
    table = np.asarray(counts, dtype=np.float64)
    held = table.sum(axis=0) > 0
    table, shares = table[:, held], shares[:, held]
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

    Raises
    ------
    ValueError
        If a total is not > 0, the two sums differ, or they are below 4.
    """
    rows, columns = np.asarray(client_totals, np.float64), np.asarray(class_totals, np.float64)
    for name, totals in (("client_totals", rows), ("class_totals", columns)):
        if totals.ndim != 1 or not totals.size or not totals.min() > 0:
            raise ValueError(f"{name} must be numbers > 0, shape (n,), got {totals}")
    total = float(rows.sum())
    if total != columns.sum():
        raise ValueError(f"class_totals must add up to {total:g} as client_totals do, got {columns.sum():g}")
    if total < 4:
        raise ValueError(f"client_totals must add up to >= 4, got {total:g}")

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
    from scipy.special import gammaincc  # imported where used: a run with one model for all needs none of it

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

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
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
