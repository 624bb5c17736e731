"""Build charts as Altair specifications: curves, cells and points; save them as pictures.

A chart has no colours, fonts or sizes of its own: a picture takes them from :data:`PICTURE`, the page from
the reader's colour scheme, a notebook from Altair. Colours are those of Okabe and Ito and the map viridis,
which are safe for colour blindness, and three more; lines differ in their dashes, too, points in shapes.

A specification's ``usermeta`` tells the page's script how to read its values.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert
from numpy.typing import ArrayLike

from fedclust.results.saved_run import shorts
from fedclust.support.checks import replace_file
from fedclust.typing import IntArray

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#5E4FA2", "#6B6B00"),
)
GREY = "#80868C"
DASHES = ([1, 0], [7, 4], [8, 3, 2, 3], [2, 3], [6, 2, 1, 2, 1, 2], [12, 3], [1, 4])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke")
FORMATS = ("svg", "pdf", "png")
MAPS: dict[str, dict[str, Any]] = {
    "sequential": {"scheme": "viridis"},
    "reversed": {"scheme": "viridis", "reverse": True},
    "labels": {"range": ["#f2f6f9", "#9fcae3", "#4090c5", "#10519c", "#052549"]},
}
"""Colour scales of cells by name."""

MOST_CELLS = 100
"""Rows and columns of cells; larger tables are averaged, see :func:`cells_from`."""

_MANY = 400  # values of a line above which its running mean is drawn on top

_TEXT = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
PICTURE: dict[str, Any] = {
    "background": "white",
    "font": "DejaVu Sans, Arial, sans-serif",
    "view": {"stroke": None, "continuousWidth": 560, "continuousHeight": 300},
    "axis": _TEXT | {"gridColor": "#E4E4E4", "domainColor": "#555555", "tickColor": "#555555"},
    "legend": _TEXT | {"orient": "bottom", "labelLimit": 400, "columns": 3},
    "title": {"anchor": "start", "fontSize": 13, "fontWeight": "normal", "offset": 8},
    "range": {"category": list(COLOURS)},
    "point": {"color": COLOURS[0]},
}
"""Style of a picture."""

_SMALL = {"labelFontSize": 8, "titleFontSize": 8.5}
PAPER: dict[str, Any] = PICTURE | {
    "view": {"stroke": None, "continuousWidth": 190, "continuousHeight": 120},
    "axis": PICTURE["axis"] | _SMALL,
    "legend": PICTURE["legend"] | _SMALL,
    "title": PICTURE["title"] | {"fontSize": 9, "offset": 3},
    "header": {**_SMALL, "labelAnchor": "start"},
    "text": {"fontSize": 8},
    "line": {"strokeWidth": 1.3},
}
"""Style of a paper's picture: 72 dots per inch, so that sizes are in points, none below 7."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A chart with its name, heading and note.

    Attributes
    ----------
    name
        Name of its file without ending, and its place on the page.
    title
        Its heading.
    chart
        The specification.
    note
        A sentence on how to read it.
    page_only, file_only
        Whether only the page has it, or only ``plots/``, because the page has a table instead.
    """

    name: str
    title: str
    chart: alt.LayerChart | alt.Chart
    note: str = ""
    page_only: bool = False
    file_only: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a chart: a value for each x, None where unknown, and the ends of a band around it."""

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The line as one row of data, which the chart expands: its name is a value, never a field."""
        given = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        return {"line": self.name} | {key: shorts(each) for key, each in given.items() if each is not None}


def data_of(values: Sequence[Any]) -> Any:
    """Wrap rows or plain numbers as data; Altair does not check each value of a mapping."""
    return {"values": list(values)}


def curves(
    lines: Sequence[Line],
    x: str,
    y: str = "",
    *,
    marks: Sequence[tuple[float, str]] = (),
    log: bool = False,
    step: bool = False,
    zero: bool = False,
    form: str = "number",
    names: Sequence[str] = (),
) -> Any:
    """Draw lines over one x, with bands where they have them.

    Lines of more than 400 values are drawn thin, together with their running mean. A logarithmic scale has
    at most eight powers of ten.

    Parameters
    ----------
    lines
        At least one.
    x, y
        Names of the axes.
    marks
        Pairs of an x and an event: dotted lines.
    log, step, zero
        Whether y is logarithmic, the lines are steps, and y starts at 0.
    form
        How the page writes a value: ``number``, ``whole``, ``bytes``, ``percent`` or ``tight``.
    names
        All names that have a colour, in order; those of the lines unless given.
    """
    rows = [line.row for line in lines]
    names = list(names or dict.fromkeys(line.name for line in lines))
    known = [value for row in rows for value in row["y"] if value is not None and (value > 0 or not log)]
    scale = alt.Scale(zero=zero)
    if log:
        high = max(known, default=1.0)
        low = max(min(known, default=1.0), high * 1e-8)
        scale = alt.Scale(type="log", domain=[low / 1.2, high * 1.2], clamp=False, nice=False)
    whole = all(value == int(value) for row in rows for value in row["x"] if value is not None)
    steps: dict[str, Any] = {"tickMinStep": 1, "format": ",.0f"} if whole else {}
    between = alt.Scale(zero=False, nice=False)
    across = alt.X("x:Q", title=x, scale=between, axis=alt.Axis(grid=False, **steps))
    ticks: dict[str, Any] = {"tickCount": 5, **({"format": "~s"} if form == "bytes" else {})}
    if form == "whole":
        most = int(max(known, default=1))
        ticks = {"values": list(range(0, most + 1, 1 + most // 6)), "format": "d"}
    up = alt.Y("y:Q", title=y or None, scale=scale, axis=alt.Axis(**ticks))
    look: dict[str, Any] = {"title": None, "legend": None}
    if len(names) > 1:
        look["legend"] = alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=2.5)
    colour = alt.Color("line:N", scale=alt.Scale(domain=names), **look)
    dash = alt.StrokeDash("line:N", scale=alt.Scale(domain=names, range=_dashes(names)), **look)
    valid = "isValid(datum.y)" + (" && datum.y > 0" if log else "")
    read = [alt.Tooltip("line:N", title=" "), alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", format=".4~g")]

    def drawn(some: Sequence[Mapping[str, Any]], *ends: str) -> alt.Chart:
        base = alt.Chart(data_of(some)).transform_flatten(["x", "y", *ends]).transform_filter(valid)
        return base.encode(across, up, color=colour, detail=alt.Detail("line:N"))

    layers = []
    if marks:
        at = alt.Chart(data_of([{"x": place, "what": what} for place, what in marks]))
        layers.append(at.mark_rule(strokeDash=[2, 3], opacity=0.6).encode(across, alt.Tooltip("what:N")))
    if banded := [row for row in rows if "low" in row]:
        area = drawn(banded, "low", "high").mark_area(opacity=0.16, strokeWidth=0)
        layers.append(area.encode(alt.Y("low:Q", title=y or None, scale=scale), y2=alt.Y2("high:Q")))
    kind: dict[str, Any] = {"interpolate": "step-after"} if step else {}
    longest, base = max(len(row["x"]) for row in rows), drawn(rows)
    if longest > _MANY and not step:
        layers.append(base.mark_line(strokeWidth=0.6, opacity=0.35))
        half = max(2, longest // 200)
        base = base.transform_window(smooth="mean(y)", frame=[-half, half], groupby=["line"])
        base = base.encode(alt.Y("smooth:Q", title=y or None, scale=scale, axis=alt.Axis(**ticks)))
    layers.append(base.mark_line(clip=True, **kind).encode(strokeDash=dash, tooltip=read))
    if few := [row for row in rows if len(row["x"]) < 3]:
        layers.append(drawn(few).mark_point(filled=True, size=45).encode(tooltip=read))
    meta = {"read": "lines", "x": x, "form": form, "zoom": ["x"], "whole": whole}
    return alt.layer(*layers).properties(usermeta=meta, height=300)


def _dashes(names: Sequence[str]) -> list[list[int]]:
    return [DASHES[(place + place // len(COLOURS)) % len(DASHES)] for place in range(len(names))]


@dataclass(frozen=True, eq=False)
class Side:
    """The rows or the columns of cells.

    Attributes
    ----------
    names
        Name of each row or column, shown when a cell is pointed at.
    bands
        Band of each: neighbours in one band are labelled together, with a line between two bands.
    title
        Name of the bands.
    """

    names: Sequence[str]
    bands: Any = ()
    title: str = ""

    def blocks(self, most: int) -> tuple["Side", list[int]]:
        """Join neighbours into at most `most` blocks; return them with the first index of each."""
        starts = list(range(0, len(self.names), -(-len(self.names) // most)))
        sizes = np.diff([*starts, len(self.names)]).tolist()
        more = [f" and {size - 1} more" if size > 1 else "" for size in sizes]
        names = [self.names[at] + text for at, text in zip(starts, more, strict=True)]
        bands = [self.bands[at] for at in starts] if len(self.bands) else ()
        return replace(self, names=names, bands=bands), starts


def cells(
    values: ArrayLike,
    rows: Side,
    columns: Side,
    colours: str = "sequential",
    *,
    ends: tuple[float, float] | None = None,
    title: str = "",
    square: bool = False,
    strip: Any = (),
    numbers: str = "",
    most: int | None = None,
) -> Any:
    """Draw a table of numbers as coloured cells; an unknown one is left out, an infinite one is black.

    Parameters
    ----------
    values
        Shape (n, m).
    rows, columns
        The n rows and the m columns.
    colours
        A name in :data:`MAPS`.
    ends
        Ends of the colour scale; all values unless given.
    title
        What the colours are.
    square
        Whether cells are as wide as they are high.
    strip
        A number per row, shown as a colour beside it; runs of one number form one strip.
    numbers
        Format of a number in each cell; none unless given.
    most
        Rows, and columns, above which blocks of cells are averaged.
    """
    table = np.asarray(values, dtype=np.float64)
    if most is not None:
        (rows, tops), (columns, lefts) = rows.blocks(most), columns.blocks(most)
        table, strip = cells_from(table, tops, lefts), [strip[at] for at in tops] if len(strip) else ()
    n, m = table.shape
    finite = table[np.isfinite(table)]
    low, high = ends or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    if low == high:  # a single pair or equal entries: any width will do
        high = low + 0.1 * (abs(low) or 1.0)
    flat = [float(f"{one:.4g}") if np.isfinite(one) else "" if np.isnan(one) else "∞" for one in table.flat]
    ends_of = {"r2": "datum.r + 1", "c2": "datum.c + 1", "middle": "datum.c + 0.5", "centre": "datum.r + 0.5"}
    base = alt.Chart(data_of(flat)).transform_window(i="row_number()")
    base = base.transform_calculate(r=f"floor((datum.i - 1) / {m})", c=f"(datum.i - 1) % {m}")
    base = base.transform_calculate(**ends_of).transform_filter("datum.data !== ''")
    for key, named, names in (("r", "row", rows.names), ("c", "column", columns.names)):
        data = data_of([{key: place, named: str(name)} for place, name in enumerate(names)])
        base = base.transform_lookup(key, from_=alt.LookupData(data=data, key=key, fields=[named]))
    up = alt.Scale(domain=[0, n], reverse=True, nice=False, zero=False)
    across = alt.Scale(domain=[0, m], nice=False, zero=False)
    x = alt.X("c:Q", title=columns.title or None, scale=across, axis=_band_axis(columns.bands))
    y = alt.Y("r:Q", title=rows.title or None, scale=up, axis=_band_axis(rows.bands))
    scale = alt.Scale(domain=[low, high], clamp=True, **MAPS[colours])
    colour = alt.Color("data:Q", title=title or None, scale=scale, legend=alt.Legend(gradientLength=160))
    read = [alt.Tooltip("row:N"), alt.Tooltip("column:N"), alt.Tooltip("data:N", title=title or "value")]
    drawn = base.mark_rect(strokeWidth=0).encode(x, y, x2=alt.X2("c2:Q"), y2=alt.Y2("r2:Q"), tooltip=read)
    layers = [drawn.transform_filter("isNumber(datum.data)").encode(color=colour)]
    if np.isinf(table).any():
        layers.append(drawn.transform_filter("datum.data === '∞'").encode(color=alt.ColorValue("black")))
    line = "black" if colours == "labels" else "white"
    for bands, key, channel in ((rows.bands, "r", y), (columns.bands, "c", x)):
        inner = edges(bands)[1:-1]
        if 0 < len(inner) < min(60, len(bands) - 1):
            rules = alt.Chart(data_of([{key: at} for at in inner])).mark_rule(strokeWidth=1, color=line)
            layers.append(rules.encode(channel))
    for start, end in pairwise(edges(strip)):
        colour_of = COLOURS[int(strip[start]) % len(COLOURS)]
        beside = alt.Chart(data_of([{"r": start, "r2": end}])).mark_rect(color=colour_of)
        ends_of_strip = alt.XValue(alt.expr("width + 3")), alt.X2Value(alt.expr("width + 9"))
        layers.append(beside.encode(y, alt.Y2("r2:Q"), *ends_of_strip))
    if numbers:
        middle = low + 0.55 * (high - low)
        dark = alt.condition(f"datum.data > {middle}", alt.value("black"), alt.value("white"))
        at = alt.X("middle:Q", scale=across), alt.Y("centre:Q", scale=up)
        layers.append(base.mark_text().encode(*at, color=dark, text=alt.Text("data:Q", format=numbers)))
    width, height = m * max(1, 440 // m), n * max(1, 440 // n)
    if not square:
        width, height = 620, int(np.clip(22 * n, 60, 330))
    meta = {"read": "cells", "cells": [n, m], "square": square}
    return alt.layer(*layers).properties(usermeta=meta, width=width, height=height)


def cells_from(values: ArrayLike, rows: Any, columns: Any) -> np.ndarray:
    """Average blocks of a matrix over their finite entries; NaN if a block has none.

    Parameters
    ----------
    values
        Shape (n, m).
    rows, columns
        First row and first column of each block, ascending from 0.
    """

    def blocks(entries: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(entries, rows, axis=0), columns, axis=1)

    table = np.asarray(values, dtype=np.float64)
    known = np.isfinite(table)
    sums, counts = blocks(np.where(known, table, 0.0)), blocks(known.astype(np.int64))
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    endless = blocks(np.isinf(table).astype(np.int64)) > 0
    return np.where(endless & np.isnan(means), np.inf, means)


def edges(bands: Sequence[Any] | IntArray) -> list[int]:
    """List where each run of equal bands starts, and the end."""
    starts = [place for place in range(len(bands)) if not place or bands[place] != bands[place - 1]]
    return [*starts, len(bands)] if starts else []


def _band_axis(bands: Sequence[Any]) -> alt.Axis | None:
    """Label each band at its middle, if it takes 1/25 of the axis or if all bands are one cell each."""
    pairs = list(pairwise(edges(bands)))
    if not pairs:
        return None
    if len(pairs) == len(bands):
        pairs = pairs[:: -(-len(pairs) // 40)]
    else:
        pairs = [(start, end) for start, end in pairs if end - start >= len(bands) / 25]
    middles = [(start + end) / 2 for start, end in pairs]
    texts = [str(bands[start]) for start, _ in pairs]
    # Names are literals of Vega's own language, which the page reads with an interpreter.
    names = json.dumps([text if len(text) <= 18 else f"{text[:17]}…" for text in texts])
    label = f"{names}[indexof({json.dumps(middles)}, datum.value)]"
    bare = alt.Axis(tickSize=0, grid=False, domain=False, labelOverlap=False, labelPadding=4, labelAngle=0)
    bare.values, bare.labelExpr = middles, label
    return bare


def points(rows: Sequence[Mapping[str, Any]], x: str = "", y: str = "", legend: bool = True) -> alt.Chart:
    """Draw points in the plane, with a colour and a shape for each group.

    Parameters
    ----------
    rows
        Each with ``name``, ``group``, ``x`` and ``y``.
    x, y
        Names of the axes.
    legend
        Whether to list the groups.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    key: dict[str, Any] = {"title": None, "legend": alt.Legend() if legend else None}
    low, high = (np.array([end(row[axis] for row in rows) for axis in "xy"]) for end in (min, max))
    reach = 0.55 * max(1e-9, *(high - low))  # one scale for both
    both = [alt.Scale(domain=[at - reach, at + reach], nice=False) for at in ((low + high) / 2).tolist()]
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(groups))]
    chart = alt.Chart(data_of(rows)).mark_point(filled=True, size=55, opacity=0.85)
    return chart.encode(
        alt.X("x:Q", title=x or None, scale=both[0]),
        alt.Y("y:Q", title=y or None, scale=both[1]),
        color=alt.Color("group:N", scale=alt.Scale(domain=groups), **key),
        shape=alt.Shape("group:N", scale=alt.Scale(domain=groups, range=shapes), **key),
        tooltip=alt.Tooltip("name:N"),
    ).properties(usermeta={"read": "points", "zoom": ["x", "y"]}, width=380, height=380)


