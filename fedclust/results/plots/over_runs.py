"""Methods next to each other: accuracy over rounds, accuracy over clients, and a map of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedclust.results.plots.paper import (
    SMALL,
    WIDTHS,
    Width,
    legend_below,
    line_style,
    new_paper_figure,
    paper_style,
    tidy_paper,
)
from fedclust.results.plots.style import COLOURS, GREY
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "Band",
    "Curve",
    "accuracy_bands",
    "accuracy_over_clients",
    "mean_and_band",
    "most_panels",
    "sweep_map",
]

Curve = tuple[IntArray, FloatArray]
"""Rounds and values of one run, both of shape (n,)."""

Band = Literal["std", "range"]
"""Mean ± sample standard deviation over the seeds, or from the least to the largest of them."""

_BANDS = {"std": "± sample standard deviation", "range": "least to largest"}
_ACROSS = {"column": 1, "page": 3}
_DOWN = 4
_MOST_POINTS = 400


def most_panels(width: Width) -> int:
    """Return how many panels fit a figure of a width."""
    return _ACROSS[width] * _DOWN


def mean_and_band(
    curves: Sequence[Curve], band: Band = "std"
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return mean and band over the runs of several seeds.

    Parameters
    ----------
    curves
        Of each run.
    band
        What the band is. A single run has none: its ends are the mean.

    Returns
    -------
    The rounds that all runs have, ascending, and there the mean, lower and upper end of the band, all of
    shape (n,).

    Raises
    ------
    ValueError
        If there is no run or no such band.
    """
    if not curves or band not in get_args(Band):
        raise ValueError(
            f"curves must not be empty and band one of {', '.join(_BANDS)}, got {len(curves)}, {band!r}"
        )
    shared = curves[0][0]
    for rounds, _ in curves[1:]:
        shared = np.intersect1d(shared, rounds)
    values = np.stack([each[np.isin(rounds, shared)] for rounds, each in curves])
    mean = values.mean(axis=0)
    if len(curves) == 1:
        return shared, mean, mean, mean
    if band == "range":
        return shared, mean, values.min(axis=0), values.max(axis=0)
    spread = values.std(axis=0, ddof=1)
    return shared, mean, mean - spread, mean + spread


