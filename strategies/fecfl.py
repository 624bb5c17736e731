"""FECFL: clients are clustered once, by their mean embeddings."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fecfl
from fedclust.clustering.fecfl import Parameters
from fedclust.federation import Clusters, Federation, Findings
from fedclust.federation.answering import check_alike
from fedclust.messages.description import PrototypesQuestion
from fedclust.strategies.base import ClusteredStrategy


class FECFL(ClusteredStrategy):
    """Cluster clients before round 1 by the cosine distances of their mean embeddings.

    Parameters
    ----------
    parameters
        How to measure and group.
    vocabulary_size
        Number of tokens, for an untrained encoder on texts; None for other inputs.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({PrototypesQuestion.kind})

    moves_clients = True

    parameters_type = Parameters
    parameters: Parameters

    def __init__(self, *, vocabulary_size: int | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.vocabulary_size = vocabulary_size

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn where the silhouette chooses the number of clusters."""
        return self.parameters.cautions()

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Ask every client for its mean embedding and group by them."""
        question = PrototypesQuestion(self.parameters.input, True, self.vocabulary_size)
        answers = federation.ask(question).all()
        check_alike("width of embeddings", [each.prototypes.shape for each in answers])
        means, counts = [each.prototypes for each in answers], [each.counts for each in answers]
        embeddings = fecfl.mean_embeddings(np.stack(means), np.stack(counts))
        assignment, report = fecfl.assign(embeddings, self.parameters)
        return Clusters.of(assignment, model, Findings.of_distances(report.distances, report.scores))
