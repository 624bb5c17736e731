"""Make, lock and resume the folder of a run; remove it if it has no results."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf

from fedclust.settings.composition import ConfigError
from fedclust.support.untrusted import read_yaml

# Settings that a resumed run may change: its number of rounds, where it runs, and what is done after it.
_FREE = (
    "checkpoint_every choices.engine choices.personal choices.tracker client_app compare content device "
    "engine hosts keep_matrices max_outage min_clients min_replies objective output_dir overrides "
    "partition.min_clients partition.settle personal proof resume rounds save_predictions searchpath serve "
    "strategy.device timeout tracker wait"
)


def named_by_time(config: DictConfig) -> bool:
    """Return whether the results folder is named by the time, so that each run gets a new one."""
    return "${now:" in str(OmegaConf.to_container(config, resolve=False)["output_dir"])  # type: ignore[index,call-overload]


@contextmanager
def results_folder(folder: Path, *, new: bool) -> Iterator[Path]:
    """Create the folder of a run, and on exit remove it if it has no results.

    Parameters
    ----------
    folder
        The folder for the results.
    new
        Whether the folder must be new: if it exists, for example because two runs start in the same second,
        ``-2``, ``-3`` … is appended to its name.

    Yields
    ------
    The created folder.

    Raises
    ------
    ConfigError
        If it cannot be created or written to.
    """
    with ExitStack() as made:
        try:
            new_here = new or not folder.exists()
            folder = made.enter_context(_made(folder, new=new))
        except OSError as error:
            reason = f"created and written to, got {folder}: {error.strerror}"
            raise ConfigError(f"output_dir must be a folder that can be {reason}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"output_dir must be writable, got {folder}")
        try:
            yield folder
        finally:
            if new_here:
                _remove_without_results(folder)


@contextmanager
def _made(folder: Path, *, new: bool) -> Iterator[Path]:
    """Make a folder with its parents, and on exit remove those that it made and that are empty."""
    made: list[Path] = []
    try:
        for parent in reversed([path for path in folder.parents if not path.exists()]):
            parent.mkdir(exist_ok=True)
            made.append(parent)
        for number in count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            there = path.is_dir()
            with suppress(FileExistsError) if new else nullcontext():
                path.mkdir(exist_ok=not new)  # a file in its place is an error
                made += [] if there else [path]
                break
        yield path
    finally:
        for each in reversed(made):
            with suppress(OSError):  # not empty: kept
                each.rmdir()


@contextmanager
def locked(folder: Path, *, resumed: bool) -> Iterator[None]:
    """Lock the folder of a run, from before a resumed run is read until the last file is written.

    The lock is on ``.lock`` in the folder, which is removed at the end. A process that dies loses the lock,
    even if the file stays. On a shared file system other machines see the lock if the file system supports
    ``flock``; if it supports no locks, the folder stays unlocked.

    Parameters
    ----------
    folder
        The run's folder; made if it is missing, and removed at the end if it is then still empty.
    resumed
        Whether the run is resumed, for the message.

    Raises
    ------
    FileExistsError
        If another run is being written into the folder.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
    with ExitStack() as made:
        try:
            made.enter_context(_made(folder, new=False))
            lock.acquire()
        except Timeout as error:
            rule = "must be a folder that no other run is writing to"
            raise FileExistsError(f"{'resume' if resumed else 'output_dir'} {rule}, got {folder}") from error
        except (OSError, NotImplementedError):  # if the folder cannot be written, its first file raises
            pass
        try:
            yield
        finally:
            with suppress(OSError):  # the file first, while nobody else can hold the lock
                if lock.is_locked:
                    os.unlink(lock.lock_file)
            with suppress(OSError):
                lock.release(force=True)


