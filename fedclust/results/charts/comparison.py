"""Pictures for a paper from a sweep: ``python -m fedclust.runs.compare FOLDER --plots DIR``."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from fedclust.metrics.ranks import critical_difference, friedman, mean_ranks
from fedclust.results.charts.chart import (
    COLOURS,
    FORMATS,
    GREY,
    PAPER,
    Line,
    cells,
    curves,
    data_of,
    points,
    save,
)
from fedclust.results.charts.run import KINDS, larger_is_alike
from fedclust.results.comparison import Comparison, Row
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

Width = Literal["column", "page"]
"""A column of a paper of two columns, or the whole page."""

WIDTHS: dict[str, float] = {"column": 3.4, "page": 7.0}
"""Inches."""

Curve = tuple[IntArray, FloatArray]
"""Rounds and values of one run, both of shape (n,)."""

Band = Literal["std", "range"]
"""Mean ± sample standard deviation over the seeds, or from the least to the largest of them."""

_BANDS = {"std": "± sample standard deviation", "range": "least to largest"}
_ACROSS, _DOWN = {"column": 1, "page": 3}, 4
_MOST_POINTS = 400

MOST_CLIENTS = 1500
"""Clients on a map; of more, the points would hide each other, and their places take minutes to compute."""

MOST_CHANGES = 30
"""Changes of the clusters in a tree; of more, a drawing would be a web of lines."""

_GAP = 0.06  # of all clients, between two clusters
_TURN = 0.35  # of the time between two changes, and at most 4 % of all rounds, in which clients move over
_MOST_RUNS = 12
_OWN = "strategy."
_ACCURACY = "mean_client_accuracy"


@dataclass(frozen=True)
class Drawn:
    """A picture that was drawn, or the reason why it was not.

    Attributes
    ----------
    name
        Its file's name without ending.
    shows
        What it shows, or why it could not be drawn.
    files
        The files written; none if it could not be drawn.
    """

    name: str
    shows: str
    files: tuple[Path, ...] = ()


# ---- methods side by side


def mean_and_band(
    runs: Sequence[Curve], band: Band = "std"
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return mean and band over the runs of several seeds.

    Parameters
    ----------
    runs
        A curve of each.
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
    if not runs or band not in get_args(Band):
        raise ValueError(
            f"curves must not be empty and band one of {', '.join(_BANDS)}, got {len(runs)}, {band!r}"
        )
    shared = runs[0][0]
    for rounds, _ in runs[1:]:
        shared = np.intersect1d(shared, rounds)
    values = np.stack([each[np.isin(rounds, shared)] for rounds, each in runs])
    mean = values.mean(axis=0)
    if len(runs) == 1:
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
) -> alt.ConcatChart:
    """Draw a value over the rounds: a panel per setting, a line per method, a band over its seeds.

    Parameters
    ----------
    panels
        By title of the panel and method: a curve for each seed.
    width
        Of the picture.
    band
        See :data:`Band`.
    measure
        Label of the vertical axis.

    Raises
    ------
    ValueError
        If there is nothing to draw, more panels than fit, or no such width or band.
    """
    methods = list(dict.fromkeys(method for by_method in panels.values() for method in by_method))
    charts = []
    for title, by_method in panels.items():
        lines = []
        for method, runs in by_method.items():
            rounds, mean, low, high = mean_and_band(runs, band)
            lines.append(Line(method, rounds, mean, *((low, high) if len(runs) > 1 else ())))
        charts.append(curves(lines, "round", measure, names=methods).properties(title=title))
    return _panels(charts, width, 118).resolve_scale(y="shared")


def accuracy_over_clients(
    panels: Mapping[str, Mapping[str, FloatArray]],
    width: Width = "column",
    measure: str = "accuracy on a client's own test part",
) -> alt.ConcatChart:
    """Draw each client's accuracy: a panel per setting, a row per method.

    A box reaches from the first to the third quartile, with a line at the median, a diamond at the mean, and
    whiskers to the last client within 1.5 box lengths. Up to 400 clients of a method are drawn as points.

    Parameters
    ----------
    panels
        By title of the panel and method: accuracies, shape (n,), of the clients of all seeds.
    width
        Of the picture.
    measure
        Label of the horizontal axis.

    Raises
    ------
    ValueError
        If there is nothing to draw, more panels than fit, or no such width.
    """
    methods = list(dict.fromkeys(method for by_method in panels.values() for method in by_method))
    charts = []
    for title, by_method in panels.items():
        rows, dots = [], []
        for method, values in by_method.items():
            rows += [{"method": method, "x": float(value)} for value in values]
            # Spread within the row evenly, so that equal accuracies stay apart.
            shift = 0.3 * (np.arange(len(values)) * 0.618034 % 1 * 2 - 1)
            if len(values) <= _MOST_POINTS:
                dots += [
                    {"method": method, "x": float(x), "by": float(by)}
                    for x, by in zip(values, shift, strict=True)
                ]
        x = alt.X("x:Q", title=measure, scale=alt.Scale(zero=False))
        y = alt.Y(
            "method:N", sort=methods, title=None, axis=alt.Axis(grid=False), scale=alt.Scale(domain=methods)
        )
        colour = alt.Color("method:N", scale=alt.Scale(domain=methods), legend=None)
        base = alt.Chart(data_of(rows)).encode(x, y)
        box = base.mark_boxplot(
            size=13,
            ticks=True,
            outliers=bool(len(dots) < len(rows)) and {"size": 4, "color": GREY},
            box={"fill": None, "stroke": "black", "strokeWidth": 0.8},
            median={"color": "black"},
        )
        mean = base.mark_point(shape="diamond", size=22, fill="white", color="black").encode(
            alt.X("mean(x):Q", title=measure)
        )
        spread = (
            alt.Chart(data_of(dots))
            .mark_point(filled=True, size=5, opacity=0.45)
            .encode(x, y, color=colour, yOffset=alt.YOffset("by:Q", scale=alt.Scale(domain=[-0.5, 0.5])))
        )
        layers = [spread, box, mean] if dots else [box, mean]
        charts.append(alt.layer(*layers).properties(title=title))
    return _panels(charts, width, 24 * len(methods)).resolve_scale(x="shared")


def _panels(charts: Sequence[Any], width: Width, height: float) -> alt.ConcatChart:
    """Set panels side by side, three in the width of a page and one in that of a column."""
    _check(width)
    most = _ACROSS[width] * _DOWN
    if not 0 < len(charts) <= most:
        raise ValueError(f"a {width} has room for 1 to {most} panels, got {len(charts)}")
    across = min(_ACROSS[width], len(charts))
    wide = (72 * WIDTHS[width] - 45 * across) / across
    sized = [chart.properties(width=wide, height=height) for chart in charts]
    return alt.concat(*sized, columns=across, spacing=12)


def _check(width: str) -> None:
    if width not in WIDTHS:
        raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")


def sweep_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], FloatArray],
    measure: str,
    setting: str = "",
    width: Width = "column",
) -> Any:
    """Draw a figure for every setting and method as a map, with its mean over the seeds in each cell.

    Parameters
    ----------
    rows, columns
        Settings, from top to bottom, and methods, from left to right.
    values
        By setting and method: one value per seed. A cell without values is left blank.
    measure
        What is drawn, with its unit.
    setting
        Label of the rows.
    width
        Of the picture.

    Raises
    ------
    ValueError
        If no cell has a value, or there is no such width.
    """
    _check(width)
    means = np.full((len(rows), len(columns)), np.nan)
    for (row, column), found in values.items():
        if len(found):
            means[rows.index(row), columns.index(column)] = np.mean(found)
    some = means[np.isfinite(means)]
    if not some.size:
        raise ValueError(f"values must have one for a setting and method at least, got none for {measure}")
    digits = ".0f" if some.max() >= 100 or (some == some.round()).all() else ".2f"
    wide = 72 * (WIDTHS[width] - 1.1)
    chart = cells(
        means,
        rows,
        columns,
        title=measure,
        row_bands=rows,
        column_bands=columns,
        row_title=setting,
        numbers=digits if wide / len(columns) >= 24 else "",
    )
    return chart.properties(width=wide, height=26 * len(rows))


def groups_alike(ranks: FloatArray, difference: float) -> list[tuple[int, int]]:
    """List the longest runs of methods, sorted by rank, whose ends lie within the critical difference.

    Parameters
    ----------
    ranks
        Mean ranks in ascending order, shape (k,).
    difference
        The critical difference.

    Returns
    -------
    First and last position of each run of two methods or more; no run lies within another.
    """
    runs: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = int(np.searchsorted(ranks, ranks[first] + difference, side="right")) - 1
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def rank_diagram(
    names: Sequence[str],
    ranks: FloatArray,
    difference: float,
    title: str = "Mean rank, the best to the left",
    inches: float = 8,
) -> Any:
    """Draw a critical-difference diagram (Demšar, 2006, Figure 1).

    Parameters
    ----------
    names
        Of the methods, shape (k,).
    ranks
        Mean rank of each, shape (k,).
    difference
        The critical difference; a bar joins methods that lie within it.
    title
        Title of the picture.
    inches
        Width of it.
    """
    order = np.argsort(ranks, kind="stable")
    sorted_ranks, number = np.asarray(ranks)[order], len(order)
    left = (number + 1) // 2
    runs = groups_alike(sorted_ranks, difference)
    first_label = 0.9 + 0.28 * len(runs)
    labels = [f"{names[method]} ({rank:.2f})" for method, rank in zip(order, sorted_ranks, strict=True)]
    rules: list[dict[str, Any]] = [{"x": 1, "x2": number, "y": 0, "y2": 0}]
    rules += [{"x": tick, "x2": tick, "y": -0.12, "y2": 0} for tick in range(1, number + 1)]
    texts = [{"x": tick, "y": -0.3, "text": str(tick), "side": "middle"} for tick in range(1, number + 1)]
    bars = [{"x": 1, "x2": 1 + difference, "y": -0.9, "by": "difference"}]
    texts.append(
        {"x": 1.1 + difference, "y": -0.9, "text": f"critical difference {difference:.2f}", "side": "left"}
    )
    for place, (label, rank) in enumerate(zip(labels, sorted_ranks.tolist(), strict=True)):
        on_the_left = place < left
        row = first_label + 0.5 * (place if on_the_left else number - 1 - place)
        edge = 0.9 if on_the_left else number + 0.1
        rules += [
            {"x": rank, "x2": rank, "y": 0, "y2": row},
            {"x": min(rank, edge), "x2": max(rank, edge), "y": row, "y2": row},
        ]
        texts.append({"x": edge, "y": row, "text": label, "side": "right" if on_the_left else "left"})
    for level, (first, last) in enumerate(runs):
        ends = sorted_ranks[first] - 0.05, sorted_ranks[last] + 0.05
        bars.append({"x": ends[0], "x2": ends[1], "y": 0.35 + 0.28 * level, "by": "alike"})
    rows = max(left, number - left)
    low, high = -1.2, first_label + 0.5 * rows + 0.1
    room = max(map(len, labels)) * 5.4  # dots that the names take on either side
    dots = max(80.0, 72 * inches - 2 * room)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0.9, number + 0.1], nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[low, high], reverse=True, nice=False))
    lines = alt.Chart(data_of(rules)).mark_rule(strokeWidth=0.8).encode(x, y, x2="x2:Q", y2="y2:Q")
    colour = alt.Color(
        "by:N", legend=None, scale=alt.Scale(domain=["alike", "difference"], range=[*COLOURS[:2]])
    )
    thick = alt.Chart(data_of(bars)).mark_rule(strokeWidth=4).encode(x, y, x2="x2:Q", color=colour)
    sides: tuple[tuple[str, Any, int], ...] = (
        ("left", "left", 4),
        ("middle", "center", 0),
        ("right", "right", -4),
    )
    written = [
        alt.Chart(data_of([one for one in texts if one["side"] == side]))
        .mark_text(align=align, dx=shift)
        .encode(x, y, text="text:N")
        for side, align, shift in sides
        if any(one["side"] == side for one in texts)
    ]
    return alt.layer(lines, thick, *written).properties(title=title, width=dots, height=26 * (high - low))


# ---- one run


def distances_of(name: str, values: ArrayLike) -> FloatArray:
    """Turn a matrix of ``matrices.npz`` into distances between clients.

    Where larger is more alike, a distance is the largest value − the value; else the value, and if some are
    below 0, as evidence is, the value − the least one.

    Parameters
    ----------
    name
        Name of the matrix, such as ``affinity`` or ``distances``.
    values
        Shape (K, K).

    Returns
    -------
    Symmetric, at least 0, with 0 on the diagonal, shape (K, K); a pair with two values has their mean.

    Raises
    ------
    ValueError
        If the name is not known, or it is not a square matrix of finite numbers off the diagonal: some pairs
        were not compared.
    """
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must have shape (clients, clients), got {matrix.shape}")
    off = ~np.eye(len(matrix), dtype=bool)
    missing = int((~np.isfinite(matrix[off])).sum())
    if missing:
        raise ValueError(f"{name} must have a number for every pair of clients, {missing} entries have none")
    larger = larger_is_alike(name)
    if larger is None:
        raise ValueError(f"name must start with one of {', '.join(KINDS)}, got {name}")
    matrix = matrix[off].max(initial=0.0) - matrix if larger else matrix - matrix[off].min(initial=0.0)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 0.0)
    return matrix


def places(distances: FloatArray) -> tuple[FloatArray, float]:
    """Find places in the plane whose distances are as close to the given ones as possible.

    Source: metric multidimensional scaling by SMACOF, from scikit-learn.

    Parameters
    ----------
    distances
        Symmetric, with 0 on the diagonal, shape (K, K).

    Returns
    -------
    Coordinates, shape (K, 2), and Kruskal's stress, √(Σ (d − δ)² / Σ δ²): 0 if the plane keeps all distances.

    Raises
    ------
    ValueError
        If there are fewer than three clients or more than 1,500, or all distances are 0.
    """
    if not 3 <= len(distances) <= MOST_CLIENTS:
        raise ValueError(f"a map must have 3 to {MOST_CLIENTS} clients, got {len(distances)}")
    if not distances.any():
        raise ValueError("distances must not all be 0, they are")
    from sklearn.manifold import MDS  # takes a second to import

    given: dict[str, Any] = {"n_init": 1, "random_state": 0, "max_iter": 1000}
    if "metric_mds" in inspect.signature(MDS).parameters:  # scikit-learn 1.8
        given |= {"metric": "precomputed", "init": "classical_mds"}
    else:
        given |= {"dissimilarity": "precomputed", "normalized_stress": False, "n_init": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = MDS(**given).fit_transform(distances / distances.max()) * distances.max()
    between = np.linalg.norm(found[:, None] - found[None], axis=-1)
    return found, float(np.sqrt(((between - distances) ** 2).sum() / (distances**2).sum()))


def client_map(
    distances: FloatArray, assignment: IntArray, groups: IntArray | None = None, width: Width = "column"
) -> alt.LayerChart | alt.Chart:
    """Draw the clients in the plane, coloured by cluster, with a shape for each known group.

    Without known groups each cluster has its own shape, so that all can be told apart in print without
    colour. Axes have no unit.

    Parameters
    ----------
    distances
        Symmetric, with 0 on the diagonal, shape (K, K); see :func:`distances_of`.
    assignment
        Cluster index of each client, shape (K,).
    groups
        Known grouping of the clients, shape (K,), if there is one.
    width
        Of the picture.

    Raises
    ------
    ValueError
        If the shapes differ, or as in :func:`places`.
    """
    clients = np.asarray(assignment).shape
    if distances.shape != 2 * clients or (groups is not None and np.shape(groups) != clients):
        raise ValueError(
            f"distances must have shape (K, K), assignment and groups (K,), got {distances.shape}, {clients}"
            + ("" if groups is None else f" and {np.shape(groups)}")
        )
    found, stress = places(distances)
    sizes = dict(zip(*np.unique(assignment, return_counts=True), strict=True))
    rows = [
        {
            "name": f"client {client}",
            "group": f"cluster {assignment[client]} ({sizes[assignment[client]]})",
            "known": "" if groups is None else f"group {groups[client]}",
            "cluster": str(assignment[client]),
            "x": float(found[client, 0]),
            "y": float(found[client, 1]),
        }
        for client in np.argsort(assignment, kind="stable").tolist()
    ]
    chart = points(rows, f"multidimensional scaling, stress {stress:.2f}", legend=len(sizes) <= 12)
    bare = alt.Axis(labels=False, ticks=False, grid=False)
    chart = chart.encode(x=chart.encoding.x.axis(bare), y=chart.encoding.y.axis(bare))
    side = 72 * WIDTHS[width] * (0.8 if width == "column" else 0.55)
    chart = chart.properties(width=side, height=side)
    if groups is None:
        return chart
    named = [f"group {group}" for group in np.unique(groups)]
    chart.encoding.shape = alt.Shape("known:N", title=None, scale=alt.Scale(domain=named))
    middle = [
        {"x": float(at[0]), "y": float(at[1]), "cluster": str(cluster)}
        for cluster in sizes
        for at in [
            _free_place(found, found[assignment == cluster], 0.06 * float(np.ptp(found, axis=0).max()))
        ]
    ]
    text = (
        alt.Chart(data_of(middle))
        .mark_text(fontWeight="bold", fontSize=10)
        .encode(chart.encoding.x, chart.encoding.y, text="cluster:N")
    )
    return chart + text if 1 < len(sizes) <= 30 else chart


def _free_place(at: FloatArray, members: FloatArray, step: float) -> FloatArray:
    """Find a place near a cluster's middle where a number of this size covers no point, if there is one."""
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    middle = np.median(members, axis=0)
    tried = np.concatenate([middle[None], *(middle + radius * step * circle for radius in (1, 2, 3, 4))])
    room = np.linalg.norm(tried[:, None] - at[None], axis=-1).min(axis=1)
    free = np.flatnonzero(room >= step)
    return tried[free[0] if len(free) else int(room.argmax())]


