"""Write an encoder of inputs as JSON values, and read it back, whoever wrote the file."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fedclust.data.input_encoders import (
    ArrayEncoder,
    CategoryColumn,
    ImageEncoder,
    InputEncoder,
    NumberColumn,
    TableEncoder,
    TextEncoder,
)

__all__ = ["encoder_from", "to_values"]

_ENCODERS: Mapping[str, type[InputEncoder]] = {
    each.kind: each for each in (TableEncoder, TextEncoder, ImageEncoder, ArrayEncoder)
}


def to_values(encoder: InputEncoder) -> dict[str, Any]:
    """Return an encoder's values, with its ``kind``, for JSON."""
    return {"kind": encoder.kind, **dataclasses.asdict(encoder)}


def encoder_from(values: Any) -> InputEncoder:
    """Make an encoder of the values that :func:`to_values` returned.

    Raises
    ------
    ValueError
        If they are not those of an encoder.
    """
    if not isinstance(values, Mapping) or values.get("kind") not in _ENCODERS:
        raise ValueError(f"encoder must be one of {', '.join(_ENCODERS)}, got {str(values)[:80]}")
    made = _ENCODERS[values["kind"]]
    names = {field.name for field in dataclasses.fields(made)}
    given = {name: value for name, value in values.items() if name != "kind"}
    if given.keys() != names:
        raise ValueError(
            f"encoder {made.kind} must have the values {', '.join(sorted(names))}, "
            f"got {', '.join(sorted(map(str, given)))}"
        )
    try:
        return _READ[made](given)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"encoder {made.kind} cannot be read: {error}") from error


def _read_table(values: Mapping[str, Any]) -> TableEncoder:
    numbers = [
        NumberColumn(_text(each["name"]), *(_finite(each[key]) for key in ("fill", "mean", "scale")))
        for each in values["numbers"]
    ]
    categories = [
        CategoryColumn(
            _text(each["name"]),
            tuple(map(_text, each["values"])),
            tuple(_choice(known, (True, False)) for known in each["known"]),
        )
        for each in values["categories"]
    ]
    for column in categories:
        if len(column.values) != len(column.known):
            raise ValueError(f"column {column.name} must have a known for each of its values")
    for number in numbers:
        if number.scale == 0:
            raise ValueError(f"column {number.name} must have a scale other than 0")
    return TableEncoder(tuple(numbers), tuple(categories), _choice(values["encoding"], ("onehot", "index")))


def _read_text(values: Mapping[str, Any]) -> TextEncoder:
    (length,) = _sizes([values["length"]])
    return TextEncoder(tuple(map(_text, values["columns"])), length, _text(values["tokenizer"]))


def _read_images(values: Mapping[str, Any]) -> ImageEncoder:
    shape = _sizes(values["shape"])
    mean, std = (tuple(map(_finite, values[key])) for key in ("mean", "std"))
    if len(shape) != 3 or not len(mean) == len(std) == shape[0] or 0 in std:
        raise ValueError(f"shape must be (channels, height, width), with a mean and std each, got {shape}")
    return ImageEncoder(shape, _choice(values["resize"], ("none", "stretch", "crop")), mean, std)


def _read_arrays(values: Mapping[str, Any]) -> ArrayEncoder:
    return ArrayEncoder(_sizes(values["shape"]), _choice(values["dtype"], ("float32", "int64")))


_READ: Mapping[type[InputEncoder], Any] = {
    TableEncoder: _read_table,
    TextEncoder: _read_text,
    ImageEncoder: _read_images,
    ArrayEncoder: _read_arrays,
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, got {value!r}")
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {value!r}")
    return float(value)


def _sizes(values: Any) -> tuple[int, ...]:
    if not values or not all(type(value) is int and value >= 1 for value in values):
        raise ValueError(f"must be sizes >= 1, got {values!r}")
    return tuple(values)


def _choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices or isinstance(value, int) != isinstance(choices[0], int):
        raise ValueError(f"must be one of {', '.join(map(str, choices))}, got {value!r}")
    return value
