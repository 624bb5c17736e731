"""What the page of a run shows, made only from the files in the run's folder."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedclust.results.page.curves import Curve, Trace, view_accuracies, view_curves, view_traces
from fedclust.results.page.fedgwc import Dots, Rewards, view_convergence, view_rewards, view_splits
from fedclust.results.page.matrices import Across, Matrix, small_arrays, view_across, view_matrices
from fedclust.results.page.tables import (
    Clients,
    Cluster,
    Histories,
    tally,
    view_clients,
    view_clusters,
    view_histories,
)
from fedclust.results.page.thinned import ThinnedRun
from fedclust.results.page.values import evenly, short, shorts
from fedclust.results.report import ROWS, drift_line, figure, newcomers_line, verdict_lines, went_back_line
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = ["Course", "Figure", "RunView", "is_finished", "view_run"]

_MOST_POINTS = 1_500
_SERIES = {
    "accuracy": "mean_client_accuracy",
    "loss": "loss",
    "test_loss": "test_loss",
    "clusters": "num_clusters",
    "evaluated": "evaluated_clients",
    "seconds": "seconds",
    "bytes_down": "bytes_down",
    "bytes_up": "bytes_up",
}
_MOST_CHANGES = 200


@dataclass(frozen=True)
class Course:
    """One run, round by round.

    Attributes
    ----------
    name
        Name of its strategy.
    round
        Its rounds; some of them in a long run, the first and last included.
    total
        How many rounds it has by now.
    values
        By name, a value for each of `round`, None where unknown.
    changes
        Round, reason and cluster sizes of each change of the clusters, the last ones if there are many.
    """

    name: str
    round: list[int]
    total: int
    values: dict[str, list[float | int | None]]
    changes: list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A row of the table of figures: a cell per column, each a list of values, the second one after ±."""

    key: str
    title: str
    kind: str
    digits: int
    cells: list[list[float | int | None]]


@dataclass(frozen=True)
class RunView:
    """Everything on the page of a run.

    Attributes
    ----------
    kind
        ``"run"``.
    title
        Name of the strategy.
    finished
        Whether the run has ended; until then most parts are missing.
    written
        When the view was made, ISO 8601 in UTC.
    done, rounds
        Rounds that are done, and those it shall have, if known.
    verdict
        The verdict of its proof as ``summary.json`` has it, or None.
    verdict_lines
        The verdict in words, or how to get one; and which models serve clients.
    facts
        Pairs of a name and a value that describe the setting.
    columns
        Titles of the table of figures.
    figures
        Rows of the table of figures.
    source
        Source of published figures, if there are any.
    classes
        Names of the classes.
    everyone
        Share of each class among all training rows.
    courses
        The run and those compared with it.
    accuracies, clusters, clients, histories, matrices, curves, traces, rewards, splits, across
        See the classes.
    matrices_left_out
        Names of matrices that are not on the page.
    proof
        ``proof`` of the summary: a test for each cluster, and who did not vote.
    trials
        Groupings that ``strategy=auto`` tried.
    spread
        How different the clients' data are: name, value and explanation of each measure.
    advice
        ``shifts``, ``update_agreement_text`` and ``advice`` of ``task=advise``, as the summary has them.
    personal
        ``personal`` of the summary.
    decisions
        ``decisions`` of the summary.
    costs
        Bytes and seconds: name and values of each run.
    notes
        Sentences of the method on its result.
    config
        Pairs of a key with dots and its value.
    command
        The command that repeats the run; None if it was made from Python.
    """

    kind: str
    title: str
    finished: bool
    written: str
    done: int
    rounds: int | None
    verdict: dict[str, Any] | None
    verdict_lines: list[str]
    facts: list[list[str]]
    columns: list[str]
    figures: list[Figure]
    source: str | None
    classes: list[str]
    everyone: list[float | int | None]
    courses: list[Course]
    accuracies: Curve | None
    clusters: list[Cluster]
    clients: Clients
    histories: Histories
    matrices: list[Matrix]
    matrices_left_out: list[str]
    curves: list[Curve]
    traces: list[Trace]
    rewards: Rewards | None
    splits: list[Dots]
    across: Across | None
    proof: dict[str, Any] | None
    trials: list[dict[str, Any]]
    spread: list[list[Any]]
    advice: dict[str, Any] | None
    personal: dict[str, Any] | None
    decisions: dict[str, Any] | None
    costs: list[dict[str, Any]]
    notes: list[str]
    config: list[list[str]]
    command: str | None


