"""Compose the configuration, and pass it to servers and nodes."""

import copy
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedclust.data.targets import kind_of
from fedclust.settings import choices
from fedclust.settings.run_options import COMMON, DEFAULT_ROW_CAP, VALIDATION, RunOptions
from fedclust.support.checks import DEFAULT_FRACTION, nearest, none_of
from fedclust.support.hydra_versions import TRUSTED, VERSION_BASE
from fedclust.support.layout import CONF

COMPOSED, OVERRIDES = "config", "overrides"


def _in_data(size: str, *, _parent_: DictConfig) -> Any:
    """Resolve ``${in_data:num_classes}`` and the like of a ``dataset`` node."""
    from fedclust.data.loading import sizes_in_data  # imports torch, which takes seconds

    if size == "category_sizes" and _parent_.get("encoding") != "index":
        return None
    raw: Any = OmegaConf.to_container(_parent_, resolve=False)
    known = [str(key) for key in _parent_ if not (key in OPEN and raw[key] in UNKNOWN)]
    sizes = sizes_in_data({key: plain(_parent_[key]) for key in known})
    if size not in sizes:
        raise ConfigError(f"dataset.{size} must be given for dataset {_parent_.name}")
    value = sizes[size]
    # A list as it is could not be resolved inside the node of a strategy that has a network.
    return OmegaConf.create(value) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=8)  # a configuration is resolved many times
def _dimension(encoder: str) -> int:
    size: int = build(json.loads(encoder), _recursive_=False, _convert_="all").dimension
    return size


def _embedding_shape(*, _root_: DictConfig) -> Any:
    """Resolve ``${embedding_shape:}``, the shape of an embedding by the configured encoder."""
    if not is_encoded(_root_):  # a node checks only an encoder that embeds its rows
        raise ConfigError("features.encoded must be true for ${embedding_shape:}, got false")
    return OmegaConf.create([_dimension(json.dumps(plain(_root_.encoder), sort_keys=True))])


def _num_outputs(*, _root_: DictConfig) -> Any:
    """Resolve ``${num_outputs:}``: how many outputs a network needs, one per class if classes."""
    dataset = _root_.dataset
    return kind_of(dataset.get("target"), dataset.get("event")).width or dataset.num_classes


# Hydra 1.4's OmegaConf 2.4 deprecates the first name; in 2.3 the second is a different function.
_register: Any = OmegaConf.register_new_resolver if VERSION_BASE else OmegaConf.register_resolver
_register("in_data", _in_data, replace=True)
_register("embedding_shape", _embedding_shape, replace=True)
_register("num_outputs", _num_outputs, replace=True)
choices.register()

TARGET = "fedclust.data.sites.OwnSitesPartition"
"""The ``_target_`` of a ``partition`` node of sites with their own data."""

OPEN = ("num_classes", "input_shape", "category_sizes")
"""Keys of the ``dataset`` node that the sites' agreement sets."""

MISSING = "???"
_COUNTED = "${embedding_shape:}"
UNKNOWN = (None, MISSING, *(f"${{in_data:{key}}}" for key in OPEN))

_SEARCHPATH = "hydra.searchpath"
_PLUGINS = {"hydra/sweeper=optuna": "optuna", "hydra/launcher=ray": "ray-launcher"}


_PYTHON = re.compile(r"(?<!['\"\w.])(None|True|False)(?!['\"\w.])")


