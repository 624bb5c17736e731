"""Write dataclasses as arrays and scalars by path, and read them back, as their type hints say.

``Memory(scores=array, parts=(Part(size=3), Part(size=5)))`` becomes ``{"scores": array, "parts/0/size": 3,
"parts/1/size": 5}``: entries that a safetensors file and JSON can hold, so that nothing is pickled and
reading runs no code. Hints may be dataclasses, arrays, numbers, text, truth values, ``Literal``, None,
ArrayRecords, and unions, tuples, lists, sets and mappings (keys: text or whole numbers) of these. ``Any``
stands for arrays, records, and lists and mappings of them and of what JSON holds; there, a tuple is read as
a list. A field with the metadata :data:`UNSAVED` is left out.

An ArrayRecord that is in a value several times is written once, and what is read shares it too.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from typing import Any, Literal, TypeAlias, Union

import numpy as np
from flwr.app import ArrayRecord

from fedclust.support.array_bytes import from_numpy, to_numpy

Leaf: TypeAlias = np.ndarray | str | int | float | bool | None

UNSAVED = types.MappingProxyType({"saved": False})
"""Metadata of a dataclass's field that is not packed; what is unpacked has the field's default."""

_EMPTY = 0  # at the path of a container with nothing in it
# Names of entries that are no part of the value; in a mapping's own keys, "~" is written "~0".
_KIND, _VALUE, _ROWS, _LENGTHS = "~kind", "~value", "~rows", "~lengths"
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
        If part of it is not what its hint says, naming its path.
    """
    entries: dict[str, Leaf] = {}
    own: Any = type(value) if hint is None else hint
    _form(own).write(_Writing(entries), "", value)
    return entries


