"""Options of a configuration's choices: defaults, types and rules, each in one dataclass.

A node with a ``_target_`` names a class. Its options are the fields of a frozen dataclass in a module that
imports only the standard library and NumPy, so that composing a configuration or refusing a wrong value needs
no PyTorch: the class itself, or the dataclass of the same name in ``options`` of its package, such as
:class:`fedclust.models.options.MLP` for ``fedclust.models.dense.MLP``.

A default is written once, in the dataclass. A YAML file lists the dataclass among its defaults and names only
what it changes::

    defaults:
      - /defaults_of/fedclust.clustering.fmcl.Parameters@parameters
      - _self_
    parameters:
      max_clusters: 4

This works for any importable dataclass, in ``conf/`` and in a user's own folders. Hydra knows all of its
fields: ``--cfg job`` shows them, overrides may name them, and a wrong key is refused.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from hydra._internal.utils import _locate  # get_object also logs what it raises
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from fedclust.support.checks import suggestion

GROUP = "defaults_of"
_REQUIRED = "???"  # OmegaConf's sign for a mandatory value
_AGGREGATORS = ("fedclust.aggregation.", "flwr.serverapp.strategy.")
_HEAVY = ("grids", "models", "selection", "strategies")
"""Packages whose classes need PyTorch or Flower; classes of other packages are imported directly."""
_ELSEWHERE = re.compile(r"\$\{(oc\.select:)?([\w.]+)(?:,null)?\}")
_RULES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
_UNIONS = (types.UnionType, typing.Union)


def light_options(target: str) -> Any:
    """Import the dataclass or function whose arguments are the options of a fedclust class.

    Parameters
    ----------
    target
        The dotted path of the class that a node of the configuration names.

    Returns
    -------
    The dataclass or function; None if importing it may import a large library, or if it does not exist.
    """
    package, _, rest = target.partition(".")
    room, name = rest.partition(".")[0], target.rpartition(".")[2]
    if target.startswith(_AGGREGATORS):
        return import_module("fedclust.aggregation.options").Aggregator
    if package == "fedclust" and room in _HEAVY:
        options = import_module(f"fedclust.{room}.options")
        other = getattr(options, "Other", None) if name in dir(import_module(f"fedclust.{room}")) else None
        return getattr(options, name, other)
    with suppress(ImportError, ValueError, AttributeError):
        return _locate(target) if package == "fedclust" else None
    return None


def defaults_of(target: str) -> dict[str, Any]:
    """List the fields of a dataclass with their defaults, as a configuration node.

    Parameters
    ----------
    target
        Its dotted path, such as ``"fedclust.clustering.fmcl.Parameters"``.

    Returns
    -------
    ``_target_`` and every argument of the constructor; ``???`` for a mandatory one. Arguments whose
    default is not a number, text, list or mapping, such as a function, are left out.

    Raises
    ------
    ImportError
        If it does not exist.
    TypeError
        If it is not a dataclass.
    """
    options = light_options(target) or _locate(target)
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise TypeError(f"{GROUP} must name a dataclass, got {target}")
    node: dict[str, Any] = {"_target_": target}
    for field in dataclasses.fields(options):
        value: Any = _REQUIRED if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.init and _is_plain(value):
            node[field.name] = value
    return typing.cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.create(node)))  # tuples as lists


def wrong_option(config: DictConfig) -> str | None:
    """Find the first option that its class refuses, by its type or by the dataclass's own rules.

    Every node with a ``_target_`` is checked, at any depth: first those of fedclust, then the others, whose
    import may take long, by their types only. Checked types are numbers, texts, true and false, literals and
    sequences of these; null is always allowed. A whole number counts as a number, but not the other way
    round: `10.0` and `1e1` are not whole numbers. A value that refers to another is checked there.

    Parameters
    ----------
    config
        The composed configuration.

    Returns
    -------
    Key, rule and value in one line; None if all are valid.
    """
    whole: Any = OmegaConf.to_container(config, resolve=False)
    nodes = [(light_options(str(node["_target_"])), key, node) for key, node in _nodes(whole)]
    for light, key, node in sorted(nodes, key=lambda each: each[0] is None):
        options, target = light, str(node["_target_"])
        with suppress(ImportError, ValueError, AttributeError):  # building it reports the error
            options = light or (None if target.startswith("fedclust.") else _locate(target))
        if problem := wrong_type(key, node, options) or (light and _refused(key, node, light, whole)):
            return problem
    return None


def _nodes(node: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """List every node that has a ``_target_``, at any depth, with its key."""
    if node.get("_target_", _REQUIRED) != _REQUIRED:
        yield key, node
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _nodes(value, f"{key}.{name}" if key else str(name))


def wrong_type(key: str, node: Mapping[str, Any], options: Any, *, null: bool = True) -> str | None:
    """Find the first value of a node that does not have the type of its class's argument.

    With `null` it may always be null, otherwise only where the type says so.
    """
    is_class = isinstance(options, type) and not dataclasses.is_dataclass(options)
    hints: dict[str, Any] = {}
    with suppress(TypeError, AttributeError, NameError):
        hints = typing.get_type_hints(getattr(options, "__init__", None) if is_class else options)
    for name, value in node.items():
        if (isinstance(value, str) and (value == _REQUIRED or "${" in value)) or (null and value is None):
            continue
        rule = _in_words(hints.get(name))
        if rule is not None and not _fits(value, hints[name]):
            hint = suggestion(value, rule.split(" or "))
            return f"{key}.{name} must be {rule}, got {value!r}{hint}".lstrip(".")
    return None


def _refused(key: str, node: dict[str, Any], options: Any, whole: dict[str, Any]) -> str | None:
    """Construct the dataclass of a node's options if all are known; return its error."""
    if not dataclasses.is_dataclass(options):
        return None
    names = {field.name for field in dataclasses.fields(options) if field.init}
    given = {name: value for name, value in node.items() if not str(name).startswith("_")}
    group = key.partition(".")[0]
    if group == "partition" and whole[group].get("file") is not None:  # the options are unused
        return None
    if key == "aggregator" or group == "partition":  # further keys are not for this dataclass
        given = {name: value for name, value in given.items() if name in names}
    elif unknown := [name for name in given if name not in names]:
        hint = suggestion(unknown[0], names)
        return f"unknown key {f'{key}.{unknown[0]}'!r}{hint}: {key} has {', '.join(sorted(names))}"
    if not hasattr(options, "__post_init__"):  # it has no rules
        return None
    try:
        values = {name: _known(value, whole) for name, value in given.items()}
        built = [name for name, value in values.items() if _is_built(value)]
        typing.cast(Any, options)(**(values | dict.fromkeys(built, _built_later)))
    except ValueError as error:
        reason = " ".join(str(error).split())
        argument = reason.partition(" ")[0]
        if argument.rpartition(".")[2] not in built:
            return f"{key}.{reason}" if argument in given else reason
    except (LookupError, TypeError, AttributeError):  # the constructor checks them once all are known
        pass
    return None


