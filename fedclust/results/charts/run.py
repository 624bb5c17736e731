"""The charts of one run, made from its folder: its page and ``plots/`` show the same ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedclust.results.charts.chart import (
    COLOURS,
    MOST_CELLS,
    Line,
    Picture,
    cells,
    cells_from,
    curves,
    data_of,
    points,
    save,
)
from fedclust.results.charts.methods import method_pictures
from fedclust.results.saved_run import SavedRun
from fedclust.results.thinned import ThinnedRun, evenly
from fedclust.typing import FloatArray, IntArray

_MEAN_ACCURACY = "Mean accuracy over clients, each on its own test part"
_MOST_POINTS, _MOST_MARKS, _MOST_MATRICES, _MOST_NUMBERS = 1_500, 40, 10, 160

_MEANING = {
    "interaction": ("larger is more alike", "sequential"),
    "affinity": ("larger is more alike", "sequential"),
    "distances": ("smaller is more alike", "reversed"),
    "evidence": ("above 0: evidence that two clients differ; below 0, they look alike", "diverging"),
    "cosines": ("cosine of two clients' updates: larger is more alike", "sequential"),
    "pair_scores": ("smaller is more alike", "reversed"),
}
KINDS = tuple(_MEANING)
"""Names of the matrices whose meaning is known."""


def meaning_of(name: str) -> tuple[str, str]:
    """Return which end of a matrix's scale means alike, and its colours; empty for an unknown one."""
    return next((each for key, each in _MEANING.items() if name.startswith(key)), ("", "sequential"))


def larger_is_alike(name: str) -> bool | None:
    """Whether a larger value means that two clients are more alike; None for an unknown matrix."""
    meaning, colours = meaning_of(name)
    return (colours == "sequential") if meaning else None


def draw(folder: Path) -> list[Path]:
    """Draw all charts that the files of a run allow, into its ``plots/``.

    Returns
    -------
    The PNG files written, in the order drawn.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold a run.
    ValueError
        If a file in it cannot be read.
    """
    found = [each for each in pictures(ThinnedRun(folder)) if not each.page_only]
    return [save(each.chart, folder / "plots" / f"{each.name}.png", title=each.title) for each in found]


def small_arrays(run: SavedRun) -> dict[str, NDArray]:
    """Read the arrays of ``matrices.npz`` but the matrices of all pairs of clients that are not a split's."""
    clients = 0 if run.assignment is None else len(run.assignment)
    return {
        name: values
        for name, values in run.matrices()
        if name.startswith(("cohort_", "affinity_round_")) or np.shape(values) != (clients, clients)
    }


def pictures(run: SavedRun, small: Mapping[str, NDArray] | None = None) -> Iterator[Picture]:
    """Make the charts of a run, in the order of its page.

    Parameters
    ----------
    run
        The run.
    small
        From :func:`small_arrays`, if it was read already.
    """
    small = small_arrays(run) if small is None else small
    yield from _rounds(run)
    yield from _accuracies(run)
    yield from _matrices(run)
    yield from method_pictures(run, small)
    names = [str(name) for name in small["class_names"]] if "class_names" in small else None
    if "confusion" in small:
        yield _answers(small["confusion"], small["confusion_clusters"], names)
    if run.label_counts is not None and run.assignment is not None:
        yield _labels_per_cluster(run.label_counts, run.assignment, names)
        yield label_counts(run.label_counts, run.assignment, names, run.client_names, "cluster")


