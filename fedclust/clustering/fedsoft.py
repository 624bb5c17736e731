"""FedSoft: every client is a mixture of k groups, and trains one model close to the centres of its groups.

Source: Ruan and Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI
2022, Algorithm 1. Client k trains ``w`` on its loss plus ``λ/2 · Σ_s u_ks ‖w − c_s‖²``, with its importance
weights u_ks of the centres c_s. As these sum to 1, with ``m_k = Σ_s u_ks c_s``::

    Σ_s u_ks ‖w − c_s‖² = ‖w‖² − 2 ⟨w, m_k⟩ + Σ_s u_ks ‖c_s‖²
                        = ‖w − m_k‖² + (Σ_s u_ks ‖c_s‖² − ‖m_k‖²),

and the bracket does not depend on w. So the term is FedProx's around one point, :func:`middle`, and a client
needs to be sent one model instead of k.

The paper's smoothed weights, ``max(n_ks / n_k, σ)``, may sum to more than 1; here they are scaled to sum to
1. τ = 2, σ = 0.0001 and λ = 0.1 are those of the authors' code for MNIST (λ = 0.01 for CIFAR-10). There each
centre draws clients in proportion to u_ks n_k and averages them equally; here a centre is the mean of the
cohort with these weights, whose expectation is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.number import KnownNumber
from fedclust.clustering.shared.weighted_sums import weighted_sums
from fedclust.support.checks import check
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(KnownNumber):
    """Settings of FedSoft.

    Attributes
    ----------
    num_clusters
        Number of centres k, >= 1; None for a guess of 2, which the run names.
    interval
        τ, rounds between two measurements of the importance weights, >= 1.
    sigma
        σ, the smallest share of a client's samples credited to a centre, in [0, 1/k].
    proximal
        λ, weight of the proximal term, >= 0 and finite.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(num_clusters=2, sigma=0.6)
    Traceback (most recent call last):
        ...
    ValueError: sigma must be in [0, 0.5], got 0.6
    """

    interval: Annotated[int, ">= 1"] = 2
    sigma: float = 0.0001
    proximal: Annotated[float, ">= 0 and finite"] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, sigma=f"in [0, {1 / self.number}]")


def importance(wins: IntArray, sigma: float) -> FloatArray:
    """Compute clients' importance weights u from how many of their samples each centre fits best.

    Source: FedSoft, Algorithm 1, lines 5 to 9; scaled to sum to 1.

    Parameters
    ----------
    wins
        n_ks: for each client and centre, the number of samples whose loss is smallest under that centre; not
        all 0 for a client; shape (clients, k).
    sigma
        σ, the smallest share.

    Returns
    -------
    Weights > 0 that sum to 1 over the centres (>= 0 where σ is 0), shape (clients, k).

    Examples
    --------
    >>> importance(np.array([[4, 0]]), sigma=0.25)  # 1 and 0.25, scaled to sum to 1
    array([[0.8, 0.2]])
    """
    smoothed = np.maximum(wins / wins.sum(axis=1, keepdims=True), sigma)
    return smoothed / smoothed.sum(axis=1, keepdims=True)


def centre_shares(weights: FloatArray, num_examples: IntArray) -> FloatArray:
    """Compute each client's share of each centre, u_ks n_k / Σ_k u_ks n_k.

    Source: FedSoft, Eq. 2.

    Parameters
    ----------
    weights
        Importance weights of the clients that trained, shape (clients, k).
    num_examples
        Their numbers of samples n_k, > 0, shape (clients,).

    Returns
    -------
    Shares that sum to 1 over the clients, shape (clients, k); 0 for a centre without any weight.

    Examples
    --------
    >>> centre_shares(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([20, 10]))
    array([[0.5, 1. ],
           [0.5, 0. ]])
    """
    weighted = weights * np.asarray(num_examples)[:, np.newaxis]
    total = weighted.sum(axis=0)
    return np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0)


def middle(models: Sequence[Mapping[str, FloatArray]], shares: FloatArray) -> dict[str, FloatArray]:
    """Average models with weights: centres to a client's m_k = Σ_s u_ks c_s, or clients' models to centres.

    Parameters
    ----------
    models
        Arrays of each model, by name.
    shares
        Weight of each model in each mean, summing to 1 over the models, shape (means, models).

    Returns
    -------
    Means in float64, shape (means, *shape) by name; the maximum for arrays of whole numbers.

    Examples
    --------
    >>> middle([{"w": np.array([0.0])}, {"w": np.array([4.0])}], np.array([[0.75, 0.25]]))
    {'w': array([[1.]])}
    """
    averaged: dict[str, FloatArray] = {}
    for name, first in models[0].items():
        values = [model[name] for model in models]
        if np.issubdtype(first.dtype, np.floating):
            averaged[name] = weighted_sums(values, shares)
        else:
            averaged[name] = np.broadcast_to(np.max(values, axis=0), (len(shares), *first.shape))
    return averaged
