"""Check the types of options before anything is built from them, so that an error can name the key."""

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

__all__ = ["hints_of", "in_words", "nodes_with_targets", "wrong_type"]

_RULES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
_SEQUENCES = (list, tuple, Sequence)


def wrong_type(config: DictConfig, reads: Sequence[Callable[[str], dict[str, Any]]]) -> str | None:
    """Find the first option whose value does not have the type of its constructor's argument.

    Only numbers, texts, true and false, literals and sequences of these are checked, and null is always
    allowed; the constructor checks the rest. A whole number counts as a number, but not the other way
    round: `10.0` and `1e1` are not whole numbers.

    Parameters
    ----------
    config
        The composed configuration. Every node with a ``_target_`` is checked, at any depth.
    reads
        How to get a constructor's types, one way after another: from its source, or by importing it.

    Returns
    -------
    Key, rule and value in one line; None if all types are right.
    """
    for read in reads:
        for key, node in nodes_with_targets(config):
            if problem := _wrong(key, node, read(str(node.get("_target_")))):
                return problem
    return None


def _wrong(key: str, node: DictConfig, hints: dict[str, Any]) -> str | None:
    for name in node:
        # An interpolated value is checked where it comes from; a missing one has no type yet.
        if (
            name not in hints
            or OmegaConf.is_interpolation(node, str(name))
            or OmegaConf.is_missing(node, name)
        ):
            continue
        value = OmegaConf.to_container(node[name]) if OmegaConf.is_config(node[name]) else node[name]
        rules = _rules(hints[str(name)])
        if rules is not None and value is not None and not any(holds(value) for _, holds in rules):
            rule = " or ".join(dict.fromkeys(text for text, _ in rules))
            return f"{key}.{name} must be {rule}, got {value!r}"
    return None


def nodes_with_targets(node: DictConfig, key: str = "") -> Iterator[tuple[str, DictConfig]]:
    """List every node of a configuration that has a ``_target_``, at any depth, with its key."""
    if "_target_" in node and not OmegaConf.is_missing(node, "_target_"):
        yield key, node
    for name in node:
        # An interpolated node is checked where it comes from.
        if OmegaConf.is_interpolation(node, str(name)) or OmegaConf.is_missing(node, name):
            continue
        if isinstance(node[name], DictConfig):
            yield from nodes_with_targets(node[name], f"{key}.{name!s}" if key else str(name))


def in_words(hints: dict[str, Any]) -> dict[str, list[str]]:
    """List what each type allows, as the messages have it; types that are not checked here are left out."""
    told = {name: _rules(hint) for name, hint in hints.items() if name != "return"}
    return {name: [text for text, _ in rules] for name, rules in told.items() if rules is not None}


def hints_of(target: str) -> dict[str, Any]:
    """Get the types of a constructor's arguments; none if it is not found, which building it will report."""
    try:
        found = get_object(target)
        return typing.get_type_hints(getattr(found, "__init__") if isinstance(found, type) else found)  # noqa: B009
    except (ImportError, ValueError, TypeError, AttributeError, NameError):
        return {}


def _rules(hint: Any) -> list[tuple[str, Any]] | None:
    """List what a type allows, in words and as a check; None if it is not one of the types checked here."""
    if hint in _RULES:
        return [(_RULES[hint], lambda value: _is(value, hint))]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return [(_quoted(option), lambda value, option=option: value == option) for option in arguments]
    if origin in (types.UnionType, typing.Union):
        parts = [_rules(argument) for argument in arguments]
        return None if None in parts else [rule for part in parts if part is not None for rule in part]
    if origin in _SEQUENCES:
        inner = [_rules(argument) for argument in arguments if argument is not Ellipsis]
        if None in inner:
            return None
        checks = [holds for part in inner if part is not None for _, holds in part]
        entries = " or ".join(text for part in inner if part is not None for text, _ in part)
        return [
            (
                f"a list, each entry {entries}",
                lambda value: (
                    isinstance(value, list) and all(any(holds(one) for holds in checks) for one in value)
                ),
            )
        ]
    return None


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _quoted(option: Any) -> str:
    return "null" if option is None else str(option)
