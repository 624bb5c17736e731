"""Draw a sweep's pictures for a paper: ``fedclust compare FOLDER --plots DIR``."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import altair as alt
import numpy as np

from fedclust.metrics.ranks import critical_difference, friedman, mean_ranks
from fedclust.proof.words import Words
from fedclust.results.charts import chart as drawing
from fedclust.results.charts.run import KINDS, meaning_of
from fedclust.results.comparison import ComparedRuns, Row, by_setting, words_of
from fedclust.results.saved_run import SavedRun
from fedclust.results.summary import listed
from fedclust.support.checks import check_choice, plural
from fedclust.typing import FloatArray

Width = Literal["column", "page"]
"""A column of a paper of two columns, or the whole page."""

WIDTHS: dict[str, float] = {"column": 3.4, "page": 7.0}
"""Inches."""

Panels = Mapping[str, Mapping[str, Row]]
"""The rows of a comparison by setting and method."""

Made = tuple[Any, str]
"""A chart, and what it shows."""

_ACROSS, _DOWN = {"column": 1, "page": 3}, 4
_MOST_POINTS, _MOST_RUNS = 400, 12

MOST_CLIENTS = 1500
"""Most clients on a map; more points would hide each other, and take minutes to place."""

MOST_CHANGES = 30
"""Most changes of the clusters in a tree; with more, it would be a web of lines."""

_ACCURACY = "mean_client_accuracy"


@dataclass(frozen=True)
class Drawn:
    """A picture that was drawn, or the reason why not.

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


