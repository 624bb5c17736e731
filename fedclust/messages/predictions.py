"""Predictions of a client's test rows, for a simulation; a deployed node keeps them, and replies how many."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedclust.messages.bounds import Bounds, array_in, only_records, record_of, whole
from fedclust.messages.keys import ARRAYS, METRICS, NUM_EXAMPLES, BadReply
from fedclust.support.array_bytes import from_numpy
from fedclust.typing import FloatArray, IntArray

__all__ = ["predictions_content", "read_predictions"]

_CHANCES, _LABELS, _ROWS = "probabilities", "labels", "rows"
_UNKNOWN = Bounds()


def predictions_content(
    rows: IntArray, labels: IntArray | None = None, chances: FloatArray | None = None
) -> RecordDict:
    """Make a client's reply: the number of rows, and in a simulation what was predicted for them.

    Parameters
    ----------
    rows
        Rows of the dataset, shape (n,).
    labels
        Their classes, shape (n,) or (n, positions); None if the node keeps them.
    chances
        Probabilities, shape (n, C) or (n, positions, C); None if the node keeps them.
    """
    content = RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: len(rows)})})
    if labels is not None and chances is not None:
        record = ArrayRecord()
        record[_ROWS], record[_LABELS] = from_numpy(rows), from_numpy(labels)
        record[_CHANCES] = from_numpy(chances.astype(np.float32))
        content[ARRAYS] = record
    return content


def read_predictions(
    message: Message, bounds: Bounds = _UNKNOWN
) -> tuple[int, tuple[IntArray, IntArray, FloatArray] | None]:
    """Read a client's reply: the number of rows; and rows, labels and probabilities, None if it keeps them.

    Raises
    ------
    BadReply
        If they do not fit together.
    """
    client = message.metadata.src_node_id
    where = f"client {client}"
    only_records(message.content, (METRICS, ARRAYS), where)
    metrics = record_of(message.content, METRICS, MetricRecord, where)
    count = whole(metrics.get(NUM_EXAMPLES), 0, bounds.most_test(client), where, NUM_EXAMPLES)
    if ARRAYS not in message.content:
        return count, None
    record = record_of(message.content, ARRAYS, ArrayRecord, where)
    rows, labels = (array_in(record, key, "iu", where) for key in (_ROWS, _LABELS))
    chances = array_in(record, _CHANCES, "f", where)
    if rows.shape != (count,) or len(labels) != count or chances.shape[:-1] != labels.shape:
        raise BadReply(
            f"{where}: predictions must be of {count} rows, got {rows.shape}, {labels.shape}, {chances.shape}"
        )
    return count, (rows, labels, chances)