@dataclass(frozen=True, eq=False)
class Stage:
    """The clusters between two changes.

    Attributes
    ----------
    start, end
        Rounds: the clusters came after the first and lasted until the second.
    assignment
        Cluster index of each client, shape (K,).
    tops
        Where each cluster's bar begins, in clients from the middle downwards.
    """

    start: int
    end: int
    assignment: IntArray
    tops: Mapping[int, float]


def stages(changes: Sequence[Mapping[str, Any]], rounds: int) -> list[Stage]:
    """Lay out the clients so that those who were together stay together.

    Parameters
    ----------
    changes
        Assignments over time, as in ``clusters.json``, each with its round.
    rounds
        The last round.

    Returns
    -------
    A stage for each assignment that lasted, in order. Of two in one round, the later one lasted.

    Raises
    ------
    ValueError
        If there is no change, or they are not of the same clients.
    """
    lasting = {int(change["round"]): np.asarray(change["assignment"], dtype=np.int64) for change in changes}
    if not lasting or len({assignment.shape for assignment in lasting.values()}) != 1:
        sizes = sorted({len(assignment) for assignment in lasting.values()})
        raise ValueError(f"changes must be one or more of the same clients, got numbers of clients {sizes}")
    moments = sorted(lasting)
    history = [lasting[moment] for moment in moments]
    # Sorted by the first assignment, then the second, …: splits alone leave every cluster in one piece.
    order = np.lexsort(history[::-1])
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order))
    # A change after the last round has no rounds of its own: it still needs a bar that can be seen.
    ends = [*moments[1:], max(rounds, moments[-1] + max(1, rounds // 20))]
    return [
        Stage(start, end, assignment, _tops(assignment, rank))
        for start, end, assignment in zip(moments, ends, history, strict=True)
    ]


def _tops(assignment: IntArray, rank: FloatArray) -> dict[int, float]:
    """Stack clusters by the mean place of their clients, with a gap between them."""
    clusters, sizes = np.unique(assignment, return_counts=True)
    mean_places = [rank[assignment == cluster].mean() for cluster in clusters]
    gap = _GAP * len(assignment)
    tops, top = {}, -(len(assignment) + gap * (len(clusters) - 1)) / 2
    for place in np.argsort(mean_places, kind="stable"):
        tops[int(clusters[place])] = float(top)
        top += sizes[place] + gap
    return tops


def cluster_tree(changes: Sequence[Mapping[str, Any]], rounds: int, width: Width = "column") -> Any:
    """Draw the clusters as bars over the rounds, as high as they have clients, and who moves where.

    Parameters
    ----------
    changes
        Assignments over time, as in ``clusters.json``.
    rounds
        The last round.
    width
        Of the picture.

    Raises
    ------
    ValueError
        If there are no changes, or more than 30.
    """
    drawn = stages(changes, rounds)
    if len(drawn) - 1 > MOST_CHANGES:
        raise ValueError(f"changes must be at most {MOST_CHANGES} to be drawn, got {len(drawn) - 1}")
    clients, most = len(drawn[0].assignment), max(len(stage.tops) for stage in drawn)
    span = max(drawn[-1].end - drawn[0].start, 1)
    turns = [
        min(_TURN * (after.end - after.start), _TURN * (before.end - before.start), 0.04 * span)
        for before, after in pairwise(drawn)
    ]
    extent = clients * (1 + _GAP * (most - 1))
    high, wide = float(np.clip(16 * most + 60, 100, 330)), 72 * WIDTHS[width] - 75
    bars, numbers, ends = [], [], []
    for place, stage in enumerate(drawn):
        left = stage.start + (turns[place - 1] if place else 0)
        right = stage.end - (turns[place] if place < len(turns) else 0)
        for cluster, top in stage.tops.items():
            size = int((stage.assignment == cluster).sum())
            bars.append({"x": left, "x2": right, "y": top, "y2": top + size, "cluster": _colour(cluster)})
            middle = {"x": (left + right) / 2, "y": top + size / 2, "text": str(cluster)}
            if wide * (right - left) / span >= 6 * len(str(cluster)) and high * size / extent >= 9:
                numbers.append(middle)
            if place == len(drawn) - 1 and high * (size + _GAP * clients) / extent >= 8:
                ends.append(middle | {"x": right, "text": f"{cluster}: {size} client{'s' * (size != 1)}"})
    bands = [
        band
        for turn, (before, after) in zip(turns, pairwise(drawn), strict=True)
        for band in _moves(before, after, turn)
    ]
    x = alt.X(
        "x:Q",
        title="round",
        axis=alt.Axis(grid=False, tickMinStep=1, tickCount=6),
        scale=alt.Scale(domain=[drawn[0].start, drawn[-1].end], nice=False, zero=False),
    )
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[extent / 2, -extent / 2], nice=False, zero=False))
    colour = alt.Color("cluster:N", scale=None)
    layers = [
        alt.Chart(data_of(bands))
        .transform_flatten(["x", "y", "y2"])
        .mark_area(opacity=0.55, interpolate="monotone")
        .encode(x, y, y2="y2:Q", detail="band:N", color=colour),
        alt.Chart(data_of(bars)).mark_rect().encode(x, y, x2="x2:Q", y2="y2:Q", color=colour),
        alt.Chart(data_of(numbers)).mark_text(fontWeight="bold", color="white").encode(x, y, text="text:N"),
        alt.Chart(data_of(ends)).mark_text(align="left", dx=4).encode(x, y, text="text:N"),
    ]
    return alt.layer(*(layers if bands else layers[1:])).properties(width=wide, height=high)


def _colour(cluster: int) -> str:
    return COLOURS[cluster % (len(COLOURS) - 1)]  # without black, which would hide a number


def _moves(before: Stage, after: Stage, turn: float) -> Iterable[dict[str, Any]]:
    """List a band per pair of clusters with clients in common, as high as their number."""
    left, right = dict(before.tops), dict(after.tops)  # where the next band begins
    bend = np.array([0, 0.1, 0.35, 0.5, 0.65, 0.9, 1])
    smooth = bend * bend * (3 - 2 * bend)
    for old in sorted(before.tops, key=before.tops.__getitem__):
        for new in sorted(after.tops, key=after.tops.__getitem__):
            size = int(((before.assignment == old) & (after.assignment == new)).sum())
            if size:
                top = left[old] + (right[new] - left[old]) * smooth
                yield {
                    "band": f"{after.start}: {old}, {new}",
                    "cluster": _colour(new),
                    "y": top.tolist(),
                    "x": (after.start - turn + 2 * turn * bend).tolist(),
                    "y2": (top + size).tolist(),
                }
                left[old] += size
                right[new] += size


# ---- a sweep


@dataclass(frozen=True, eq=False)
class _Table:
    """The rows of a comparison by setting and method."""

    key: str
    panels: Mapping[str, Mapping[str, Row]]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for rows in self.panels.values() for method in rows))

    @property
    def rows(self) -> Iterable[tuple[str, Row]]:
        for setting, rows in self.panels.items():
            for method, row in rows.items():
                yield ", ".join(filter(None, [method, setting])), row


