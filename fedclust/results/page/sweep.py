"""Compute what the page of a sweep shows, its runs side by side, for the template ``sweep.md``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedclust.results import report
from fedclust.results.charts.chart import Line, Picture, curves, strip
from fedclust.results.comparison import (
    ComparedRuns,
    Row,
    best_lines,
    compare,
    find_runs,
    guesses_line,
    of_one_kind,
    ranked,
    runs_below,
)
from fedclust.results.names import paper_name
from fedclust.results.page.run import headline, is_finished, made_facts
from fedclust.results.saved_run import SavedRun, evenly
from fedclust.support.checks import plural
from fedclust.typing import FloatArray

_ACCURACY = "mean_client_accuracy"
_FIGURES = {
    _ACCURACY: "client {0.share}",
    "without_layer.mean_client_accuracy": "client {0.share}, without layer",
    "balanced_accuracy": "balanced accuracy",
    "global_accuracy": "global {0.share}",
    "macro_f1": "macro f1",
    "ad": "AD (lower is better)",
    "validation_brier": "{0.score} of held-out rows (lower is better)",
    "rand_index": "rand index",
    "adjusted_rand_index": "adjusted rand index",
    "num_clusters": "clusters",
    "seconds": "seconds",
    "bytes_down": "sent to clients",
    "bytes_up": "received",
}
_MOST_POINTS, _MOST_CURVES, _MOST_SEEDS = 200, 12, 40


def view_sweep(folder: Path) -> dict[str, Any]:
    """Read all runs below a folder.

    Returns
    -------
    The argument of :func:`fedclust.results.page.document`.

    Raises
    ------
    FileNotFoundError
        If there is no run.
    ValueError
        If a file cannot be read.
    """
    runs, unfinished = runs_below([folder])
    if not unfinished:
        find_runs([folder])  # raises unless there is one that has finished
    kind, alike, others = of_one_kind(runs)
    comparison, jobs = compare(alike), []
    for run in [*runs, *map(SavedRun, unfinished)]:
        if run.folder.parent.name != "compare":
            jobs.append((run.folder.resolve().relative_to(folder.resolve()), run))
    jobs.sort(key=lambda job: [(int(part) if part.isdigit() else 0, part) for part in job[0].parts])
    left = sum(not is_finished(run) for _, run in jobs)
    best = best_lines(comparison)
    several = ["The best methods of each setting", *best]
    lines = headline(best[0]) if len(best) == 1 else several if best else []
    if left:
        lines.append(f"{left} of {len(jobs)} runs have not finished")
    if others:
        lines.append(f"{plural(len(others), 'run')} not of {kind}, as the newest is, only on their own pages")
    rows = ranked(comparison.rows, _ACCURACY)  # of other settings, too
    rows += [row for row in comparison.rows if row not in rows]
    words, own = comparison.words, {key: title for key, title, _ in comparison.words.figures}
    titles = {key: title.format(words) for key, title in _FIGURES.items() if key not in words.without}
    first = _ACCURACY, f"without_layer.{_ACCURACY}"
    titles = {key: titles[key] for key in first} | own | titles
    figures = {key: title for key, title in titles.items() if key in comparison.metrics}
    return {
        "kind": "sweep",
        "title": folder.resolve().name,
        "document": " · ".join([*dict.fromkeys(row.name for row in rows[:3]), folder.resolve().name]),
        "finished": not left,
        "left": left,
        "facts": list(made_facts([run for _, run in jobs])),
        "lines": lines or [plural(len(jobs), "run")],
        "settings": list(comparison.settings),
        "figures_of": figures,
        "words": words,
        "rows": [_row(row, figures) for row in rows],
        "guesses": guesses_line(rows),
        "runs": [_job(run, place) for place, run in jobs],
        "pictures": {each.name: each for each in _pictures(comparison, rows, figures)},
        "data": {},
        "jobs": [str(place) for place, _ in jobs],
    }


def _name(comparison: ComparedRuns, row: Row) -> str:
    given = zip(comparison.settings, row.settings, strict=True)
    return " ".join([paper_name(row.strategy), *(f"{key}={value}" for key, value in given if value)])


def _row(row: Row, figures: Iterable[str]) -> list[Any]:
    cells = [_cell(row.values(figure), figure) for figure in figures]
    return [row.name, *row.settings, len(row.runs), *cells]


def _cell(values: FloatArray, figure: str) -> dict[str, Any]:
    if not values.size:
        return {"text": "–"}
    shown = [float(values.mean()), *([float(values.std(ddof=1))] if values.size > 1 else [])]
    kind, digits = figure.partition("_")[0], 1 if figure == "num_clusters" else 3
    write = report.FORMS[kind] if kind in ("bytes", "seconds") else lambda one: report.number(one, digits)
    return {"text": " ± ".join(map(write, shown)), "sort": shown[0]}


def _pictures(comparison: ComparedRuns, rows: Sequence[Row], figures: Mapping[str, str]) -> Iterator[Picture]:
    best = [row for row in rows if row.values(_ACCURACY).size]
    dots = []
    for row in best[:_MOST_SEEDS]:
        name = _name(comparison, row)
        for run in row.runs:
            values = {title: report.figure(run.summary, key) for key, title in figures.items()}
            dots.append({"row": name, "name": f"{name}, seed {run.summary['seed']}", **values})
    if dots:
        title = "A dot for each seed, a line at the mean"
        note = f"The best {_MOST_SEEDS} of {len(best)} settings." if len(best) > _MOST_SEEDS else ""
        yield Picture("seeds", title, strip(dots, list(figures.values())), note)
    lines = []
    for row in comparison.rows:
        rounds, accuracies = row.curves(_ACCURACY)
        if rounds.size:
            chosen = evenly(len(rounds), _MOST_POINTS)
            seeds = accuracies[:, chosen]
            ends = seeds.mean(axis=0), seeds.min(axis=0), seeds.max(axis=0)
            lines.append(Line(_name(comparison, row), rounds[chosen], *ends))
    if lines:
        left = len(lines) - _MOST_CURVES
        title = f"Mean client {comparison.words.share}, averaged over seeds; the band reaches "
        title += "from the lowest seed to the highest"
        note = f"{plural(left, 'more setting')} not drawn." if left > 0 else ""
        yield Picture("accuracy_per_round", title, curves(lines[:_MOST_CURVES], "round"), note)


def _job(run: SavedRun, place: Path) -> list[Any]:
    """Make a run's row of the table that links to its page."""
    page = (run.folder / "report.html").is_file()
    link = "/".join(map(quote, (*place.parts, "report.html"))) if page else None
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    total = int(run.config.get("rounds") or run.summary.get("rounds") or 0)
    state = "failed" if run.failed else "not finished"
    progress = f"{done:,} of {format(total, ',') if total else '?'}, {state}"
    seed = run.summary.get("seed", run.config.get("seed"))
    return [
        {"text": str(place), "link": link},
        str(run.summary.get("strategy") or (run.config.get("choices") or {}).get("strategy") or ""),
        None if seed is None else {"text": str(seed), "sort": seed},
        {"text": f"{done or total:,}" if is_finished(run) else progress, "sort": done},
        run.summary.get(_ACCURACY),
        str((run.summary.get("verdict") or {}).get("text", "")),
    ]
