"""Compute what the page of a run shows, from the files in its folder, for the template ``run.md``."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedclust.metrics import error_of
from fedclust.results import report, saved_run
from fedclust.results.charts import chart
from fedclust.results.charts.run import meaning_of, pictures, rewards_of, small_arrays
from fedclust.results.comparison import LOWER
from fedclust.results.saved_run import MOST_ACCURACIES, MOST_CLIENTS, SavedRun, ThinnedRun, evenly
from fedclust.results.summary import (
    collapsed_line,
    decision_line,
    leaving_line,
    of_all,
    rules_lines,
    warning_lines,
)
from fedclust.support.checks import capitalised, few, plural
from fedclust.typing import IntArray

_MOST_FAILURES, _MOST_MOVES = 2_000, 60_000
_MOST_LABEL_COUNTS = 40_000  # clients times classes; larger tables of labels are left out
_NEITHER = ("seconds", "bytes_down", "bytes_up", "num_clusters", "epsilon", "delta")
_COSTS = ("seconds", "bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled")
_LEFT_OUT = (
    "label_counts",
    "prior_shift",
    "share_weighted_accuracy",
    "bytes_down_unbundled",
    "confusion",
    "confusion_none",
    "sums",
)
_WHOLE = ("client", "group", "num_train", "num_test", "took_part", "failures")


def view_run(folder: Path) -> dict[str, Any]:
    """Read a run's folder, finished or not.

    Returns
    -------
    The argument of :func:`fedclust.results.page.document`.

    Raises
    ------
    FileNotFoundError
        If it does not hold a run.
    ValueError
        If a file in it cannot be read.
    """
    run = ThinnedRun(folder)
    summary, choices = run.summary, run.config.get("choices") or {}
    words = run.target.words
    title = str(summary.get("strategy") or choices.get("strategy") or folder.name)
    page_of = title, choices.get("dataset"), folder.resolve().name
    finished, total = is_finished(run), run.config.get("rounds") or summary.get("rounds")
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    small = small_arrays(run)
    made = {picture.name: picture for picture in pictures(run, small) if not picture.file_only}
    verdict = [text for line in report.verdict_lines(run) if (text := str(line))] if finished else []
    noted = [collapsed_line(summary), decision_line(summary)]
    noted += [
        report.newcomers_line(summary),
        report.drift_line(run.rounds),
        report.went_back_line(run.rounds),
    ]
    noted += [*warning_lines(summary), leaving_line(summary), *rules_lines(summary)]
    costs = [_cost(name, each) for name, each in [(title, run), *run.compared.items()]]
    for key, what in (("proof", "the proof"), ("personal", "personal layers")):
        if part := summary.get(key):
            costs.append([what, *map(part.get, _COSTS)])
    of = f"of {int(total):,}" if total and not finished else ""
    width = 0 if run.label_counts is None else run.label_counts.shape[1]
    named = small.get("class_names", ())
    classes = [str(name) for name in (named if len(named) >= width else range(width))]
    settings = [
        (key, value)
        for key, value in saved_run.flat(run.config)
        if key != "overrides"
        and not key.startswith("tracker.")  # addresses and tokens; a page is shown to others
    ]
    return {
        "kind": "run",
        "run": run,
        "title": title,
        "document": " · ".join(str(each) for each in page_of if each),
        "finished": finished,
        "done": done,
        "failed": run.failed,
        "total": int(total or 0),
        "verdict": [*headline(verdict[0]), *verdict[1:]] if verdict else [],
        "noted": [str(note) for note in noted if note],
        "tiles": _tiles(run, done, of, costs[0]),
        "facts": list(_facts(run)),
        "pictures": made,
        "changes": [{"reason": ""} | change for change in run.changes if change["round"] > 0],
        "sites": report.site_rows(summary),
        "everyone": report.everyone(words),
        "site_columns": [[title, "long"] for title in report.site_columns(summary)],
        "words": words,
        "ended": _figures(title, summary) if "strategy" in summary else None,
        "clusters": list(_clusters(run, classes)),
        "beside": list(_beside(run)),
        "across": _across(small, classes),
        "labels": _label_shares(run, classes),
        "clients": _clients(run),
        "matrices": _matrices(run, made),
        "rewards": list(_rewards(small)),
        "spread": _spread(run),
        "costs": costs,
        "settings": [[key, "null" if value is None else str(value)] for key, value in settings],
        "data": _histories(run, classes),
    }


def headline(verdict: str) -> list[str]:
    """Split a verdict or a sweep's line into the page's headline, its statement, and its figures and reasons.

    Examples
    --------
    >>> headline("Train one model for all: auto found no groups; 0 of 9 clients are better alone.")
    ['Train one model for all', 'auto found no groups; 0 of 9 clients are better alone.']
    >>> headline("FMCL's 2 clusters have 0.606 instead of 0.347 of test rows predicted right (+0.258).")
    ["FMCL's 2 clusters have 0.606 instead of 0.347", 'of test rows predicted right (+0.258).']
    >>> headline("FMCL has the highest accuracy over 2 seeds, 0.899 ± 0.033; next FedAvg, 0.544 ± 0.024")
    ['FMCL has the highest accuracy over 2 seeds', '0.899 ± 0.033; next FedAvg, 0.544 ± 0.024']
    """
    first = re.match(r"(.{12,}?)(?:[:;.] +|,? +(?=\(|of test rows )|, (?=\d))(.+)", verdict)
    return [*first.groups()] if first else [verdict]


def is_finished(run: SavedRun) -> bool:
    """Return whether a run and all strategies that it is compared with have finished."""
    compared = set(run.config.get("compare") or ()) - {run.summary.get("strategy")}
    whole = "strategy" in run.summary and compared <= (run.summary.get("compare") or {}).keys()
    return whole and not run.failed


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


def _accuracy(run: SavedRun) -> str:
    value = run.summary.get("mean_client_accuracy")
    return report.number(_last(run, "mean_client_accuracy") if value is None else value)


def _tiles(run: SavedRun, done: int, of: str, costs: Sequence[Any]) -> list[tuple[str, str, str]]:
    sizes = [] if run.assignment is None else np.unique(run.assignment, return_counts=True)[1].tolist()
    beside = few((f"{name} {_accuracy(each)}" for name, each in run.compared.items()), 4)
    parts = f"of {report.some(sizes, 6)} clients" if len(sizes) > 1 else ""
    last = "" if "strategy" in run.summary else ", last round"
    share, number = run.target.words.share, _last(run, "num_clusters")
    return [
        (f"mean client {share}{last}", _accuracy(run), beside),
        ("cluster" if number == 1 else "clusters", report.number(number, 0), parts),
        ("rounds", f"{done:,}", of),
        ("sent and received", report.size((costs[2] or 0) + (costs[3] or 0)), ""),
        ("time", report.duration(costs[1]), ""),
    ]


def _facts(run: SavedRun) -> Iterator[tuple[str, str]]:
    if run.assignment is not None:
        yield "clients", f"{len(run.assignment):,}"
    choices = run.config.get("choices") or {}
    for name in ("dataset", "partition", "model", "aggregator", "selection", "personal", "engine"):
        if (value := choices.get(name)) not in (None, "own"):
            yield name, str(value)
    for name in ("seed", "participation"):
        if (value := run.summary.get(name, run.config.get(name))) is not None:
            yield name, str(value)
    yield from made_facts([run])


def made_facts(runs: Sequence[SavedRun]) -> Iterator[tuple[str, str]]:
    """List with what runs were made, and when the last of them finished; nothing for older runs."""
    known = [made for run in runs if (made := run.summary.get("made"))]
    if not known:
        return
    versions = [", ".join(f"{name} {number}" for name, number in each["versions"].items()) for each in known]
    commits = [each["commit"] for each in known if each["commit"]]
    machines = [f"{each['cpu']}, {plural(each['cores'], 'core')}" for each in known]
    for name, texts in (("made with", versions), ("commit", commits), ("on", machines)):
        if texts:
            yield name, few(dict.fromkeys(texts), 3, "; ")
    yield "finished", max(each["time"] for each in known)


def _figures(title: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    summaries = {title: summary, **summary.get("compare", {})}
    rows = []
    for key, name, found, texts in report.figures_of(list(summaries.values())):
        way = -1 if key in LOWER else 1
        # Equal figures may not be equal to the last bit.
        firsts = [way * round(values[0], 12) if values else None for values in found]
        some = [each for each in firsts if each is not None]
        best = max(some) if key not in _NEITHER and max(some) > min(some) else None
        looks = ["best" if first is not None and first == best else "" for first in firsts]
        cells = [{"text": text, "looks": look} for text, look in zip(texts, looks, strict=True)]
        rows.append({"key": key, "title": name, "cells": cells})
    return {"names": list(summaries), "rows": rows}


def _beside(run: SavedRun) -> dict[str, pd.DataFrame]:
    """Return the tables of clients of the compared runs that have the same clients."""
    total = 0 if run.assignment is None else len(run.assignment)
    tables = {name: each.clients for name, each in run.compared.items()}
    return {name: table for name, table in tables.items() if table is not None and len(table) == total}


def labels_apart(counts: IntArray, everyone: IntArray, tests: int) -> list[int]:
    """List up to four classes of which a group has a larger or smaller share than by chance.

    A share is beyond chance if n rows drawn without replacement from all N would be as far from everyone's
    share p with a probability below 1 %, corrected for all `tests`: a normal bound with standard deviation
    √(p (1 − p) / n · (N − n) / (N − 1)). Differences below a percentage point or a tenth of p are never
    listed.

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
    from scipy.special import ndtri  # scipy.stats, which has it too, takes long to import

    share = everyone / whole
    apart = counts / n - share
    chance = -ndtri(0.005 / tests) * np.sqrt(share * (1 - share) / n * (whole - n) / (whole - 1))
    named = np.abs(apart) > np.maximum.reduce([chance, np.full(len(share), 0.01), 0.1 * share])
    return [int(label) for label in np.argsort(-np.abs(apart), kind="stable")[:4] if named[label]]


