"""Aggregate a cluster's replies: its aggregator updates parameters, buffers are averaged.

A model's buffers are measurements, such as BatchNorm's running mean and variance. A server optimiser that
updates them like parameters can make a variance negative, which has no meaning: FedAvgM with the momentum
of its paper did so to 459 of 576 running variances of a CIFAR-10 network within two rounds. A median or a
choice among clients would combine the statistics of one client with the parameters of others.

So the aggregator of a cluster gets parameters only. Floating-point buffers become the mean of the
replies, weighted by their numbers of samples; whole numbers (BatchNorm's counter) become the largest. A
wrapper around the aggregator, such as one for differential privacy, therefore does not protect buffers; use
a network without them (GroupNorm in place of BatchNorm) where they must not be shared.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy as flower
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from torch import nn

from fedclust.aggregation.fairavg import FairAvg
from fedclust.aggregation.options import Aggregator
from fedclust.aggregation.replies import Reply, weighted_loss, weighted_mean
from fedclust.messages.codec import ARRAYS, METRICS, Content, as_record
from fedclust.messages.models import is_finite, like
from fedclust.messages.training import LOSS, NUM_EXAMPLES, instruct

RecordType = ArrayRecord | ConfigRecord | MetricRecord

# Their next model is the mean itself: no need to let Flower compute it again, in float32 and reply by reply.
_PLAIN_MEANS = (FedAvg, FedProx, FairAvg)

# Their aggregate is a function of a mean of the replies, so replies that share a record may be merged.
# Exactly these: a subclass may do something else.
_WEIGHTED_MEANS = (*_PLAIN_MEANS, FedAvgM, FedAdam, FedYogi, FedAdagrad)


class NotFinite(ArithmeticError):
    """An aggregator made a model that is not finite of replies that are."""


def buffer_names(model: nn.Module) -> frozenset[str]:
    """List the entries of a network's ``state_dict`` that are not parameters."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return frozenset(model.state_dict().keys() - parameters)


def check_aggregator(aggregator: Strategy) -> None:
    """Check the values of one of Flower's aggregators; a user's own aggregator must check its own.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """
    if getattr(flower, type(aggregator).__name__, None) is not type(aggregator):
        return
    Aggregator(
        **{field.name: getattr(aggregator, field.name, None) for field in dataclasses.fields(Aggregator)}
    )


def needs_only_mean(aggregator: Strategy) -> bool:
    """Whether an aggregator computes the same from the mean of some replies as from the replies."""
    return type(aggregator) in _WEIGHTED_MEANS


def remembers(aggregator: Strategy) -> bool:
    """Whether an aggregator may differ after a round: any but those whose next model is a plain mean."""
    return type(aggregator) not in _PLAIN_MEANS


def configure_train(
    aggregator: Strategy,
    server_round: int,
    model: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    buffers: frozenset[str],
) -> list[Message]:
    """Let an aggregator choose clients and write their messages; it sees only the model's parameters.

    Parameters
    ----------
    aggregator
        A cluster's Flower strategy.
    model
        The cluster's model.
    config
        Settings for the clients.
    grid
        A grid of the cohort's clients.
    buffers
        Names of the model's floating-point buffers, as :func:`buffer_names` lists them.

    Returns
    -------
    The messages; each holds the parameters that the aggregator chose and the buffers of `model`.
    """
    sent = _parameters(model, buffers)
    with _minima_at_most(aggregator, len(list(grid.get_node_ids()))):
        messages = list(aggregator.configure_train(server_round, sent, config, grid))
    if sent is model:
        return messages
    # Once per record: a record that clients share must stay one object, or it would be sent to each of them.
    whole: dict[int, ArrayRecord] = {}
    for content in {id(message.content): message.content for message in messages}.values():
        for key, chosen in list(content.items()):
            if not isinstance(chosen, ArrayRecord):
                continue
            if id(chosen) not in whole:
                whole[id(chosen)] = as_record({name: chosen.get(name, model[name]) for name in model})
            content[key] = whole[id(chosen)]
    return messages


@contextlib.contextmanager
def _minima_at_most(aggregator: Strategy, number: int) -> Iterator[None]:
    """Lower an aggregator's minima, Flower's being 2, to the size of a cohort, and restore them.

    Flower waits for ever until there are so many clients, and a cluster may have a single one.
    """
    before = {
        name: getattr(aggregator, name)
        for name in ("min_train_nodes", "min_available_nodes")
        if getattr(aggregator, name, 0) > number
    }
    vars(aggregator).update(dict.fromkeys(before, number))
    try:
        yield
    finally:
        vars(aggregator).update(before)


def train_from(messages: Sequence[Message], model: ArrayRecord) -> list[Message]:
    """Replace the model in an aggregator's messages.

    Parameters
    ----------
    messages
        The messages of :func:`configure_train`.
    model
        The model that clients shall start from.
    """
    return _with_contents(messages, lambda record: model if isinstance(record, ArrayRecord) else record)