class ConfigError(ValueError):
    """The configuration names something that does not exist, or a value that is not allowed.

    The message has values as users write them: null, true and false.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_PYTHON.sub(lambda word: {"None": "null"}.get(word[0], word[0].lower()), message))


def compose(
    overrides: Sequence[str] = (), *, searchpath: Sequence[str] = (), name: str = "config"
) -> DictConfig:
    """Compose the configuration from ``conf/`` and Hydra overrides.

    Parameters
    ----------
    overrides
        As on the command line: ``["strategy=fmcl", "partition.alpha=0.1"]``. ``hydra.searchpath=[folder]``
        adds the user's own folders to ``conf/``.
    searchpath
        More such folders, like that of ``--config-dir``; a package as ``pkg://its.name``.
    name
        The configuration to start from, like that of ``--config-name``.

    Raises
    ------
    ConfigError
        If an override does not parse or names a key or choice that does not exist (the message lists the
        valid ones), or if a folder or the configuration to start from does not exist.
    """
    return compose_with_hydra(overrides, searchpath=searchpath, name=name)[0]


def compose_with_hydra(
    overrides: Sequence[str] = (), *, searchpath: Sequence[str] = (), name: str = "config"
) -> tuple[DictConfig, DictConfig]:
    """Compose like :func:`compose`, and return beside the configuration the one with Hydra's own node."""
    for key, folder in [*_searchpath(overrides), *(("--config-dir", folder) for folder in searchpath)]:
        path = folder.removeprefix("file://")
        if "://" not in path and not Path(path).is_dir():
            raise ConfigError(f"{key} must name a folder that exists, got {folder}")
    with _separate_hydra(searchpath):
        try:
            _refuse_paths(overrides)
            composed = hydra.compose(name, list(overrides), return_hydra_config=True)
            if name == "config" and (added := own_partition(composed, overrides)):
                composed = hydra.compose(name, [*overrides, added], return_hydra_config=True)
            if problem := _unread(composed, overrides, name) or _misplaced(composed):
                raise ConfigError(problem)
            return with_choices(composed, composed.hydra), composed
        except ConfigError:
            raise
        except UnicodeDecodeError as error:
            folders = [*searchpath, *(folder for _, folder in _searchpath(overrides))]
            raise ConfigError(f"{_not_utf8(folders)} must be a text in UTF-8: {error}") from error
        # ValueError and TypeError: a list's key, a choice that is no text; the YAML's names its file.
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, yaml.YAMLError) as error:
            raise ConfigError(_explain(error, overrides, name)) from error


def _unread(composed: DictConfig, overrides: Sequence[str], name: str) -> str | None:
    """Name a key that an override adds with ``+`` and that no other value refers to; None without one."""
    added = [text for text in overrides if text.startswith("+")]
    keys = {re.split(r"[.@=/]", text.lstrip("+"))[0] for text in added} - {"hydra"}
    existing = [*hydra.compose(name)] if keys else []
    for key in sorted(keys - {*map(str, existing)}):
        is_group = GlobalHydra.instance().config_loader().get_group_options(key)
        if not is_group and f"${{{key}" not in OmegaConf.to_yaml(composed, resolve=False):
            hint = f"did you mean {near!r}? " if (near := nearest(key, existing)) else ""
            return f"unknown key {key!r}, which nothing reads: {hint}there is {', '.join(existing)}"
    return None


_NO_HEADER = (
    "experiment/{}.yaml must begin with the line '# @package _global_', without a byte order mark before it"
)


def _misplaced(composed: DictConfig) -> str | None:
    """Name an experiment whose settings would stay below ``experiment``, or a choice that is a list."""
    chosen = composed.hydra.runtime.choices
    if isinstance(composed.get("experiment"), DictConfig):
        return _NO_HEADER.format(chosen.experiment)
    lists = [key for key in chosen if isinstance(composed.get(key), ListConfig)]
    return f"{lists[0]}/{chosen[lists[0]]}.yaml must have settings, each as 'key: value'" if lists else None


def _not_utf8(folders: Sequence[str]) -> Path | str:
    """Return the first configuration file that is not UTF-8."""
    for file in (file for folder in folders for file in sorted(Path(folder).rglob("*.yaml"))):
        if not file.is_file():
            continue
        try:
            file.read_text(encoding="utf-8")
        except ValueError:
            return file
    return "a configuration file"


def own_partition(composed: DictConfig, overrides: Sequence[str]) -> str | None:
    """Return the partition of data that the user brings, as an override; None if it is given or theirs.

    The default partition, ``conventions``, exchanges classes to show what groups are. Data of the user's own
    stay as they are: each owner is a client if a column names the owners, else rows are dealt at random.
    """
    chosen = composed.hydra.runtime.choices
    data = str(chosen.get("dataset"))
    brought = data in _BROUGHT or not (CONF / "dataset" / f"{data}.yaml").is_file()
    given = any(override.lstrip("+~").startswith("partition=") for override in overrides)
    if given or not brought or chosen.get("partition") != _SHOWS_GROUPS or chosen.get("experiment"):
        return None
    return f"partition={'iid' if OmegaConf.select(composed, 'dataset.natural') is None else 'natural'}"


