"""Turn dataclasses into plain values and back by their type hints, and plain values into arrays and JSON.

:func:`pack` makes dicts and lists of arrays, ArrayRecords and scalars of a value; :func:`unpack` rebuilds it
and checks every part. Hints may be dataclasses, arrays, numbers, text, truth values, ``Literal``, None,
ArrayRecords, tuples of one type, lists and mappings (keys: text or whole numbers) of these, and unions of
scalars with one other of these. ``Any`` stands for all but dataclasses; there, a tuple is read as a list. A
field with the metadata :data:`UNSAVED` is left out.

:func:`split_arrays` takes the arrays out, each by the path where it was, such as ``models/0/weight``: a
safetensors file can hold them, and JSON the rest, so that nothing is pickled and reading runs no code. What
there may be one of per client, arrays in a list or dicts with the same keys in a list, is a few arrays
however many there are: the header of a safetensors file holds at most 100 MB. An ArrayRecord that occurs
several times is written once, and shared again when read.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import count, repeat
from typing import Annotated, Any, Literal, NamedTuple, Union

import numpy as np
from flwr.app import ArrayRecord

from fedclust.support.array_bytes import from_numpy, to_numpy

UNSAVED = types.MappingProxyType({"saved": False})
"""Metadata of a dataclass field that is not packed; unpacking gives it its default."""

_SCALARS = (bool, int, float, str, type(None))


def pack(value: object, hint: Any = None) -> Any:
    """Turn a value into dicts and lists of arrays, records and scalars.

    Parameters
    ----------
    value
        Usually a dataclass.
    hint
        Its type; the value's own unless given.

    Raises
    ------
    TypeError
        If a part does not match its type hint; the message gives its path.
    """
    return _convert(hint or type(value), value, "", TypeError)


def unpack(hint: Any, plain: Any) -> Any:
    """Rebuild the value that :func:`pack` was given.

    Parameters
    ----------
    hint
        The type that it was packed as.
    plain
        What :func:`pack` returned.

    Raises
    ------
    ValueError
        If a part is missing, unknown, or does not match its type hint; the message gives its path.
    """
    return _convert(hint, plain, "", ValueError)


def split_arrays(plain: Any) -> tuple[str, dict[str, np.ndarray]]:
    """Write a plain value as JSON and arrays.

    Parameters
    ----------
    plain
        What :func:`pack` returned.

    Returns
    -------
    JSON with the names of the arrays in their places; and the arrays by name.

    Raises
    ------
    TypeError
        If an array does not hold numbers; the message gives its path.
    """
    splitting = _Splitting({}, {})
    return json.dumps(splitting.split(plain, "")), splitting.arrays


def join_arrays(text: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Read the plain value that :func:`split_arrays` was given.

    Raises
    ------
    ValueError
        If the text is not such JSON, or an array is missing, unknown or of other rows than it says.
    """
    joining = _Joining(dict(arrays), {})
    try:
        plain = json.loads(text, object_hook=joining.join)
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"text must say where the arrays are: {error}") from error
    if joining.arrays:
        raise ValueError(f"array {next(iter(joining.arrays))} is unknown")
    return plain


# -- By type ------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """What a hint allows: some types as they are, choices, and values of one other kind with such parts."""

    name: str
    ready: frozenset[type] = frozenset()
    choices: tuple[Any, ...] = ()
    kind: Any = None
    inside: Any = None


