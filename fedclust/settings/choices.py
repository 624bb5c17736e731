"""Options of a configuration's choices: defaults, names, types and rules, all from the class itself.

A node with a ``_target_`` names a class or a function, and its options are the arguments. A strategy in a
user's own package is checked like one of ours::

    class BySize(ClusteredStrategy):
        def __init__(self, *, threshold: Annotated[int, ">= 1"] = 100, **options: Any) -> None: ...

A default is written once. A YAML file lists a dataclass among its defaults and names only what it changes::

    defaults:
      - /defaults_of/fedclust.clustering.fmcl.Parameters@parameters
      - _self_
    parameters:
      max_clusters: 4

This works for any importable dataclass, in ``conf/`` and in a user's own folders. Hydra knows all of its
fields: ``--cfg job`` shows them, overrides may name them, and a wrong key is refused. As composing a
configuration needs no PyTorch, the modules of such dataclasses import only the standard library and NumPy.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from fedclust.support.checks import UNIONS, check_hint, suggestion

GROUP = "defaults_of"
_REQUIRED = "???"  # OmegaConf's sign for a mandatory value
_HEAVY = re.compile(r"fedclust\.(aggregation|grids|models|selection|strategies)\.|(?!fedclust\.)")
"""Start of names whose import may take seconds, as they need PyTorch or Flower."""
_BY_THE_RUN = ("app", "run_config", "options")
"""Arguments of engines and strategies that the run gives, and no configuration."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ELSEWHERE = re.compile(r"\$\{(oc\.select:)?([\w.]+)(?:,null)?\}")
FLOWERS_RULES = {
    "proximal_mu": ">= 0 and finite",
    "server_learning_rate": "> 0 and finite",
    "server_momentum": "in [0, 1)",
    "eta": "> 0 and finite",
    "tau": "> 0 and finite",
    "beta_1": "in [0, 1)",
    "beta_2": "in [0, 1)",
    "num_malicious_nodes": ">= 0 and finite",
}
"""Rules of the arguments of Flower's aggregators, which Flower does not check."""
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


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
    ImportError, AttributeError
        If it does not exist.
    TypeError
        If it is not a dataclass.
    """
    options = resolve_name(target)
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


def arguments_of(target: Any) -> tuple[dict[str, Any], bool]:
    """List the arguments of a class or function by name, and whether it takes no others.

    A constructor that hands ``**rest`` on takes the arguments of the class it is derived from, too.

    Returns
    -------
    The type of each argument, None where it has none; and whether these are all.
    """
    found: dict[str, Any] = {}
    classes = inspect.getmro(target)[:-1] if inspect.isclass(target) else ()  # without object
    made = [vars(each)["__init__"] for each in classes if "__init__" in vars(each)]
    for function in made if classes else [target]:
        try:
            parameters, hints = inspect.signature(function).parameters.values(), _hints(function)
        except (TypeError, ValueError):  # it is written in C
            return found, False
        named = [each.name for each in parameters if each.kind in _NAMED and each.name != "self"]
        found = {name: hints.get(name) for name in named} | found
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return found, True
    return found, "options" in found  # a strategy is given no others beside the run's options


def wrong_option(config: DictConfig, *, light: bool = False) -> str | None:
    """Find the first option that its class refuses, by its name, its type or its rules.

    Every node with a ``_target_`` is checked, at any depth, first those whose classes are quick to import.
    Checked types are numbers, texts, true and false, literals and sequences of these; null is always allowed.
    A whole number counts as a number, but not the other way round: `10.0` and `1e1` are not whole numbers. A
    value that refers to another is checked there. Rules are those in types, see
    :func:`~fedclust.support.checks.check_hint`, and of the ``__post_init__`` of a dataclass that is quick to
    import.

    Parameters
    ----------
    config
        The composed configuration.
    light
        Whether to leave out classes whose import may take seconds.

    Returns
    -------
    Key, rule and value in one line; None if all are valid.
    """
    whole: Any = OmegaConf.to_container(config, resolve=False)
    nodes = [(_HEAVY.match(str(node["_target_"])) is not None, key, node) for key, node in _nodes(whole)]
    for heavy, key, node in sorted(nodes, key=lambda each: each[0]):
        if heavy and light:
            break
        if key.partition(".")[0] == "partition" and whole["partition"].get("file") is not None:
            continue  # the options are unused
        try:
            options = resolve_name(str(node["_target_"]))
        except (ImportError, ValueError, AttributeError):  # building it reports the error
            continue
        problem = _wrong_argument(key, node, options)
        if problem or (not heavy and (problem := _refused(key, node, options, whole))):
            return problem
    return None


def _nodes(node: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """List every node that has a ``_target_``, at any depth, with its key."""
    if node.get("_target_", _REQUIRED) != _REQUIRED:
        yield key, node
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _nodes(value, f"{key}.{name}" if key else str(name))


def _wrong_argument(key: str, node: Mapping[str, Any], options: Any) -> str | None:
    """Find the first value of a node that its class does not take, by its name, its type or its rule."""
    hints, closed = arguments_of(options)
    given = {name: value for name, value in node.items() if not str(name).startswith("_")}
    known = hints.keys() - {*_BY_THE_RUN}
    unknown = [name for name in given if name not in known]
    if closed and unknown and key.partition(".")[0] != "partition":  # which has keys for others, too
        hint = suggestion(unknown[0], known)
        return f"unknown key {f'{key}.{unknown[0]}'!r}{hint}: {key} has {', '.join(sorted(known))}"
    if str(getattr(options, "__module__", "")).startswith("flwr."):
        hints |= {name: Annotated[hints[name], rule] for name, rule in FLOWERS_RULES.items() if name in hints}
    return wrong_value(key, given, hints)


def wrong_value(
    key: str, node: Mapping[str, Any], hints: Mapping[str, Any], *, null: bool = True
) -> str | None:
    """Find the first value of a node that does not have the type of its argument, or breaks its rule.

    With `null` it may always be null, otherwise only where the type says so.
    """
    for name, value in node.items():
        if (isinstance(value, str) and (value == _REQUIRED or "${" in value)) or (null and value is None):
            continue
        rule = _in_words(hints.get(name))
        if rule is not None and not _fits(value, hints[name]):
            hint = suggestion(value, rule.split(" or "))
            if rule.startswith("a list") and _fits([value], hints[name]):
                hint = f"; as a list: {f'{key}.{name}'.lstrip('.')}=[{value}]"
            return f"{key}.{name} must be {rule}, got {value!r}{hint}".lstrip(".")
        try:
            check_hint(f"{key}.{name}".lstrip("."), value, hints.get(name))
        except ValueError as error:
            return str(error)
    return None


def _hints(function: Any) -> dict[str, Any]:
    with suppress(TypeError, AttributeError, NameError):
        return typing.get_type_hints(function, include_extras=True)
    return {}


def _refused(key: str, node: dict[str, Any], options: Any, whole: dict[str, Any]) -> str | None:
    """Construct the dataclass of a node's options if all are known; return its error."""
    if not (dataclasses.is_dataclass(options) and hasattr(options, "__post_init__")):
        return None
    names = {field.name for field in dataclasses.fields(options) if field.init}
    given = {name: value for name, value in node.items() if name in names}
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
    if origin is Annotated:
        return _in_words(parts[0])
    if origin is Callable:
        return "a function, named by a _target_"
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is typing.Literal:
        return " or ".join("null" if choice is None else str(choice) for choice in parts)
    inner = [_in_words(part) for part in parts]
    if None in inner or origin not in (*UNIONS, list, tuple, Sequence):
        return None
    words = " or ".join(dict.fromkeys(map(str, inner)))
    return words if origin in UNIONS else f"a list, each entry {words}"


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; a whole number is a number, too."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin is Callable:
        return isinstance(value, Mapping)
    if hint in _WORDS:
        kind = (int, float) if hint is float else hint
        return isinstance(value, kind) and isinstance(value, bool) == (hint is bool)
    if origin is typing.Literal:
        return value in parts
    if origin in UNIONS:
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
    plugins.register(_Sources)


@contextmanager
def folders(searchpath: Sequence[str]) -> Iterator[None]:
    """Add folders to the search path of a Hydra that is started in this context, as --config-dir does."""
    _Sources.folders = [each if "://" in each else f"file://{Path(each).absolute()}" for each in searchpath]
    try:
        yield
    finally:
        _Sources.folders = ()


class _Dataclasses(ConfigSource):
    """Configurations ``defaults_of/<dotted path>``."""

    @staticmethod
    def scheme() -> str:
        return "dataclass"

    def load_config(self, config_path: str) -> ConfigResult:
        try:
            node = defaults_of(_target(config_path) or config_path)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
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


class _Sources(SearchPathPlugin):
    """Adds the configurations of :class:`_Dataclasses` to every search path of Hydra, and further folders."""

    folders: ClassVar[Sequence[str]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fedclust", f"{_Dataclasses.scheme()}://")
        for folder in self.folders:
            search_path.append("command-line", folder)


def _target(config_path: str) -> str | None:
    group, _, name = config_path.strip("/").partition("/")
    name = name.removesuffix(".yaml")
    return name if group == GROUP and "." in name and "/" not in name else None
