"""Ask a cluster's clients for what groupings of them are proposed from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering.auto import Parameters
from fedclust.clustering.loss_traces import Trace
from fedclust.clustering.proposals import Proposal, by_labels, by_losses, by_prototypes, by_updates, distinct
from fedclust.clustering.prototype_groups import MIN_EXAMPLES
from fedclust.federation.asking import unlike
from fedclust.federation.federation import Federation
from fedclust.messages.description import PrototypesQuestion
from fedclust.messages.training import Projection
from fedclust.support.rng import generator, torch_seed
from fedclust.typing import FloatArray, IntArray

MIN_VOTES = 2
"""Held-out rows with which a client votes."""

_TRIED_FIRST = 2  # clients that are asked for prototypes before all are

# Proposals of the clients that answered, and the positions of those unlike all others.
_Form = Callable[..., tuple[list[Proposal], IntArray]]
_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Look:
    """What came of asking a cluster's clients.

    Attributes
    ----------
    proposals
        Different groupings over the cluster's members, best sources first.
    trained
        How many clients trained for them.
    alone
        By source, ids of the clients that are unlike all others there, sorted.
    """

    proposals: list[Proposal]
    trained: int
    alone: Mapping[str, list[int]]


def propose(
    federation: Federation,
    model: ArrayRecord,
    trace: Trace,
    parameters: Parameters,
    projection: Projection,
    server_round: int,
    keys: tuple[int, int],
) -> Look:
    """List groupings of a cluster's clients from all sources.

    Of a cluster of more than `most_asked` clients so many are drawn; the parts of the others are not known.

    Parameters
    ----------
    federation
        The clients.
    model
        The cluster's model.
    trace
        Losses of the cluster's clients so far; its members are the cluster's.
    parameters
        What is asked for.
    projection
        Projection of clients' updates.
    server_round
        The round that begins; clients train as in it to tell their updates.
    keys
        The run's seed and the cluster, for draws.
    """
    members = trace.members
    places = np.arange(len(members))
    seed, cluster = keys
    if len(members) > parameters.most_asked:
        draws = generator(seed, "look", server_round, cluster)
        places = np.sort(draws.choice(places, parameters.most_asked, replace=False))
    asked, smallest = members[places], parameters.min_cluster_size
    start = torch_seed(seed, "look", server_round, cluster) % 2**32
    found: list[Proposal] = []
    trained = 0
    alone: dict[str, list[int]] = {}
    for source in parameters.sources:
        if source == "update":
            updates = federation.updates(model, asked.tolist(), server_round, projection=projection)
            trained = len(asked)
            told = {client: (each.projected.values,) for client, each in updates.items() if each.projected}
            proposals, _ = _of_some(asked, told, lambda rows: (by_updates(rows, smallest), _NOBODY))
            found += proposals
        elif source == "losses":
            found += [
                Proposal(each.source, each.labels[places]) for each in by_losses(trace, smallest, start)
            ]
        elif source == "labels":
            proposals, odd = by_labels(federation.describe().train_counts[asked], start)
            found, alone[source] = found + proposals, asked[odd].tolist()
        else:
            prototypes = _prototypes(federation, asked)
            proposals, odd = _of_some(asked, prototypes, partial(by_prototypes, min_size=smallest))
            found, alone[source] = found + proposals, asked[odd].tolist()
    votes = federation.describe().num_validation[members] >= MIN_VOTES
    spread = [Proposal(each.source, _laid_out(each.labels, places, len(members))) for each in found]
    return Look(distinct(spread, smallest, parameters.max_proposals, votes), trained, alone)


def _of_some(
    asked: IntArray, answers: Mapping[int, tuple[Any, ...]], form: _Form
) -> tuple[list[Proposal], IntArray]:
    """Form proposals from the clients that answered, the others' part is not known; and list who is alone."""
    answered = np.array(
        [place for place, client in enumerate(asked.tolist()) if client in answers], dtype=int
    )
    if len(answered) < 2:
        return [], _NOBODY
    values = zip(*(answers[int(client)] for client in asked[answered]), strict=True)
    proposals, odd = form(*(np.stack(value) for value in values))
    return [
        Proposal(each.source, _laid_out(each.labels, answered, len(asked))) for each in proposals
    ], answered[odd]


def _prototypes(
    federation: Federation, clients: IntArray
) -> dict[int, tuple[FloatArray, IntArray, FloatArray]]:
    """Ask for class prototypes; only the first two clients where these cannot tell any."""
    found: dict[int, tuple[FloatArray, IntArray, FloatArray]] = {}
    for asked in (clients[:_TRIED_FIRST], clients[_TRIED_FIRST:]):
        answers = federation.ask(PrototypesQuestion(min_examples=MIN_EXAMPLES), asked.tolist())
        found |= {client: each.all for client, each in answers.replies.items()}
        if not found:
            break
    shapes = {client: means.shape for client, (means, _, _) in found.items()}
    for client, reason in unlike("shape of prototypes", shapes).items():
        federation.failed(client, PrototypesQuestion.kind, reason)
        del found[client]
    return found


def _laid_out(labels: IntArray, places: IntArray, number: int) -> IntArray:
    """Lay the labels of some clients out over all, −1 for the others."""
    spread = np.full(number, -1, dtype=np.int64)
    spread[places] = labels
    return spread
