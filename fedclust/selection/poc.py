"""Power-of-choice: of some clients drawn by their size, those with the largest loss."""

import numpy as np

from fedclust.selection import options
from fedclust.selection.policy import Candidates
from fedclust.support.sampling import draw_order, largest
from fedclust.typing import FloatArray, IntArray

__all__ = ["PowerOfChoice"]


class PowerOfChoice(options.PowerOfChoice):
    """Draw d clients in proportion to their samples, ask for their loss, choose the m with the largest.

    Source: Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies", 2020, Section 3, the variant π_pow-d. Clients answer with the mean
    loss of the current model over their whole training part.

    A client that does not answer is not chosen; the next ones in the order that was drawn are asked instead.

    Parameters
    ----------
    candidates
        Number of clients d that are drawn and asked, >= 1; never fewer than are to be chosen, nor more than
        there are. None: twice as many as are to be chosen. With d = m their losses change nothing.

    Raises
    ------
    ValueError
        If ``candidates`` is below 1.
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose the `size` clients with the largest loss of those who are drawn."""
        clients, federation = candidates.clients, candidates.federation
        samples = federation.describe().num_train[clients]
        order = clients[draw_order(samples, generator)]
        asked = max(size, 2 * size if self.candidates is None else self.candidates)
        losses: dict[int, FloatArray] = {}
        first = 0
        while first < len(order) and (first == 0 or len(losses) < size):
            last = asked if first == 0 else first + size - len(losses)
            losses |= federation.losses([candidates.model], order[first:last])
            first = last
        answered = np.array(sorted(losses), dtype=np.int64)
        values = np.array([losses[client][0] for client in answered.tolist()])
        return answered[largest(values, min(size, len(answered)))]
