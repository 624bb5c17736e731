"""IFCA: clients choose the cluster whose model fits them best, round by round."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.flower import FairAvg
from fedclust.clustering import ifca
from fedclust.clustering.ifca import Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply, padded, starting_models
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import like
from fedclust.models import construction
from fedclust.strategies.base import NetworkStrategy
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What IFCA remembers.

    Attributes
    ----------
    chosen
        Whether each client has chosen among the models as they are, shape (K,); it need not be asked again.
    first
        Index of the first of these models.
    findings
        Which start was kept, once one was.
    """

    chosen: BoolArray
    first: int = 0
    findings: Findings = field(default_factory=Findings)


class IFCA(NetworkStrategy):
    """Train k models; each client trains the one that fits it best.

    Source: IFCA, Algorithm 1 with model averaging. Each round the cohort measures the training loss of all k
    models on its whole training parts and takes the smallest; everybody does before an evaluation. A client
    that is not asked, or fails, stays where it was; a cluster that nobody chose keeps its model. Who chose
    before an evaluation is not asked again before the next round, since the models are still the same.

    While starts are tried, see :mod:`fedclust.clustering.ifca`, the models of all of them are clusters; those
    of the start that trains have clients. The others are dropped when one start is chosen.

    Parameters
    ----------
    network
        Its weights are drawn anew for each model but the first.
    parameters
        Numbers of models and starts, and what clusters share.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({LossesQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Draw the models of all starts; everyone is in the first cluster until asked."""
        wanted, together = self.parameters, self.parameters.number
        drawn = starting_models(self.network, model, wanted.restarts * together, self.seed)
        if wanted.shared_layers:
            first_only = [1.0, *[0.0] * (together - 1)]
            starts = (drawn[first : first + together] for first in range(0, len(drawn), together))
            drawn = tuple(each for start in starts for each in self._shared(start, first_only))
        clients = federation.num_clients
        return Clusters(np.zeros(clients, dtype=np.int64), drawn, Memory(np.zeros(clients, dtype=bool)))

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """A newcomer chooses as all others do."""
        memory: Memory = clusters.memory
        return replace(memory, chosen=padded(memory.chosen, len(homes)))

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Move the cohort to the clusters that it chooses."""
        return self._chosen(clusters, cohort, federation)

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Average the shared layers, if any are; after the last trial round, keep the best start."""
        if self.parameters.shared_layers and replies:
            equal, kept = isinstance(self.make_aggregator(), FairAvg), clusters.models
            counts = [1 if equal else reply.num_examples for reply in replies]
            samples = np.bincount([reply.cluster for reply in replies], counts, len(kept))
            train = self._training(clusters, federation)
            shared = self._shared(kept[train], samples[train].tolist())
            models = (*kept[: train.start], *shared, *kept[train.stop :])
            clusters = replace(clusters, models=models)
        if federation.server_round == self.parameters.trial_rounds:
            return self._best_start(clusters, federation)
        nobody = np.zeros(clusters.num_clients, dtype=bool)
        return replace(clusters, memory=replace(clusters.memory, chosen=nobody))

    def before_evaluation(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Move every client to the cluster that it chooses."""
        return self._chosen(clusters, range(clusters.num_clients), federation)

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether a start is chosen."""
        return server_round >= self.parameters.trial_rounds

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn of a run that ends before a start is chosen."""
        trial = self.parameters.trial_rounds
        if rounds >= trial:
            return []
        return [
            f"{self.parameters.restarts} starts of {self.parameters.restart_rounds} rounds each take "
            f"{trial} rounds, the run has {rounds}: it ends before the best start is chosen"
        ]

    def _training(self, clusters: Clusters, federation: Federation) -> slice:
        """Find the models that train, those of one start."""
        together = self.parameters.number
        trying = len(clusters.models) > together
        first = together * ifca.current_start(federation.server_round, self.parameters) if trying else 0
        return slice(first, first + together)

    def _chosen(self, clusters: Clusters, clients: Iterable[int], federation: Federation) -> Clusters:
        train, memory = self._training(clusters, federation), clusters.memory
        first, nobody = train.start, np.zeros(clusters.num_clients, dtype=bool)
        chosen = memory.chosen.copy() if memory.first == first else nobody
        # One message per node: the models travel once, whoever is asked. A client that fails stays put.
        losses = federation.losses(clusters.models[train], [each for each in clients if not chosen[each]])
        chosen[list(losses)] = True
        assignment = first + clusters.assignment % self.parameters.number
        return replace(
            clusters,
            assignment=_with_choices(assignment, losses, first),
            memory=replace(memory, chosen=chosen, first=first),
            reason="clients chose",
        )

    def _best_start(self, clusters: Clusters, federation: Federation) -> Clusters:
        together = self.parameters.number
        losses = federation.losses(clusters.models, range(clusters.num_clients))
        table = np.array([*losses.values()])
        best = ifca.best_start(table, together) if losses else self.parameters.restarts - 1
        kept = slice(best * together, (best + 1) * together)
        start = ifca.start_losses(table, together).tolist() if losses else []
        found = Findings(summary={"start": best, "start_losses": start})
        own = {client: each[kept] for client, each in losses.items()}
        return Clusters(
            _with_choices(clusters.assignment % together, own, 0),
            clusters.models[kept],
            Memory(np.isin(np.arange(clusters.num_clients), list(losses)), 0, found),
            clusters.aggregators[kept],
            report={**clusters.report, **found.summary},
            reason=f"start {best} kept, clients chose",
        )

    def _shared(self, of: Sequence[ArrayRecord], weights: Sequence[float]) -> list[ArrayRecord]:
        arrays = [{name: to_numpy(array) for name, array in model.items()} for model in of]
        shared = ifca.share_layers(arrays, weights, construction.last_layer(self.network))
        return [
            like(ArrayRecord({name: from_numpy(array) for name, array in each.items()}), model)
            for each, model in zip(shared, of, strict=True)
        ]


def _with_choices(assignment: IntArray, losses: Mapping[int, FloatArray], first: int) -> IntArray:
    """Put each client that measured losses in the cluster it chooses, counted from the first."""
    changed = assignment.copy()
    if losses:
        changed[list(losses)] = first + ifca.choose(np.array([*losses.values()]))
    return changed
