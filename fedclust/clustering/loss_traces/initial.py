"""Initial groups of a fit: clients with similar traces, after missing entries were filled in."""

import warnings
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fedclust.clustering.loss_traces.trace import Entries
from fedclust.typing import FloatArray, IntArray

__all__ = ["coordinates", "starts"]

_PASSES = 10
_SOFTNESS = 0.8
_KMEANS_STARTS = 4
# Up to so many rounds or clients the whole matrix is decomposed; above, only the needed singular vectors.
_SMALL = 128


def starts(entries: Entries, num_groups: int, seed: int) -> Iterator[IntArray]:
    """Yield several groupings of the clients.

    K-means on the clients' :func:`coordinates`, of rank max(1, G − 1) and G, from the entries, and from the
    entries minus their client's mean; and K-means on the clients' means.

    Parameters
    ----------
    entries
        The trace.
    num_groups
        G >= 2, at most the number of clients.
    seed
        Seed >= 0 of K-means and of the decomposition's first vector.

    Yields
    ------
    Group of each client, 0 … G − 1, each with at least one client, shape (K,).
    """
    means = entries.sum_by_client(entries.values) / entries.lengths
    most = min(entries.num_rounds, entries.num_clients)
    for centred in (False, True):
        for rank in sorted({min(max(1, num_groups - 1), most), min(num_groups, most)}):
            yield from _kmeans(_coordinates(entries, centred, rank, seed), num_groups, seed)
    yield from _kmeans(means[:, None], num_groups, seed)


@lru_cache(maxsize=16)  # the fits of 2, 3 … groups to the same entries share most ranks
def _coordinates(entries: Entries, centred: bool, rank: int, seed: int) -> FloatArray:
    values = entries.values
    if centred:
        values = values - (entries.sum_by_client(values) / entries.lengths)[entries.clients]
    return coordinates(entries, values, rank, seed)


def coordinates(entries: Entries, values: FloatArray, rank: int, seed: int) -> FloatArray:
    """Place clients by their traces: right singular vectors times singular values of the filled matrix.

    The matrix, rounds by clients, is filled in ten passes: missing entries, at first 0, become 0.8 times
    the approximation of the given rank to the matrix of the pass before ("soft imputation", as in Mazumder,
    Hastie and Tibshirani, "Spectral regularization algorithms for learning large incomplete matrices",
    Journal of Machine Learning Research 11, 2010, but with a fixed rank and factor).

    Parameters
    ----------
    entries
        Rounds and clients of the entries.
    values
        The entries, shape (N,).
    rank
        r >= 1, at most the number of rounds and of clients.
    seed
        Seed >= 0 of the decomposition's first vector, used if the matrix is large.

    Returns
    -------
    Shape (K, r).
    """
    shape = (entries.num_rounds, entries.num_clients)
    complete = len(values) == shape[0] * shape[1]
    decompose = _decompose_small if min(shape) <= max(_SMALL, rank) else _decompose_large
    left: FloatArray = np.zeros((shape[0], rank))
    right: FloatArray = np.zeros((shape[1], rank))  # times singular values
    for _ in range(1 if complete else _PASSES):
        # Filled matrix = (known entries − their approximation), which is sparse, + the approximation.
        filled = _SOFTNESS * right
        known = np.einsum("nr,nr->n", left[entries.rounds], filled[entries.clients])
        sparse = csr_array((values - known, (entries.rounds, entries.clients)), shape=shape)
        left, right = decompose(sparse, left, filled, rank, seed)
    return right


def _decompose_small(
    sparse: csr_array,
    left: FloatArray,
    right: FloatArray,
    rank: int,
    seed: int,  # noqa: ARG001
) -> tuple[FloatArray, FloatArray]:
    u, sizes, v = np.linalg.svd(sparse.toarray() + left @ right.T, full_matrices=False)
    return u[:, :rank], v[:rank].T * sizes[:rank]


def _decompose_large(
    sparse: csr_array, left: FloatArray, right: FloatArray, rank: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Decompose without forming the matrix, which has 40 entries per client but any number of rounds."""
    transposed = sparse.T.tocsr()
    matrix = LinearOperator(
        sparse.shape,
        matvec=lambda x: sparse @ x.ravel() + left @ (right.T @ x.ravel()),
        rmatvec=lambda y: transposed @ y.ravel() + right @ (left.T @ y.ravel()),
        dtype=np.float64,
    )
    # Not a vector of ones: rounds have mean 0, so a matrix without gaps maps it to 0.
    first = np.random.default_rng(seed).standard_normal(min(sparse.shape))
    u, sizes, v = svds(matrix, k=rank, v0=first)
    return u, v.T * sizes


def _kmeans(points: FloatArray, num_groups: int, seed: int) -> Iterator[IntArray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer groups than requested: left out below
        means = KMeans(num_groups, n_init=_KMEANS_STARTS, random_state=seed % 2**32)
        labels = means.fit_predict(points).astype(np.int64)
    if len(np.unique(labels)) == num_groups:
        yield labels