def draw_comparison(
    comparison: Comparison,
    into: Path,
    formats: Sequence[str] = ("svg", "pdf"),
    width: Width = "column",
    metrics: Sequence[str] = (_ACCURACY,),
) -> list[Drawn]:
    """Draw all pictures that the runs allow.

    Accuracy over rounds and over clients, critical-difference ranks, a map per metric, and for the first
    seed of each row, up to twelve runs, a tree of its clusters and a map of its clients.

    Parameters
    ----------
    comparison
        From :func:`fedclust.results.comparison.compare`.
    into
        Folder for the files; made if it is missing.
    formats
        ``svg``, ``pdf`` or ``png``, each once or more.
    width
        ``"column"`` or ``"page"``.
    metrics
        Keys of ``summary.json`` to draw a map of, each over settings and methods.

    Returns
    -------
    The pictures, those that could not be drawn included.

    Raises
    ------
    ValueError
        If a format or the width is not known.
    """
    unknown = [each for each in formats if each not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"formats must be among {', '.join(FORMATS)}, got {', '.join(unknown) or 'none'}")
    _check(width)
    table = _arranged(comparison)
    pictures = []

    def draw(name: str, make: Callable[[], tuple[Any, str]]) -> None:
        try:
            figure, shows = make()
        except ValueError as error:
            pictures.append(Drawn(name, str(error)))
            return
        files = [
            save(figure, into / f"{name}.{ending}", config=PAPER, inches=WIDTHS[width])
            for ending in dict.fromkeys(formats)
        ]
        pictures.append(Drawn(name, shows, tuple(files)))

    draw("accuracy_over_rounds", partial(_over_rounds, table, width))
    draw("accuracy_over_clients", partial(_over_clients, table, width))
    draw("ranks", partial(_ranks, table, width))
    for metric in metrics:
        draw(f"map_of_{_file_name(metric)}", partial(_map, table, metric, width))
    trees = {name: row for name, row in table.rows if row.runs and _changed(row.runs[0])}
    for name in list(trees)[:_MOST_RUNS]:
        draw(f"cluster_tree_{_file_name(name)}", partial(_tree, name, trees[name].runs[0], width))
    pictures += _left_out(table, trees, "cluster_tree", "the clusters did not change")
    known = {name: row for name, row in table.rows if row.runs and _matrix(row.runs[0]) is not None}
    for name in list(known)[:_MOST_RUNS]:
        draw(f"client_map_{_file_name(name)}", partial(_clients, name, known[name].runs[0], width))
    pictures += _left_out(table, known, "client_map", "the method leaves no matrix over all pairs of clients")
    return pictures


