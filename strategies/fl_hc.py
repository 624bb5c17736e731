"""FL+HC: after some rounds of one model for all, clients are clustered once by their updates."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fl_hc
from fedclust.clustering.fl_hc import Parameters
from fedclust.clustering.shared.grouping import fill_in
from fedclust.federation import Clusters, Federation, Findings, Reply
from fedclust.messages.training import UpdateQuestion
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

    asks = frozenset({UpdateQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters

    moves_clients = True

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """After round n have all clients train, and group them by what that changes.

        Clients that do not answer go with the largest group.
        """
        if federation.server_round != self.parameters.rounds:
            return clusters
        model, everybody, number = clusters.models[0], range(clusters.num_clients), federation.server_round
        whole = self.parameters.metric == "l1"  # which a projection does not preserve
        names = compared(model, self.run.buffers) if whole else ()
        size = None if whole else self.parameters.projection
        answered, changes = self.update_rows(federation, model, everybody, number + 1, size=size, names=names)
        if not len(answered):
            logger.warning("FL+HC: no client answered in round %d, all stay in one cluster", number)
            return clusters
        labels, report = fl_hc.assign(changes, self.parameters)
        assignment, distances = fill_in(labels, report.distances, answered, clusters.num_clients)
        found = Findings.of_distances(distances, report.scores)
        if assignment.any():
            clusters = clusters.split(0, assignment)
        return replace(clusters, memory=found)

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether clusters are formed."""
        return server_round >= self.parameters.rounds

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List why clients may never be clustered, and whether the silhouette chooses how many clusters."""
        if rounds > self.parameters.rounds:
            return self.parameters.cautions()
        return [
            f"clusters are formed after round {self.parameters.rounds} (strategy.parameters.rounds), and "
            f"there are {rounds}"
        ]


def compared(model: ArrayRecord, buffers: frozenset[str]) -> tuple[str, ...]:
    """List the arrays of a model whose changes are compared: its parameters.

    Statistics of BatchNorm, among the buffers, are on another scale and would decide the distances.

    Parameters
    ----------
    model
        Any model of the run.
    buffers
        Names of its arrays that are not parameters.

    Examples
    --------
    >>> from flwr.app import Array
    >>> arrays = {"weight": np.ones(2), "mean": np.zeros(2), "steps": np.array(3)}
    >>> model = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    >>> compared(model, buffers=frozenset({"mean"}))
    ('weight',)
    """
    kinds = {name: np.dtype(array.dtype).kind for name, array in model.items()}
    return tuple(name for name, kind in kinds.items() if kind == "f" and name not in buffers)
