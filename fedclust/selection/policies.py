"""What a selection policy is given and returns, and the policies that need no clustering."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord

import fedclust.selection.options as options
from fedclust.federation.federation import Federation
from fedclust.support.rng import draw, draw_least_sampled, draw_order, largest
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Candidates:
    """The clients that a policy may choose from.

    Attributes
    ----------
    clients
        Client ids, sorted, shape (n,).
    model
        The model they would train.
    server_round
        The round, from 1.
    federation
        What may be asked of them, and how often each took part so far (``federation.turns``).
    """

    clients: IntArray
    model: ArrayRecord
    server_round: int
    federation: Federation


class Selection(Protocol):
    """A selection policy; it keeps nothing from round to round, so that a run can be resumed to the bit."""

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose clients.

        Parameters
        ----------
        candidates
            Who may be chosen.
        size
            How many, at most as many as there are candidates.
        generator
            Every draw comes from it.

        Returns
        -------
        Client ids, sorted, shape (size,); fewer only where a policy asks clients and fewer answer.
        """


class Uniform:
    """Every client is equally likely."""

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw uniformly without replacement."""
        return draw(candidates.clients, size, generator)


class LeastSampled:
    """Clients that took part less often are more likely.

    Source: FedGWC, Section 4.1; see :func:`fedclust.support.rng.draw_least_sampled`.
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw without replacement, with probability proportional to exp(−(turns − fewest turns))."""
        turns = candidates.federation.turns[candidates.clients]
        return draw_least_sampled(candidates.clients, turns, size, generator)


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
