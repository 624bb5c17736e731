"""The subspaces that a client's classes span."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedclust.messages.bounds import Bounds, array_in, record_of
from fedclust.messages.keys import _INPUT, _SUBSPACES, _VECTORS, ARRAYS, CONFIG, BadReply
from fedclust.messages.kinds import of_kind
from fedclust.support.array_bytes import from_numpy
from fedclust.typing import FloatArray

__all__ = ["read_subspaces", "read_subspaces_question", "subspaces_content", "subspaces_question"]

_UNKNOWN = Bounds()
_ROUND_OFF = 1e-3  # of float32, in sums over a whole example


def subspaces_question(input: str, vectors: int) -> RecordDict:
    """Make the question which subspaces a client's classes span.

    Parameters
    ----------
    input
        What a column of the data matrix is: ``"pixels"`` or ``"encoder"``.
    vectors
        p, singular vectors per class, >= 1.
    """
    return RecordDict({CONFIG: ConfigRecord({_INPUT: input, _VECTORS: int(vectors)})})


def read_subspaces_question(content: RecordDict) -> tuple[str, int]:
    """Read input and number of vectors of :func:`subspaces_question`.

    Raises
    ------
    ValueError
        If one is missing or there is no vector.
    """
    config = of_kind(content, ConfigRecord).get(CONFIG, ConfigRecord())
    vectors = config.get(_VECTORS)
    if _INPUT not in config or not isinstance(vectors, int) or vectors < 1:
        raise ValueError(f"message must hold an input and vectors >= 1, got {dict(config)}")
    return str(config[_INPUT]), vectors


def subspaces_content(bases: FloatArray) -> RecordDict:
    """Make a client's answer.

    Parameters
    ----------
    bases
        Orthonormal columns of each class, shape (C, d, p); 0 where the class has fewer than p.
    """
    record = ArrayRecord()
    record[_SUBSPACES] = from_numpy(np.asarray(bases, dtype=np.float32))
    return RecordDict({ARRAYS: record})


def read_subspaces(message: Message, vectors: int, bounds: Bounds = _UNKNOWN) -> FloatArray:
    """Read a client's subspaces, shape (C, d, p).

    Raises
    ------
    BadReply
        If they are missing or unreadable, of another shape, or columns are neither orthonormal nor 0.
    """
    where = f"client {message.metadata.src_node_id}"
    record = record_of(message.content, ARRAYS, ArrayRecord, where)
    raw = array_in(record, _SUBSPACES, "f", where)
    if raw.ndim != 3 or raw.shape[2] != vectors:
        raise BadReply(f"{where}: subspaces must have shape (classes, width, {vectors}), got {raw.shape}")
    if bounds.num_classes not in (None, len(raw)):
        raise BadReply(f"{where}: subspaces must be of {bounds.num_classes} classes, got {len(raw)}")
    if not (np.abs(raw) <= 1 + _ROUND_OFF).all():
        raise BadReply(f"{where}: subspaces must be finite, with entries in [-1, 1]")
    bases = raw.astype(np.float32)
    products = np.einsum("cdp,cdq->cpq", bases, bases)
    lengths = np.diagonal(products, axis1=1, axis2=2)
    wanted = np.where(lengths < _ROUND_OFF, 0.0, 1.0)[:, None, :] * np.eye(vectors)
    if not (np.abs(products - wanted) <= _ROUND_OFF).all():
        raise BadReply(f"{where}: the vectors of a subspace must be orthonormal, or 0")
    return bases
