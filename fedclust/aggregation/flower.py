"""Aggregate a cluster's replies: the aggregator updates parameters, buffers are averaged.

A model's buffers are measurements, such as BatchNorm's running mean and variance. A server optimiser that
updates them like parameters can make a variance negative, which has no meaning: FedAvgM with the momentum
of its paper did so to 459 of 576 running variances of a CIFAR-10 network within two rounds. A median or a
choice among clients would combine the statistics of one client with the parameters of others.

So a cluster's aggregator gets parameters only. Floating-point buffers become the mean of the replies,
weighted by their numbers of samples; integer buffers (BatchNorm's counter) become the largest. A wrapper
around the aggregator, such as one for differential privacy, therefore does not protect buffers; where they
must not be shared, use a network without them (GroupNorm instead of BatchNorm).

A server optimiser keeps its momentum in attributes. The attributes in which an aggregator differs from a
newly made one are its state, :func:`pack_state`; they must have types that a checkpoint can hold.
"""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, strategy as flower
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from torch import nn

from fedclust.messages.codec import ARRAYS, CONFIG, as_record
from fedclust.messages.models import is_finite, like
from fedclust.messages.packer import pack
from fedclust.messages.replies import Reply, weighted_loss, weighted_mean
from fedclust.messages.training import EQUAL_WEIGHTS, NUM_EXAMPLES, Instruction, read_sent
from fedclust.settings.choices import FLOWERS_RULES
from fedclust.support.checks import check_value


class FairAvg(FedAvg):
    """FedAvg whose clients all have the same weight, however many samples they have.

    Source: Michieli and Ozay, "Are All Users Treated Fairly in Federated Learning Systems?", CVPR Workshops
    2021. Nodes that answer with one mean for several clients are instructed to weight these equally; on the
    server, :func:`aggregate` gives every client's reply the weight of one sample.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Instruct nodes to weight their clients equally if they answer with a mean."""
        instruction = ConfigRecord({**config, EQUAL_WEIGHTS: True})
        return super().configure_train(server_round, arrays, instruction, grid)


_NAMES = {"weighted_by_key": NUM_EXAMPLES, "arrayrecord_key": ARRAYS, "configrecord_key": CONFIG}

# Their next model is the mean itself: Flower need not compute it again, in float32 and reply by reply.
_PLAIN_MEANS = (FedAvg, FedProx, FairAvg)

# Their aggregate is a function of a mean of the replies, so replies that share a record may be merged.
# Exactly these classes: a subclass may behave differently.
_WEIGHTED_MEANS = (*_PLAIN_MEANS, FedAvgM, FedAdam, FedYogi, FedAdagrad)


class NotFinite(ArithmeticError):
    """An aggregator made a non-finite model from finite replies."""


def buffer_names(model: nn.Module) -> frozenset[str]:
    """List the entries of a network's ``state_dict`` that are not parameters."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return frozenset(model.state_dict().keys() - parameters)


def statistics_in(names: Iterable[str]) -> frozenset[str]:
    """List the entries of a ``state_dict`` that have the names of PyTorch's statistics of normalisation.

    Of a network that is not here, only the names of its arrays are known.

    Examples
    --------
    >>> sorted(statistics_in(["1.weight", "1.running_mean", "1.running_var", "2.running_mean"]))
    ['1.running_mean', '1.running_var']
    """
    there = frozenset(names)
    pairs = (
        (f"{layer}running_mean", f"{layer}running_var")
        for layer in {name.removesuffix("running_mean") for name in there if name.endswith("running_mean")}
    )
    return frozenset().union(*(pair for pair in pairs if there.issuperset(pair)))


def check_aggregator(aggregator: Strategy) -> None:
    """Check the options of one of Flower's aggregators; a user's own aggregator must check its own.

    Names of records and of the weight must be Flower's defaults, which messages have.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """
    for name, usual in _NAMES.items():
        if (value := getattr(aggregator, name, usual)) != usual:
            raise ValueError(f"{name} must be {usual!r}, got {value!r}")
    if getattr(flower, type(aggregator).__name__, None) is not type(aggregator):
        return
    for name, rule in FLOWERS_RULES.items():
        if (value := getattr(aggregator, name, None)) is not None:
            check_value(name, value, rule)


def needs_only_mean(aggregator: Strategy) -> bool:
    """Return whether an aggregator gives the same result for the mean of some replies as for the replies."""
    return type(aggregator) in _WEIGHTED_MEANS


def remembers(aggregator: Strategy) -> bool:
    """Return whether an aggregator may change in a round; those whose next model is a plain mean do not."""
    return type(aggregator) not in _PLAIN_MEANS


def instructions(
    aggregator: Strategy,
    server_round: int,
    model: ArrayRecord,
    clients: Sequence[int],
    buffers: frozenset[str],
    config: Mapping[str, Any] = MappingProxyType({}),
) -> dict[int, Instruction]:
    """Ask an aggregator to choose among clients and instruct them; it sees only the model's parameters.

    Parameters
    ----------
    aggregator
        A cluster's Flower strategy.
    server_round
        The round.
    model
        The cluster's model.
    clients
        Ids of the cohort's clients.
    buffers
        Names of the model's floating-point buffers, as :func:`buffer_names` lists them.
    config
        The user's own settings for the clients.

    Returns
    -------
    The instruction of each client that the aggregator chose, by client id; clients that it treats alike have
    the same object. It holds the parameters that the aggregator chose and the buffers of `model`.
    """
    if type(aggregator) in _PLAIN_MEANS and getattr(aggregator, "fraction_train", 0) == 1:
        # What such an aggregator writes is known, and a message per client takes longer than all else here.
        mu, equal = getattr(aggregator, "proximal_mu", None), type(aggregator) is FairAvg
        alike = Instruction(model, server_round, proximal_mu=mu, equal_weights=equal, extra=config)
        return dict.fromkeys(clients, alike)
    shown, cohort = _parameters(model, buffers), _Cohort(clients)
    with _minima_at_most(aggregator, len(clients)):
        messages = list(aggregator.configure_train(server_round, shown, ConfigRecord({**config}), cohort))  # type: ignore[arg-type]
    contents = {id(message.content): message.content for message in messages}
    read = {key: _instruction(content, model, shown) for key, content in contents.items()}
    return {message.metadata.dst_node_id: read[id(message.content)] for message in messages}


