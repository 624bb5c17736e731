"""Tests of whether methods differ: ranks over many federations, and two methods on the same seeds."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import friedmanchisquare, permutation_test, rankdata, studentized_range

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import FloatArray


def mean_ranks(scores: ArrayLike) -> FloatArray:
    """Rank methods within each federation, the best first, and average.

    Source: Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006, Section
    3.2.2. Methods with equal scores share the mean of their ranks.

    Parameters
    ----------
    scores
        Score of each method (columns) on each federation (rows), larger is better, shape (N, k).

    Returns
    -------
    Mean rank of each method, in [1, k], shape (k,).

    Raises
    ------
    ValueError
        If `scores` is not a matrix of finite numbers.

    Examples
    --------
    >>> mean_ranks([[0.9, 0.8, 0.7], [0.6, 0.8, 0.6]])  # ranks 1, 2, 3 and 2.5, 1, 2.5
    array([1.75, 1.5 , 2.75])
    """
    table = np.asarray(scores, dtype=np.float64)
    check_shapes(scores=(table, "federations methods"))
    check_entries("finite", scores=table)
    return np.asarray(rankdata(-table, axis=1).mean(axis=0))


def friedman(scores: ArrayLike) -> float:
    """Test whether any of the methods differ, by Friedman's test.

    Parameters
    ----------
    scores
        As for :func:`mean_ranks`, with at least three methods and two federations.

    Returns
    -------
    p-value; 1 if all methods have the same score in every federation.

    Raises
    ------
    ValueError
        If there are fewer than three methods or two federations.

    Examples
    --------
    >>> round(friedman([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), 4)  # χ² = 4 with two degrees of freedom: exp(−2)
    0.1353
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 3:
        raise ValueError(f"scores must be of at least two federations and three methods, got {table.shape}")
    if (table == table[:, :1]).all():
        return 1.0
    return float(friedmanchisquare(*table.T).pvalue)


def sign_flip(differences: ArrayLike) -> float:
    """Test whether two methods differ on the same seeds, by flipping the signs of the differences.

    If the methods were equally good, each difference could as well have the other sign. All 2ⁿ combinations
    of signs are counted, so no value is below 2 / 2ⁿ; from n = 15 on, 16,384 of them are drawn.

    Source: Fisher, "The Design of Experiments", 1935, Section 21.

    Parameters
    ----------
    differences
        Score of one method minus score of the other, by seed, shape (n,).

    Returns
    -------
    Two-sided p-value in (0, 1].

    Raises
    ------
    ValueError
        If there is no difference, or one is not finite.

    Examples
    --------
    >>> sign_flip([0.1, 0.2, 0.3, 0.4])  # of 16 ways, this one and its opposite are as extreme
    0.125
    """
    values = np.asarray(differences, dtype=np.float64)
    check_shapes(differences=(values, "seeds"))
    check_entries("finite", differences=values)
    if len(values) == 1:
        return 1.0
    flips: dict[str, Any] = {"permutation_type": "samples", "n_resamples": 2**14, "random_state": 0}
    return float(permutation_test((values,), np.mean, vectorized=True, **flips).pvalue)


def critical_difference(num_methods: int, num_federations: int) -> float:
    """Compute the smallest difference of two mean ranks that is significant at 0.05 by Nemenyi's test.

    CD = q √(k (k + 1) / (6 N)), with q the upper 5 % point of the studentized range of k means, over √2.

    Source: Demšar, 2006, Section 3.2.2 and Table 5.

    Parameters
    ----------
    num_methods
        k >= 2.
    num_federations
        N >= 1.

    Raises
    ------
    ValueError
        If an argument is outside its range.

    Examples
    --------
    >>> round(critical_difference(2, 1), 2)  # for two methods 1.96 √(2·3/6), Table 5
    1.96
    """
    check_entries(">= 2", num_methods=num_methods)
    check_entries(">= 1", num_federations=num_federations)
    quantile = studentized_range.ppf(0.95, num_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(num_methods * (num_methods + 1) / (6 * num_federations)))