def accuracy_bands(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    width: Width = "column",
    band: Band = "std",
    measure: str = "mean client accuracy",
) -> Figure:
    """Draw a value over the rounds: a panel per setting, a line per method, a band over its seeds.

    Parameters
    ----------
    panels
        By title of the panel and method: a curve for each seed.
    width
        Of the figure.
    band
        See :data:`Band`; the legend says which one it is.
    measure
        Label of the vertical axis.

    Raises
    ------
    ValueError
        If there is nothing to draw, more panels than fit, or no such width or band.
    """
    methods = list(dict.fromkeys(method for by_method in panels.values() for method in by_method))
    seeds = [len(curves) for by_method in panels.values() for curves in by_method.values()]
    with paper_style():
        figure, grid = _panels(list(panels), width, 1.9, sharey=True)
        for axes, (title, by_method) in zip(grid, panels.items(), strict=True):
            for method, curves in by_method.items():
                rounds, mean, low, high = mean_and_band(curves, band)
                style = line_style(methods.index(method))
                marker = "o" if len(rounds) == 1 else None
                axes.plot(rounds, mean, label=method, marker=marker, markersize=3, **style)
                if len(curves) > 1:
                    axes.fill_between(rounds, low, high, color=style["color"], alpha=0.18, linewidth=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            tidy_paper(axes, title)
        if len({axes.get_xlim() for axes in grid}) > 1:  # runs of several lengths
            for axes in grid:
                axes.tick_params(labelbottom=True)
        _label(grid, width, "round", measure)
        handles = [Line2D([], [], **line_style(place)) for place in range(len(methods))]
        legend_below(figure, handles, methods, _seeds_note(seeds, band))
    return figure


def accuracy_over_clients(
    panels: Mapping[str, Mapping[str, FloatArray]],
    width: Width = "column",
    measure: str = "accuracy on a client's own test part",
) -> Figure:
    """Draw each client's accuracy: a panel per setting, a row per method.

    A box reaches from the first to the third quartile, with a line at the median, a diamond at the mean, and
    whiskers to the last client within 1.5 box lengths. Up to 400 clients of a method are drawn as points.

    Parameters
    ----------
    panels
        By title of the panel and method: accuracies, shape (n,), of the clients of all seeds.
    width
        Of the figure.
    measure
        Label of the horizontal axis.

    Raises
    ------
    ValueError
        If there is nothing to draw, more panels than fit, or no such width.
    """
    methods = list(dict.fromkeys(method for by_method in panels.values() for method in by_method))
    with paper_style():
        figure, grid = _panels(list(panels), width, 0.55 + 0.27 * len(methods), sharex=True, sharey=True)
        for axes, (title, by_method) in zip(grid, panels.items(), strict=True):
            for method, accuracies in by_method.items():
                row, colour = methods.index(method), COLOURS[methods.index(method) % len(COLOURS)]
                few = len(accuracies) <= _MOST_POINTS
                if few:  # spread within the row evenly, so that equal accuracies stay apart
                    shift = 0.3 * (np.arange(len(accuracies)) * 0.618034 % 1 * 2 - 1)
                    axes.plot(
                        accuracies,
                        row + shift,
                        "o",
                        color=colour,
                        markersize=2,
                        alpha=0.45,
                        markeredgewidth=0,
                    )
                axes.boxplot(
                    accuracies,
                    positions=[row],
                    widths=0.62,
                    orientation="horizontal",
                    showfliers=not few,
                    showmeans=True,
                    flierprops={"marker": ".", "markersize": 2, "markeredgecolor": GREY},
                    meanprops={
                        "marker": "D",
                        "markersize": 3.5,
                        "markerfacecolor": "white",
                        "markeredgecolor": "black",
                    },
                    medianprops={"color": "black", "linewidth": 1.4},
                    boxprops={"linewidth": 0.8},
                    whiskerprops={"linewidth": 0.8},
                    capprops={"linewidth": 0.8},
                    manage_ticks=False,
                )
            axes.set_yticks(range(len(methods)), methods)
            tidy_paper(axes, title)
            axes.grid(visible=False, axis="y")
        grid[0].set_ylim(len(methods) - 0.5, -0.5)
        _label(grid, width, measure, "")
    return figure


def sweep_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], FloatArray],
    measure: str,
    setting: str = "",
    width: Width = "column",
) -> Figure:
    """Draw a figure for every setting and method as a map, with its mean over the seeds in each cell.

    Parameters
    ----------
    rows, columns
        Settings, from top to bottom, and methods, from left to right.
    values
        By setting and method: one value per seed. A cell without values is grey.
    measure
        What is drawn, with its unit.
    setting
        Label of the rows.
    width
        Of the figure.

    Raises
    ------
    ValueError
        If no cell has a value, or there is no such width.
    """
    means = np.full((len(rows), len(columns)), np.nan)
    spreads = np.full(means.shape, np.nan)
    for (row, column), found in values.items():
        if len(found):
            place = rows.index(row), columns.index(column)
            means[place] = np.mean(found)
            spreads[place] = np.std(found, ddof=1) if len(found) > 1 else np.nan
    if not np.isfinite(means).any():
        raise ValueError(f"values must have one for a setting and method at least, got none for {measure}")
    cell = (WIDTHS[width] - 1.5) / len(columns)
    with_spread = cell >= 0.55 and bool(np.isfinite(spreads).any())
    with paper_style():
        figure = new_paper_figure(width, 1.1 + (0.36 if with_spread else 0.26) * len(rows))
        axes = figure.subplots()
        image = axes.imshow(np.ma.masked_invalid(means), cmap="viridis", aspect="auto")
        axes.set_facecolor("#D9D9D9")
        bar = figure.colorbar(image, ax=axes, aspect=12)
        bar.set_label(measure, fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL)
        low, high = np.nanmin(means), np.nanmax(means)
        found = means[np.isfinite(means)]
        digits = 0 if high >= 100 or (found == found.round()).all() else 2
        for place, mean in np.ndenumerate(means):
            if np.isfinite(mean) and cell >= 0.34:
                text = f"{mean:.{digits}f}"
                if with_spread and np.isfinite(spreads[place]):
                    text += f"\n± {spreads[place]:.2f}"
                light = high > low and (mean - low) / (high - low) > 0.6
                colour = "black" if light else "white"
                axes.text(place[1], place[0], text, ha="center", va="center", fontsize=SMALL, color=colour)
        turned = max(map(len, columns)) * 0.062 > cell
        axes.set_xticks(range(len(columns)), columns)
        axes.tick_params(labelsize=SMALL, length=0)
        if turned:
            for label in axes.get_xticklabels():
                label.set(rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylabel(setting)
        axes.spines[:].set_visible(False)
    return figure


def _panels(
    titles: Sequence[str], width: Width, height: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with a panel for each title; those on the left and at the bottom have labels."""
    if width not in WIDTHS:
        raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
    if not 0 < len(titles) <= most_panels(width):
        raise ValueError(f"a {width} has room for 1 to {most_panels(width)} panels, got {len(titles)}")
    across = min(_ACROSS[width], len(titles))
    down = -(-len(titles) // across)
    figure = new_paper_figure(width, 0.75 + height * down)
    grid = list(figure.subplots(down, across, sharex=sharex, sharey=sharey, squeeze=False).flat)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for place, axes in enumerate(grid[: len(titles)]):  # the last of each column keeps its labels
        axes.tick_params(labelbottom=place + across >= len(titles))
    return figure, grid[: len(titles)]


def _label(grid: Sequence[Axes], width: Width, x: str, y: str) -> None:
    """Label the lowest panel of each column and the first of each row."""
    across = min(_ACROSS[width], len(grid))
    for place, axes in enumerate(grid):
        axes.set_xlabel(x if place + across >= len(grid) else "")
        axes.set_ylabel("" if place % across else y)


def _seeds_note(seeds: Sequence[int], band: Band) -> str:
    least, most = min(seeds), max(seeds)
    if most == 1:
        return "one seed"
    number = f"{most}" if least == most else f"{least} to {most}"
    return f"mean over {number} seeds; band: {_BANDS[band]}"