def _is_built(value: Any) -> bool:
    """Return whether a value is described by another node, or is a list of such values."""
    entries = value if isinstance(value, list) else [value]
    return any(isinstance(each, dict) and any(_nodes(each)) for each in entries)


def _known(value: Any, whole: dict[str, Any]) -> Any:
    """Look up a value; raise LookupError if it is not plain, because resolving it might read data."""
    while isinstance(value, str) and (path := _ELSEWHERE.fullmatch(value)):
        value = whole
        for part in path[2].split("."):
            if part not in value and path[1]:
                return None
            value = value[part]
    if not _is_built(value) and (value == _REQUIRED or "${" in str(value)):
        raise LookupError
    return value


def _built_later(*arguments: Any, **named: Any) -> None:  # noqa: ARG001
    """Stand in for an object, or a function, that another node describes."""
    raise LookupError


def _in_words(hint: Any) -> str | None:
    """Describe a type in words; None if it is not a checked type."""
    origin, parts = typing.get_origin(hint), [each for each in typing.get_args(hint) if each is not ...]
    if origin is Callable:
        return "a function, named by a _target_"
    if hint in _RULES:
        return _RULES[hint]
    if origin is typing.Literal:
        return " or ".join("null" if choice is None else str(choice) for choice in parts)
    inner = [_in_words(part) for part in parts]
    if None in inner or origin not in (*_UNIONS, list, tuple, Sequence):
        return None
    words = " or ".join(dict.fromkeys(map(str, inner)))
    return words if origin in _UNIONS else f"a list, each entry {words}"


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; a whole number is a number, too."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Callable:
        return isinstance(value, Mapping)
    if hint in _RULES:
        kind = (int, float) if hint is float else hint
        return isinstance(value, kind) and isinstance(value, bool) == (hint is bool)
    if origin is typing.Literal:
        return value in parts
    if origin in _UNIONS:
        return any(_fits(value, part) for part in parts)
    return isinstance(value, list) and all(any(_fits(each, part) for part in parts) for each in value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


def register() -> None:
    """Add the group ``defaults_of`` to Hydra's search path, once."""
    plugins = Plugins.instance()
    plugins.register(_Dataclasses)
    plugins.register(_AddDataclasses)


class _Dataclasses(ConfigSource):
    """Configurations ``defaults_of/<dotted path>``."""

    @staticmethod
    def scheme() -> str:
        return "dataclass"

    def load_config(self, config_path: str) -> ConfigResult:
        try:
            node = defaults_of(_target(config_path) or config_path)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigLoadError(f"{config_path}: {error}") from error
        config: Any = OmegaConf.create(node)
        return ConfigResult(self.provider, f"{self.scheme()}://", config, {"package": None})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") == GROUP

    def is_config(self, config_path: str) -> bool:
        return _target(config_path) is not None  # loading raises if it cannot be imported

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:  # noqa: ARG002
        return []  # too many to list: every importable dataclass


class _AddDataclasses(SearchPathPlugin):
    """Adds the configurations of :class:`_Dataclasses` to every search path of Hydra."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fedclust", f"{_Dataclasses.scheme()}://")


def _target(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").partition("/")
    name = name.removesuffix(".yaml")
    return name if group == GROUP and "." in name and "/" not in name else None
