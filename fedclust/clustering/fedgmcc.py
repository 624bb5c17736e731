"""FedGMCC: clusters from the geometry between client models, every round.

Lucchetti, Decouchant, Fernandes, Chen and Völp, "Federated Geometric Monte Carlo Clustering to Counter
Non-IID Datasets", arXiv:2204.11017, 2022. Two models belong together if they are joined by a chain through
weight space along which outputs on random inputs hardly differ. A cluster's model is the mean of all models
on the chains between its members.

**Which pairs are connected.** The paper says three things that do not agree. ε is the median of "the training
losses associated with the curve finding procedure" (Section V-A), so it is a loss. Fig. 1 connects two models
where "the loss remains minimally low", and not where it "crossed the ε budget". Eq. 5 and Algorithm 1,
line 17, compare a slope, max_u ∂L/∂u, with the same ε. ``connect="budget"``, the default, is the reading in
which both sides are losses: a pair is connected if E_u L(u) of its fitted chain is at most ε. L falls from
L(0) to 0 along a chain, so its signed slope (``"slope"``) is hardly ever above a loss, and its steepest slope
in either direction (``"absolute_slope"``) hardly ever below: the first connects everyone, the second almost
no one.

Choices where the paper is not specific, and differences from it:

- Every pair is fitted, which the median over all K (K − 1) / 2 pairs requires. The paper also skips pairs
  already in one cluster, so that its clusters depend on the order of the clients.
- The loss compares with the outputs of one end of the pair, the client with the higher number, as in the
  paper; clients numbered differently give other chains.
- The percentile moves in steps of 5; the paper gives no limits. It stays within the 5th and the 95th. Where
  two groups exist, the rule makes the number of clusters alternate between one and two.
- A model that overflows is connected to no other: it stays alone and keeps its weights.
- The paper trains with binary cross-entropy, clients here with cross-entropy. With two classes, as in its
  genomic reads, and softmax outputs, both losses are equal. With EMNIST's 62 classes, averaging over the
  outputs, as TensorFlow does, makes every step about 62 times smaller: with its learning rate of 0.001 three
  epochs over 20,000 images then reach an accuracy of 0.009, chance, and 0.048 with cross-entropy. (With 62
  times the rate it is 0.048, as with cross-entropy.) So binary cross-entropy does not explain the published
  results either.

This module has the settings and all that is computed from the losses along chains;
:mod:`fedclust.clustering.curve_fitting` fits and averages models.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedclust.support.checks import Checked
from fedclust.typing import BoolArray, FloatArray, IntArray

Connect = Literal["budget", "slope", "absolute_slope"]


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of FedGMCC.

    Attributes
    ----------
    connect
        What is at most ε for pairs that are connected. ``"budget"``: the loss of the fitted chain, E_u L(u),
        as in Fig. 1. ``"slope"``: its steepest rise, max_u ∂L/∂u, as in Eq. 5. ``"absolute_slope"``: its
        steepest slope in either direction, max_u |∂L/∂u|.
    num_inputs
        Monte Carlo inputs (n_MC) drawn each round.
    steps
        SGD steps that fit a bend.
    learning_rate
        Step size η of that fit; the paper's 0.1.
    batch_size
        Monte Carlo inputs per step.
    num_points
        Points of the grid over u on which a chain is scored, odd so that the bend is on it, >= 5.
    first_percentile
        Percentile of the round's losses that is ε in round 1; 50, the median, in the paper.
    percentile_step
        Added to the percentile after a round with several clusters, subtracted after a round with one. 0
        holds it still.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(num_points=10)
    Traceback (most recent call last):
        ...
    ValueError: num_points must be odd and >= 5, got 10
    """

    connect: Connect = "budget"
    num_inputs: Annotated[int, ">= 1"] = 1024
    steps: Annotated[int, ">= 0"] = 50
    learning_rate: Annotated[float, "> 0"] = 0.1
    batch_size: Annotated[int, ">= 1"] = 64
    num_points: int = 11
    first_percentile: Annotated[float, "in [5, 95]"] = 50.0
    percentile_step: Annotated[float, ">= 0"] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_points < 5 or self.num_points % 2 == 0:
            raise ValueError(f"num_points must be odd and >= 5, got {self.num_points}")


def curve_finding_loss(distances: FloatArray) -> FloatArray:
    """Average the loss over a chain: the objective that its bend minimises.

    Source: FedGMCC, Eq. 4, E_u L(u) for u ~ U(0, 1), by the trapezoidal rule.

    Parameters
    ----------
    distances
        L on a uniform grid over [0, 1], shape (…, points).

    Returns
    -------
    Shape (…,); ∞ where a value of the chain is not finite.

    Examples
    --------
    >>> curve_finding_loss(np.array([[1.0, 0.0, 0.0]]))  # the mean of 1/2 and 0
    array([0.25])
    """
    mean = (distances[..., :-1] + distances[..., 1:]).mean(axis=-1) / 2
    return np.where(np.isfinite(distances).all(axis=-1), mean, np.inf)


