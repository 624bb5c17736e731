"""Check values that someone else may have written, settings or JSON; imports the standard library alone."""

import dataclasses
import math
import operator
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check(settings: object, **rules: Any) -> None:
    """Check attributes of an object.

    Parameters
    ----------
    settings
        The object, such as a dataclass in its ``__post_init__``.
    rules
        By attribute, what it must be, joined by " and ": ``">= 1"``, ``"in (0, 1]"``, ``"finite"``; None is
        allowed if the rule ends with " or None". Or a ``Literal``, whose values are the choices.

    Raises
    ------
    ValueError
        If an attribute breaks its rule, with the attribute, the rule and the value.
    """
    for name, rule in rules.items():
        value = getattr(settings, name)
        if choices := get_args(rule):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        elif not _keeps(value, rule):
            raise ValueError(f"{name} must be {rule}, got {value}")


def check_entries(rule: str, **arrays: Any) -> None:
    """Check every entry of some arrays, or some numbers.

    Parameters
    ----------
    rule
        As for :func:`check`.
    arrays
        The arrays or numbers, by name.

    Raises
    ------
    ValueError
        If an entry breaks the rule, with the array's name, the rule and the first such entry.
    """
    for name, values in arrays.items():
        kept = _keeps(values, rule)
        if isinstance(kept, bool):
            if not kept:
                raise ValueError(f"{name} must be {rule}, got {values}")
        elif not kept.all():
            raise ValueError(f"{name} must be {rule}, got {values[~kept].flat[0]}")


def check_shapes(**arrays: tuple[Any, str]) -> None:
    """Check that arrays have as many axes as they should, and which of them are of one length.

    Parameters
    ----------
    arrays
        By name, the array and its axes, such as ``(counts, "clients classes")``. An axis has one length in
        all arrays, above 0 unless its name ends with ``?``. A number stands for itself.

    Raises
    ------
    ValueError
        If an array has another shape, with its name, its axes and the shape.
    """
    lengths: dict[str, int] = {}
    for name, (array, axes) in arrays.items():
        shown = [str(lengths.get(axis, axis)).rstrip("?") for axis in axes.split()]
        fits = len(shown) == len(array.shape)
        for axis, length in zip(axes.split(), array.shape, strict=False):
            expected = int(axis) if axis.isdigit() else lengths.setdefault(axis, length)
            fits &= length == expected and (length > 0 or axis.endswith("?"))
        if not fits:
            raise ValueError(f"{name} must have shape ({', '.join(shown)}), got {array.shape}")


def _keeps(value: Any, rule: str) -> Any:
    """Return whether a value keeps a rule; of an array, whether each entry does."""
    if value is None:
        return rule.endswith(" or None")
    kept: Any = True
    for part in rule.removesuffix(" or None").split(" and "):
        if part == "finite":
            kept = kept & (abs(value) < math.inf)
        elif part.startswith("in "):
            low, high = (float(end) for end in part[4:-1].split(", "))
            kept = kept & (value >= low if part[3] == "[" else value > low)
            kept = kept & (value <= high if part[-1] == "]" else value < high)
        else:
            comparison, limit = part.split(" ")
            kept = kept & _COMPARISONS[comparison](value, float(limit))
    return kept


DEFAULT_FRACTION = 0.1
"""Share of a client's training rows held out for the proof (docs/PROOF.md), where nothing else is said."""


def check_fraction(fraction: float) -> None:
    """Check a share of rows to hold out.

    Raises
    ------
    ValueError
        If it is not in [0, 1).
    """
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), got {fraction!r}")


def check_held_out(held_out: float) -> None:
    """Check how many clients are to be left out.

    Raises
    ------
    ValueError
        If it is neither a share in [0, 1) nor a whole number >= 0.
    """
    number = isinstance(held_out, int | float) and not isinstance(held_out, bool)
    if not number or not held_out >= 0 or (held_out >= 1 and held_out != int(held_out)):
        raise ValueError(
            f"holdout_clients must be a share in [0, 1) or a number of clients, got {held_out!r}"
        )


def check_number_or_share(name: str, value: int | float | None) -> None:
    """Check a setting that is a number of clients, a share of them, or None for all.

    Raises
    ------
    ValueError
        If it is a whole number below 1, another number outside (0, 1], or no number.
    """
    if value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and value >= 1) and not (isinstance(value, float) and 0 < value <= 1):
        raise ValueError(
            f"{name} must be a number of clients >= 1, a share of them in (0, 1], or null, got {value!r}"
        )


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