def draw_comparison(
    comparison: ComparedRuns,
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
        One or more of ``svg``, ``pdf`` and ``png``.
    width
        ``"column"`` or ``"page"``.
    metrics
        Keys of ``summary.json`` to draw a map of, each over settings and methods.

    Returns
    -------
    The pictures, including those that could not be drawn.

    Raises
    ------
    ValueError
        If a format or the width is not known.
    """
    for each in formats or ["none"]:
        check_choice("formats", each, drawing.FORMATS)
    check_choice("width", width, WIDTHS)
    key, panels = by_setting(comparison)
    jobs: dict[str, Callable[[], Made]] = {
        "accuracy_over_rounds": partial(accuracy_over_rounds, panels, width),
        "accuracy_over_clients": partial(accuracy_over_clients, panels, width),
        "ranks": partial(ranks, panels, width),
    }
    jobs |= {f"map_of_{_file_name(each)}": partial(sweep_map, panels, key, each, width) for each in metrics}
    first = {
        ", ".join(filter(None, [method, setting])): row.runs[0]
        for setting, rows in panels.items()
        for method, row in rows.items()
    }
    left_out = []
    for kind, draw, possible, why in (
        ("cluster_tree", cluster_tree, _changed, "the clusters did not change"),
        ("client_map", client_map, _matrix, "the method leaves no matrix over all pairs of clients"),
    ):
        fit = {name: run for name, run in first.items() if possible(run)}
        for name in list(fit)[:_MOST_RUNS]:
            jobs[f"{kind}_{_file_name(name)}"] = partial(draw, name, fit[name], width)
        if missing := [name for name in first if name not in fit]:
            left_out.append(Drawn(kind, f"{why} in {listed(missing, 3)}"))
        if more := list(fit)[_MOST_RUNS:]:
            why = f"at most {_MOST_RUNS} are drawn, name fewer folders to draw {listed(more, 3)}"
            left_out.append(Drawn(kind, why))
    drawn = []
    for name, make in jobs.items():
        try:
            figure, shows = make()
        except ValueError as error:
            drawn.append(Drawn(name, str(error)))
            continue
        paths = [into / f"{name}.{ending}" for ending in dict.fromkeys(formats)]
        save = partial(drawing.save, figure, config=drawing.PAPER, inches=WIDTHS[width])
        drawn.append(Drawn(name, shows, tuple(map(save, paths))))
    return drawn + left_out


# ---- methods side by side


def accuracy_over_rounds(panels: Panels, width: Width) -> Made:
    """Draw the accuracy over the rounds: a panel per setting, a line per method, a band over its seeds.

    The band is the mean ± the sample standard deviation, in the rounds that all seeds have.

    Raises
    ------
    ValueError
        If no run has accuracies of rounds, or there are more panels than fit.
    """

    def curves(row: Row) -> Any:
        return curve if (curve := row.curves(_ACCURACY))[0].size else ()

    found = _found(panels, curves, "no run has an accuracy in its rounds.jsonl")
    charts, methods, mean_share = [], _methods(found), f"mean client {_words(panels).share}"
    for title, by_method in found.items():
        lines = []
        for method, (rounds, values) in by_method.items():
            mean, spread = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
            ends = (mean - spread, mean + spread) if len(values) > 1 else ()
            lines.append(drawing.Line(method, rounds, mean, *ends))
        drawn = drawing.curves(lines, "round", mean_share, names=methods)
        charts.append(drawn.properties(title=title))
    seeds = [len(values) for by_method in found.values() for _, values in by_method.values()]
    number = f"{max(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    note = f"mean over {number} seeds; band: ± sample standard deviation" if max(seeds) > 1 else "one seed"
    own = " of each method's own models" if _serves_best(panels) else ""
    shows = f"{mean_share}{own} over the rounds, {_numbers(found)}; {note}"
    return _side_by_side(charts, width, 118).resolve_scale(y="shared"), shows


def accuracy_over_clients(panels: Panels, width: Width) -> Made:
    """Draw each client's accuracy, of all seeds: a panel per setting, a row per method.

    A box reaches from the first to the third quartile, with a line at the median, a diamond at the mean, and
    whiskers to the last client within 1.5 box lengths. Up to 400 clients of a method are drawn as points.

    Raises
    ------
    ValueError
        If no run has its clients' accuracies, or there are more panels than fit.
    """

    def accuracies(row: Row) -> FloatArray:
        tables = [run.clients for run in row.runs if run.clients is not None]
        found = [table["accuracy"].dropna().to_numpy(float) for table in tables if "accuracy" in table]
        return np.concatenate([np.zeros(0), *found])

    found = _found(panels, accuracies, "no run has the clients' accuracies in its clients.parquet")
    methods, charts, share = _methods(found), [], _words(panels).share
    named, bare = alt.Scale(domain=methods), alt.Axis(grid=False)
    x = alt.X("x:Q", title=f"{share} on a client's own test part", scale=alt.Scale(zero=False))
    y = alt.Y("method:N", sort=methods, title=None, axis=bare, scale=named)
    within = alt.YOffset("by:Q", scale=alt.Scale(domain=[-0.5, 0.5]))
    colour = alt.Color("method:N", scale=named, legend=None)
    for title, by_method in found.items():
        # Spread within the row evenly, so that equal accuracies stay apart.
        rows: list[dict[str, Any]] = [
            {"method": method, "x": float(value), "by": 0.3 * (place * 0.618034 % 1 * 2 - 1)}
            for method, values in by_method.items()
            for place, value in enumerate(values)
        ]
        dots = [row for row in rows if len(by_method[row["method"]]) <= _MOST_POINTS]
        base = alt.Chart(drawing.data_of(rows)).encode(x, y)
        box = base.mark_boxplot(
            size=13,
            ticks=True,
            outliers=bool(len(dots) < len(rows)) and {"size": 4, "color": drawing.GREY},
            box={"fill": None, "stroke": "black", "strokeWidth": 0.8},
            median={"color": "black"},
        )
        mean = base.mark_point(shape="diamond", size=22, fill="white", color="black")
        layers = [box, mean.encode(x.aggregate("mean"))]
        if dots:
            spread = alt.Chart(drawing.data_of(dots)).mark_point(filled=True, size=5, opacity=0.45)
            layers.insert(0, spread.encode(x, y, colour, within))
        charts.append(alt.layer(*layers).properties(title=title))
    served = " of the model that serves it (serve=best)" if _serves_best(panels) else ""
    drawn = "box: quartiles, line: median, diamond: mean, whiskers: 1.5 box lengths"
    shows = f"{share} of each client{served}, all seeds together, {_numbers(found)}; {drawn}"
    return _side_by_side(charts, width, 24 * len(methods)).resolve_scale(x="shared"), shows


def sweep_map(panels: Panels, key: str, metric: str, width: Width) -> Made:
    """Draw a figure for every setting and method as a map, with its mean over the seeds in each cell.

    Raises
    ------
    ValueError
        If there is one setting only, or no run has the figure.
    """
    if len(panels) < 2:
        raise ValueError("a map needs runs of at least two settings, all runs have the same one")
    methods, measure = _methods(panels), _words(panels).title(metric)
    values = [
        [row[each].values(metric) if each in row else () for each in methods] for row in panels.values()
    ]
    means = np.array([[np.mean(each) if len(each) else np.nan for each in row] for row in values])
    some = means[np.isfinite(means)]
    if not some.size:
        raise ValueError(f"values must have at least one value, got none for {measure}")
    # The key is on the axis once if there is only one.
    name = "" if "," in key else key.rpartition(".")[2]
    settings = [setting.removeprefix(f"{name} ") for setting in panels]
    digits = ".0f" if some.max() >= 100 or (some == some.round()).all() else ".2f"
    wide = 72 * (WIDTHS[width] - 1.1)
    sides = drawing.Side(settings, settings, name), drawing.Side(methods, methods)
    chart = drawing.cells(means, *sides, title=measure, numbers=digits if wide / len(methods) >= 24 else "")
    seeds = max(len(each) for row in values for each in row)
    note = f"mean over up to {seeds} seeds" if seeds > 1 else "one seed"
    return chart.properties(width=wide, height=26 * len(panels)), f"{measure}, {_numbers(panels)}; {note}"


def ranks(panels: Panels, width: Width) -> Made:
    """Draw the methods' mean ranks over the federations, a setting and a seed each.

    Raises
    ------
    ValueError
        If there are fewer than three methods, or two federations in which all of them ran.
    """
    federations: dict[tuple[str, int], dict[str, float]] = {}
    for setting, rows in panels.items():
        for method, row in rows.items():
            for seed, value in row.by_seed(_ACCURACY).items():
                federations.setdefault((setting, seed), {})[method] = value
    methods = _methods(panels)
    complete = [found for found in federations.values() if len(found) == len(methods)]
    if len(methods) < 3 or len(complete) < 2:
        rule = "ranks need three methods and two federations (setting and seed) in which all of them ran"
        raise ValueError(f"{rule}, got {len(methods)} and {len(complete)}")
    scores = np.array([[found[method] for method in methods] for found in complete])
    difference = critical_difference(len(methods), len(complete))
    title = f"Mean rank over {len(complete)} federations, best left"
    shows = f"mean ranks by mean client {_words(panels).share}, "
    shows += f"{len(methods)} methods, {len(complete)} federations "
    shows += "(setting and seed); a bar joins methods within Nemenyi's critical difference at 0.05; "
    shows += f"Friedman's p {friedman(scores):.2g}"
    if left_out := len(federations) - len(complete):
        shows += f"; without {plural(left_out, 'federation')} in which a method is missing"
    return rank_diagram(methods, mean_ranks(scores), difference, title, WIDTHS[width]), shows


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
        Its width.
    """
    order = np.argsort(ranks, kind="stable")
    ordered, number = np.asarray(ranks)[order].tolist(), len(order)
    runs, left = groups_alike(np.array(ordered), difference), (number + 1) // 2
    ticks = range(1, number + 1, 1 + number // 20)  # the numbers of more would overlap
    rules: list[tuple[Any, ...]] = [(1, number, 0, 0), *((tick, tick, -0.12, 0) for tick in ticks)]
    texts: list[tuple[Any, ...]] = [(tick, -0.3, str(tick), "center") for tick in ticks]
    texts.append((1.1 + difference, -0.9, f"critical difference {difference:.2f}", "left"))
    bars: list[tuple[Any, ...]] = [(1, 1 + difference, -0.9, "difference")]
    labels = [f"{names[method]} ({rank:.2f})" for method, rank in zip(order, ordered, strict=True)]
    for place, (label, rank) in enumerate(zip(labels, ordered, strict=True)):
        first = place < left
        row = 0.9 + 0.28 * len(runs) + 0.5 * (place if first else number - 1 - place)
        edge = 0.9 if first else number + 0.1
        rules += [(rank, rank, 0, row), (min(rank, edge), max(rank, edge), row, row)]
        texts.append((edge, row, label, "right" if first else "left"))
    for level, (begin, end) in enumerate(runs):
        bars.append((ordered[begin] - 0.05, ordered[end] + 0.05, 0.35 + 0.28 * level, "alike"))
    ends = -1.2, 1.0 + 0.28 * len(runs) + 0.5 * max(left, number - left)
    room = max(map(len, labels)) * 5.4  # dots that the names take on either side
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0.9, number + 0.1], nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=ends, reverse=True, nice=False))
    by = alt.Scale(domain=["alike", "difference"], range=[*drawing.COLOURS[:2]])
    lines = _chart(rules, "x x2 y y2").mark_rule(strokeWidth=0.8).encode(x, y, x2="x2:Q", y2="y2:Q")
    thick = _chart(bars, "x x2 y by").mark_rule(strokeWidth=4)
    thick = thick.encode(x, y, alt.Color("by:N", legend=None, scale=by), x2="x2:Q")
    shift = alt.expr("datum.align === 'left' ? 4 : datum.align === 'right' ? -4 : 0")
    words = _chart(texts, "x y text align").mark_text(align=alt.expr("datum.align"), dx=shift)
    layers = lines, thick, words.encode(x, y, text="text:N")
    wide = max(80.0, 72 * inches - 2 * room)
    return alt.layer(*layers).properties(title=title, width=wide, height=26 * (ends[1] - ends[0]))


