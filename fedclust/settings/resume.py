"""Overrides that stand for several others: ``resume=<folder>`` and ``task=advise``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.utils import get_args_parser

from fedclust.settings.composition import ConfigError

_ADVISE = "task=advise"
# A few rounds, and groups looked for early in them.
_ADVICE = ("strategy=auto", "strategy.parameters.warmup=5", "rounds=20")

# What may change in a resumed run: its number of rounds, where it runs, and what it is compared with.
_FREE = (
    "checkpoint_every",
    "choices.engine",
    "choices.personal",
    "choices.tracker",
    "client_app",
    "compare",
    "device",
    "engine",
    "hosts",
    "keep_matrices",
    "max_outage",
    "min_clients",
    "min_replies",
    "objective",
    "output_dir",
    "overrides",
    "personal",
    "resume",
    "rounds",
    "searchpath",
    "serve",
    "strategy.device",
    "timeout",
    "tracker",
    "wait",
)


def expand(overrides: Sequence[str]) -> list[str]:
    """Replace ``resume=<folder>`` and ``task=advise`` by what they stand for.

    Parameters
    ----------
    overrides
        As on the command line.

    Returns
    -------
    All overrides. What was given stands, also where it is one of those that ``task=advise`` stands for.

    Raises
    ------
    ConfigError
        If the folder to resume holds no run, or advice is asked for with another strategy than ``auto``.
    """
    expanded = _expand_resume(overrides)
    if _ADVISE not in expanded:
        return expanded
    given = {text.partition("=")[0].lstrip("+"): text.partition("=")[2] for text in expanded}
    if (strategy := given.get("strategy", "auto")) != "auto":
        raise ConfigError(f"task=advise chooses a strategy, it takes no strategy={strategy}")
    if "compare" in given and "fedavg" not in given["compare"]:
        raise ConfigError(f"task=advise must have compare=[fedavg], got compare={given['compare']}")
    added = [text for text in _ADVICE if text.partition("=")[0] not in given]
    return [*expanded, *added]


def _expand_resume(overrides: Sequence[str]) -> list[str]:
    """Add the overrides that a run was started with to those that resume it.

    Parameters
    ----------
    overrides
        As on the command line. Without a ``resume=<folder>`` among them they are returned unchanged.

    Returns
    -------
    The run's own overrides, then the new ones, each key once; results are appended in the run's folder.

    Raises
    ------
    ConfigError
        If the folder does not hold a run that can be resumed.
    """
    # ++resume= was expanded on the machine that submitted it: nodes need not have the folder.
    asked = [text.partition("=")[2] for text in overrides if text.startswith(("resume=", "+resume="))]
    if not asked or asked[-1] == "null":
        return list(overrides)
    if not asked[-1].strip("'\""):
        raise ConfigError("resume must be the folder of a run, got none")
    flags, overrides = _flags_and_overrides(overrides)
    if {"-m", "--multirun"} & {*flags}:
        raise ConfigError("resume continues one run, it cannot be combined with -m")
    folder = Path(_unquoted(asked[-1])).expanduser().absolute()
    rest = [text for text in overrides if _key(text) not in ("resume", "output_dir")]
    own = {_key(text): text for text in overrides_of(folder) if _key(text) not in ("resume", "output_dir")}
    if any(_key(text) == "personal" for text in rest):  # another choice has other parameters
        own = {key: text for key, text in own.items() if not key.startswith("personal.")}
    merged = own | {_key(text): text for text in rest}
    quoted = str(folder).replace("'", "\\'")
    added = [] if any(flag.startswith("--config-dir") for flag in flags) else _searchpath(folder, merged)
    return [*flags, *merged.values(), *added, f"resume='{quoted}'", f"output_dir='{quoted}'"]


def _flags_and_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate flags with their values from overrides, each in their order."""
    if not any(text.startswith("-") for text in arguments):
        return [], list(arguments)
    overrides = list(get_args_parser().parse_intermixed_args(list(arguments)).overrides)
    flags, left = [], list(overrides)
    for text in arguments:
        if left and text == left[0]:
            left.pop(0)
        else:
            flags.append(text)
    return flags, overrides


def _unquoted(text: str) -> str:
    """Remove quotes around the whole text, which are Hydra's; others are part of a folder's name."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def overrides_of(folder: Path) -> list[str]:
    """Read the overrides that the run in a folder was started with.

    Raises
    ------
    ConfigError
        If there is no run, or its configuration does not have them.
    """
    config = _saved(folder)
    if not isinstance(config.get("overrides"), list):
        raise ConfigError(f"resume must be the folder of a run, {folder / 'config.yaml'} has no overrides")
    return [str(text) for text in config["overrides"]]


def _searchpath(folder: Path, overrides: Mapping[str, str]) -> list[str]:
    """Return an override with the folders that the run was composed from, unless there is a new one."""
    added = _saved(folder).get("searchpath") or []
    if not added or "hydra.searchpath" in overrides:
        return []
    folders = ",".join(each if "://" in each else f"file://{each}" for each in added)
    return [f"hydra.searchpath=[{folders}]"]


def check_same_run(config: Mapping[str, Any], folder: Path) -> None:
    """Check that a configuration equals that of the run in a folder.

    Parameters
    ----------
    config
        The composed configuration, as plain dictionaries and lists.
    folder
        The run's folder. The number of rounds may differ unless the learning rate depends on it; so may
        the engine, the device and what the run is compared with.

    Raises
    ------
    ConfigError
        If anything else differs, with each key and both values.
    """
    saved, now = _flat(_saved(folder)), _flat(config)
    free = {*_FREE}
    if now.get("training.schedule") != "cosine":
        free.add("training.schedule_rounds")
    differing = [
        f"{key} was {saved.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(saved.keys() | now.keys())
        if saved.get(key) != now.get(key) and not any(key == f or key.startswith(f"{f}.") for f in free)
    ]
    if differing:
        raise ConfigError(f"resume must have the configuration of {folder}: {'; '.join(differing)}")


def _saved(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if (folder / "multirun.yaml").is_file():
        raise ConfigError(
            f"resume must be the folder of a run, got that of a sweep: name one of its jobs, "
            f"such as {folder / '0'}"
        )
    if not path.is_file():
        raise ConfigError(f"resume must be the folder of a run, there is no config.yaml in {folder}")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"resume must be the folder of a run, {path} cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"resume must be the folder of a run, {path} holds no configuration")
    return config


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").strip()


def _flat(node: Any, key: str = "") -> dict[str, Any]:
    """List the values of a configuration by dotted key; a list counts as one value."""
    if isinstance(node, Mapping) and node:
        flat: dict[str, Any] = {}
        for name, value in node.items():
            flat |= _flat(value, f"{key}.{name}" if key else str(name))
        return flat
    return {key: node}
