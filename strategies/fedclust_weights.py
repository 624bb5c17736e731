"""FedClust of ICPP 2024, no relation: clients are clustered once, by the last layer that each trains."""

import logging

from flwr.app import ArrayRecord

from fedclust.clustering import fedclust_weights
from fedclust.clustering.fedclust_weights import Parameters
from fedclust.clustering.shared.grouping import fill_in
from fedclust.federation import Clusters, Federation, Findings
from fedclust.messages.training import UpdateQuestion
from fedclust.strategies.base import ClusteredStrategy

logger = logging.getLogger(__name__)


class FedClustWeights(ClusteredStrategy):
    """Cluster clients before round 1 by what one round of training changes in the model's last layer.

    Parameters
    ----------
    parameters
        How to group.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({UpdateQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters

    moves_clients = True

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn where the silhouette chooses the number of clusters."""
        return self.parameters.cautions()

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Have all clients train the first model, and group them by their last layers.

        Clients that do not answer go with the largest group.
        """
        shapes = {name: array.shape for name, array in model.items()}
        names = fedclust_weights.last_layer(shapes, self.parameters.layer)
        everybody = range(federation.num_clients)
        answered, weights = self.update_rows(federation, model, everybody, 1, names=names)
        if not len(answered):
            logger.warning("fedclust_weights: no client answered, all start in one cluster")
            return super().begin(federation, model)
        labels, report = fedclust_weights.assign(weights, self.parameters)
        assignment, distances = fill_in(labels, report.distances, answered, federation.num_clients)
        return Clusters.of(assignment, model, Findings.of_distances(distances, report.scores))
