"""FeSEM: clients belong to the nearest of k models, in weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fesem
from fedclust.clustering.fesem import Parameters
from fedclust.federation import Clusters, Federation, Reply
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.array_bytes import to_numpy
from fedclust.typing import FloatArray, IntArray


class FeSEM(ClusteredStrategy):
    """Train k centres; a client that has trained belongs to the one nearest to its model.

    Source: :mod:`fedclust.clustering.fesem`. In round 1 everybody trains, from one model; the k groups of the
    models that come back are the first clusters. From then on a client trains from its centre, its model
    goes to the nearest of the k centres of before the round, and the aggregator makes the next ones of their
    members' models. A centre without members stays as it is.

    Parameters
    ----------
    parameters
        Number of centres.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    parameters_type = Parameters
    parameters: Parameters

    needs_client_models = True

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start all centres from one model, with everyone in the first cluster."""
        everyone = np.zeros(federation.num_clients, dtype=np.int64)
        return Clusters(everyone, (model,) * self.parameters.number)

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose everybody in round 1, from which the first centres come; then a share of each cluster."""
        if federation.server_round == 1:
            return np.arange(clusters.num_clients)
        return super().cohort(clusters, federation)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Remember the centres of before the round, to compare models with, until it is over."""
        return replace(clusters, memory=clusters.models)

    def entering(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> list[Reply]:
        """Aggregate each centre from the models that belong to it: the M-step."""
        belongs = self._belonging(clusters, replies, federation)
        return [replace(reply, cluster=int(centre)) for reply, centre in zip(replies, belongs, strict=True)]

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Put each client that has trained to the centre its model belongs to."""
        assignment = clusters.assignment.copy()
        assignment[[reply.client for reply in replies]] = self._belonging(clusters, replies, federation)
        reason = "models went to the nearest centres"
        return replace(clusters, assignment=assignment, memory=None, reason=reason)

    def _belonging(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> IntArray:
        """Find the centre that each reply's model belongs to: the E-step."""
        if not replies:
            return np.zeros(0, dtype=np.int64)
        models = [self._weights(reply.model) for reply in replies]
        if federation.server_round == 1:
            return fesem.first_groups(models, self.parameters, self.derived_seed("fesem"))
        return fesem.nearest(models, [self._weights(centre) for centre in clusters.memory])

    def _weights(self, model: ArrayRecord) -> Mapping[str, FloatArray]:
        # Buffers are measurements, and a running variance may be larger than all weights together.
        buffers = self.run.buffers
        return {name: to_numpy(array) for name, array in model.items() if name not in buffers}
