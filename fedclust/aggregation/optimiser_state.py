"""The state of a Flower strategy between rounds, as arrays and numbers.

A server optimiser keeps its momentum in attributes. The attributes in which a strategy differs from a newly
made one are its state; it must consist of arrays, numbers and records, so that reading a checkpoint does not
run code.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedclust.support.array_bytes import from_numpy, to_numpy

__all__ = ["StateValue", "pack_state", "restore_state", "restored"]

StateValue = np.ndarray | str | float | int | bool | None


def pack_state(strategy: Strategy, fresh: Strategy) -> dict[str, StateValue]:
    """List the state of a strategy.

    Parameters
    ----------
    strategy
        A strategy after some rounds.
    fresh
        One made in the same way that has not run.

    Returns
    -------
    Arrays and scalars by path: ``m_t{weight`` for an entry of a dictionary, ``momentum_vector[0``
    for one of a list, ``strategy@m_t{weight`` for one of a strategy inside this one. A path that ends in a
    mark alone names a container's kind.

    Raises
    ------
    TypeError
        If an attribute that changed holds anything else, naming it.
    """
    packed: dict[str, StateValue] = {}
    for name, value in vars(strategy).items():
        other = vars(fresh).get(name)
        if isinstance(value, Strategy) and isinstance(
            other, Strategy
        ):  # such as the one in a privacy wrapper
            packed |= {f"{name}@{path}": inner for path, inner in pack_state(value, other).items()}
        elif value is not other and not _same_scalar(value, other):
            _pack(packed, name, value, type(strategy).__name__)
    return packed


def restore_state(strategy: Strategy, packed: Mapping[str, StateValue]) -> None:
    """Set a newly made strategy to a state of :func:`pack_state`."""
    tree: dict[str, Any] = {}
    inside: dict[str, dict[str, StateValue]] = {}
    for path, value in packed.items():
        name, kind, key = _parse(path)
        if kind == "@":
            inside.setdefault(name, {})[key] = value
        elif kind == "":
            tree[name] = value
        elif key == "":
            tree[name] = {"{": {}, "[": [], "<": ArrayRecord()}[kind]
        elif kind == "{":
            tree[name][key] = value
        elif kind == "[":
            tree[name].append(value)
        else:
            tree[name][key] = from_numpy(np.asarray(value))
    for name, value in tree.items():
        setattr(strategy, name, value)
    for name, nested in inside.items():
        restore_state(getattr(strategy, name), nested)


def restored(strategy: Strategy, packed: Mapping[str, StateValue]) -> Strategy:
    """Set a newly made strategy to a state, of which it gets values of its own, and return it."""
    restore_state(strategy, copy.deepcopy(dict(packed)))
    return strategy


# A path is an attribute's name; or the name, a mark for its kind of container, and the entry's key.
_MARKS = "{[<@"  # dictionary, list, ArrayRecord, strategy inside this one


def _pack(packed: dict[str, StateValue], name: str, value: object, owner: str) -> None:
    if isinstance(value, ArrayRecord):
        packed[f"{name}<"] = None
        packed.update({f"{name}<{key}": to_numpy(array) for key, array in value.items()})
    elif isinstance(value, Mapping) and all(_is_leaf(item) for item in value.values()):
        packed[f"{name}{{"] = None
        packed.update({f"{name}{{{key}": item for key, item in value.items()})
    elif isinstance(value, list | tuple) and all(_is_leaf(item) for item in value):
        packed[f"{name}["] = None
        packed.update({f"{name}[{number}": item for number, item in enumerate(value)})
    elif _is_leaf(value):
        packed[name] = value  # type: ignore[assignment]
    else:
        raise TypeError(
            f"aggregator {owner} cannot be resumed: attribute {name!r} must hold arrays, numbers or records, "
            f"got {type(value).__name__}"
        )


def _parse(path: str) -> tuple[str, str, str]:
    for position, character in enumerate(path):
        if character in _MARKS:
            return path[:position], character, path[position + 1 :]
    return path, "", ""


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, np.ndarray | np.generic | str | int | float | bool)


def _same_scalar(one: object, other: object) -> bool:
    plain = str | int | float | bool | None
    return isinstance(one, plain) and isinstance(other, plain) and one == other
