"""FedGMCC: clusters from the geometry between client models, every round.

Lucchetti, Decouchant, Fernandes, Chen and Völp, "Federated Geometric Monte Carlo Clustering to Counter
Non-IID Datasets", arXiv:2204.11017, 2022. Two models belong together if they are joined by a chain through
weight space along which outputs on random inputs change slowly. A cluster's model is the mean of all models
on the chains between its members.

Choices where the paper is not specific, and differences from it:

- Every pair is fitted; the paper skips pairs already in one cluster, so its clusters depend on the
  order of the clients.
- The budget ε is a percentile of the round's curve-finding losses, from the median on (Section V-A); the
  paper gives steps, not limits. It stays within the 5th and the 95th.
- With `grouping="linkage"`, our default, pair scores are the distances of an average-linkage clustering. A
  percentile of losses is not a bound on slopes: the pairs that it connects depend on how much losses differ
  between pairs.
- With `targets="both"`, our default, chains and scores do not depend on how clients are numbered; the
  paper's do, since its loss uses only one end of a chain (``targets="later"``).
- A model that overflows is connected to no other: it stays alone and keeps its weights.
- The paper trains with binary cross-entropy, clients here with cross-entropy. With two classes, as in its
  genomic reads, and softmax outputs, both losses are equal. With EMNIST's 62 classes, averaging over the
  outputs, as TensorFlow does, makes every step about 62 times smaller: with its learning rate of 0.001 three
  epochs over 20,000 images then reach an accuracy of 0.009, chance, and 0.048 with cross-entropy. (With 62
  times the rate it is 0.048, as with cross-entropy.) So binary cross-entropy does not explain the published
  results either.
- A score is the slope of the loss in both directions, |∂L/∂u|: a drop counts as
  much as a rise.

This module has the settings and all that is computed from scores; :mod:`fedclust.clustering.curve_fitting`
fits and averages models.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedclust.clustering.shared.grouping import cut, in_order_of_appearance, merges
from fedclust.metrics import silhouette
from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of FedGMCC.

    Attributes
    ----------
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
    targets
        Ends of a chain that its loss compares outputs with. ``"both"``: both ends, so that scores do not
        depend on the numbering of clients. ``"later"``: the end with the higher number, as in the paper.
    pairs_per_batch
        Pairs fitted at a time; memory grows with it times `batch_size`. ``"auto"`` is the fastest number for
        the network and device. 1 fits them one by one without vectorising, which networks with LSTM or
        attention layers always require.
    grouping
        ``"components"``: connected components of the pairs whose score is at most a percentile of the
        round's curve-finding losses, as in the paper.
        ``"linkage"``: average linkage of the scores and the best silhouette.
    first_percentile
        Percentile of the curve-finding losses that is the budget of round 1 (`components`).
    percentile_step
        Added to the percentile after a round with several clusters, subtracted after a round with one.
    min_silhouette
        Mean silhouette below which all clients stay together (`linkage`).

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    num_inputs: Annotated[int, ">= 1"] = 1024
    steps: Annotated[int, ">= 0"] = 50
    learning_rate: Annotated[float, "> 0"] = 0.1
    batch_size: Annotated[int, ">= 1"] = 64
    num_points: int = 21
    targets: Literal["both", "later"] = "both"
    pairs_per_batch: int | Literal["auto"] = "auto"
    grouping: Literal["linkage", "components"] = "linkage"
    first_percentile: Annotated[float, "in [5, 95]"] = 50.0
    percentile_step: Annotated[float, ">= 0"] = 5.0
    min_silhouette: Annotated[float, "in [-1, 1]"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_points < 5 or self.num_points % 2 == 0:
            raise ValueError(f"num_points must be odd and >= 5, got {self.num_points}")
        pairs = self.pairs_per_batch
        if pairs != "auto" and not (isinstance(pairs, int) and pairs >= 1):
            raise ValueError(f"pairs_per_batch must be >= 1 or 'auto', got {pairs!r}")


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
    """
    moved = percentile + (percentile_step if num_clusters > 1 else -percentile_step)
    return min(max(moved, LOWEST_PERCENTILE), HIGHEST_PERCENTILE)


def connect(scores: FloatArray, epsilon: float) -> IntArray:
    """Group models that are connected by pairs with small scores.

    Source: FedGMCC, Proposition 1.1 and Algorithm 1, lines 4 to 9: a disjoint-set query. The diagonal does
    not matter, and a score that is not finite connects nothing.

    Parameters
    ----------
    scores
        Largest slope along the chain of each pair, shape (K, K); an entry of either triangle connects.
    epsilon
        Budget: pairs with a score up to it are connected.

    Returns
    -------
    Cluster of each model, numbered in order of first appearance, shape (K,).
    """
    from scipy.sparse.csgraph import connected_components

    joined = np.isfinite(scores) & (scores <= epsilon)
    return connected_components(joined, directed=False)[1].astype(np.int64)


def link(scores: FloatArray, min_silhouette: float) -> tuple[IntArray, dict[int, float]]:
    """Group models by average linkage, into the number of clusters with the best mean silhouette.

    Replaces the paper's percentile. One or two models are one cluster, unless their score is ∞, which never
    joins models. Models connected by finite scores, directly or through others, form a part, and each part is
    grouped separately: next to a model at distance ∞, every grouping of the others would score well.

    Parameters
    ----------
    scores
        Largest slope along the chain of each pair, symmetric with diagonal 0, shape (K, K).
    min_silhouette
        All models stay together unless the best mean silhouette is at least this.

    Returns
    -------
    labels
        Cluster of each model, numbered in order of first appearance, shape (K,).
    silhouettes
        Mean silhouette of each number of clusters tried, at most 2…K − 1. Ties go to the fewer clusters.
        With several parts, those of the largest part.
    """
    from scipy.sparse.csgraph import connected_components

    parts = connected_components(np.isfinite(scores), directed=False)[1]
    labels = np.zeros(len(scores), dtype=np.int64)
    by_part: list[dict[int, float]] = []
    sizes = np.bincount(parts)
    for part in np.argsort(-sizes, kind="stable"):
        members = np.flatnonzero(parts == part)
        within, silhouettes = _link_part(scores[np.ix_(members, members)], min_silhouette)
        labels[members] = within + labels.max() + 1
        by_part.append(silhouettes)
    return in_order_of_appearance(labels), by_part[0]


def _link_part(scores: FloatArray, min_silhouette: float) -> tuple[IntArray, dict[int, float]]:
    """Group the models of one part of :func:`link`, which finite scores connect."""
    n = len(scores)
    matched = np.isfinite(scores)
    largest = scores[matched].max()
    # A mean over up to n²/4 pairs with one of these among them is larger than any without: such clusters are
    # merged last. Silhouettes take the largest score in its place, which does not drown the others.
    far = np.where(matched, scores, (largest or 1.0) * n * n)
    near = np.where(matched, scores, largest)
    pairs = merges(far, "average")[0] if n > 1 else np.zeros((0, 2), dtype=np.int64)
    tried = {number: cut(pairs, number) for number in range(1, n + 1)}
    allowed = {number: labels for number, labels in tried.items() if matched[labels[:, None] == labels].all()}
    silhouettes = {number: silhouette(near, labels) for number, labels in allowed.items() if 1 < number < n}
    best = max(silhouettes, key=silhouettes.__getitem__, default=None)  # the first of equals
    if best is None or silhouettes[best] < min_silhouette:
        return allowed[min(allowed)], silhouettes
    return allowed[best], silhouettes
