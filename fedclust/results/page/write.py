"""Render the page as one HTML file, and write it into the folder of a run or of a sweep."""

import base64
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclust.results import report
from fedclust.results.recorder import CannotWrite
from fedclust.results.saved_run import FAILED, FILES, pack
from fedclust.support.checks import capitalised, plural, replace_file
from fedclust.support.reasons import RunFailed

if TYPE_CHECKING:
    import jinja2

logger = logging.getLogger(__name__)

PAGE = "report.html"
"""Name of the page in a folder."""

_MANY = 400  # a page stores more cells than this in two bytes each
_SECONDS_BEFORE, _SECONDS_BETWEEN = 10.0, 30.0
_SHARE = 50  # writing the page takes at most 1/50 of a run's time


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run itself, not only runs below it."""
    return any((folder / name).is_file() for name in FILES)


def view_of(folder: Path) -> dict[str, Any]:
    """Read the folder of a run, or of several runs.

    Returns
    -------
    The argument of :func:`document`.

    Raises
    ------
    FileNotFoundError
        If it holds no run, and no folder below it does.
    ValueError
        If a file cannot be read.
    """
    if is_run(folder):
        from fedclust.results.page.run import view_run  # Altair takes half a second to import

        return view_run(folder)
    from fedclust.results.page.sweep import view_sweep

    return view_sweep(folder)


def document(view: dict[str, Any], *, live: bool = False) -> str:
    """Render a view as a self-contained page.

    Text from the data is escaped in the markup, and in a JSON block that is only ever inserted as text or
    read by Vega's interpreter. The page's content security policy allows no other script, and requests only
    to the page's own server.

    Parameters
    ----------
    view
        What to show: ``kind`` is the name of its template, ``"run"`` or ``"sweep"``, which uses the other
        values; ``pictures`` has the charts by name, ``data`` what the script looks up.
    live
        Whether the page asks its server for updates, see :mod:`fedclust.runs.watch`.
    """
    from fedclust.results.charts.chart import bundle

    style, script = template("style"), f"(() => {{{bundle()}\n}})();\n(() => {{\n{template('script')}}})();"
    parts = {"main": _main(view, live), "style": style, "script": script, "data": to_json(_data(view))}
    return _templates().get_template("page").render(view | parts, live=live).lstrip()


def live_part(view: Mapping[str, Any]) -> str:
    """Render the update of an open page: JSON with its markup and its charts."""
    changed = {key: view[key] for key in ("finished", "title", "kind")}
    return to_json({**_data(view), **changed, "markup": _main(view, live=True)})


def _main(view: Mapping[str, Any], live: bool) -> str:
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _templates().get_template(view["kind"]).render(view, live=live, written=written)


def _data(view: Mapping[str, Any]) -> dict[str, Any]:
    from fedclust.results.charts.chart import specification

    charts = {name: specification(picture.chart) for name, picture in view["pictures"].items()}
    for spec in charts.values():
        for name, values in spec["datasets"].items():
            if len(values) > _MANY and not isinstance(values[0], dict):
                spec["datasets"][name] = _packed(values)
    return {"charts": charts, **view["data"]}


def _packed(values: Sequence[float | str]) -> Any:
    """Encode the numbers of many cells in two bytes each for the script, unless one is infinite."""
    if "∞" in values:
        return values
    table = np.array([np.nan if value == "" else value for value in values], dtype=np.float64)
    low, high = float(np.nanmin(table, initial=0.0)), float(np.nanmax(table, initial=0.0))
    return {"packed": pack((table - low) / ((high - low) or 1.0)), "low": low, "high": high}


def to_json(value: Any) -> str:
    """Write a value as JSON that is safe inside a script element: it has no ``<``, ``>`` or ``&``."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _templates() -> "jinja2.Environment":
    import jinja2

    from fedclust.results.page.run import class_name, command_line

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = head, keyed, zipped, digest, class_name, command_line, plural, capitalised
    for each in (*own, report.written, report.number, report.span, report.some, report.votes):
        environment.filters[each.__name__] = each
    return environment


