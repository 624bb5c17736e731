"""Every client is equally likely."""

import numpy as np

from fedclust.selection.policy import Candidates
from fedclust.support.sampling import draw
from fedclust.typing import IntArray

__all__ = ["Uniform"]


class Uniform:
    """Every client is equally likely."""

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw uniformly without replacement."""
        return draw(candidates.clients, size, generator)
