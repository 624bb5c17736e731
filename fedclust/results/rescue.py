"""Save a run elsewhere when its folder can no longer be written: a full disk, a folder that is gone."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fedclust.grids.failures import RunFailed

__all__ = ["CannotWrite", "Rescuable", "rescuing", "writing"]


class CannotWrite(Exception):
    """A run's folder cannot be written; the message says why."""


class Rescuable(Protocol):
    """A run that can be saved into another folder."""

    @property
    def progress(self) -> str:
        """Its last finished round, such as ``"3 of 9"``."""

    def rescue(self, folder: Path) -> None:
        """Save the run so that it can be resumed from `folder`."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise :class:`CannotWrite` where files of a run cannot be written.

    Raises
    ------
    CannotWrite
        If an OSError is raised inside. A FileExistsError, for a folder that holds another run, stays one.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise CannotWrite(f"{folder} cannot be written ({error.strerror or error})") from error


@contextmanager
def rescuing(runs: Mapping[str, Rescuable]) -> Iterator[None]:
    """Save the runs in a new temporary folder when their own cannot be written.

    Parameters
    ----------
    runs
        The strategies' runs so far, by name, the run itself first; it may grow inside.

    Raises
    ------
    RunFailed
        In place of :class:`CannotWrite`: where the runs are now, and how to go on.
    """
    try:
        yield
    except CannotWrite as error:
        raise RunFailed(f"{RunFailed.PHRASE} {_saved(runs, str(error))}") from error


def _saved(runs: Mapping[str, Rescuable], why: str) -> str:
    if not runs:
        return f"0, {why}: nothing was trained yet"
    where = list(runs.values())[-1].progress
    parent = "the temporary folder"
    try:
        parent = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="fedclust-rescued-"))
        for position, (name, run) in enumerate(runs.items()):
            run.rescue(folder / "compare" / name if position else folder)
    except OSError as error:
        reason = error.strerror or error
        return f"{where}, {why}, nor can {parent} ({reason}): the last checkpoint is what is left"
    return (
        f"{where}, {why}: everything up to this round is now in {folder}; to resume: fedclust resume={folder}"
    )
