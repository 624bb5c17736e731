"""The interface of selection policies, and the policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Protocol

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fedcls, haccs
from fedclust.federation.federation import Federation
from fedclust.support.checks import Checked
from fedclust.support.reasons import FederationError
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
        Asks them questions, and counts how often each has taken part (``federation.turns``).
    """

    clients: IntArray
    model: ArrayRecord
    server_round: int
    federation: Federation


class Selection(Protocol):
    """A selection policy, without state between rounds, so that a resumed run gives the same bits.

    It may have a method `cautions`, as :meth:`PowerOfChoice.cautions`, whose lines are shown before round 1.
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose clients.

        Parameters
        ----------
        candidates
            The clients that may be chosen.
        size
            Number of clients to choose, at most the number of candidates.
        generator
            Source of all random draws.

        Returns
        -------
        Client ids, sorted, shape (size,); fewer only if a policy asks clients and fewer answer.
        """


class Uniform:
    """Draw clients with equal probabilities.

    Examples
    --------
    >>> candidates = Candidates(np.array([4, 7]), model=None, server_round=1, federation=None)
    >>> Uniform().select(candidates, 2, np.random.default_rng(0))  # all of them, sorted
    array([4, 7])
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw uniformly without replacement."""
        return draw(candidates.clients, size, generator)


class LeastSampled:
    """Draw clients with a higher probability the less often they took part.

    Source: FedGWC, Section 4.1; see :func:`fedclust.support.rng.draw_least_sampled`.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> federation = SimpleNamespace(turns=np.array([0, 0, 900]))  # exp(−900) is 0 in double precision
    >>> candidates = Candidates(np.arange(3), model=None, server_round=1, federation=federation)
    >>> LeastSampled().select(candidates, 2, np.random.default_rng(0))
    array([0, 1])
    """

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw without replacement, with probability proportional to exp(−(turns − fewest turns))."""
        turns = candidates.federation.turns[candidates.clients]
        return draw_least_sampled(candidates.clients, turns, size, generator)


@dataclass(frozen=True)
class PowerOfChoice(Checked):
    """Draw d clients in proportion to their samples, ask for their loss, choose the m with the largest.

    Source: Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies", 2020, Section 3, the variant π_pow-d. Clients answer with the mean
    loss of the current model over their whole training part; of equal losses, random ones are chosen.

    A client that does not answer is not chosen; the next ones in the random order are asked instead.

    Parameters
    ----------
    candidates
        Number of clients d that are drawn and asked, >= 1; at least the number to choose, and at most all.
        None: twice the number to choose. With d = m, losses have no effect.

    Raises
    ------
    ValueError
        If ``candidates`` is below 1.

    Examples
    --------
    >>> PowerOfChoice(candidates=0)
    Traceback (most recent call last):
        ...
    ValueError: candidates must be a whole number >= 1 or None, got 0
    """

    candidates: Annotated[int | None, "a whole number >= 1 or None"] = None

    def cautions(self, size: int, num_clients: int) -> list[str]:
        """Warn if losses have no effect, because all clients that are asked are chosen.

        Parameters
        ----------
        size
            Number of clients m to choose.
        num_clients
            Number of clients that may be chosen; smaller clusters have smaller cohorts.

        Examples
        --------
        >>> PowerOfChoice(candidates=8).cautions(size=7, num_clients=100)
        []
        >>> PowerOfChoice(candidates=8).cautions(size=10, num_clients=10)
        ['selection=poc has no effect: all 10 clients take part in every round']
        """
        if size >= num_clients:
            return [f"selection=poc has no effect: all {num_clients} clients take part in every round"]
        if self.candidates is None or self.candidates > size:
            return []
        rule = f"be above {size}, the cohort of {num_clients} clients in one cluster"
        return [f"selection.candidates should {rule}, got {self.candidates}: losses have no effect there"]

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose the `size` clients with the largest loss among those drawn."""
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
        answered = generator.permutation(np.array(sorted(losses), dtype=np.int64))  # ties: the first
        values = np.array([losses[client][0] for client in answered.tolist()])
        return np.sort(answered[largest(values, min(size, len(answered)))])


