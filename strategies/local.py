"""Every client alone: as many clusters as clients."""

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedclust.federation import Clusters, Federation
from fedclust.strategies.base import ClusteredStrategy

__all__ = ["Local"]


class Local(ClusteredStrategy):
    """Train every client on its own, from the model that everyone starts from.

    What clustering is compared with from the other side: nobody shares anything. Each client is a cluster of
    one, of which every share takes part, so all clients train in every round, whatever `participation` is.
    The server keeps a model per client.
    """

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Put every client in a cluster of its own."""
        return Clusters.of(np.arange(federation.num_clients), model)

    def join(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> Clusters:
        """Put every newcomer in a cluster of its own, which starts from the model of round 1."""
        homes = len(clusters.models) + np.arange(len(newcomers))
        return clusters.joined(homes, None, [self.run.initial] * len(newcomers))
