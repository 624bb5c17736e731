"""FedGWC as in its paper: clients are clustered by their training losses, round by round."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.replies import by_cluster
from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import Interaction, Outcome, Parameters
from fedclust.federation import Clusters, Federation, Reply
from fedclust.federation.clusters import Findings, padded
from fedclust.selection import LeastSampled
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.rng import torch_seed
from fedclust.typing import FloatArray, IntArray

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

    Source: FedGWC, Algorithm 2. We recommend :class:`~fedclust.strategies.fedgwc_traces.FedGWCTraces`: the
    same messages, other mathematics.

    Parameters
    ----------
    parameters
        Settings of measurements and splits; values that are None follow from ``participation``.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`. Unless `selection` is given, clients
        that took part least often are the most likely to be chosen (Section 4.1).
    """

    own_selection = LeastSampled
    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.parameters = self.parameters.resolve(self.participation)

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with all clients in one cluster, in which no clients have met."""
        clusters = super().begin(federation, model)
        start = fedgwc.start(np.arange(federation.num_clients), self.parameters)
        return dataclasses.replace(clusters, memory=Memory((start,)))

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Add newcomers to their clusters' states, in which they have met nobody."""
        memory: Memory = clusters.memory
        ids = clusters.num_clients + np.arange(len(homes))
        joined = (each.joined(ids[homes == cluster]) for cluster, each in enumerate(memory.interactions))
        return dataclasses.replace(
            memory,
            interactions=tuple(joined),
            snapshots={name: padded(matrix, len(homes)) for name, matrix in memory.snapshots.items()},
        )

    def cohort_size(self, num_members: int) -> int:
        """Compute a cohort's size: the share that takes part, at least three, unless it is fixed."""
        return self.parameters.cohort_size_of(num_members, self.participation)

    def after_round(
        self, clusters: Clusters, replies: Sequence[Reply], server_round: int, federation: Federation
    ) -> Clusters:
        """Update each cluster's interaction matrix with its cohort's losses; split clusters that settled."""
        memory: Memory = clusters.memory
        interactions = dict(enumerate(memory.interactions))
        snapshots = dict(memory.snapshots)
        report: dict[str, Any] = {}
        cohorts = by_cluster(replies)
        for cluster, cohort in cohorts.items():
            interactions[cluster], outcome = fedgwc.step(
                interactions[cluster],
                np.array([reply.client for reply in cohort]),
                [reply.losses for reply in cohort],
                self.parameters,
                seed=torch_seed(self.seed, "split", server_round, cluster) % 2**32,
            )
            report[str(cluster)] = _report(outcome)
            if outcome.labels is not None:
                if len(snapshots) < _MOST_SNAPSHOTS:
                    whole = self._matrices(clusters.num_clients, [interactions[cluster]])
                    snapshots[f"affinity_round_{server_round}"] = whole["affinity"]
                parts = fedgwc.children(interactions[cluster], outcome.labels)
                interactions |= zip(clusters.children(cluster, outcome.labels), parts, strict=True)
                clusters = clusters.split(cluster, outcome.labels)
        ordered = tuple(interactions[cluster] for cluster in range(len(clusters.models)))
        seen = memory.seen
        if len(memory.interactions) == 1 and len(replies) > 1:  # one client alone has no rewards
            seen = _seen(cohorts[0], server_round)
        return dataclasses.replace(clusters.with_report(**report), memory=Memory(ordered, snapshots, seen))

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List reasons in the settings why no split can happen, or why none is likely."""
        return fedgwc.cautions(self.parameters, num_clients, self.participation, rounds)

    def findings(self, clusters: Clusters) -> Findings:
        """Return the interaction and affinity of every pair in one cluster, and each client's weight.

        Also returns the affinities at the rounds of splits, which explain them, and the cohort's
        losses in the last round with one cluster, which explain the rewards.
        """
        memory: Memory = clusters.memory
        weights = np.zeros(clusters.num_clients)
        for interaction in memory.interactions:
            weights[interaction.members] = interaction.weights
        return Findings(
            arrays=self._matrices(clusters.num_clients, memory.interactions)
            | dict(memory.snapshots)
            | dict(memory.seen),
            clients={"gaussian_weight": weights},
        )

    def _matrices(self, num_clients: int, interactions: Sequence[Interaction]) -> dict[str, FloatArray]:
        """Arrange clusters' matrices over all clients, shape (K, K), NaN for pairs not in one cluster."""
        matrix = np.full((num_clients, num_clients), np.nan)
        affinity = matrix.copy()
        for interaction in interactions:
            pairs = np.ix_(interaction.members, interaction.members)
            matrix[pairs] = interaction.matrix
            affinity[pairs] = fedgwc.affinity_of(interaction, self.parameters)
        return {"interaction": matrix, "affinity": affinity}


def _report(outcome: Outcome) -> dict[str, Any]:
    """List how settled a cluster is, and the scores of a tried split."""
    report: dict[str, Any] = {"mse": outcome.mse, "pair_coverage": outcome.pair_coverage}
    if outcome.tried:
        report["davies_bouldin"] = {str(n): score for n, score in outcome.davies_bouldin.items()}
        report["split"] = outcome.labels is not None
    return report


def _seen(cohort: Sequence[Reply], server_round: int) -> dict[str, FloatArray]:
    """Keep a cohort's losses."""
    steps = min(len(reply.losses) for reply in cohort)  # only steps that all ran are compared
    return {
        "cohort_losses": np.array([reply.losses[:steps] for reply in cohort]),
        "cohort_clients": np.array([reply.client for reply in cohort], dtype=float),
        "cohort_round": np.array(float(server_round)),
    }
