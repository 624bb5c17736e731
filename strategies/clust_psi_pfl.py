"""Clust-PSI-PFL: clients are clustered once, by the label counts they report."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import clust_psi_pfl
from fedclust.clustering.clust_psi_pfl import Parameters
from fedclust.clustering.placement import LabelRule
from fedclust.federation import Clusters, Federation, Findings, Reply
from fedclust.newcomers.placing import packed
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.checks import checked
from fedclust.support.rng import draw_replicas, generator
from fedclust.typing import IntArray


class ClustPSIPFL(ClusteredStrategy):
    """Cluster clients before round 1 by how their label distributions deviate from the federation's.

    Source: Clust-PSI-PFL, Section III.

    Parameters
    ----------
    parameters
        Settings of the grouping.
    cohorts
        Clients that take part in a round: a ``"share"`` of each cluster, rounded up; or, as in the authors'
        ``"released"`` code, rounded down but at least two, with four copies of each client in clusters of one
        or two (:func:`.draw_replicas`). Every drawn copy counts as a reply, so the mean of a
        pair weights its clients by their samples times the copies drawn: in half of the rounds equally, else
        mostly three to one, and in one of 35 rounds one client is left out. A single client's model becomes
        its own reply. Copies of a client train on the same batches here; the released code shuffles the data
        for each.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.

    Raises
    ------
    ValueError
        If ``cohorts`` is not one of the two.
    """

    needs_label_counts = True
    moves_clients = True

    parameters_type = Parameters
    parameters: Parameters

    @checked
    def __init__(self, *, cohorts: Literal["share", "released"] = "share", **given: Any) -> None:
        super().__init__(**given)
        self.cohorts = cohorts
        # Clients that share a node's mean model cannot be weighted by their copies.
        self.needs_client_models = cohorts == "released"

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Ask every client for its label counts and group by them.

        The memory holds the curve that chose the number of clusters, and the stability indices.
        """
        counts, given = federation.describe().train_counts, self.parameters
        assignment, found = clust_psi_pfl.assign(counts, given, self.derived_seed("assign"))
        curve = Findings.of_silhouettes(found.scores)
        findings = Findings(
            summary={"tau": int(assignment.max()) + 1, **curve.summary},
            arrays=curve.arrays,
            clients={"psi": found.stability},
            placing=packed(LabelRule(counts, assignment, given)),
        )
        return Clusters.of(assignment, model, findings)

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose the clients that take part in a round, each once."""
        if self.cohorts == "share":
            return super().cohort(clusters, federation)
        return np.unique(self._copies(clusters, federation))

    def entering(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> list[Reply]:
        """List a client's reply once for each copy of it that was drawn."""
        if self.cohorts == "share":
            return list(replies)
        times = np.bincount(self._copies(clusters, federation), minlength=clusters.num_clients)
        return [reply for reply in replies for _ in range(times[reply.client])]

    def _copies(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Draw the round's clients of all clusters, each as often as it was drawn."""
        drawn = []
        for cluster in np.unique(clusters.assignment).tolist():
            draws = generator(self.seed, "sample", federation.server_round, cluster)
            drawn.append(draw_replicas(clusters.members(cluster), self.options.participation, draws))
        return np.concatenate(drawn)
