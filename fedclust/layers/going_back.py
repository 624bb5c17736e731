"""What a cluster goes back to when its model turns out to be of no use.

A model whose loss is not finite on the clients that it was sent to is the server's fault: an aggregator's, or
of updates that it should not have taken. The cluster then goes back to the model and to the state of its
aggregator, such as momentum, that it had when the round began that made it; nobody is blamed.
"""

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation.flower import remembers
from fedclust.aggregation.optimiser_state import StateValue, pack_state, restore_state
from fedclust.federation.asking import Failure
from fedclust.federation.clusters import Clusters
from fedclust.support.array_bytes import from_numpy, to_numpy

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
        self._aggregators = [
            copy.deepcopy(aggregator) if remembers(aggregator) else aggregator for aggregator in aggregators
        ]

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

    def pack(self, models: Sequence[ArrayRecord], fresh: Strategy) -> dict[str, StateValue]:
        """List it as arrays and scalars by name, for a checkpoint.

        Parameters
        ----------
        models
            The models that the checkpoint has: one that is among them is only referred to.
        fresh
            An aggregator that has not run.
        """
        packed: dict[str, StateValue] = {"assignment": self._clusters.assignment}
        for cluster, model in enumerate(self._clusters.models):
            same = [number for number, each in enumerate(models) if each is model]
            packed[f"{cluster}/same"] = same[0] if same else None
            if not same:
                packed |= {f"{cluster}/model/{name}": to_numpy(array) for name, array in model.items()}
            state = pack_state(self._aggregators[cluster], fresh)
            packed |= {f"{cluster}/aggregator/{path}": value for path, value in state.items()}
        return packed

    @classmethod
    def unpack(
        cls, packed: Mapping[str, Any], models: Sequence[ArrayRecord], make_aggregator: Callable[[], Strategy]
    ) -> "Earlier":
        """Make it from what :meth:`pack` listed, with the models that the checkpoint has."""
        found: list[ArrayRecord] = []
        aggregators: list[Strategy] = []
        while (cluster := f"{len(found)}/") + "same" in packed:
            same = packed[f"{cluster}same"]
            arrays = _below(packed, f"{cluster}model/")
            found.append(
                ArrayRecord({name: from_numpy(np.asarray(each)) for name, each in arrays.items()})
                if same is None
                else models[same]
            )
            aggregators.append(make_aggregator())
            restore_state(aggregators[-1], _below(packed, f"{cluster}aggregator/"))
        return cls(Clusters(np.asarray(packed["assignment"]), tuple(found)), aggregators)

    def repaired(self, earlier: "Earlier", broken: Collection[int]) -> "Earlier":
        """Return this with some clusters as another round found them."""
        return Earlier(*earlier.back(self._clusters, self._aggregators, broken))


def _below(packed: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in packed.items() if name.startswith(prefix)}


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