def class_name(name: str) -> str:
    """Return a class's name for use on its own; a number becomes ``class 3``."""
    return f"class {name}" if name.isdigit() else name


def _clusters(run: SavedRun, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Make a row per cluster: its clients' means, and what sets it apart; None where unknown."""
    if run.assignment is None:
        return
    counts, beside = run.label_counts, _beside(run)
    tests = {one["cluster"]: one for one in (run.summary.get("proof") or {}).get("clusters", ())}
    if run.summary.get("sites"):  # which chose by other rows: no cluster was tested
        tests = {}
    clusters, sizes = np.unique(run.assignment, return_counts=True)
    among = report.among(run.summary)
    for cluster, size in zip(clusters.tolist(), sizes.tolist(), strict=True):
        members = np.flatnonzero(run.assignment == cluster)
        label = f"{plural(size, 'client')} of cluster {cluster}: show them in the table"
        button = {"text": f"{size:,}", "sort": size, "button": f"members-{cluster}", "label": label}
        row: dict[str, Any] = {"cluster": among or cluster, "clients": button}
        if run.client_names is not None:
            row["who"] = few([run.client_names[member] for member in members], 6)
        if run.groups is not None:
            groups, counted = np.unique(run.groups[members], return_counts=True)
            most = np.argsort(-counted, kind="stable")[:8]
            row["groups"] = ", ".join(f"{groups[place]} ({counted[place]})" for place in most)
        if counts is not None and len(clusters) > 1:
            own, everyone = counts[members].sum(axis=0), counts.sum(axis=0)
            named = [
                f"{class_name(classes[label])}: {report.percent(own[label] / own.sum())} "
                f"(all: {report.percent(everyone[label] / everyone.sum())})"
                for label in labels_apart(own, everyone, counts.size // len(counts) * len(clusters))
            ]
            row["apart"] = ", ".join(named) or "none, beyond chance"
        if run.clients is not None:
            own, hidden = run.clients.iloc[members], _not_known(run)
            if "num_train" not in hidden:
                row["samples"] = int(own["num_train"].sum())
            if own["accuracy"].notna().any() and "accuracy" not in hidden:
                row["accuracy"] = own["accuracy"].mean()
                row["range"] = report.span((own["accuracy"].min(), own["accuracy"].max()))
            row["loss"] = own["loss"].mean() if own["loss"].notna().any() else None
        for name, table in beside.items():
            value = table["accuracy"].iloc[members].mean()
            row[f"in {name}"] = value if np.isfinite(value) else None
        if one := tests.get(cluster):
            text = f"{report.number(one['gain'])}, {'shown' if one['proven'] else 'not shown'}"
            row["gain"] = {"text": text, "sort": one["gain"]}
        yield row


def _across(small: Mapping[str, NDArray], classes: Sequence[str]) -> dict[str, Any] | None:
    if "confusion" not in small or len(small["confusion_clusters"]) < 2:
        return None
    counts, clusters = small["confusion"], small["confusion_clusters"].astype(int).tolist()
    totals, right = counts.sum(axis=(2, 3)), np.trace(counts, axis1=2, axis2=3)
    shares = (right / np.maximum(totals, 1)).astype(object)
    shares[totals == 0] = None
    rows = [[cluster, *row] for cluster, row in zip(clusters, shares.tolist(), strict=True)]
    names = [f"model of {cluster}" for cluster in clusters]
    return {"names": names, "rows": rows, "misread": list(misread(counts, clusters, classes))}


def misread(counts: IntArray, clusters: Sequence[int], classes: Sequence[str]) -> Iterator[str]:
    """Describe the classes that two clusters' models read differently, each right for its own clients.

    Both models predict most of their own clients' rows of such a class right, but one of them predicts most
    of the other cluster's rows as one other class. A class that a cluster hardly has is never one.

    Parameters
    ----------
    counts
        Clusters of the clients, clusters of the models, labels, predictions; shape (m, m, C, C).
    clusters
        Indices of the m clusters.
    classes
        Names of the C classes.
    """
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    most = np.where(shares.max(axis=-1) > 0.5, shares.argmax(axis=-1), -1)
    right = most == np.arange(len(classes))
    for here, there in np.argwhere(~np.eye(len(clusters), dtype=bool)).tolist():
        read = most[here, there]
        other = right[here, here] & right[there, there] & ~right[here, there] & (read >= 0)
        if pairs := [f"{classes[at]} as {classes[read[at]]}" for at in np.flatnonzero(other).tolist()]:
            yield f"The model of cluster {clusters[there]} reads cluster {clusters[here]}'s {few(pairs)}."


def _label_shares(run: SavedRun, classes: Sequence[str]) -> dict[str, Any] | None:
    counts, assignment = run.label_counts, run.assignment
    clusters = [] if assignment is None else np.unique(assignment).tolist()
    if counts is None or len(clusters) < 2 or len(classes) > 30:
        return None
    sums = [*(counts[assignment == cluster].sum(axis=0) for cluster in clusters[:40]), counts.sum(axis=0)]
    shares = [(each / max(1, each.sum())).tolist() for each in sums]
    rows = [[name, *row] for name, row in zip([*clusters[:40], "all clients"], shares, strict=True)]
    return {"names": list(classes), "rows": rows, "most": float(np.max(shares))}


def _not_known(run: SavedRun) -> set[str]:
    """Return the columns that a private run only fills: with 0, or with one mean for all clients."""
    table, privacy = run.clients, run.summary.get("privacy")
    if table is None or not isinstance(privacy, dict):
        return set()
    hidden = {"num_test", "accuracy"} if of_all(run.summary) else set()
    return hidden if table["num_train"].any() else hidden | {"num_train"}


def _clients(run: SavedRun) -> dict[str, Any] | None:
    if run.assignment is None:
        return None
    total, table = len(run.assignment), run.clients
    if table is None:  # not finished: only clusters and the latest accuracies
        table = pd.DataFrame({"client": np.arange(total), "cluster": run.assignment})
        known = [line["client_accuracy"] for line in run.rounds if line.get("client_accuracy")]
        if known and len(known[-1]) <= total:
            table["accuracy"] = pd.Series(known[-1], dtype=float).reindex(table.index)
    ends = [name for name in table if str(name).endswith(("_low", "_high"))]
    unknown = [name for name in table if name == "group" and table[name].isna().all()]
    words = run.target.words
    ends += [error_of(key) for key, _, _ in words.figures]
    dropped = [
        *_not_known(run),
        *ends,
        *unknown,
        *_LEFT_OUT,
        *words.without,
        *(f"{name}_none" for name in words.without),
    ]
    table = table.drop(columns=dropped, errors="ignore")
    place = list(table).index("accuracy") + 1 if "accuracy" in table else len(table.columns)
    for name, other in reversed(_beside(run).items()):
        table.insert(place, f"{words.share} of {name}", other["accuracy"].to_numpy())
    if len(table) == total:
        table["took_part"], table["failures"] = tally(run.rounds, total)
    table = table.iloc[:MOST_CLIENTS]
    cells = table.astype(object).where(table.notna(), None)
    named = [f", {name}" for name in table["name"]] if "name" in table else [""] * len(table)
    buttons = [
        {"text": f"{at}", "sort": at, "button": f"client-{at}", "label": f"client {at}{name}: history"}
        for at, name in zip(table["client"], named, strict=True)
    ]
    cells["client"] = pd.Series(buttons, index=cells.index)
    return {
        "total": total,
        "columns": [[key, _kind_of(str(key), table[key])] for key in table],
        "rows": cells.to_numpy().tolist(),
        "ids": [f"row-{client}" for client in table["client"]],
        "clusters": np.unique(table["cluster"]).tolist(),
    }


def _kind_of(key: str, column: pd.Series) -> str:
    if key in ("cluster", "name"):
        return key
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return "text"
    return "whole" if key in _WHOLE else "bytes" if key.startswith("bytes_") else "number"


def _histories(run: SavedRun, classes: Sequence[str]) -> dict[str, Any]:
    """Collect what the script shows of a client: moves, failures, accuracies and labels."""
    moves: list[list[list[int]]] = []
    total = 0
    for change in run.changes:
        assignment = change["assignment"][:MOST_CLIENTS]
        moves += [[] for _ in assignment[len(moves) :]]  # for clients that joined
        for client, cluster in enumerate(map(int, assignment)):
            if not moves[client] or moves[client][-1][1] != cluster:
                moves[client].append([change["round"], cluster])
                total += 1
        if total > _MOST_MOVES:  # inside the loop, so that the lists do not grow with the rounds
            kept = max(1, _MOST_MOVES // len(moves))
            moves = [each[-kept:] for each in moves]
    failures = [
        [each["client"], line["round"], str(each.get("phase", "")), str(each.get("reason", ""))[:200]]
        for line in run.rounds
        for each in line.get("failures", ())
    ]
    most = MOST_ACCURACIES // max(1, len(run.compared))  # so that many compared runs take no more room
    found = [_client_accuracies("", run, MOST_ACCURACIES)]
    found += [_client_accuracies(name, each, most) for name, each in run.compared.items()]
    counts, words = run.label_counts, run.target.words
    rounds, values = run.series("mean_client_accuracy")
    chosen = evenly(len(rounds), 300)
    empty = chart.curves([chart.Line("client", [0], [0])], "round", marks=[(0, "")])
    return {
        "moves": moves,
        "failures": failures[-_MOST_FAILURES:],
        "accuracies": [each for each in found if each],
        "labels": None if counts is None or counts.size > _MOST_LABEL_COUNTS else counts.tolist(),
        "classes": [class_name(name) for name in classes],
        "accuracy": capitalised(words.share),
        "class": words.bin,
        "mean": [rounds[chosen].tolist(), np.round(values[chosen], 5).tolist()],
        "history": chart.specification(empty),
    }


def _client_accuracies(name: str, run: SavedRun, most: int) -> dict[str, Any] | None:
    recorded = [line for line in run.rounds if line.get("client_accuracy")]
    if not recorded:
        return None
    width = len(recorded[-1]["client_accuracy"])
    recorded = [line for line in recorded if len(line["client_accuracy"]) <= width]
    kept = [recorded[place] for place in saved_run.shown(len(recorded), width, most)]
    values = np.full((len(kept), width), np.nan)
    for row, line in zip(values, kept, strict=True):
        known = line["client_accuracy"]  # lacks clients that joined later
        row[: len(known)] = known
    return {"name": name, "rounds": [line["round"] for line in kept], "values": saved_run.pack(values)}


def _matrices(run: SavedRun, made: Mapping[str, chart.Picture]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    left_out = []
    if (now := run.assignment) is not None:
        for name, values in run.matrices():
            if np.shape(values) == (len(now), len(now)) and not name.startswith(("cohort_", "cross_site")):
                if name not in made:
                    left_out.append(name)
                    continue
                same = now[:, None] == now  # of all pairs only if there is a matrix of them
                fine = np.isfinite(values) & ~np.eye(len(now), dtype=bool)
                parts = [values[fine & which] for which in (same, ~same)]
                means = [float(part.mean()) if part.size else None for part in parts]
                rows.append([made[name].title, *means, meaning_of(name)[0]])
    return {"rows": rows, "left_out": left_out}


def _rewards(small: Mapping[str, NDArray]) -> Iterator[list[Any]]:
    if found := rewards_of(small):
        clients, scores, losses, _ = found
        for place in evenly(len(clients), 1_500):
            client = int(clients[place])
            yield [
                {"text": f"client {client}", "sort": client},
                float(scores[place]),
                float(losses[place].mean()),
            ]


def _spread(run: SavedRun) -> dict[str, Any] | None:
    """Measure how different the clients' data are by their label counts; None without any."""
    counts = run.label_counts
    if counts is None or not counts.sum():
        return None
    sizes, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    some = counts[sizes > 0]
    shares = some / some.sum(axis=1, keepdims=True)
    distance = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    return {
        "sizes": [int(sizes.min()), int(np.median(sizes)), int(sizes.max())],
        "held": [int(held.min()), float(held.mean()), int(held.max())],
        "classes": counts.shape[1],
        "distance": float(distance.mean()),
        "groups": 0 if run.groups is None else len(np.unique(run.groups)),
    }


def _cost(name: str, run: SavedRun) -> list[Any]:
    if not run.summary and run.rounds:  # not finished: the sum over its rounds
        return [name, *(sum(line.get(key) or 0 for line in run.rounds) for key in _COSTS)]
    return [name, *map(run.summary.get, _COSTS)]


def command_line(overrides: Sequence[object]) -> str:
    """Write a command line with the overrides, except those of the results folder and a tracker's own."""
    keys = {str(text): str(text).partition("=")[0].lstrip("+") for text in overrides}
    left_out = ("output_dir", "resume")
    kept = [text for text, key in keys.items() if key not in left_out and not key.startswith("tracker.")]
    return " ".join(["fedclust", *map(shlex.quote, kept)])