@cache
def _form(hint: Any) -> _Form:
    kind: Any = typing.get_origin(hint) or hint
    inside = typing.get_args(hint)
    if kind is Annotated:
        return _form(inside[0])
    if hasattr(kind, "__value__"):  # an alias made by `type`, as NumPy's NDArray is since 2.5
        return _form(kind.__value__[inside] if inside else kind.__value__)
    if kind is Literal:
        return _Form(f"one of {', '.join(map(repr, inside))}", choices=inside)
    if kind is Any:
        leaves: frozenset[type] = frozenset([*_SCALARS, np.ndarray, ArrayRecord])
        return _Form("a number, a text, None, an array, or a list or mapping of these", leaves, kind=Any)
    if hint in _SCALARS:
        return _Form("None" if hint is type(None) else hint.__name__, frozenset([hint]))
    if kind in (Union, types.UnionType):
        forms = [*map(_form, inside)]
        others = [each for each in forms if each.kind] or [_Form("")]
        if len(others) == 1:
            names, ready, choices, *_ = zip(*forms, strict=True)
            return _Form(" or ".join(names), frozenset().union(*ready), sum(choices, ()), *others[0][3:])
    elif dataclasses.is_dataclass(kind):
        saved = [each for each in dataclasses.fields(kind) if each.init and each.metadata.get("saved", True)]
        hints = typing.get_type_hints(hint)
        return _Form(hint.__name__, kind=hint, inside={each.name: hints[each.name] for each in saved})
    elif issubclass(kind, ArrayRecord | np.ndarray):
        name = "an array of numbers" if kind is np.ndarray else "an ArrayRecord"
        return _Form(name, frozenset([kind]), kind=kind)
    elif issubclass(kind, Mapping):
        return _Form("a mapping", kind=Mapping, inside=inside or (str, Any))
    elif issubclass(kind, Sequence) and (kind is not tuple or inside[1:] in ((), (...,))):
        return _Form("a list", kind=list if kind is list else tuple, inside=inside[0] if inside else Any)
    raise TypeError(f"a type to pack must be made of dataclasses, arrays, numbers and text, got {hint}")


def _convert(hint: Any, value: Any, path: str, error: type[Exception]) -> Any:
    """Check a value and convert its parts; to read is to raise ValueError where one does not fit."""
    name, ready, choices, kind, inside = _form(hint)
    reading, where = error is ValueError, path[1:] or "the value"
    if kind is Any:
        made = dict[str | int, Any] if isinstance(value, Mapping) else list[Any]
        *_, kind, inside = _form(made if isinstance(value, Mapping | list | tuple) else np.ndarray)
    if isinstance(value, np.ndarray | np.generic):
        if kind is np.ndarray:
            return np.asarray(value)
        value = value.item() if value.ndim == 0 else value
    if type(value) in ready or (isinstance(value, _SCALARS) and value in choices):
        return value
    if type(value) is int and float in ready:
        return float(value)
    if isinstance(value, str) and str in ready:  # a member of an enumeration
        return str(value)
    keys: Any
    values: Any
    hints: Any
    if kind in (list, tuple) and isinstance(value, Sequence) and not isinstance(value, str):
        keys, values, hints = range(len(value)), value, repeat(inside)
    elif kind is Mapping and isinstance(value, kind):
        keys = [key.item() if isinstance(key, np.generic) else key for key in value]
        values, hints = value.values(), repeat(inside[1])
        if not _form(inside[0]).ready.issuperset(map(type, keys)):
            raise error(f"{where} must have {_form(inside[0]).name} keys, got {str(keys)[:80]}")
    elif isinstance(inside, dict) and isinstance(value, dict if reading else kind):
        if reading and (unlike := sorted(value.keys() ^ inside.keys())):
            wrong = "unknown" if unlike[0] in value else "missing"
            raise error(f"{where} must have {', '.join(inside)}: {unlike[0]} is {wrong}")
        get = value.__getitem__ if reading else partial(getattr, value)
        keys, values, hints = inside, map(get, inside), inside.values()
    else:
        raise error(f"{where} must be {name}, got {_got(value)}")
    items = [
        each if type(each) in _form(part).ready else _convert(part, each, f"{path}/{key}", error)
        for key, each, part in zip(keys, values, hints, strict=False)
    ]
    if kind in (list, tuple):
        return kind(items) if reading else items
    parts = dict(zip(keys, items, strict=True))
    return kind(**parts) if reading and kind is not Mapping else parts