def view_run(folder: Path) -> RunView:
    """Read a run's folder, finished or not.

    Raises
    ------
    FileNotFoundError
        If it does not hold a run.
    ValueError
        If a file in it cannot be read.
    """
    run = ThinnedRun(folder)
    summary, config = run.summary, run.config
    choices = config.get("choices") or {}
    title = str(summary.get("strategy") or choices.get("strategy") or folder.name)
    finished = is_finished(run)
    num_clients = 0 if run.assignment is None else len(run.assignment)
    drawn, failed = tally(run.rounds, num_clients) if num_clients else (np.zeros(0, int), np.zeros(0, int))
    small = small_arrays(
        run,
        (
            "class_names", "confusion", "confusion_clusters", "silhouette_numbers", "silhouette_scores",
            "error_ratio_numbers", "error_ratios", "curve_*", "line_losses", "separations", "loss_trace*",
            "cohort_*",
        ),
    )  # fmt: skip
    counts = run.label_counts
    matrices, left_out = view_matrices(run)
    columns, figures = _figures(title, summary) if "strategy" in summary else ([], [])
    rounds = config.get("rounds") or summary.get("rounds")
    return RunView(
        kind="run",
        title=title,
        finished=finished,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        done=int(run.rounds[-1]["round"]) if run.rounds else 0,
        rounds=int(rounds) if rounds else None,
        verdict=summary.get("verdict") if finished else None,
        verdict_lines=[text for line in verdict_lines(run) if (text := str(line))] if finished else [],
        facts=list(_facts(run, num_clients)),
        columns=columns,
        figures=figures,
        source=None,
        classes=_class_names(small.get("class_names"), counts),
        everyone=shorts((counts.sum(axis=0) / max(1, counts.sum())).tolist()) if counts is not None else [],
        courses=[_course(name, each) for name, each in [(title, run), *run.compared.items()]],
        accuracies=view_accuracies(run),
        clusters=view_clusters(run),
        clients=view_clients(run, drawn, failed),
        histories=view_histories(run),
        matrices=matrices,
        matrices_left_out=left_out,
        curves=[*view_convergence(run), *view_curves(small, run.assignment)],
        traces=view_traces(small),
        rewards=view_rewards(small),
        splits=view_splits(run),
        across=view_across(small),
        proof=summary.get("proof"),
        trials=list(summary.get("trials") or ()),
        spread=list(_spread(run, counts)),
        advice={key: summary.get(key) for key in ("shifts", "update_agreement_text", "advice")}
        if summary.get("shifts")
        else None,
        personal=summary.get("personal"),
        decisions=summary.get("decisions"),
        costs=_costs(title, run),
        notes=[
            str(line)
            for line in (
                summary.get("decision"),
                newcomers_line(summary),
                drift_line(run.rounds),
                went_back_line(run.rounds),
            )
            if line
        ],
        config=[[key, value] for key, value in _flat(config) if key not in _NOT_SHOWN],
        command=_command(config),
    )


_NOT_SHOWN = ("overrides",)


def is_finished(run: SavedRun) -> bool:
    """Whether a run and all that it is compared with have ended."""
    compared = set(run.config.get("compare") or ()) - {run.summary.get("strategy")}
    return "strategy" in run.summary and compared <= (run.summary.get("compare") or {}).keys()


def _course(name: str, run: SavedRun) -> Course:
    chosen = [run.rounds[place] for place in evenly(len(run.rounds), _MOST_POINTS)]
    columns = {title: shorts(line.get(key) for line in chosen) for title, key in _SERIES.items()}
    values = {title: column for title, column in columns.items() if set(column) != {None}}
    changes = [
        {
            "round": change["round"],
            "reason": str(change.get("reason", "")),
            "sizes": change["sizes"].tolist(),
        }
        for change in run.changes[-_MOST_CHANGES:]
    ]
    return Course(name, [line["round"] for line in chosen], len(run.rounds), values, changes)


