"""FedRC: k models for clients that call alike inputs differently, whichever inputs and labels they have.

Source: Guo, Tang and Lin, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by
Robust Clustering", ICML 2024 (arXiv 2301.12379). Client i has a share ω_ik of model k, and row j of it a
responsibility γ_ijk. The objective is the sum of ln Σ_k ω_ik I(x_ij, y_ij; θ_k) over all rows, with
I(x, y; θ) = P(x, y; θ) / (P(x; θ) P(y; θ)): a model is rewarded for what it knows of a label beyond how often
its rows have it, so that clients with other labels alone need no other model. In each round

- γ_ijk ∝ ω_ik exp(−ℓ(x_ij, y_ij; θ_k)) / P(y_ij; θ_k), then ω_ik is the mean of γ_ijk over j
  (:func:`responsibilities`, :func:`mixtures`);
- each client trains every model on all its rows, the loss of row j weighted by γ_ijk, and the server averages
  each model over the clients by their numbers of rows;
- P(y; θ_k) is the share of class y in the rows of all clients, weighted by γ_ijk (:func:`label_shares`).

The paper leaves P(x; θ) the same for all models. The order of the steps is that of the authors' code
(LINs-lab/FedRC), as are: γ is made with the ω and P(y; θ) of the last round, which begin as uniform; the
models are drawn apart; a client that did not take part counts as it last was; a sum below 10⁻⁸ counts as
10⁻⁸. There a client predicts with the ω-weighted mean of all models' probabilities or, with
``hard_cluster``, with the model of its largest ω; here it is always the latter.
"""

from dataclasses import dataclass

import numpy as np

from fedclust.clustering.shared.number import KnownNumber
from fedclust.typing import FloatArray, IntArray

_LEAST_SHARE = 1e-8


@dataclass(frozen=True)
class Parameters(KnownNumber):
    """Settings of FedRC.

    Attributes
    ----------
    num_clusters
        Number of models k, >= 1; None for a guess of 2, which the run names. The paper uses 3.

    Raises
    ------
    ValueError
        If the number is below 1.

    Examples
    --------
    >>> Parameters(num_clusters=0)
    Traceback (most recent call last):
        ...
    ValueError: num_clusters must be >= 1 or None, got 0
    """


def responsibilities(
    losses: FloatArray, labels: IntArray, mixture: FloatArray, shares: FloatArray
) -> FloatArray:
    """Compute how much each model is responsible for each row of a client, the E-step.

    Source: FedRC, the update of γ.

    Parameters
    ----------
    losses
        Loss of each model on each row, in nats, shape (k, n); one that is not finite makes the model
        responsible for nothing there.
    labels
        Classes of the rows, shape (n,), or (n, positions): then the mean of ln P(y; θ) over positions counts.
    mixture
        The client's ω, >= 0, shape (k,).
    shares
        P(y; θ) of each model, > 0, shape (k, C).

    Returns
    -------
    γ, which sums to 1 over the models, shape (k, n).

    Examples
    --------
    >>> losses = np.log([[2.0, 2.0], [2.0, 4.0]])  # of two models on two rows
    >>> shares = np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> responsibilities(losses, np.array([0, 0]), np.array([0.5, 0.5]), shares).round(3)
    array([[0.333, 0.5  ],
           [0.667, 0.5  ]])
    """
    known = np.log(shares)[:, labels].reshape(*losses.shape, -1).mean(axis=2)
    with np.errstate(divide="ignore"):
        weights = np.log(mixture)[:, np.newaxis] - np.where(np.isfinite(losses), losses, np.inf) - known
    top = weights.max(axis=0, keepdims=True, initial=-np.inf)
    gamma = np.exp(weights - np.where(np.isfinite(top), top, 0.0))
    gamma = np.where(np.isfinite(top), gamma, mixture[:, np.newaxis])  # no model fits: nothing is learned
    return gamma / gamma.sum(axis=0)


def class_sums(gamma: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Sum a client's responsibilities over the rows of each class, which is all that the server needs.

    Parameters
    ----------
    gamma
        Responsibilities, shape (k, n).
    labels
        Classes of the rows, shape (n,), or (n, positions), which share the row's responsibility.
    num_classes
        Number of classes C.

    Returns
    -------
    Shape (k, C).

    Examples
    --------
    >>> class_sums(np.array([[0.25, 0.5, 1.0]]), np.array([0, 0, 2]), num_classes=3)
    array([[0.75, 0.  , 1.  ]])
    """
    places = labels.reshape(len(labels), -1)
    each = np.repeat(gamma / places.shape[1], places.shape[1], axis=1)
    return np.stack([np.bincount(places.ravel(), weights=row, minlength=num_classes) for row in each])


def mixtures(sums: FloatArray) -> FloatArray:
    """Compute the clients' shares ω of the models, the mean of each one's responsibilities.

    Source: FedRC, the update of ω.

    Parameters
    ----------
    sums
        Responsibilities of each client's rows by model and class, shape (clients, k, C); all 0 for a client
        that nothing is known of.

    Returns
    -------
    Shares that sum to 1 over the models, all equal for such a client, shape (clients, k).

    Examples
    --------
    >>> mixtures(np.array([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]))
    array([[0.75, 0.25],
           [0.5 , 0.5 ]])
    """
    of_models = sums.sum(axis=2)
    total = of_models.sum(axis=1, keepdims=True)
    return np.where(total > 0, of_models / np.where(total > 0, total, 1.0), 1 / sums.shape[1])


def label_shares(sums: FloatArray) -> FloatArray:
    """Estimate P(y; θ): the share of each class in the rows that each model is responsible for.

    Source: FedRC, the estimate of P(y; θ); a sum below 10⁻⁸ counts as 10⁻⁸, as in the authors' code.

    Parameters
    ----------
    sums
        As for :func:`mixtures`.

    Returns
    -------
    Shares > 0 that sum to 1 over the classes, shape (k, C).

    Examples
    --------
    >>> label_shares(np.array([[[3.0, 1.0], [0.0, 0.0]], [[1.0, 3.0], [0.0, 0.0]]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    of_classes = np.maximum(sums.sum(axis=0), _LEAST_SHARE)
    return of_classes / of_classes.sum(axis=1, keepdims=True)
