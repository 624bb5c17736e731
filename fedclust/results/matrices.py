"""Which matrices of a run are worth their room on the disk."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedclust.settings.options import KEEP

__all__ = ["MOST_CLIENTS", "without_large"]

MOST_CLIENTS = 500
"""Of more clients, a matrix of float64 takes more than 2 MB, and a run of FedGWC leaves five."""


def without_large(
    arrays: Mapping[str, ArrayLike], keep: bool | str, num_clients: int
) -> tuple[dict[str, ArrayLike], list[str]]:
    """Leave out the matrices of clients by clients, unless they are wanted.

    Parameters
    ----------
    arrays
        By name.
    keep
        Whether to keep matrices of shape (K, K, …); ``"auto"`` for those of up to 500 clients.
    num_clients
        Number of clients K.

    Returns
    -------
    The arrays that are kept, and the names of the others.
    """
    if keep is True or (keep == KEEP and num_clients <= MOST_CLIENTS):
        return dict(arrays), []
    large = [name for name, array in arrays.items() if np.shape(array)[:2] == (num_clients, num_clients)]
    return {name: array for name, array in arrays.items() if name not in large}, large
