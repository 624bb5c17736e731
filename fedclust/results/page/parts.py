"""What a page is made of, how values are written on it, and the HTML file that it becomes."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from fedclust.results.charts.chart import Picture, bundle, specification
from fedclust.results.thinned import pack

_MANY = 400  # cells, from which on a page holds them in two bytes each


def known(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and value == value and abs(value) != float("inf")


def number(value: Any, digits: int = 3) -> str:
    """Write a number with so many digits; – if it is unknown."""
    if not known(value):
        return "–"
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text  # no "-0.000"


def size(value: Any) -> str:
    """Write a number of bytes."""
    if not known(value):
        return "–"
    rest, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while rest >= 999.5 and len(units) > 1:
        rest /= 1000
        del units[0]
    return f"{float(f'{rest:.3g}'):g} {units[0]}"


def duration(value: Any) -> str:
    """Write seconds."""
    if not known(value):
        return "–"
    minutes, seconds = divmod(round(value), 60)
    if value < 60:
        return f"{number(value, 1)} s"
    return f"{minutes} min {seconds} s" if value < 3600 else f"{minutes // 60} h {minutes % 60} min"


def percent(value: Any) -> str:
    """Write a share in percent."""
    return f"{number(100 * value, 1 if 0 < value < 0.0995 else 0)} %" if known(value) else "–"


_FORMS = {
    "number": number,
    "whole": lambda value: number(value, 0),
    "bytes": size,
    "seconds": duration,
    "percent": percent,
    "tight": lambda value: f"{float(f'{value:.4g}'):g}" if known(value) else "–",
    "chance": lambda value: "< 0.001" if known(value) and value < 0.001 else number(value),
}


def written_as(kind: str, value: Any) -> str:
    """Write a value as a kind of column does."""
    if kind in _FORMS:
        return _FORMS[kind](value)
    return "–" if value is None else str(value)


def span(pair: Any, digits: int = 3) -> str:
    """Write the two ends of an interval."""
    return f"{number(pair[0], digits)} to {number(pair[1], digits)}" if pair and known(pair[0]) else "–"


def plural(count: int, one: str) -> str:
    """Write a number of things."""
    return f"{count:,} {one}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    title
        Its heading.
    kind
        ``text``, ``number``, ``whole``, ``bytes``, ``seconds``, ``percent``, ``tight`` or ``chance``.
    about
        What it is, for whoever points at the heading.
    looks
        Classes of its cells: ``long`` for text that wraps, ``shade`` for a coloured cell.
    """

    title: str
    kind: str = "text"
    about: str = ""
    looks: str = ""

    @property
    def classes(self) -> str:
        """Classes of its heading and cells."""
        return f"{'text ' * (self.kind == 'text')}{self.looks}".strip()


def heads(*titles: str) -> list[Column]:
    """Return columns by their titles, each with its kind behind a bar, or ``long`` for text that wraps."""
    pairs = [title.partition("|") for title in titles]
    return [
        Column(title, looks=kind) if kind == "long" else Column(title, kind or "text")
        for title, _, kind in pairs
    ]


@dataclass(frozen=True)
class Cell:
    """A cell that is not just a value.

    Attributes
    ----------
    text
        What it shows.
    sort
        What it is sorted by; its text unless given.
    looks
        Classes: ``best``, ``shade-0`` to ``shade-9``,
        or ``cluster-0`` to ``cluster-6`` for a cluster's colour.
    link
        Where it leads.
    button
        Id of the button that it is.
    label
        What the button does.
    """

    text: str
    sort: float | int | str | None = None
    looks: str = ""
    link: str | None = None
    button: str | None = None
    label: str = ""


@dataclass(frozen=True)
class Table:
    """A table, which sorts by its columns.

    Attributes
    ----------
    name
        Its id.
    caption
        What it shows.
    columns
        Its columns.
    rows
        Values or cells, one per column.
    sortable
        Whether its headings sort.
    note
        A line below it.
    ids
        Of each row, its id; empty without.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    sortable: bool = True
    note: str = ""
    ids: Sequence[str] = ()

    @property
    def cells(self) -> list[list[Cell]]:
        """Its cells, all written."""
        return [
            [
                value if isinstance(value, Cell) else _cell(column.kind, value)
                for column, value in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    kind = "table"


def _cell(kind: str, value: Any) -> Cell:
    sort = value if kind in ("bytes", "seconds", "percent", "chance") and known(value) else None
    return Cell(written_as(kind, value), sort)


@dataclass(frozen=True)
class Text:
    """A paragraph; with `code` a command that can be copied, with `heading` a heading of lower rank."""

    text: str
    looks: str = ""
    code: bool = False
    heading: bool = False
    kind = "text"


@dataclass(frozen=True)
class Pair:
    """Parts side by side, if there is room."""

    parts: Sequence[Any]
    kind = "pair"


@dataclass(frozen=True)
class More:
    """Parts behind a line that opens them."""

    name: str
    title: str
    parts: Sequence[Any]
    opened: bool = False
    kind = "more"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `short` is its name in the bar at the top.

    With `filters` it has the controls of the table of clients: the clusters to choose from.
    """

    name: str
    title: str
    short: str
    parts: Sequence[Any]
    filters: Sequence[str] | None = None


