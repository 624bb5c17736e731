"""FedGWC: clients are clustered by their training losses, round by round."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Interaction, Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply, by_cluster, padded
from fedclust.selection import LeastSampled
from fedclust.strategies.base import ClusteredStrategy
from fedclust.typing import FloatArray, IntArray

_MOST_CLIENTS = 2000  # up to which matrices of all pairs are kept for the plots
_MOST_SNAPSHOTS = 3  # splits whose matrices are kept for the plots; K² numbers each


@dataclass(frozen=True, eq=False)
class Memory:
    """FedGWC's memory: an interaction state per cluster, and for the plots what it saw.

    That is the affinities at splits, and the cohort's losses in the last round with one cluster.
    """

    interactions: tuple[Interaction, ...]
    snapshots: Mapping[str, FloatArray] = field(default_factory=dict)
    seen: Mapping[str, FloatArray] = field(default_factory=dict)


class FedGWC(ClusteredStrategy):
    """Split clusters recursively if clients' losses show that they are of different kinds.

    Source: FedGWC, Algorithm 2.

    Parameters
    ----------
    parameters
        Settings of measurements and splits; values that are None follow from ``participation``.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`. Unless `selection` is given, clients
        that took part least often are the most likely to be chosen (Section 4.1).
    """

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.options.selection is None and given.get("selection") is None:
            self.selection = LeastSampled()
        self.parameters = self.parameters.resolve(self.options.participation)

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with all clients in one cluster, in which no clients have met."""
        start = fedgwc.start(np.arange(federation.num_clients), self.parameters)
        return replace(super().begin(federation, model), memory=Memory((start,)))

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Add newcomers to their clusters' states, in which they have met nobody."""
        memory: Memory = clusters.memory
        ids = clusters.num_clients + np.arange(len(homes))
        joined = (each.joined(ids[homes == cluster]) for cluster, each in enumerate(memory.interactions))
        snapshots = {name: padded(matrix, len(homes)) for name, matrix in memory.snapshots.items()}
        return replace(memory, interactions=tuple(joined), snapshots=snapshots)

    def instruction(self, clusters: Clusters) -> Mapping[str, Any]:
        """Ask for the loss of each step."""
        return {"step_losses": True}

    def cohort_size(self, num_members: int) -> int:
        """Compute a cohort's size: the share that takes part, at least three, unless it is fixed."""
        return self.parameters.cohort_size_of(num_members, self.options.participation)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Update each cluster's interaction matrix with its cohort's losses; split clusters that settled."""
        memory, number = clusters.memory, federation.server_round
        states, snapshots = dict(enumerate(memory.interactions)), dict(memory.snapshots)
        report, seen = dict[str, Any](), memory.seen
        for cluster, cohort in by_cluster(replies).items():
            clients, losses = np.array([each.client for each in cohort]), [each.losses for each in cohort]
            seed = self.derived_seed("split", number, cluster)
            states[cluster], outcome = fedgwc.step(states[cluster], clients, losses, self.parameters, seed)
            report[str(cluster)] = _report(outcome)
            if len(memory.interactions) == 1 and len(cohort) > 1:  # one client alone has no rewards
                seen = _seen(clients, losses, number)
            if (labels := outcome.labels) is not None:
                if len(snapshots) < _MOST_SNAPSHOTS and clusters.num_clients <= _MOST_CLIENTS:
                    snapshots[f"affinity_round_{number}"] = self._affinity(federation, [states[cluster]])
                parts = fedgwc.children(states[cluster], labels)
                states |= zip(clusters.children(cluster, labels), parts, strict=True)
                clusters = clusters.split(cluster, labels)
        ordered = tuple(states[cluster] for cluster in range(len(clusters.models)))
        return replace(clusters.with_report(**report), memory=Memory(ordered, snapshots, seen))

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List reasons in the settings why no split can happen, or why none is likely."""
        return fedgwc.cautions(self.parameters, num_clients, self.options.participation, rounds)

    def findings(self, clusters: Clusters) -> Findings:
        """Return the interaction and affinity of every pair in one cluster, and each client's weight.

        Also returns the affinities at the rounds of splits, which explain them, and the cohort's
        losses in the last round with one cluster, which explain the rewards. Of more than 2,000 clients
        there are no matrices of pairs.
        """
        memory: Memory = clusters.memory
        states, weights = memory.interactions, np.zeros(clusters.num_clients)
        for state in states:
            weights[state.members] = state.weights
        matrices: dict[str, FloatArray] = {}
        if clusters.num_clients <= _MOST_CLIENTS:
            blocks = ((each.members, each.matrix) for each in states)
            matrices["interaction"] = of_pairs(clusters.num_clients, blocks)
            matrices["affinity"] = self._affinity(clusters, states)
        return Findings({}, matrices | {**memory.snapshots, **memory.seen}, {"gaussian_weight": weights})

    def _affinity(self, of: Clusters | Federation, states: Sequence[Interaction]) -> FloatArray:
        """Compute clusters' affinities, laid out over all clients, shape (K, K)."""
        blocks = ((each.members, fedgwc.affinity_of(each, self.parameters)) for each in states)
        return of_pairs(of.num_clients, blocks)


def of_pairs(num_clients: int, blocks: Iterable[tuple[IntArray, FloatArray]]) -> FloatArray:
    """Lay out matrices of some clients each over all clients, shape (K, K); NaN for other pairs.

    Parameters
    ----------
    num_clients
        Number of clients K.
    blocks
        Ids of some clients, shape (n,), and their matrix, shape (n, n).

    Examples
    --------
    >>> two, one = np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones((1, 1))
    >>> of_pairs(3, [(np.array([0, 2]), two), (np.array([1]), one)])
    array([[1. , nan, 0.5],
           [nan, 1. , nan],
           [0.5, nan, 1. ]])
    """
    matrix = np.full((num_clients, num_clients), np.nan)
    for members, block in blocks:
        matrix[np.ix_(members, members)] = block
    return matrix


def _report(outcome: fedgwc.Outcome) -> dict[str, Any]:
    """List how settled a cluster is, and the scores of a tried split."""
    report: dict[str, Any] = {"mse": outcome.mse, "pair_coverage": outcome.pair_coverage}
    if outcome.tried:
        report["davies_bouldin"] = {str(n): score for n, score in outcome.davies_bouldin.items()}
        report["split"] = outcome.labels is not None
    return report


def _seen(clients: IntArray, losses: Sequence[FloatArray], server_round: int) -> dict[str, FloatArray]:
    """Keep a cohort's losses."""
    steps = min(map(len, losses))  # only steps that all ran are compared
    return {
        "cohort_losses": np.array([each[:steps] for each in losses]),
        "cohort_clients": clients.astype(float),
        "cohort_round": np.array(float(server_round)),
    }
