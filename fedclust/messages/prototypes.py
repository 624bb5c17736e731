"""A client's classes in a foundation model's embedding."""

from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedclust.messages.bounds import Bounds, array_in, record_of, short
from fedclust.messages.keys import (
    _COUNTS,
    _INPUT,
    _MAX_NORM,
    _MIN_EXAMPLES,
    _POOLED,
    _PROTOTYPES,
    _SCATTER,
    _VOCABULARY,
    ARRAYS,
    CONFIG,
    BadReply,
)
from fedclust.messages.kinds import of_kind
from fedclust.support.array_bytes import from_numpy
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "PrototypesQuestion",
    "prototypes_content",
    "prototypes_question",
    "read_prototypes",
    "read_prototypes_question",
]

_UNKNOWN = Bounds()


@dataclass(frozen=True)
class PrototypesQuestion:
    """What clients are to average.

    Attributes
    ----------
    input
        What makes the embeddings: ``"encoder"``, the node's; ``"untrained"``, a network that every node draws
        from the same seed; or ``"pixels"``.
    pooled
        Whether all classes count as one.
    vocabulary_size
        Number of tokens, for an untrained network on texts; None for other inputs.
    min_examples
        Examples that a class must have for its prototype to be sent.
    max_norm
        Length to which each embedding is clipped before the mean; None for none.
    """

    input: str = "encoder"
    pooled: bool = False
    vocabulary_size: int | None = None
    min_examples: int = 1
    max_norm: float | None = None


def prototypes_question(question: PrototypesQuestion) -> RecordDict:
    """Make the question for a client's mean embeddings."""
    config = ConfigRecord({_INPUT: question.input, _POOLED: question.pooled})
    if question.vocabulary_size is not None:
        config[_VOCABULARY] = question.vocabulary_size
    if question.min_examples > 1:
        config[_MIN_EXAMPLES] = question.min_examples
    if question.max_norm is not None:
        config[_MAX_NORM] = question.max_norm
    return RecordDict({CONFIG: config})


def read_prototypes_question(content: RecordDict) -> PrototypesQuestion:
    """Read what :func:`prototypes_question` made; an empty content asks for the defaults."""
    config = of_kind(content, ConfigRecord).get(CONFIG, ConfigRecord())
    size, norm = config.get(_VOCABULARY), config.get(_MAX_NORM)
    return PrototypesQuestion(
        str(config.get(_INPUT, "encoder")),
        bool(config.get(_POOLED, False)),
        None if size is None else int(size),  # type: ignore[arg-type]
        int(config.get(_MIN_EXAMPLES, 1)),  # type: ignore[arg-type]
        None if norm is None else float(norm),  # type: ignore[arg-type]
    )


def prototypes_content(prototypes: FloatArray, counts: IntArray, scatter: FloatArray) -> RecordDict:
    """Make a client's reply about its classes in a foundation model's embedding.

    Parameters
    ----------
    prototypes
        Mean embedding per class, shape (C, d); where the question pools the classes, C is 1.
    counts
        Training examples of each class, shape (C,).
    scatter
        Total variance of a class's embeddings around their mean, shape (C,); 0 for fewer than two examples.
    """
    record = ArrayRecord()
    record[_PROTOTYPES] = from_numpy(np.asarray(prototypes, dtype=np.float32))
    record[_COUNTS] = from_numpy(np.asarray(counts, dtype=np.int64))
    record[_SCATTER] = from_numpy(np.asarray(scatter, dtype=np.float64))
    return RecordDict({ARRAYS: record})


def read_prototypes(message: Message, bounds: Bounds = _UNKNOWN) -> tuple[FloatArray, IntArray, FloatArray]:
    """Read a client's prototypes, shape (C, d), its examples of each class and their scatter, shape (C,).

    Raises
    ------
    BadReply
        If one is missing or unreadable, shapes disagree, an entry is not finite, a count or scatter is below
        0, or there are no examples at all, or more than the client described.
    """
    client = message.metadata.src_node_id
    where = f"client {client}"
    record = record_of(message.content, ARRAYS, ArrayRecord, where)
    if not {_PROTOTYPES, _COUNTS, _SCATTER} <= record.keys():
        raise BadReply(f"{where}: no prototypes in reply, keys are {short(list(record))}")
    raw, counts, spread = (
        array_in(record, key, kinds, where)
        for key, kinds in ((_PROTOTYPES, "f"), (_COUNTS, "iu"), (_SCATTER, "f"))
    )
    if raw.ndim != 2 or not counts.shape == spread.shape == raw.shape[:1]:
        raise BadReply(
            f"{where}: prototypes must be (classes, width), counts and scatter (classes,), "
            f"got {raw.shape}, {counts.shape} and {spread.shape}"
        )
    if bounds.num_classes not in (None, len(counts)):
        raise BadReply(f"{where}: prototypes must be of {bounds.num_classes} classes, got {len(counts)}")
    with np.errstate(over="ignore"):
        prototypes, scatter = raw.astype(np.float32), spread.astype(np.float64)
    if not (np.isfinite(prototypes).all() and np.isfinite(scatter).all()):
        raise BadReply(f"{where}: prototypes and scatter must be finite")
    if (counts < 0).any() or (scatter < 0).any():
        raise BadReply(f"{where}: counts and scatter must be >= 0, got {counts.min()} and {scatter.min()}")
    most = bounds.most_train(client)
    # One by one before their sum, which could overflow.
    if (counts > most).any() or not 0 < int(counts.sum()) <= most:
        raise BadReply(f"{where}: counts must add up to a number in [1, {most}], they do not")
    return prototypes, counts.astype(np.int64), scatter