def intervals(rows: Sequence[tuple[str, float, float, float, bool]], x: str) -> Any:
    """Draw values with their intervals, one below the other, and a line at 0.

    Parameters
    ----------
    rows
        Name, value, lower and upper end, and whether it counts as shown, in the order drawn.
    x
        Name of the axis.
    """
    data = [
        {"name": name, "x": value, "low": low, "high": high, "shown": "shown" if shown else "not shown"}
        for name, value, low, high, shown in rows
    ]
    y = alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=170, grid=False))
    scale = alt.Scale(domain=["shown", "not shown"], range=[COLOURS[2], GREY])
    base = alt.Chart(data_of(data)).encode(y=y, color=alt.Color("shown:N", title=None, scale=scale))
    across = alt.X("x:Q", title=x, axis=alt.Axis(tickCount=6))
    zero = alt.Chart(data_of([{"x": 0}])).mark_rule(strokeDash=[2, 2], opacity=0.6).encode(across)
    bars = base.mark_rule(strokeWidth=3).encode(alt.X("low:Q", title=x), x2=alt.X2("high:Q"))
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(across, alt.Tooltip("name:N"))
    return alt.layer(zero, bars, dots).properties(usermeta={"read": "points", "x": x}, height=24 * len(rows))


def strip(rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> Any:
    """Draw a row per name, with a dot for each of its values and a line at their mean.

    Parameters
    ----------
    rows
        Each with ``row``, the name of the row, ``name``, that of the dot, and the value of each figure.
    figures
        Names of the figures; the page's reader chooses one, the first is shown initially.
    """
    choice = alt.binding_select(options=list(figures), name="Figure ")
    pick = alt.param("figure", value=figures[0], bind=choice)
    y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(labelLimit=170, grid=False))
    base = (
        alt.Chart(data_of(rows)).transform_calculate(x="datum[figure]").transform_filter("isValid(datum.x)")
    )
    across = alt.X("x:Q", title=None, scale=alt.Scale(zero=False))
    dots = base.mark_point(filled=True, size=70, opacity=0.65).encode(
        across, y, tooltip=alt.Tooltip("name:N")
    )
    means = base.mark_tick(thickness=2.5, size=18, color=GREY).encode(alt.X("mean(x):Q", title=None), y)
    high = 26 * len({row["row"] for row in rows})
    return alt.layer(means, dots).add_params(pick).properties(usermeta={"read": "points"}, height=high)


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart as Vega-Lite without a style."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec.pop("config", None)
    return spec


