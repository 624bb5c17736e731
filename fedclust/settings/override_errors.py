"""Explain errors in Hydra overrides in one line that lists the valid keys or choices."""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf

__all__ = ["explain", "one_line", "searchpath"]

_SEARCHPATH = "hydra.searchpath"


def explain(error: Exception, overrides: Sequence[str], name: str = "config") -> str:
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
            return f"override {text!r} does not parse: {one_line(parse_error)}"
    groups = _Groups(overrides, parsed)
    problems = [groups.wrong_choice(override) for override in parsed]
    if not any(problems):
        chosen = [text for text, override in zip(overrides, parsed, strict=True) if groups.decides(override)]
        with suppress(HydraException):  # choices that do not go together: Hydra's own message, below
            base = hydra.compose(name, chosen)
            problems = [None if groups.decides(override) else _unknown(base, override) for override in parsed]
    return next((problem for problem in problems if problem), one_line(error))


def searchpath(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """List the folders that overrides add to the configuration, each with the key that names it."""
    for text in overrides:
        with suppress(HydraException):  # explain reports it
            override = OverridesParser.create().parse_override(text)
            folders = override.value() if override.key_or_group == _SEARCHPATH else None
            if isinstance(folders, list):
                yield from ((_SEARCHPATH, str(folder)) for folder in folders)


class _Groups:
    """The groups and their choices, in ``conf/`` and in the folders that the overrides add to it."""

    def __init__(self, overrides: Sequence[str], parsed: Sequence[Override]) -> None:
        self._loader: ConfigLoader = GlobalHydra.instance().config_loader()
        self._searchpath = [
            text
            for text, override in zip(overrides, parsed, strict=True)
            if override.key_or_group == _SEARCHPATH
        ]

    def options(self, group: str) -> list[str]:
        """List the choices of a group; empty if it is not a group."""
        if not group:
            return []
        found = self._loader.get_group_options(group, config_name="config", overrides=self._searchpath)
        return [option for option in found if option != "config"]

    def decides(self, override: Override) -> bool:
        """Whether an override chooses from a group, or changes the choices there are."""
        key = override.key_or_group
        return key == _SEARCHPATH or key.startswith("hydra/") or bool(self.options(key))

    def wrong_choice(self, override: Override) -> str | None:
        """List the choices of a group if the override names another one."""
        options, chosen = self.options(override.key_or_group), override.value()
        if override.is_delete() or not options or not isinstance(chosen, str) or chosen in options:
            return None
        return f"{override.key_or_group} must be one of {', '.join(options)}, got {chosen!r}"


def _unknown(config: DictConfig, override: Override) -> str | None:
    """List the valid keys next to an unknown one."""
    key = override.key_or_group
    if override.is_force_add() or override.is_add() or key.startswith("hydra"):
        return None
    *above, last = key.split(".")
    node, parent = config, ""
    for name in above:  # down to the first that is not there
        if name not in node:
            break
        parent = f"{parent}.{name}" if parent else name
        below = OmegaConf.select(config, parent)
        if isinstance(below, ListConfig):
            return f"{parent} is a list, and set as a whole ({parent}=[…]), got {override.input_line}"
        if not isinstance(below, DictConfig):
            return f"{parent} has no keys below it, got {override.input_line}"
        node = below
    else:
        name = last
    if name in node:
        return None
    key = f"{parent}.{name}" if parent else name
    existing = sorted(str(there) for there in node)
    near = difflib.get_close_matches(name, existing, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    where = f"{parent} has" if parent else "there is"
    return f"unknown key {key!r}: {hint}{where} {', '.join(existing) or 'nothing'}"


def one_line(error: BaseException) -> str:
    """Shorten an error of Hydra or OmegaConf to one line, without details for their developers."""
    if isinstance(error, MissingConfigException) and error.options:
        return f"{error.missing_cfg_file} must be one of {', '.join(error.options)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "To append to your"))]
    return re.sub(r"^\w+ raised while resolving interpolation: ", "", " ".join(kept))
