"""Policies that go by clients' labels: FedCLS and HACCS."""

from functools import lru_cache

import numpy as np

import fedclust.selection.options as options
from fedclust.clustering import fedcls, haccs
from fedclust.grids.nodes import FederationError
from fedclust.selection.policies import Candidates
from fedclust.typing import IntArray


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


class HACCS(options.HACCS):
    """Group clients by the Hellinger distance of their label shares; draw groups, take each one's fastest.

    Source: Wolfrath et al., IPDPS 2022, and its released code; see :mod:`fedclust.clustering.haccs` for what
    is computed, and where it differs. Every round all candidates are asked for the mean loss of the current
    model over their training part; who does not answer is not chosen.

    Parameters
    ----------
    rho
        Weight ρ of the loss when groups are drawn, in [0, 1]; 1 − ρ is that of the speed.
    latencies
        Seconds that a round takes each client, > 0, shape (K,); None: unknown. Groups are then drawn by
        their loss alone, and in a group everyone is as fast as the others.
    max_distance
        Hellinger distance up to which clients are neighbours, in (0, 1].

    Raises
    ------
    ValueError
        If an argument is outside its range.
    """

    needs_label_counts = True

    def select(self, candidates: Candidates, size: int, generator: np.random.Generator) -> IntArray:
        """Draw groups of candidates, and take the fastest client that is left in each."""
        clients, federation = candidates.clients, candidates.federation
        latencies = None
        if self.latencies is not None:
            if len(self.latencies) != federation.num_clients:
                raise FederationError(
                    f"selection.latencies must have one number for each of the {federation.num_clients} "
                    f"clients, got {len(self.latencies)}"
                )
            latencies = np.array(self.latencies, dtype=np.float64)
        groups = _groups(_Counts(federation.describe().train_counts[clients]), self.max_distance)
        answers = federation.losses([candidates.model], clients)
        there = np.array([client in answers for client in clients.tolist()])
        answered = clients[there]
        return haccs.draw(
            answered,
            groups[there],
            np.array([answers[client][0] for client in answered.tolist()]),
            None if latencies is None else latencies[answered],
            self.rho,
            size,
            generator,
        )


class _Counts:
    """Label counts that a cache can hold; equal counts are one."""

    def __init__(self, counts: IntArray) -> None:
        self.counts = counts
        self._key = counts.shape, counts.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Counts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)  # label counts do not change, and OPTICS takes a second for a thousand clients
def _groups(counts: _Counts, max_distance: float) -> IntArray:
    return haccs.groups(counts.counts, max_distance)