_BROUGHT = ("csv", "image_folder", "text")  # choices of dataset= that read files of the user's
_SHOWS_GROUPS = "conventions"


def _refuse_paths(overrides: Sequence[str]) -> None:
    """Refuse a path in place of a group's choice before Hydra opens the file that it leads to.

    Raises
    ------
    ConfigError
        If a choice is not made of the names of a file and its folders.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group = str(override.key_or_group)
        if not (CONF / group.partition("/")[0]).is_dir() and not group.startswith("hydra/"):
            continue
        value = override.value()
        for choice in value if isinstance(value, list) else [value]:
            if isinstance(choice, str) and not _CHOICE.fullmatch(choice):
                listed = GlobalHydra.instance().config_loader().get_group_options(group)
                raise ConfigError(_no_choice(group, choice, listed))


def _no_choice(group: str, chosen: object, known: Sequence[str]) -> str:
    """Write that a group has no such choice; a file in place of a data set has a setting of its own."""
    if group != "dataset" or not (Path(str(chosen)).suffix or "/" in str(chosen)):
        return none_of(group, chosen, known)
    reader = "csv" if Path(str(chosen)).suffix else "image_folder"
    given = shlex.quote(f"dataset.path={chosen}")
    rule = f"{group} must be one of {', '.join(known)}, got {chosen!r}"
    return f"{rule}; a file is given so: dataset={reader} {given}"


def options(group: str, searchpath: Sequence[str] = ()) -> list[str]:
    """List the choices of a group, in ``conf/`` and in the folders of `searchpath`."""
    with _separate_hydra(searchpath):
        return GlobalHydra.instance().config_loader().get_group_options(group)


@contextmanager
def _separate_hydra(searchpath: Sequence[str]) -> Iterator[None]:
    """Start a Hydra that composes from ``conf/`` and `searchpath`, even while Hydra runs the command line."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with choices.folders(searchpath):
            started = hydra.initialize_config_dir(str(CONF), **VERSION_BASE)
        with started:
            yield
    finally:
        GlobalHydra.instance().hydra = running


def with_choices(config: DictConfig, hydra_config: HydraConf) -> DictConfig:
    """Copy a composed configuration without Hydra's node, and record how it was composed.

    Parameters
    ----------
    config
        The composed configuration.
    hydra_config
        Its Hydra node.

    Returns
    -------
    The copy. ``choices`` has the choice of each group, ``overrides`` the overrides, and ``searchpath`` the
    folders besides ``conf/`` that it was composed from, if there are any.
    """
    runtime = hydra_config.runtime
    kept = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(kept, False)
    own = {group: choice for group, choice in runtime.choices.items() if "hydra" not in str(group)}
    own.pop("experiment/own", None)  # follows from the others
    kept.choices = own
    kept.overrides = list(hydra_config.overrides.task)
    added = [
        str(Path(source.path).absolute()) if source.schema == "file" else f"{source.schema}://{source.path}"
        for source in runtime.config_sources
        if source.provider == "command-line" or "hydra.searchpath" in source.provider
    ]
    if added:
        kept.searchpath = added
    if isinstance(kept.get("compare"), str):
        kept.compare = compared(kept)
    _resolve_auto(kept)
    _leave_open(kept)
    return kept


_CHOICE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # no .., no absolute path, no scheme
_CHOOSES = "fedclust.personal.layers.Auto"
_PRIVATE = {"fedclust.privacy.ClientDP": "client_dp", "fedclust.privacy.PatientDP": "patient_dp"}


