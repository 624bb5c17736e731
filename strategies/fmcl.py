"""FMCL: clients are clustered once, by the class prototypes of a frozen foundation model."""

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fmcl
from fedclust.clustering.fecfl import mean_embeddings
from fedclust.clustering.fmcl import Parameters
from fedclust.clustering.placement import DistanceRule
from fedclust.federation import Clusters, Federation, Findings
from fedclust.federation.answering import check_alike
from fedclust.federation.questions import FEWEST_ROWS
from fedclust.messages.description import PrototypesQuestion
from fedclust.newcomers.placing import packed
from fedclust.strategies.base import ClusteredStrategy

_MOST_CLIENTS = 4096  # up to which the distances are kept for the plots; K² numbers


class FMCL(ClusteredStrategy):
    """Cluster clients before round 1 by the similarity of their classes in a frozen encoder's embedding.

    Source: FMCL, Algorithms 1 to 5.

    Parameters
    ----------
    parameters
        Settings of the distances and of the number of clusters.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({PrototypesQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters

    moves_clients = True

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn that prototypes of single examples are sent."""
        return [
            "the prototype of a class with one example is that example's embedding, and with encoder=pixels "
            "the picture itself; strategy=auto asks for no prototypes"
        ]

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Ask every client for its prototypes and group by them.

        The memory holds the curve that chose the number of clusters and, up to 4,096 clients, the distances
        and mean embeddings, by which newcomers without labels are placed.
        """
        answers = federation.ask(PrototypesQuestion()).all()
        check_alike("shape of prototypes", [each.prototypes.shape for each in answers])
        prototypes = np.stack([each.prototypes for each in answers])
        counts = np.stack([each.counts for each in answers])
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        assignment, found = fmcl.assign(prototypes, shares, self.parameters)
        curve = Findings.of_silhouettes(found.scores)
        whole = mean_embeddings(prototypes, counts).astype(np.float32)
        whole[counts.sum(axis=1) < FEWEST_ROWS] = np.nan
        kept = {"distances": found.distances, "mean_embeddings": whole}
        means, pooled = fmcl.pooled(prototypes, counts, assignment)
        clusters = pooled / np.maximum(pooled.sum(axis=1, keepdims=True), 1)
        findings = Findings(
            summary={"variation": found.variation, **curve.summary},
            arrays=curve.arrays | ({} if len(counts) > _MOST_CLIENTS else kept),
            placing=packed(DistanceRule(means.astype(np.float32), clusters, self.parameters)),
        )
        return Clusters.of(assignment, model, findings)
