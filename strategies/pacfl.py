"""PACFL: clients are clustered once, by the angles between the subspaces that their classes span."""

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import pacfl
from fedclust.clustering.pacfl import Parameters
from fedclust.clustering.placement import SubspaceRule
from fedclust.federation import Clusters, Federation, Findings
from fedclust.federation.answering import check_alike
from fedclust.messages.description import SubspacesQuestion
from fedclust.newcomers.placing import packed
from fedclust.strategies.base import ClusteredStrategy


class PACFL(ClusteredStrategy):
    """Cluster clients before round 1 by the principal angles between their data's subspaces.

    Parameters
    ----------
    parameters
        How to measure and group.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({SubspacesQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters

    moves_clients = True

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn where the silhouette chooses the number of clusters."""
        return self.parameters.cautions()

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Ask every client for the first singular vectors of its classes and group by the angles."""
        vectors = self.parameters.vectors
        question = SubspacesQuestion(self.parameters.input, vectors)
        bases = [each.subspaces for each in federation.ask(question).all()]
        check_alike("shape of subspaces", [each.shape for each in bases])
        assignment, report = pacfl.assign(np.stack(bases), self.parameters)
        found = Findings.of_distances(report.distances, report.scores)
        rule = SubspaceRule.of(np.stack(bases), assignment, report.distances, self.parameters)
        return Clusters.of(assignment, model, replace(found, placing=packed(rule)))