def head(column: str | Sequence[str]) -> dict[str, str]:
    """Parse a table's column: its title, kind and explanation, joined by bars or as a list.

    A kind is ``text``, ``long`` for text that wraps, ``name``, ``cluster``, ``shade`` for a share with a
    colour, or one of :data:`fedclust.results.report.FORMS`.
    """
    title, kind, about = (*(column.split("|") if isinstance(column, str) else column), "", "")[:3]
    looks = {"": "text", "text": "text", "long": "text long", "name": "text name", "shade": "shade"}
    return {"title": title, "kind": kind, "about": about, "looks": looks.get(kind, "")}


def zipped(titles: Sequence[str], kind: str) -> list[list[str]]:
    """Pair each title with one kind, as columns."""
    return [[title, kind] for title in titles]


def keyed(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> tuple[list[Any], list[list[Any]]]:
    """Return the columns in which some row has a value, and the rows' values in that order."""
    kept = [key for key in columns if any(row.get(key) is not None for row in rows)]
    return [columns[key] for key in kept], [[row.get(key) for key in kept] for row in rows]


def template(name: str) -> str:
    """Read a template, the style or the script.

    They are Markdown files with one block of code, because Flower's bundle omits .html, .css and .js files.
    """
    path = resources.files("fedclust.results.page") / "template" / f"{name}.md"
    _, _, block = path.read_text(encoding="utf-8").partition("```")
    return block.partition("\n")[2].rpartition("```")[0]


def digest(text: str) -> str:
    """Compute the hash by which a content security policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def write_page(folder: Path) -> Path:
    """Write ``report.html`` for a run or, in a folder with several runs, for all of them.

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
    """Write the page that compares the runs below a folder; return None if there is no run yet.

    Jobs of one sweep may call this at the same time.
    """
    from fedclust.results.page.sweep import view_sweep

    try:
        text = document(view_sweep(folder))
    except (FileNotFoundError, ValueError):
        return None  # another job is writing its first files
    own = folder / f".report-{os.getpid()}.html"
    replace_file(own, text)
    os.replace(own, folder / PAGE)
    return folder / PAGE


class LivePage:
    """The page of a run in progress.

    Called after each round, it writes the page after 10 seconds and then every 30 seconds; if that takes
    more than 0.6 s, as in a run of many thousand rounds, less often, so that it costs at most 2 % of the
    run's time. As a context manager it also writes the page when a run fails, and for it ``failed.txt``. A
    page that cannot be written is a warning and does not end the run.

    Parameters
    ----------
    folder
        The run's folder, also while a compared strategy is running.
    clock
        Returns the time in seconds; for tests.
    shown
        Whether there is a page; without one only ``failed.txt`` is written.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, *, shown: bool = True
    ) -> None:
        self._folder, self._clock, self.shown = folder, clock, shown
        self._due = clock() + _SECONDS_BEFORE  # none for short runs
        self._begun = False

    def __call__(self, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write the page if it is time; called after every round."""
        self._begun = True
        if self._clock() >= self._due:
            self.write()

    def __enter__(self) -> "LivePage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raised = kind is not None and issubclass(kind, Exception) and self._begun
        failed = raised or (kind is not None and issubclass(kind, RunFailed))
        with suppress(OSError):
            if failed and (self._folder / "rounds.jsonl").stat().st_size:  # else its folder may be removed
                reason = " ".join(str(error).split()) or type(error).__name__
                replace_file(self._folder / FAILED, f"{reason}\n")
            elif kind is None or self._begun:  # not of a run that was only refused to go on
                (self._folder / FAILED).unlink(missing_ok=True)
        if kind is not None and not issubclass(kind, CannotWrite) and (failed or self._begun):
            self.write()

    def write(self) -> None:
        """Write the page now, if there is one."""
        if not self.shown:
            return
        began = self._clock()
        try:
            write_page(self._folder)
        except FileNotFoundError:
            pass  # the run failed before its first round
        except Exception as error:  # a broken page must not end the run
            logger.warning("the page of %s could not be written: %s", self._folder, error)
        ended = self._clock()
        self._due = ended + max(_SECONDS_BETWEEN, _SHARE * (ended - began))