def _arranged(comparison: Comparison) -> _Table:
    """Put rows by setting; keys of the strategies themselves belong to the methods' names."""
    shared = [place for place, key in enumerate(comparison.settings) if not key.startswith(_OWN)]
    panels: dict[str, dict[str, Row]] = {}
    for row in comparison.rows:
        given = [(comparison.settings[place], row.settings[place]) for place in shared]
        # A key that this setting does not have is empty, and null where it is computed.
        named = [f"{key.rpartition('.')[2]} {value}" for key, value in given if value not in ("", "null")]
        setting = ", ".join(named)
        own = [
            f"{key.rpartition('.')[2]} {value}"
            for key, value in zip(comparison.settings, row.settings, strict=True)
            if key.startswith(_OWN) and value
        ]
        panels.setdefault(setting, {})[", ".join([row.strategy, *own])] = row
    return _Table(", ".join(comparison.settings[place] for place in shared), panels)


def _over_rounds(table: _Table, width: Width) -> tuple[Any, str]:
    panels = {
        setting: {method: curves for method, row in rows.items() if (curves := _curves(row))}
        for setting, rows in table.panels.items()
    }
    panels = {setting: curves for setting, curves in panels.items() if curves}
    if not panels:
        raise ValueError("no run has an accuracy in its rounds.jsonl")
    figure = accuracy_bands(panels, width)
    note = _seeds_note([len(found) for by_method in panels.values() for found in by_method.values()], "std")
    own = " of each method's own models" if _serves_best(table) else ""
    return figure, f"mean client accuracy{own} over the rounds, {_numbers(panels)}; {note}"


