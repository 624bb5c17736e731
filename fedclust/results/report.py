"""The table printed at the end of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedclust.personal.layers import NONE
from fedclust.proof import SCALE
from fedclust.results.saved_run import SavedRun
from fedclust.results.summary import decision_lines, how_to_get_one, personal_line

_MOST_NAMED = 5


def went_back_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Write in one line which clusters went back to earlier models, and how often; None if none did.

    Such a cluster's clients have trained for nothing in that round, and a run goes on while they are no more
    than half of all.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``.
    """
    found: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for line in rounds:
        last = {each["cluster"]: each for each in line.get("went_back", ())}  # once, if twice in a round
        for cluster, each in last.items():
            found.setdefault(cluster, []).append((line["round"], each))
    if not found:
        return None
    named = []
    for cluster, times in sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_NAMED]:
        number, each = times[-1]
        clients = f" with {each['clients']} clients" if each.get("clients", 1) > 1 else ""
        named.append(
            f"cluster {cluster} in {len(times)} of {len(rounds)} rounds "
            f"(round {number}{clients}: {each['reason']})"
        )
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"Went back to an earlier model: {'; '.join(named)}{more}"


_MOST_DRIFTED = 10


def drift_line(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Write in one line which clients were found to have drifted; None if none were.

    Parameters
    ----------
    rounds
        The lines of ``rounds.jsonl``. A client that was named in several rounds counts in its last one.
    """
    last = {each["client"]: (line["round"], each) for line in rounds for each in line.get("drift", ())}
    if not last:
        return None
    named = [
        f"client {client} fits cluster {each['better']} better than {each['cluster']} (round {number}"
        f"{', moved' if each['moved'] else ''})"
        for client, (number, each) in list(last.items())[:_MOST_DRIFTED]
    ]
    more = f"; and {len(last) - _MOST_DRIFTED} more" if len(last) > _MOST_DRIFTED else ""
    return f"Drift: {'; '.join(named)}{more}"


_MOST_TRIALS = 12


def trials_table(trials: Sequence[Mapping[str, Any]]) -> Table:
    """List groupings that got beyond their first round of trial, those that were kept first.

    Parameters
    ----------
    trials
        ``trials`` of ``summary.json``, see :class:`fedclust.strategies.Auto`.

    Returns
    -------
    A row each: where it comes from, what it gained on held-out rows, and what came of it. The others are
    counted.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("look", "cluster", "from", "sizes", "gain (95 % interval)", "p", "rounds", ""):
        table.add_column(title, justify="left" if title in ("from", "sizes", "") else "right")
    tested = sorted((each for each in trials if each["rounds"] > 1), key=lambda each: not each["kept"])
    for each in tested[:_MOST_TRIALS]:
        gain = "–"
        if each.get("gain") is not None:
            low, high = each["interval"]
            gain = f"{each['gain']:.3f} ({low:.3f} to {high:.3f})"
        corrected = each.get("p_value_corrected")
        chance = "–" if corrected is None else ("< 0.001" if corrected < 0.001 else f"{corrected:.2g}")
        table.add_row(
            str(each["look"]),
            str(each["cluster"]),
            each["source"],
            ", ".join(map(str, each["sizes"])),
            gain,
            chance,
            str(each["rounds"]),
            f"{'kept' if each['kept'] else 'dropped'}: {each['why']}",
        )
    left = len(trials) - len(tested[:_MOST_TRIALS])
    if left:
        table.caption = f"{left} more in summary.json, most of them dropped after one round"
    return table


_MOST_CLUSTERS = 12
_MOST_SILENT = 10
_WIDTH_OF_FILES = 500


@dataclass(frozen=True)
class FigureRow:
    """A line of the table: the keys that it shows, the second one after ±."""

    title: str
    keys: tuple[str, ...]
    digits: int = 3
    bytes: bool = False


_PERSONAL = ("mean_client_accuracy",)  # the row after which the same stands with personal layers

ROWS = (
    FigureRow("clusters", ("num_clusters",), 0),
    FigureRow("Rand index, known grouping", ("rand_index",)),
    FigureRow("Rand index, adjusted for chance", ("adjusted_rand_index",)),
    FigureRow("client accuracy, mean", ("mean_client_accuracy",)),
    FigureRow("client accuracy, balanced", ("balanced_accuracy",)),
    FigureRow("macro F1", ("macro_f1",)),
    FigureRow("AUC", ("auc",)),
    FigureRow("AD ± SDAD (lower is better)", ("ad", "sdad")),
    FigureRow("global accuracy", ("global_accuracy",)),
    FigureRow("WAS (higher is better)", ("was",)),
    FigureRow("WADB (lower is better)", ("wadb",)),
    FigureRow("ε of a client, largest", ("epsilon",), 2),
    FigureRow("δ", ("delta",), 7),
    FigureRow("newcomers: accuracy, mean", ("newcomers.accuracy",)),
    FigureRow("newcomers: Rand index, adjusted", ("newcomers.adjusted_rand",)),
    FigureRow("newcomers in no cluster", ("newcomers.none",), 0),
    FigureRow("failed replies", ("failed_replies",), 0),
    FigureRow("sent to clients", ("bytes_down",), bytes=True),
    FigureRow("received from clients", ("bytes_up",), bytes=True),
    FigureRow("seconds", ("seconds",), 1),
)


def newcomers_line(summary: Mapping[str, Any]) -> str | None:
    """Write in one line how clients that were left out fare; None if there were none."""
    found = summary.get("newcomers")
    if not found:
        return None
    accuracy = "unknown" if found["accuracy"] is None else f"{found['accuracy']:.3f}"
    parts = [f"{found['clients']} clients left out of training have accuracy {accuracy}"]
    if found["adjusted_rand"] is not None:
        parts.append(f"their clusters agree with the known groups to {found['adjusted_rand']:.2f}")
    if found["none"]:
        parts.append(f"{found['none']} fit no cluster")
    if found["common"]:
        parts.append(f"{found['common']} are served one model for all")
    return "Newcomers: " + ", ".join(parts)


def final_table(run: SavedRun) -> RenderableType:
    """Build the table of a run's results for the terminal.

    First the verdict, or how to get one; then the clusters with their sizes, and the figures next to those of
    the compared strategies.

    Parameters
    ----------
    run
        A run with its ``summary.json``.

    Returns
    -------
    An object that a rich console prints.

    Raises
    ------
    ValueError
        If the run has no summary, or its summary names no strategy.
    """
    summary = run.summary
    if "strategy" not in summary:
        raise ValueError(f"summary.json must have the key strategy, got {list(summary)} in {run.folder}")
    parts: list[RenderableType] = [*verdict_lines(run), _heading(summary)]
    if run.clients is not None:
        parts.append(_clusters(run.clients))
    if summary.get("decision"):
        parts.append(Text(str(summary["decision"])))
    if summary.get("trials"):
        parts.append(trials_table(summary["trials"]))
    parts.append(_figures(summary))
    parts += [Text(line) for line in decision_lines(summary)]
    if line := personal_line(summary):
        parts.append(Text(line))
    if line := newcomers_line(summary):
        parts.append(Text(line))
    if line := drift_line(run.rounds):
        parts.append(Text(line))
    if line := went_back_line(run.rounds):
        parts.append(Text(line))
    if run.clients is not None:
        silent = int(run.clients["accuracy"].isna().sum())
        if silent:
            all_clients = len(run.clients)
            parts.append(Text(f"{silent} of {all_clients} clients have no accuracy: left out of the means"))
    return Group(*parts)


def print_report(run: SavedRun, console: Console | None = None) -> None:
    """Print the final table and the run's folder.

    Parameters
    ----------
    run
        A run with its ``summary.json``.
    console
        Where to print; standard output unless given. Lines are not wrapped unless it is a terminal.

    Raises
    ------
    ValueError
        If the run has no summary.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=_WIDTH_OF_FILES)
    console.print(final_table(run))
    # Not wrapped, so that the path can be copied.
    console.print(f"results: {run.folder.resolve()}", markup=False, highlight=False, soft_wrap=True)


def verdict_lines(run: SavedRun) -> list[Text]:
    """Write the verdict of the run's proof, which models serve clients, and which clients did not vote."""
    summary = run.summary
    verdict = summary.get("verdict")
    if not verdict:
        return [Text(how_to_get_one(run.config), style="dim")]
    lines = [Text(f"{verdict['text']}.", style="bold")]
    if verdict["gain"] is not None:
        lines.append(Text(SCALE, style="dim"))
    if run.clients is not None and "served" in run.clients:
        own, everyone = int((run.clients["served"] == "cluster").sum()), len(run.clients)
        text = f"Served: {own} of {everyone} clients their cluster's model, the others one model for all"
        if own in (0, everyone):
            text = "Served: every client " + ("its cluster's model" if own else "one model for all")
        clustered = (summary.get("serve_cluster") or {}).get("mean_client_accuracy")
        if clustered is not None and own < everyone:
            text += f"; with every cluster served its own, mean accuracy would be {_number(clustered, 3)}"
        lines.append(Text(f"{text} (serve={summary.get('serve')})"))
    if silent := (summary.get("proof") or {}).get("did_not_vote"):
        shown = [f"{each.get('name', each['client'])}: {each['reason']}" for each in silent[:_MOST_SILENT]]
        more = f"; and {len(silent) - _MOST_SILENT} more" if len(silent) > _MOST_SILENT else ""
        lines.append(Text(f"did not vote: client {'; '.join(shown)}{more}"))
    return [*lines, Text("")]


def _heading(summary: Mapping[str, Any]) -> Text:
    text = Text(str(summary["strategy"]), style="bold")
    details = f", {summary['num_clients']} clients, {summary['rounds']} rounds, seed {summary['seed']}"
    return text.append(details, style="not bold")


def _clusters(clients: pd.DataFrame) -> Table:
    grouped = bool(clients["group"].notna().all())
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("cluster", "clients", "samples", "accuracy"):
        table.add_column(title, justify="right")
    with_names = "name" in clients
    if grouped:
        table.add_column("known groups (clients)")
    if with_names:
        table.add_column("who")
    sizes = clients["cluster"].value_counts().sort_index()
    shown = sizes if len(sizes) <= _MOST_CLUSTERS else sizes.nlargest(_MOST_CLUSTERS - 1)
    for cluster, size in shown.items():
        members = clients[clients["cluster"] == cluster]
        samples, accuracy = members["num_train"].sum(), members["accuracy"].mean()
        cells = [str(cluster), str(size), f"{samples:,}" if samples else "–", _number(accuracy, 3)]
        if grouped:
            counts = members["group"].value_counts()
            named = ", ".join(f"{group} ({count})" for group, count in counts.head(5).items())
            cells.append(named + (f", {len(counts) - 5} more" if len(counts) > 5 else ""))
        if with_names:
            who = members["name"].tolist()
            cells.append(escape(", ".join(who[:5])) + (f", {len(who) - 5} more" if len(who) > 5 else ""))
        table.add_row(*cells)
    if len(shown) < len(sizes):
        left = len(clients) - int(shown.sum())
        table.add_row("…", str(left), *[""] * (2 + grouped + with_names))
        table.caption = f"the {len(shown)} largest of {len(sizes)} clusters; … are the others together"
    return table


def _figures(summary: Mapping[str, Any]) -> Table:
    columns = [(str(summary["strategy"]), summary), *summary.get("compare", {}).items()]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right")
    for row in ROWS:
        cells = [_cell(figures, row) for _, figures in columns]
        if any(cell != "–" for cell in cells):
            table.add_row(row.title, *cells)
        if row.keys == _PERSONAL:
            _add_personal(table, [figures for _, figures in columns])
    return table


def _add_personal(table: Table, columns: Sequence[Mapping[str, Any]]) -> None:
    """Add a row for each personal layer that some column has, and for the choice between them."""
    of_column = [(figures.get("personal") or {}).get("figures") or {} for figures in columns]
    for choice in dict.fromkeys(choice for figures in of_column for choice in figures if choice != NONE):
        values = [figures.get(choice, {}).get(_PERSONAL[0]) for figures in of_column]
        cells = ["–" if value is None else _number(value, 3) for value in values]
        table.add_row(f"  with personal={choice}", *cells)


def _cell(figures: Mapping[str, Any], row: FigureRow) -> str:
    values: list[float | None] = []
    for key in row.keys:
        value = figure(figures, key)
        values += value if isinstance(value, (list, tuple)) else [value]
    write = _size if row.bytes else lambda value: _number(value, row.digits)
    known = [write(value) for value in values if value is not None]
    return " ± ".join(known) if known else "–"


def figure(figures: Mapping[str, Any], key: str) -> Any:
    """Get a value of a summary; a dot in its key stands between those of nested mappings."""
    whole, _, rest = key.partition(".")
    value = figures.get(whole)
    return figure(value, rest) if rest and isinstance(value, Mapping) else None if rest else value


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
