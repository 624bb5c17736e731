"""Limits to the influence of one client's report on statistics of all clients.

A single client could make a sum over clients as large as it wants. These limits lie far beyond what honest
clients reach, so they do not change the statistics of honest clients at all.
"""

import numpy as np

from fedclust.typing import IntArray

LARGEST_SHARE = 10.0
"""Most that a client can count for, as a multiple of the median client."""


def limit_sizes(counts: IntArray) -> IntArray:
    """Scale down the counts of clients that report more than ten times the median client's examples.

    A client's shares stay the same except for rounding up, which keeps all its classes. So a client with far
    more examples than most counts as ten of median size; this costs the test some power, but no single client
    can make up most of the federation.

    Parameters
    ----------
    counts
        Examples of each class on each client, shape (K, C).

    Returns
    -------
    The counts, shape (K, C); unchanged, in their own type, if no client has too many.

    Examples
    --------
    >>> limit_sizes(np.array([[1, 0], [1, 0], [90, 10]]))  # ten times the median's one example
    array([[1, 0],
           [1, 0],
           [9, 1]])
    """
    table = np.asarray(counts)
    # In double precision: whole numbers of 64 bits may overflow.
    sizes = table.astype(np.float64).sum(axis=1)
    held = sizes[sizes > 0]
    most = LARGEST_SHARE * float(np.median(held)) if held.size else 0.0
    if not (sizes > most).any() or held.size < 3:
        return table
    scaled = table * np.where(sizes > most, most / np.maximum(sizes, 1), 1.0)[:, None]
    return np.where((sizes > most)[:, None], np.ceil(scaled), table).astype(np.int64)
