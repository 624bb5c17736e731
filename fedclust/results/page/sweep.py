"""What the page of a sweep shows: its runs side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import numpy as np

from fedclust.results.comparison import Comparison, Row, compare, find_runs, runs_below
from fedclust.results.page.data import is_finished
from fedclust.results.page.values import evenly, short, shorts
from fedclust.results.saved_run import SavedRun

__all__ = ["Job", "Setting", "SweepCurve", "SweepView", "view_sweep"]

_METRICS = (
    "mean_client_accuracy", "personal.mean_client_accuracy", "balanced_accuracy", "global_accuracy",
    "macro_f1", "ad", "rand_index", "adjusted_rand_index", "num_clusters", "seconds", "bytes_down",
    "bytes_up",
)  # fmt: skip
_MOST_POINTS = 200
_MOST_CURVES = 12


@dataclass(frozen=True)
class Setting:
    """The runs of one strategy with one setting.

    Attributes
    ----------
    strategy
        Its name.
    settings
        The values in which it differs from others, one per title.
    seeds
        Seed of each run.
    values
        By metric, its value for each seed, None where unknown.
    """

    strategy: str
    settings: list[str]
    seeds: list[int]
    values: dict[str, list[float | int | None]]


@dataclass(frozen=True)
class Job:
    """One run: its folder, its page if it has one, and its verdict."""

    folder: str
    link: str | None
    strategy: str
    finished: bool
    done: int
    rounds: int | None
    seed: int | None
    accuracy: float | int | None
    verdict: str


@dataclass(frozen=True)
class SweepCurve:
    """Mean accuracy over the seeds of one setting, at the rounds that all of them have."""

    name: str
    round: list[int]
    mean: list[float | int | None]
    lowest: list[float | int | None]
    highest: list[float | int | None]


@dataclass(frozen=True)
class SweepView:
    """Everything on the page of a sweep.

    Attributes
    ----------
    kind
        ``"sweep"``.
    title
        Name of the folder.
    finished
        Whether no run is unfinished.
    written
        When the view was made, ISO 8601 in UTC.
    verdict_lines
        What came out, in words.
    titles
        Names of what differs between the runs.
    metrics
        Keys of figures.
    rows
        A row per strategy and setting.
    jobs
        All runs that are not compared ones.
    curves
        Accuracy over the rounds, of up to twelve rows.
    curves_left_out
        How many rows have no curve on the page.
    """

    kind: str
    title: str
    finished: bool
    written: str
    verdict_lines: list[str]
    titles: list[str]
    metrics: list[str]
    rows: list[Setting]
    jobs: list[Job]
    curves: list[SweepCurve]
    curves_left_out: int


def view_sweep(folder: Path) -> SweepView:
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
    metrics = [metric for metric in _METRICS if metric in comparison.metrics]
    jobs = [_job(run, folder) for run in [*runs, *map(SavedRun, unfinished)] if not _is_compared(run)]
    rows = [
        Setting(
            row.strategy,
            list(row.settings),
            [int(summary["seed"]) for summary in row.summaries],
            {
                metric: [_first(row, metric, place) for place in range(len(row.summaries))]
                for metric in metrics
            },
        )
        for row in comparison.rows
    ]
    curves = _curves(comparison, runs)
    return SweepView(
        kind="sweep",
        title=folder.resolve().name,
        finished=all(job.finished for job in jobs),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict_lines=_verdict(comparison, jobs),
        titles=list(comparison.settings),
        metrics=metrics,
        rows=rows,
        jobs=sorted(jobs, key=lambda job: [_number(part) for part in Path(job.folder).parts]),
        curves=curves[:_MOST_CURVES],
        curves_left_out=max(0, len(curves) - _MOST_CURVES),
    )


def _is_compared(run: SavedRun) -> bool:
    return run.folder.parent.name == "compare"


def _number(part: str) -> tuple[int, str]:
    return (int(part) if part.isdigit() else 0), part


def _first(row: Row, metric: str, place: int) -> float | int | None:
    """Look up a metric of one seed of a row."""
    values = Row(row.strategy, row.settings, (row.summaries[place],)).values(metric)
    return float(values[0]) if values.size else None


def _job(run: SavedRun, folder: Path) -> Job:
    where = run.folder.resolve().relative_to(folder.resolve())
    summary = run.summary
    page = run.folder / "report.html"
    rounds = run.config.get("rounds") or summary.get("rounds")
    return Job(
        folder=str(where),
        link="/".join(quote(part) for part in (*where.parts, page.name)) if page.is_file() else None,
        strategy=str(summary.get("strategy") or (run.config.get("choices") or {}).get("strategy") or ""),
        finished=is_finished(run),
        done=int(run.rounds[-1]["round"]) if run.rounds else 0,
        rounds=int(rounds) if rounds else None,
        seed=summary.get("seed", run.config.get("seed")),
        accuracy=short(summary.get("mean_client_accuracy")),
        verdict=str((summary.get("verdict") or {}).get("text", "")),
    )


def _verdict(comparison: Comparison, jobs: Sequence[Job]) -> list[str]:
    """Say in each setting which strategy has the highest mean accuracy, if there are several."""
    lines = []
    by_setting: dict[tuple[str, ...], list[Row]] = {}
    for row in comparison.rows:
        by_setting.setdefault(row.settings, []).append(row)
    for setting, rows in by_setting.items():
        ranked = sorted(
            ((values.mean(), len(values), row.strategy) for row in rows if (values := _accuracy(row)).size),
            reverse=True,
        )
        if len(ranked) < 2:
            continue
        named = [f"{key}={value}" for key, value in zip(comparison.settings, setting, strict=True) if value]
        where = f"{', '.join(named)}: " if named else ""
        (best, number, name), (second, _, other) = ranked[:2]
        over = f" over {number} seeds" if number > 1 else ""
        lines.append(f"{where}{name} has the highest accuracy{over}, {best:.3f}; next {other}, {second:.3f}")
    left = sum(not job.finished for job in jobs)
    if len(lines) > 5:
        lines = [*lines[:5], f"and {len(lines) - 5} more settings, in the table"]
    if left:
        lines.append(f"{left} of {len(jobs)} runs have not finished")
    return lines or [f"{len(jobs)} run{'s' if len(jobs) != 1 else ''}"]


def _accuracy(row: Row) -> np.ndarray:
    return row.values("mean_client_accuracy")


def _curves(comparison: Comparison, runs: Sequence[SavedRun]) -> list[SweepCurve]:
    """Average accuracy over seeds, for each row."""
    by_identity = {id(run.summary): run for run in runs}
    curves = []
    for row in comparison.rows:
        series = [by_identity[id(summary)].series("mean_client_accuracy") for summary in row.summaries]
        series = [(rounds, values) for rounds, values in series if len(rounds)]
        if not series:
            continue
        common = series[0][0]
        for rounds, _ in series[1:]:
            common = np.intersect1d(common, rounds)
        if not len(common):
            continue
        table = np.stack([values[np.searchsorted(rounds, common)] for rounds, values in series])
        chosen = evenly(len(common), _MOST_POINTS)
        titles = [
            f"{key}={value}" for key, value in zip(comparison.settings, row.settings, strict=True) if value
        ]
        curves.append(
            SweepCurve(
                " ".join([row.strategy, *titles]),
                common[chosen].tolist(),
                shorts(table.mean(axis=0)[chosen].tolist()),
                shorts(table.min(axis=0)[chosen].tolist()),
                shorts(table.max(axis=0)[chosen].tolist()),
            )
        )
    return curves
