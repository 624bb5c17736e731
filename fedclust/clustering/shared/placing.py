"""Place a client that was not there when clusters were formed; what several methods' rules share."""

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import FloatArray

__all__ = ["NONE", "average_distances", "least_loss", "nearest"]

NONE = -1
"""Stands for no cluster."""


def least_loss(losses: ArrayLike, chance: float = np.inf) -> int:
    """Choose the cluster whose model has the least loss on the client's rows.

    Source: IFCA, Algorithm 1, the estimate of a client's cluster (Ghosh, Chung, Yin and Ramchandran, "An
    Efficient Framework for Clustered Federated Learning", NeurIPS 2020). That rule always names a cluster;
    "none" is ours: a model that is no better than guessing is of no use to a client.

    Parameters
    ----------
    losses
        Mean loss of each cluster's model on the client's rows, shape (k,); values that are not finite never
        win.
    chance
        Loss of a guess: ln C nats for cross-entropy and C classes. Infinite if that is not known.

    Returns
    -------
    Position of the least loss, the first on a tie; −1 if it is not below `chance`, or none is finite.
    """
    values = np.asarray(losses, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.inf)
    best = int(values.argmin())
    return best if values[best] < chance else NONE


def nearest(distances: ArrayLike, apart: FloatArray) -> int:
    """Choose the nearest cluster, unless the client is farther from it than another cluster is.

    "None" is ours: such a client would rather be a cluster of its own. The rule needs no threshold, since
    the clusters' own distances are its measure.

    Parameters
    ----------
    distances
        Distance of the client from each cluster, >= 0, shape (G,), G >= 1.
    apart
        Distance between each two clusters, shape (G, G); the diagonal is ignored.

    Returns
    -------
    Position of the nearest cluster, the first on a tie; −1 if its distance is larger than that between this
    cluster and the one nearest to it. With one cluster always 0.
    """
    values = np.asarray(distances, dtype=np.float64)
    best = int(values.argmin())
    if len(values) == 1:
        return best
    return best if values[best] <= np.delete(apart[best], best).min() else NONE


def average_distances(distances: FloatArray, labels: ArrayLike) -> FloatArray:
    """Compute the mean distance from each row to each cluster's clients: average linkage.

    Parameters
    ----------
    distances
        Distances of rows from clients, shape (n, K).
    labels
        Cluster of each client, 0…G−1 without gaps, shape (K,).

    Returns
    -------
    Shape (n, G).
    """
    members = np.asarray(labels)
    return np.stack([distances[:, members == each].mean(axis=1) for each in range(members.max() + 1)], axis=1)