def _resolve_auto(config: DictConfig) -> None:
    """Replace ``auto`` in ``row_cap``, ``proof`` and ``partition.validation_fraction`` by a value.

    There is a verdict beside every run with one model for all, except in experiments of papers and where
    label counts are withheld. Rows are held out only where something decides on them: a method by its name
    trains on all its training rows, and its verdict is measured on test rows. Invalid values are left to
    :mod:`fedclust.settings.checks`.
    """
    if config.get("row_cap") == "auto":
        main = parameters(config)[str(config.choices.get("strategy", ""))]
        config.row_cap = DEFAULT_ROW_CAP if getattr(main, "proves_splits", False) else None
    if "proof" not in config:  # a configuration of the user's own
        return
    if config.proof == "auto":
        free = config.choices.get("experiment") is None and not withheld(config)
        needed = any(getattr(each, "proves_splits", False) for each in parameters(config).values())
        config.proof = needed or (free and COMMON in parameters(config))
    partition = config.get("partition")
    if OmegaConf.is_config(partition) and partition.get("validation_fraction", "auto") == "auto":
        fraction = DEFAULT_FRACTION if any(deciders(config)) else 0.0
        OmegaConf.update(config, "partition.validation_fraction", fraction, merge=False, force_add=True)


def deciders(config: DictConfig) -> Iterator[str]:
    """List what decides on held-out rows in this run."""
    for name, each in parameters(config).items():
        if does := getattr(each, "held_out_rows", ""):
            yield f"strategy={name}, which {does}"
    others = {
        "serve=best, which chooses": config.get("serve") == "best",
        "personal=auto, which chooses": OmegaConf.select(config, "personal._target_") == _CHOOSES,
        "drift_every, which compares": bool(config.get("drift_every")),
        "stop=patience, which compares": OmegaConf.select(config, "stop.patience") is not None,
        "serve_round=best, which compares": config.get("serve_round") == "best",
        f"objective={VALIDATION}, which measures": config.get("objective") == VALIDATION,
    }
    yield from (what for what, decides in others.items() if decides)


def parameters(config: DictConfig) -> dict[str, Any]:
    """Return the class of the parameters of each strategy of the run, by the strategy's name.

    The class declares what its strategy needs; None for a strategy without parameters.
    """
    found = {str(config.choices.get("strategy", "")): _parameters(config.get("strategy"))}
    places = config.get("searchpath") or ()
    for name in dict.fromkeys(each for each in compared(config) if each not in found):
        found[name] = None if name == COMMON else parameters_of(name, *places)
    return found


@cache
def strategy_node(name: str, *searchpath: str) -> DictConfig:
    """Return the node of a strategy with its defaults, which refer to other nodes; composed once.

    Raises
    ------
    ConfigError
        If there is no such strategy.
    """
    with _separate_hydra(searchpath):
        if name not in (known := GlobalHydra.instance().config_loader().get_group_options("strategy")):
            raise ConfigError(none_of("strategy", name, known))
        return hydra.compose(f"strategy/{name}").strategy


def parameters_of(name: str, *searchpath: str) -> Any:
    """Return the class of a strategy's parameters; None if it has none, or there is no such strategy."""
    with suppress(ConfigError):
        return _parameters(strategy_node(name, *searchpath))
    return None


def _parameters(node: Any) -> Any:
    # Composing has imported it. Nothing else is: on a node, the name may come from somebody else.
    target = str(OmegaConf.select(node, "parameters._target_")) if OmegaConf.is_config(node) else ""
    module, _, name = target.rpartition(".")
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def compared(config: DictConfig) -> list[str]:
    """List the strategies to compare with."""
    compare = config.get("compare")
    listed = compare if isinstance(compare, ListConfig) else [] if compare is None else [compare]
    return [str(name) for name in listed]


def private_choice(config: DictConfig) -> str | None:
    """Return the choice of differential privacy that the run promises; None without one."""
    return _PRIVATE.get(str(OmegaConf.select(config, "privacy._target_")))


def withheld(config: DictConfig) -> str | None:
    """Name the setting that withholds what the proof needs; None if nothing is withheld."""
    if choice := private_choice(config):
        return f"privacy={choice}"
    return "privacy.label_counts=false" if OmegaConf.select(config, "privacy.label_counts") is False else None


