"""Who takes part in a round."""

import math

import numpy as np

from fedclust.typing import IntArray

__all__ = ["cohort_size", "draw", "draw_least_sampled"]


def cohort_size(num_clients: int, participation: float, at_least: int = 1) -> int:
    """Say how many of a cluster's clients take part in a round.

    Source: FedGWC, Theorem A.5, keeps at least 3; other methods at least 1.

    Parameters
    ----------
    num_clients
        Number of clients in the cluster.
    participation
        Share ρ of them that takes part, in (0, 1].
    at_least
        Smallest cohort; a smaller cluster takes part whole.

    Returns
    -------
    max(⌈ρ · num_clients⌉, at_least), at most num_clients.

    Raises
    ------
    ValueError
        If ``participation`` is outside (0, 1].
    """
    if not 0 < participation <= 1:
        raise ValueError(f"participation must be in (0, 1], got {participation}")
    # Rounding first keeps 0.1 * 30 = 3.0000000000000004 from asking for a fourth client.
    wanted = math.ceil(round(participation * num_clients, 9))
    return min(num_clients, max(wanted, at_least))


def draw(members: IntArray, size: int, generator: np.random.Generator) -> IntArray:
    """Draw clients uniformly without replacement.

    Parameters
    ----------
    members
        Client ids to draw from, shape (K,).
    size
        How many, at most K.

    Returns
    -------
    Client ids, sorted, shape (size,).
    """
    return np.sort(generator.choice(members, size=size, replace=False))


def draw_least_sampled(
    members: IntArray, counts: IntArray, size: int, generator: np.random.Generator
) -> IntArray:
    """Draw clients without replacement, those that took part less often with higher probability.

    Source: FedGWC, Section 4.1, "a dynamic adjustment process to prioritize clients that are infrequently
    sampled"; the probability is proportional to exp(−(count − smallest count)).

    Parameters
    ----------
    members
        Client ids to draw from, shape (K,).
    counts
        How often each of them took part so far, shape (K,).
    size
        How many, at most K.

    Returns
    -------
    Client ids, sorted, shape (size,).
    """
    # Drawing without replacement in proportion to weights is taking the largest of log weight + Gumbel
    # noise; unlike Generator.choice(p=…) it never runs out of clients whose weight is above 0 in floats.
    keys = -(counts - counts.min()).astype(np.float64) + generator.gumbel(size=len(members))
    return np.sort(members[np.argsort(-keys, kind="stable")[:size]])