def steepest(distances: FloatArray, absolute: bool = False) -> FloatArray:
    """Compute the steepest slope of the loss along a chain.

    Source: FedGMCC, Eq. 5 and Algorithm 1, line 17, max_u ∂L/∂u. Central differences inside each half of the
    chain, never across the bend.

    Parameters
    ----------
    distances
        L on a uniform grid over [0, 1], shape (…, points); points odd and >= 5, so that the bend is on the
        grid.
    absolute
        Whether a fall counts as a rise does.

    Returns
    -------
    Largest slope, shape (…,), < 0 for a loss that falls everywhere; ∞ where a value of the chain is not
    finite.

    Examples
    --------
    >>> distances = np.array([[0.6, 0.3, 0.0, 0.1, 0.2]])  # per half chain: −0.6 and +0.2
    >>> steepest(distances), steepest(distances, absolute=True)
    (array([0.4]), array([1.2]))
    """
    points = distances.shape[-1]
    with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as not finite, below
        slopes = (distances[..., 2:] - distances[..., :-2]) * (points - 1) / 2
    # Entry i is at point i + 1; the entry at the bend would mix the two halves.
    slopes = np.delete(np.abs(slopes) if absolute else slopes, (points - 1) // 2 - 1, axis=-1)
    return np.where(np.isfinite(distances).all(axis=-1), slopes.max(axis=-1), np.inf)


def scores(distances: FloatArray, connect: Connect) -> FloatArray:
    """Compute what is compared with ε, by one of the paper's three readings.

    Parameters
    ----------
    distances
        L on a uniform grid over [0, 1], shape (P, points).
    connect
        See :class:`Parameters`.

    Returns
    -------
    Score of each pair, shape (P,); ∞ where a value of the chain is not finite.

    Examples
    --------
    >>> distances = np.array([[0.6, 0.3, 0.0, 0.1, 0.2]])
    >>> scores(distances, "budget").round(6), scores(distances, "slope")
    (array([0.2]), array([0.4]))
    """
    if connect == "budget":
        return curve_finding_loss(distances)
    return steepest(distances, absolute=connect == "absolute_slope")


LOWEST_PERCENTILE, HIGHEST_PERCENTILE = 5.0, 95.0


def budget(losses: FloatArray, percentile: float) -> float:
    """Compute the budget ε from the round's curve-finding losses.

    Source: FedGMCC, Section V-A: the median in the first round; :func:`next_percentile` afterwards.

    Parameters
    ----------
    losses
        Curve-finding loss of each pair, >= 0, shape (P,). Pairs that overflow, ∞, do not count.
    percentile
        Percentile, in [0, 100]; linear between two losses.

    Returns
    -------
    ε >= 0; 0 if no pair counts, as with one model.

    Examples
    --------
    >>> budget(np.array([1.0, 2.0, 6.0, np.inf]), percentile=50)
    2.0
    """
    finite = losses[np.isfinite(losses)]
    return float(np.percentile(finite, percentile)) if finite.size else 0.0


def next_percentile(percentile: float, num_clusters: int, percentile_step: float) -> float:
    """Update the percentile of the budget: up after several clusters, down after one.

    Source: FedGMCC, Section V-A. The limits at the 5th and the 95th are ours.

    Parameters
    ----------
    percentile
        Percentile of this round.
    num_clusters
        Number of clusters of this round.
    percentile_step
        Step of the percentile; 5 in the paper.

    Returns
    -------
    Percentile of the next round, in [5, 95].

    Examples
    --------
    >>> next_percentile(50.0, num_clusters=3, percentile_step=5.0)
    55.0
    >>> next_percentile(5.0, num_clusters=1, percentile_step=5.0)
    5.0
    """
    moved = percentile + (percentile_step if num_clusters > 1 else -percentile_step)
    return min(max(moved, LOWEST_PERCENTILE), HIGHEST_PERCENTILE)


def components(pairs: IntArray, connected: BoolArray, num_models: int) -> IntArray:
    """Group models that are connected, directly or through others.

    Source: FedGMCC, Proposition 1.1 and Algorithm 1, lines 4 to 9: a disjoint-set query.

    Parameters
    ----------
    pairs
        Positions of two models, shape (P, 2).
    connected
        Which pairs are connected, shape (P,).
    num_models
        Number of models n.

    Returns
    -------
    Cluster of each model, numbered in order of first appearance, shape (n,).

    Examples
    --------
    >>> components(np.array([[0, 1], [0, 2], [1, 2]]), np.array([True, False, False]), num_models=3)
    array([0, 0, 1])
    """
    from scipy.sparse.csgraph import connected_components

    joined = np.zeros((num_models, num_models), dtype=bool)
    joined[tuple(pairs[connected].T)] = True
    return connected_components(joined, directed=False)[1].astype(np.int64)