def _facts(run: SavedRun, num_clients: int) -> Iterator[list[str]]:
    choices = run.config.get("choices") or {}
    if num_clients:
        yield ["clients", f"{num_clients:,}"]
    for name in ("dataset", "partition", "model", "aggregator", "selection", "personal", "engine"):
        if (value := choices.get(name)) not in (None, "own"):
            yield [name, str(value)]
    for name in ("seed", "participation"):
        if (value := run.summary.get(name, run.config.get(name))) is not None:
            yield [name, str(value)]


def _figures(title: str, summary: Mapping[str, Any]) -> tuple[list[str], list[Figure]]:
    columns = [(title, summary), *summary.get("compare", {}).items()]
    rows = []
    for shown in ROWS:
        cells = [_cell(figures, shown.keys) for _, figures in columns]
        if any(value is not None for cell in cells for value in cell):
            kind = "bytes" if shown.bytes else "number"
            rows.append(Figure(shown.keys[0], shown.title, kind, shown.digits, cells))
    return [name for name, _ in columns], rows


def _cell(figures: Mapping[str, Any], keys: Sequence[str]) -> list[float | int | None]:
    values: list[Any] = []
    for key in keys:
        value = figure(figures, key)
        values += value if isinstance(value, (list, tuple)) else [value]
    # Not rounded: the page must show what summary.json holds.
    return [value if isinstance(value, (int, float)) and np.isfinite(value) else None for value in values]


def _class_names(named: Any, counts: IntArray | None) -> list[str]:
    if named is not None:
        return [str(name) for name in named]
    return [] if counts is None else [str(label) for label in range(counts.shape[1])]


def _spread(run: SavedRun, counts: IntArray | None) -> Iterator[list[Any]]:
    """List how different the clients' data are, from their label counts and the summary."""
    if counts is None or not counts.sum():
        return
    sizes = counts.sum(axis=1)
    low, middle, high = (int(value) for value in (sizes.min(), np.median(sizes), sizes.max()))
    yield ["training rows of a client", f"{low:,} to {high:,}", f"median {middle:,}"]
    held = (counts > 0).sum(axis=1)
    yield [
        "classes of a client",
        f"{held.min()} to {held.max()} of {counts.shape[1]}",
        f"{float(held.mean()):.1f} on average",
    ]
    yield [
        "distance of label shares",
        f"{float(_total_variation(counts).mean()):.3f}",
        "share of a client's rows that would need another label to match everyone's shares, mean over "
        "clients; small clients have some by chance",
    ]
    if (wpsi := run.summary.get("weighted_psi")) is not None:
        yield [
            "weighted PSI",
            f"{wpsi:.3f}",
            "population stability index of label shares, weighted by size; 0 if clients have the same shares",
        ]
    if run.groups is not None:
        yield ["known groups", str(len(np.unique(run.groups))), "that the partition made"]


def _total_variation(counts: IntArray) -> FloatArray:
    """Distance of each client's label shares from everyone's, in [0, 1], of the clients with rows."""
    some = counts[counts.sum(axis=1) > 0]
    shares = some / some.sum(axis=1, keepdims=True)
    return np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2


def _costs(title: str, run: SavedRun) -> list[dict[str, Any]]:
    costs = []
    for name, each in [(title, run), *run.compared.items()]:
        keys = ("seconds", "bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled")
        found = {key: each.summary.get(key) for key in keys}
        if not each.summary and each.rounds:  # not finished: what its rounds add up to
            found = {key: sum(line.get(key) or 0 for line in each.rounds) for key in keys}
        costs.append({"name": name, **{key: short(value) for key, value in found.items()}})
    for key, words in (("proof", "the proof"), ("personal", "personal layers")):
        if part := run.summary.get(key):
            found = {each: short(part.get(each)) for each in ("seconds", "bytes_down", "bytes_up")}
            costs.append({"name": words, **found})
    return costs


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)


def _command(config: Mapping[str, Any]) -> str | None:
    """Write the command line that repeats the run, in a new folder; None if no command line made it."""
    if "overrides" not in config:
        return None
    given = [str(text) for text in config["overrides"] or ()]
    kept = [text for text in given if text.partition("=")[0].lstrip("+") not in ("output_dir", "resume")]
    return " ".join(["fedclust", *map(shlex.quote, kept)])
