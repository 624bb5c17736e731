"""Clients that took part less often are more likely."""

import numpy as np

from fedclust.selection.policy import Candidates
from fedclust.support.sampling import draw_least_sampled
from fedclust.typing import IntArray

__all__ = ["LeastSampled"]


class LeastSampled:
    """Clients that took part less often are more likely.

    Source: FedGWC, Section 4.1; see :func:`fedclust.support.sampling.draw_least_sampled`.
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw without replacement, with probability proportional to exp(−(turns − fewest turns))."""
        turns = candidates.federation.turns[candidates.clients]
        return draw_least_sampled(candidates.clients, turns, size, generator)
