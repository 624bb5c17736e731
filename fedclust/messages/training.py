"""The server's instruction to train or evaluate, and a client's reply to training."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedclust.messages.bounds import (
    LARGEST_LOSS,
    Bounds,
    check_keys,
    finite_list,
    only_records,
    short,
    whole,
)
from fedclust.messages.keys import (
    ARRAYS,
    CLIP,
    CLIP_TELLS,
    EQUAL_WEIGHTS,
    FULL,
    LOSS,
    LOSSES,
    MEAN_REPLY,
    METRICS,
    NUM_EXAMPLES,
    POOLED,
    POOLED_ROWS,
    PROJECTION,
    PROXIMAL_MU,
    ROUND,
    UPDATE_NORM,
    UPDATE_NORM_CAP,
    WITHIN_CLIP,
    BadReply,
    _lacks,
)
from fedclust.messages.kinds import of_kind
from fedclust.messages.projecting import Projection
from fedclust.messages.projection import Projected, projected_record, read_projected, read_projection
from fedclust.typing import FloatArray

__all__ = [
    "Instruction",
    "TrainReply",
    "pooled_content",
    "read_instruction",
    "read_pooled",
    "read_train",
    "train_content",
    "within_content",
]

_UNKNOWN = Bounds()
_METRICS, _LISTED = frozenset({NUM_EXAMPLES, LOSS, UPDATE_NORM, WITHIN_CLIP}), frozenset({LOSSES})


@dataclass(frozen=True, eq=False)
class Instruction:
    """The server's instruction to train or evaluate.

    Attributes
    ----------
    arrays
        The model to start from.
    server_round
        The round, from 1; 0 if the sender does not count rounds.
    proximal_mu
        Weight of FedProx's proximal term, or None if the sender does not use it.
    mean_reply
        Whether clients that got the same model may answer with their mean model.
    full
        Whether an evaluation includes macro F1 and AUC, which take longer.
    norm_cap
        How many times as long as another an update may be to share a mean with it; None for any.
    projection
        Projection of what training changed that is to be answered; None for none.
    equal_weights
        Whether each client has the same weight in such a mean; else the number of its samples.
    pooled
        Where the training rows of several clients are to be trained on: the clients that would take part,
        whose local training says how many samples to see. Empty otherwise.
    pooled_rows
        The clients whose training rows these are; empty for all clients.
    clip
        Length to which the client's update is clipped before anything is made of it; None for none.
    clip_tells
        Whether the client says if its update was short enough.
    """

    arrays: ArrayRecord
    server_round: int
    proximal_mu: float | None
    mean_reply: bool
    full: bool
    norm_cap: float | None = None
    projection: Projection | None = None
    equal_weights: bool = False
    pooled: tuple[int, ...] = ()
    pooled_rows: tuple[int, ...] = ()
    clip: float | None = None
    clip_tells: bool = False


def read_instruction(content: RecordDict) -> Instruction:
    """Read a training or evaluation message.

    Raises
    ------
    ValueError
        If it does not hold exactly one model.
    """
    models = list(of_kind(content, ArrayRecord).values())
    if len(models) != 1:
        raise ValueError(f"message must hold one ArrayRecord, its records are {list(content)}")
    configs = iter(of_kind(content, ConfigRecord).values())
    config: Mapping[str, object] = dict(next(configs, ConfigRecord()).items())
    mu, cap, clip = (config.get(key) for key in (PROXIMAL_MU, UPDATE_NORM_CAP, CLIP))
    return Instruction(
        arrays=models[0],
        server_round=int(str(config.get(ROUND, 0))),
        proximal_mu=None if mu is None else float(str(mu)),
        mean_reply=bool(config.get(MEAN_REPLY, False)),
        full=bool(config.get(FULL, False)),
        norm_cap=None if cap is None else float(str(cap)),
        projection=read_projection(config),
        equal_weights=bool(config.get(EQUAL_WEIGHTS, False)),
        pooled=_clients(config.get(POOLED)),
        pooled_rows=_clients(config.get(POOLED_ROWS)),
        clip=None if clip is None else float(str(clip)),
        clip_tells=bool(config.get(CLIP_TELLS, False)),
    )


def _clients(listed: object) -> tuple[int, ...]:
    return tuple(int(client) for client in listed) if isinstance(listed, list) else ()


@dataclass(frozen=True, eq=False)
class TrainReply:
    """A client's reply to a round of training.

    Attributes
    ----------
    client
        Its id.
    num_examples
        Number of its training samples.
    loss
        Mean training loss over its steps, in nats.
    losses
        Training loss before each local step, in nats, shape (steps,).
    arrays
        Its model, or the mean model of the clients of its cluster that share its node.
    projected
        What it changed, in few numbers; None where that was not asked for.
    message
        The message that all this was read from.
    update_norm
        Length of what training changed in this client's own model; None where it does not say.
    within
        Whether its update was at most as long as the clip; None where it does not say.
    """

    client: int
    num_examples: int
    loss: float
    losses: FloatArray
    arrays: ArrayRecord
    message: Message
    update_norm: float | None = None
    projected: Projected | None = None
    within: bool | None = None


def train_content(
    arrays: ArrayRecord,
    num_examples: int,
    losses: FloatArray,
    projected: Projected | None = None,
    update_norm: float | None = None,
) -> RecordDict:
    """Make a client's reply to a round of training; the norm is sent where the model is a shared mean."""
    # Losses are not in the MetricRecord: lists of differing lengths break Flower's metric aggregation.
    steps = [float(loss) for loss in losses]
    metrics = MetricRecord({NUM_EXAMPLES: int(num_examples), LOSS: sum(steps) / len(steps)})
    if update_norm is not None:
        metrics[UPDATE_NORM] = float(update_norm)
    content = RecordDict(
        {
            ARRAYS: arrays,
            METRICS: metrics,
            LOSSES: ConfigRecord({LOSSES: steps}),
        }
    )
    if projected is not None:
        content[PROJECTION] = projected_record(projected)
    return content