def _side_by_side(charts: Sequence[Any], width: Width, height: float) -> alt.ConcatChart:
    """Set panels side by side, three across a page and one across a column."""
    most = _ACROSS[width] * _DOWN
    if len(charts) > most:
        raise ValueError(f"a {width} has room for 1 to {most} panels, got {len(charts)}")
    across = min(_ACROSS[width], len(charts))
    wide = (72 * WIDTHS[width] - 45 * across) / across
    sized = (each.properties(width=wide, height=height) for each in charts)
    return alt.concat(*sized, columns=across, spacing=12)


def _found(panels: Panels, find: Callable[[Row], Any], why: str) -> dict[str, dict[str, Any]]:
    """Look something up in each row; rows and settings without it are left out."""
    found = {
        setting: {method: value for method, row in rows.items() if len(value := find(row))}
        for setting, rows in panels.items()
    }
    if not any(found.values()):
        raise ValueError(why)
    return {setting: values for setting, values in found.items() if values}


def _serves_best(panels: Panels) -> bool:
    """Return whether final figures may be of the model for all, where no cluster's was shown to be better."""
    rows = [row for by_method in panels.values() for row in by_method.values()]
    return any(run.summary.get("serve") == "best" for row in rows for run in row.runs)


def _words(panels: Panels) -> Words:
    return words_of(row for rows in panels.values() for row in rows.values())


