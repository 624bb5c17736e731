"""FedSoft: every client is a mixture of k groups and has a model of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedclust.clustering import fedsoft
from fedclust.clustering.fedsoft import Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply, padded, starting_models
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import like, unstacked
from fedclust.messages.packer import UNSAVED
from fedclust.strategies.base import NetworkStrategy
from fedclust.support.array_bytes import to_numpy
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What FedSoft remembers.

    Attributes
    ----------
    centres
        The k centres.
    importance
        Importance weights of each client, shape (K, k).
    trained
        Whether each client has a model of its own yet, shape (K,).
    starts
        During a round, what each client of the cohort trains from.
    """

    centres: tuple[ArrayRecord, ...]
    importance: FloatArray
    trained: BoolArray
    starts: Mapping[int, ArrayRecord] = field(default_factory=dict, metadata=UNSAVED)


class FedSoft(NetworkStrategy):
    """Train k centres; each client trains a model of its own, close to the centres that fit its samples.

    Source: :mod:`fedclust.clustering.fedsoft`. Every ``interval`` rounds everybody measures on how many of
    its samples each centre has the smallest loss. A client of the cohort, drawn from everybody, trains from
    the point of its proximal term, the mean of the centres by its importance weights; the paper leaves open
    where the minimisation begins.

    A client is served its own last model, so each client is a cluster of its own, and the server keeps K + k
    models. One that has not trained yet is served the point where it would begin. The importance weights,
    and the centre with the largest, are columns of the table of clients.

    Parameters
    ----------
    network
        Its weights are drawn anew for each centre but the first.
    parameters
        Number of centres, how often they are measured, and the proximal term.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`; the aggregator must be FedAvg, since
        a centre is the mean of all clients' models by their importance weights.

    Raises
    ------
    ValueError
        If the aggregator cannot apply.
    """

    asks = frozenset({LossesQuestion.kind})

    needs_client_models = True

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if (kind := type(self.make_aggregator())) is not FedAvg:
            why = "fedavg with FedSoft, which has its own mean and proximal term"
            raise ValueError(f"aggregator must be {why}, got {kind.__name__.lower()}")

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Draw k centres; every client is a cluster of its own, and belongs to all centres alike."""
        clients, together = federation.num_clients, self.parameters.number
        centres = starting_models(self.network, model, together, self.seed)
        alike = np.full((clients, together), 1 / together)
        memory = Memory(centres, alike, np.zeros(clients, dtype=bool))
        return Clusters.of(np.arange(clients), model, memory)

    def entering(
        self, clusters: Clusters, replies: Sequence[Reply], federation: Federation
    ) -> Sequence[Reply]:
        """Aggregate nothing: the next models are mixtures of the centres."""
        return ()

    def join(self, clusters: Clusters, newcomers: Sequence[int], federation: Federation) -> Clusters:
        """Measure the newcomers' importance weights; each starts from its mixture of the centres."""
        memory, number = clusters.memory, len(newcomers)
        alike = np.full((number, len(memory.centres)), 1 / len(memory.centres))
        grown = np.concatenate([memory.importance, alike]), padded(memory.trained, number)
        memory = replace(memory, importance=grown[0], trained=grown[1])
        memory = self._measured(memory, newcomers, federation)
        models = _mixed(memory.centres, memory.importance[-number:])
        return clusters.joined(len(clusters.models) + np.arange(number), memory, models)

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose the round's cohort from all clients."""
        return self.select(np.arange(clusters.num_clients), clusters.memory.centres[0], federation)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Ask for importance weights when that is due, and mix the models that the cohort starts from."""
        memory: Memory = clusters.memory
        if (federation.server_round - 1) % self.parameters.interval == 0:
            memory = self._measured(memory, range(clusters.num_clients), federation)
        mixed = _mixed(memory.centres, memory.importance[cohort])
        starts = dict(zip(cohort.tolist(), mixed, strict=True))
        return replace(clusters, memory=replace(memory, starts=starts))

    def training_models(self, clusters: Clusters) -> Sequence[ArrayRecord]:
        """Start each client from the point of its proximal term."""
        starts = clusters.memory.starts
        return [starts.get(client, model) for client, model in enumerate(clusters.models)]

    def instruction(self, clusters: Clusters) -> Mapping[str, Any]:
        """Return the weight of the proximal term."""
        return {"proximal_mu": self.parameters.proximal}

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Keep each client's own model, and make the next centres of all of them."""
        memory: Memory = replace(clusters.memory, starts={})
        if not replies:
            return replace(clusters, memory=memory)
        members = np.array([reply.client for reply in replies])
        samples = np.array([reply.num_examples for reply in replies])
        shares = fedsoft.centre_shares(memory.importance[members], samples)
        means = _mixed([reply.model for reply in replies], shares.T, memory.centres[0])
        centres = tuple(
            mean if share.any() else centre
            for mean, share, centre in zip(means, shares.T, memory.centres, strict=True)
        )
        models = list(clusters.models)
        for reply in replies:
            models[reply.client] = like(reply.model, reply.start)
        trained = memory.trained.copy()
        trained[members] = True
        memory = replace(memory, centres=centres, trained=trained)
        return replace(clusters, models=tuple(models), memory=memory)

    def before_evaluation(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Serve those who have not trained yet the mean of the centres by their importance weights."""
        memory: Memory = clusters.memory
        waiting = np.flatnonzero(~memory.trained)
        models = list(clusters.models)
        for client, mixed in zip(waiting, _mixed(memory.centres, memory.importance[waiting]), strict=True):
            models[client] = mixed
        return replace(clusters, models=tuple(models))

    def _measured(self, memory: Memory, clients: Iterable[int], federation: Federation) -> Memory:
        """Ask clients for their importance weights; a client that fails keeps its last ones."""
        wins, weights = federation.wins(memory.centres, clients), memory.importance.copy()
        if wins:
            weights[list(wins)] = fedsoft.importance(np.array([*wins.values()]), self.parameters.sigma)
        return replace(memory, importance=weights)

    def findings(self, clusters: Clusters) -> Findings:
        """Return every client's importance weights, and the centre that has its largest."""
        weights: FloatArray = clusters.memory.importance
        columns = {f"importance_{centre}": weights[:, centre] for centre in range(weights.shape[1])}
        return Findings(clients={"centre": weights.argmax(axis=1), **columns})


def _mixed(
    models: Sequence[ArrayRecord], shares: FloatArray, template: ArrayRecord | None = None
) -> list[ArrayRecord]:
    arrays = [{name: to_numpy(array) for name, array in model.items()} for model in models]
    return unstacked(fedsoft.middle(arrays, shares), models[0] if template is None else template)
