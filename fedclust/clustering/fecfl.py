"""FECFL: clusters from clients' mean embeddings, before training.

As described and used for comparison by Ali and Brattain ("FMCL: Class-Aware Client Clustering with Foundation
Model Representations for Heterogeneous Federated Learning", arXiv:2604.27510, 2026, related work and Section
4.3): every client sends one vector, the mean embedding of all its examples under a lightweight encoder (an
untrained one is enough); clients are clustered agglomeratively by cosine distances. Labels play no part:
clients that name the classes differently look alike.

In FMCL's comparison the number of clusters is given. Where neither it nor a threshold is set here, the number
with the best mean silhouette is chosen.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedclust.clustering.shared.grouping import Details, Grouping, cosine_distances, group
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Grouping):
    """Settings of FECFL, besides those of :class:`~fedclust.clustering.shared.grouping.Grouping`.

    Attributes
    ----------
    input
        Source of the embeddings: an ``"untrained"`` network, the same for all clients; the configured
        ``"encoder"``; or the normalised ``"pixels"`` themselves.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(input="audio")
    Traceback (most recent call last):
        ...
    ValueError: input must be one of untrained, encoder, pixels, got 'audio'
    """

    input: Literal["untrained", "encoder", "pixels"] = "untrained"


def mean_embeddings(means: FloatArray, counts: IntArray) -> FloatArray:
    """Average each client's embeddings over its classes.

    Parameters
    ----------
    means
        Mean embedding of each class on each client, shape (K, C, d); C may be 1.
    counts
        Examples of each class, shape (K, C).

    Returns
    -------
    Mean embedding of all examples, 0 for a client without any, shape (K, d), float64.

    Examples
    --------
    >>> mean_embeddings(np.array([[[0.0, 0.0], [4.0, 2.0]]]), np.array([[1, 3]]))
    array([[3. , 1.5]])
    """
    weights = np.asarray(counts, dtype=np.float64)
    totals = np.maximum(weights.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.einsum("kc,kcd->kd", weights, np.asarray(means, dtype=np.float64)) / totals)


def assign(embeddings: FloatArray, parameters: Parameters) -> tuple[IntArray, Details]:
    """Group clients by the cosine distances of their mean embeddings. Nothing is random.

    Source: FMCL, Section 4.3.

    Parameters
    ----------
    embeddings
        Mean embedding of each client, shape (K, d).
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
    >>> labels, _ = assign(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), Parameters(threshold=0.5))
    >>> labels
    array([0, 0, 1])
    """
    return group(cosine_distances(embeddings), parameters)
