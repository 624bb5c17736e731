"""FedDrift: clients whose data changes leave their model, and models that turn out alike are merged.

Source: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, "Federated Learning under Distributed Concept Drift",
AISTATS 2023: FedDrift and, for one new concept at a time, FedDrift-Eager. At the start of every time step
each client measures the loss of all models on its new data. It belongs to the model that fits best, unless
even that loss is more than δ above the one of the step before (:func:`drifted`): its data has drifted.
FedDrift gives each drifted client a model of its own for a step, and merges models hierarchically by their
largest distance D(i, j) = max(L_ij − L_ii, L_ji − L_jj, 0), with the loss L_ij of model i on the data of
cluster j, while that is at most δ (:func:`distances`, :func:`merged`). FedDrift-Eager gives all clients that
drift in a step one new model together, and does not merge.

The details are those of the authors' code (microsoft/FedDrift): a client is alone for one step, so that the
models of this step's drifted clients are neither chosen nor merged in it; a new model starts from the one
that fitted its client best (in FedDrift-Eager, its first client); nothing is compared in the first step;
after a drift, the loss that was too large is what the next step's is compared with; a model that nobody has
chosen stays and may be chosen again. Three things differ. There, losses are shares of wrong predictions, and
δ is set per data set, 0.1 by default; here they are the training loss, and δ is in nats. There, a client goes
on training its earlier models on its earlier data; here it has only the data of now, so that a model without
clients has no distance and is not merged, and merged models are weighted by their clients' rows of now. There
the number of models is limited; here it is not.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.grouping import agglomerate
from fedclust.support.checks import Checked
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of FedDrift.

    Attributes
    ----------
    interval
        Rounds of a time step, >= 1.
    delta
        δ, in nats, > 0 and finite: by how much the loss must rise for a drift, and the largest distance
        of models that are merged.
    eager
        Whether clients that drift in one step share a new model, which is not merged: FedDrift-Eager.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> Parameters(delta=0.0)
    Traceback (most recent call last):
        ...
    ValueError: delta must be > 0 and finite, got 0.0
    """

    interval: Annotated[int, ">= 1"] = 10
    delta: Annotated[float, "> 0 and finite"] = 0.1
    eager: bool = False


def drifted(losses: FloatArray, before: FloatArray, delta: float) -> BoolArray:
    """Find the clients that no model fits as well as one did in the step before.

    Source: FedDrift, the drift detection of Algorithms 1 and 2.

    Parameters
    ----------
    losses
        Loss of each model on each client's data, in nats, shape (clients, models).
    before
        The smallest loss of each client in the step before, NaN for none, shape (clients,).
    delta
        δ.

    Returns
    -------
    Shape (clients,).

    Examples
    --------
    >>> drifted(np.array([[0.4, 0.9], [0.4, 0.3], [5.0, 9.0]]), np.array([0.2, 0.2, np.nan]), delta=0.1)
    array([ True, False, False])
    """
    return losses.min(axis=1) > before + delta


def distances(losses: FloatArray, assignment: IntArray, num_rows: IntArray) -> FloatArray:
    """Compute the distances of models, by how much worse each is on the other's data than on its own.

    Source: FedDrift, the cluster distance D(i, j) = max(L_ij − L_ii, L_ji − L_jj, 0).

    Parameters
    ----------
    losses
        As for :func:`drifted`.
    assignment
        Model of each client, −1 for none of these, shape (clients,).
    num_rows
        Rows of each client, > 0, by which L_ij is their mean, shape (clients,).

    Returns
    -------
    Shape (models, models), with diagonal 0; infinite where one of the two has no client.

    Examples
    --------
    >>> losses = np.array([[0.25, 0.5], [0.5, 1.0], [2.0, 0.5]])
    >>> distances(losses, np.array([0, 0, 1]), np.array([1, 1, 9]))
    array([[0.   , 1.625],
           [1.625, 0.   ]])
    """
    number = losses.shape[1]
    weights = np.equal.outer(np.arange(number), assignment) * num_rows
    total = weights.sum(axis=1)
    here = np.where(np.isfinite(losses), losses, np.finfo(np.float64).max / 2**64)
    of_model = (weights @ here).T / np.where(total, total, 1)  # model i (rows) on the data of cluster j
    worse = of_model - of_model.diagonal()[:, np.newaxis]
    far = np.maximum(np.maximum(worse, worse.T), 0.0)
    far[(total == 0)[:, np.newaxis] | (total == 0)] = np.inf
    np.fill_diagonal(far, 0.0)
    return far


def merged(distances: FloatArray, delta: float) -> IntArray:
    """Group models hierarchically: the two groups whose farthest models are closest, while within δ.

    Source: FedDrift, the merging of Algorithm 2, with the largest distance of two groups' models.

    Parameters
    ----------
    distances
        As from :func:`distances`.
    delta
        δ.

    Returns
    -------
    Group of each model, in order of first appearance, shape (models,).

    Examples
    --------
    >>> merged(np.array([[0.0, 0.05, np.inf], [0.05, 0.0, np.inf], [np.inf, np.inf, 0.0]]), delta=0.1)
    array([0, 0, 1])
    """
    finite = np.where(np.isfinite(distances), distances, np.finfo(np.float64).max)
    return agglomerate(finite, None, delta, "complete")
