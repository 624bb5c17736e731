"""Predictions of a client's test rows, for a simulation; a deployed node keeps them, and replies how many."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedclust.messages.bounds import Bounds, array_in, only_records, record_of, whole
from fedclust.messages.keys import ARRAYS, METRICS, NUM_EXAMPLES, BadReply
from fedclust.support.array_bytes import from_numpy
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["prediction_table", "predictions_content", "read_predictions"]

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


def prediction_table(
    client: int,
    name: str | None,
    rows: IntArray,
    labels: IntArray,
    chances: FloatArray,
    class_names: Sequence[str],
) -> "pd.DataFrame":
    """Build the table of a client's predictions.

    Parameters
    ----------
    client, name
        The client's id, and its name or None.
    rows
        Rows of the dataset, shape (n,).
    labels
        Their classes, shape (n,), or (n, positions).
    chances
        Probabilities, shape (n, C), or (n, positions, C).
    class_names
        Names of the classes, shape (C,).

    Returns
    -------
    A row per row, or per row and position, with ``client``, ``name`` where there is one, ``row``,
    ``position`` where there are some, ``label`` and ``predicted`` by name, and a column ``p: <class>`` each.
    """
    import pandas as pd

    names = np.array(class_names, dtype=object)
    flat = chances.reshape(-1, chances.shape[-1])[:, : len(names)]
    positions = labels.shape[1] if labels.ndim > 1 else 1
    table: dict[str, object] = {"client": np.full(len(flat), client)}
    if name is not None:
        table["name"] = name
    table["row"] = np.repeat(rows, positions)
    if labels.ndim > 1:
        table["position"] = np.tile(np.arange(positions), len(rows))
    table["label"] = names[labels.reshape(-1)]
    table["predicted"] = names[flat.argmax(axis=1)]
    table |= {f"p: {each}": flat[:, place] for place, each in enumerate(class_names)}
    return pd.DataFrame(table)
