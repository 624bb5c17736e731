"""JSON that every parser accepts: no NaN, no infinity, arrays as lists."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def dumps(value: object) -> str:
    """Write a value as one line of strict JSON.

    Parameters
    ----------
    value
        Mappings, sequences, strings, numbers, None, paths, and NumPy or torch scalars and arrays.
        NaN and infinities become null.

    Returns
    -------
    Text without a line break.

    Raises
    ------
    TypeError
        If part of the value has another type.
    """
    try:  # one pass in C is enough for nearly every record; the rest needs a slower walk in Python
        return json.dumps(value, allow_nan=False, default=_convert)
    except (ValueError, TypeError):
        return json.dumps(plain(value), allow_nan=False)


def dumps_by_key(mapping: Mapping[str, object]) -> str:
    """Write a mapping as strict JSON with one line per key, so that long lists stay compact."""
    lines = [f"  {json.dumps(str(key))}: {dumps(value)}" for key, value in mapping.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(value: object) -> Any:
    """Convert a value to dicts with string keys, lists, strings, finite numbers, booleans and None.

    Raises
    ------
    TypeError
        If part of the value cannot be converted.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(_convert(value))


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old text or the new text, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _convert(value: object) -> Any:
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return value.tolist()
    if isinstance(value, Mapping):  # such as an OmegaConf node
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__iter__") and hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return list(value)
    raise TypeError(f"value must be something JSON can hold, got {type(value).__name__} {value!r}")