def with_strategy(config: DictConfig, name: str) -> DictConfig:
    """Copy a configuration with another strategy, with its defaults for the same experiment and dataset.

    Raises
    ------
    ConfigError
        If there is no such strategy.
    """
    groups = ("experiment", "dataset")  # which may have values for it
    wanted = [f"{group}={config.choices[group]}" for group in groups if config.choices.get(group)]
    wanted.append(f"strategy={name}")
    other = compose(wanted, searchpath=config.get("searchpath") or ())
    changed = copy.deepcopy(config)
    changed.strategy = other.strategy
    changed.choices.strategy = name
    return changed


# A constructor's own errors, which Hydra does not wrap from 1.4 on.
_REFUSALS = (ValueError, TypeError, LookupError, ImportError, OSError, RuntimeError)


def build(node: Any, **arguments: Any) -> Any:
    """Build the object that a node of the configuration describes.

    Raises
    ------
    ConfigError
        If the object that it names does not exist or refuses its arguments.
    """
    try:
        return instantiate(node, **arguments, **TRUSTED)
    except (InstantiationException, OmegaConfBaseException, *_REFUSALS) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else None
        raise ConfigError(one_line(cause or error)) from error


def build_strategy(node: Any, options: RunOptions) -> Any:
    """Build the strategy that a node of the configuration describes, for a run with these options.

    Raises
    ------
    ConfigError
        If it does not exist, refuses its arguments, or the node sets one of the run's options.
    """
    check_given_once(node)
    make = build(node, _partial_=True)  # Hydra would make a configuration of a dataclass among the arguments
    try:
        return make(options=options)
    except _REFUSALS as error:
        raise ConfigError(one_line(error)) from error


def check_given_once(node: Any) -> None:
    """Check that a strategy's node sets none of the run's options.

    Raises
    ------
    ConfigError
        If it does; the message names where the value belongs.
    """
    for name in (field.name for field in fields(RunOptions)):
        # A preset may have its own selection, which applies unless selection= chooses another.
        if name in node and name != "selection":
            place = f"{name}={node[name]}" if isinstance(node[name], str | int | float) else f"{name}="
            raise ConfigError(f"strategy.{name} must not be given, it belongs to the run: {place}")


def to_run_config(config: DictConfig) -> dict[str, str]:
    """Write a composed configuration as a Flower app's ``context.run_config``.

    Raises
    ------
    ConfigError
        If a mandatory value is missing.
    """
    if not is_own(config):
        return {COMPOSED: json.dumps(plain(config))}
    # Values that are not yet known, and references to them, stay: Flower must not resolve them on the way.
    text = json.dumps(OmegaConf.to_container(config, resolve=False))
    return {COMPOSED: text.replace("${", "$\\u007b")}


def quoted(text: str) -> str:
    r"""Quote a text for an override, so that it may hold blanks and characters such as ``=`` and ``,``.

    Examples
    --------
    >>> print(quoted("a 'b'.csv"))
    'a \'b\'.csv'
    """
    # A backslash is itself except before a quote, and at the end.
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def join_overrides(overrides: Sequence[str]) -> str:
    """Join overrides into one string; :func:`split_overrides` reads them back.

    Raises
    ------
    ConfigError
        If an override has white space outside of brackets and quotes.
    """
    for override in overrides:
        if split_overrides(override) != [override]:
            raise ConfigError(f"override must have white space in quotes only, got {override!r}")
    return " ".join(overrides)


def split_overrides(text: str) -> list[str]:
    """Split overrides written in one string at white space outside of brackets and quotes."""
    parts, depth, quote, part = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "[{(") - (character in "]})")
        if character.isspace() and not quote and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [part for part in [*parts, part] if part]


def plain(node: Any) -> Any:
    """Convert a configuration node to plain Python with interpolations resolved; return other values as is.

    Raises
    ------
    ConfigError
        If a mandatory value is missing.
    """
    if not OmegaConf.is_config(node):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        missing = list(_missing(OmegaConf.to_container(node)))
        group = missing[0].partition(".")[0] if missing else ""
        choice = OmegaConf.select(node, f"choices.{group}") if OmegaConf.is_dict(node) and group else None
        about = f"; fedclust help {group}={choice} says what it is" if choice else ""
        text = f"{', '.join(missing)} must be given{about}" if missing else one_line(error)
        raise ConfigError(text) from error


