"""IFCA: a client belongs to the model that fits it best.

Source: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
2020, Algorithm 1 with model averaging. Its remedy for bad starts (try several and keep the best) and its
variant whose clusters share all layers but the last are here, too.

Starts are tried one after the other: the first trains in rounds 1 to ``restart_rounds``, the next in as many
rounds after that, and so on. Then all clients measure the models of all starts, and the best start continues.
So ``restarts`` starts cost ``(restarts − 1) · restart_rounds`` rounds in which the kept models do not train,
and one message with ``restarts · num_clusters`` models to all clients; no round is longer than without
restarts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.number import KnownNumber
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(KnownNumber):
    """Settings of IFCA.

    Attributes
    ----------
    num_clusters
        Number of models k, >= 1; None for a guess of 2, which the run names.
    restarts
        Number of starts r, >= 1; each draws k models.
    restart_rounds
        Rounds that each start trains for before one is chosen, >= 1. Unused if there is one start.
    shared_layers
        Whether all layers but the last are averaged over all clients, so that clusters differ only in the
        last.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> Parameters(restarts=3, restart_rounds=10).trial_rounds
    30
    """

    restarts: Annotated[int, ">= 1"] = 1
    restart_rounds: Annotated[int, ">= 1"] = 10
    shared_layers: bool = False

    @property
    def trial_rounds(self) -> int:
        """The round after which a start is chosen; 0 if there is only one."""
        return self.restarts * self.restart_rounds if self.restarts > 1 else 0


def choose(losses: FloatArray) -> IntArray:
    """Choose the model with the smallest loss for each client; the lowest index on a tie.

    Source: IFCA, Algorithm 1, line 8.

    Parameters
    ----------
    losses
        Loss of each model on each client's training part, in nats, shape (clients, k).

    Returns
    -------
    The model of each client, shape (clients,).

    Examples
    --------
    >>> choose(np.array([[0.3, 0.9], [0.8, 0.1]]))
    array([0, 1])
    """
    return np.argmin(losses, axis=1)


def current_start(server_round: int, parameters: Parameters) -> int:
    """Return the number of the start that trains in a round, from 0; 0 in every round after the choice.

    Examples
    --------
    >>> parameters = Parameters(restarts=2, restart_rounds=10)
    >>> [current_start(server_round, parameters) for server_round in (1, 10, 11, 20, 21)]
    [0, 0, 1, 1, 0]
    """
    if server_round > parameters.trial_rounds:
        return 0
    return (server_round - 1) // parameters.restart_rounds


def start_losses(losses: FloatArray, num_clusters: int) -> FloatArray:
    """Compute each start's loss: each client's smallest loss over the start's models, averaged over clients.

    Source: IFCA, Eq. 1, averaged over clients; "restarts" in its Section 6.

    Parameters
    ----------
    losses
        Loss of each model on each client's training part, in nats, shape (clients, r · k); the k models of a
        start lie side by side.
    num_clusters
        Models of each start, k.

    Returns
    -------
    Shape (r,).

    Examples
    --------
    >>> losses = np.array([[1.0, 3.0, 0.0, 2.0], [3.0, 1.0, 4.0, 4.0]])
    >>> start_losses(losses, num_clusters=2)  # means of 1 and 1, and of 0 and 4
    array([1., 2.])
    """
    return losses.reshape(len(losses), -1, num_clusters).min(axis=2).mean(axis=0)


def best_start(losses: FloatArray, num_clusters: int) -> int:
    """Choose the start with the smallest loss, see :func:`start_losses`; the first on a tie.

    Examples
    --------
    >>> best_start(np.array([[1.0, 3.0, 0.0, 2.0], [3.0, 1.0, 4.0, 4.0]]), num_clusters=2)
    0
    """
    return int(np.argmin(start_losses(losses, num_clusters)))


def share_layers(
    models: Sequence[Mapping[str, FloatArray]], weights: Sequence[float], last: frozenset[str]
) -> list[dict[str, FloatArray]]:
    """Average all layers but the last over the clusters.

    Source: IFCA, Section 6, weight sharing. Each cluster's layer is the mean of its clients', so the mean of
    those, weighted by the clusters' samples, is the mean over all clients.

    Parameters
    ----------
    models
        Arrays of each cluster's model, by name.
    weights
        Training samples behind each cluster's model, >= 0, not all 0, shape (k,).
    last
        Names of the last layer's arrays.

    Returns
    -------
    The models; arrays of whole numbers are not averaged.

    Examples
    --------
    >>> models = [{"first": np.array([0.0]), "last": np.array([1.0])}]
    >>> models += [{"first": np.array([4.0]), "last": np.array([2.0])}]
    >>> share_layers(models, weights=[3, 1], last=frozenset(["last"]))
    [{'first': array([1.]), 'last': array([1.])}, {'first': array([1.]), 'last': array([2.])}]
    """
    shared = {
        name: np.average([model[name].astype(np.float64) for model in models], axis=0, weights=weights)
        for name, array in models[0].items()
        if name not in last and np.issubdtype(array.dtype, np.floating)
    }
    return [{name: shared.get(name, array) for name, array in model.items()} for model in models]