def _rounds(run: SavedRun) -> Iterator[Picture]:
    changes = [
        (change["round"], str(change.get("reason", ""))) for change in run.changes if change["round"] > 0
    ]
    marks = changes if len(changes) <= _MOST_MARKS else []
    evaluated = run.series("evaluated_clients")[1]
    note = "Dotted lines mark changes of the clusters. " if marks else ""
    if evaluated.size:
        note += (
            f"Before the last round these are means over a sample of up to {evaluated.max():.0f} clients, "
            "drawn anew each time."
        )
    for name, key, title, form, page_only in (
        ("accuracy_per_round", "mean_client_accuracy", _MEAN_ACCURACY, "number", False),
        ("loss", "loss", "Training loss", "number", True),
        ("test_loss", "test_loss", "Test loss", "number", True),
        ("clusters_per_round", "num_clusters", "Clusters", "whole", True),
        ("bytes", "bytes_up", "Received from clients in each round", "bytes", True),
        ("seconds", "seconds", "Seconds of each round", "number", True),
    ):
        lines = []
        for course, each in run.side_by_side:
            rounds, values = each.series(key)
            if rounds.size and not (key == "bytes_up" and not values.any()):
                chosen = evenly(len(rounds), _MOST_POINTS)
                lines.append(Line(course, rounds[chosen], values[chosen]))
        if not lines or (form == "whole" and max(np.max(line.y) for line in lines) < 2):
            continue
        noted = marks if name in ("accuracy_per_round", "clusters_per_round") else []
        some = [course for course, _ in run.side_by_side]
        chart = curves(
            lines, "round", marks=noted, step=form == "whole", zero=form == "whole", form=form, names=some
        )
        yield Picture(name, title, chart, note if name == "accuracy_per_round" else "", page_only)


def _accuracies(run: SavedRun) -> Iterator[Picture]:
    """Draw the clients' accuracies from the worst client to the best, of the run and those compared.

    The value at x percent is that of a client: the least accuracy that x percent of the clients do not
    exceed.
    """
    percents = np.arange(101)
    lines = []
    for name, each in run.side_by_side:
        for title, column in {name: "accuracy", f"{name}, personal": "personal_accuracy"}.items():
            if each.clients is not None and column in each.clients:
                values = each.clients[column].to_numpy(dtype=float)
                values = values[np.isfinite(values)]
                if values.size > 1:
                    lines.append(
                        Line(title, percents, np.quantile(values, percents / 100, method="inverted_cdf"))
                    )
    if lines:
        yield Picture(
            "accuracy_ecdf",
            "Accuracy of the clients, from the worst to the best",
            curves(lines, "% of clients"),
            "At 10 %: one client in ten has this accuracy or less, on its own test part.",
        )


def _matrices(run: SavedRun) -> Iterator[Picture]:
    if run.assignment is None:
        return
    shape = 2 * run.assignment.shape
    names = [
        name
        for name, values in run.matrices()
        if np.shape(values) == shape and not name.startswith("cohort_")
    ]
    # The matrices at the end come last in the file, those at earlier splits before them.
    plain = [name for name in names if "_round_" not in name][:_MOST_MATRICES]
    early = [name for name in names if "_round_" in name][: _MOST_MATRICES - len(plain)]
    for name, values in run.matrices():
        if name in plain or name in early:
            yield matrix_picture(name, values, run.assignment, run.groups, run.client_names)


