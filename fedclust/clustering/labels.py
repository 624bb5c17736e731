"""Cluster labels that mean the same thing whichever library produced them."""

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import IntArray

__all__ = ["in_order_of_appearance"]


def in_order_of_appearance(labels: ArrayLike) -> IntArray:
    """Renumber clusters 0, 1, 2 … in the order in which their first clients come.

    Two labelings of the same partition become equal, so assignments can be compared between runs.

    Parameters
    ----------
    labels
        Any label per client, shape (K,).

    Returns
    -------
    Labels 0…n−1 without gaps, int64, shape (K,).
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)
