"""Train further models in a round, beside those of the clusters."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation import flower as aggregation
from fedclust.federation.answering import failure_order
from fedclust.federation.run import Run, amended
from fedclust.layers.standard import within
from fedclust.messages.replies import ANY, Caps, Reply, by_cluster
from fedclust.messages.training import Instruction

TRIAL = "trial"
"""Phase of the failures of such training, in the round's record."""


def train_beside(
    run: Run,
    models: Sequence[ArrayRecord],
    aggregators: Sequence[Strategy],
    clients: Mapping[int, int],
    *,
    shared_means: bool,
    caps: Caps = ANY,
    instruction: Mapping[str, Any] = MappingProxyType({}),
) -> list[Reply]:
    """Train several models for a round.

    Clients train on the batches of the round, so a client that trains the cluster's model in the same round
    trains both on the same rows. A failing client is recorded and excluded.

    Parameters
    ----------
    run
        The run.
    models, aggregators
        The models, and the Flower strategy of each.
    clients
        Which of them each client trains, by client id.
    shared_means
        Whether a node may answer with the mean of its clients' models.
    caps
        How far updates may move a model, as in the cluster's own training.
    instruction
        Further fields of the clients' instruction.

    Returns
    -------
    The valid replies; a reply's cluster is the model's position.
    """
    federation, number = run.federation, run.number
    described = federation.bounds.num_train
    fields = {"mean_reply": shared_means, **instruction, **caps.instruction(described)}
    asked: dict[int, Instruction] = {}
    for index, (model, aggregator) in enumerate(zip(models, aggregators, strict=True)):
        if chosen := sorted(client for client, place in clients.items() if place == index):
            facts = number, model, chosen, run.buffers, run.train_config
            asked |= amended(aggregation.instructions(aggregator, *facts), **fields)
    cohort = {client: clients[client] for client in asked}
    valid, failures = federation.train(asked, cohort, models, means=shared_means)
    valid, long = within(valid, number, caps, described)
    for failure in sorted([*failures, *long], key=failure_order):
        federation.failed(int(failure["client"]), TRIAL, str(failure["reason"]))
    return valid


def aggregate_beside(
    run: Run,
    models: Sequence[ArrayRecord],
    aggregators: Sequence[Strategy],
    replies: Sequence[Reply],
    *,
    shared_means: bool,
) -> tuple[ArrayRecord, ...]:
    """Aggregate the replies as a cluster does; a model without any stays as it is.

    Parameters
    ----------
    run, models, aggregators, shared_means
        As for :func:`train_beside`; the aggregators change.
    replies
        What it returned, or private means of that.

    Returns
    -------
    The models after the round.

    Raises
    ------
    NotFinite
        If an aggregator makes a model that is not finite of replies that are.
    """
    after, number, buffers = list(models), run.number, run.buffers
    for index, cohort in by_cluster(replies).items():
        aggregator = aggregators[index]
        after[index] = aggregation.aggregate(
            aggregator, number, models[index], cohort, buffers, shared_means=shared_means
        )
    return tuple(after)
