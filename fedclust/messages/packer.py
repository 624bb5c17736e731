"""Write dataclasses as arrays and scalars by path, and read them back by their type hints.

``Memory(scores=array, parts=(Part(size=3), Part(size=5)))`` becomes ``{"scores": array, "parts/0/size": 3,
"parts/1/size": 5}``: entries that a safetensors file and JSON can hold, so that nothing is pickled and
reading runs no code. What there may be one of per client, arrays in a sequence or dataclasses in a mapping by
number, is a few entries however many there are: the header of a safetensors file holds at most 100 MB. Hints
may be dataclasses, arrays, numbers, text, truth values, ``Literal``, None, ArrayRecords, tuples of one type,
lists and mappings (keys: text or whole numbers) of these, and unions of numbers, text, truth values and None
with one other of these. ``Any`` stands for arrays, records, numbers, text, truth values and None, and for
lists and mappings of them; there, a tuple is read as a list. A field with the metadata :data:`UNSAVED` is
left out.

An ArrayRecord that occurs several times in a value is written once, and shared again when read.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, Union

import numpy as np
from flwr.app import ArrayRecord

from fedclust.support.array_bytes import from_numpy, to_numpy

Leaf: TypeAlias = np.ndarray | str | int | float | bool | None

UNSAVED = types.MappingProxyType({"saved": False})
"""Metadata of a dataclass field that is not packed; unpacking gives it its default."""

_EMPTY = 0  # at the path of an empty container
# Names of entries that are not part of the value; in a mapping's own keys, "~" is written "~0".
_KIND, _VALUE, _ROWS, _LENGTHS, _KEYS = "~kind", "~value", "~rows", "~lengths", "~keys"
_WHICH = "~which"
_SCALARS = (bool, int, float, str, type(None))


def pack(value: object, hint: Any = None) -> dict[str, Leaf]:
    """List a value as arrays and scalars by path.

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
    packing = _Packing({})
    own: Any = hint or type(value)
    _form(own).write(packing, "", value)
    return packing.entries


def unpack(hint: Any, entries: Mapping[str, Any]) -> Any:
    """Rebuild the value that :func:`pack` listed.

    Parameters
    ----------
    hint
        The type that it was packed as.
    entries
        The entries by path, in their order.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, or does not match its type hint; the message gives its path.
    """
    tree: dict[str, Any] = {}
    for path, value in entries.items():
        *outer, last = path.split("/")
        inside = tree
        for key in outer:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{path} must be inside a container, got a single value around it")
        if last in inside:
            raise ValueError(f"{path} must be one entry, got several")
        inside[last] = value
    try:
        return _form(hint).read(_Packing(tree), "", tree.get("", tree))
    except RecursionError as error:
        raise ValueError("entries must not be nested so deeply") from error


