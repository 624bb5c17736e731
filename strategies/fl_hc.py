"""FL+HC: after some rounds of one model for all, clients are clustered once by their updates."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fl_hc
from fedclust.clustering.fl_hc import Parameters
from fedclust.clustering.shared.grouping import fill_in
from fedclust.federation import Clusters, Federation, Reply
from fedclust.federation.clusters import Findings
from fedclust.strategies.base import ClusteredStrategy

logger = logging.getLogger(__name__)


class FLHC(ClusteredStrategy):
    """Train one model for all, then cluster clients by what one more round would change for each.

    Parameters
    ----------
    parameters
        When and how to group.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    parameters_type = Parameters
    parameters: Parameters

    moves_clients: ClassVar[bool] = True

    def after_round(
        self, clusters: Clusters, replies: Sequence[Reply], server_round: int, federation: Federation
    ) -> Clusters:
        """After round n have all clients train, and group them by what that changes.

        Clients that do not answer go with the largest group.
        """
        if server_round != self.parameters.rounds:
            return clusters
        model, everybody = clusters.models[0], range(clusters.num_clients)
        whole = self.parameters.metric == "l1"
        told = federation.updates(
            model,
            everybody,
            server_round + 1,
            projection=None if whole else self.update_projection(self.parameters.projection),
            names=compared(model, self.run.buffers) if whole else (),
            cap=self.options.update_norm_cap,
        )
        if not told:
            logger.warning("FL+HC: no client answered in round %d, all stay in one cluster", server_round)
            return clusters
        changes = np.stack(
            [
                np.concatenate([change.ravel() for change in each.changes.values()])
                if each.projected is None
                else each.projected.values
                for each in told.values()
            ]
        )
        labels, report = fl_hc.assign(changes, self.parameters)
        assignment, distances = fill_in(labels, report.distances, np.array(list(told)), clusters.num_clients)
        found = Findings.of_distances(distances, report.scores)
        if assignment.any():
            clusters = clusters.split(0, assignment)
        return dataclasses.replace(clusters, memory=found)

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Say where clients are never clustered, or too late for it to matter."""
        if rounds > self.parameters.rounds:
            return []
        return [
            f"clusters are formed after round {self.parameters.rounds} (strategy.parameters.rounds), and "
            f"there are {rounds}"
        ]


def compared(model: ArrayRecord, buffers: frozenset[str]) -> tuple[str, ...]:
    """List the arrays of a model whose changes are compared: its parameters.

    Statistics of BatchNorm, among the buffers, are on another scale and would decide the distances.
    """
    kinds = {name: np.dtype(array.dtype).kind for name, array in model.items()}
    return tuple(name for name, kind in kinds.items() if kind == "f" and name not in buffers)
