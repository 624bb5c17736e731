"""Predict from label counts whether one model per cluster makes a smaller error than one for all.

Our rule, not the paper's; :mod:`.label_groups` splits clients by it.
"""

import numpy as np
from scipy.special import entr

from fedclust.metrics.shares import label_shares
from fedclust.typing import IntArray

__all__ = ["choose", "error_ratio"]


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

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    shares = label_shares(counts)
    table = np.asarray(counts, dtype=np.float64)
    held = table.sum(axis=0) > 0
    table, shares = table[:, held], shares[:, held]
    totals = table.sum(axis=0)
    everyone = totals / totals.sum()
    breadth = float(np.expm1(entr(everyone).sum()))
    if breadth <= 0:
        return 1.0
    held_by = np.zeros((int(np.max(labels)) + 1, totals.size))
    np.add.at(held_by, labels, table)
    held_by += everyone
    breadths = np.expm1(entr(held_by / held_by.sum(axis=1, keepdims=True)).sum(axis=1))
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
