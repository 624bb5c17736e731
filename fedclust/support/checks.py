"""Check values from other sources, such as settings or JSON, and write values as strict JSON.

JSON that every parser accepts has no NaN, no infinity, and lists for arrays. This module imports no
third-party library.
"""

import dataclasses
import difflib
import functools
import inspect
import json
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
UNIONS = (types.UnionType, Union)

_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_WORDS = {"None": None, "True": True, "False": False}


def check(settings: object, prefix: str = "", /, **rules: Any) -> None:
    """Check attributes of an object.

    Parameters
    ----------
    settings
        The object, such as a dataclass in its ``__post_init__``.
    prefix
        Text before the attributes' names in messages, such as ``"dataset."``.
    rules
        Rule of each attribute, see :func:`check_value`.

    Raises
    ------
    ValueError
        If an attribute breaks its rule, with the attribute, the rule and the value.
    """
    for name, rule in rules.items():
        check_value(f"{prefix}{name}", getattr(settings, name), rule)


class Checked:
    """A base of dataclasses whose fields have rules, see :func:`check_hint`.

    An example is ``rate: Annotated[float, "> 0"] = 0.1``; a value that breaks its rule raises ValueError. A
    class with other rules extends ``__post_init__``. Messages begin with `node`, such as ``"dataset."``.
    """

    node = ""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, rule, optional in _rules(cls):
            value = getattr(self, name)
            if value is not None or not optional:
                check_value(f"{self.node}{name}", value, rule)