def _serves_best(table: _Table) -> bool:
    """Whether figures at the end may be of the one model for all, where it was not shown to be worse."""
    return any(summary.get("serve") == "best" for _, row in table.rows for summary in row.summaries)


def _curves(row: Row) -> list:
    curves = [run.series(_ACCURACY) for run in row.runs]
    return [curve for curve in curves if curve[0].size]


def _over_clients(table: _Table, width: Width) -> tuple[Any, str]:
    panels: dict[str, dict[str, FloatArray]] = {}
    for setting, rows in table.panels.items():
        for method, row in rows.items():
            found = [
                run.clients["accuracy"].to_numpy(dtype=float)
                for run in row.runs
                if run.clients is not None and "accuracy" in run.clients
            ]
            values = np.concatenate([np.zeros(0), *found])
            if np.isfinite(values).any():
                panels.setdefault(setting, {})[method] = values[np.isfinite(values)]
    if not panels:
        raise ValueError("no run has the clients' accuracies in its clients.parquet")
    figure = accuracy_over_clients(panels, width)
    served = " of the model that serves it (serve=best)" if _serves_best(table) else ""
    drawn = "box: quartiles, line: median, diamond: mean, whiskers: 1.5 box lengths"
    return figure, f"accuracy of each client{served}, all seeds together, {_numbers(panels)}; {drawn}"


