"""CLoVE: clients are clustered by the vectors of their losses under k models, in the first rounds."""

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import clove
from fedclust.clustering.clove import Parameters
from fedclust.federation import Clusters, Federation, padded, starting_models
from fedclust.messages.evaluation import LossesQuestion
from fedclust.strategies.base import NetworkStrategy
from fedclust.typing import IntArray


class CLoVE(NetworkStrategy):
    """Train k models; clients with like losses under all of them train one together.

    Source: :mod:`fedclust.clustering.clove`. Before each of the first ``clustering_rounds`` rounds everybody,
    in the cohort or not, measures the loss of all k models; a client that fails stays where it was. With
    ``stable_rounds`` this ends once nobody who can be reached has changed for so many rounds (the authors'
    code); the method then remembers how many times in a row each client was given its model, shape (K,).

    Parameters
    ----------
    network
        Its weights are drawn anew for each model but the first.
    parameters
        Number of clusters, and for how long clients are clustered.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({LossesQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters
    memory_type = IntArray | None

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Draw k models; everyone is in the first cluster until asked."""
        drawn = starting_models(self.network, model, self.parameters.number, self.seed)
        clients = federation.num_clients
        kept = None if self.parameters.stable_rounds is None else np.zeros(clients, dtype=np.int64)
        return Clusters(np.zeros(clients, dtype=np.int64), drawn, kept)

    def grown(self, clusters: Clusters, homes: IntArray) -> IntArray | None:
        """A newcomer has not been clustered yet, so clustering starts again."""
        return None if clusters.memory is None else padded(clusters.memory, len(homes), 0)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Cluster everybody, in the first rounds."""
        number, kept = federation.server_round, clusters.memory
        last, stable = self.parameters.clustering_rounds, self.parameters.stable_rounds
        if last is not None and number > last:
            return clusters
        if stable is not None:  # who has left can never be clustered again
            here = [client for client in federation.clients.online() if client < clusters.num_clients]
            if (kept[here] >= stable).all():
                return clusters
        losses = federation.losses(clusters.models, range(clusters.num_clients))
        if not losses:
            return clusters
        seed = self.derived_seed("clove", number)
        answered, assignment = list(losses), clusters.assignment.copy()
        assignment[answered] = clove.assign(np.array([*losses.values()]), self.parameters, seed)
        if kept is not None:
            kept = kept.copy()
            kept[answered] = clove.times_kept(
                kept[answered], clusters.assignment[answered], assignment[answered]
            )
        return replace(clusters, assignment=assignment, memory=kept, reason="loss vectors clustered")
