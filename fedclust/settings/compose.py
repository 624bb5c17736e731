"""Compose the configuration, and pass it to servers and nodes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.conf import HydraConf
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedclust.settings import defaults, override_errors, own_data, proof
from fedclust.settings.options import TRUSTED, VERSION_BASE
from fedclust.settings.run_options import RunOptions
from fedclust.support.layout import CONF

__all__ = [
    "CONF",
    "ConfigError",
    "build",
    "build_strategy",
    "compose",
    "from_run_config",
    "join_overrides",
    "options",
    "plain",
    "split_overrides",
    "to_run_config",
    "with_choices",
    "with_strategy",
]


COMPOSED, OVERRIDES = "config", "overrides"


def _classes_in_data(*, _parent_: DictConfig) -> int:
    """Resolve ``num_classes: ${classes_in_data:}`` of a ``dataset`` node."""
    from fedclust.data.loading import classes_in_data  # imports torch, which takes seconds

    values = {str(key): _parent_[key] for key in _parent_ if key != "num_classes"}
    return classes_in_data({key: plain(value) for key, value in values.items()})


# With Hydra 1.4 comes OmegaConf 2.4, which deprecates the first name; in 2.3 the second is another function.
_register: Any = OmegaConf.register_new_resolver if VERSION_BASE else OmegaConf.register_resolver
_register("classes_in_data", _classes_in_data, replace=True)
defaults.register()


class ConfigError(ValueError):
    """The configuration names something that does not exist, or a value that is not allowed."""


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
    named = [*override_errors.searchpath(overrides), *(("--config-dir", folder) for folder in searchpath)]
    for key, folder in named:
        path = folder.removeprefix("file://")
        if "://" not in path and not Path(path).is_dir():
            raise ConfigError(f"{key} must name a folder that exists, got {folder}")
    with _separate_hydra(searchpath):
        try:
            composed = hydra.compose(name, list(overrides), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a list's key
            raise ConfigError(override_errors.explain(error, overrides, name)) from error
    return with_choices(composed, composed.hydra)


def options(group: str, searchpath: Sequence[str] = ()) -> list[str]:
    """List the choices of a group, in ``conf/`` and in the folders of `searchpath`."""
    with _separate_hydra(searchpath):
        return GlobalHydra.instance().config_loader().get_group_options(group)


@contextmanager
def _separate_hydra(searchpath: Sequence[str]) -> Iterator[None]:
    """Start a Hydra that composes from ``conf/`` and `searchpath`, also while Hydra runs the command line."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):
            if searchpath:  # as Hydra adds --config-dir; its public function takes one folder only
                folders = create_config_search_path(str(CONF))
                for folder in searchpath:
                    where = folder if "://" in folder else f"file://{Path(folder).absolute()}"
                    folders.prepend("command-line", where, anchor=SearchPathQuery(provider="schema"))
                GlobalHydra.instance().clear()
                Hydra.create_main_hydra2(task_name="fedclust", config_search_path=folders)
            yield
    finally:
        GlobalHydra.instance().hydra = running


def with_choices(config: DictConfig, hydra_config: HydraConf) -> DictConfig:
    """Copy a composed configuration without Hydra's own node, and add how it was composed.

    Parameters
    ----------
    config
        The composed configuration.
    hydra_config
        Hydra's own node of it.

    Returns
    -------
    The copy. ``choices`` has the choice of each group, ``overrides`` the overrides, and ``searchpath`` the
    folders besides ``conf/`` that it was composed from, if there are any.
    """
    runtime = hydra_config.runtime
    kept = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(kept, False)
    own = {group: choice for group, choice in runtime.choices.items() if "hydra" not in str(group)}
    own.pop("tuned", None)  # follows from the others
    kept.choices = own
    kept.overrides = list(hydra_config.overrides.task)
    added = [
        str(Path(source.path).absolute()) if source.schema == "file" else f"{source.schema}://{source.path}"
        for source in runtime.config_sources
        if source.provider == "command-line" or "hydra.searchpath" in source.provider
    ]
    if added:
        kept.searchpath = added
    proof.resolve(kept)
    own_data.leave_open(kept)
    return kept


def with_strategy(config: DictConfig, name: str) -> DictConfig:
    """Copy a configuration with another strategy, at its defaults for the same experiment and dataset.

    Raises
    ------
    ConfigError
        If there is no such strategy.
    """
    choices = [f"strategy={name}"]
    choices += [
        f"{group}={config.choices[group]}"
        for group in ("experiment", "dataset")  # which may have values for it
        if config.choices.get(group)
    ]
    other = compose(choices, searchpath=config.get("searchpath") or ())
    changed = OmegaConf.merge(config, {})
    assert isinstance(changed, DictConfig)
    changed.strategy = other.strategy
    changed.choices.strategy = name
    return changed


# A constructor's own errors; Hydra raises them as they are from 1.4 on.
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
        said = error.__cause__ if isinstance(error, InstantiationException) else None
        raise ConfigError(override_errors.one_line(said or error)) from error


def build_strategy(node: Any, options: RunOptions) -> Any:
    """Build the strategy that a node of the configuration describes, for a run with these options.

    Raises
    ------
    ConfigError
        If it does not exist, refuses its arguments, or the node gives what the run's options do.
    """
    given = [field.name for field in fields(RunOptions) if field.name in node]
    if given:
        raise ConfigError(f"strategy.{given[0]} must not be given, it is an option of the run: {given[0]}=")
    make = build(node, _partial_=True)  # Hydra would make a configuration of a dataclass among the arguments
    try:
        return make(options=options)
    except _REFUSALS as error:
        raise ConfigError(override_errors.one_line(error)) from error


def to_run_config(config: DictConfig) -> dict[str, str]:
    """Write a composed configuration as a Flower app's ``context.run_config``.

    Raises
    ------
    ConfigError
        If a mandatory value is missing.
    """
    if own_data.is_own(config):
        return {COMPOSED: own_data.still_open(config)}
    return {COMPOSED: json.dumps(plain(config))}


def from_run_config(run_config: Mapping[str, Any]) -> DictConfig:
    """Get the configuration from ``context.run_config``: composed already, or to compose from overrides.

    Raises
    ------
    ConfigError
        If the overrides do not compose, or a mandatory value is missing.
    """
    if COMPOSED in run_config:
        return OmegaConf.create(json.loads(str(run_config[COMPOSED])))
    from fedclust.settings.shorthand import expand

    config = compose(expand(split_overrides(str(run_config.get(OVERRIDES, "")))))
    if not own_data.is_own(config):
        plain(config)  # raises for missing values
    return config


def join_overrides(overrides: Sequence[str]) -> str:
    """Write overrides in one string; :func:`split_overrides` reads them back.

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
    """Convert a node of the configuration to plain Python, interpolations resolved; return a value as it is.

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
        missing = ", ".join(_missing(OmegaConf.to_container(node)))
        raise ConfigError(
            f"{missing} must be given" if missing else override_errors.one_line(error)
        ) from error


def _missing(node: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of mandatory values that are missing."""
    if node == "???":
        yield key
    elif isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _missing(value, f"{key}.{name}" if key else str(name))
