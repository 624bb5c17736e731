"""The page of a sweep: its runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from fedclust.results.charts.chart import Line, Picture, curves, strip
from fedclust.results.comparison import Comparison, Row, compare, find_runs, runs_below
from fedclust.results.page.parts import Cell, Column, Section, Table, View, heads, number, plural, written_as
from fedclust.results.page.run import is_finished
from fedclust.results.saved_run import SavedRun
from fedclust.results.thinned import evenly

_ACCURACY = "mean_client_accuracy"
_METRICS = (
    _ACCURACY,
    "personal.mean_client_accuracy",
    "balanced_accuracy",
    "global_accuracy",
    "macro_f1",
    "ad",
    "rand_index",
    "adjusted_rand_index",
    "num_clusters",
    "seconds",
    "bytes_down",
    "bytes_up",
)
_TITLES = {
    _ACCURACY: "client accuracy",
    "personal.mean_client_accuracy": "client accuracy, personal layer",
    "bytes_down": "sent to clients",
    "bytes_up": "received",
    "num_clusters": "clusters",
    "ad": "AD (lower is better)",
}
_AD = "AD: mean distance of the clients' accuracies from 1."
_MOST_POINTS, _MOST_CURVES, _MOST_SEEDS = 200, 12, 40


def view_sweep(folder: Path) -> View:
    """Read all runs below a folder.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If a file cannot be read.
    """
    runs, unfinished = runs_below([folder])
    if not unfinished:
        find_runs([folder])  # raises unless there is one that has finished
    comparison = compare(runs)
    jobs = [run for run in [*runs, *map(SavedRun, unfinished)] if run.folder.parent.name != "compare"]
    places = {id(run): run.folder.resolve().relative_to(folder.resolve()) for run in jobs}
    jobs.sort(key=lambda run: [(int(part) if part.isdigit() else 0, part) for part in places[id(run)].parts])
    left = sum(not is_finished(run) for run in jobs)
    lines = _verdict(comparison, jobs, left)
    sections = [_settings(comparison), _seeds(comparison), _curves(comparison), _jobs(jobs, places)]
    return View(
        kind="sweep",
        title=folder.resolve().name,
        finished=not left,
        status=plural(len(jobs), "run") + (f", {left:,} not finished" if left else ", all finished"),
        headline=lines[0],
        lines=lines[1:],
        sections=[each for each in sections if each is not None],
        jobs=[str(place) for place in places.values()],
    )


def _name(comparison: Comparison, row: Row) -> str:
    given = zip(comparison.settings, row.settings, strict=True)
    return " ".join([row.strategy, *(f"{key}={value}" for key, value in given if value)])


def _kind(metric: str) -> str:
    return "bytes" if metric.startswith("bytes") else "seconds" if metric == "seconds" else "number"


def _metrics(comparison: Comparison) -> list[str]:
    return [metric for metric in _METRICS if metric in comparison.metrics]


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric.replace("_", " "))


def _mean(row: Row, metric: str) -> float:
    values = row.values(metric)
    return float(values.mean()) if values.size else -np.inf


def _settings(comparison: Comparison) -> Section | None:
    if not comparison.rows:
        return None
    metrics = _metrics(comparison)
    columns = [
        Column("strategy"),
        *(Column(key) for key in comparison.settings),
        Column("seeds", "whole"),
        *(Column(_title(metric), "number", _AD if metric == "ad" else "") for metric in metrics),
    ]
    rows = []
    for row in sorted(comparison.rows, key=lambda row: -_mean(row, _ACCURACY)):
        cells = []
        for metric in metrics:
            values, kind = row.values(metric), _kind(metric)
            text = "–"
            if values.size:
                digits = 1 if metric == "num_clusters" else 3
                shown = [values.mean(), *([values.std(ddof=1)] if values.size > 1 else [])]
                text = " ± ".join(
                    number(one, digits) if kind == "number" else written_as(kind, float(one)) for one in shown
                )
            cells.append(Cell(text, float(values.mean()) if values.size else None))
        rows.append([row.strategy, *row.settings, len(row.summaries), *cells])
    note = _AD if "ad" in metrics else ""
    table = Table("table-sweep", "Mean ± sample standard deviation over seeds.", columns, rows, note=note)
    return Section("table", "All settings", "Settings", [table])


def _seeds(comparison: Comparison) -> Section | None:
    best = sorted(
        (row for row in comparison.rows if row.values(_ACCURACY).size), key=lambda row: -_mean(row, _ACCURACY)
    )
    if not best:
        return None
    rows = [
        (_name(comparison, row), f"seed {summary['seed']}", float(summary[_ACCURACY]))
        for row in best[:_MOST_SEEDS]
        for summary in row.summaries
        if summary.get(_ACCURACY) is not None
    ]
    some = f" The best {_MOST_SEEDS} of {len(best)} settings." if len(best) > _MOST_SEEDS else ""
    chart = strip(rows, "client accuracy")
    title = "Client accuracy: a dot for each seed, a line at the mean"
    return Section(
        "seeds", "Each seed", "Seeds", [Picture("seeds", title, chart, some.strip(), page_only=True)]
    )


def curve_of(series: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rounds that all runs with a curve have, and their values there, shape (runs, rounds)."""
    series = [(rounds, values) for rounds, values in series if len(rounds)]
    if not series:
        return None
    common = series[0][0]
    for rounds, _ in series[1:]:
        common = np.intersect1d(common, rounds)
    if not len(common):
        return None
    return common, np.stack([values[np.searchsorted(rounds, common)] for rounds, values in series])