def _ranks(table: _Table, width: Width) -> tuple[Any, str]:
    federations: dict[tuple[str, int], dict[str, float]] = {}
    for setting, rows in table.panels.items():
        for method, row in rows.items():
            for summary in row.summaries:
                value = summary.get(_ACCURACY)
                if value is not None:
                    federations.setdefault((setting, summary["seed"]), {})[method] = float(value)
    methods = table.methods
    complete = [found for found in federations.values() if len(found) == len(methods)]
    if len(methods) < 3 or len(complete) < 2:
        raise ValueError(
            f"ranks need three methods and two federations (setting and seed) in which all of them ran, "
            f"got {len(methods)} and {len(complete)}"
        )
    scores = np.array([[found[method] for method in methods] for found in complete])
    difference = critical_difference(len(methods), len(complete))
    title = f"Mean rank over {len(complete)} federations, best left"
    figure = rank_diagram(methods, mean_ranks(scores), difference, title, WIDTHS[width])
    shows = (
        f"mean ranks by mean client accuracy, {len(methods)} methods, {len(complete)} federations (setting"
        " and seed); a bar joins methods within Nemenyi's critical difference at 0.05; "
        f"Friedman's p {friedman(scores):.2g}"
    )
    if left_out := len(federations) - len(complete):
        shows += f"; {left_out} federations in which a method is missing left out"
    return figure, shows


