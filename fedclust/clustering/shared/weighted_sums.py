"""Weighted sums of models' arrays, a block of models at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.typing import FloatArray

# Elements that are converted to float64 at a time: 32 MB.
_BLOCK = 1 << 22


def weighted_sums(values: Sequence[NDArray], weights: FloatArray) -> NDArray:
    """Sum arrays with weights, in float64.

    Parameters
    ----------
    values
        Floating-point arrays of one shape, one for each of n models, n >= 1.
    weights
        A weight for each array, shape (n,); or m sets of weights, shape (m, n).

    Returns
    -------
    The sum, of the arrays' shape; or the m sums, shape (m, *shape).

    Examples
    --------
    >>> weighted_sums([np.array([1.0, 2.0]), np.array([3.0, 6.0])], np.array([0.5, 0.5]))
    array([2., 4.])
    """
    first = values[0]
    kind = np.result_type(first.dtype, np.float64)
    total = np.zeros((*weights.shape[:-1], first.size), dtype=kind)
    block = max(1, _BLOCK // max(1, first.size))
    for start in range(0, len(values), block):
        stacked = np.stack([value.ravel() for value in values[start : start + block]], dtype=kind)
        total += weights[..., start : start + block] @ stacked
    return total.reshape((*weights.shape[:-1], *first.shape))