def save(
    chart: alt.TopLevelMixin,
    path: Path,
    *,
    title: str = "",
    config: Mapping[str, Any] = PICTURE,
    inches: float | None = None,
) -> Path:
    """Write a chart as SVG, PDF or PNG by the file's extension, without a date; make the folder if needed.

    Parameters
    ----------
    chart
        Any chart.
    path
        The file.
    title
        Title above the chart.
    config
        Its style.
    inches
        Width of the whole picture, which as PNG has 300 dots per inch; unless given, its own width and 150
        dots per inch.

    Raises
    ------
    ValueError
        If the extension is of another format.
    """
    ending = path.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ValueError(f"path must end in one of .{', .'.join(FORMATS)}, got {path}")
    spec = specification(chart) | ({"title": title} if title else {})
    text = vl_convert.vegalite_to_svg(spec, config=dict(config), allowed_base_urls=[])
    for place, name in enumerate(dict.fromkeys(re.findall(r' id="(\w+)"', text))):
        # Vega continues its numbering from the last picture: renumber, so that equal charts give equal files.
        text = re.sub(rf'(?<=id="){name}(?=")|(?<=#){name}(?=[")])', f"part{place}", text)
    wide, high = (float(side) for side in re.findall(r' (?:width|height)="([\d.]+)"', text)[:2])
    scale = 1.0 if inches is None else 72 * inches / wide
    sides = f'width="{wide * scale:.2f}" height="{high * scale:.2f}"'
    text = re.sub(r'width="[\d.]+" height="[\d.]+"', sides, text, count=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    if ending == "svg":
        path.write_text(
            text if inches is None else text.replace(sides, re.sub(r'(\d)"', r'\1pt"', sides), 1),
            encoding="utf-8",
        )
    elif ending == "pdf":
        path.write_bytes(vl_convert.svg_to_pdf(text))
    else:
        path.write_bytes(vl_convert.svg_to_png(text, scale=2.0 if inches is None else 300 / 72))
    return path


@cache
def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, about 0.9 MB.

    Building it takes two seconds, so it is kept in the user's cache.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{vl_convert.get_vega_embed_version()}-{vl_convert.get_vega_version()}"
    path = home / "fedclust" / f"vega-{version}.js"
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError:  # the cache cannot be written: the next process builds it again
        pass
    return text