def _curves(comparison: Comparison) -> Section | None:
    lines = []
    for row in comparison.rows:
        found = curve_of([run.series(_ACCURACY) for run in row.runs])
        if found is not None:
            chosen = evenly(len(found[0]), _MOST_POINTS)
            rounds, values = found[0][chosen], found[1][:, chosen]
            lines.append(
                Line(
                    _name(comparison, row),
                    rounds,
                    values.mean(axis=0),
                    values.min(axis=0),
                    values.max(axis=0),
                )
            )
    if not lines:
        return None
    left = len(lines) - _MOST_CURVES
    title = "Mean client accuracy, averaged over seeds; the band reaches from the lowest seed to the highest"
    note = f"{plural(left, 'more setting')} not drawn." if left > 0 else ""
    picture = Picture(
        "accuracy_per_round", title, curves(lines[:_MOST_CURVES], "round"), note, page_only=True
    )
    return Section("accuracy", "Accuracy per round", "Accuracy", [picture])


def _jobs(jobs: Sequence[SavedRun], places: dict[int, Path]) -> Section:
    rows = []
    for run in jobs:
        where, summary = places[id(run)], run.summary
        page = (run.folder / "report.html").is_file()
        link = "/".join(quote(part) for part in (*where.parts, "report.html")) if page else None
        done = int(run.rounds[-1]["round"]) if run.rounds else 0
        total = run.config.get("rounds") or summary.get("rounds")
        over = is_finished(run)
        progress = (
            f"{int(total or done):,}"
            if over
            else f"{done:,} of {f'{int(total):,}' if total else '?'}, not finished"
        )
        seed = summary.get("seed", run.config.get("seed"))
        strategy = str(summary.get("strategy") or (run.config.get("choices") or {}).get("strategy") or "")
        rows.append(
            [
                Cell(str(where), link=link),
                strategy,
                "–" if seed is None else Cell(str(seed), seed),
                Cell(progress, done),
                summary.get(_ACCURACY),
                str((summary.get("verdict") or {}).get("text", "")),
            ]
        )
    columns = heads("folder", "strategy", "seed|whole", "rounds", "client accuracy|number", "verdict|long")
    table = Table("table-jobs", "All runs; a folder leads to its own page.", columns, rows)
    return Section("jobs", "Runs", "Runs", [table])


def _verdict(comparison: Comparison, jobs: Sequence[SavedRun], left: int) -> list[str]:
    """Say in each setting which strategy has the highest mean accuracy, if there are several."""
    lines = []
    by_setting: dict[tuple[str, ...], list[Row]] = {}
    for row in comparison.rows:
        by_setting.setdefault(tuple(row.settings), []).append(row)
    for setting, rows in by_setting.items():
        ranked = sorted(
            (
                (values.mean(), len(values), row.strategy)
                for row in rows
                if (values := row.values(_ACCURACY)).size
            ),
            reverse=True,
        )
        if len(ranked) < 2:
            continue
        named = [f"{key}={value}" for key, value in zip(comparison.settings, setting, strict=True) if value]
        where = f"{', '.join(named)}: " if named else ""
        (best, count, name), (second, _, other) = ranked[:2]
        over = f" over {count} seeds" if count > 1 else ""
        lines.append(f"{where}{name} has the highest accuracy{over}, {best:.3f}; next {other}, {second:.3f}")
    if len(lines) > 5:
        lines = [*lines[:5], f"and {len(lines) - 5} more settings, in the table"]
    if left:
        lines.append(f"{left} of {len(jobs)} runs have not finished")
    return lines or [plural(len(jobs), "run")]
