"""The folder that a run writes its results to: made before the run, removed after it if it has no results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOTDIR
from itertools import count
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fedclust.settings.composition import ConfigError


def named_by_time(config: DictConfig) -> bool:
    """Whether the results' folder has the time in its name, so that each run gets a new one."""
    return "${now:" in str(OmegaConf.to_container(config, resolve=False)["output_dir"])  # type: ignore[index,call-overload]


@contextmanager
def results_folder(folder: Path, *, new: bool) -> Iterator[Path]:
    """Create the folder of a run, and on exit remove it again if it holds no results.

    Parameters
    ----------
    folder
        The folder for the results.
    new
        Whether it must be a new one: if it exists already, as when two runs start in the same second,
        ``-2``, ``-3`` … is appended to its name.

    Yields
    ------
    The created folder.

    Raises
    ------
    ConfigError
        If it cannot be created or written to.
    """
    made: list[Path] = []
    try:
        folder = _create(folder, new, made)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"output_dir must be writable, got {folder}")
        yield folder
    finally:
        if folder in made:
            _remove_without_results(folder)
        for parent in reversed(made):
            with suppress(OSError):  # not empty: it stays
                parent.rmdir()


def _create(folder: Path, new: bool, made: list[Path]) -> Path:
    try:
        for parent in reversed(folder.parents):
            _make(parent, made)
        if not new:
            _make(folder, made)
            return folder
        for number in count(2):
            candidate = folder if number == 2 else folder.with_name(f"{folder.name}-{number - 1}")
            with suppress(FileExistsError):
                candidate.mkdir()
                made.append(candidate)
                return candidate
    except OSError as error:
        raise ConfigError(
            f"output_dir must be a folder that can be created and written to, got {folder}: {error.strerror}"
        ) from error
    raise AssertionError  # counting does not end


def _make(folder: Path, made: list[Path]) -> None:
    try:
        folder.mkdir()
        made.append(folder)
    except OSError:  # such as a file system's root, which exists but is read-only
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR)) from None
        if not folder.is_dir():
            raise


@contextmanager
def locked(folder: Path, *, resumed: bool) -> Iterator[None]:
    """Lock the folder of a run, from before a resumed run is read to the last file that is written.

    The lock is on ``.lock`` in the folder, which is removed at the end. A process that dies loses the lock,
    even if the file stays. On a shared file system other machines see it as far as that has ``flock``; where
    there are no locks at all, the folder stays unlocked.

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

    made: list[Path] = []
    lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
    try:
        for parent in [*reversed(folder.parents), folder]:
            _make(parent, made)
        lock.acquire()
    except Timeout as error:
        what = "resume" if resumed else "output_dir"
        raise FileExistsError(
            f"{what} must be a folder that no other run is writing to, got {folder}"
        ) from error
    except (OSError, NotImplementedError):  # a folder that cannot be written to is an error of its first file
        pass
    try:
        yield
    finally:
        with suppress(OSError):  # first the file: nobody else can hold the lock yet
            if lock.is_locked:
                os.unlink(lock.lock_file)
        with suppress(OSError):
            lock.release(force=True)
        for each in reversed(made):
            with suppress(OSError):  # it has results
                each.rmdir()


def _remove_without_results(folder: Path) -> None:
    """Remove a folder and those in it if they are empty, or hold only a configuration and no rounds."""
    for name, _, _ in os.walk(folder, topdown=False):
        path = Path(name)
        left = list(path.iterdir())
        if all(map(_is_no_result, left)) and any(each.name == "rounds.jsonl" for each in left):
            for each in left:
                with suppress(OSError):  # such as on a disk that became read-only
                    each.unlink()
        with suppress(OSError):  # not empty: it stays
            path.rmdir()


def _is_no_result(path: Path) -> bool:
    empty = path.name == "rounds.jsonl" and path.is_file() and path.stat().st_size == 0
    return empty or path.name in ("config.yaml", "agreement.json")
