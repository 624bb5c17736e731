"""Do clients pull the model in the same direction?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import FloatArray

__all__ = ["Agreement", "agreement"]


@dataclass(frozen=True, eq=False)
class Agreement:
    """How clients' updates from one model agree.

    Attributes
    ----------
    ratio
        How alike two clients' updates are, in units of how alike a client's two updates from other batches
        are: 1 for clients of one kind, 0 for unrelated ones, below 0 for opposed ones. NaN where a client's
        own two updates are unrelated, so that nothing can be told.
    own
        Mean cosine of a client's two updates, in [−1, 1].
    others
        Mean cosine of updates of two clients from different batches, in [−1, 1].
    cosines
        Of each client's first update and each client's second, made symmetric, shape (K, K).
    """

    ratio: float
    own: float
    others: float
    cosines: FloatArray


def agreement(first: ArrayLike, second: ArrayLike) -> Agreement:
    """Compare clients' updates from one model, each made twice from different batches.

    A single pair of updates mixes what clients are with which batches they drew. The second update of the
    same client says how much the batches alone make of it: cos(Δ_i, Δ'_j) over cos(Δ_i, Δ'_i), both averaged,
    is free of that. Both updates are from the same examples, though: the fewer a client has, the more its own
    two updates share, so that IID clients of 40 digits reach 0.5, and 1 only with many examples.

    Parameters
    ----------
    first, second
        Projections of each client's two updates, shape (K, m), K >= 2. A client without an update (all 0)
        counts for nothing.

    Raises
    ------
    ValueError
        If the shapes differ or there are fewer than two clients with updates.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim != 2 or one.shape != other.shape:
        raise ValueError(f"first and second must have one shape (K, m), got {one.shape} and {other.shape}")
    lengths = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
    moved = (lengths[0] > 0) & (lengths[1] > 0)
    if moved.sum() < 2:
        raise ValueError(f"at least two clients must have updates, got {int(moved.sum())}")
    units = [
        np.divide(values, length[:, None], out=np.zeros_like(values), where=length[:, None] > 0)
        for values, length in zip((one, other), lengths, strict=True)
    ]
    cosines = units[0] @ units[1].T
    cosines = (cosines + cosines.T) / 2
    compared = cosines[np.ix_(moved, moved)]
    own = float(np.diag(compared).mean())
    others = float(compared[~np.eye(len(compared), dtype=bool)].mean())
    return Agreement(others / own if own > 0.05 else float("nan"), own, others, cosines)