def matrix_picture(
    name: str,
    values: ArrayLike,
    assignment: IntArray,
    groups: IntArray | None = None,
    names: Sequence[str] | None = None,
) -> Picture:
    """Draw a matrix of all pairs of clients, ordered by cluster and known group, averaged if it is large.

    Bright is alike for every kind of matrix but evidence, which is blue where clients look alike, white at 0
    and red where they differ. The scale covers the middle 98 % of the entries off the diagonal, so that one
    far pair does not wash out the rest. A pair that was not compared is left blank.

    Raises
    ------
    ValueError
        If the matrix is not (K, K).
    """
    table, clients = np.asarray(values, dtype=np.float64), len(assignment)
    if table.shape != (clients, clients):
        raise ValueError(f"matrix {name} must have shape ({clients}, {clients}), got {table.shape}")
    order = np.lexsort((np.zeros(clients) if groups is None else groups, assignment))
    ordered = table[np.ix_(order, order)]
    starts = np.arange(0, clients, -(-clients // MOST_CELLS))
    shrunk = cells_from(ordered, starts, starts) if len(starts) < clients else ordered
    apart = ordered[np.isfinite(ordered) & ~np.eye(clients, dtype=bool)]
    ends = (float(end) for end in np.percentile(apart, [1, 99])) if apart.size else (0.0, 1.0)
    titles = [_client(client, names, groups) for client in order]
    sizes = np.diff([*starts, clients])
    titles = [
        titles[at] + (f" and {size - 1} more" if size > 1 else "")
        for at, size in zip(starts, sizes, strict=True)
    ]
    several = len(np.unique(assignment)) > 1
    bands = assignment[order][starts] if several else ()
    meaning, colours = meaning_of(name)
    same = assignment[order][:, None] == assignment[order][None, :]
    note = f"{meaning[:1].upper()}{meaning[1:]}. " if meaning else ""
    if several and np.isnan(ordered[~same]).all():
        note += "The method compares clients only within their cluster; all other pairs are left blank."
    elif np.isnan(ordered).any():
        note += "Pairs that were not compared are left blank."
    if np.isinf(ordered).any():
        note += " Black: no match, as a model overflows."
    heading = name.replace("_round_", ", round ").replace("_", " ")
    chart = cells(
        shrunk,
        titles,
        titles,
        colours,
        ends=tuple(ends),  # type: ignore[arg-type]
        title="value",
        row_bands=bands,
        column_bands=bands,
        square=True,
        column_title="cluster" if several else "",
    )
    return Picture(name, heading[:1].upper() + heading[1:], chart, note.strip())


def _client(client: int, names: Sequence[str] | None, groups: IntArray | None) -> str:
    named = f" ({names[client]})" if names is not None else ""
    return f"client {client}{named}" + (f", known group {groups[client]}" if groups is not None else "")


def _answers(confusion: IntArray, clusters: IntArray, names: Sequence[str] | None) -> Picture:
    """Draw the predictions of each cluster's model on the test rows of each cluster's clients.

    If two clusters label the same classes differently, the other cluster's model shows a pattern off the
    diagonal.

    Parameters
    ----------
    confusion
        Counts, shape (m, m, C, C): clusters of the clients, clusters of the models, labels, predictions.
    clusters
        Indices of the m clusters.
    names
        Names of the C classes.
    """
    m, classes = confusion.shape[0], confusion.shape[-1]
    shares = 100 * confusion / np.maximum(confusion.sum(axis=-1, keepdims=True), 1)
    table = shares.transpose(0, 2, 1, 3).reshape(m * classes, m * classes)
    named = list(names) if names is not None else [str(label) for label in range(classes)]
    rows = [f"clients of cluster {each}, class {name}" for each in clusters for name in named]
    columns = [f"model of cluster {each} says {name}" for each in clusters for name in named]
    bands = np.repeat(clusters, classes)
    chart = cells(
        table,
        rows,
        columns,
        "labels",
        ends=(0, 100),
        title="% of the class",
        row_bands=bands,
        column_bands=bands,
        row_title="clients of cluster: their class",
        column_title="model of cluster: its answer",
        square=True,
    )
    note = (
        "Right answers are on the diagonal of each block, classes from top to bottom and from left to right."
    )
    return Picture(
        "answers_between_clusters",
        "What each cluster's model answers on each cluster's test rows",
        chart,
        note,
    )


def _labels_per_cluster(counts: IntArray, assignment: IntArray, names: Sequence[str] | None) -> Picture:
    clusters, members = np.unique(assignment, return_counts=True)
    sums = np.stack([counts[assignment == cluster].sum(axis=0) for cluster in clusters])
    shares = 100 * sums / np.maximum(sums.sum(axis=1, keepdims=True), 1)
    classes = list(names) if names is not None else [str(label) for label in range(counts.shape[1])]
    rows = [f"{cluster} ({size})" for cluster, size in zip(clusters, members, strict=True)]
    chart = cells(
        shares,
        rows,
        classes,
        ends=(0, float(shares.max()) or 1),
        title="% of its rows",
        row_bands=rows,
        column_bands=classes,
        row_title="cluster (clients)",
        column_title="class",
        numbers=".0f" if shares.size <= _MOST_NUMBERS else "",
    )
    return Picture("labels_per_cluster", "Labels of each cluster", chart, file_only=True)


def label_counts(
    counts: IntArray,
    groups: IntArray | None = None,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    grouped: str = "group",
) -> Picture:
    """Draw each client's training rows of each class; of more than 400 clients evenly spaced ones.

    Parameters
    ----------
    counts
        Training labels of each client, shape (K, C).
    groups
        Known grouping or assignment to order the clients by, shape (K,); by client id unless given.
    class_names, client_names
        Names of the C classes and the K clients; their indices unless given.
    grouped
        What `groups` are.
    """
    clients, classes = counts.shape
    order = np.arange(clients) if groups is None else np.argsort(groups, kind="stable")
    order = order[evenly(clients, 400)]
    named = list(class_names) if class_names is not None else [str(label) for label in range(classes)]
    titles = [
        _client(client, client_names, None) + ("" if groups is None else f", {grouped} {groups[client]}")
        for client in order
    ]
    bands: Any = [] if groups is None else groups[order]
    several = groups is not None and len(np.unique(groups)) > 1
    chart = cells(
        counts[order].T,
        named,
        titles,
        "labels",
        ends=(0, max(1, int(counts.max()))),
        title="rows",
        row_bands=named,
        column_bands=bands if several else [],
        row_title="class",
        column_title=f"clients, ordered by {grouped}" if several else "clients",
    )
    return Picture("labels_per_client", "Training rows of each client by class", chart)


def client_sizes(sizes: IntArray) -> Picture:
    """Draw how many training rows clients have, from the largest to the smallest, shape (K,)."""
    rows = [{"client": place, "rows": int(size)} for place, size in enumerate(np.sort(sizes)[::-1], start=1)]
    x = alt.X(
        "client:Q", title="client, from the largest to the smallest", axis=alt.Axis(tickMinStep=1, grid=False)
    )
    bars = (
        alt.Chart(data_of(rows)).mark_bar(color="#8A8A8A").encode(x, alt.Y("rows:Q", title="training rows"))
    )
    middle = alt.Chart(data_of([{"rows": float(np.median(sizes))}]))
    line = middle.mark_rule(color=COLOURS[1], strokeDash=[6, 3]).encode(y="rows:Q")
    title = f"Training rows of each client; dashed: the median, {np.median(sizes):,.0f}"
    return Picture("quantity_skew", title, bars + line)


def advice_map(distances: FloatArray, groups: IntArray, clients: IntArray) -> Picture:
    """Draw clients so that those whose class prototypes differ more lie further apart.

    Classical multidimensional scaling (Torgerson, 1952); pairs without a distance are taken to be as far
    apart as the others are on average.

    Parameters
    ----------
    distances
        Of the K clients, at least 0, NaN for pairs without a common class, shape (K, K).
    groups
        Group of each client, shape (K,).
    clients
        Their ids, shape (K,).
    """
    from sklearn.decomposition import KernelPCA  # half a second

    known = np.where(np.isnan(distances), np.nanmean(distances), distances)
    known = (known + known.T) / 2
    np.fill_diagonal(known, 0)
    # KernelPCA centres −D²/2 and takes its leading eigenvectors: that is classical multidimensional scaling.
    places = KernelPCA(2, kernel="precomputed").fit_transform(-(known**2) / 2)
    places = np.column_stack([places, np.zeros((len(places), 2 - places.shape[1]))])
    rows = [
        {
            "name": f"client {clients[at]}",
            "group": f"group {groups[at]} ({(groups == groups[at]).sum()})",
            "x": float(places[at, 0]),
            "y": float(places[at, 1]),
        }
        for at in np.argsort(groups, kind="stable")
    ]
    title = "Clients by their class prototypes: further apart, more different"
    return Picture("feature_and_concept_shift", title, points(rows, legend=len(np.unique(groups)) <= 12))
