"""Make dataclasses from plain values that someone else may have written, such as JSON."""

import dataclasses
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["check_choice", "few", "read_as"]


def read_as(kind: Any, values: Any) -> Any:
    """Make a value of a type from plain values; nothing else is accepted, and nothing is converted silently.

    Parameters
    ----------
    kind
        ``str``, ``bool``, ``int``, ``float`` (finite), None, a ``Literal``, ``tuple[…, ...]``,
        ``Mapping[str, …]``, ``Any``, a union of these, or a dataclass of these, which may check more itself.
    values
        What ``json.loads`` returns.

    Raises
    ------
    ValueError
        If they are something else.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        needed = {name for name, field in fields.items() if _is_required(field)}
        if not isinstance(values, Mapping) or not needed <= values.keys() <= fields.keys():
            got = ", ".join(sorted(map(str, values))) if isinstance(values, Mapping) else _short(values)
            raise ValueError(f"must have the values {', '.join(sorted(fields))}, got {got}")
        hints = get_type_hints(kind)
        return kind(**{name: _read(name, hints[name], value) for name, value in values.items()})
    if origin in (Union, types.UnionType):
        if type(None) in arguments and values is None:
            return None
        for each in arguments[:-1]:
            try:
                return read_as(each, values)
            except ValueError:
                continue
        return read_as(arguments[-1], values)
    if origin is Literal:
        if values not in arguments:
            raise ValueError(f"must be one of {', '.join(map(str, arguments))}, got {_short(values)}")
        return values
    if origin is tuple and isinstance(values, list | tuple):
        return tuple(read_as(arguments[0], each) for each in values)
    if origin is Mapping and isinstance(values, dict):
        return {read_as(str, key): read_as(arguments[1], each) for key, each in values.items()}
    if kind is float and type(values) in (int, float) and math.isfinite(values):
        return float(values)
    if kind is Any or (kind in (str, bool, int) and type(values) is kind):
        return values
    raise ValueError(f"must be {_NAMES.get(origin or kind, kind)}, got {_short(values)}")


_NAMES = {
    str: "a text",
    bool: "one of True, False",
    int: "a whole number",
    float: "a finite number",
    tuple: "a list",
    Mapping: "a mapping",
}


def _read(name: str, kind: Any, values: Any) -> Any:
    try:
        return read_as(kind, values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ValueError if a setting is none of its choices; the message lists them."""
    if value not in (known := list(choices)):
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}")


def few(values: Iterable[Any], most: int = 5) -> str:
    """List the first of some values, and how many more there are."""
    shown = list(map(str, values))
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def _short(value: Any) -> str:
    return repr(value)[:80]