def _methods(panels: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(method for rows in panels.values() for method in rows))


def _numbers(panels: Mapping[str, Mapping[str, object]]) -> str:
    return f"{plural(len(_methods(panels)), 'method')}, {plural(len(panels), 'setting')}"


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", label).strip("_.") or "run"


def _chart(rows: Iterable[Sequence[Any]], names: str) -> alt.Chart:
    return alt.Chart(drawing.data_of([dict(zip(names.split(), row, strict=True)) for row in rows]))


# ---- one run


def client_map(name: str, run: SavedRun, width: Width) -> Made:
    """Draw a run's clients in the plane, coloured by cluster, with a shape for each known group.

    Without known groups each cluster has its own shape, otherwise its number at its middle, so that clusters
    can be told apart in print without colour. Axes have no unit.

    Raises
    ------
    ValueError
        If the run has no matrix over all pairs of clients, or as in :func:`places`.
    """
    if (found := _matrix(run)) is None or run.assignment is None:
        raise ValueError(f"{name} has no matrix over all pairs of clients")
    at, stress = places(distances_of(*found))
    assignment, groups = run.assignment, run.groups
    sizes = dict(zip(*np.unique(assignment, return_counts=True), strict=True))
    rows = [
        {
            "name": f"client {client}",
            "group": f"cluster {assignment[client]} ({sizes[assignment[client]]})",
            "known": "" if groups is None else f"group {groups[client]}",
            "x": float(at[client, 0]),
            "y": float(at[client, 1]),
        }
        for client in np.argsort(assignment, kind="stable").tolist()
    ]
    chart = drawing.points(rows, f"multidimensional scaling, stress {stress:.2f}", legend=len(sizes) <= 12)
    bare = alt.Axis(labels=False, ticks=False, grid=False)
    side = 72 * WIDTHS[width] * (0.8 if width == "column" else 0.55)
    chart = chart.encode(x=chart.encoding.x.axis(bare), y=chart.encoding.y.axis(bare))
    chart = chart.properties(width=side, height=side)
    shows = f"clients of {name}, seed {run.summary['seed']}, by {found[0]}, coloured by cluster"
    if groups is None:
        return chart, shows
    shows += ", a marker for each known group"
    named = [f"group {group}" for group in np.unique(groups)]
    chart.encoding.shape = alt.Shape("known:N", title=None, scale=alt.Scale(domain=named))
    middles = [(*np.median(at[assignment == each], axis=0).tolist(), str(each)) for each in sizes]
    numbers = _chart(middles, "x y cluster").encode(chart.encoding.x, chart.encoding.y, text="cluster:N")
    looks: dict[str, Any] = {"fontWeight": "bold", "fontSize": 11}
    around = numbers.mark_text(stroke="white", strokeWidth=3, **looks)
    return (chart + around + numbers.mark_text(**looks) if 1 < len(sizes) <= 30 else chart), shows


