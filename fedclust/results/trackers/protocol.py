"""What an experiment tracker does."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

__all__ = ["Setting", "TrackedRun", "Tracker", "optional"]

Setting = bool | int | float | str


@dataclass(frozen=True)
class TrackedRun:
    """One strategy's run, as a tracker sees it.

    Attributes
    ----------
    name
        Such as ``"12-30-05/fedgwc"``: the name of the results' folder and of the strategy.
    group
        The results' folder; compared strategies have the same one.
    folder
        The run's own folder.
    settings
        The configuration by dotted key, such as ``"partition.alpha"``; lists as text.
    kept
        What :meth:`Tracker.start` returned for this run before it was resumed; None for a new one.
    rounds
        Rounds that the run has done before it was resumed; 0 for a new one.
    parent
        What ``start`` returned for the run that this one is compared with; None for that run itself.
    """

    name: str
    group: str
    folder: Path
    settings: Mapping[str, Setting]
    kept: str | None = None
    rounds: int = 0
    parent: str | None = None


@runtime_checkable
class Tracker(Protocol):
    """Where the metrics of one run go. An object is built for each run; it is not used after an error."""

    def start(self, run: TrackedRun) -> tuple[str, int]:
        """Begin a run or continue it.

        Returns
        -------
        An id to continue it with, which is kept in the run's folder; and the last round that the tracker has
        of it, 0 for none. Rounds after that one, which were done before the run was resumed, are logged next.
        """

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; all are finite."""

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """End the run.

        Parameters
        ----------
        figures
            The numbers of ``summary.json``; empty if the run failed before it.
        files
            Files and folders to keep with the run.
        failed
            Whether the run failed or was interrupted.
        """


def optional(module: str, extra: str) -> ModuleType:
    """Import what an extra of fedclust installs.

    Raises
    ------
    ModuleNotFoundError
        If it or a package that it needs is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"tracker={extra} needs fedclust[{extra}], pip install 'fedclust[{extra}]': {error}"
        ) from error