def _got(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return repr(value)[:80] if isinstance(value, _SCALARS) else type(value).__name__


# -- Arrays -------------------------------------------------------------------------------------------------

# A dict with one of these keys stands for another value; no mapping is written with a key like them.
_ARRAY, _RECORD, _ROWS, _COLUMNS, _KEYS = "~array", "~record", "~rows", "~columns", "~keys"


@dataclasses.dataclass
class _Splitting:
    """The arrays so far, by name, and what stands for the records so far, by their ids."""

    arrays: dict[str, np.ndarray]
    records: dict[int, dict[str, Any]]

    def split(self, value: Any, path: str) -> Any:
        """Return what stands for a value."""
        if isinstance(value, np.ndarray):
            return {_ARRAY: self._name(path, value)}
        if isinstance(value, ArrayRecord):
            if id(value) not in self.records:
                names = [self._name(f"{path}/{key}", to_numpy(each)) for key, each in value.items()]
                self.records[id(value)] = {_RECORD: [list(value), names]}
            return self.records[id(value)]
        if isinstance(value, dict):
            if {*map(type, value)} - {str} or any(map(str.startswith, value, repeat("~"))):
                return {_KEYS: list(value), "values": self.split(list(value.values()), path)}
            return {
                key: each if type(each) in _SCALARS else self.split(each, f"{path}/{key}")
                for key, each in value.items()
            }
        return self._list(value, path) if isinstance(value, list) else value

    def _list(self, values: list[Any], path: str) -> Any:
        kinds = {*map(type, values)}
        if kinds == {dict} and len(keys := {*map(tuple, values)}) == 1 and (names := keys.pop()):
            return {_COLUMNS: self.split({name: [each[name] for each in values] for name in names}, path)}
        if kinds <= {np.ndarray, type(None)}:
            # One array is often there for many clients: in FedGWC's matrix, of all who have met nobody.
            distinct = dict(zip(map(id, values), values, strict=True))
            distinct.pop(id(None), None)
            layouts = {each.ndim and (each.dtype, each.shape[1:]) for each in distinct.values()}
            if len(layouts) == 1 and 0 not in layouts:
                places = dict(zip(distinct, count()))
                name = self._name(path, np.concatenate([*distinct.values()]))
                return {_ROWS: [name, [*map(len, distinct.values())], [*map(places.get, map(id, values))]]}
        return [
            each if type(each) in _SCALARS else self.split(each, f"{path}/{place}")
            for place, each in enumerate(values)
        ]

    def _name(self, path: str, array: np.ndarray) -> str:
        name = path[1:]
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name} must be an array of numbers, got {_got(array)}")
        while name in self.arrays:  # such as with a slash in a key
            name += "~"
        self.arrays[name] = array
        return name


@dataclasses.dataclass
class _Joining:
    """The arrays not yet used, by name, and the records so far, by the names of their arrays."""

    arrays: dict[str, np.ndarray]
    records: dict[tuple[str, ...], ArrayRecord]

    def join(self, node: dict[str, Any]) -> Any:
        """Return the value that a dict stands for, after those inside it."""
        kind = next(iter(node), "")
        inside: Any = node.get(kind)
        if kind == _ARRAY:
            return self._take(inside)
        if kind == _RECORD:
            keys, names = map(tuple, inside)
            if names not in self.records:
                arrays = [from_numpy(self._take(name)) for name in names]
                self.records[names] = ArrayRecord(dict(zip(keys, arrays, strict=True)))
            return self.records[names]
        if kind == _ROWS:
            name, lengths, which = inside
            rows = self._take(name)
            if min(lengths) < 0 or sum(lengths) != len(rows) or not {*which} <= {None, *range(len(lengths))}:
                raise ValueError(f"array {name} must be of {len(lengths)} parts, {sum(lengths)} rows")
            parts = np.split(rows, np.cumsum(lengths)[:-1])
            return [None if place is None else parts[place] for place in which]
        if kind == _COLUMNS:
            return [dict(zip(inside, each, strict=True)) for each in zip(*inside.values(), strict=True)]
        if kind == _KEYS:
            return dict(zip(inside, node["values"], strict=True))
        return node

    def _take(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(f"array {name} is missing")
        return self.arrays.pop(name)