@dataclass(frozen=True)
class Tile:
    """A figure in large letters, with its name and something beside it."""

    name: str
    value: str
    beside: str = ""


@dataclass(frozen=True)
class View:
    """Everything on a page.

    Attributes
    ----------
    kind
        ``"run"`` or ``"sweep"``.
    title
        Name of the strategy, or of the sweep's folder.
    finished
        Whether all has ended.
    status
        How far it is.
    headline, lines
        The verdict in words.
    tiles, facts
        Figures, and pairs of a name and a value.
    sections
        The parts.
    data
        What the script looks up: clients' histories.
    jobs
        Of a sweep, the folders of its runs.
    written
        When it was made.
    """

    kind: str
    title: str
    finished: bool
    status: str
    headline: str
    lines: Sequence[str]
    sections: Sequence[Section]
    tiles: Sequence[Tile] = ()
    facts: Sequence[Sequence[str]] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    jobs: Sequence[str] = ()
    written: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))

    def pictures(self) -> list[Picture]:
        """List its charts."""
        return [each for section in self.sections for each in _pictures(section.parts)]


def _pictures(parts: Sequence[Any]) -> list[Picture]:
    found = []
    for part in parts:
        found += [part] if isinstance(part, Picture) else _pictures(getattr(part, "parts", ()))
    return found


def document(view: View, *, live: bool = False) -> str:
    """Write a view as a page that needs no other file.

    Text of the data is escaped in the markup, and in a JSON block that is only ever inserted as text or read
    by Vega's interpreter. The page's own policy allows no other script, and no request except to where it
    came from.

    Parameters
    ----------
    view
        What to show.
    live
        Whether the page asks its server for news, see :mod:`fedclust.runs.watch`.
    """
    page, style, script = template()
    both = f"(() => {{{bundle()}\n}})();\n(() => {{\n{script}}})();"
    return page.render(
        view=view,
        markup=Markup(_main(view, live)),
        live=live,
        style=Markup(style),
        script=Markup(both),
        style_hash=_hash(style),
        script_hash=_hash(both),
        data=Markup(to_json(_data(view))),
    ).lstrip()


def live_part(view: View) -> str:
    """Write what has changed of a page that is open: JSON with its markup and its charts."""
    more = {
        "markup": _main(view, live=True),
        "finished": view.finished,
        "title": view.title,
        "kind": view.kind,
    }
    return to_json({**_data(view), **more})


def _main(view: View, live: bool) -> str:
    module = template()[0].make_module({})
    return module.main(view, live)  # type: ignore[attr-defined]


def _data(view: View) -> dict[str, Any]:
    charts = {picture.name: specification(picture.chart) for picture in view.pictures()}
    for spec in charts.values():
        for name, values in spec["datasets"].items():
            if len(values) > _MANY and not isinstance(values[0], dict):
                spec["datasets"][name] = _packed(values)
    return {"charts": charts, **view.data}


def _packed(values: Sequence[float | str]) -> Any:
    """Write the numbers of many cells in two bytes each, which the script reads; not if one is infinite."""
    if "∞" in values:
        return values
    table = np.array([np.nan if value == "" else value for value in values], dtype=np.float64)
    low, high = float(np.nanmin(table, initial=0.0)), float(np.nanmax(table, initial=0.0))
    return {"packed": pack((table - low) / ((high - low) or 1.0)), "low": low, "high": high}


def to_json(value: Any) -> str:
    """Write a value as JSON that may stand inside a script element: it has no ``<``, ``>`` or ``&``."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def template() -> tuple[jinja2.Template, str, str]:
    """Read the template, the style and the script.

    They are Markdown files with one block of code, because Flower's bundle takes no .html, .css or .js files.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_code("page")), _code("style"), _code("script")


def _code(name: str) -> str:
    path = resources.files("fedclust.results.page") / "template" / f"{name}.md"
    _, _, block = path.read_text(encoding="utf-8").partition("```")
    return block.partition("\n")[2].rpartition("```")[0]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
