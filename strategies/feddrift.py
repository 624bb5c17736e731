"""FedDrift: clients whose data changes leave their model, and models that turn out alike are merged."""

from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust.clustering import feddrift
from fedclust.clustering.feddrift import Parameters
from fedclust.clustering.fedsoft import middle
from fedclust.federation import Clusters, Federation, padded
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import unstacked
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.array_bytes import to_numpy
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What FedDrift remembers.

    Attributes
    ----------
    losses
        The smallest loss of each client at the start of the last time step, NaN if unknown, shape (K,).
    """

    losses: FloatArray


class FedDrift(ClusteredStrategy):
    """Train one model for all; where a client's loss rises, let it go on alone, and merge what fits together.

    Source: :mod:`fedclust.clustering.feddrift`. Every ``interval`` rounds all clients measure the loss of all
    models on the rows that they have then. A client that does not answer stays where it is.

    Parameters
    ----------
    parameters
        Length of a time step, δ, and whether drifted clients share a model.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({LossesQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with one model for all."""
        unknown = Memory(np.full(federation.num_clients, np.nan))
        return Clusters.of(np.zeros(federation.num_clients, dtype=np.int64), model, unknown)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """At the start of a time step but the first, find drifted clients and merge models."""
        if federation.server_round == 1 or (federation.server_round - 1) % self.parameters.interval:
            return clusters
        answers = federation.losses(clusters.models, range(clusters.num_clients))
        if not answers:
            return clusters
        clients, losses = np.array(list(answers)), np.array(list(answers.values()))
        before = clusters.memory.losses.copy()
        left = feddrift.drifted(losses, before[clients], self.parameters.delta)
        before[clients] = losses.min(axis=1)
        assignment = clusters.assignment.copy()
        assignment[clients] = losses.argmin(axis=1)
        chosen = replace(clusters, assignment=assignment, memory=Memory(before), reason="clients chose")
        number = len(clusters.models)
        apart = self._apart(chosen, clients[left])
        if self.parameters.eager or number == 1:
            return apart
        rows = federation.describe().rows
        of = np.where(apart.assignment[clients] < number, apart.assignment[clients], -1)
        groups = feddrift.merged(feddrift.distances(losses, of, rows[clients]), self.parameters.delta)
        return _merged(apart, groups, rows)

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Remember no loss of newcomers."""
        return Memory(padded(clusters.memory.losses, len(homes)))

    def _apart(self, clusters: Clusters, drifted: IntArray) -> Clusters:
        """Give drifted clients a model each, or together, that starts from the one that fits best."""
        if not len(drifted):
            return clusters
        eager = self.parameters.eager
        homes, assignment = clusters.assignment[drifted], clusters.assignment.copy()
        starts = homes[:1] if eager else homes
        assignment[drifted] = len(clusters.models) + (0 if eager else np.arange(len(drifted)))
        pairs = zip(drifted.tolist(), homes.tolist(), strict=True)
        return clusters.because(
            ", ".join(f"client {client} drifted from cluster {home}" for client, home in pairs),
            assignment=assignment,
            models=(*clusters.models, *(clusters.models[home] for home in starts)),
            # Made here, as a merge in the same step moves new models to places of earlier ones.
            aggregators=(*clusters.aggregators, *(self.make_aggregator() for _ in starts)),
        )


def _merged(clusters: Clusters, groups: IntArray, rows: IntArray) -> Clusters:
    """Merge the models of each group, by the rows of their clients; the first one's aggregator stays."""
    number = len(groups)
    if groups.max() + 1 == number:
        return clusters
    new = np.concatenate([groups, groups.max() + 1 + np.arange(len(clusters.models) - number)])
    held = np.bincount(clusters.assignment, weights=rows, minlength=number)
    models, aggregators, words = list[ArrayRecord](), list[Strategy](), list[str]()
    for group in range(int(new.max()) + 1):
        members = np.flatnonzero(new == group)
        model = clusters.models[members[0]]
        if len(members) > 1:
            arrays = [
                {name: to_numpy(array) for name, array in clusters.models[each].items()} for each in members
            ]
            shares = held[members] / held[members].sum()
            (model,) = unstacked(middle(arrays, shares[np.newaxis]), model)
            words.append(f"models {', '.join(map(str, members.tolist()))} merged")
        models.append(model)
        aggregators += clusters.aggregators[members[0] : members[0] + 1]
    return clusters.because(
        "; ".join(words),
        assignment=new[clusters.assignment],
        models=tuple(models),
        aggregators=tuple(aggregators),
    )
