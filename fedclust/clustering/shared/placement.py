"""The cluster that serves a client that joined after clusters were formed, and the reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import FloatArray


@dataclass(frozen=True)
class Placement:
    """The cluster of a client that joined later, with the evidence.

    Attributes
    ----------
    cluster
        Index of the cluster whose model serves the client; None if none fits: one model for all serves it.
    reason
        Why, in a sentence.
    evidence
        The numbers behind the decision, by name; JSON values.

    Examples
    --------
    >>> Placement(None, "the client has no rows").summary()
    {'cluster': None, 'reason': 'the client has no rows', 'evidence': {}}
    """

    cluster: int | None
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the placement as plain values, for JSON."""
        return {"cluster": self.cluster, "reason": self.reason, "evidence": dict(self.evidence)}


ONE_MODEL = "there is one model for all"
"""Why a client is in the only cluster."""

NONE = -1
"""Stands for no cluster."""


def least_loss(losses: ArrayLike, chance: float = np.inf) -> int:
    """Choose the cluster whose model has the least loss on the client's rows.

    Source: IFCA, Algorithm 1, the estimate of a client's cluster (Ghosh, Chung, Yin and Ramchandran, "An
    Efficient Framework for Clustered Federated Learning", NeurIPS 2020). That rule always names a cluster;
    "none" is ours: a model no better than guessing is of no use to a client.

    Parameters
    ----------
    losses
        Mean loss of each cluster's model on the client's rows, shape (k,); values that are not finite never
        win.
    chance
        Loss of a guess: ln C nats for cross-entropy and C classes. Infinite if unknown.

    Returns
    -------
    Position of the least loss, the first on a tie; −1 if it is not below `chance`, or none is finite.

    Examples
    --------
    >>> least_loss([0.5, 0.2])
    1
    >>> least_loss([1.5, 1.6], chance=np.log(2))  # no better than guessing one of two classes
    -1
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

    Examples
    --------
    >>> apart = np.array([[0.0, 5.0], [5.0, 0.0]])
    >>> nearest([1.0, 9.0], apart), nearest([6.0, 9.0], apart)
    (0, -1)
    """
    values = np.asarray(distances, dtype=np.float64)
    best = int(values.argmin())
    if len(values) == 1:
        return best
    return best if values[best] <= np.delete(apart[best], best).min() else NONE
