"""Which of a client's training rows are held out for the proof; see docs/PROOF.md."""

from collections.abc import Sequence

import numpy as np

from fedclust.support.fractions import DEFAULT_FRACTION, check_fraction
from fedclust.support.rng import generator
from fedclust.typing import IntArray

__all__ = ["DEFAULT_FRACTION", "check_fraction", "hold_out", "hold_out_client"]

_PURPOSE = "validation"
_FEWEST = 2  # with one row there is no variance, and a client with one does not vote


def hold_out_client(num_rows: int, fraction: float, seed: int, client: int) -> IntArray:
    """Draw which of one client's training rows are held out.

    Parameters
    ----------
    num_rows
        Its training rows n.
    fraction
        Share to hold out, in [0, 1). The client gives round(fraction·n) rows, at most n − 1; a client that
        would give fewer than two gives none, for one row alone can prove nothing.
    seed, client
        What the draw comes from, and nothing else: not the other clients, not the test rows.

    Returns
    -------
    Positions in 0…n − 1, sorted.

    Raises
    ------
    ValueError
        If `fraction` is outside its range.
    """
    check_fraction(fraction)
    count = min(round(fraction * num_rows), num_rows - 1)
    if count < _FEWEST:
        return np.zeros(0, dtype=np.int64)
    return np.sort(generator(seed, _PURPOSE, client).permutation(num_rows)[:count])


def hold_out(
    train: Sequence[IntArray], fraction: float, seed: int
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Divide each client's training rows into those that train and those that are held out.

    Parameters
    ----------
    train
        Each client's training rows.
    fraction, seed
        As for :func:`hold_out_client`.

    Returns
    -------
    Rows to train on and rows held out, of each client, in the order they were given in.
    """
    kept, held = [], []
    for client, rows in enumerate(train):
        chosen = hold_out_client(len(rows), fraction, seed, client)
        kept.append(np.delete(rows, chosen))
        held.append(np.asarray(rows)[chosen])
    return tuple(kept), tuple(held)
