"""Convert models to and from Flower's records."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedclust.messages.codec import as_record, short
from fedclust.support.array_bytes import from_numpy, same_layout, to_numpy
from fedclust.typing import FloatArray, State


def to_state(arrays: ArrayRecord) -> State:
    """Convert a record to tensors, in the record's order."""
    # A copy: other clients' messages may share the bytes, and PyTorch has no read-only tensors.
    return {name: torch.from_numpy(to_numpy(array).copy()) for name, array in arrays.items()}


def from_state(state: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Convert tensors to a record, in the mapping's order."""
    return as_record({name: from_numpy(tensor.detach().cpu().numpy()) for name, tensor in state.items()})


def from_stacked(state: Mapping[str, torch.Tensor], rows: Sequence[int]) -> list[ArrayRecord]:
    """Convert rows of stacked tensors, shape (n, *shape) by name, to a record each."""
    if not rows:
        return []
    return _rows_of({name: tensor.detach().cpu().numpy() for name, tensor in state.items()}, rows)


def _rows_of(stacked: Mapping[str, NDArray], rows: Iterable[int]) -> list[ArrayRecord]:
    return [as_record({name: from_numpy(values[row]) for name, values in stacked.items()}) for row in rows]


def like(arrays: ArrayRecord, template: ArrayRecord) -> ArrayRecord:
    """Restore the template's order and types; Flower's weighted means turn integer buffers into floats.

    Returns
    -------
    `arrays` itself if nothing needs to change.

    Raises
    ------
    ValueError
        If names or shapes differ from the template's.
    """
    if arrays.keys() != template.keys():
        raise ValueError(f"arrays must be named {list(template)}, got {list(arrays)}")
    typed: dict[str, Array] = {}
    changed = list(arrays) != list(template)
    for name, wanted in template.items():
        array = arrays[name]
        shape, sent = tuple(wanted.shape), tuple(array.shape)
        if sent != shape:
            raise ValueError(f"array {name!r} must have shape {shape}, got {sent}")
        if array.dtype != wanted.dtype:
            array, changed = from_numpy(_in_type(to_numpy(array), wanted.dtype)), True
        typed[name] = array
    return as_record(typed) if changed else arrays


def to_vector(model: ArrayRecord, names: Sequence[str]) -> FloatArray:
    """Join the named arrays of a model, in float64, in the order of `names`, shape (entries,)."""
    return np.concatenate([to_numpy(model[name]).astype(np.float64).ravel() for name in names])


def with_vector(
    model: ArrayRecord, names: Sequence[str], vector: FloatArray, *, cast: bool = False
) -> ArrayRecord:
    """Replace the named arrays of a model by the values that :func:`to_vector` joins.

    Parameters
    ----------
    model
        The model; its other arrays stay.
    names
        The arrays, in the vector's order.
    vector
        Their values, shape (entries,).
    cast
        Whether the arrays keep the model's types; otherwise they get the vector's.
    """
    arrays, first = dict(model.items()), 0
    for name in names:
        before = to_numpy(model[name])
        last = first + math.prod(before.shape)
        values = vector[first:last].reshape(before.shape)
        arrays[name], first = from_numpy(values.astype(before.dtype) if cast else values), last
    return as_record(arrays)


def canonical(arrays: ArrayRecord, template: ArrayRecord, *, means: bool = False) -> ArrayRecord:
    """Check a reply's model, and give it the template's names, order and shapes.

    Parameters
    ----------
    arrays
        The model that a client sent. Its arrays' bytes count, not what they declare.
    template
        The model that the client was sent.
    means
        Whether float64 is kept, in which nodes send their means; otherwise all types are the template's.

    Returns
    -------
    A new record whose values are all finite in the template's types.

    Raises
    ------
    ValueError
        If names or shapes differ from the template's, or a value is not a number or not finite in the
        template's type.
    """
    if arrays.keys() != template.keys():
        raise ValueError(f"arrays must be named {short(list(template))}, got {short(list(arrays))}")
    made: dict[str, Array] = {}
    as_sent = list(arrays) == list(template)
    for name, wanted in template.items():
        array = arrays[name]
        if same_layout(array, wanted):
            values = to_numpy(array)
            if values.dtype.kind in "fc" and not np.isfinite(values).all():
                raise ValueError(f"model must be finite, array {name!r} is not")
            made[name] = array
            continue
        try:
            values = to_numpy(array)
        except ValueError as error:
            raise ValueError(f"array {name!r} {error}") from error
        made[name], as_sent = from_numpy(_cast(name, values, wanted, means)), False
    return arrays.copy() if as_sent else as_record(made)


def _cast(name: str, values: NDArray, wanted: Array, means: bool) -> NDArray:
    """Check and cast values whose type or shape differs from the template's."""
    if values.shape != tuple(wanted.shape):
        raise ValueError(f"array {name!r} must have shape {tuple(wanted.shape)}, got {values.shape}")
    dtype = np.dtype(wanted.dtype)
    if values.dtype.kind not in "fiu" or dtype.kind not in "fiu":
        if values.dtype == dtype and dtype.kind in "bc" and np.isfinite(values).all():
            return values
        raise ValueError(f"array {name!r} must hold numbers as {dtype} does, got {values.dtype}")
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        rounded = np.rint(values) if values.dtype.kind == "f" else values
        if not np.isfinite(rounded).all() or (rounded < bounds.min).any() or (rounded > bounds.max).any():
            raise ValueError(f"array {name!r} must hold numbers in the range of {dtype}, some are not")
        return rounded.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    if not np.isfinite(cast).all():
        raise ValueError(f"model must be finite, array {name!r} is not in {dtype}")
    return values.astype(np.float64) if means and values.dtype == np.float64 else cast


def unstacked(stacked: Mapping[str, NDArray], template: ArrayRecord) -> list[ArrayRecord]:
    """Convert stacked models to a record each, in the template's order and types, like :func:`like`.

    Parameters
    ----------
    stacked
        Arrays of n models, shape (n, *shape) by name.
    template
        A model with these names and shapes.
    """
    typed = {name: _in_type(stacked[name], wanted.dtype) for name, wanted in template.items()}
    return _rows_of(typed, range(len(next(iter(typed.values())))))


def _in_type(values: NDArray, dtype: str) -> NDArray:
    if values.dtype == dtype:
        return values
    if np.issubdtype(np.dtype(dtype), np.integer):
        values = np.rint(values)
    elif values.dtype == np.float64:
        values = _round_to_40_bits(values)
    return np.asarray(values, dtype=dtype)


def _round_to_40_bits(values: FloatArray) -> FloatArray:
    """Round float64 to 40 bits.

    Means of float32 numbers often lie exactly between two of them. There, round-off errors, which depend on
    how clients are spread over nodes, would decide the result. Rounding to 40 bits first restores the tie,
    which is then always rounded the same way.
    """
    scaled = values * (2.0**13 + 1)  # Veltkamp's splitting: keeps the upper 53 - 13 bits
    low = np.asarray(scaled - values)  # NumPy makes a number of an array without axes
    return np.subtract(scaled, low, out=low)


def is_finite(arrays: ArrayRecord) -> bool:
    """Check whether every entry of every array is finite."""
    return all(bool(np.isfinite(to_numpy(array)).all()) for array in arrays.values())


def join_models(models: Sequence[ArrayRecord]) -> ArrayRecord:
    """Join the models of all clusters in one record, under ``<cluster>/<parameter>``."""
    return as_record(
        {f"{cluster}/{name}": array for cluster, model in enumerate(models) for name, array in model.items()}
    )


def split_models(joined: ArrayRecord) -> dict[int, ArrayRecord]:
    """Separate the models joined by :func:`join_models`, by cluster."""
    models: dict[int, ArrayRecord] = {}
    for key, array in joined.items():
        cluster, _, name = key.partition("/")
        models.setdefault(int(cluster), ArrayRecord())[name] = array
    return models
