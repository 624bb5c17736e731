"""FedCLS: clients whose classes differ from those of the clients chosen already."""

import numpy as np

from fedclust.clustering import fedcls
from fedclust.selection import options
from fedclust.selection.policy import Candidates
from fedclust.typing import IntArray

__all__ = ["FedCLS"]


class FedCLS(options.FedCLS):
    """Choose clients one after another, each with classes far from those of who is chosen already.

    Source: Li and Wu, VTC2022-Fall, as Clust-PSI-PFL, Section II, describes it; see
    :mod:`fedclust.clustering.fedcls` for what is computed.

    Parameters
    ----------
    threshold
        τ, the share of a client's samples from which on it counts as having a class, in (0, 1].

    Raises
    ------
    ValueError
        If ``threshold`` is outside its range.
    """

    needs_label_counts = True

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose the first client by chance and every other by its distance from those chosen."""
        counts = candidates.federation.describe().train_counts[candidates.clients]
        vectors = fedcls.label_vectors(counts, self.threshold)
        return np.sort(candidates.clients[fedcls.choose(vectors, size, generator)])