def within_content(content: RecordDict, within: bool) -> RecordDict:
    """Add to a client's answer whether its update was at most as long as the clip."""
    metrics = MetricRecord({**of_kind(content, MetricRecord)[METRICS], WITHIN_CLIP: int(within)})
    return RecordDict({**content, METRICS: metrics})


def pooled_content(content: RecordDict, num_clients: int) -> RecordDict:
    """Add to a client's answer that the training rows of so many clients were trained on."""
    return RecordDict({**content, POOLED: ConfigRecord({POOLED: num_clients})})


def read_pooled(message: Message) -> int:
    """Read how many clients' training rows were trained on; 1 where the answer does not say."""
    record = message.content.get(POOLED)
    found = record.get(POOLED) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, int) else 1


def read_train(
    message: Message,
    server_round: int,
    bounds: Bounds = _UNKNOWN,
    *,
    projection_size: int = 0,
    pooled: bool = False,
) -> TrainReply:
    """Read a client's reply to a round of training.

    Parameters
    ----------
    message
        The answer.
    server_round
        The round, for error messages.
    bounds
        What clients may say of themselves.
    projection_size
        Length of the projection that was asked for; 0 for none.
    pooled
        Whether the rows of all clients were to be trained on.

    Raises
    ------
    BadReply
        If it holds no model, sample count, losses or projection that was asked for, anything else, or a
        number outside its range. (Whether its model can be used is for :func:`fedclust.messages.canonical`,
        once for all clients that share it.)
    """
    client = message.metadata.src_node_id
    content = message.content
    where = f"client {client}, round {server_round}"
    arrays, metrics, listed = content.get(ARRAYS), content.get(METRICS), content.get(LOSSES)
    if (
        not isinstance(arrays, ArrayRecord)
        or not isinstance(metrics, MetricRecord)
        or not isinstance(listed, ConfigRecord)
    ):
        kinds = {ARRAYS: ArrayRecord, METRICS: MetricRecord, LOSSES: ConfigRecord}
        key = next(key for key, kind in kinds.items() if not isinstance(content.get(key), kind))
        raise BadReply(_lacks(client, server_round, key, content))
    if len(content) != 3:
        asked = [key for key, wanted in ((PROJECTION, projection_size), (POOLED, pooled)) if wanted]
        only_records(content, (ARRAYS, METRICS, LOSSES, *asked), where)
    figures = dict(metrics.items())  # a record's own look-ups are slow
    if NUM_EXAMPLES not in figures:
        raise BadReply(_lacks(client, server_round, NUM_EXAMPLES, metrics))
    check_keys(figures, _METRICS, where, METRICS)
    check_keys(listed, _LISTED, where, LOSSES)
    steps = finite_list(listed.get(LOSSES), bounds.least_loss, LARGEST_LOSS, where, LOSSES)
    if not steps:
        raise BadReply(f"{where}: losses must be a list of finite numbers, got []")
    most = bounds.most_train_in_all() if pooled else bounds.most_train(client)
    num_examples = whole(figures[NUM_EXAMPLES], 1, most, where, NUM_EXAMPLES)
    norm = figures.get(UPDATE_NORM)
    if norm is not None and (type(norm) is not float or not norm >= 0):
        raise BadReply(f"{where}: {UPDATE_NORM} must be a number >= 0, got {short(norm)}")
    within = whole(figures[WITHIN_CLIP], 0, 1, where, WITHIN_CLIP) if WITHIN_CLIP in figures else None
    losses = np.asarray(steps, dtype=np.float64)
    loss = float(losses.sum()) / len(losses)
    projected = read_projected(message, projection_size) if projection_size else None
    return TrainReply(
        client,
        num_examples,
        loss,
        losses,
        arrays,
        message,
        norm,
        projected,
        None if within is None else bool(within),
    )
