"""Write the page into the folder of a run or of a sweep."""

import os
from pathlib import Path

from fedclust.results.page.data import RunView, view_run
from fedclust.results.page.html import document
from fedclust.results.page.sweep import SweepView, view_sweep
from fedclust.support.strict_json import replace_file

__all__ = ["PAGE", "is_run", "view_of", "write_page", "write_sweep_page"]

PAGE = "report.html"
"""Name of the page in a folder."""

_FILES_OF_A_RUN = ("rounds.jsonl", "summary.json", "clients.parquet")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run itself, and not only runs below it."""
    return any((folder / name).is_file() for name in _FILES_OF_A_RUN)


def view_of(folder: Path) -> RunView | SweepView:
    """Read the folder of a run, or of several runs.

    Raises
    ------
    FileNotFoundError
        If it holds no run, and no folder below it does.
    ValueError
        If a file cannot be read.
    """
    return view_run(folder) if is_run(folder) else view_sweep(folder)


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
    path = folder / PAGE
    replace_file(path, document(view_of(folder)))
    return path


def write_sweep_page(folder: Path) -> Path | None:
    """Write the page that compares the runs below a folder; None if there is no run yet.

    Jobs of one sweep may do so at the same time.
    """
    try:
        text = document(view_sweep(folder))
    except (FileNotFoundError, ValueError):
        return None  # another job's first files
    own = folder / f".report-{os.getpid()}.html"
    replace_file(own, text)
    os.replace(own, folder / PAGE)
    return folder / PAGE
