"""A model's confusion counts on a client's own test part."""

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from fedclust.messages.bounds import Bounds, array_in, record_of
from fedclust.messages.keys import _CONFUSION, ARRAYS, BadReply
from fedclust.support.array_bytes import from_numpy
from fedclust.typing import IntArray

__all__ = ["confusion_content", "read_confusion"]

_UNKNOWN = Bounds()


def confusion_content(counts: IntArray) -> RecordDict:
    """Make a client's reply: how often each label was predicted as each class, shape (C, C)."""
    record = ArrayRecord()
    record[_CONFUSION] = from_numpy(np.asarray(counts, dtype=np.int64))
    return RecordDict({ARRAYS: record})


def read_confusion(message: Message, bounds: Bounds = _UNKNOWN) -> IntArray:
    """Read how often each label (rows) was predicted as each class (columns), shape (C, C).

    Raises
    ------
    BadReply
        If it lacks the counts, or they are not a square matrix of counts, of at most the rows it described.
    """
    client = message.metadata.src_node_id
    where = f"client {client}"
    record = record_of(message.content, ARRAYS, ArrayRecord, where)
    counts = array_in(record, _CONFUSION, "iu", where)
    classes = bounds.num_classes or (counts.shape[0] if counts.ndim else 0)
    most = bounds.most_test(client)
    if counts.shape != (classes, classes) or (counts < 0).any():
        raise BadReply(
            f"{where}: confusion must be counts of shape ({classes}, {classes}), got shape {counts.shape}"
        )
    # One by one before their sum, which could overflow.
    if (counts > most).any() or counts.sum() > most:
        raise BadReply(f"{where}: confusion must be of at most {most} rows, it is of more")
    return counts.astype(np.int64)
