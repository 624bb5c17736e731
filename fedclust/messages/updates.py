"""The change by training on clients that do not take part in a round, without their models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedclust.messages.bounds import (
    LARGEST_NUMBER,
    Bounds,
    array_in,
    check_keys,
    only_records,
    record_of,
    whole,
)
from fedclust.messages.keys import ARRAYS, CONFIG, METRICS, NUM_EXAMPLES, PROJECTION, ROUND, BadReply
from fedclust.messages.kinds import of_kind
from fedclust.messages.projecting import Projection
from fedclust.messages.projection import Projected, projected_record, projection_config, read_projected
from fedclust.typing import FloatArray

__all__ = ["Update", "read_update", "read_update_names", "update_content", "update_question"]

_NAMES = "names"
_UNKNOWN = Bounds()


@dataclass(frozen=True, eq=False)
class Update:
    """The change that training made to a client's model.

    Attributes
    ----------
    client
        Its id.
    num_examples
        Number of its training samples.
    projected
        Projection of the change of all trained parameters; None if not requested.
    changes
        The change, model − start, of the requested arrays, by name.
    """

    client: int
    num_examples: int
    projected: Projected | None
    changes: Mapping[str, FloatArray]

    @property
    def norm(self) -> float:
        """Length of the longest of what was sent: the projected change, as it says and is, or the arrays."""
        squares = sum(float(np.square(change).sum()) for change in self.changes.values())
        longest = math.sqrt(squares)
        if self.projected is None:
            return longest
        return max(longest, self.projected.norm, float(np.linalg.norm(self.projected.values)))


def update_question(
    model: ArrayRecord, server_round: int, projection: Projection | None, names: Sequence[str]
) -> RecordDict:
    """Make the question for the change by training.

    Parameters
    ----------
    model
        The model to start from.
    server_round
        The round whose batches and learning rate are used.
    projection
        Projection of the change of all trained parameters, or None.
    names
        Arrays whose change is sent without projection.
    """
    config = ConfigRecord({ROUND: server_round, _NAMES: list(names), **projection_config(projection)})
    return RecordDict({ARRAYS: model, CONFIG: config})


def read_update_names(content: RecordDict) -> tuple[str, ...]:
    """Read the names of arrays in :func:`update_question`; the rest of it is an Instruction.

    Raises
    ------
    ValueError
        If the model has no array of that name.
    """
    names = tuple(map(str, of_kind(content, ConfigRecord)[CONFIG].get(_NAMES, [])))  # type: ignore[arg-type]
    arrays = of_kind(content, ArrayRecord)[ARRAYS]
    if unknown := set(names) - set(arrays):
        raise ValueError(f"names must be arrays of the model, {list(arrays)}, got {sorted(unknown)}")
    return names


def update_content(num_examples: int, projected: Projected | None, changes: ArrayRecord) -> RecordDict:
    """Make a client's reply."""
    content = RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: int(num_examples)}), ARRAYS: changes})
    if projected is not None:
        content[PROJECTION] = projected_record(projected)
    return content


def read_update(
    message: Message,
    template: ArrayRecord,
    projection: Projection | None,
    names: Sequence[str],
    bounds: Bounds = _UNKNOWN,
) -> Update:
    """Read a client's reply to :func:`update_question`.

    Parameters
    ----------
    message
        The reply.
    template
        The model it started from.
    projection, names
        As for :func:`update_question`.
    bounds
        What clients may say of themselves.

    Raises
    ------
    BadReply
        If a requested value is missing, not finite in float32, or of another shape, or there is anything
        else.
    """
    client, content = message.metadata.src_node_id, message.content
    where = f"client {client}"
    only_records(content, (METRICS, ARRAYS, *((PROJECTION,) if projection else ())), where)
    metrics = record_of(content, METRICS, MetricRecord, where)
    check_keys(metrics, (NUM_EXAMPLES,), where, METRICS)
    number = whole(metrics.get(NUM_EXAMPLES), 1, bounds.most_train(client), where, NUM_EXAMPLES)
    found = record_of(content, ARRAYS, ArrayRecord, where)
    check_keys(found, names, where, ARRAYS)
    changes = {name: _change(found, name, tuple(template[name].shape), where) for name in names}
    projected = None if projection is None else read_projected(message, projection.size)
    return Update(client, number, projected, changes)


def _change(found: ArrayRecord, name: str, shape: tuple[int, ...], where: str) -> FloatArray:
    values = array_in(found, name, "f", where)
    change = values.astype(np.float64)
    # What overflows in float32 would overflow in the squares of float64.
    if change.shape != shape or not (np.abs(change) <= LARGEST_NUMBER).all():
        raise BadReply(
            f"{where}: change of {name!r} must be finite and of shape {shape}, got shape {change.shape}"
        )
    return change