def unpack(hint: Any, entries: Mapping[str, Any]) -> Any:
    """Make the value that :func:`pack` listed.

    Parameters
    ----------
    hint
        The type that it was packed as.
    entries
        The entries by path, in their order.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, or not what its hint says, naming its path.
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
        return _form(hint).read(_Reading(tree), "", tree.get("") if "" in tree else tree)
    except RecursionError as error:
        raise ValueError("entries must not be nested so deeply") from error


# -- Inside -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Writing:
    entries: dict[str, Leaf]
    records: dict[int, str] = dataclasses.field(default_factory=dict)  # path of each record, by its id

    def all(self, path: str, parts: Mapping[str, tuple["_Form", Any]]) -> None:
        """Write the parts of a container."""
        if not parts:
            self.entries[path] = _EMPTY
        for key, (form, value) in parts.items():
            form.write(self, _join(path, key), value)


@dataclasses.dataclass(frozen=True)
class _Reading:
    tree: dict[str, Any]
    records: dict[str, ArrayRecord] = dataclasses.field(default_factory=dict)  # by path


@dataclasses.dataclass(frozen=True)
class _Form:
    """How values of one type are written at a path, and read from what is there."""

    write: Callable[[_Writing, str, Any], None]
    read: Callable[[_Reading, str, Any], Any]


@cache
def _form(hint: Any) -> _Form:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if kind is typing.Annotated:
        return _form(inside[0])
    if hint is Any:
        return _Form(_write_any, _read_any)
    if kind is Literal or hint in _SCALARS:
        return _scalar((hint,) if hint in _SCALARS else tuple(map(type, inside)), inside)
    if kind in (Union, types.UnionType):
        plain = tuple(each for each in inside if each in _SCALARS)
        others = {_name(each): each for each in inside if each not in plain}
        return _union(_scalar(plain), plain, others) if others else _scalar(plain)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if not isinstance(kind, type):
        raise TypeError(f"a type to pack must be made of dataclasses, arrays, numbers and text, got {hint}")
    if issubclass(kind, ArrayRecord):
        return _Form(_write_record, _read_record)
    if issubclass(kind, np.ndarray | np.generic):
        return _Form(_write_array, _read_array)
    if issubclass(kind, Mapping):
        return _mapping(*(inside or (str, Any)))
    if kind is tuple and inside and inside[-1] is not Ellipsis:
        return _parts({str(place): each for place, each in enumerate(inside)}, _by_place, _values)
    if issubclass(kind, Sequence | Set):
        return _sequence((inside or (Any,))[0], kind if kind in (list, set, frozenset) else tuple)
    raise TypeError(f"a type to pack must be made of dataclasses, arrays, numbers and text, got {hint}")


def _scalar(allowed: tuple[type, ...], choices: tuple[Any, ...] = ()) -> _Form:
    def plain(path: str, value: Any, error: type[Exception]) -> Any:
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            value = value.item()
        if type(value) is int and int not in allowed and float in allowed:
            value = float(value)
        for each in allowed:  # a member of an enumeration of text is text, but a truth value is no number
            if type(value) is each or (each is not int and isinstance(value, each)):
                value = value if value is None else each(value)
                break
        else:
            raise error(f"{path} must be {' or '.join(map(_name, allowed))}, got {_got(value)}")
        if choices and value not in choices:
            raise error(f"{path} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        return value

    def write(to: _Writing, path: str, value: Any) -> None:
        to.entries[path] = plain(path, value, TypeError)

    return _Form(write, lambda _, path, node: plain(path, node, ValueError))


def _union(scalar: _Form, plain: tuple[type, ...], others: Mapping[str, Any]) -> _Form:
    """Make the form of a scalar of some types or of one other type, or of one of several dataclasses."""
    tagged = len(others) > 1

    def write(to: _Writing, path: str, value: Any) -> None:
        if isinstance(value, plain):
            scalar.write(to, path, value)
        elif not tagged:
            _form(*others.values()).write(to, path, value)
        elif (name := type(value).__name__) in others:
            named = {_KIND: (_form(str), name), _VALUE: (_form(others[name]), value)}
            to.all(path, named)
        else:
            raise TypeError(f"{path} must be one of {', '.join(others)}, got {_got(value)}")

    def read(of: _Reading, path: str, node: Any) -> Any:
        if plain and not isinstance(node, dict) and (tagged or _is_a(node, plain)):
            return scalar.read(of, path, node)
        if not tagged:
            return _form(*others.values()).read(of, path, node)
        inside = _inside(path, node)
        name = inside.get(_KIND)
        if not isinstance(name, str) or name not in others or _VALUE not in inside:
            raise ValueError(f"{path} must be one of {', '.join(others)}, got {_got(name)}")
        return _form(others[name]).read(of, _join(path, _VALUE), inside[_VALUE])

    return _Form(write, read)


def _dataclass(cls: Any) -> _Form:
    kept = [each.name for each in dataclasses.fields(cls) if each.init and each.metadata.get("saved", True)]
    hints = typing.get_type_hints(cls)

    def parts(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in kept} if isinstance(value, cls) else {}

    return _parts({name: hints[name] for name in kept}, parts, lambda values: cls(**values))


def _parts(
    hints: Mapping[str, Any],
    parts: Callable[[Any], Mapping[str, Any]],
    make: Callable[[dict[str, Any]], Any],
) -> _Form:
    """Make the form of a value of known parts, each with its type."""
    listed = ", ".join(hints) or "nothing"

    def write(to: _Writing, path: str, value: Any) -> None:
        values = parts(value)
        if values.keys() != hints.keys():
            raise TypeError(f"{path or 'the value'} must have {listed}, got {_got(value)}")
        to.all(path, {name: (_form(hints[name]), each) for name, each in values.items()})

    def read(of: _Reading, path: str, node: Any) -> Any:
        inside = _inside(path, node)
        if unlike := sorted(inside.keys() ^ hints.keys()):
            wrong = "unknown" if unlike[0] in inside else "missing"
            raise ValueError(f"{path or 'the value'} must have {listed}: {unlike[0]} is {wrong}")
        return make(
            {name: _form(hint).read(of, _join(path, name), inside[name]) for name, hint in hints.items()}
        )

    return _Form(write, read)


def _by_place(value: Any) -> dict[str, Any]:
    return {str(place): each for place, each in enumerate(value)} if isinstance(value, tuple | list) else {}


def _values(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values.values())


def _mapping(key: Any, item: Any) -> _Form:
    if key not in (str, int):
        raise TypeError(f"keys of a mapping to pack must be text or whole numbers, got {key}")

    def write(to: _Writing, path: str, value: Any) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(each, key | np.integer) for each in value):
            raise TypeError(f"{path} must be a mapping with {_name(key)} keys, got {_got(value)}")
        to.all(path, {_escaped(each): (_form(item), inside) for each, inside in value.items()})

    def read(of: _Reading, path: str, node: Any) -> Any:
        found = {}
        for name, inside in _inside(path, node).items():
            try:
                own = int(name) if key is int else _unescaped(name)
            except ValueError:
                raise ValueError(f"{_join(path, name)} must be a whole number") from None
            found[own] = _form(item).read(of, _join(path, name), inside)
        return found

    return _Form(write, read)


def _sequence(item: Any, make: Callable[[Any], Any]) -> _Form:
    numbers = {bool: "b", int: "i", float: "f"}.get(item)
    arrays = np.ndarray in (item, typing.get_origin(item))

    def write(to: _Writing, path: str, value: Any) -> None:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | Set):
            raise TypeError(f"{path} must be a sequence, got {_got(value)}")
        listed = sorted(value) if isinstance(value, Set) else value
        if numbers and listed:
            to.entries[path] = np.array(listed, dtype={"b": bool, "i": np.int64, "f": np.float64}[numbers])
        elif arrays and listed and all(each.ndim and _row(each) == _row(listed[0]) for each in listed):
            # Thousands of short rows are two arrays.
            to.entries[_join(path, _ROWS)] = np.concatenate(listed)
            to.entries[_join(path, _LENGTHS)] = np.array([len(each) for each in listed])
        else:
            to.all(path, {str(place): (_form(item), each) for place, each in enumerate(listed)})

    def read(of: _Reading, path: str, node: Any) -> Any:
        if numbers and isinstance(node, np.ndarray) and node.ndim == 1:
            if node.dtype.kind != numbers:
                raise ValueError(f"{path} must hold {_name(item)}, got {node.dtype}")
            return make(node.tolist())
        inside = _inside(path, node)
        if arrays and _ROWS in inside:
            rows, lengths = (_array(path, inside.get(name)) for name in (_ROWS, _LENGTHS))
            if (
                not rows.ndim
                or lengths.dtype.kind != "i"
                or lengths.ndim != 1
                or (lengths < 0).any()
                or lengths.sum() != len(rows)
            ):
                raise ValueError(
                    f"{path} must have lengths of all its {rows.shape[0] if rows.ndim else 0} rows"
                )
            return make(np.split(rows, np.cumsum(lengths)[:-1]))
        if list(inside) != [str(place) for place in range(len(inside))]:
            raise ValueError(f"{path} must be numbered from 0, got {', '.join(inside)}")
        return make(_form(item).read(of, _join(path, place), each) for place, each in inside.items())

    return _Form(write, read)


def _row(array: np.ndarray) -> tuple[np.dtype, tuple[int, ...]]:
    return array.dtype, array.shape[1:]


def _write_array(to: _Writing, path: str, value: Any) -> None:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        raise TypeError(f"{path} must be an array of numbers, got {_got(value)}")
    to.entries[path] = np.asarray(value)


def _read_array(of: _Reading, path: str, node: Any) -> np.ndarray:  # noqa: ARG001
    return _array(path, node)


def _array(path: str, node: Any) -> np.ndarray:
    if not isinstance(node, np.ndarray | np.generic) or node.dtype.kind not in "biuf":
        raise ValueError(f"{path} must be an array of numbers, got {_got(node)}")
    return np.asarray(node)


def _write_record(to: _Writing, path: str, value: Any) -> None:
    if not isinstance(value, ArrayRecord):
        raise TypeError(f"{path} must be an ArrayRecord, got {_got(value)}")
    if (first := to.records.setdefault(id(value), path)) != path:
        to.entries[path] = first
    else:
        to.all(path, {_escaped(name): (_form(np.ndarray), to_numpy(array)) for name, array in value.items()})


def _read_record(of: _Reading, path: str, node: Any) -> ArrayRecord:
    if isinstance(node, str):  # the path of one that is the same
        path, node = node, of.tree
        for key in path.split("/"):
            node = node.get(key) if isinstance(node, dict) else None
    if path not in of.records:
        record = ArrayRecord()
        for name, values in _inside(path, node).items():
            record[_unescaped(name)] = from_numpy(_array(_join(path, name), values))
        of.records[path] = record
    return of.records[path]


def _write_any(to: _Writing, path: str, value: Any) -> None:
    kind, value = _kind_of(value)
    if kind == "json":
        to.all(path, {_KIND: (_form(str), kind), _VALUE: (_form(str), json.dumps(value))})
    elif kind:
        to.all(path, {_KIND: (_form(str), kind), _VALUE: (_form(_KINDS[kind]), value)})
    elif isinstance(value, np.ndarray | np.generic):
        _write_array(to, path, value)
    else:
        _ANY_SCALAR.write(to, path, value)


def _read_any(of: _Reading, path: str, node: Any) -> Any:
    if not isinstance(node, dict):
        return _array(path, node) if isinstance(node, np.ndarray) else _ANY_SCALAR.read(of, path, node)
    kind, value = node.get(_KIND), node.get(_VALUE)
    if isinstance(kind, str) and kind == "json":
        try:
            return json.loads(str(value))
        except ValueError as error:
            raise ValueError(f"{path} must be JSON: {error}") from error
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{path} must be one of json, {', '.join(_KINDS)}, got {_got(kind)}")
    return _form(_KINDS[kind]).read(of, _join(path, _VALUE), value)


_ANY_SCALAR = _scalar(_SCALARS)
_KINDS: dict[str, Any] = {
    "record": ArrayRecord,
    "mapping": dict[str, Any],
    "numbered": dict[int, Any],
    "list": list[Any],
}


def _kind_of(value: Any) -> tuple[str, Any]:
    """Find how a value without a hint is written: as JSON, as a container of others, or as it is."""
    if isinstance(value, ArrayRecord):
        return "record", value
    if isinstance(value, Mapping):
        numbered = bool(value) and all(isinstance(key, int | np.integer) for key in value)
        return "json" if _is_json(value) else "numbered" if numbered else "mapping", value
    if isinstance(value, list | tuple):
        return "json" if _is_json(value) else "list", list(value)
    return "", value


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(inside) for key, inside in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, float, str)


def _is_a(node: Any, allowed: tuple[type, ...]) -> bool:
    if isinstance(node, np.ndarray) and node.ndim == 0:
        node = node.item()
    return isinstance(node, allowed)


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
