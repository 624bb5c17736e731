"""Write the page into the folder of a run or of a sweep, and keep that of a run up to date."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedclust.results.recorder import CannotWrite
from fedclust.support.checks import replace_file

if TYPE_CHECKING:
    from fedclust.results.page.parts import View


logger = logging.getLogger(__name__)

PAGE = "report.html"
"""Name of the page in a folder."""

_FILES_OF_A_RUN = ("rounds.jsonl", "summary.json", "clients.parquet")
_SECONDS_BETWEEN = 30.0
_SHARE = 50  # the page takes at most one part in so many of a run's time


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run itself, and not only runs below it."""
    return any((folder / name).is_file() for name in _FILES_OF_A_RUN)


def view_of(folder: Path) -> "View":
    """Read the folder of a run, or of several runs.

    Raises
    ------
    FileNotFoundError
        If it holds no run, and no folder below it does.
    ValueError
        If a file cannot be read.
    """
    if is_run(folder):
        from fedclust.results.page.run import view_run

        return view_run(folder)
    from fedclust.results.page.sweep import view_sweep

    return view_sweep(folder)


def write_page(folder: Path) -> Path:
    """Write ``report.html``, for a run or, in a folder with several runs, for all of them.

    Returns
    -------
    The file.

    Raises
    ------
    FileNotFoundError
        If it holds no run, and no folder below it does.
    ValueError
        If a file cannot be read.
    """
    from fedclust.results.page.parts import document  # Altair takes half a second to import

    path = folder / PAGE
    replace_file(path, document(view_of(folder)))
    return path


def write_sweep_page(folder: Path) -> Path | None:
    """Write the page that compares the runs below a folder; None if there is no run yet.

    Jobs of one sweep may do so at the same time.
    """
    from fedclust.results.page.parts import document
    from fedclust.results.page.sweep import view_sweep

    try:
        text = document(view_sweep(folder))
    except (FileNotFoundError, ValueError):
        return None  # another job's first files
    own = folder / f".report-{os.getpid()}.html"
    replace_file(own, text)
    os.replace(own, folder / PAGE)
    return folder / PAGE


class LivePage:
    """The page of a run that goes on.

    A call after each round writes it every 30 seconds; where that takes more than 0.6 s, as for a run of many
    thousand rounds, less often, so that it costs at most 2 % of the run's time. As a context it also writes
    it when a run fails. A page that cannot be written is a warning and does not end the run.

    Parameters
    ----------
    folder
        The run's folder; also while a compared strategy runs.
    clock
        Returns the time in seconds; for tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = clock() + 1.0  # a first page soon, without one for each of many short runs

    def __call__(self, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write the page if it is time; called after every round."""
        if self._clock() >= self._due:
            self.write()

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, CannotWrite):
            self.write()

    def write(self) -> None:
        """Write the page now."""
        began = self._clock()
        try:
            write_page(self._folder)
        except FileNotFoundError:
            pass  # it failed before its first round
        except Exception as error:  # whatever is wrong with the page, the run is worth more
            logger.warning("the page of %s could not be written: %s", self._folder, error)
        ended = self._clock()
        self._due = ended + max(_SECONDS_BETWEEN, _SHARE * (ended - began))