def _map(table: _Table, metric: str, width: Width) -> tuple[Any, str]:
    if len(table.panels) < 2:
        raise ValueError("a map needs runs of two settings, all runs have the same one")
    values = {
        (setting, method): row.values(metric)
        for setting, rows in table.panels.items()
        for method, row in rows.items()
    }
    measure = metric.replace("_", " ")
    # The key is on the axis once if there is only one.
    single = "," not in table.key
    name = table.key.rpartition(".")[2]
    rows = {setting: setting.removeprefix(f"{name} ") if single else setting for setting in table.panels}
    figure = sweep_map(
        list(rows.values()),
        table.methods,
        {(rows[setting], method): found for (setting, method), found in values.items()},
        measure,
        name if single else "",
        width,
    )
    seeds = [len(found) for found in values.values() if len(found)]
    note = f"mean over up to {max(seeds)} seeds" if max(seeds) > 1 else "one seed"
    return figure, f"{measure}, {_numbers(table.panels)}; {note}"


def _tree(name: str, run: SavedRun, width: Width) -> tuple[Any, str]:
    rounds = run.rounds[-1]["round"] if run.rounds else int(run.summary.get("rounds", 0))
    figure = cluster_tree(run.changes, rounds, width)
    moves = len(run.changes) - 1
    return (
        figure,
        f"clusters of {name}, seed {run.summary['seed']}, which changed {moves} time{'s' * (moves != 1)}",
    )


