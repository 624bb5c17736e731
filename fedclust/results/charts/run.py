"""The charts of one run, made from its folder: its page and ``plots/`` show the same ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    intervals,
    points,
    save,
)
from fedclust.results.saved_run import SavedRun, ThinnedRun, evenly
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
    yield from _gains(run.summary)
    if run.label_counts is not None and run.assignment is not None:
        yield _labels_per_cluster(run.label_counts, run.assignment, names)
        yield label_counts(run.label_counts, run.assignment, names, run.client_names, "cluster")


def _gains(summary: Mapping[str, Any]) -> Iterator[Picture]:
    """Draw the gain of each cluster, and of each grouping that was tried, with its interval."""
    tests, trials = (summary.get("proof") or {}).get("clusters") or (), summary.get("trials") or ()
    clusters = [(f"cluster {one['cluster']}", one, bool(one["proven"])) for one in tests]
    looks = []
    for one in trials:
        sizes = " + ".join(map(str, one["sizes"]))
        name = f"look {one['look']}, cluster {one['cluster']}, {sizes} ({one['source']})"
        looks.append((name, one, bool(one["kept"])))
    for name, of, found in (("gains", "cluster", clusters), ("trials", "grouping", looks)):
        shown = [
            (text, one["gain"], *one["interval"], yes) for text, one, yes in found if one.get("interval")
        ]
        if any(low != high for _, _, low, high, _ in shown):
            chart = intervals(shown[:60], "gain in Brier score")
            yield Picture(name, f"Gain of each {of}, with its 95 % interval", chart, page_only=True)


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


# ---- what belongs to one method

_MOST_METHOD_POINTS = 300
_MOST_TRACES, _MOST_PAIRS, _MOST_SPLITS, _MOST_DOTS, _MOST_CLUSTERS = 4, 6, 4, 1_500, 20
_CAME = {1: "proposed", 2: "split"}
_SPLIT = "affinity_round_"


@dataclass(frozen=True, eq=False)
class Plane:
    """The clients of a cluster that was split, in the plane of its spectral embedding.

    Attributes
    ----------
    round
        When it was split.
    clients
        Ids of its n clients, ascending.
    points
        Where each is, shape (n, 2); only distances within one plane mean something.
    clusters
        Cluster of each after the split, shape (n,).
    """

    round: int
    clients: IntArray
    points: FloatArray
    clusters: IntArray


def method_pictures(run: SavedRun, small: Mapping[str, NDArray]) -> Iterator[Picture]:
    """Draw what the arrays and reports of a method allow.

    Parameters
    ----------
    run
        The run.
    small
        Arrays of ``matrices.npz`` by name.
    """
    yield from _convergence(run)
    yield from _choices(small)
    yield from _tests(small.get("separations"))
    yield from _chains(small, run.assignment)
    yield from _splits(small, run)
    yield from _rewards(small)
    names = [name for name, values in small.items() if name.startswith("loss_trace") and len(values)]
    for name in names[:_MOST_TRACES]:
        yield from _trace(name, small[name])


def _choices(small: Mapping[str, NDArray]) -> Iterator[Picture]:
    """Draw the silhouette, or the predicted error relative to one model's, of each number of clusters.

    Source: Clust-PSI-PFL, selection of τ, and :mod:`fedclust.clustering.clust_psi_pfl`.
    """
    for name, numbers, values, title, label in (
        (
            "silhouette",
            "silhouette_numbers",
            "silhouette_scores",
            "Choosing the number of clusters",
            "mean silhouette",
        ),
        (
            "error_ratios",
            "error_ratio_numbers",
            "error_ratios",
            "Choosing the number of clusters by label counts",
            "predicted error, relative to one model's",
        ),
    ):
        if numbers in small and values in small and np.isfinite(small[values]).any():
            x, y = small[numbers], np.asarray(small[values])
            best = int(np.nanargmin(y) if name == "error_ratios" else np.nanargmax(y))
            lines, note = [Line(label, x, y)], f"The best is {int(x[best])} clusters, {y[best]:.3f}."
            if (limit := small.get("error_ratio_limit")) is not None and name == "error_ratios":
                lines.append(Line(f"clients are split below {float(limit):g}", x, np.full(len(x), limit)))
            yield Picture(name, title, curves(lines, "number of clusters", label), note)


def _tests(tests: FloatArray | None) -> Iterator[Picture]:
    """Draw how far apart the groups in the losses were, of a cluster's fits in a round the one that counted.

    Each row of `tests` has the round, the cluster, the number of parts, the separation in units of the
    required one, and 0 for nothing, 1 for a proposal, 2 for a split.
    """
    if tests is None or not np.isfinite(tests[:, 3]).any():
        return
    shown = tests[np.isfinite(tests[:, 3])]
    shown = shown[np.lexsort((-shown[:, 3], -shown[:, 4], shown[:, 1], shown[:, 0]))]
    _, first = np.unique(shown[:, :2], axis=0, return_index=True)
    shown = shown[first]
    lines = [
        Line(f"cluster {int(cluster)}", of[:, 0].astype(int), of[:, 3])
        for cluster in np.unique(shown[:, 1])
        if len(of := shown[shown[:, 1] == cluster])
    ]
    marks = [
        (int(number), f"cluster {int(cluster)}: {_CAME[int(came)]}, {int(parts)} parts")
        for number, cluster, parts, _, came in shown
        if came
    ]
    yield Picture(
        "separations",
        "Do the clients' losses fall into groups?",
        curves(lines, "round", "separation of the nearest two parts", marks=marks, form="tight"),
        "Separation of the nearest two parts; above 1 they are further apart than halves of a continuum.",
    )


def _chains(small: Mapping[str, NDArray], assignment: IntArray | None) -> Iterator[Picture]:
    """Draw how far the outputs are from the second model's along each way between two clients' models.

    Source: FedGMCC, Fig. 2.
    """
    pairs = small.get("curve_pairs")
    if pairs is None or not {"curve_points", "curve_losses", "line_losses"} <= small.keys():
        return
    ways = zip(pairs.astype(int).tolist(), small["curve_losses"], small["line_losses"], strict=True)
    for place, ((first, second), chain, line) in enumerate(ways):
        if place == _MOST_PAIRS:
            return
        where = ""
        if assignment is not None:
            where = ", same cluster" if assignment[first] == assignment[second] else ", apart"
        lines = [
            Line(name, small["curve_points"], y)
            for name, y in (("fitted chain", chain), ("straight line", line))
        ]
        yield Picture(
            "outputs_along_chains" + (f"_{place + 1}" if place else ""),
            f"From client {first}'s model to client {second}'s{where}",
            curves(lines, "position", "squared distance", form="tight", zero=True),
            "Squared distance from the second model's class probabilities on random inputs; bend at 0.5.",
        )


def _convergence(run: SavedRun) -> Iterator[Picture]:
    """Draw how far each interaction matrix changed in a round, if the run is FedGWC's.

    Source: FedGWC, Figure 4 and Section 4.3. A cluster that is split starts anew at 1.
    """
    values: dict[int, dict[int, float]] = {}
    marks: list[tuple[float, str]] = []
    for line in run.rounds:
        for name, report in (line.get("strategy") or {}).items():
            if not isinstance(report, Mapping) or "mse" not in report:
                continue
            cluster = int(name)
            if "pair_coverage" in report and report["mse"] == 1 and cluster not in values:
                continue  # a cluster in which no two clients ever met stays at 1
            values.setdefault(cluster, {})[line["round"]] = report["mse"]
            if report.get("split"):
                marks.append((line["round"], f"cluster {cluster} was split"))
    if not values:
        return
    shown = dict(sorted(values.items())[:_MOST_CLUSTERS])
    rounds = sorted({moment for own in shown.values() for moment in own})
    kept = {rounds[place] for place in evenly(len(rounds), _MOST_METHOD_POINTS)} | {
        int(moment) for moment, _ in marks
    }
    lines = []
    for cluster, own in shown.items():
        mine = sorted(kept & own.keys())
        lines.append(Line(f"cluster {cluster}", mine, [own[moment] for moment in mine]))
    tolerance = ((run.config.get("strategy") or {}).get("parameters") or {}).get("tolerance")
    if tolerance:
        ends = [rounds[0], rounds[-1]]
        lines.append(Line("split is tried below", ends, [tolerance, tolerance]))
    some = f" The first {len(shown)} of {len(values)} clusters." if len(shown) < len(values) else ""
    yield Picture(
        "interaction_convergence",
        "Convergence of the interaction matrix",
        curves(lines, "round", "mean squared change", marks=marks, log=True, form="tight"),
        "Mean squared change of a cluster's matrix in a round, on a logarithmic scale of at most eight "
        "powers "
        f"of ten. A cluster that is split starts anew at 1.{some}",
    )


def planes_of_splits(
    affinities: Mapping[int, FloatArray], changes: Sequence[Mapping[str, Any]]
) -> Iterator[Plane]:
    """Compute the plane of each split of more than three clients, in the order of rounds.

    Source: FedGWC, Figure 3. The coordinates are eigenvectors 2 and 3 of the affinities' normalised
    Laplacian, so two clients are near each other if the others perceive them alike.

    Parameters
    ----------
    affinities
        By round of a split, affinities before it, NaN for pairs outside the cluster, shape (K, K).
    changes
        Assignments over time, as in ``clusters.json``.
    """
    after = {change["round"]: np.asarray(change["assignment"]) for change in changes}
    for moment, affinity in sorted(affinities.items()):
        members = np.flatnonzero(np.isfinite(affinity.diagonal()))
        if moment not in after or len(members) <= 3:
            continue
        from sklearn.manifold import spectral_embedding  # half a second, which other methods' pages save

        from fedclust.clustering.spectral import SMALLEST

        graph = np.maximum(affinity[np.ix_(members, members)], SMALLEST)
        places = spectral_embedding(graph, n_components=2, random_state=0, drop_first=True)
        yield Plane(moment, members, places, after[moment][members])


def _splits(small: Mapping[str, NDArray], run: SavedRun) -> Iterator[Picture]:
    affinities = {
        int(moment): values
        for name, values in small.items()
        if name.startswith(_SPLIT) and (moment := name.removeprefix(_SPLIT)).isdigit()
    }
    first = dict(sorted(affinities.items())[:_MOST_SPLITS])
    for place, plane in enumerate(planes_of_splits(first, run.changes)):
        chosen = evenly(len(plane.clients), _MOST_DOTS)
        sizes = dict(zip(*np.unique(plane.clusters, return_counts=True), strict=True))
        rows = [
            {
                "name": f"client {plane.clients[at]}",
                "group": f"cluster {plane.clusters[at]}, {sizes[plane.clusters[at]]} clients",
                "x": float(plane.points[at, 0]),
                "y": float(plane.points[at, 1]),
            }
            for at in sorted(chosen, key=lambda at: (int(plane.clusters[at]), at))
        ]
        left_out = len(plane.clients) - len(rows)
        some = f" {len(rows):,} of {len(plane.clients):,} clients are drawn." if left_out else ""
        yield Picture(
            "splits_in_embedding" + (f"_{place + 1}" if place else ""),
            f"Split in round {plane.round}",
            points(rows, "coordinate 1", "coordinate 2"),
            "Clients near each other are perceived alike by the others: the plane of the affinities' "
            "spectral "
            f"embedding, before the split.{some}",
        )


def rewards_of(small: Mapping[str, NDArray]) -> tuple[IntArray, FloatArray, FloatArray, int] | None:
    """Compute the rewards of the last cohort of one cluster, if the run kept its losses.

    Source: FedGWC, Figure 1 and Eq. 1.

    Returns
    -------
    The clients, the highest reward first, their rewards, their losses of shape (n, steps), and the round.
    """
    if not {"cohort_losses", "cohort_clients", "cohort_round"} <= small.keys():
        return None
    from fedclust.clustering.fedgwc import rewards  # brings SciPy, which other methods' pages save

    losses = small["cohort_losses"]
    scores = rewards(losses)
    order = np.argsort(-scores, kind="stable")
    return (
        small["cohort_clients"].astype(int)[order],
        scores[order],
        losses[order],
        int(small["cohort_round"]),
    )


def _rewards(small: Mapping[str, NDArray]) -> Iterator[Picture]:
    found = rewards_of(small)
    if found is None:
        return
    clients, scores, losses, number = found
    steps = np.arange(1, losses.shape[1] + 1)
    chosen = evenly(len(steps), _MOST_METHOD_POINTS)
    of, x = losses[:, chosen], steps[chosen]
    mean, deviation = of.mean(axis=0), of.std(axis=0, ddof=1)
    named = [f"client {client}, reward {score:.2f}" for client, score in zip(clients, scores, strict=True)]
    lines = [
        Line("cohort's mean", x, mean, mean - deviation, mean + deviation),
        *(Line(named[place], x, of[place]) for place in (0, -1)),
    ]
    title = f"Losses of the {len(losses)} clients of round {number}, and their rewards"
    yield Picture(
        "rewards",
        title,
        curves(lines, "local step", "training loss, nats", form="tight"),
        "The clients with the highest and the lowest reward. Training loss before each step, in nats; the "
        "band is "
        "a standard deviation either way.",
    )
    yield _heat(
        "reward_cells",
        "Each client, the highest reward first; local steps from left to right",
        losses,
        named,
        [f"step {step}" for step in steps],
        "sequential",
    )


def _heat(
    name: str,
    title: str,
    table: FloatArray,
    rows: Sequence[str],
    columns: Sequence[str],
    colours: str,
    bands: Any = (),
    note: str = "",
) -> Picture:
    """Draw a table of clients over time, averaged over neighbours if it is large; only for the page."""
    starts = [np.arange(0, count, -(-count // MOST_CELLS)) for count in table.shape]
    shrunk = cells_from(table, *starts)
    known = shrunk[np.isfinite(shrunk)]
    low, high = np.percentile(known, [1, 99]) if known.size else (0.0, 1.0)
    named = [
        [
            names[at] + (f" and {each - 1} more" if each > 1 else "")
            for at, each in zip(start, sizes, strict=True)
        ]
        for names, start, sizes in (
            (names, start, np.diff([*start, len(names)]))
            for names, start in zip((rows, columns), starts, strict=True)
        )
    ]
    row_names, column_names = named
    chart = cells(
        shrunk,
        row_names,
        column_names,
        colours,
        ends=(float(low), float(high)),
        title="loss",
        row_bands=[bands[at] for at in starts[0]] if len(bands) else (),
        row_title="part" if len(bands) else "",
    )
    return Picture(name, title, chart, note, page_only=True)


def _trace(name: str, entries: FloatArray) -> Iterator[Picture]:
    """Draw clients' losses against their cohort's over the rounds, which is what sets groups apart.

    Source: :mod:`fedclust.clustering.loss_traces`. `entries` has a row per client and round: round, client,
    value in √nats, and the part that the client went to.
    """
    cluster, _, split = name.removeprefix("loss_trace_").replace("_", " ").partition(" round ")
    clients, row = np.unique(entries[:, 1].astype(int), return_inverse=True)
    rounds, column = np.unique(entries[:, 0].astype(int), return_inverse=True)
    part = np.zeros(len(clients), dtype=np.int64)
    part[row] = entries[:, 3]
    table = np.full((len(clients), len(rounds)), np.nan)
    table[row, column] = entries[:, 2]
    order = np.argsort(part, kind="stable")
    chosen = evenly(len(rounds), _MOST_METHOD_POINTS)
    lines = []
    for number in np.unique(part):
        own = table[part == number][:, chosen]
        own = own[:, some := np.isfinite(own).any(axis=0)]
        ends = np.nanmin(own, axis=0), np.nanmax(own, axis=0)
        title = f"part {number}, {len(own)} client{'s' * (len(own) != 1)}"
        lines.append(Line(title, rounds[chosen][some], np.nanmean(own, axis=0), *ends))
    until = f", up to its split in round {split}" if split else ", never split"
    yield Picture(
        name,
        f"Losses in {cluster}{until}",
        curves(lines, "round", "root of the loss less the cohort's mean, √nats", form="tight"),
        "Mean of each part; the band reaches from its lowest client to its highest. Root of the loss in "
        "the first "
        "steps, less the cohort's mean, in √nats.",
    )
    yield _heat(
        f"{name}_cells",
        "Each client, ordered by part; rounds from left to right",
        table[order],
        [f"client {clients[at]}" for at in order],
        [f"round {one}" for one in rounds],
        "diverging",
        part[order],
        "Left blank where a client was not asked.",
    )