def distances_of(name: str, values: FloatArray) -> FloatArray:
    """Turn a matrix of ``matrices.npz`` into distances between clients.

    Where larger means more alike, a distance is the largest value − the value; otherwise it is the value, or,
    if some values are below 0, as for cosines, the value − the least one.

    Parameters
    ----------
    name
        Name of the matrix, such as ``affinity`` or ``distances``.
    values
        Finite off the diagonal, shape (K, K).

    Returns
    -------
    Symmetric, at least 0, with 0 on the diagonal, shape (K, K); a pair with two values has their mean.
    """
    matrix, off = np.array(values, dtype=np.float64), ~np.eye(len(values), dtype=bool)
    larger = meaning_of(name)[1] == "sequential"
    matrix = matrix[off].max(initial=0.0) - matrix if larger else matrix - matrix[off].min(initial=0.0)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 0.0)
    return matrix


def places(distances: FloatArray) -> tuple[FloatArray, float]:
    """Find places in the plane whose distances are as close to the given ones as possible.

    Source: metric multidimensional scaling by scikit-learn's SMACOF, starting from classical scaling
    (Torgerson, 1952).

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
        raise ValueError("distances must not all be 0, got only 0")
    from sklearn.decomposition import KernelPCA  # both take a second to import
    from sklearn.manifold import smacof

    scaled = distances / distances.max()
    # KernelPCA centres −D²/2 and takes its leading eigenvectors: that is classical multidimensional scaling.
    first = KernelPCA(2, kernel="precomputed").fit_transform(-(scaled**2) / 2)
    first = np.column_stack([first, np.zeros((len(first), 2 - first.shape[1]))])
    given = {"n_init": 1, "max_iter": 1000, "normalized_stress": False, "random_state": 0}
    found = smacof(scaled, init=first, **given)[0] * distances.max()
    between = np.linalg.norm(found[:, None] - found[None], axis=-1)
    return found, float(np.sqrt(((between - distances) ** 2).sum() / (distances**2).sum()))


def _matrix(run: SavedRun) -> tuple[str, FloatArray] | None:
    """Return the first of a run's matrices of a known kind that has a number for all pairs."""
    if run.assignment is not None:
        off = ~np.eye(len(run.assignment), dtype=bool)
        for name, values in run.matrices():
            if name in KINDS and values.shape == off.shape and np.isfinite(values[off]).all():
                return name, values
    return None