def _remove_without_results(folder: Path) -> None:
    """Remove a folder and those in it if they are empty, or hold only a configuration and no rounds."""
    for name, _, _ in os.walk(folder, topdown=False):
        path, rounds = Path(name), Path(name) / "rounds.jsonl"
        others = {*os.listdir(path)} - {"config.yaml", "agreement.json", "rounds.jsonl"}
        nothing = not others and rounds.is_file() and not rounds.stat().st_size
        with suppress(OSError):  # not empty: kept; or the disk became read-only
            for each in path.iterdir() if nothing else ():
                each.unlink()
            path.rmdir()


def of_sweep(folder: Path) -> bool:
    """Return whether a run is a job of a sweep, by Hydra's file beside it."""
    return (folder.parent / "multirun.yaml").is_file()


def expand(overrides: Sequence[str]) -> list[str]:
    """Replace ``resume=<folder>`` by the overrides that the run was started with, each key once.

    Parameters
    ----------
    overrides
        As on the command line. Given overrides take precedence over those of the run.

    Raises
    ------
    ConfigError
        If the folder to resume holds no run, or its configuration has no overrides.
    """
    # ++resume= was expanded on the machine that submitted it: nodes need not have the folder.
    asked = [text.partition("=")[2] for text in overrides if text.startswith(("resume=", "+resume="))]
    if not asked or asked[-1] == "null":
        return list(overrides)
    if not asked[-1].strip("'\""):
        raise ConfigError("resume must be the folder of a run, got none")
    arguments, overrides = overrides, get_args_parser().parse_intermixed_args(list(overrides)).overrides
    flags = [text for text in arguments if text not in overrides]
    if {"-m", "--multirun"} & {*flags}:
        raise ConfigError("resume must not be combined with -m, it continues one run")
    name, kept = asked[-1], ("resume", "output_dir")
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":  # Hydra's own quotes
        name = name[1:-1]
    folder = Path(name).expanduser().absolute()
    saved = _saved(folder)
    if not isinstance(saved.get("overrides"), list):
        raise ConfigError(f"resume must be the folder of a run, {folder / 'config.yaml'} has no overrides")
    rest = {_key(text): text for text in overrides if _key(text) not in kept}
    own = {_key(text): text for text in map(str, saved["overrides"]) if _key(text) not in kept}
    if "personal" in rest:  # another choice has different parameters
        own = {key: text for key, text in own.items() if not key.startswith("personal.")}
    partition = saved.get("partition") or {}
    if "validation_fraction" in partition:  # its rows stay held out
        fraction = f"++partition.validation_fraction={partition['validation_fraction']}"
        own.setdefault("partition.validation_fraction", fraction)
    merged, quoted = own | rest, str(folder).replace("'", "\\'")
    places = saved.get("searchpath") or []
    if places and "hydra.searchpath" not in merged and not any(f.startswith("--config-dir") for f in flags):
        listed = ",".join(each if "://" in each else f"file://{each}" for each in places)
        merged["hydra.searchpath"] = f"hydra.searchpath=[{listed}]"
    return [*flags, *merged.values(), f"resume='{quoted}'", f"output_dir='{quoted}'"]


def check_same_run(config: Mapping[str, Any], folder: Path) -> None:
    """Check that a configuration equals that of the run in a folder.

    Parameters
    ----------
    config
        The composed configuration, as plain dictionaries and lists.
    folder
        The run's folder. The number of rounds may differ unless the learning rate depends on it; so may
        the engine, the device, what the run is compared with, and whether predictions are saved.

    Raises
    ------
    ConfigError
        If anything else differs, with each key and both values.
    """
    saved, now = _flat(_saved(folder)), _flat(config)
    free = {*_FREE.split()}
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
        raise ConfigError(f"resume must be the folder of a run, such as {folder / '0'} of this sweep")
    if not path.is_file():
        raise ConfigError(f"resume must be the folder of a run, there is no config.yaml in {folder}")
    try:
        config = read_yaml(path)
    except ValueError as error:
        raise ConfigError(f"resume must be the folder of a run, {error}") from error
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
