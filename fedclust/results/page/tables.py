"""The clients and clusters of a run, for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedclust.results.page.thinned import MOST_ACCURACIES, MOST_CLIENTS, shown
from fedclust.results.page.values import pack, short, shorts
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = ["Clients", "Cluster", "Column", "Histories", "view_clients", "view_clusters", "view_histories"]

_MOST_LABEL_COUNTS = 40_000  # clients times classes; larger tables of labels are left out
_MOST_LABELS = 100
_MOST_MOVES = 60_000
_MOST_FAILURES = 2_000
_NAMED = 12

_TITLES = {
    "client": "client",
    "name": "name",
    "cluster": "cluster",
    "group": "known group",
    "num_train": "training rows",
    "num_test": "test rows",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auc": "AUC",
    "loss": "test loss",
    "served": "served by",
    "personal": "personal layer",
    "personal_accuracy": "accuracy with it",
    "bytes_down": "sent to it",
    "bytes_up": "received from it",
}
_LEFT_OUT = (
    "label_counts", "prior_shift", "share_weighted_accuracy", "bytes_down_unbundled", "confusion",
    "accuracy_low", "accuracy_high", "sensitivity_low", "sensitivity_high", "specificity_low",
    "specificity_high",
)  # fmt: skip
_WHOLE = ("client", "cluster", "group", "num_train", "num_test", "took_part", "failures")


@dataclass(frozen=True)
class Column:
    """A column of the table of clients.

    Attributes
    ----------
    key
        Its name.
    title
        Its heading.
    kind
        ``text``, ``whole``, ``bytes`` or ``number``.
    values
        One per client.
    """

    key: str
    title: str
    kind: str
    values: list[Any]


@dataclass(frozen=True)
class Clients:
    """The table of clients, and their training labels.

    Attributes
    ----------
    columns
        Columns with an entry per client.
    labels
        Training labels of each client, K lists of C; None if there are none or too many.
    total
        Number of clients K; of more than 5,000 the columns have the first 5,000.
    """

    columns: list[Column]
    labels: list[list[int]] | None
    total: int = 0


@dataclass(frozen=True)
class Histories:
    """What happened to each client.

    Attributes
    ----------
    moves
        Of each client, pairs of a round and the cluster it then came to; the latest ones if there are many.
    failures
        Client, round, phase and reason of each failure, the latest ones if there are many.
    accuracies
        Of the run and of those compared with it, if they recorded each client's accuracy.
    """

    moves: list[list[list[int]]]
    failures: list[list[Any]]
    accuracies: list["Accuracies"]


@dataclass(frozen=True)
class Accuracies:
    """Each client's accuracy over the rounds of one run.

    Attributes
    ----------
    name
        Name of the compared run; empty for the run itself.
    rounds
        Rounds with an accuracy of each client; some of them in a long run.
    values
        Packed accuracies in [0, 1], rounds by clients, by :func:`fedclust.results.page.values.pack`.
    """

    name: str
    rounds: list[int]
    values: str


@dataclass(frozen=True)
class Cluster:
    """One cluster: who is in it and what sets it apart.

    Attributes
    ----------
    cluster
        Its index.
    clients, samples
        How many clients and training rows it has.
    accuracy, lowest, highest, loss
        Mean, least and largest accuracy of its clients, and their mean test loss.
    without
        Mean accuracy of its clients in each compared run, by that run's name.
    groups
        Known groups of its clients with the number of clients of each, the most frequent first.
    who
        Names of some of its clients.
    labels
        Share of each class among its training rows; empty if unknown.
    apart
        Classes that it has more or less of than all clients together: class, its share, everyone's share.
    """

    cluster: int
    clients: int
    samples: int | None
    accuracy: float | int | None
    lowest: float | int | None
    highest: float | int | None
    loss: float | int | None
    without: dict[str, float | int | None]
    groups: list[list[int]]
    who: list[str]
    labels: list[float | int | None]
    apart: list[list[Any]]


def view_clients(run: SavedRun, took_part: IntArray, failures: IntArray) -> Clients:
    """List the clients; before the end of a run, with what is known by then."""
    table = run.clients
    if table is None:
        assignment = run.assignment
        if assignment is None:
            return Clients([], None)
        table = pd.DataFrame({"client": np.arange(len(assignment)), "cluster": assignment})
        latest = next((line for line in reversed(run.rounds) if line.get("client_accuracy")), None)
        if latest is not None and len(latest["client_accuracy"]) == len(table):
            table["accuracy"] = np.array(latest["client_accuracy"], dtype=float)
    total, table = len(table), table.iloc[:MOST_CLIENTS]
    columns = [
        _column(str(key), table[key])
        for key in table.columns
        if key not in _LEFT_OUT and not str(key).endswith("_unbundled") and not table[key].isna().all()
    ]
    beside = [
        _column(f"accuracy of {name}", other.clients["accuracy"].iloc[:MOST_CLIENTS])
        for name, other in run.compared.items()
        if other.clients is not None and len(other.clients) == total and "accuracy" in other.clients
    ]
    place = next((i for i, each in enumerate(columns) if each.key == "accuracy"), len(columns) - 1)
    columns[place + 1 : place + 1] = beside
    if len(took_part) == total:
        took_part, failures = took_part[:MOST_CLIENTS], failures[:MOST_CLIENTS]
        columns.append(Column("took_part", "rounds it took part in", "whole", took_part.tolist()))
        columns.append(Column("failures", "failures", "whole", failures.tolist()))
    counts = run.label_counts
    few = counts is not None and counts.size <= _MOST_LABEL_COUNTS
    return Clients(columns, counts.tolist() if counts is not None and few else None, total)


def view_clusters(run: SavedRun) -> list[Cluster]:
    """Describe each cluster that has clients, in the order of their indices."""
    assignment, table = run.assignment, run.clients
    if assignment is None:
        return []
    counts, names = run.label_counts, run.client_names
    everyone = _shares(counts) if counts is not None else None
    clusters = []
    for cluster in np.unique(assignment):
        members = np.flatnonzero(assignment == cluster)
        accuracy, loss = _values(table, "accuracy", members), _values(table, "loss", members)
        groups: list[list[int]] = []
        if run.groups is not None:
            found, number = np.unique(run.groups[members], return_counts=True)
            groups = [[int(found[i]), int(number[i])] for i in np.argsort(-number, kind="stable")[:8]]
        shares = _shares(counts[members]) if counts is not None else None
        small = shares is not None and len(shares) <= _MOST_LABELS
        clusters.append(
            Cluster(
                int(cluster),
                len(members),
                None if table is None else int(table["num_train"].to_numpy()[members].sum()),
                _mean(accuracy),
                short(accuracy.min()) if accuracy.size else None,
                short(accuracy.max()) if accuracy.size else None,
                _mean(loss),
                {
                    name: _mean(_values(other.clients, "accuracy", members))
                    for name, other in run.compared.items()
                    if other.clients is not None and len(other.clients) == len(assignment)
                },
                groups,
                [str(names[member]) for member in members[:_NAMED]] if names is not None else [],
                shorts(shares.tolist()) if shares is not None and small else [],
                _apart(shares, everyone) if shares is not None and everyone is not None else [],
            )
        )
    return clusters


def view_histories(run: SavedRun) -> Histories:
    """Collect each client's changes of cluster, failures and accuracies."""
    moves: list[list[list[int]]] = []
    total = 0
    for change in run.changes:
        assignment = change["assignment"][:MOST_CLIENTS]
        moves += [[] for _ in assignment[len(moves) :]]  # of those who joined
        for client, cluster in enumerate(map(int, assignment)):
            if not moves[client] or moves[client][-1][1] != cluster:
                moves[client].append([change["round"], cluster])
                total += 1
        if total > _MOST_MOVES:  # now, so that the lists do not grow with the rounds
            kept = max(1, _MOST_MOVES // len(moves))
            moves = [each[-kept:] for each in moves]
    failures = [
        [
            failure["client"],
            line["round"],
            str(failure.get("phase", "")),
            str(failure.get("reason", ""))[:200],
        ]
        for line in run.rounds
        for failure in line.get("failures", ())
    ]
    compared = run.compared
    beside = MOST_ACCURACIES // max(1, len(compared))  # so that many compared runs take no more room
    found = [_accuracies("", run, MOST_ACCURACIES)]
    found += [_accuracies(name, each, beside) for name, each in compared.items()]
    return Histories(moves, failures[-_MOST_FAILURES:], [each for each in found if each is not None])


def _accuracies(name: str, run: SavedRun, most: int) -> Accuracies | None:
    """Collect each client's accuracies, at most about so many; None if none were recorded."""
    recorded = [line for line in run.rounds if line.get("client_accuracy")]
    if not recorded:
        return None
    width = len(recorded[-1]["client_accuracy"])
    recorded = [line for line in recorded if len(line["client_accuracy"]) <= width]
    chosen = shown(len(recorded), width, most)
    values = np.full((len(chosen), width), np.nan)
    for row, place in zip(values, chosen, strict=True):
        known = recorded[place]["client_accuracy"]
        row[: len(known)] = known  # nothing is known of those who joined later
    return Accuracies(name, [recorded[place]["round"] for place in chosen], pack(values, 0.0, 1.0))


def _column(key: str, values: pd.Series) -> Column:
    title = _TITLES.get(key, key.replace("_", " "))
    if key == "name" or not pd.api.types.is_numeric_dtype(values):
        return Column(key, title, "text", [None if _missing(value) else str(value) for value in values])
    kind = "whole" if key in _WHOLE else "bytes" if key.startswith("bytes_") else "number"
    return Column(key, title, kind, [None if _missing(value) else short(value) for value in values])


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value != value


def _values(table: pd.DataFrame | None, column: str, members: IntArray) -> FloatArray:
    if table is None or column not in table:
        return np.zeros(0)
    values = table[column].to_numpy(dtype=float)[members]
    return values[np.isfinite(values)]


def _mean(values: FloatArray) -> float | int | None:
    return short(values.mean()) if values.size else None


def _shares(counts: IntArray) -> FloatArray:
    totals = counts.sum(axis=0)
    return totals / max(1, totals.sum())


def _apart(shares: FloatArray, everyone: FloatArray) -> list[list[Any]]:
    """List up to four classes whose share differs most, if by more than a percentage point and a tenth."""
    differences = shares - everyone
    order = np.argsort(-np.abs(differences), kind="stable")[:4]
    return [
        [int(label), short(shares[label]), short(everyone[label])]
        for label in order
        if abs(differences[label]) > max(0.01, 0.1 * everyone[label])
    ]


def tally(rounds: Sequence[Mapping[str, Any]], num_clients: int) -> tuple[IntArray, IntArray]:
    """Count in how many rounds each client was drawn, and how often it failed, each of shape (K,)."""
    drawn = np.zeros(num_clients, dtype=np.int64)
    failed = np.zeros(num_clients, dtype=np.int64)
    for line in rounds:
        np.add.at(drawn, np.asarray(line.get("cohort", ()), dtype=np.int64), 1)
        np.add.at(failed, [failure["client"] for failure in line.get("failures", ())], 1)
    return drawn, failed
