"""FMCL's distances between many clients, in single precision and in squares that fit a processor's cache."""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedclust.typing import FloatArray

__all__ = ["MANY", "distances", "variation"]

MANY = 4096
"""Beyond so many clients the distances are in single precision."""

_SIDE = 512  # clients of a square


def distances(
    prototypes: FloatArray, shares: FloatArray, alpha: float, beta: float, epsilon: float, overlap: bool
) -> NDArray[np.float32]:
    """Compute :func:`fedclust.clustering.fmcl.distances` in single precision.

    Parameters
    ----------
    prototypes, shares, alpha, beta, epsilon, overlap
        As there; checked before.

    Returns
    -------
    Distances >= 0, symmetric with diagonal 0, float32, shape (K, K). A cosine's error is about 10⁻⁷.
    """
    number = len(shares)
    matrix = np.empty((number, number), dtype=np.float32)
    parts = [slice(start, min(start + _SIDE, number)) for start in range(0, number, _SIDE)]
    for place, rows in enumerate(parts):
        mine = _by_class(prototypes[rows], shares[rows])
        for columns in parts[place:]:
            theirs = mine if columns == rows else _by_class(prototypes[columns], shares[columns])
            # Products this small gain little from threads, which on busy cores wait for each other: six times
            # the CPU time was measured.
            with threadpool_limits(1, user_api="blas"):
                apart, shared = _square(mine, theirs, np.float32(epsilon))
            if overlap:
                # As in the dense form; a power in double precision, which the smallest overlaps need.
                scale = np.minimum(np.maximum(shared.astype(np.float64), epsilon) ** -alpha, beta)
                apart *= scale.astype(np.float32)
            apart[shared == 0] = np.inf
            if columns == rows:
                upper = np.triu(apart, k=1)
                matrix[rows, rows] = upper + upper.T
            else:
                matrix[rows, columns] = apart
                matrix[columns, rows] = apart.T
    undefined = np.isinf(matrix)
    if undefined.any():
        known = ~undefined
        np.fill_diagonal(known, False)
        values = matrix[known]
        limit = 1.0
        if values.size:
            most, far = np.percentile(values, [95, 99], overwrite_input=True)
            limit = min(2 * most, far)
        matrix[undefined] = limit
    return matrix


def variation(matrix: NDArray[np.float32]) -> float:
    """Compute the coefficient of variation of the distances of different clients, row by row."""
    number = len(matrix)
    pairs = number * (number - 1)
    mean = sum(float(row.sum(dtype=np.float64)) for row in matrix) / pairs
    if mean == 0:
        return 0.0
    squares = sum(float(np.square(row.astype(np.float64) - mean).sum()) for row in matrix)
    return float(np.sqrt(max(0.0, squares - number * mean**2) / pairs) / mean)  # less the diagonal's zeros


_Singles = NDArray[np.float32]
_ByClass = tuple[_Singles, _Singles, _Singles]
"""Prototypes (C, n, d), their lengths (C, n) and shares (C, n); zeros for a class that a client lacks."""


def _by_class(prototypes: FloatArray, shares: FloatArray) -> _ByClass:
    there = (shares > 0)[:, :, None]
    means = np.ascontiguousarray(np.where(there, prototypes, 0).swapaxes(0, 1), dtype=np.float32)
    lengths = np.sqrt(np.einsum("cnd,cnd->cn", means, means))
    return means, lengths, np.ascontiguousarray(shares.T, dtype=np.float32)


def _square(mine: _ByClass, theirs: _ByClass, epsilon: np.float32) -> tuple[_Singles, _Singles]:
    """Compare some clients with others: d_cap and Ω."""
    shape = mine[2].shape[1], theirs[2].shape[1]
    apart, shared = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    cosine, other = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    for a, b, length, lengths, share, shares in zip(
        mine[0], theirs[0], mine[1], theirs[1], mine[2], theirs[2], strict=True
    ):
        if not share.any() or not shares.any():
            continue
        np.matmul(a, b.T, out=cosine)
        np.multiply.outer(length, lengths, out=other)
        other += epsilon
        cosine /= other
        np.subtract(1, cosine, out=cosine)
        np.maximum(cosine, 0, out=cosine)  # rounding can make a cosine larger than 1
        np.minimum.outer(share, shares, out=other)
        shared += other
        cosine *= other
        apart += cosine
    apart /= shared + epsilon
    return apart, shared
