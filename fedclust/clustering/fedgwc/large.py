"""Affinities, eigenvectors and scores of clusters of many clients, in single precision.

In double precision K = 10,000 clients take 4 GiB, and decomposing their affinities takes time cubic in K.
Here an affinity has four bytes and is computed in tiles, only the eigenvectors that are needed are
computed, by products with the matrix, and the Davies–Bouldin score takes one product per division.
"""

import itertools
import math
import warnings
from collections.abc import Iterator

import numpy as np
from scipy.sparse.linalg import LinearOperator, lobpcg
from scipy.spatial.distance import pdist, squareform

from fedclust.clustering.shared.scores import TOUCHING
from fedclust.typing import FloatArray, IntArray

__all__ = ["MANY", "Scores", "affinity", "embedding"]

MANY = 4096
"""From so many clients on a cluster's matrices are in single precision."""

_BLOCK = 256  # rows and columns of a tile
_ITERATIONS = 30  # of the eigensolver: groups are found in a few; without groups the vectors mean nothing
_TOLERANCE = 1e-4
_SPARE = 3  # vectors beyond those wanted, with which the wanted ones converge sooner
_LEAST_DEGREE = 1e-30  # of a client that is like no other


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
    result = matrix @ matrix.T  # one triangle and its mirror image
    # As in the dense form. Tiles that fit into a core's cache take a third of the time of whole rows; those
    # on the diagonal are symmetric because a + b = b + a, the others are computed once and mirrored.
    for rows, columns in _tiles(len(matrix)):
        tile = result[rows, columns]
        excluded = np.square(matrix[rows, columns] - diagonal[columns])
        excluded += np.square(matrix[columns, rows].T - diagonal[rows, None])
        distances = norms[rows, None] + norms[columns]
        distances -= 2 * tile
        distances -= excluded
        np.maximum(distances, 0, out=distances)
        distances *= -kernel_width
        np.exp(distances, out=tile)
        result[columns, rows] = tile.T
    np.fill_diagonal(result, 1)
    return result


def embedding(affinity: FloatArray, size: int, seed: int) -> FloatArray:
    """Compute the first eigenvectors of the normalised Laplacian, as ``sklearn.manifold.spectral_embedding``.

    Only products with the matrix are needed (LOBPCG: Knyazev, "Toward the optimal preconditioned
    eigensolver", SIAM Journal on Scientific Computing 23(2), 2001). The iteration ends after a fixed number
    of steps: vectors that have not converged by then belong to eigenvalues that are nearly the same, which
    no division into groups explains.

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
    degrees = np.maximum(affinity.sum(axis=1, dtype=np.float64) - affinity.diagonal(), _LEAST_DEGREE)
    scale, diagonal = 1 / np.sqrt(degrees), affinity.diagonal().astype(np.float64)

    def product(vectors: FloatArray) -> FloatArray:
        scaled = vectors * scale[:, None]
        whole = affinity @ scaled.astype(np.float32)
        return scale[:, None] * (whole.astype(np.float64) - diagonal[:, None] * scaled)

    operator = LinearOperator(
        (clients, clients), matvec=lambda x: product(x.reshape(-1, 1)).ravel(), matmat=product, dtype=float
    )
    draws = np.random.default_rng(seed)
    first = draws.standard_normal((clients, size + _SPARE))
    first[:, 0] = np.sqrt(degrees)  # the eigenvector of the largest eigenvalue, 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of vectors that have not converged, see above
        values, vectors = lobpcg(operator, first, largest=True, tol=_TOLERANCE, maxiter=_ITERATIONS)
    chosen = np.argsort(-values, kind="stable")[:size]
    found = vectors[:, chosen] * scale[:, None]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(size)])
    return np.asarray(found * signs)


class Scores:
    """Davies–Bouldin scores of divisions of the same points.

    Parameters
    ----------
    points
        One row per client, float32, shape (K, features).
    """

    def __init__(self, points: FloatArray) -> None:
        self._points = points
        self._squares = np.einsum("kj,kj->k", points, points).astype(np.float64)

    def davies_bouldin(self, labels: IntArray) -> float:
        """Compute what :func:`fedclust.clustering.shared.scores.davies_bouldin` computes.

        Parameters
        ----------
        labels
            Cluster of each client, numbered from 0 without gaps, shape (K,), with 2 or more clusters.
        """
        sizes = np.bincount(labels)
        member = (labels == np.arange(len(sizes))[:, None]).astype(np.float32)
        centroids = (member @ self._points).astype(np.float64) / sizes[:, None]
        between = squareform(pdist(centroids))
        if between[~np.eye(len(sizes), dtype=bool)].min() <= TOUCHING:
            return math.inf
        product = (self._points @ centroids.T.astype(np.float32)).astype(np.float64)
        to_own = product[np.arange(len(labels)), labels]
        squared = self._squares - 2 * to_own + np.square(centroids).sum(axis=1)[labels]
        widths = np.bincount(labels, np.sqrt(np.maximum(squared, 0))) / sizes
        np.fill_diagonal(between, np.inf)
        return float((np.add.outer(widths, widths) / between).max(axis=1).mean())


def _tiles(clients: int) -> Iterator[tuple[slice, slice]]:
    """List the tiles of a symmetric matrix on and above its diagonal."""
    blocks = [slice(first, min(first + _BLOCK, clients)) for first in range(0, clients, _BLOCK)]
    return itertools.combinations_with_replacement(blocks, 2)
