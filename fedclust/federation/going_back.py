"""What a cluster goes back to when its model turns out to be of no use.

A model whose loss is not finite on the clients that it was sent to is the server's fault: an aggregator's, or
of updates that it should not have taken. The cluster then goes back to the model and to the state of its
aggregator, such as momentum, that it had when the round began that made it; nobody is blamed.
"""

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedclust.federation.asking import Failure
from fedclust.federation.clusters import Clusters

__all__ = ["START_NOT_FINITE", "Earlier", "at_fault"]

START_NOT_FINITE = "non-finite loss at step 1"
"""How a client says that the loss of the model it was sent is not finite, before it changed anything."""


class Earlier:
    """The clusters and their aggregators as a round found them.

    Parameters
    ----------
    clusters
        The clusters when the round began.
    aggregators
        Their aggregators, which are copied.
    """

    def __init__(self, clusters: Clusters, aggregators: Sequence[Strategy]) -> None:
        self._clusters = clusters
        self._aggregators = [copy.deepcopy(aggregator) for aggregator in aggregators]

    def back(
        self, clusters: Clusters, aggregators: Sequence[Strategy], broken: Collection[int]
    ) -> tuple[Clusters, list[Strategy]]:
        """Put clusters back to the model and aggregator of the cluster that most of their members were in.

        Parameters
        ----------
        clusters, aggregators
            As they are now.
        broken
            The clusters to put back; of the others, what is given is returned.
        """
        models, made = list(clusters.models), list(aggregators)
        for cluster in broken:
            members = clusters.members(cluster)
            were = self._clusters.assignment[members[members < self._clusters.num_clients]]
            if not len(were) and cluster >= len(self._clusters.models):
                continue  # of clients that have just joined, there is nothing earlier
            earlier = int(np.bincount(were).argmax()) if len(were) else 0
            models[cluster] = self._clusters.models[earlier]
            made[cluster] = copy.deepcopy(self._aggregators[earlier])
        return dataclasses.replace(clusters, models=tuple(models)), made

    def repaired(self, earlier: "Earlier", broken: Collection[int]) -> "Earlier":
        """Return this with some clusters as another round found them."""
        return Earlier(*earlier.back(self._clusters, self._aggregators, broken))


def at_fault(failures: Sequence[Failure], cohort: Mapping[int, int]) -> list[int]:
    """List the clusters whose model had no finite loss on more than half of the clients that it was sent to.

    Parameters
    ----------
    failures
        Those of the round's training.
    cohort
        The cluster of each client that was sent a model, by client id.
    """
    asked, lost = (dict.fromkeys(cohort.values(), 0) for _ in range(2))
    for cluster in cohort.values():
        asked[cluster] += 1
    for failure in failures:
        if str(failure["reason"]).endswith(START_NOT_FINITE):
            lost[cohort[int(failure["client"])]] += 1
    return sorted(cluster for cluster, number in lost.items() if 2 * number > asked[cluster])
