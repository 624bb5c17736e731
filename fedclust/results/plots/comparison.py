"""Pictures for a paper from a sweep: ``python -m fedclust.runs.compare FOLDER --plots DIR``."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedclust.metrics.ranks import critical_difference, friedman, mean_ranks
from fedclust.results.comparison import Comparison, Row
from fedclust.results.plots.client_map import client_map, distances_of
from fedclust.results.plots.cluster_tree import cluster_tree
from fedclust.results.plots.matrices import KINDS
from fedclust.results.plots.over_runs import accuracy_bands, accuracy_over_clients, sweep_map
from fedclust.results.plots.paper import FORMATS, WIDTHS, Width, paper_style, save_paper_figure
from fedclust.results.plots.ranks import rank_diagram
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray

__all__ = ["Picture", "draw_comparison"]

_MOST_RUNS = 12
_OWN = "strategy."
_ACCURACY = "mean_client_accuracy"


@dataclass(frozen=True)
class Picture:
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
) -> list[Picture]:
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
    if width not in WIDTHS:
        raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
    table = _arranged(comparison)
    pictures = []

    def draw(name: str, make: Callable[[], tuple[Figure, str]]) -> None:
        try:
            figure, shows = make()
        except ValueError as error:
            pictures.append(Picture(name, str(error)))
            return
        files = [save_paper_figure(figure, into / f"{name}.{ending}") for ending in dict.fromkeys(formats)]
        pictures.append(Picture(name, shows, tuple(files)))

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


def _over_rounds(table: _Table, width: Width) -> tuple[Figure, str]:
    panels = {
        setting: {method: curves for method, row in rows.items() if (curves := _curves(row))}
        for setting, rows in table.panels.items()
    }
    panels = {setting: curves for setting, curves in panels.items() if curves}
    if not panels:
        raise ValueError("no run has an accuracy in its rounds.jsonl")
    figure = accuracy_bands(panels, width)
    note = figure.legends[0].get_title().get_text()
    own = " of each method's own models" if _serves_best(table) else ""
    return figure, f"mean client accuracy{own} over the rounds, {_numbers(panels)}; {note}"


def _serves_best(table: _Table) -> bool:
    """Whether figures at the end may be of the one model for all, where it was not shown to be worse."""
    return any(summary.get("serve") == "best" for _, row in table.rows for summary in row.summaries)


def _curves(row: Row) -> list:
    curves = [run.series(_ACCURACY) for run in row.runs]
    return [curve for curve in curves if curve[0].size]


def _over_clients(table: _Table, width: Width) -> tuple[Figure, str]:
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


def _ranks(table: _Table, width: Width) -> tuple[Figure, str]:
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
    with paper_style():
        figure = rank_diagram(methods, mean_ranks(scores), difference, title, WIDTHS[width])
    shows = (
        f"mean ranks by mean client accuracy, {len(methods)} methods, {len(complete)} federations (setting"
        " and seed); a bar joins methods within Nemenyi's critical difference at 0.05; "
        f"Friedman's p {friedman(scores):.2g}"
    )
    if left_out := len(federations) - len(complete):
        shows += f"; {left_out} federations in which a method is missing left out"
    return figure, shows


def _map(table: _Table, metric: str, width: Width) -> tuple[Figure, str]:
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
    spread = ", ± sample standard deviation where there is room"
    note = f"mean over up to {max(seeds)} seeds{spread}" if max(seeds) > 1 else "one seed"
    return figure, f"{measure}, {_numbers(table.panels)}; {note}"


def _tree(name: str, run: SavedRun, width: Width) -> tuple[Figure, str]:
    rounds = run.rounds[-1]["round"] if run.rounds else int(run.summary.get("rounds", 0))
    figure = cluster_tree(run.changes, rounds, width)
    moves = len(run.changes) - 1
    return (
        figure,
        f"clusters of {name}, seed {run.summary['seed']}, which changed {moves} time{'s' * (moves != 1)}",
    )


def _changed(run: SavedRun) -> bool:
    return len({change["round"] for change in run.changes}) > 1


def _clients(name: str, run: SavedRun, width: Width) -> tuple[Figure, str]:
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


def _left_out(table: _Table, drawn: Mapping[str, Row], name: str, why: str) -> list[Picture]:
    missing = [each for each, _ in table.rows if each not in drawn]
    said = []
    if missing:
        said.append(Picture(name, f"{why} in {_listed(missing)}"))
    if len(drawn) > _MOST_RUNS:
        more = list(drawn)[_MOST_RUNS:]
        said.append(
            Picture(name, f"at most {_MOST_RUNS} are drawn, name fewer folders to draw {_listed(more)}")
        )
    return said


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _numbers(panels: Mapping[str, Mapping[str, object]]) -> str:
    methods = len({method for rows in panels.values() for method in rows})
    return f"{methods} method{'s' * (methods != 1)}, {len(panels)} setting{'s' * (len(panels) != 1)}"


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", label).strip("_.") or "run"
