"""CLoVE: clients whose losses under several models are alike belong together.

Source: Bhatia, Papadis, Kodialam, Lakshman and Chakrabarty, "CLoVE: Personalized Federated Learning through
Clustering of Loss Vector Embeddings", arXiv 2506.22427. Where IFCA lets each client take the model with its
smallest loss, here the vectors of all losses are clustered, so that groups come apart even where one model is
the best for everybody.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.grouping import kmeans
from fedclust.clustering.shared.number import KnownNumber
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(KnownNumber):
    """Settings of CLoVE.

    Attributes
    ----------
    num_clusters
        Number of models k, >= 1; None for a guess of 2, which the run names.
    clustering_rounds
        Clients are clustered before each of this many rounds, >= 1, and then keep their clusters. Null:
        before all rounds, unless ``stable_rounds`` ends it.
    num_starts
        Number of starts of k-means, >= 1; the best is kept.
    stable_rounds
        Clustering also ends once every client has been given the same model this many times in a row, >= 1;
        null: not before ``clustering_rounds``.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> Parameters(num_clusters=0)
    Traceback (most recent call last):
        ...
    ValueError: num_clusters must be >= 1 or None, got 0
    """

    clustering_rounds: Annotated[int | None, ">= 1 or None"] = None
    num_starts: Annotated[int, ">= 1"] = 1
    stable_rounds: Annotated[int | None, ">= 1 or None"] = 3


def cluster(losses: FloatArray, parameters: Parameters, seed: int) -> IntArray:
    """Cluster loss vectors with k-means++.

    Parameters
    ----------
    losses
        Loss of each model on each client's training part, in nats, shape (clients, k).
    parameters
        Number of clusters and of starts.
    seed
        Seed of k-means, in 0 … 2³² − 1.

    Returns
    -------
    Cluster of each client, shape (clients,); fewer than k clusters where fewer vectors differ.

    Examples
    --------
    >>> losses = np.array([[0.1, 2.0], [0.2, 2.0], [2.0, 0.1], [2.0, 0.2]])
    >>> labels = cluster(losses, Parameters(), seed=0)
    >>> labels == labels[0]
    array([ True,  True, False, False])
    """
    number = min(parameters.number, len(np.unique(losses, axis=0)))
    return kmeans(losses, number, seed, parameters.num_starts)


def match(losses: FloatArray, labels: IntArray) -> IntArray:
    """Match clusters with models, one to one, so that the sum of all clients' losses is the smallest.

    Parameters
    ----------
    losses
        Loss of each model on each client's training part, in nats, shape (clients, k).
    labels
        Cluster of each client, at most k, shape (clients,).

    Returns
    -------
    The model of each cluster, shape (clusters,).

    Examples
    --------
    >>> losses = np.array([[0.1, 2.0], [0.2, 2.0], [2.0, 0.1], [2.0, 0.2]])
    >>> match(losses, np.array([1, 1, 0, 0]))
    array([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    costs = np.stack([losses[labels == label].sum(axis=0) for label in range(int(labels.max()) + 1)])
    return linear_sum_assignment(costs)[1].astype(np.int64)


def assign(losses: FloatArray, parameters: Parameters, seed: int) -> IntArray:
    """Cluster clients by their loss vectors and give each cluster a model.

    Parameters
    ----------
    losses
        Loss of each model on each client's training part, in nats, shape (clients, k).
    parameters
        Number of clusters and of starts.
    seed
        Seed of k-means, in 0 … 2³² − 1.

    Returns
    -------
    The model of each client, shape (clients,).

    Examples
    --------
    >>> losses = np.array([[0.1, 2.0], [0.2, 2.0], [2.0, 0.1], [2.0, 0.2]])
    >>> assign(losses, Parameters(), seed=0)
    array([0, 0, 1, 1])
    """
    labels = cluster(losses, parameters, seed)
    return match(losses, labels)[labels]


def times_kept(kept: IntArray, before: IntArray, now: IntArray) -> IntArray:
    """Count how many times in a row each client has been given its model.

    Source: the authors' code (``number_of_rounds_for_clustering_stability``), by which clustering stops.

    Parameters
    ----------
    kept
        The counts so far, 0 for a client that has never been clustered, shape (clients,).
    before, now
        The model of each client before and after it was clustered, shape (clients,).

    Returns
    -------
    The new counts, shape (clients,): 1 for a client whose model changed or that was clustered for the first
    time.

    Examples
    --------
    >>> times_kept(np.array([0, 1, 2]), before=np.array([0, 0, 1]), now=np.array([0, 0, 0]))
    array([1, 2, 1])
    """
    return np.where((now == before) & (kept > 0), kept + 1, 1)
