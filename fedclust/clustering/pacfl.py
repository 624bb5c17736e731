"""PACFL: clusters from the angles between the subspaces that clients' data span, before training.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin, "Efficient Distribution Similarity Identification in
Clustered Federated Learning via Principal Angles between Client Data Subspaces", AAAI 2023, arXiv:2209.10526.
Every client sends, per class, the first left singular vectors of the matrix that has its examples as columns.
The distance of two clients is given by the principal angles between these subspaces; agglomerative clustering
stops at a threshold.

Where we depart from the paper and from its authors' code:

- Angles are true principal angles, the arccosines of the singular values of UᵀV. The code takes those of the
  *entries* of UᵀV, which change with the choice of basis and with the sign of a singular vector.
- Only subspaces of the same class are compared. Two clients without a common class have the largest possible
  distance.
- ``"mean"``, which averages the smallest angle of each class that both have, is ours:
  the smallest angle of all ignores all classes but one; the sum grows with the number of classes that two
  clients share, and its larger angles are between singular vectors that, with few examples, are due to
  chance.
- The paper's threshold is set per data set, as the angle at which groups separate depends on the data (4.9
  degrees in the authors' script for CIFAR-10 with two classes per client). Without one, the number of
  clusters is the one with the best silhouette.
- Average linkage is the mean over all pairs of clients; the authors' code takes the mean of the two merged
  clusters' distances, whatever their sizes.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedclust.clustering.shared.grouping import Details, Grouping, group
from fedclust.typing import FloatArray, IntArray

Measure = Literal["smallest", "sum", "mean"]
Input = Literal["pixels", "encoder"]


_BLOCK_PAIRS = 2**18  # pairs of clients whose products are in memory at a time


@dataclass(frozen=True)
class Parameters(Grouping):
    """Settings of PACFL, besides those of :class:`~fedclust.clustering.shared.grouping.Grouping`.

    Attributes
    ----------
    vectors
        p, left singular vectors per class, >= 1.
    measure
        Distance between two clients, over the classes that both have: the ``"smallest"`` of all principal
        angles, the ``"sum"`` of all, or the ``"mean"`` of each class's smallest.
    input
        Columns of the data matrix: an example's ``"pixels"``, normalised as for training, or its embedding by
        the configured ``"encoder"``.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(vectors=0)
    Traceback (most recent call last):
        ...
    ValueError: vectors must be >= 1, got 0
    """

    vectors: Annotated[int, ">= 1"] = 3
    measure: Measure = "smallest"
    input: Input = "pixels"


def angles(products: FloatArray) -> FloatArray:
    """Compute the principal angles between two subspaces: arccos of the singular values of UᵀV.

    Source: PACFL, Section 3; Björck and Golub, "Numerical Methods for Computing Angles Between Linear
    Subspaces", Mathematics of Computation 27(123), 1973.

    Parameters
    ----------
    products
        UᵀV of orthonormal bases U and V, shape (…, p, p).

    Returns
    -------
    Angles in degrees, ascending, in [0, 90], shape (…, p). Columns of U or V that are 0 add angles of 90 at
    the end.

    Examples
    --------
    >>> angles(np.array([[0.5]])).round(6)  # arccos 1/2
    array([60.])
    """
    cosines = np.linalg.svd(products, compute_uv=False)
    return np.asarray(np.degrees(np.arccos(np.clip(cosines, 0, 1))))


def distances(bases: FloatArray, measure: Measure = "mean") -> FloatArray:
    """Compute the distances between clients from the subspaces of the classes that both have.

    Source: PACFL, Eq. 2 (smallest angle) and Eq. 3 (sum). A class counts if both clients have it; two
    subspaces of different dimensions have as many angles as the smaller has dimensions. Clients without a
    common class are 90 degrees apart, by ``"sum"`` 90·p·C.

    Parameters
    ----------
    bases
        Orthonormal columns per client and class, shape (K, C, d, p); columns that are 0 do not count, and a
        client lacks a class of which all columns are 0.
    measure
        ``"smallest"``, ``"sum"`` or ``"mean"``; see :class:`Parameters`.

    Returns
    -------
    Distances in degrees, symmetric with diagonal 0, shape (K, K), float64.

    Examples
    --------
    >>> along, across = [[1.0], [0.0]], [[np.sqrt(0.5)], [np.sqrt(0.5)]]
    >>> distances(np.array([[along], [across]])).round(6)  # two clients, one class
    array([[ 0., 45.],
           [45.,  0.]])
    """
    num_clients, num_classes, _, vectors = bases.shape
    shape = (num_clients, num_clients)
    smallest, total, least, common = np.full(shape, 90.0), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for index in range(num_classes):
        subspaces = np.ascontiguousarray(bases[:, index], dtype=np.float64)
        ranks = (subspaces != 0).any(axis=1).sum(axis=1)
        having = np.flatnonzero(ranks)
        columns = subspaces[having].transpose(0, 2, 1).reshape(-1, subspaces.shape[1])
        for first, second in _blocks(len(having)):
            # The products of all pairs of a block are one matrix product.
            left = columns[first.start * vectors : first.stop * vectors]
            right = columns[second.start * vectors : second.stop * vectors]
            products = (left @ right.T).reshape(-1, vectors, right.shape[0] // vectors, vectors)
            angle = angles(products.transpose(0, 2, 1, 3))
            shared = np.minimum.outer(ranks[having[first]], ranks[having[second]])
            counted = np.arange(vectors) < shared[:, :, None]
            block = np.ix_(having[first], having[second])
            smallest[block] = np.minimum(smallest[block], angle[:, :, 0])
            total[block] += np.where(counted, angle, 0).sum(axis=2)
            least[block] += angle[:, :, 0]
            common[block] += 1
    matrix = {
        "smallest": smallest,
        "sum": np.where(common > 0, total, 90.0 * vectors * num_classes),
        "mean": np.where(common > 0, least / np.maximum(common, 1), 90.0),
    }[measure]
    upper = np.triu(matrix, k=1)  # blocks left of the diagonal are not computed; the diagonal is 0
    return np.asarray(upper + upper.T)


def assign(bases: FloatArray, parameters: Parameters) -> tuple[IntArray, Details]:
    """Group clients by their classes' subspaces. Nothing is random, so there is no seed.

    Parameters
    ----------
    bases
        Orthonormal columns per client and class, shape (K, C, d, p); see :func:`distances`.
    parameters
        Settings.

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    report
        Details for logs.

    Examples
    --------
    >>> along, across = [[1.0], [0.0]], [[np.sqrt(0.5)], [np.sqrt(0.5)]]
    >>> labels, _ = assign(np.array([[along], [along], [across]]), Parameters(threshold=30.0))
    >>> labels
    array([0, 0, 1])
    """
    return group(distances(bases, parameters.measure), parameters)


def _blocks(number: int) -> list[tuple[slice, slice]]:
    """Cut the upper triangle of a matrix of pairs into blocks of rows."""
    height = max(1, _BLOCK_PAIRS // max(number, 1))
    starts = range(0, number, height)
    return [(slice(start, min(start + height, number)), slice(start, number)) for start in starts]
