"""Gaussian noise for differential privacy: from the run's seed in simulations, else from the system."""

import os
from collections.abc import Callable

import numpy as np

from fedclust.support.rng import generator
from fedclust.typing import FloatArray

__all__ = ["Noise", "seeded", "system"]

Noise = Callable[[str, int, int, int], FloatArray]
"""Draws standard normal numbers, from purpose, round, cluster and how many."""


def seeded(seed: int) -> Noise:
    """Draw noise from the run's seed: repeatable, and no secret to whoever knows the seed."""

    def draw(purpose: str, server_round: int, cluster: int, number: int) -> FloatArray:
        return generator(seed, f"dp {purpose}", server_round, cluster).standard_normal(number)

    return draw


def system(purpose: str, server_round: int, cluster: int, number: int) -> FloatArray:  # noqa: ARG001
    """Draw noise from the operating system's source for cryptography; nobody can draw it again."""
    from scipy.special import ndtri  # few runs draw noise

    whole = np.frombuffer(os.urandom(8 * number), dtype=np.uint64) >> np.uint64(11)
    uniform = (whole.astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), 53 bits
    drawn: FloatArray = ndtri(uniform)
    return drawn
