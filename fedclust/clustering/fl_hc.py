"""FL+HC: after some rounds of one model for all, clusters from what training changes on every client.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training
on non-IID data", IJCNN 2020 (arXiv:2004.11791), Algorithm 1. After n rounds of FedAvg all clients train the
model once; their changes Δ are clustered agglomeratively by a distance between them, down to a threshold;
from then on each cluster is a federation of its own.

Where we depart from the paper:

- ``"l2"`` and ``"cosine"`` need only lengths and angles, so clients send a random projection of Δ instead of
  Δ (:mod:`fedclust.messages.training`): with m = 4,096 numbers a cosine has a standard error of at most
  √(2/m) = 0.022. A projection does not preserve ``"l1"``: clients send Δ itself, which is large for a large
  model and many clients.
- The paper's threshold is set per data set; without one, the number of clusters is the one with the best
  silhouette.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedclust.clustering.shared import grouping
from fedclust.clustering.shared.grouping import Details, Grouping, Linkage
from fedclust.typing import FloatArray, IntArray

Metric = Literal["l2", "cosine", "l1"]


@dataclass(frozen=True)
class Parameters(Grouping):
    """Settings of FL+HC, besides those of :class:`~fedclust.clustering.shared.grouping.Grouping`.

    Attributes
    ----------
    rounds
        n, rounds of one model for all before clients are clustered, >= 1.
    metric
        Distance between two changes: ``"l2"``, ``"cosine"`` or ``"l1"``.
    projection
        Length of the projection of its change that each client sends, >= 1; not used with ``"l1"``.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(rounds=0)
    Traceback (most recent call last):
        ...
    ValueError: rounds must be >= 1, got 0
    """

    linkage: Linkage = "complete"
    rounds: Annotated[int, ">= 1"] = 10
    metric: Metric = "cosine"
    projection: Annotated[int, ">= 1"] = 4096


def distances(changes: FloatArray, metric: Metric) -> FloatArray:
    """Compute the distances between clients' changes.

    Source: FL+HC, Section III.

    Parameters
    ----------
    changes
        Δ of each client, or a projection of it, shape (K, d).
    metric
        ``"l2"``, ``"cosine"`` or ``"l1"``.

    Returns
    -------
    Distances >= 0, symmetric with diagonal 0, shape (K, K).

    Examples
    --------
    >>> distances([[3.0, 4.0], [0.0, 0.0]], "l1")
    array([[0., 7.],
           [7., 0.]])
    """
    if metric == "cosine":
        return grouping.cosine_distances(changes)
    return grouping.lp_distances(changes, 1 if metric == "l1" else 2)


def assign(changes: FloatArray, parameters: Parameters) -> tuple[IntArray, Details]:
    """Group clients by their changes. Nothing is random, so there is no seed.

    Source: FL+HC, Algorithm 1, the step after n rounds.

    Parameters
    ----------
    changes
        Δ of each client, or a projection of it, shape (K, d).
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
    >>> labels, _ = assign([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], Parameters(threshold=1.0))
    >>> labels
    array([0, 0, 1])
    """
    return grouping.group(distances(changes, parameters.metric), parameters)
