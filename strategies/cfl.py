"""CFL: clusters are cut in two where training stands still on average but not for each client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import cfl
from fedclust.clustering.cfl import Changes, Cut, Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply, by_cluster, padded
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.checks import plural
from fedclust.typing import FloatArray, IntArray

_MOST_CLIENTS = 2000  # up to which the distances are kept for the plots; K² numbers


class CFL(ClusteredStrategy):
    """Cut clusters in two by the cosines of clients' updates, where the mean update is small.

    Clients send a random projection of their update beside what the aggregator needs, so a node may still
    answer with one mean for its clients.

    Parameters
    ----------
    parameters
        When to cut.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Changes

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with everyone in one cluster and no update known."""
        memory = cfl.start(federation.num_clients, self.parameters)
        return replace(super().begin(federation, model), memory=memory)

    def grown(self, clusters: Clusters, homes: IntArray) -> Changes:
        """No change of a newcomer is known."""
        changes: Changes = clusters.memory
        values = np.pad(changes.values, ((0, len(homes)), (0, 0)))
        return replace(changes, values=values, known=padded(changes.known, len(homes)))

    def instruction(self, clusters: Clusters) -> Mapping[str, Any]:
        """Ask for as many numbers of each change as the parameters say."""
        return self.ask_for_projection(self.parameters.projection)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Note the cohort's updates, and cut each cluster that stands still."""
        changes: Changes = clusters.memory
        if replies:
            first = None if changes.first_norms.any() else _norms(replies)
            clients = np.array([reply.client for reply in replies])
            changes = cfl.update(changes, clients, _values(replies), first)
        given, report = self.parameters, dict[str, Any]()
        for cluster, cohort in by_cluster(replies).items():
            found, members = _norms(cohort), clusters.members(cluster)
            outcome = Cut(float(found[0]), float(found[1]))
            ripe = federation.server_round > given.min_rounds
            if ripe and cfl.is_stationary(found, changes.first_norms, given):
                # Those that have never answered are asked, so that a cut can place them.
                if len(unknown := members[~changes.known[members]]):
                    model, number = clusters.models[cluster], federation.server_round
                    rows = self.update_rows(federation, model, unknown, number, size=given.projection)
                    changes = cfl.update(changes, *rows) if len(rows[0]) else changes
                outcome = cfl.cut(changes, members, found, given)
            report[str(cluster)] = {"mean_norm": outcome.mean_norm, "max_norm": outcome.max_norm}
            if np.isfinite(outcome.silhouette):
                report[str(cluster)] |= {"silhouette": outcome.silhouette, "cut": outcome.labels is not None}
            if outcome.labels is not None:
                clusters = clusters.split(cluster, outcome.labels)
        return replace(clusters.with_report(**report), memory=changes)

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether a cut may have come."""
        return server_round > self.parameters.min_rounds

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List why no cut can come, and that the limits depend on the setting."""
        first, fewest = self.parameters.min_rounds + 1, 2 * self.parameters.min_cluster_size
        early = f"no cut comes before round {first} (strategy.parameters.min_rounds), and there are {rounds}"
        few = f"too few for a cut: {plural(num_clients, 'client')}"
        absolute = (
            "eps_1 and eps_2 are norms of updates, which depend on the model and the learning rate; with "
            "strategy.parameters.relative=true they are shares of the first round's, such as 0.75 and 0.5"
        )
        found = {early: rounds < first, few: num_clients < fewest, absolute: not self.parameters.relative}
        return [text for text, holds in found.items() if holds]

    def findings(self, clusters: Clusters) -> Findings:
        """Return the cosine distances of clients' last updates, up to 2,000 clients; NaN where unknown."""
        changes: Changes = clusters.memory
        if clusters.num_clients > _MOST_CLIENTS:
            return Findings()
        known = np.flatnonzero(changes.known)
        distances = np.full((clusters.num_clients,) * 2, np.nan)
        distances[np.ix_(known, known)] = cfl.cosine_distances(changes.values[known])
        return Findings(arrays={"distances": distances})


def _values(replies: Sequence[Reply]) -> FloatArray:
    return np.stack([reply.projected.values for reply in replies if reply.projected is not None])


def _norms(replies: Sequence[Reply]) -> FloatArray:
    lengths = np.array([reply.projected.norm for reply in replies if reply.projected is not None])
    return cfl.norms(_values(replies), lengths, np.array([reply.num_examples for reply in replies]))