# -- Inside -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Packing:
    """Entries to write, by path, or to read, as a tree; and their records, by identity or path."""

    entries: dict[str, Any]
    records: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def parts(self, path: str, parts: Mapping[str, tuple["_Form", Any]]) -> None:
        """Write the parts of a container."""
        if not parts:
            self.entries[path] = _EMPTY
        for key, (form, value) in parts.items():
            form.write(self, _join(path, key), value)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How to write values of one type at a path, and how to read them there."""

    write: Callable[[_Packing, str, Any], None]
    read: Callable[[_Packing, str, Any], Any]


@cache
def _form(hint: Any) -> _Form:
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Annotated:
        return _form(inside[0])
    if hint is Any:
        return _Form(_write_any, _read_any)
    if kind is Literal:
        return _scalar(tuple(map(type, inside)), inside)
    plain = tuple(each for each in inside or (hint,) if each in _SCALARS)
    others = [each for each in inside if each not in plain]
    if hint in _SCALARS or (kind in (Union, types.UnionType) and not others):
        return _scalar(plain)
    if kind in (Union, types.UnionType) and len(others) == 1:
        return _union(plain, others[0])
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type):
        if issubclass(kind, ArrayRecord):
            return _Form(_write_record, _read_record)
        if issubclass(kind, np.ndarray | np.generic):
            return _ARRAY
        if issubclass(kind, Mapping):
            return _mapping(*(inside or (str, Any)))
        if issubclass(kind, Sequence) and (kind is not tuple or inside[1:] in ((), (...,))):
            return _sequence(inside[0] if inside else Any, list if kind is list else tuple)
    raise TypeError(f"a type to pack must be made of dataclasses, arrays, numbers and text, got {hint}")


def _scalar(allowed: tuple[type, ...], choices: tuple[Any, ...] = ()) -> _Form:
    def plain(path: str, value: Any, error: type[Exception]) -> Any:
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            value = value.item()
        if type(value) is int and int not in allowed and float in allowed:
            value = float(value)
        for each in allowed:  # a member of a text enumeration is text, but a truth value is not a number
            if type(value) is each or (each is not int and isinstance(value, each)):
                value = value if value is None else each(value)
                break
        else:
            raise error(f"{path} must be {' or '.join(map(_name, allowed))}, got {_got(value)}")
        if choices and value not in choices:
            raise error(f"{path} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        return value

    def write(to: _Packing, path: str, value: Any) -> None:
        to.entries[path] = plain(path, value, TypeError)

    return _Form(write, lambda _, path, node: plain(path, node, ValueError))


def _union(plain: tuple[type, ...], other: Any) -> _Form:
    scalar, form = _scalar(plain), _form(other)

    def write(to: _Packing, path: str, value: Any) -> None:
        (scalar if isinstance(value, plain) else form).write(to, path, value)

    def read(of: _Packing, path: str, node: Any) -> Any:
        single = node.item() if isinstance(node, np.ndarray) and node.ndim == 0 else node
        return (scalar if isinstance(single, plain) else form).read(of, path, node)

    return _Form(write, read)


def _dataclass(cls: Any) -> _Form:
    forms = _fields(cls, _form)

    def write(to: _Packing, path: str, value: Any) -> None:
        if not isinstance(value, cls):
            raise TypeError(f"{path or 'the value'} must be {cls.__name__}, got {_got(value)}")
        to.parts(path, {name: (form, getattr(value, name)) for name, form in forms.items()})

    return _Form(write, lambda of, path, node: cls(**_read_fields(of, path, node, forms)))


def _by_number(cls: Any) -> _Form:
    """Write a mapping by number of dataclasses as its keys, and a sequence per field."""
    forms = {_KEYS: _sequence(int, list)} | _fields(cls, lambda hint: _sequence(hint, list))

    def write(to: _Packing, path: str, value: Any) -> None:
        if unlike := [key for key, each in value.items() if not isinstance(each, cls)]:
            got = _got(value[unlike[0]])
            raise TypeError(f"{_join(path, str(unlike[0]))} must be {cls.__name__}, got {got}")
        columns = {name: [getattr(each, name) for each in value.values()] for name in forms if name != _KEYS}
        columns[_KEYS] = [int(key) for key in value]
        to.parts(path, {name: (form, columns[name]) for name, form in forms.items()})

    def read(of: _Packing, path: str, node: Any) -> Any:
        columns = _read_fields(of, path, node, forms)
        keys = columns.pop(_KEYS)
        for name, column in columns.items():
            if len(column) != len(keys):
                raise ValueError(f"{_join(path, name)} must have {len(keys)} values, got {len(column)}")
        fields = zip(*columns.values(), strict=True)
        return {
            key: cls(**dict(zip(columns, each, strict=True))) for key, each in zip(keys, fields, strict=True)
        }

    return _Form(write, read)


def _fields(cls: Any, form: Callable[[Any], _Form]) -> dict[str, _Form]:
    kept = [each.name for each in dataclasses.fields(cls) if each.init and each.metadata.get("saved", True)]
    hints = typing.get_type_hints(cls)
    try:
        return {name: form(hints[name]) for name in kept}
    except RecursionError:
        raise TypeError(f"a type to pack must not hold itself, got {cls.__name__}") from None


def _read_fields(of: _Packing, path: str, node: Any, forms: Mapping[str, _Form]) -> dict[str, Any]:
    inside = _inside(path, node)
    if unlike := sorted(inside.keys() ^ forms.keys()):
        wrong = "unknown" if unlike[0] in inside else "missing"
        raise ValueError(f"{path or 'the value'} must have {', '.join(forms)}: {unlike[0]} is {wrong}")
    return {name: form.read(of, _join(path, name), inside[name]) for name, form in forms.items()}


def _mapping(key: Any, item: Any) -> _Form:
    if key not in (str, int):
        raise TypeError(f"keys of a mapping to pack must be text or whole numbers, got {key}")
    form = _form(item)
    columns = _by_number(item) if key is int and dataclasses.is_dataclass(item) else None

    def write(to: _Packing, path: str, value: Any) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(each, key | np.integer) for each in value):
            raise TypeError(f"{path} must be a mapping with {_name(key)} keys, got {_got(value)}")
        if columns and value:
            columns.write(to, path, value)
        else:
            to.parts(path, {_escaped(each): (form, inside) for each, inside in value.items()})

    def read(of: _Packing, path: str, node: Any) -> Any:
        if columns and isinstance(node, dict) and _KEYS in node:
            return columns.read(of, path, node)
        items = {}
        for name, inside in _inside(path, node).items():
            try:
                own = int(name) if key is int else _unescaped(name)
            except ValueError:
                raise ValueError(f"{_join(path, name)} must be a whole number") from None
            items[own] = form.read(of, _join(path, name), inside)
        return items

    return _Form(write, read)


def _sequence(item: Any, make: Callable[[Any], Any]) -> _Form:
    dtype = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)}.get(item)
    form = _form(item)
    union = typing.get_args(item) if typing.get_origin(item) in (Union, types.UnionType) else (item,)
    arrays = all(each is type(None) or _form(each) is _ARRAY for each in union)
    least = -1 if type(None) in union else 0  # the length of what is None

    def write(to: _Packing, path: str, value: Any) -> None:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise TypeError(f"{path} must be a sequence, got {_got(value)}")
        # One array is often there for many clients: in FedGWC's matrix, the row of all who have met nobody.
        distinct = {id(each): each for each in value} if arrays else {}
        there = [each for each in distinct.values() if each is not None or not least]
        if dtype is not None and value:
            to.entries[path] = np.array(value, dtype=dtype)
        elif there and all(each.ndim and _row(each) == _row(there[0]) for each in there):
            # Thousands of short rows are two arrays.
            to.entries[_join(path, _ROWS)] = np.concatenate(there)
            to.entries[_join(path, _LENGTHS)] = np.array(
                [-1 if each is None else len(each) for each in distinct.values()]
            )
            if len(distinct) < len(value):
                places = {key: place for place, key in enumerate(distinct)}
                to.entries[_join(path, _WHICH)] = np.array([places[id(each)] for each in value])
        else:
            to.parts(path, {str(place): (form, each) for place, each in enumerate(value)})

    def read(of: _Packing, path: str, node: Any) -> Any:
        if dtype is not None and isinstance(node, np.ndarray) and node.ndim == 1:
            if node.dtype.kind != dtype.kind:
                raise ValueError(f"{path} must hold {_name(item)}, got {node.dtype}")
            return make(node.tolist())
        inside = _inside(path, node)
        if arrays and _ROWS in inside:
            rows, lengths = (_array(path, inside.get(name)) for name in (_ROWS, _LENGTHS))
            parts = _rows(path, rows, lengths, least)
            if _WHICH not in inside:
                return make(parts)
            which = _array(path, inside[_WHICH])
            if not (which.dtype.kind == "i" and which.ndim == 1 and np.isin(which, range(len(parts))).all()):
                raise ValueError(f"{path} must number its {len(parts)} arrays, got {_got(which)}")
            return make(parts[place] for place in which)
        if list(inside) != [str(place) for place in range(len(inside))]:
            raise ValueError(f"{path} must be numbered from 0, got {', '.join(inside)}")
        return make(form.read(of, _join(path, place), each) for place, each in inside.items())

    return _Form(write, read)


def _row(array: np.ndarray) -> tuple[np.dtype, tuple[int, ...]]:
    return array.dtype, array.shape[1:]


def _rows(path: str, rows: np.ndarray, lengths: np.ndarray, least: int) -> list[np.ndarray | None]:
    number, whole = len(np.atleast_1d(rows)), lengths.dtype.kind == "i" and lengths.ndim == 1
    if not (rows.ndim and whole and (lengths >= least).all() and lengths.clip(0).sum() == number):
        raise ValueError(f"{path} must have lengths of all its {number} rows, got {_got(lengths)}")
    parts = np.split(rows, np.cumsum(lengths.clip(0))[:-1])
    return [None if length < 0 else part for length, part in zip(lengths, parts, strict=True)]


def _write_array(to: _Packing, path: str, value: Any) -> None:
    to.entries[path] = _array(path, value, TypeError)


def _array(path: str, value: Any, error: type[Exception] = ValueError) -> np.ndarray:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        raise error(f"{path} must be an array of numbers, got {_got(value)}")
    return np.asarray(value)


_ARRAY = _Form(_write_array, lambda _, path, node: _array(path, node))


def _write_record(to: _Packing, path: str, value: Any) -> None:
    if not isinstance(value, ArrayRecord):
        raise TypeError(f"{path} must be an ArrayRecord, got {_got(value)}")
    if (first := to.records.setdefault(id(value), path)) != path:
        to.entries[path] = first
    else:
        to.parts(path, {_escaped(name): (_ARRAY, to_numpy(array)) for name, array in value.items()})


def _read_record(of: _Packing, path: str, node: Any) -> ArrayRecord:
    if isinstance(node, str):  # the path of the same record
        path, node = node, of.entries
        for key in path.split("/"):
            node = node.get(key) if isinstance(node, dict) else None
    if path not in of.records:
        record = of.records[path] = ArrayRecord()
        for name, values in _inside(path, node).items():
            record[_unescaped(name)] = from_numpy(_array(_join(path, name), values))
    return of.records[path]


def _write_any(to: _Packing, path: str, value: Any) -> None:
    kind = next((name for name, each in _KINDS.items() if isinstance(value, each)), "")
    if kind == "mapping" and value and all(isinstance(key, int | np.integer) for key in value):
        kind = "numbered"
    if kind:
        to.parts(path, {_KIND: (_form(str), kind), _VALUE: (_form(_HINTS[kind]), value)})
    else:
        (_ARRAY if isinstance(value, np.ndarray | np.generic) else _ANY_SCALAR).write(to, path, value)


def _read_any(of: _Packing, path: str, node: Any) -> Any:
    if not isinstance(node, dict):
        return (_ARRAY if isinstance(node, np.ndarray) else _ANY_SCALAR).read(of, path, node)
    kind = node.get(_KIND)
    if not isinstance(kind, str) or kind not in _HINTS:
        raise ValueError(f"{path} must be one of {', '.join(_HINTS)}, got {_got(kind)}")
    return _form(_HINTS[kind]).read(of, _join(path, _VALUE), node.get(_VALUE))


_ANY_SCALAR = _scalar(_SCALARS)
_KINDS: dict[str, Any] = {"record": ArrayRecord, "mapping": Mapping, "list": (list, tuple)}
_HINTS: dict[str, Any] = {
    "record": ArrayRecord,
    "mapping": dict[str, Any],
    "numbered": dict[int, Any],
    "list": list[Any],
}


def _inside(path: str, node: Any) -> dict[str, Any]:
    if isinstance(node, dict):
        return node
    if np.ndim(node) == 0 and node is not None and not isinstance(node, str) and node == _EMPTY:
        return {}
    raise ValueError(f"{path or 'the value'} must be a container, got {_got(node)}")


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def _escaped(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1") or "~"


def _unescaped(name: str) -> str:
    return "" if name == "~" else name.replace("~1", "/").replace("~0", "~")


def _name(hint: Any) -> str:
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))


def _got(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return repr(value)[:80] if isinstance(value, _SCALARS) else type(value).__name__
