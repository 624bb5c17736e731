"""The page of a run, made only from the files in its folder."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from fedclust.results.charts.chart import Line, Picture, curves, intervals
from fedclust.results.charts.methods import rewards_of
from fedclust.results.charts.run import meaning_of, pictures, small_arrays
from fedclust.results.page.parts import (
    Cell,
    Column,
    More,
    Pair,
    Section,
    Table,
    Text,
    Tile,
    View,
    heads,
    known,
    number,
    percent,
    plural,
    span,
    written_as,
)
from fedclust.results.report import ROWS, drift_line, figure, newcomers_line, verdict_lines, went_back_line
from fedclust.results.saved_run import SavedRun
from fedclust.results.thinned import MOST_ACCURACIES, MOST_CLIENTS, ThinnedRun, evenly, pack, shown
from fedclust.typing import FloatArray, IntArray

_MOST_CHANGES, _MOST_FAILURES, _MOST_MOVES = 200, 2_000, 60_000
_MOST_LABEL_COUNTS = 40_000  # clients times classes; larger tables of labels are left out
_LISTED = 200

_TITLES = {
    "group": "known group",
    "num_train": "training rows",
    "num_test": "test rows",
    "macro_f1": "macro F1",
    "auc": "AUC",
    "loss": "test loss",
    "served": "served by",
    "personal": "personal layer",
    "personal_accuracy": "accuracy with it",
    "bytes_down": "sent to it",
    "bytes_up": "received from it",
    "took_part": "rounds it took part in",
}
_LEFT_OUT = (
    "label_counts",
    "prior_shift",
    "share_weighted_accuracy",
    "bytes_down_unbundled",
    "confusion",
    "accuracy_low",
    "accuracy_high",
    "sensitivity_low",
    "sensitivity_high",
    "specificity_low",
    "specificity_high",
)
_WHOLE = ("client", "cluster", "group", "num_train", "num_test", "took_part", "failures")
_LOWER_IS_BETTER = ("ad", "wadb", "failed_replies")
_NEITHER = ("seconds", "bytes_down", "bytes_up", "num_clusters", "epsilon", "delta")
_ABOUT = {
    "ad": "AD: mean distance of the clients' accuracies from 1; SDAD: its standard deviation over clients",
    "was": "WAS: silhouette, and WADB: Davies–Bouldin score, of the clusters on the clients' class shares, "
    "each client's sorted: how well they group clients whose labels are equally unbalanced",
    "wadb": "WADB: Davies–Bouldin score of the clusters on the clients' sorted class shares",
}
_SEEN = {True: "seen", False: "not seen", None: "not measured"}


def view_run(folder: Path) -> View:
    """Read a run's folder, finished or not.

    Raises
    ------
    FileNotFoundError
        If it does not hold a run.
    ValueError
        If a file in it cannot be read.
    """
    run = ThinnedRun(folder)
    summary, choices = run.summary, run.config.get("choices") or {}
    title = str(summary.get("strategy") or choices.get("strategy") or folder.name)
    finished = is_finished(run)
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    total = run.config.get("rounds") or summary.get("rounds")
    small = small_arrays(run)
    made = {picture.name: picture for picture in pictures(run, small) if not picture.file_only}
    said = [text for line in verdict_lines(run) if (text := str(line))] if finished else []
    notes = (
        summary.get("decision"),
        newcomers_line(summary),
        drift_line(run.rounds),
        went_back_line(run.rounds),
    )
    of = f" of {int(total):,}" if total else ""
    beside = "".join(f", {name}: {len(each.rounds):,}" for name, each in run.compared.items())
    written = (
        "Finished, " + plural(int(total or done), "round")
        if finished
        else f"Not finished: round {done:,}{of}{beside}"
    )
    headline = f"{title} has finished" if finished else f"{title}, round {done:,}{of}"
    sections = [
        _accuracy(run, title, made),
        _clusters(run, small),
        _clients(run),
        _tests(run),
        _compared(run, title, small, made),
        _decisions(summary.get("decisions")),
        _spread(run, made),
        _personal(summary.get("personal")),
        _costs(run, title, made),
        _again(run.config),
    ]
    return View(
        kind="run",
        title=title,
        finished=finished,
        status=written,
        headline=said[0] if said else headline,
        lines=[*said[1:], *(str(note) for note in notes if note)],
        tiles=_tiles(run, title, done, "" if finished else of.strip()),
        facts=list(_facts(run)),
        sections=[each for each in sections if each is not None and each.parts],
        data=_histories(run, small),
    )


def is_finished(run: SavedRun) -> bool:
    """Whether a run and all that it is compared with have ended."""
    compared = set(run.config.get("compare") or ()) - {run.summary.get("strategy")}
    return "strategy" in run.summary and compared <= (run.summary.get("compare") or {}).keys()


def tally(rounds: Sequence[Mapping[str, Any]], num_clients: int) -> tuple[IntArray, IntArray]:
    """Count in how many rounds each client was drawn, and how often it failed, each of shape (K,)."""
    drawn = np.zeros(num_clients, dtype=np.int64)
    failed = np.zeros(num_clients, dtype=np.int64)
    for line in rounds:
        np.add.at(drawn, np.asarray(line.get("cohort", ()), dtype=np.int64), 1)
        np.add.at(failed, [failure["client"] for failure in line.get("failures", ())], 1)
    return drawn, failed


def _last(run: SavedRun, key: str) -> Any:
    values = run.series(key)[1]
    return float(values[-1]) if values.size else None


def _accuracy_of(run: SavedRun) -> Any:
    value = run.summary.get("mean_client_accuracy")
    return _last(run, "mean_client_accuracy") if value is None else value


def _tiles(run: SavedRun, title: str, done: int, of: str) -> list[Tile]:
    beside = ", ".join(f"{name} {number(_accuracy_of(each))}" for name, each in run.compared.items())
    sizes = [] if run.assignment is None else np.unique(run.assignment, return_counts=True)[1].tolist()
    some = ", ".join(map(str, sizes[:6])) + (", …" if len(sizes) > 6 else "")
    costs = _cost(title, run)
    return [
        Tile("mean client accuracy", number(_accuracy_of(run)), beside),
        Tile(
            "clusters", number(_last(run, "num_clusters"), 0), f"of {some} clients" if len(sizes) > 1 else ""
        ),
        Tile("rounds", f"{done:,}", of),
        Tile("sent and received", written_as("bytes", (costs[2] or 0) + (costs[3] or 0))),
        Tile("time", written_as("seconds", costs[1])),
    ]


def _facts(run: SavedRun) -> Iterator[list[str]]:
    choices = run.config.get("choices") or {}
    if run.assignment is not None:
        yield ["clients", f"{len(run.assignment):,}"]
    for name in ("dataset", "partition", "model", "aggregator", "selection", "personal", "engine"):
        if (value := choices.get(name)) not in (None, "own"):
            yield [name, str(value)]
    for name in ("seed", "participation"):
        if (value := run.summary.get(name, run.config.get(name))) is not None:
            yield [name, str(value)]


def _accuracy(run: SavedRun, title: str, made: dict[str, Picture]) -> Section:
    parts: list[Any] = [made[name] for name in ("accuracy_per_round",) if name in made]
    beside = [
        made[name] for name in ("loss", "test_loss", "clusters_per_round", "accuracy_ecdf") if name in made
    ]
    parts += [Pair(beside)] if beside else []
    changes = [change for change in run.changes if change["round"] > 0]
    if changes:
        rows = [
            [
                change["round"],
                str(change.get("reason", "")),
                _some(np.bincount(change["assignment"]) if "sizes" not in change else change["sizes"], 30),
            ]
            for change in changes[-_MOST_CHANGES:]
        ]
        columns = heads("after round|whole", "what happened|long", "cluster sizes")
        caption = "Changes of the clusters, and how many clients each had afterwards."
        table = Table("table-changes", caption, columns, rows, sortable=False)
        parts.append(
            More("changes", plural(len(changes), "change") + " of the clusters", [table], len(changes) <= 6)
        )
    if "strategy" in run.summary:
        parts += [Text("All figures", heading=True), _figures(run, title)]
    return Section("accuracy", "Accuracy per round", "Accuracy", parts)


def _some(values: Any, most: int) -> str:
    return ", ".join(map(str, list(values)[:most])) + (", …" if len(values) > most else "")


def _figures(run: SavedRun, title: str) -> Table:
    summaries = {title: run.summary, **run.summary.get("compare", {})}
    rows, notes = [], []
    for row in ROWS:
        found = []
        for each in summaries.values():
            values: list[Any] = []
            for key in row.keys:
                value = figure(each, key)
                values += value if isinstance(value, (list, tuple)) else [value]
            found.append([value for value in values if known(value)])
        if not any(found):
            continue
        key, way = row.keys[0], -1 if row.keys[0] in _LOWER_IS_BETTER else 1
        firsts = [way * values[0] for values in found if values]
        cells = []
        for values in found:
            text = " ± ".join(
                written_as("bytes", one) if row.bytes else number(one, row.digits) for one in values
            )
            best = key not in _NEITHER and values and way * values[0] == max(firsts) > min(firsts)
            cells.append(Cell(text or "–", looks="best" if best else ""))
        rows.append([row.title, *cells])
        notes += [_ABOUT[key]] if key in ("ad", "was") else []
    caption = "Figures at the end" + ("; the best of a row is bold." if len(summaries) > 1 else ".")
    columns = [Column("figure"), *(Column(name, "number") for name in summaries)]
    return Table(
        "table-figures", caption, columns, rows, sortable=False, note=". ".join([*notes, ""]).strip()
    )


def _cluster(cluster: int) -> Cell:
    return Cell(str(cluster), cluster, f"cluster-{cluster % 7}")


def _mean(table: pd.DataFrame | None, column: str, members: IntArray) -> FloatArray:
    if table is None or column not in table:
        return np.zeros(0)
    values = table[column].to_numpy(dtype=float)[members]
    return values[np.isfinite(values)]


def labels_apart(counts: IntArray, everyone: IntArray, tests: int) -> list[int]:
    """List up to four classes of which a group has a larger or smaller share than chance would give it.

    A share is beyond chance if it is further from everyone's share p than rows drawn without replacement
    from all come with a probability of 1 %, corrected for all `tests` that are made: with n of N rows, by a
    normal bound on √(p (1 − p) / n · (N − n) / (N − 1)). Differences below a percentage point or a tenth of
    p are never named.

    Parameters
    ----------
    counts, everyone
        Rows of each class in the group and of everyone, shape (C,).
    tests
        Number of groups times classes.
    """
    n, whole = int(counts.sum()), int(everyone.sum())
    if not n or n == whole:
        return []
    share = everyone / whole
    apart = counts / n - share
    chance = norm.isf(0.005 / tests) * np.sqrt(share * (1 - share) / n * (whole - n) / (whole - 1))
    named = np.abs(apart) > np.maximum.reduce([chance, np.full(len(share), 0.01), 0.1 * share])
    return [int(label) for label in np.argsort(-np.abs(apart), kind="stable")[:4] if named[label]]


def _long(classes: Sequence[str], label: int) -> str:
    name = classes[label] if label < len(classes) else ""
    return f"class {name or label}" if not name or name.isdigit() else name


def _class_names(small: Mapping[str, NDArray], counts: IntArray | None) -> list[str]:
    if "class_names" in small:
        return [str(name) for name in small["class_names"]]
    return [] if counts is None else [str(label) for label in range(counts.shape[1])]


def _clusters(run: SavedRun, small: Mapping[str, NDArray]) -> Section | None:
    assignment, table, counts = run.assignment, run.clients, run.label_counts
    if assignment is None:
        return None
    clusters, sizes = np.unique(assignment, return_counts=True)
    classes = _class_names(small, counts)
    tests = {one["cluster"]: one for one in (run.summary.get("proof") or {}).get("clusters", ())}
    beside = {
        name: each.clients
        for name, each in run.compared.items()
        if each.clients is not None and len(each.clients) == len(assignment)
    }
    columns = {
        "cluster": Column("cluster", "whole"),
        "clients": Column("clients", "whole"),
        "who": Column("who", looks="long"),
        "groups": Column("known groups (clients)", looks="long"),
        "apart": Column("labels that set it apart", looks="long"),
        "accuracy": Column("accuracy", "number"),
        "range": Column("least to most"),
        **{f"in {name}": Column(f"same clients, {name}", "number") for name in beside},
        "loss": Column("test loss", "number"),
        "gain": Column("gain over one model for all"),
        "samples": Column("training rows", "whole"),
    }
    rows: list[dict[str, Any]] = []
    for cluster, size in zip(clusters.tolist(), sizes.tolist(), strict=True):
        members = np.flatnonzero(assignment == cluster)
        accuracy, loss = _mean(table, "accuracy", members), _mean(table, "loss", members)
        row: dict[str, Any] = {"cluster": _cluster(cluster)}
        label = f"{plural(size, 'client')} of cluster {cluster}: show them in the table"
        row["clients"] = Cell(f"{size:,}", size, button=f"members-{cluster}", label=label)
        if run.client_names is not None:
            named = ", ".join(str(run.client_names[member]) for member in members[:6])
            row["who"] = named + (f" and {size - 6} more" if size > 6 else "")
        if run.groups is not None:
            found, counted = np.unique(run.groups[members], return_counts=True)
            most = np.argsort(-counted, kind="stable")[:8]
            row["groups"] = ", ".join(f"{found[place]} ({counted[place]})" for place in most)
        if counts is not None and len(clusters) > 1:
            own, everyone = counts[members].sum(axis=0), counts.sum(axis=0)
            named = ", ".join(
                f"{_long(classes, label)}: {percent(float(own[label] / own.sum()))} "
                f"(all: {percent(float(everyone[label] / everyone.sum()))})"
                for label in labels_apart(own, everyone, counts.shape[1] * len(clusters))
            )
            row["apart"] = named or "none, beyond chance"
        if accuracy.size:
            row |= {
                "accuracy": float(accuracy.mean()),
                "range": span((float(accuracy.min()), float(accuracy.max()))),
            }
        for name, other in beside.items():
            values = _mean(other, "accuracy", members)
            row[f"in {name}"] = float(values.mean()) if values.size else None
        if loss.size:
            row["loss"] = float(loss.mean())
        if cluster in tests:
            one = tests[cluster]
            row["gain"] = Cell(
                f"{number(one['gain'])}, {'shown' if one['proven'] else 'not shown'}", one["gain"]
            )
        if table is not None:
            row["samples"] = int(table["num_train"].to_numpy()[members].sum())
        rows.append(row)
    kept = [key for key in columns if any(row.get(key) is not None for row in rows)]
    one = "All clients are in one cluster."
    several = (
        "Who is in each cluster, how it does, and what sets it apart. The number of clients leads to the "
        "table of them."
    )
    parts: list[Any] = [
        Text(one if len(rows) == 1 else several),
        Table(
            "table-clusters",
            f"{plural(len(rows), 'cluster')}, each with its clients' means.",
            [columns[key] for key in kept],
            [[row.get(key) for key in kept] for row in rows],
        ),
    ]
    parts += [*_across(small), *_label_shares(assignment, counts, classes)]
    return Section("clusters", "Clusters", "Clusters", parts)


def _shaded(share: float, most: float = 1.0) -> Cell:
    if not known(share):
        return Cell("–", looks="shade")
    return Cell(percent(share), share, f"shade shade-{min(9, round(9 * share / (most or 1)))}")


def _across(small: Mapping[str, NDArray]) -> Iterator[Any]:
    if "confusion" not in small or len(small["confusion_clusters"]) < 2:
        return
    counts, clusters = small["confusion"], small["confusion_clusters"].astype(int).tolist()
    totals, right = counts.sum(axis=(2, 3)), np.trace(counts, axis1=2, axis2=3)
    shares = np.divide(right, totals, out=np.full(totals.shape, np.nan), where=totals > 0)
    yield Text("Each cluster's model on each cluster's clients", heading=True)
    columns = [Column("clients of cluster"), *(Column(f"model of {one}", "percent") for one in clusters)]
    rows = [
        [_cluster(cluster), *map(_shaded, row)]
        for cluster, row in zip(clusters, shares.tolist(), strict=True)
    ]
    caption = (
        "Share of right answers on the clients' test rows. Clusters whose models also do well elsewhere "
        "have little that sets them apart."
    )
    yield Table("table-across", caption, columns, rows, sortable=False)


def _label_shares(assignment: IntArray, counts: IntArray | None, classes: Sequence[str]) -> Iterator[Any]:
    clusters = np.unique(assignment)
    if counts is None or len(clusters) < 2 or len(classes) > 30:
        return
    sums = [counts[assignment == cluster].sum(axis=0) for cluster in clusters[:40]]
    shares = [each / max(1, each.sum()) for each in [*sums, counts.sum(axis=0)]]
    most = float(np.max(shares))
    named = [*map(_cluster, clusters[:40].tolist()), "all clients"]
    rows = [
        [name, *(_shaded(float(one), most) for one in each)] for name, each in zip(named, shares, strict=True)
    ]
    yield Text("Labels of each cluster", heading=True)
    columns = [Column("cluster"), *(Column(name, "percent") for name in classes)]
    caption = "Share of each class among the training rows of a cluster; a stronger colour is more."
    yield Table("table-labels", caption, columns, rows, sortable=False)


def _clients(run: SavedRun) -> Section | None:
    if run.assignment is None:
        return None
    total = len(run.assignment)
    drawn, failed = tally(run.rounds, total)
    table = run.clients
    if table is None:  # not finished: who is where, and the last accuracies
        table = pd.DataFrame({"client": np.arange(total), "cluster": run.assignment})
        accuracy = next(
            (line["client_accuracy"] for line in reversed(run.rounds) if line.get("client_accuracy")), None
        )
        if accuracy is not None and len(accuracy) <= total:
            table["accuracy"] = pd.array([*accuracy, *[None] * (total - len(accuracy))], dtype="Float64")
    table = table[[name for name in table.columns if name not in _LEFT_OUT]].copy()
    place = list(table.columns).index("accuracy") + 1 if "accuracy" in table else len(table.columns)
    for name, other in run.compared.items():
        if other.clients is not None and len(other.clients) == total and "accuracy" in other.clients:
            table.insert(place, f"accuracy of {name}", other.clients["accuracy"].to_numpy())
            place += 1
    if len(drawn) == len(table):
        table["took_part"], table["failures"] = drawn, failed
    table = table.iloc[:MOST_CLIENTS]
    columns, values = [], []
    for key in table.columns:
        column = table[key]
        numeric = pd.api.types.is_numeric_dtype(column) and key != "name"
        kind = (
            "text"
            if not numeric
            else "whole"
            if key in _WHOLE
            else "bytes"
            if key.startswith("bytes_")
            else "number"
        )
        columns.append(
            Column(_TITLES.get(key, key.replace("_", " ")), kind, looks="name" if key == "name" else "")
        )
        missing = column.isna().to_numpy()
        shown_as = [None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)]
        values.append(shown_as)
    by_key = dict(zip(table.columns, values, strict=True))
    rows = []
    for at, row in enumerate(zip(*values, strict=True)):
        cells = list(row)
        for spot, key in enumerate(table.columns):
            if key == "client":
                named = f", {by_key['name'][at]}" if "name" in by_key else ""
                cells[spot] = Cell(
                    str(row[spot]),
                    row[spot],
                    button=f"client-{row[spot]}",
                    label=f"client {row[spot]}{named}: history",
                )
            elif key == "cluster":
                cells[spot] = _cluster(row[spot])
        rows.append(cells)
    first = (
        f"The first {len(rows):,} of {total:,} clients; clients.parquet in the run's folder has all."
        if len(rows) < total
        else "All clients."
    )
    caption = f"{first} A client's number opens its history."
    ids = [f"row-{client}" for client in by_key["client"]] if "client" in by_key else []
    clusters = [str(cluster) for cluster in np.unique(table["cluster"])] if "cluster" in table else []
    return Section(
        "clients", "Clients", "Clients", [Table("table-clients", caption, columns, rows, ids=ids)], clusters
    )


def _histories(run: SavedRun, small: Mapping[str, NDArray]) -> dict[str, Any]:
    """Collect what the script shows of a client: moves, failures, accuracies and labels."""
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
    beside = MOST_ACCURACIES // max(1, len(run.compared))  # so that many compared runs take no more room
    found = [_client_accuracies("", run, MOST_ACCURACIES)]
    found += [_client_accuracies(name, each, beside) for name, each in run.compared.items()]
    counts = run.label_counts
    few = counts is not None and counts.size <= _MOST_LABEL_COUNTS
    rounds, values = run.series("mean_client_accuracy")
    chosen = evenly(len(rounds), 300)
    empty = curves([Line("client", [0], [0])], "round", marks=[(0, "")])
    return {
        "moves": moves,
        "failures": failures[-_MOST_FAILURES:],
        "accuracies": [each for each in found if each],
        "labels": counts.tolist() if counts is not None and few else None,
        "classes": [_long(names, at) for names in [_class_names(small, counts)] for at in range(len(names))],
        "mean": [rounds[chosen].tolist(), np.round(values[chosen], 5).tolist()],
        "history": _specification(empty),
    }


def _specification(chart: Any) -> dict[str, Any]:
    from fedclust.results.charts.chart import specification

    return specification(chart)


def _client_accuracies(name: str, run: SavedRun, most: int) -> dict[str, Any] | None:
    recorded = [line for line in run.rounds if line.get("client_accuracy")]
    if not recorded:
        return None
    width = len(recorded[-1]["client_accuracy"])
    recorded = [line for line in recorded if len(line["client_accuracy"]) <= width]
    chosen = shown(len(recorded), width, most)
    values = np.full((len(chosen), width), np.nan)
    for row, place in zip(values, chosen, strict=True):
        accuracies = recorded[place]["client_accuracy"]
        row[: len(accuracies)] = accuracies  # nothing is known of those who joined later
    return {"name": name, "rounds": [recorded[place]["round"] for place in chosen], "values": pack(values)}


def _tests(run: SavedRun) -> Section | None:
    proof, trials = run.summary.get("proof") or {}, list(run.summary.get("trials") or ())
    tests, silent = proof.get("clusters") or [], proof.get("did_not_vote") or []
    if not tests and not trials:
        return None
    parts: list[Any] = [
        Text(
            "Gain is by how much a group's own model beats one model for all on held-out rows, in Brier "
            "score: 0 for a "
            "prediction that is certain and right, 2 for one that is certain and wrong. Whether a gain "
            "counts as shown "
            "depends on the p-value, which is corrected for all tests that were made."
        )
    ]
    measured = heads("gain|number", "95 % interval", "p, corrected|chance")
    if tests:
        columns = [*heads("cluster", "clients|whole"), *measured, *heads("better for", "result")]
        rows = [
            [
                _cluster(one["cluster"]),
                one["clients"],
                one["gain"],
                span(one["interval"]),
                one["p_value"],
                f"{one['better_for']:,} of {one['voted']:,}",
                "shown to be better" if one["proven"] else "not shown",
            ]
            for one in tests
        ]
        parts.append(Table("table-tests", "Each cluster's model against one model for all.", columns, rows))
        parts += _gains(
            "gains",
            "Gain of each cluster, with its 95 % interval",
            [(f"cluster {one['cluster']}", one, bool(one["proven"])) for one in tests],
        )
    if silent:
        lines = [
            f"client {one['client']}" + (f" ({one['name']})" if "name" in one else "") + f": {one['reason']}"
            for one in silent[:_LISTED]
        ]
        parts.append(More("silent", f"{plural(len(silent), 'client')} did not vote", [*map(Text, lines)]))
    if trials:
        parts.append(Text("Groupings that were tried during the run", heading=True))
        first = heads("look|whole", "of cluster", "found in", "parts", "rounds|whole")
        columns = [*first, *measured, *heads("result", "why|long")]
        rows = [
            [
                one["look"],
                _cluster(one["cluster"]),
                one["source"],
                " + ".join(map(str, one["sizes"])),
                one["rounds"],
                one.get("gain"),
                span(one.get("interval")),
                one.get("p_value_corrected"),
                "kept" if one["kept"] else "refused",
                one["why"],
            ]
            for one in trials
        ]
        kept = sum(bool(one["kept"]) for one in trials)
        parts.append(
            Table("table-trials", f"{plural(len(trials), 'grouping')} tried; {kept:,} kept.", columns, rows)
        )
        named = [
            (
                f"look {one['look']}, cluster {one['cluster']}, {' + '.join(map(str, one['sizes']))} "
                f"({one['source']})",
                one,
                bool(one["kept"]),
            )
            for one in trials
        ]
        parts += _gains("trials", "Gain of each grouping, with its 95 % interval", named)
    return Section("tests", "What was tried, and what the tests said", "Tests", parts)


def _gains(name: str, title: str, rows: Sequence[tuple[str, Mapping[str, Any], bool]]) -> list[Picture]:
    drawn = [(text, one["gain"], *one["interval"], shown) for text, one, shown in rows if one.get("interval")]
    if not any(low != high for _, _, low, high, _ in drawn):
        return []
    return [Picture(name, title, intervals(drawn[:60], "gain in Brier score"), page_only=True)]


def _compared(
    run: SavedRun, title: str, small: Mapping[str, NDArray], made: dict[str, Picture]
) -> Section | None:
    elsewhere = {
        "accuracy_per_round",
        "loss",
        "test_loss",
        "clusters_per_round",
        "accuracy_ecdf",
        "bytes",
        "seconds",
        "labels_per_client",
        "answers_between_clusters",
    }
    own = [each for name, each in made.items() if name not in elsewhere]
    if not own and "answers_between_clusters" not in made:
        return None
    parts: list[Any] = []
    assignment = run.assignment
    if assignment is not None:
        same, off = assignment[:, None] == assignment[None, :], ~np.eye(len(assignment), dtype=bool)
        rows, left_out = [], []
        for name, values in run.matrices():
            if np.shape(values) != same.shape or name.startswith("cohort_"):
                continue
            if name not in made:
                left_out.append(name)
                continue
            fine = np.isfinite(values) & off
            means = [
                float(values[fine & which].mean()) if (fine & which).any() else None
                for which in (same, ~same)
            ]
            rows.append([made[name].title, *means, meaning_of(name)[0]])
        if rows:
            columns = heads(
                "matrix", "within clusters|tight", "between clusters|tight", "how to read it|long"
            )
            parts.append(
                Text(
                    "Each cell is a pair of clients, ordered by cluster; of many clients, neighbours are "
                    "averaged. Clusters stand out as blocks along the diagonal."
                )
            )
            caption = "Mean over pairs of clients of one cluster, and over pairs of two clusters."
            parts.append(Table("table-matrices", caption, columns, rows, sortable=False))
        if left_out:
            parts.append(Text(f"Left out: {_some(left_out, 12)}; they are in matrices.npz.", "small quiet"))
    parts += [Pair(own)] if len(own) > 1 else own
    found = rewards_of(small)
    if found is not None:
        clients, scores, losses, _ = found
        rewards: list[list[Any]] = [
            [
                Cell(f"client {clients[place]}", int(clients[place])),
                float(scores[place]),
                float(losses[place].mean()),
            ]
            for place in evenly(len(clients), 1_500)
        ]
        columns = heads("client", "reward|number", "mean loss|number")
        caption = "Reward: near 1 if a client's losses were near the cohort's mean in every step."
        parts.append(
            More("rewards", "Rewards as a table", [Table("table-rewards", caption, columns, rewards)])
        )
    parts += [made["answers_between_clusters"]] if "answers_between_clusters" in made else []
    return Section("matrices", f"What {title} compared", "Matrices", parts)


def _decisions(found: Mapping[str, Any] | None) -> Section | None:
    if not found:
        return None
    names = [str(one["name"]) for one in found["classes"]]
    parts: list[Any] = [
        Text(
            f"Of all {found['rows']:,} test rows together, with the models that serve, without personal "
            "layers. Accuracy is "
            f"in {span(found['accuracy_interval'])} (95 % interval), the Brier score "
            f"{number(found['brier'])} and the "
            f"expected calibration error {number(found['calibration_error'])}; 0 is best for both."
        )
    ]
    columns = heads(
        "class",
        "test rows|whole",
        "sensitivity|number",
        "95 % interval",
        "specificity|number",
        "95 % interval of it",
    )
    rows = [
        [
            name,
            one["rows"],
            one["sensitivity"],
            span(one["sensitivity_interval"]),
            one["specificity"],
            span(one["specificity_interval"]),
        ]
        for name, one in zip(names, found["classes"], strict=True)
    ]
    parts.append(
        Table(
            "table-decisions",
            "Each class against the rest, with 95 % bootstrap intervals over rows.",
            columns,
            rows,
        )
    )

    def counts(name: str, caption: str, confusion: Sequence[Sequence[int]]) -> Table:
        columns = [Column("is"), *(Column(_long(names, label), "whole") for label in range(len(confusion)))]
        rows = [[_long(names, label), *row] for label, row in enumerate(confusion)]
        return Table(name, caption, columns, rows, sortable=False)

    if (confusion := found.get("confusion")) and len(confusion) <= 20:
        table = counts("table-confusion", "A row per class, a column per predicted class.", confusion)
        parts.append(More("confusion", "Test rows by what they are and what they were taken for", [table]))
    clusters = [
        counts(
            f"table-confusion-{one['cluster']}",
            f"Cluster {one['cluster']}, {plural(one['rows'], 'test row')}: Brier score "
            f"{number(one['brier'])}, "
            f"calibration error {number(one['calibration_error'])}.",
            one["confusion"],
        )
        for one in found.get("clusters") or ()
        if one.get("confusion") and len(one["confusion"]) <= 20
    ]
    parts += [More("confusion-clusters", "The same for each cluster", clusters)] if clusters else []
    return Section("decisions", "Sensitivity, specificity and calibration", "Sensitivity", parts)


def _spread(run: SavedRun, made: dict[str, Picture]) -> Section:
    rows, parts = list(_measures(run)), list[Any]()
    if rows:
        columns = heads("measure", "value", "what it is|long")
        parts.append(
            Table("table-spread", "Measured on the clients' training labels.", columns, rows, sortable=False)
        )
    if run.summary.get("shifts"):
        parts.append(Text("What sets the clients apart", heading=True))
        shifts = [[one["kind"], _SEEN[one["seen"]], one["text"]] for one in run.summary["shifts"]]
        columns = heads("shift", "seen", "evidence|long")
        parts.append(
            Table("table-shifts", "Kinds of shift between clients.", columns, shifts, sortable=False)
        )
        if text := run.summary.get("update_agreement_text"):
            parts.append(Text(f"Updates: {text}.", "small"))
        if advice := run.summary.get("advice"):
            command = shlex.join(["fedclust", *advice.get("overrides", ())])
            parts += [Text(f"Advice: {advice['reason']}.", "note"), Text(command, code=True)]
    parts += [made["labels_per_client"]] if "labels_per_client" in made else []
    return Section("spread", "How different the clients' data are", "Data", parts)


def _measures(run: SavedRun) -> Iterator[list[Any]]:
    """List how different the clients' data are, from their label counts and the summary."""
    counts = run.label_counts
    if counts is None or not counts.sum():
        return
    sizes, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    low, middle, high = (int(value) for value in (sizes.min(), np.median(sizes), sizes.max()))
    yield ["training rows of a client", f"{low:,} to {high:,}", f"median {middle:,}"]
    yield [
        "classes of a client",
        f"{held.min()} to {held.max()} of {counts.shape[1]}",
        f"{held.mean():.1f} on average",
    ]
    some = counts[sizes > 0]
    shares = some / some.sum(axis=1, keepdims=True)
    distance = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    yield [
        "distance of label shares",
        f"{float(distance.mean()):.3f}",
        "share of a client's rows that would need another label to match everyone's shares, mean over "
        "clients; small clients have some by chance",
    ]
    if (wpsi := run.summary.get("weighted_psi")) is not None:
        about = (
            "population stability index of label shares, weighted by size; 0 if clients have the same shares"
        )
        yield ["weighted PSI", f"{wpsi:.3f}", about]
    if run.groups is not None:
        yield ["known groups", str(len(np.unique(run.groups))), "that the partition made"]