@dataclass(frozen=True)
class FedCLS(Checked):
    """Choose clients one after another, each with classes unlike those of the clients already chosen.

    Source: Li and Wu, VTC2022-Fall, as Clust-PSI-PFL, Section II, describes it; see
    :mod:`fedclust.clustering.fedcls` for the mathematics.

    Parameters
    ----------
    threshold
        τ, smallest share of a client's samples with which it counts as having a class, in (0, 1].

    Raises
    ------
    ValueError
        If ``threshold`` is outside its range.

    Examples
    --------
    >>> FedCLS(threshold=2.0)
    Traceback (most recent call last):
        ...
    ValueError: threshold must be in (0, 1], got 2.0
    """

    threshold: Annotated[float, "in (0, 1]"] = 0.1

    needs_label_counts = True

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Choose the first client at random and every other by its distance from those chosen."""
        counts = candidates.federation.describe().train_counts[candidates.clients]
        vectors = fedcls.label_vectors(counts, self.threshold)
        return np.sort(candidates.clients[fedcls.choose(vectors, size, generator)])


@dataclass(frozen=True)
class HACCS(Checked):
    """Group clients by the Hellinger distance of their label shares; draw groups and take their fastest.

    Source: Wolfrath et al., IPDPS 2022, and its released code; see :mod:`fedclust.clustering.haccs` for the
    mathematics and the differences. Every round all candidates are asked for the mean loss of the current
    model over their training part; clients that do not answer are not chosen.

    Parameters
    ----------
    rho
        Weight ρ of the loss when groups are drawn, in [0, 1]; 1 − ρ is the weight of the speed.
    latencies
        Seconds that a round takes each client, > 0, shape (K,); None: unknown, so that groups are drawn by
        their loss alone, and all clients of a group count as equally fast. A client that joins later counts
        as fast as the mean.
    max_distance
        Hellinger distance up to which clients are neighbours, in (0, 1].

    Raises
    ------
    ValueError
        If an argument is outside its range.

    Examples
    --------
    >>> HACCS(latencies=[1.0, 0.0])
    Traceback (most recent call last):
        ...
    ValueError: latencies must be numbers > 0 and finite or None, got [1.0, 0.0]
    """

    rho: Annotated[float, "in [0, 1]"] = 0.95
    latencies: Annotated[Sequence[float] | None, "numbers > 0 and finite or None"] = None
    max_distance: Annotated[float, "in (0, 1]"] = 0.25

    needs_label_counts = True

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw groups of candidates, and take the fastest client left in each drawn group."""
        clients, federation = candidates.clients, candidates.federation
        given, late = self.latencies, federation.joined > 0
        if given is not None and len(given) != (number := np.count_nonzero(~late)):
            rule = f"have one number for each of the {number} clients"
            raise FederationError(f"selection.latencies must {rule}, got {len(given)}")
        counts = federation.describe().train_counts[clients]
        groups = _groups(counts.tobytes(), counts.shape, counts.dtype.str, self.max_distance)
        answers = federation.losses([candidates.model], clients)
        replied = np.isin(clients, list(answers))
        answered, losses = clients[replied], np.array([each[0] for each in answers.values()])
        seconds = None if given is None else np.append(given, np.full(late.sum(), np.mean(given)))[answered]
        return haccs.draw(answered, groups[replied], losses, seconds, self.rho, size, generator)


@lru_cache(maxsize=64)  # label counts do not change, and OPTICS takes a second for a thousand clients
def _groups(counts: bytes, shape: tuple[int, ...], kind: str, max_distance: float) -> IntArray:
    return haccs.groups(np.frombuffer(counts, dtype=kind).reshape(shape), max_distance)
