"""Affinities, eigenvectors and scores of clusters of many clients, in single precision.

In double precision K = 10,000 clients take 4 GiB, and decomposing their affinities takes time cubic in K.
Here an affinity has four bytes and is computed in tiles, only the eigenvectors that are needed are
computed, by products with the matrix, and the Davies–Bouldin scores of all divisions take two products.
"""

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.linalg import LinAlgWarning
from scipy.sparse.linalg import LinearOperator, lobpcg
from scipy.spatial.distance import pdist, squareform
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from fedclust.clustering.shared.scores import TOUCHING
from fedclust.typing import FloatArray, IntArray

__all__ = ["MANY", "affinity", "davies_bouldin", "embedding"]

MANY = 4096
"""From so many clients on a cluster's matrices are in single precision."""

_ROWS = 1024  # of a strip, multiplied at once
_BLOCK = 256  # rows and columns of a tile, which fits into a core's cache
_ITERATIONS = 30  # of the eigensolver: groups are found in a few; without groups the vectors mean nothing
_TOLERANCE = 1e-4
_SPARE = 3  # vectors beyond those wanted, with which the wanted ones converge sooner
_LINK = 1e-30  # between any two clients, so that the graph is connected also where affinities are 0


def affinity(matrix: FloatArray, kernel_width: float) -> FloatArray:
    """Compute :func:`fedclust.clustering.fedgwc.affinity` in single precision.

    Parameters
    ----------
    matrix
        Interaction matrix P, float32, shape (K, K); it is overwritten.
    kernel_width
        β > 0.

    Returns
    -------
    Affinity W, float32, symmetric, 1 on the diagonal, shape (K, K). Errors of β‖v_k^j − v_j^k‖² are about
    10⁻⁷ times the rows' squared distances from their mean.
    """
    # Distances do not change, and sums of squares lose fewer digits, if columns have mean 0.
    matrix -= matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
    diagonal = matrix.diagonal().copy()
    norms = np.einsum("kj,kj->k", matrix, matrix)
    result = np.empty_like(matrix)

    def strip(first: int) -> None:
        last = min(first + _ROWS, len(matrix))
        np.matmul(matrix[first:last], matrix[first:].T, out=result[first:last, first:])
        for top in range(first, last, _BLOCK):
            for left in range(top, len(matrix), _BLOCK):
                rows, columns = slice(top, min(top + _BLOCK, last)), slice(left, left + _BLOCK)
                tile = result[rows, columns]
                # As in the dense form.
                excluded = np.square(matrix[rows, columns] - diagonal[columns])
                excluded += np.square(matrix[columns, rows].T - diagonal[rows, None])
                distances = norms[rows, None] + norms[columns]
                distances -= 2 * tile
                distances -= excluded
                np.maximum(distances, 0, out=distances)
                distances *= -kernel_width
                np.exp(distances, out=tile)
                if left == top:
                    tile[:] = np.triu(tile) + np.triu(tile, k=1).T
                result[columns, rows] = tile.T

    # A strip takes one thread whatever their number, so the sums do not depend on it.
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as workers:
        list(workers.map(strip, range(0, len(matrix), _ROWS)))  # the longest first
    np.fill_diagonal(result, 1)
    return result


def embedding(affinity: FloatArray, size: int, seed: int) -> FloatArray:
    """Compute the first eigenvectors of the normalised Laplacian, as ``sklearn.manifold.spectral_embedding``.

    Only products with the matrix are needed (LOBPCG: Knyazev, "Toward the optimal preconditioned
    eigensolver", SIAM Journal on Scientific Computing 23(2), 2001). The iteration ends after a fixed number
    of steps: vectors that have not converged by then belong to eigenvalues that are nearly the same, which
    no division into groups explains. Affinities count as 10⁻³⁰ more than they are: clients that are like
    nobody are then one part, as they are in double precision, where no affinity is below 10⁻¹⁰⁰.

    Parameters
    ----------
    affinity
        Affinity W, float32, shape (K, K); the diagonal does not count.
    size
        Number of vectors.
    seed
        Seed >= 0 of the first vectors.

    Returns
    -------
    Shape (K, size), the first column of equal sign and, for connected clients, constant.
    """
    clients = len(affinity)
    diagonal = affinity.diagonal().astype(np.float64)
    degrees = np.maximum(affinity.sum(axis=1, dtype=np.float64) - diagonal, 0) + (clients - 1) * _LINK
    scale = 1 / np.sqrt(degrees)

    def product(vectors: FloatArray) -> FloatArray:
        scaled = vectors * scale[:, None]
        single = scaled.astype(np.float32)  # on the diagonal, too: there the products must cancel
        whole = (affinity @ single).astype(np.float64) - diagonal[:, None] * single
        return scale[:, None] * (whole + _LINK * (scaled.sum(axis=0) - scaled))

    operator = LinearOperator(
        (clients, clients), matvec=lambda x: product(x.reshape(-1, 1)).ravel(), matmat=product, dtype=float
    )
    draws = np.random.default_rng(seed)
    first = draws.standard_normal((clients, size + _SPARE))
    first[:, 0] = np.sqrt(degrees)  # the eigenvector of the largest eigenvalue, 1
    with warnings.catch_warnings():
        for kind in (UserWarning, LinAlgWarning):  # of vectors that have not converged, see above
            warnings.simplefilter("ignore", kind)
        values, vectors = lobpcg(operator, first, largest=True, tol=_TOLERANCE, maxiter=_ITERATIONS)
    chosen = np.argsort(-values, kind="stable")[:size]
    found = vectors[:, chosen] * scale[:, None]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(size)])
    return np.asarray(found * signs)


def davies_bouldin(points: FloatArray, divisions: Sequence[IntArray]) -> list[float]:
    """Compute :func:`fedclust.clustering.shared.scores.davies_bouldin` of divisions of the same points.

    Parameters
    ----------
    points
        One row per client, float32, shape (K, features).
    divisions
        For each division the cluster of each client, numbered from 0 without gaps, shape (K,), with 2 or
        more clusters.
    """
    if not divisions:
        return []
    sizes = [np.bincount(labels) for labels in divisions]
    member = np.concatenate(
        [
            np.eye(len(size), dtype=np.float32)[:, labels]
            for size, labels in zip(sizes, divisions, strict=True)
        ]
    )
    centroids = (member @ points).astype(np.float64) / np.concatenate(sizes)[:, None]
    products = points @ centroids.T.astype(np.float32)
    squares = np.einsum("kj,kj->k", points, points).astype(np.float64)
    ends = np.cumsum([len(size) for size in sizes])[:-1]
    return [
        _davies_bouldin(labels, squares, own, product.astype(np.float64))
        for labels, own, product in zip(
            divisions, np.split(centroids, ends), np.split(products, ends, axis=1), strict=True
        )
    ]


def _davies_bouldin(
    labels: IntArray, squares: FloatArray, centroids: FloatArray, products: FloatArray
) -> float:
    """Compute one score from the points' squared lengths and their products with the centroids."""
    between = squareform(pdist(centroids))
    np.fill_diagonal(between, np.inf)
    if between.min() <= TOUCHING:
        return math.inf
    to_own = products[np.arange(len(labels)), labels]
    squared = squares - 2 * to_own + np.square(centroids).sum(axis=1)[labels]
    widths = np.bincount(labels, np.sqrt(np.maximum(squared, 0))) / np.bincount(labels)
    return float((np.add.outer(widths, widths) / between).max(axis=1).mean())