def _personal(personal: Mapping[str, Any] | None) -> Section | None:
    if not personal:
        return None
    auto = (
        "; under auto each client uses the one that its own held-out rows favour"
        if personal["choice"] == "auto"
        else ""
    )
    keys = ("mean_client_accuracy", "balanced_accuracy", "macro_f1", "ad")
    rows = [
        [layer, (personal.get("clients") or {}).get(layer), *(figures.get(key) for key in keys)]
        for layer, figures in (personal.get("figures") or {}).items()
    ]
    first = heads(
        "layer", "clients that use it|whole", "mean client accuracy|number", "balanced accuracy|number"
    )
    columns = [*first, Column("macro F1", "number"), Column("AD (lower is better)", "number", _ABOUT["ad"])]
    table = Table(
        "table-personal", "Means over clients with each layer.", columns, rows, note=f"{_ABOUT['ad']}."
    )
    parts: list[Any] = [
        Text(f"Chosen: {personal['choice']}. Figures if every client used one layer{auto}."),
        table,
    ]
    if failed := personal.get("failures"):
        lines = [Text(f"client {one['client']}: {one['reason']}") for one in failed[:_LISTED]]
        parts.append(
            More("personal-failures", f"{plural(len(failed), 'client')} could not make a layer", lines)
        )
    return Section("personal", "Personal layers", "Personal", parts)


