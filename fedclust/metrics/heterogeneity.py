"""Clients' label distributions, and the heterogeneity of a partition: their distance from the federation's.

All are means over clients, weighted by their numbers of examples, of a distance between a client's class
shares and those of all clients together; 0 means that all clients have the same distribution. FedGMCC (Eq. 9)
and Clust-PSI-PFL (Eq. 3) average in this way; Clust-PSI-PFL (Section III-C) compares the four measures.
"""

from typing import Literal

import numpy as np

from fedclust.typing import FloatArray, IntArray

Smoothing = Literal["clip", "add"]


def label_shares(counts: IntArray) -> FloatArray:
    """Compute each client's class frequencies from label counts.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Shares in [0, 1] that add up to 1 on every client, shape (K, C).

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.
    """
    numbers = np.asarray(counts, dtype=np.float64)
    if numbers.ndim != 2 or not numbers.size:
        raise ValueError(f"counts must have shape (clients, classes), got shape {numbers.shape}")
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        raise ValueError(f"counts must be finite and >= 0, got {numbers[wrong][0]}")
    totals = numbers.sum(axis=1, keepdims=True)
    if not totals.all():
        raise ValueError(f"counts must have an example on every client, got none on client {totals.argmin()}")
    return numbers / totals


def stability_index(
    counts: IntArray,
    epsilon: float = 1e-4,
    smoothing: Smoothing = "clip",
    federation: IntArray | None = None,
) -> FloatArray:
    """Compute the distance of each client's share of each class from the federation's.

    Source: Clust-PSI-PFL, Eq. 2; a row's sum is the client's index, Eq. 1.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    epsilon
        Constant that keeps probabilities above 0, > 0.
    smoothing
        ``"clip"`` (lower bound `epsilon`) or ``"add"`` (`epsilon` on top); neither renormalises.
    federation
        Counts of the clients whose examples make the federation's shares; `counts` itself unless given.

    Returns
    -------
    Contributions PSI_{i,c} >= 0 in nats, shape (K, C); 0 where the shares agree.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, a client has no examples, or `epsilon` is outside
        (0, 1).
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon}")
    each = label_shares(counts)
    whole = np.asarray(counts if federation is None else federation, dtype=np.float64)
    everyone = whole.sum(axis=0) / whole.sum()
    if smoothing == "clip":
        everyone, each = np.maximum(everyone, epsilon), np.maximum(each, epsilon)
    else:
        everyone, each = everyone + epsilon, each + epsilon
    return (everyone - each) * np.log(everyone / each)


def weighted_psi(counts: IntArray, epsilon: float = 1e-4) -> float:
    """Average the clients' population stability indices (WPSI).

    Source: Clust-PSI-PFL, Eq. 3.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    epsilon
        Lower bound of every share, > 0.

    Returns
    -------
    Index >= 0, in nats.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0, a client has no examples, or `epsilon` is outside its
        range.
    """
    return _weighted(stability_index(counts, epsilon).sum(axis=1), counts)


def hellinger(counts: IntArray) -> float:
    """Average the clients' Hellinger distances, ‖√p − √q‖ / √2.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1); 1 would mean that clients share no class with the federation.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.
    """
    each, everyone = _shares(counts)
    return _weighted(np.linalg.norm(np.sqrt(each) - np.sqrt(everyone), axis=1) / np.sqrt(2), counts)


def jensen_shannon(counts: IntArray) -> float:
    """Average the clients' Jensen–Shannon distances (square roots of the divergences, in base 2).

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1].

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.
    """
    each, everyone = _shares(counts)
    from scipy.special import rel_entr

    middle = (each + everyone) / 2
    divergence = (rel_entr(each, middle) + rel_entr(everyone, middle)).sum(axis=1) / (2 * np.log(2))
    # For equal distributions, rounding can make the divergence negative; scipy's jensenshannon returns NaN.
    return _weighted(np.sqrt(np.maximum(divergence, 0.0)), counts)


def earth_movers(counts: IntArray) -> float:
    """Average the clients' earth mover's distances, where moving to any other class costs 1.

    Classes have no order, so all are equally far apart. The distance is then half the sum of the absolute
    differences (total variation): the share of its examples that a client would have to exchange. Zhao et
    al., "Federated Learning with Non-IID Data", 2018, use the whole sum, twice this. FedGMCC (Appendix) moves
    inputs instead, by the distances between them, which label counts do not contain.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1].

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.
    """
    each, everyone = _shares(counts)
    return _weighted(np.abs(each - everyone).sum(axis=1) / 2, counts)


def _shares(counts: IntArray) -> tuple[FloatArray, FloatArray]:
    each = label_shares(counts)
    everyone = np.sum(counts, axis=0) / np.sum(counts)
    return each, everyone


def _weighted(distances: FloatArray, counts: IntArray) -> float:
    return float(np.average(distances, weights=np.sum(counts, axis=1)))
