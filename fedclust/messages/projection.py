"""A projection of the change by training, sent with or instead of the model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Message

from fedclust.messages.bounds import LARGEST_NUMBER, check_keys, record_of, short
from fedclust.messages.keys import _NORM, PROJECTION, PROJECTION_SEED, PROJECTION_SIZE, BadReply
from fedclust.messages.projecting import Projection
from fedclust.typing import FloatArray

__all__ = ["Projected", "projected_record", "projection_config", "read_projected", "read_projection"]

_TYPE = np.dtype("<f4")


def projection_config(projection: Projection | None) -> dict[str, int]:
    """List the entries of an instruction that ask for a projection."""
    if projection is None:
        return {}
    return {PROJECTION_SIZE: projection.size, PROJECTION_SEED: projection.seed}


def read_projection(config: Mapping[str, object]) -> Projection | None:
    """Read the projection that an instruction asks for; None for none."""
    if PROJECTION_SIZE not in config:
        return None
    return Projection(int(str(config[PROJECTION_SIZE])), int(str(config.get(PROJECTION_SEED, 0))))


@dataclass(frozen=True, eq=False)
class Projected:
    """A projection of the change that training made to a client's model.

    Attributes
    ----------
    values
        The projection of the change of all trained parameters, shape (size,).
    norm
        Length of that change before the projection, ‖Δ‖₂.
    """

    values: FloatArray
    norm: float


def projected_record(projected: Projected) -> ConfigRecord:
    """Make the record that holds a projection, as float32."""
    # Bytes, since Flower checks each number of a list; no ArrayRecord, since its aggregators refuse a second.
    values = np.asarray(projected.values, dtype=_TYPE).tobytes()
    return ConfigRecord({PROJECTION: values, _NORM: float(projected.norm)})


def read_projected(message: Message, size: int) -> Projected:
    """Read a client's projection.

    Raises
    ------
    BadReply
        If it is not `size` finite numbers and a finite norm.
    """
    where = f"client {message.metadata.src_node_id}"
    record = record_of(message.content, PROJECTION, ConfigRecord, where)
    check_keys(record, (PROJECTION, _NORM), where, PROJECTION)
    packed, norm = record.get(PROJECTION), record.get(_NORM)
    read = packed if isinstance(packed, bytes) and len(packed) % _TYPE.itemsize == 0 else b""
    values = np.frombuffer(read, dtype=_TYPE).astype(np.float64)
    if values.shape != (size,) or not np.isfinite(values).all():
        raise BadReply(f"{where}: projection must be {size} finite numbers, got {len(values)} numbers")
    if type(norm) is not float or not 0 <= norm <= LARGEST_NUMBER:
        raise BadReply(f"{where}: norm of the change must be a finite number >= 0, got {short(norm)}")
    return Projected(values, norm)
