"""Groups under client-level differential privacy: k models and one for all, and a noisy vote between them.

Each round publishes only noisy sums over clients: the model for all, the k models, and how many clients
trained each. A client's group is a function of those models and of its own rows. So all that the *others*
receive reveals no more about a client than the sums do (the billboard lemma), and its own group is never
published.

Sources: Hsu, Huang, Roth, Roughgarden and Wu, "Private Matchings and Allocations", STOC 2014 (the billboard
lemma), for joint differential privacy of Kearns, Pai, Roth and Ullman, "Mechanism Design in Large Games",
ITCS 2014. Groups: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated
Learning", NeurIPS 2020, Algorithm 1 (IFCA), from starts of our own: at a model that all clients trained,
groups with different optima have gradients of opposite signs, so that a small step in any direction and its
opposite distinguish them; random weights do so only by luck. If noise hides the difference, all clients
choose the same group, as the published sizes show; the k models then start anew around the model for all,
which costs no ε.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedclust.support.checks import Checked
from fedclust.typing import FloatArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of private groups.

    Attributes
    ----------
    num_groups
        Number of models k in addition to the one for all, >= 2.
    warmup
        Rounds in which only the model for all is trained, >= 1; the k models then start around it.
    spread
        Distance from it at which they start, as a share of its length, > 0.
    vote_clip
        B, the limit to which a client's vote, a difference of Brier scores, is clipped, in (0, 2].
    level
        Probability of keeping groups that do not help, in (0, 0.5].

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(vote_clip=3.0)
    Traceback (most recent call last):
        ...
    ValueError: vote_clip must be in (0, 2], got 3.0
    """

    held_out_rows: ClassVar[str] = "votes"

    num_groups: Annotated[int, ">= 2"] = 2
    warmup: Annotated[int, ">= 1"] = 3
    spread: Annotated[float, "> 0 and finite"] = 0.1
    vote_clip: Annotated[float, "in (0, 2]"] = 0.25
    level: Annotated[float, "in (0, 0.5]"] = 0.05


def apart(values: FloatArray, number: int, spread: float, generator: np.random.Generator) -> FloatArray:
    """Draw starts around a model, in random directions that sum to zero; two starts are opposite.

    Parameters
    ----------
    values
        The model's trained parameters as one vector, shape (d,).
    number
        Number of starts, k >= 2.
    spread
        Root mean square length of the steps, as a share of the model's; a model of zeros counts as length 1.
    generator
        Draws the directions.

    Returns
    -------
    Shape (k, d).

    Examples
    --------
    >>> steps = apart(np.array([3.0, 4.0]), 2, 0.1, np.random.default_rng(0)) - np.array([3.0, 4.0])
    >>> np.linalg.norm(steps, axis=1), steps.sum(axis=0).round(9) + 0  # a tenth of the model's length 5
    (array([0.5, 0.5]), array([0., 0.]))
    """
    steps = generator.standard_normal((number, len(values)))
    steps -= steps.mean(axis=0)
    length = float(np.linalg.norm(values)) or 1.0
    return values + steps * (spread * length * math.sqrt(number) / float(np.linalg.norm(steps)))


def deserted(sizes: Sequence[float], num_clients: int, noise: float) -> bool:
    """Return whether a group has so few clients that all groups must start again.

    Parameters
    ----------
    sizes
        Noisy number of clients that trained each group, shape (k,).
    num_clients
        Number of clients n of the round.
    noise
        Standard deviation of the noise, >= 0.

    Returns
    -------
    Whether the smallest is below n/(8k), an eighth of an equal share, by more than one standard deviation.

    Examples
    --------
    >>> deserted([1.0, 19.0], num_clients=20, noise=0.0)  # 1 < 20/16
    True
    """
    return min(sizes) + noise < num_clients / (8 * len(sizes))


def vote(differences: Sequence[float], vote_clip: float) -> FloatArray:
    """Convert differences of Brier scores to votes in [−1, 1], in units of the clip B.

    Examples
    --------
    >>> vote([0.5, -0.1], vote_clip=0.25)
    array([ 1. , -0.4])
    """
    return np.clip(np.asarray(differences, dtype=np.float64), -vote_clip, vote_clip) / vote_clip


def groups_help(total: float, num_clients: int, noise: float, level: float) -> tuple[bool, float]:
    """Test whether groups help clients on average, by the noisy sum of their votes.

    Given the models, votes are independent, because each comes from a client's own held-out rows. They lie in
    [−1, 1], so the variance of their sum is at most the number of clients, plus that of the noise. If clients
    gain nothing on average, a normal sum exceeds the threshold with probability `level` at most.

    Parameters
    ----------
    total
        Σ of the votes, with noise.
    num_clients
        Number of clients n that were asked; those that did not answer count as votes of 0.
    noise
        Standard deviation σ of the noise, >= 0.
    level
        Probability of an error.

    Returns
    -------
    Whether the sum is above the threshold, and the threshold: Φ⁻¹(1 − level) · √(n + σ²).

    Examples
    --------
    >>> helps, threshold = groups_help(20.0, num_clients=100, noise=0.0, level=0.05)
    >>> helps, round(threshold, 2)  # Φ⁻¹(0.95) · √100
    (True, 16.45)
    """
    from scipy.special import ndtri

    threshold = float(ndtri(1 - level)) * math.sqrt(num_clients + noise**2)
    return total > threshold, threshold