_COSTS = ("seconds", "bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled")


def _cost(name: str, run: SavedRun) -> list[Any]:
    if not run.summary and run.rounds:  # not finished: what its rounds add up to
        return [name, *(sum(line.get(key) or 0 for line in run.rounds) for key in _COSTS)]
    return [name, *(run.summary.get(key) for key in _COSTS)]


def _costs(run: SavedRun, title: str, made: dict[str, Picture]) -> Section | None:
    rows = [_cost(name, each) for name, each in [(title, run), *run.compared.items()]]
    for key, words in (("proof", "the proof"), ("personal", "personal layers")):
        if part := run.summary.get(key):
            rows.append([words, *(part.get(each) for each in _COSTS)])
    if not any(row[1] is not None or row[2] is not None for row in rows):
        return None
    columns = heads(
        "part",
        "time|seconds",
        "sent to clients|bytes",
        "received|bytes",
        "sent, unbundled|bytes",
        "received, unbundled|bytes",
    )
    caption = "What each part took. Unbundled: as if every client were a machine of its own."
    drawn = [made[name] for name in ("bytes", "seconds") if name in made]
    parts: list[Any] = [
        Table("table-costs", caption, columns, rows, sortable=False),
        *([Pair(drawn)] if drawn else []),
    ]
    return Section("costs", "Bytes and seconds", "Costs", parts)


def _again(config: Mapping[str, Any]) -> Section | None:
    if not config:
        return None
    command = _command(config)
    said = "This command repeats the run, with the same results for the same seed:"
    parts: list[Any] = (
        [Text(said), Text(command, code=True)]
        if command
        else [Text("The run was made from Python, with fedclust.simulate; its settings are below.")]
    )
    rows = [[key, value] for key, value in _flat(config) if key != "overrides"]
    table = Table("table-config", "config.yaml.", [Column("key"), Column("value", looks="long")], rows)
    parts.append(More("config", f"Configuration, {plural(len(rows), 'setting')}", [table]))
    return Section("config", "Run it again", "Run again", parts)


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