def _changed(run: SavedRun) -> bool:
    return len({change["round"] for change in run.changes}) > 1


def _clients(name: str, run: SavedRun, width: Width) -> tuple[Any, str]:
    found = _matrix(run)
    if found is None or run.assignment is None:
        raise ValueError(f"{name} has no matrix over all pairs of clients")
    figure = client_map(distances_of(*found), run.assignment, run.groups, width)
    groups = "" if run.groups is None else ", a marker for each known group"
    return (
        figure,
        f"clients of {name}, seed {run.summary['seed']}, by {found[0]}, coloured by cluster{groups}",
    )


def _matrix(run: SavedRun) -> tuple[str, FloatArray] | None:
    """Return the first of a run's matrices of a known kind that has a number for all pairs."""
    if run.assignment is None:
        return None
    found = {name: values for name, values in run.matrices() if name in KINDS}
    for name, values in found.items():
        off = ~np.eye(len(run.assignment), dtype=bool)
        if values.shape == off.shape and np.isfinite(values[off]).all():
            return name, values
    return None


def _left_out(table: _Table, drawn: Mapping[str, Row], name: str, why: str) -> list[Drawn]:
    missing = [each for each, _ in table.rows if each not in drawn]
    said = []
    if missing:
        said.append(Drawn(name, f"{why} in {_listed(missing)}"))
    if len(drawn) > _MOST_RUNS:
        more = list(drawn)[_MOST_RUNS:]
        said.append(
            Drawn(name, f"at most {_MOST_RUNS} are drawn, name fewer folders to draw {_listed(more)}")
        )
    return said


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _numbers(panels: Mapping[str, Mapping[str, object]]) -> str:
    methods = len({method for rows in panels.values() for method in rows})
    return f"{methods} method{'s' * (methods != 1)}, {len(panels)} setting{'s' * (len(panels) != 1)}"


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", label).strip("_.") or "run"


def _seeds_note(seeds: Sequence[int], band: Band) -> str:
    least, most = min(seeds), max(seeds)
    if most == 1:
        return "one seed"
    number = f"{most}" if least == most else f"{least} to {most}"
    return f"mean over {number} seeds; band: {_BANDS[band]}"