def ask_for_own_models(messages: Sequence[Message], clients: Collection[int]) -> list[Message]:
    """Ask some clients to reply with their own models, where other clients of a node may share a mean.

    Parameters
    ----------
    messages
        The messages of :func:`configure_train`.
    clients
        Ids of these clients; ids without a message are ignored.
    """
    asked = [message for message in messages if message.metadata.dst_node_id in clients]
    changed = iter(
        _with_contents(
            asked,
            lambda record: (
                ConfigRecord({**record, **instruct(mean_reply=False)})
                if isinstance(record, ConfigRecord)
                else record
            ),
        )
    )
    return [next(changed) if message.metadata.dst_node_id in clients else message for message in messages]


def _with_contents(messages: Sequence[Message], change: Callable[[RecordType], RecordType]) -> list[Message]:
    """Change the records of messages; records that clients share stay one object, so they are sent once."""
    contents: dict[int, RecordDict] = {}
    changed = []
    for message in messages:
        key = id(message.content)
        if key not in contents:
            contents[key] = RecordDict({name: change(record) for name, record in message.content.items()})
        other = copy.copy(message)
        other.content = contents[key]
        changed.append(other)
    return changed


def aggregate(
    aggregator: Strategy,
    server_round: int,
    model: ArrayRecord,
    replies: Sequence[Reply],
    buffers: frozenset[str],
    *,
    shared_means: bool,
) -> ArrayRecord:
    """Compute a cluster's next model from its clients' valid replies.

    Parameters
    ----------
    aggregator
        The cluster's Flower strategy, after :func:`configure_train`.
    model
        The cluster's model; names, shapes and types are those of the result.
    replies
        At least one.
    buffers
        Names of the model's floating-point buffers.
    shared_means
        Whether the aggregator needs no more than the replies' weighted mean, so that replies may share a
        node's. It is then given that mean, as one reply.

    Returns
    -------
    The next model; `model` itself if the aggregator returns none.

    Raises
    ------
    NotFinite
        If the aggregator makes a model that is not finite from replies that are.
    """
    if isinstance(aggregator, FairAvg):  # buffers, too, are averaged with these weights
        replies, shared_means = [dataclasses.replace(reply, num_examples=1) for reply in replies], True
    by_samples = getattr(aggregator, "weighted_by_key", NUM_EXAMPLES) == NUM_EXAMPLES
    if type(aggregator) in _PLAIN_MEANS and by_samples:  # parameters and buffers alike
        first = replies[0].model
        if all(reply.model is first for reply in replies):
            chosen = first
        else:
            chosen = as_record(weighted_mean(replies, model))
    else:
        parameters = _parameters(model, buffers)
        if shared_means:
            messages = [_mean_message(replies, parameters)]
        else:
            # Copies: FedMedian and FedTrimmedAvg empty their records, and a reply may be listed twice.
            messages = [_only(reply.as_message(), parameters) for reply in replies]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            aggregated, _ = aggregator.aggregate_train(server_round, messages)
        if aggregated is None:
            return model
        others = [name for name in model if name not in parameters]
        chosen = as_record({**aggregated, **weighted_mean(replies, others)})
    with np.errstate(over="ignore", invalid="ignore"):  # looked at next
        chosen = like(chosen, model)
    if not is_finite(chosen):
        raise NotFinite(
            f"{type(aggregator).__name__} made a model that is not finite from {len(replies)} finite replies"
        )
    return chosen


def _parameters(model: ArrayRecord, buffers: frozenset[str]) -> ArrayRecord:
    """Select the optimised entries, `model` itself if all are; whole numbers never are."""
    chosen = {
        name: array
        for name, array in model.items()
        if name not in buffers and np.dtype(array.dtype).kind in "fc"
    }
    return model if len(chosen) == len(model) else as_record(chosen)


def _only(message: Message, parameters: ArrayRecord) -> Message:
    """Copy a reply with only the model's parameters, in the model's order."""
    content = Content(
        {
            key: as_record({name: record[name] for name in parameters})
            if isinstance(record, ArrayRecord)
            else record
            for key, record in message.content.items()
        }
    )
    reduced = copy.copy(message)
    reduced.content = content
    return reduced


def _mean_message(replies: Sequence[Reply], parameters: ArrayRecord) -> Message:
    """Make one reply of several: their mean, with the sum of their samples."""
    metrics = MetricRecord(
        {
            NUM_EXAMPLES: sum(reply.num_examples for reply in replies),
            LOSS: weighted_loss(replies) or 0.0,
        }
    )
    message = copy.copy(replies[0].message)
    # Rounded: a server optimiser remembers it, and float64's last bits depend on who shares a node.
    mean = like(as_record(weighted_mean(replies, parameters)), parameters)
    message.content = Content({ARRAYS: mean, METRICS: metrics})
    return message
