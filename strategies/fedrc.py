"""FedRC: k models for clients that call alike inputs differently, whatever inputs and labels they have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fedrc
from fedclust.clustering.fedrc import Parameters
from fedclust.federation import Clusters, Federation, Findings, Reply, padded, starting_models
from fedclust.federation.run import Round
from fedclust.messages.coalitions import ALL_ROWS, name_of
from fedclust.messages.mixtures import ResponsibilitiesQuestion
from fedclust.messages.models import canonical
from fedclust.messages.replies import update_norm
from fedclust.strategies.base import NetworkStrategy
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What FedRC remembers.

    Attributes
    ----------
    sums
        Responsibilities of each client's rows by model and class, as it last said; 0 for one that has not
        said any; shape (K, k, C).
    mixture
        ω of each client, shape (K, k).
    label_shares
        P(y; θ) of each model, shape (k, C).
    """

    sums: FloatArray
    mixture: FloatArray
    label_shares: FloatArray

    def updated(self) -> "Memory":
        """Make ω and P(y; θ) of the sums."""
        return Memory(self.sums, fedrc.mixtures(self.sums), fedrc.label_shares(self.sums))


class FedRC(NetworkStrategy):
    """Train k models; each client trains all of them, its rows weighted by how well each model fits them.

    Source: :mod:`fedclust.clustering.fedrc`. In each round the cohort says how much each model is responsible
    for its rows, summed by class; it then trains all models with these weights, and each model is aggregated
    from all clients' by their numbers of rows. A client is in the cluster of the model that it is most of,
    whose model serves it; one that has not taken part yet measures this before an evaluation.

    All models travel each way, with the cluster's own in the round's message. A client's update of another
    model may be ``update_norm_cap`` times as long as the longest update of clients' own models.

    Parameters
    ----------
    network
        Its weights are drawn anew for each model but the first.
    parameters
        Number of models.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({ResponsibilitiesQuestion.kind})

    needs_client_models = True
    needs_whole_models = True  # rows are weighted by what whole models say of them

    needs_label_counts = True  # the sums over the models add up to them

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Draw k models, of which every client is the same mixture; everyone is in the first cluster."""
        number, clients = self.parameters.number, federation.num_clients
        models = starting_models(self.network, model, number, self.seed)
        sums = np.zeros((clients, number, federation.describe().num_classes))
        return Clusters(np.zeros(clients, dtype=np.int64), models, Memory(sums, sums, sums).updated())

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose the round's cohort from all clients, as all train all models."""
        return self.select(np.arange(clusters.num_clients), clusters.models[0], federation)

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Ask the cohort for responsibilities; they count after the round."""
        found, sums = _asked(clusters, cohort, federation), clusters.memory.sums.copy()
        for client, each in found.items():
            sums[client] = each
        return replace(clusters, memory=replace(clusters.memory, sums=sums))

    def _instructed(self, now: Round, cohort: IntArray) -> Round:
        """Send every client all models, its own first, with what weights its rows."""
        now, asked = super()._instructed(now, cohort), {}
        memory: Memory = now.clusters.memory
        for client, each in now.asked.items():
            own = int(now.clusters.assignment[client])
            order = [own, *(place for place in range(len(now.sent)) if place != own)]
            asked[client] = replace(
                each,
                arms={_name(place): now.sent[place] for place in order[1:]},
                mixture=memory.mixture[client, order],
                label_shares=memory.label_shares[order].ravel(),
            )
        return replace(now, asked=asked)

    def entering(
        self, clusters: Clusters, replies: Sequence[Reply], federation: Federation
    ) -> Sequence[Reply]:
        """Aggregate each model from all clients that trained it."""
        cap = self.options.update_norm_cap
        most = max((update_norm(each.model, each.start) for each in replies), default=0.0) * (cap or np.inf)
        return [
            *replies,
            *(
                each
                for reply in replies
                for place, start in enumerate(clusters.models)
                if place != reply.cluster
                for each in _of_another(reply, place, start, most, federation)
            ),
        ]

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Make each client's shares of the models, and put it to that of its largest."""
        memory = clusters.memory.updated()
        known = memory.sums.any(axis=(1, 2))
        assignment = np.where(known, memory.mixture.argmax(axis=1), clusters.assignment)
        return replace(clusters, assignment=assignment, memory=memory, reason="largest shares of models")

    def before_evaluation(self, clusters: Clusters, federation: Federation) -> Clusters:
        """Put those that have not taken part yet to the model that they would be most of."""
        waiting = np.flatnonzero(~clusters.memory.sums.any(axis=(1, 2)))
        assignment = clusters.assignment.copy()
        for client, sums in _asked(clusters, waiting, federation).items():
            assignment[client] = sums.sum(axis=1).argmax()
        return replace(clusters, assignment=assignment)

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Remember of newcomers that nothing is known of them."""
        memory: Memory = clusters.memory
        sums = padded(memory.sums, len(homes), 0.0, axes=1)
        return replace(memory, sums=sums, mixture=fedrc.mixtures(sums))

    def findings(self, clusters: Clusters) -> Findings:
        """Return every client's shares of the models."""
        mixture = clusters.memory.mixture
        return Findings(clients={f"share_{place}": mixture[:, place] for place in range(mixture.shape[1])})


def _name(place: int) -> str:
    return name_of(place, ALL_ROWS)


def _asked(clusters: Clusters, clients: Iterable[int], federation: Federation) -> dict[int, FloatArray]:
    """Ask clients for their responsibilities, with the shares and P(y; θ) of the last round."""
    memory: Memory = clusters.memory
    questions = {
        client: ResponsibilitiesQuestion.of(clusters.models, memory.mixture[client], memory.label_shares)
        for client in map(int, clients)
    }
    return {client: answer.sums for client, answer in federation.ask(questions).replies.items()}


def _of_another(
    reply: Reply, place: int, start: ArrayRecord, most: float, federation: Federation
) -> Iterable[Reply]:
    """Return a client's training of another model than its own, if it can be used."""
    fields: dict[str, Any] = {"cluster": place, "start": start, "projected": None, "update_norm": None}
    if (sent := reply.arms.get(_name(place))) is None:  # a site may keep it
        return
    try:
        model = canonical(sent, start)
        if (length := update_norm(model, start)) > most:
            raise ValueError(f"update must be at most {most:.3g} long, got {length:.3g}")
    except ValueError as error:
        reason = f"client {reply.client}, round {federation.server_round}: model {place}: {error}"
        federation.failed(reply.client, "train", reason)
    else:
        yield replace(reply, model=model, **fields)