@cache
def _rules(cls: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return the name and rule of each field that has one, and whether it may be None."""
    hints = get_type_hints(cls, include_extras=True).items()
    return tuple([(name, *found) for name, hint in hints if (found := rule_of(hint)) is not None])


def checked(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Check the arguments of a constructor or function that have rules, see :func:`check_hint`.

    Raises
    ------
    ValueError
        When it is called with a value that breaks its rule, with the argument, the rule and the value.
    """
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def call(*values: Arguments.args, **named: Arguments.kwargs) -> Returned:
        for name, value in signature.bind(*values, **named).arguments.items():
            check_hint(name, value, hints.get(name))
        return function(*values, **named)

    return call


def check_hint(name: str, value: Any, hint: Any) -> None:
    """Check one value by the rule in its type.

    Parameters
    ----------
    name
        Name of the setting.
    value
        Its value.
    hint
        Its type: ``Annotated`` with a rule of :func:`check_value`, a ``Literal``, or one of these or None.
        Other types have no rule.

    Raises
    ------
    ValueError
        If the value breaks the rule, with the name, the rule and the value.
    """
    found = rule_of(hint)
    if found is not None and not (value is None and found[1]):
        check_value(name, value, found[0])


def rule_of(hint: Any) -> tuple[Any, bool] | None:
    """Return the rule in a type, see :func:`check_hint`, and whether None needs none; None without a rule."""
    optional = get_origin(hint) in UNIONS
    if optional:
        others = [each for each in get_args(hint) if each is not type(None)]
        hint = others[0] if len(others) == 1 else None
    if get_origin(hint) not in (Annotated, Literal):
        return None
    return get_args(hint)[1] if get_origin(hint) is Annotated else hint, optional


def check_value(name: str, value: Any, rule: Any) -> None:
    """Check one value.

    Parameters
    ----------
    name
        Name of the setting.
    value
        Its value.
    rule
        Its rule: ``">= 1"``, ``"in (0, 1]"`` or ``"finite"``, or several of these joined by " and "; ``"a
        whole number >= 1"``; ``"numbers >= 1"`` for a list of them; an allowed word, where ``"None"``,
        ``"True"`` and ``"False"`` are the values and not texts. Alternatives are joined by " or ". Or a
        ``Literal``, whose values are the choices.

    Raises
    ------
    ValueError
        If the value breaks the rule, with the name, the rule and the value.
    """
    if choices := get_args(rule):
        check_choice(name, value, choices)
        return
    for each in rule.split(" or "):
        if _keeps(value, each):
            return
    raise ValueError(f"{name} must be {rule}, got {value!r}{suggestion(value, rule.split(' or '))}")


def check_entries(rule: str, **arrays: Any) -> None:
    """Check every entry of some arrays, or some numbers.

    Parameters
    ----------
    rule
        As for :func:`check_value`.
    arrays
        The arrays or numbers, by name.

    Raises
    ------
    ValueError
        If an entry breaks the rule, with the array's name, the rule and the first such entry.
    """
    for name, values in arrays.items():
        kept = _keeps(values, f"numbers {rule}" if isinstance(values, Sequence) else rule)
        if isinstance(kept, bool):
            if not kept:
                raise ValueError(f"{name} must be {rule}, got {values}")
        elif not kept.all():
            raise ValueError(f"{name} must be {rule}, got {values[~kept].flat[0]}")


def check_shapes(**arrays: tuple[Any, str]) -> None:
    """Check the numbers of axes of arrays, and that axes of the same name have the same length.

    Parameters
    ----------
    arrays
        By name, the array and its axes, such as ``(counts, "clients classes")``. An axis has one length in
        all arrays, above 0 unless its name ends with ``?``. A number as a name is the required length.

    Raises
    ------
    ValueError
        If an array has another shape, with its name, its axes and the shape.
    """
    lengths: dict[str, int] = {}
    for name, (array, axes) in arrays.items():
        names, known = axes.split(), dict(lengths)
        fits = len(names) == len(array.shape)
        for axis, length in zip(names, array.shape, strict=False):
            expected = int(axis) if axis.isdigit() else lengths.setdefault(axis, length)
            fits &= length == expected and (length > 0 or axis.endswith("?"))
        if not fits:
            shown = ", ".join([str(known.get(axis, axis)).rstrip("?") for axis in names])
            raise ValueError(f"{name} must have shape ({shown}), got {array.shape}")


def _keeps(value: Any, rule: str) -> Any:
    """Return whether a value fulfils a rule without alternatives; for an array, whether each entry does."""
    if rule.isalpha() and rule != "finite":
        return value is _WORDS[rule] if rule in _WORDS else isinstance(value, str) and value == rule
    if rule.startswith("numbers "):
        listed = isinstance(value, Collection) and not isinstance(value, str | Mapping)
        return listed and all(_keeps(each, rule.removeprefix("numbers ")) for each in value)
    kind: Any = (
        Integral if rule.startswith("a whole number") else Real if rule.startswith("a share") else object
    )
    if value is None or isinstance(value, bool | str | Sequence | Mapping) or not isinstance(value, kind):
        return False
    kept: Any = True
    for part in rule.removeprefix("a whole number ").removeprefix("a share ").split(" and "):
        if part == "finite":
            kept = kept & (abs(value) < math.inf)
        elif part.startswith("in "):
            low, high = map(float, part[4:-1].split(", "))
            kept = kept & (value >= low if part[3] == "[" else value > low)
            kept = kept & (value <= high if part[-1] == "]" else value < high)
        else:
            comparison, limit = part.split(" ")
            kept = kept & _COMPARISONS[comparison](value, float(limit))
    return kept


DEFAULT_FRACTION = 0.1
"""Default share of a client's training rows held out for the proof (docs/PROOF.md)."""


def check_fraction(fraction: float) -> None:
    """Check a share of rows to hold out; raise ValueError if it is not in [0, 1)."""
    check_value("validation_fraction", fraction, "in [0, 1)")


def check_held_out(held_out: float) -> None:
    """Check the share or number of clients to hold out; raise ValueError if it is neither."""
    whole = isinstance(held_out, float) and held_out.is_integer()  # possible in a configuration
    check_value(
        "holdout_clients", int(held_out) if whole else held_out, "a share in [0, 1) or a whole number >= 0"
    )


def read_as(kind: Any, values: Any) -> Any:
    """Create a value of a type from plain values; nothing else is accepted or converted silently.

    Parameters
    ----------
    kind
        ``str``, ``bool``, ``int``, ``float`` (finite), None, a ``Literal``, ``tuple[…, ...]``, ``Mapping[str,
        …]``, ``Any``, a union of these, or a dataclass of these, which may have further checks.
    values
        Result of ``json.loads``.

    Raises
    ------
    ValueError
        If the values do not have that type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        missing = dataclasses.MISSING
        needed = {name for name, field in fields.items() if field.default is field.default_factory is missing}
        if not isinstance(values, Mapping) or not needed <= values.keys() <= fields.keys():
            got = ", ".join(sorted(map(str, values))) if isinstance(values, Mapping) else _short(values)
            raise ValueError(f"must have the values {', '.join(sorted(fields))}, got {got}")
        hints = get_type_hints(kind)
        return kind(**{name: _read(name, hints[name], value) for name, value in values.items()})
    if origin in UNIONS:
        if type(None) in arguments and values is None:
            return None
        arguments = tuple(each for each in arguments if each is not type(None))
        for each in arguments[:-1]:
            with suppress(ValueError):
                return read_as(each, values)
        return read_as(arguments[-1], values)
    if origin is Literal:
        if values not in arguments:
            raise ValueError(f"must be one of {', '.join(map(str, arguments))}, got {_short(values)}")
        return values
    if origin is tuple and isinstance(values, list | tuple):
        return tuple(read_as(arguments[0], each) for each in values)
    if origin is Mapping and isinstance(values, dict):
        return {read_as(str, key): read_as(arguments[1], each) for key, each in values.items()}
    if kind is float and type(values) in (int, float) and abs(values) <= sys.float_info.max:
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


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ValueError if a setting is not one of its choices; the message lists them."""
    if value not in (known := list(choices)):
        raise ValueError(none_of(name, value, known))


def none_of(name: str, value: Any, choices: Iterable[Any], rule: str = "must be one of") -> str:
    """Write that a value is none of its choices; list them, and suggest the nearest one."""
    known = list(map(str, choices))
    return f"{name} {rule} {', '.join(known)}, got {value!r}{suggestion(value, known)}"


def nearest(value: object, known: Iterable[str]) -> str | None:
    """Return the name that a misspelt one is most like, whatever its capitals; None if it is like none."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(value).lower(), names, n=1)
    return names[near[0]] if near else None


def suggestion(value: object, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for a text that is like one of the known ones; else nothing."""
    near = nearest(value, known) if isinstance(value, str) else None
    return f" (did you mean {near!r}?)" if near not in (None, value) else ""


def few(values: Iterable[Any], most: int = 5, separator: str = ", ") -> str:
    """List the first `most` values and the number of further ones.

    Examples
    --------
    >>> few("abcde", most=2), few(["a: 1, 2", "b: 3", "c: 4"], most=2, separator="; ")
    ('a, b and 3 more', 'a: 1, 2; b: 3; and 1 more')
    """
    shown = list(map(str, values))
    more = f"{separator.strip(', ')} and {len(shown) - most} more" if len(shown) > most else ""
    return separator.join(shown[:most]) + more


def plural(count: int, one: str) -> str:
    """Format a number of things, with a plural s unless it is 1.

    Examples
    --------
    >>> plural(1, "client"), plural(1200, "row")
    ('1 client', '1,200 rows')
    """
    return f"{count:,} {one}{'s' * (count != 1)}"


def capitalised(text: str) -> str:
    """Begin a text with a capital letter, and leave the others as they are.

    Examples
    --------
    >>> capitalised("share within 2 mg/dL")
    'Share within 2 mg/dL'
    """
    return text[:1].upper() + text[1:]


def _short(value: Any) -> str:
    return repr(value)[:80]


# -- Strict JSON --------------------------------------------------------------------------------------------


def dumps(value: object) -> str:
    """Write a value as one line of strict JSON.

    Parameters
    ----------
    value
        Mappings, sequences, strings, numbers, None, paths, and NumPy or torch scalars and arrays.
        NaN and infinities become null.

    Returns
    -------
    Text without line breaks.

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
    """Write a mapping as strict JSON with one line per key, which keeps long lists compact."""
    try:
        lines = [
            f"  {json.dumps(str(key))}: {json.dumps(value, allow_nan=False, default=_convert)}"
            for key, value in mapping.items()
        ]
    except (ValueError, TypeError):
        return dumps_by_key(plain(mapping))
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
        return {
            key if type(key) is str else str(plain(key)): item if type(item) in _PLAIN else plain(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _PLAIN else plain(item) for item in value]
    return plain(_convert(value))


_PLAIN = (str, int, bool, type(None))


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old text or the new text, never a part."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


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