def _missing(node: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of mandatory values that are missing."""
    if node == MISSING:
        yield key
    for name, value in node.items() if isinstance(node, dict) else ():
        yield from _missing(value, f"{key}.{name}".lstrip("."))


def is_own(config: Mapping[str, Any] | DictConfig) -> bool:
    """Return whether every site holds its own data."""
    partition = config.get("partition")
    return isinstance(partition, Mapping | DictConfig) and partition.get("_target_") == TARGET


def is_encoded(config: Mapping[str, Any] | DictConfig) -> bool:
    """Return whether a frozen encoder embeds the rows that the network is trained on."""
    features = config.get("features")
    return isinstance(features, Mapping | DictConfig) and bool(features.get("encoded"))


def _leave_open(config: DictConfig) -> None:
    """Mark sizes that the sites will state as not yet known; changes `config` with partition=own."""
    if not is_own(config) or "dataset" not in config:
        return
    given: Any = OmegaConf.to_container(config.dataset, resolve=False)
    for key in OPEN:
        if key in given and given[key] in UNKNOWN:
            config.dataset[key] = MISSING
    features: Any = OmegaConf.to_container(config.features, resolve=False) if is_encoded(config) else {}
    if features.get("input_shape") == _COUNTED:
        config.features.input_shape = MISSING


def fill(config: DictConfig, agreed: Mapping[str, Any]) -> DictConfig:
    """Copy a configuration with the values that the sites agreed on, by dotted key."""
    filled = copy.deepcopy(config)
    for key, value in agreed.items():
        OmegaConf.update(filled, key, value, merge=False, force_add=True)
    return filled


def _explain(error: Exception, overrides: Sequence[str], name: str = "config") -> str:
    """Name the wrong override and list the valid keys or choices; Hydra must be initialised.

    Parameters
    ----------
    error
        The error that Hydra raised.
    overrides
        The overrides that it was given.
    name
        The configuration it started from.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == name:
        return f"--config-name must be config or a file of the folder --config-dir, got {name!r}"
    parsed: list[Override] = []
    for text in overrides:
        try:
            parsed.append(OverridesParser.create().parse_override(text))
        except HydraException as parse_error:
            key, colon, value = text.partition(":")
            if colon and "=" not in text:
                return f"a setting has its value after =, got {text}: fedclust {key.strip()}={value.strip()}"
            why = "it ends with a comma" if text.endswith(",") else one_line(parse_error) + _quoting(text)
            return f"override {text!r} does not parse: {why}"
    loader = GlobalHydra.instance().config_loader()
    added = [str(each.input_line) for each in parsed if each.key_or_group == _SEARCHPATH]

    def choices_of(group: str) -> list[str]:
        found = loader.get_group_options(group, config_name="config", overrides=added) if group else []
        return [choice for choice in found if choice != "config"]

    deciding: list[Override] = []
    others: list[Override] = []
    for override in parsed:
        key, chosen = override.key_or_group, override.value()
        known = choices_of(key)
        free = override.is_delete() or override.is_sweep_override()
        listed = chosen if isinstance(chosen, list) else [chosen]
        if known and not free and any(each not in known for each in listed):
            plugin = _PLUGINS.get(f"{key}={chosen}")
            return _no_choice(key, chosen, known) + (f"; pip install 'fedclust[{plugin}]'" if plugin else "")
        if override.is_sweep_override():
            swept = f"fedclust -m {override.input_line} runs each, {key}=[…] is one list"
            return f"{key} must have one value, got {str(override.input_line).partition('=')[2]}: {swept}"
        if known and len(listed) > 1:
            several = ",".join(map(str, listed))
            return f"{key} must have one value, got {listed}: fedclust -m {key}={several} runs each"
        decides = known or key == _SEARCHPATH or key.startswith("hydra/")
        (deciding if decides else others).append(override)
    # Choices that cannot be combined, a file that is no YAML: their own message, below.
    with suppress(HydraException, yaml.YAMLError):
        given = [str(each.input_line) for each in deciding]
        base = hydra.compose(name, given, return_hydra_config=True)
        if name == "config" and (brought := own_partition(base, overrides)):
            base = hydra.compose(name, [*given, brought], return_hydra_config=True)
        for override in others:
            if problem := _unknown(base, override):
                return problem
    if unheaded := re.match(r"In 'experiment/(.+?)': Could not override '.+@experiment\.", one_line(error)):
        return _NO_HEADER.format(unheaded[1])
    if isinstance(error, InterpolationResolutionError):
        return ": ".join([*(text for text in overrides if "${" in text), one_line(error)])
    reason = error.__cause__ if isinstance(error, HydraException) else None  # of "Error merging override"
    return ": ".join(map(one_line, [error, reason] if reason else [error]))


def _quoting(text: str) -> str:
    """Return how to quote an override that does not parse; nothing if that does not help."""
    key, equals, value = text.partition("=")
    quoted_text = f"{key}={quoted(value)}"
    if unclosed := [pair for pair in ("()", "[]", "{}") if text.count(pair[0]) > text.count(pair[1])]:
        return f"; a bracket is open: {text}{unclosed[0][1]}"
    if not equals or value[:1] in ("[", "{", "'", '"'):
        return ""
    try:
        OverridesParser.create().parse_override(quoted_text)
    except HydraException:
        return ""
    in_shell = shlex.quote(quoted_text) if set('"$`\\!') & set(quoted_text) else f'"{quoted_text}"'
    return f"; a text with such characters is quoted so: {in_shell}"


def _searchpath(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """List the folders that overrides add to the configuration, each with the key that names it."""
    for text in overrides:
        with suppress(HydraException):  # explain reports it
            override = OverridesParser.create().parse_override(text)
            if override.key_or_group == _SEARCHPATH:
                folders = override.value()
                if not isinstance(folders, list):
                    raise ConfigError(f"{_SEARCHPATH} must be a list of folders, got {folders!r}")
                yield from ((_SEARCHPATH, str(folder)) for folder in folders)


_ALSO = {"lr": "learning_rate", "clients": "num_clients"}  # as others call them


def _paths(config: DictConfig, name: str) -> Iterator[str]:
    """List the settings of all groups that have a name."""
    for group in config.hydra.runtime.choices:
        if isinstance(node := config.get(group), DictConfig) and name in node:
            yield f"{group}.{name}"


def _unknown(config: DictConfig, override: Override) -> str | None:
    """List the valid keys next to an unknown one."""
    key, parent = override.key_or_group, ""
    if override.is_force_add() or override.is_add() or key.startswith("hydra"):
        return None
    for name in key.split("."):
        node = OmegaConf.select(config, parent) if parent else config
        if not isinstance(node, DictConfig):
            listed = f"is a list, and set as a whole ({parent}=[…])"
            what = listed if isinstance(node, ListConfig) else "has no keys below it"
            return f"{parent} {what}, got {override.input_line}"
        chosen = config.hydra.runtime.choices.get(parent)  # another choice may have the key
        where = f"{parent}={chosen} has" if chosen else f"{parent} has" if parent else "there is"
        parent = f"{parent}.{name}".lstrip(".")
        if name not in node:
            existing = sorted(str(key) for key in node if key not in ("_target_", "hydra"))
            near = list(_paths(config, _ALSO.get(name, name))) or [*filter(None, [nearest(name, existing)])]
            hint = f"did you mean {' or '.join(map(repr, near[:3]))}? " if near else ""
            return f"unknown key {parent!r}: {hint}{where} {', '.join(existing) or 'nothing'}"
    return None


def one_line(error: BaseException) -> str:
    """Shorten an error of Hydra or OmegaConf to one line, without details for its developers."""
    if isinstance(error, MissingConfigException) and error.options:
        return f"{error.missing_cfg_file} must be one of {', '.join(error.options)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "To append to your"))]
    return re.sub(r"^\w+ raised while resolving interpolation: ", "", " ".join(kept))