def cluster_tree(name: str, run: SavedRun, width: Width) -> Made:
    """Draw who shares a model with whom: rounds from left to right, clients from top to bottom.

    Clients are sorted by their first cluster, then by the second, and so on, so that mere splits leave every
    cluster in one piece. Each piece with enough room has its cluster's number. Of two changes in one round,
    the later one counts.

    Raises
    ------
    ValueError
        If there are more than 30 changes, or clients joined later.
    """
    rounds = run.rounds[-1]["round"] if run.rounds else int(run.summary.get("rounds", 0))
    lasting = {int(change["round"]): np.asarray(change["assignment"], np.int64) for change in run.changes}
    sizes = sorted({len(assignment) for assignment in lasting.values()})
    if len(sizes) != 1:
        raise ValueError(f"changes must be of one number of clients, got {sizes}")
    if len(lasting) - 1 > MOST_CHANGES:
        raise ValueError(f"changes must be at most {MOST_CHANGES} to be drawn, got {len(lasting) - 1}")
    moments = sorted(lasting)
    order = np.lexsort([lasting[moment] for moment in reversed(moments)])
    # A change after the last round has no rounds of its own, but still needs a visible bar.
    moments.append(max(rounds, moments[-1] + max(1, rounds // 20)))
    high, wide = float(np.clip(8 * sizes[0], 100, 330)), 72 * WIDTHS[width] - 75
    bars, numbers = [], []
    for start, end in pairwise(moments):
        clusters = lasting[start][order]
        room = wide * (end - start) >= 9 * (moments[-1] - moments[0])  # for a number, from left to right
        for top, below in pairwise(drawing.edges(clusters)):
            cluster = int(clusters[top])
            # Without black, which would hide a number.
            bars.append((start, end, top, below, drawing.COLOURS[cluster % 6]))
            if room and high * (below - top) >= 9 * sizes[0]:
                numbers.append(((start + end) / 2, (top + below) / 2, str(cluster)))
    span = alt.Scale(domain=[moments[0], moments[-1]], nice=False, zero=False)
    x = alt.X("x:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1, tickCount=6), scale=span)
    y = alt.Y("y:Q", title="clients", axis=alt.Axis(labels=False, ticks=False, grid=False))
    y = y.scale(domain=[sizes[0], 0], nice=False, zero=False)
    rects = _chart(bars, "x x2 y y2 colour").mark_rect(stroke="white", strokeWidth=0.7)
    rects = rects.encode(x, y, alt.Color("colour:N", scale=None), x2="x2:Q", y2="y2:Q")
    texts = _chart(numbers, "x y text").mark_text(fontWeight="bold", color="white")
    chart = alt.layer(rects, texts.encode(x, y, text="text:N")).properties(width=wide, height=high)
    changed = plural(len(run.changes) - 1, "time")
    return chart, f"clusters of {name}, seed {run.summary['seed']}, which changed {changed}"


def _changed(run: SavedRun) -> bool:
    return len({change["round"] for change in run.changes}) > 1