def _instruction(content: RecordDict, model: ArrayRecord, shown: ArrayRecord) -> Instruction:
    """Read an aggregator's message; complete its model by what was not shown to the aggregator."""
    read = read_sent(Instruction, content)
    if shown is model:
        return read
    whole = as_record({name: read.arrays.get(name, model[name]) for name in model})
    return replace(read, arrays=whole)


class _Cohort:
    """What an aggregator sees: a grid of the clients that it may choose, to which nothing can be sent."""

    def __init__(self, clients: Sequence[int]) -> None:
        self._clients = list(map(int, clients))

    def get_node_ids(self) -> list[int]:
        """Return the ids of the clients."""
        return list(self._clients)


@contextlib.contextmanager
def _minima_at_most(aggregator: Strategy, number: int) -> Iterator[None]:
    """Lower an aggregator's minima to the size of a cohort, and restore them.

    Flower's default is 2, and it waits for ever for fewer clients, but a cluster may have a single one.
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
        The cluster's Flower strategy, after :func:`instructions`.
    model
        The cluster's model; names, shapes and types are those of the result.
    replies
        At least one.
    buffers
        Names of the model's floating-point buffers.
    shared_means
        Whether the aggregator needs only the replies' weighted mean, so that replies may share a node's mean.
        It then gets the mean as a single reply.

    Returns
    -------
    The next model; `model` itself if the aggregator returns none.

    Raises
    ------
    NotFinite
        If the aggregator makes a non-finite model from finite replies.
    """
    if isinstance(aggregator, FairAvg):  # buffers are averaged with these weights, too
        replies, shared_means = [replace(reply, num_examples=1) for reply in replies], True
    if type(aggregator) in _PLAIN_MEANS:  # for parameters and buffers
        first = replies[0].model
        shared = len({id(reply.model) for reply in replies}) == 1
        chosen = first if shared else as_record(weighted_mean(replies, model))
    else:
        parameters = _parameters(model, buffers)
        if shared_means:
            # Rounded: a server optimiser remembers it, and float64's last bits depend on who shares a node.
            mean = like(as_record(weighted_mean(replies, parameters)), parameters)
            total, loss = sum(reply.num_examples for reply in replies), weighted_loss(replies) or 0.0
            shown = [replace(replies[0], model=mean, num_examples=total, loss=loss)]
        else:
            # Copies: FedMedian and FedTrimmedAvg empty their records, and a reply may be listed twice.
            own = ({name: reply.model[name] for name in parameters} for reply in replies)
            shown = [replace(reply, model=as_record(each)) for reply, each in zip(replies, own, strict=True)]
        messages = [each.as_message() for each in shown]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            aggregated, _ = aggregator.aggregate_train(server_round, messages)
        if aggregated is None:
            return model
        others = [name for name in model if name not in parameters]
        chosen = as_record({**aggregated, **weighted_mean(replies, others)})
    with np.errstate(over="ignore", invalid="ignore"):  # checked next
        chosen = like(chosen, model)
    if not is_finite(chosen):
        raise NotFinite(
            f"{type(aggregator).__name__} made a model that is not finite from {len(replies)} finite replies"
        )
    return chosen


def _parameters(model: ArrayRecord, buffers: frozenset[str]) -> ArrayRecord:
    """Select the parameters; return `model` itself if all entries are. Integers are never parameters."""
    chosen = {
        name: array
        for name, array in model.items()
        if name not in buffers and np.dtype(array.dtype).kind in "fc"
    }
    return model if len(chosen) == len(model) else as_record(chosen)


def pack_state(strategy: Strategy, fresh: Strategy) -> dict[str, Any]:
    """Collect the state of a strategy.

    Parameters
    ----------
    strategy
        A strategy after some rounds.
    fresh
        A strategy made in the same way that has not run.

    Returns
    -------
    Each attribute that changed, by name; for a strategy inside this one, its state.

    Raises
    ------
    TypeError
        If an attribute has another type than array, number, text, record, or a container of them.
    """
    packed: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        other = vars(fresh).get(name)
        if isinstance(value, Strategy) and isinstance(other, Strategy):  # such as inside a wrapper
            packed[name] = pack_state(value, other)
        elif value is not other and not _same_scalar(value, other):
            try:
                pack(value, Any)
            except TypeError as error:
                raise TypeError(
                    f"aggregator {type(strategy).__name__} cannot be resumed: attribute {name!r} must hold "
                    f"arrays, numbers or records, got {type(value).__name__}"
                ) from error
            packed[name] = value
    return packed


def restored(strategy: Strategy, packed: Mapping[str, Any]) -> Strategy:
    """Set a newly made strategy to a copy of a state, and return it."""
    for name, value in packed.items():
        inner = getattr(strategy, name, None)
        setattr(
            strategy, name, restored(inner, value) if isinstance(inner, Strategy) else copy.deepcopy(value)
        )
    return strategy


def _same_scalar(one: object, other: object) -> bool:
    plain = str | int | float | bool | None
    return isinstance(one, plain) and isinstance(other, plain) and one == other
