"""Figures in the sizes of a paper: fonts of 7 points and more, and files that are the same on every run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from fedclust.results.plots.style import COLOURS, DASHES, tidy

__all__ = [
    "DOTS_PER_INCH",
    "FORMATS",
    "SMALL",
    "WIDTHS",
    "Width",
    "legend_below",
    "line_style",
    "new_paper_figure",
    "paper_style",
    "save_paper_figure",
    "tidy_paper",
]

Width = Literal["column", "page"]
"""A column of a paper of two columns, or the whole page."""

WIDTHS: dict[Width, float] = {"column": 3.4, "page": 7.0}
"""Inches."""

DOTS_PER_INCH = 300
"""Of PNG files."""

FORMATS = ("svg", "pdf", "png")

SMALL = 7.0
"""Points of the smallest text."""

_INCHES_PER_LETTER = 0.062  # of DejaVu Sans in 7 points, the wider letters
_STYLE = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same everywhere
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # publishers refuse Type 3
    "svg.hashsalt": "fedclust",
    "svg.fonttype": "path",
}
_NO_DATE: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Use the fonts and line widths of a paper within the block."""
    with rc_context(cast(Any, _STYLE)):
        yield


def new_paper_figure(width: Width, height: float) -> Figure:
    """Create an empty figure.

    Parameters
    ----------
    width
        ``"column"`` (3.4 inches) or ``"page"`` (7 inches).
    height
        In inches.

    Raises
    ------
    ValueError
        If there is no such width.
    """
    if width not in WIDTHS:
        raise ValueError(f"width must be one of {', '.join(get_args(Width))}, got {width!r}")
    return Figure(figsize=(WIDTHS[width], height), dpi=DOTS_PER_INCH, layout="constrained")


def tidy_paper(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Label the axes as :func:`fedclust.results.plots.style.tidy` does, in the sizes of a paper."""
    tidy(axes, "", x, y)
    if title:
        axes.set_title(title, loc="left", fontsize=8.0)
    axes.tick_params(labelsize=SMALL, width=0.6, length=2.5)


def line_style(place: int) -> dict[str, Any]:
    """Return colour and dashes of the n-th line; 49 lines differ, the first seven in print without colour."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[(place + place // len(COLOURS)) % len(DASHES)],
    }


def _columns_of(labels: Sequence[str], inches: float) -> int:
    """Return how many columns a legend with these labels may have."""
    longest = max(map(len, labels), default=1)
    return max(1, min(len(labels), int(inches / (0.55 + _INCHES_PER_LETTER * longest))))


def legend_below(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], title: str | None = None, line: float = 2.8
) -> Legend:
    """Put a legend below the axes, where it covers no data."""
    return figure.legend(
        list(handles),
        list(labels),
        loc="outside lower center",
        ncols=_columns_of(labels, figure.get_figwidth()),
        frameon=False,
        title=title,
        handlelength=line,
        columnspacing=1.2,
        borderaxespad=0.1,
    )


def save_paper_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as SVG, PDF or PNG by the file's ending, without a date; make the folder if needed.

    Raises
    ------
    ValueError
        If the ending is of no such format.
    """
    ending = path.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ValueError(f"path must end in one of .{', .'.join(FORMATS)}, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with paper_style():
        figure.savefig(path, format=ending, dpi=DOTS_PER_INCH, metadata=_NO_DATE[ending])
    return path
