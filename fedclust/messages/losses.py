"""The losses of several models on a client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedclust.messages.bounds import (
    LARGEST_NUMBER,
    Bounds,
    check_keys,
    finite_list,
    only_records,
    record_of,
    short,
)
from fedclust.messages.keys import _WINS, LOSSES, BadReply
from fedclust.messages.kinds import of_kind
from fedclust.typing import FloatArray, IntArray

__all__ = ["losses_content", "losses_question", "read_losses", "read_losses_question", "read_wins"]

_UNKNOWN = Bounds()


def losses_question(models: Sequence[ArrayRecord]) -> RecordDict:
    """Make the question for the loss of each of several models on a client's training part."""
    return RecordDict({str(number): model for number, model in enumerate(models)})


def read_losses_question(content: RecordDict) -> list[ArrayRecord]:
    """Read the models of :func:`losses_question`, in its order.

    Raises
    ------
    ValueError
        If there is no model, or their numbers have gaps.
    """
    models = of_kind(content, ArrayRecord)
    if not models or set(models) != {str(number) for number in range(len(models))}:
        raise ValueError(f"message must hold models 0, 1, …, its records are {list(content)}")
    return [models[str(number)] for number in range(len(models))]


def losses_content(losses: Sequence[float], wins: Sequence[int] | None = None) -> RecordDict:
    """Make a client's answer.

    Parameters
    ----------
    losses
        The mean loss of each model, in nats, in the question's order.
    wins
        For each model, the number of training rows on which its loss is the smallest.
    """
    answer = ConfigRecord({LOSSES: [float(loss) for loss in losses]})
    if wins is not None:
        answer[_WINS] = [int(rows) for rows in wins]
    return RecordDict({LOSSES: answer})


def read_losses(message: Message, num_models: int, bounds: Bounds = _UNKNOWN) -> FloatArray:
    """Read a client's mean loss of each model, in nats, shape (models,).

    Raises
    ------
    BadReply
        If there is not one finite loss per model, or one is outside its range.
    """
    where = f"client {message.metadata.src_node_id}"
    losses = _listed(message, LOSSES, where)
    if len(losses) != num_models:
        raise BadReply(f"{where}: losses must be {num_models} finite numbers, got {short(losses)}")
    values = finite_list(losses, bounds.least_loss, LARGEST_NUMBER, where, LOSSES)
    return np.asarray(values, dtype=np.float64)


def read_wins(message: Message, num_models: int, bounds: Bounds = _UNKNOWN) -> IntArray:
    """Read on how many training rows of a client each model's loss is the smallest, shape (models,).

    Raises
    ------
    BadReply
        If there is not one whole number >= 0 per model, all are 0, or they are of more rows than it has.
    """
    client = message.metadata.src_node_id
    where = f"client {client}"
    most = bounds.most_train(client)
    rows = _listed(message, _WINS, where)
    counts = len(rows) == num_models and all(type(each) is int and 0 <= each <= most for each in rows)
    if not counts or not 0 < sum(rows) <= most:
        raise BadReply(
            f"{where}: wins must be {num_models} numbers of rows, not all 0, {most} in all at most, "
            f"got {short(rows)}"
        )
    return np.asarray(rows, dtype=np.int64)


def _listed(message: Message, key: str, where: str) -> list[Any]:
    """Read a list; empty if there is none."""
    answer = record_of(message.content, LOSSES, ConfigRecord, where)
    only_records(message.content, (LOSSES,), where)
    check_keys(answer, (LOSSES, _WINS), where, LOSSES)
    found = answer.get(key)
    return list(found) if isinstance(found, list | tuple) else []
