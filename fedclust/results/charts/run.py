"""Draw the charts of one run from its folder, for its page and its ``plots/``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

import fedclust.results.charts.chart as drawing
from fedclust.data.targets.base import NORMAL
from fedclust.proof.words import CLASSES, Words
from fedclust.results.charts.chart import MOST_CELLS, Line, Picture, Side, cells, curves, points, save
from fedclust.results.names import paper_name
from fedclust.results.saved_run import SavedRun, ThinnedRun, evenly
from fedclust.results.summary import of_all
from fedclust.support.checks import capitalised
from fedclust.typing import FloatArray, IntArray

_MOST_POINTS, _MOST_MARKS, _MOST_MATRICES, _MOST_NUMBERS = 1_500, 40, 10, 160
_MOST_METHOD_POINTS, _MOST_PAIRS, _MOST_SPLITS = 300, 6, 4
_MOST_DOTS, _MOST_CLUSTERS = 1_500, 20
_SPLIT = "affinity_round_"

_MEANING = {
    "interaction": ("larger is more alike", "sequential"),
    "affinity": ("larger is more alike", "sequential"),
    "distances": ("smaller is more alike", "reversed"),
    "cosines": ("cosine of two clients' updates: larger is more alike", "sequential"),
    "pair_scores": ("smaller is more alike", "reversed"),
}
KINDS = tuple(_MEANING)
"""Names of the matrices whose meaning is known."""


def meaning_of(name: str) -> tuple[str, str]:
    """Return how to read a matrix's scale, empty for an unknown matrix, and its colours."""
    return next((each for key, each in _MEANING.items() if name.startswith(key)), ("", "sequential"))


def draw(folder: Path) -> list[Path]:
    """Draw all charts that a run's files allow into its ``plots/``.

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
    """Read the arrays of ``matrices.npz``, without client-by-client matrices except those of splits."""
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
        The arrays of :func:`small_arrays`, if already read.
    """
    small, words = small_arrays(run) if small is None else small, run.target.words
    yield from _rounds(run)
    yield from _accuracies(run)
    yield from _survival(run)
    yield from _calibration(run)
    yield from _matrices(run)
    yield from (_cross_site(run, values) for name, values in run.matrices() if name == "cross_site")
    yield from method_pictures(run, small)
    names = [str(name) for name in small["class_names"]] if "class_names" in small else None
    if "confusion" in small:
        known = names or list(map(str, range(small["confusion"].shape[-1])))
        yield _answers(small["confusion"], small["confusion_clusters"], known)
    yield from _gains(run)
    if run.label_counts is not None and run.assignment is not None:
        known = names or list(map(str, range(run.label_counts.shape[1])))
        yield _labels_per_cluster(run.label_counts, run.assignment, known, words)
        yield label_counts(run.label_counts, run.assignment, names, run.client_names, "cluster", words)
    yield from _figures_of_target(run)


def _gains(run: SavedRun) -> Iterator[Picture]:
    """Draw the gain of each cluster on test rows, with its interval."""
    shown = [
        (f"cluster {one['cluster']}", one["gain"], *one["interval"], bool(one["proven"]))
        for one in (run.summary.get("proof") or {}).get("clusters") or ()
        if one.get("interval")
    ]
    if any(low != high for _, _, low, high, _ in shown):
        chart = drawing.intervals(shown[:60], f"gain in {run.target.words.score}")
        yield Picture("gains", "Gain of each cluster, with its 95 % interval", chart, page_only=True)


def _rounds(run: SavedRun) -> Iterator[Picture]:
    mean = f"Mean {run.target.words.share} over clients, each on its own test part"
    changes = [(each["round"], str(each.get("reason", ""))) for each in run.changes if each["round"] > 0]
    marks = changes if len(changes) <= _MOST_MARKS else []
    note = "Dotted lines mark changes of the clusters. " if marks else ""
    if (evaluated := run.series("evaluated_clients")[1]).size:
        sample = f"a sample of up to {evaluated.max():.0f} clients, drawn anew each time."
        note += f"Before the last round these are means over {sample} "
    after = {"serve_cluster": "the proof", "personal": "personal layers"}
    if later := [what for key, what in after.items() if key in run.summary]:
        note += f"Before {' and '.join(later)}, which change what serves."
    for name, key, title, form in (
        ("accuracy_per_round", "mean_client_accuracy", mean, "number"),
        ("loss", "loss", "Training loss", "number"),
        ("test_loss", "test_loss", "Test loss", "number"),
        ("clusters_per_round", "num_clusters", "Clusters", "whole"),
        ("bytes", "bytes_up", "Received from clients in each round", "bytes"),
        ("seconds", "seconds", "Seconds of each round", "number"),
    ):
        lines = []
        for course, each in run.side_by_side:
            rounds, values = each.series(key)
            if rounds.size and (values.any() or form != "bytes"):
                chosen = evenly(len(rounds), _MOST_POINTS)
                lines.append(Line(paper_name(course), rounds[chosen], values[chosen]))
        stairs, main = form == "whole", name == "accuracy_per_round"
        if lines and not (stairs and max(np.max(line.y) for line in lines) < 2):
            names = [paper_name(course) for course, _ in run.side_by_side]
            noted = marks if main or stairs else ()
            drawn = curves(lines, "round", marks=noted, step=stairs, zero=stairs, form=form, names=names)
            yield Picture(name, title, drawn, note.strip() if main else "", page_only=not main)


def _accuracies(run: SavedRun) -> Iterator[Picture]:
    """Draw the clients' accuracies from the worst client to the best, for the run and those compared.

    The value at x percent is a client's accuracy: the least one that x percent of the clients do not exceed.
    """
    percents, lines = np.arange(101), []
    names = [paper_name(course) for course, _ in run.side_by_side]  # in the colours of the other charts
    for strategy, each in run.side_by_side:
        if of_all(each.summary):
            continue
        name = paper_name(strategy)
        for title, column in {name: "accuracy", f"{name}, without layer": "accuracy_none"}.items():
            if each.clients is not None and column in each.clients:
                values = each.clients[column].dropna().to_numpy(dtype=float)
                if values.size > 1:
                    worst = np.quantile(values, percents / 100, method="inverted_cdf")
                    lines.append(Line(title, percents, worst))
                    names += [title] * (title not in names)
    if lines:
        share = run.target.words.share
        title = f"{capitalised(share)} of the clients, from the worst to the best"
        note = f"At 10 %: one client in ten has this {share} or less, on its own test part."
        yield Picture("accuracy_ecdf", title, curves(lines, "% of clients", names=names), note)


def _figures_of_target(run: SavedRun) -> Iterator[Picture]:
    """Draw each of the target's own figures over the clients, from the least to the largest."""
    percents = np.arange(101)
    for key, title, _ in run.target.words.figures:
        lines = []
        for strategy, each in run.side_by_side:
            if each.clients is not None and key in each.clients:
                values = each.clients[key].dropna().to_numpy(dtype=float)
                if values.size > 1:
                    sorted_ = np.quantile(values, percents / 100, method="inverted_cdf")
                    lines.append(Line(paper_name(strategy), percents, sorted_))
        if lines:
            yield Picture(
                f"{key}_of_clients",
                f"{capitalised(title)}: clients from the least to the largest",
                curves(lines, "% of clients", form="tight"),
                page_only=True,
            )


def _survival(run: SavedRun) -> Iterator[Picture]:
    """Draw the survival of each cluster's clients, from the counts of their rows in each bin."""
    counts, assignment, target = run.label_counts, run.assignment, run.target
    if counts is None or assignment is None:
        return
    lines, notes, at, unit = [], [], "", ""
    for cluster in np.unique(assignment)[:_MOST_CLUSTERS]:
        found = target.survival_of(counts[assignment == cluster].sum(axis=0))
        if found is None:
            return
        lines.append(Line(f"cluster {cluster}", found.at, found.survival, found.low, found.high))
        notes.append(f"cluster {cluster}: {', '.join(f'{rows:,.0f}' for rows in found.at_risk)}")
        at, unit = ", ".join(f"{each:.4g}" for each in found.at), found.unit and f" {found.unit}"
    note = "Life-table estimates of all training rows of a cluster's clients, with 95 % intervals, from the "
    note += f"counts of their rows by interval. Rows at risk at {at}{unit}: {'; '.join(notes)}."
    drawn = curves(lines, "time" + (unit and f",{unit}"), "no event until then", zero=True)
    yield Picture("survival_of_clusters", "Survival of each cluster's clients", drawn, note)


def _calibration(run: SavedRun) -> Iterator[Picture]:
    """Draw what happened against what was predicted, of test rows, and the errors."""
    table, lines, errors = run.clients, [], []
    if table is None or not {"confusion", "sums"} <= {*table}:
        return
    known = table[table["confusion"].notna() & table["sums"].notna()]
    for cluster, rows in list(known.groupby("cluster"))[:_MOST_CLUSTERS]:
        confusion, sums = (np.stack(rows[name].to_list()).sum(axis=0) for name in ("confusion", "sums"))
        found = run.target.calibration(confusion.reshape(-1, len(sums) // 3), sums.reshape(3, -1))
        if found is not None:
            name, x = f"cluster {cluster}", found.predicted
            lines.append(Line(name, x, found.observed, found.low, found.high))
            if found.spread is not None:
                apart, reach = found.observed - x, NORMAL * found.spread
                errors.append(Line(name, x, apart, apart - reach, apart + reach))
    if not lines:
        return
    ends = [float(end([end(each.x) for each in lines])) for end in (np.min, np.max)]
    what, whose = run.target.calibrated, "test rows of each cluster's clients"
    names = [each.name for each in lines]
    lines.append(Line("as predicted", ends, ends))
    drawn = curves(lines, f"predicted {what}", f"observed {what}", form="tight")
    note = "Rows in parts by what was predicted, with 95 % intervals of the means; models with what serves."
    yield Picture("predicted_and_observed", f"Predicted and observed {what}, {whose}", drawn, note)
    if errors:
        drawn = curves(errors, f"predicted {what}", "observed less predicted", form="tight", names=names)
        note = "Means of the rows in each part; the band has 95 % of the rows if residuals are normal."
        yield Picture("residuals", f"Residuals of {what}, {whose}", drawn, note)


def _matrices(run: SavedRun) -> Iterator[Picture]:
    if run.assignment is None:
        return
    shape = 2 * run.assignment.shape
    names = [name for name, values in run.matrices() if np.shape(values) == shape]
    names = [name for name in names if not name.startswith(("cohort_", "cross_site"))]
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
    """Draw a client-by-client matrix, ordered by cluster and known group, averaged if it is large.

    Bright means alike. The scale covers the middle 98 % of the entries off the diagonal, so that one outlier
    does not wash out the rest. Pairs that were not compared are left blank. Colours beside the rows are the
    known groups.
    """
    table, clients = np.asarray(values, dtype=np.float64), len(assignment)
    order = np.lexsort((np.zeros(clients) if groups is None else groups, assignment))
    ordered, sorted_clusters = table[np.ix_(order, order)], assignment[order]
    several = sorted_clusters[0] != sorted_clusters[-1]
    meaning, colours = meaning_of(name)
    same = sorted_clusters[:, None] == sorted_clusters[None, :]
    notes = [f"{capitalised(meaning)}."] if meaning else []
    if several and np.isnan(ordered[~same]).all():
        notes.append("The method compares clients only within their cluster; all other pairs are left blank.")
    elif np.isnan(ordered).any():
        notes.append("Pairs that were not compared are left blank.")
    if np.isinf(ordered).any():
        notes.append("Black: no match, because a model overflows.")
    if groups is not None:
        notes.append("Colours beside the rows are known groups.")
    side = Side([_client(client, names, groups) for client in order], sorted_clusters if several else ())
    drawn = cells(
        ordered,
        side,
        replace(side, title="cluster" if several else ""),
        colours,
        ends=_middle(ordered[~np.eye(clients, dtype=bool)]),
        title="value",
        square=True,
        strip=() if groups is None else groups[order],
        most=MOST_CELLS,
    )
    heading = name.replace("_round_", ", round ").replace("_", " ")
    return Picture(name, capitalised(heading), drawn, " ".join(notes))


def _middle(values: FloatArray) -> tuple[float, float]:
    """Return the ends of the middle 98 % of the finite values."""
    known = values[np.isfinite(values)]
    low, high = np.percentile(known, [1, 99]).tolist() if known.size else (0.0, 1.0)
    return low, high


def _client(
    client: int, names: Sequence[str] | None, groups: IntArray | None, what: str = "known group"
) -> str:
    named = f" ({names[client]})" if names is not None else ""
    return f"client {client}{named}" + (f", {what} {groups[client]}" if groups is not None else "")


def _cross_site(run: SavedRun, values: FloatArray) -> Picture:
    """Draw how right each site's own model is on each other site's rows."""
    names = run.client_names or [f"site {place}" for place in range(len(values))]
    rows, columns = Side(names, names, "model of"), Side(names, names, "rows of")
    drawn = cells(values, rows, columns, ends=(0, 1), title="right", square=True, numbers=".2f")
    title = "Each site's own model on every other site's rows"
    return Picture("cross_site", title, drawn, run.target.words.ordered)


def _answers(confusion: IntArray, clusters: IntArray, names: Sequence[str]) -> Picture:
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
    table, bands = shares.transpose(0, 2, 1, 3).reshape(2 * (m * classes,)), np.repeat(clusters, classes)
    pairs = list(product(clusters, names))
    held = [f"clients of cluster {each}, class {name}" for each, name in pairs]
    predicted = [f"model of cluster {each} predicts {name}" for each, name in pairs]
    rows = Side(held, bands, "clients of cluster: true class")
    columns = Side(predicted, bands, "model of cluster: predicted class")
    drawn = cells(table, rows, columns, "labels", ends=(0, 100), title="% of the class", square=True)
    title = "Predictions of each cluster's model on each cluster's test rows"
    note = "Correct predictions are on the diagonal of each block, "
    note += "classes from top to bottom and from left to right."
    return Picture("answers_between_clusters", title, drawn, note)


def _labels_per_cluster(
    counts: IntArray, assignment: IntArray, names: Sequence[str], words: Words
) -> Picture:
    clusters, members = np.unique(assignment, return_counts=True)
    sums = np.stack([counts[assignment == cluster].sum(axis=0) for cluster in clusters])
    shares = 100 * sums / np.maximum(sums.sum(axis=1, keepdims=True), 1)
    named = [f"{cluster} ({size})" for cluster, size in zip(clusters, members, strict=True)]
    rows, columns = Side(named, named, "cluster (clients)"), Side(names, names, words.bin)
    ends, numbers = (0, float(shares.max()) or 1), ".0f" if shares.size <= _MOST_NUMBERS else ""
    drawn = cells(shares, rows, columns, ends=ends, title="% of its rows", numbers=numbers)
    return Picture(
        "labels_per_cluster", f"{capitalised(words.label)}s of each cluster", drawn, file_only=True
    )


def label_counts(
    counts: IntArray,
    groups: IntArray | None = None,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    grouped: str = "group",
    words: Words = CLASSES,
) -> Picture:
    """Draw each client's training rows of each class; of more than 400 clients, evenly spaced ones.

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
    words
        What is predicted, in words.
    """
    clients, classes = counts.shape
    order = np.arange(clients) if groups is None else np.argsort(groups, kind="stable")
    order = order[evenly(clients, 400)]
    named = list(class_names) if class_names is not None else [str(label) for label in range(classes)]
    several = groups is not None and len(np.unique(groups)) > 1
    columns = Side(
        [_client(client, client_names, groups, grouped) for client in order],
        groups[order] if groups is not None and several else (),
        f"clients, ordered by {grouped}" if several else "clients",
    )
    ends = 0, max(1, int(counts.max()))
    drawn = cells(counts[order].T, Side(named, named, words.bin), columns, "labels", ends=ends, title="rows")
    return Picture("labels_per_client", f"Training rows of each client by {words.bin}", drawn)


# ---- what belongs to one method


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
    yield from _chains(small, run.assignment)
    yield from _splits(small, run)
    yield from _rewards(small)


def _choices(small: Mapping[str, NDArray]) -> Iterator[Picture]:
    """Draw the silhouette of each number of clusters.

    Source: Clust-PSI-PFL, selection of τ, and :mod:`fedclust.clustering.clust_psi_pfl`.
    """
    x, y = (small.get(f"silhouette_{each}", np.zeros(0)) for each in ("numbers", "scores"))
    if np.isfinite(y).any():
        best, label = int(np.nanargmax(y)), "mean silhouette"
        drawn = curves([Line(label, x, y)], "number of clusters", label)
        note = f"The best is {int(x[best])} clusters, {y[best]:.3f}."
        yield Picture("silhouette", "Choosing the number of clusters", drawn, note)


def _chains(small: Mapping[str, NDArray], assignment: IntArray | None) -> Iterator[Picture]:
    """Draw how far outputs are from the second model's on each path between two clients' models.

    Source: FedGMCC, Fig. 2.
    """
    keys = "curve_pairs", "curve_losses", "line_losses"
    if not {*keys, "curve_points"} <= small.keys():
        return
    note = "Squared distance from the second model's class probabilities on random inputs; bend at 0.5."
    found = zip(*(small[key][:_MOST_PAIRS] for key in keys), strict=True)
    for place, (pair, chain, line) in enumerate(found):
        first, second = pair.astype(int).tolist()
        where = ""
        if assignment is not None:
            where = ", same cluster" if assignment[first] == assignment[second] else ", apart"
        ways = {"fitted chain": chain, "straight line": line}
        lines = [Line(name, small["curve_points"], y) for name, y in ways.items()]
        drawn = curves(lines, "position", "squared distance", form="tight", zero=True)
        title = f"From client {first}'s model to client {second}'s{where}"
        yield Picture("outputs_along_chains" + (f"_{place + 1}" if place else ""), title, drawn, note)


def _convergence(run: SavedRun) -> Iterator[Picture]:
    """Draw how far each interaction matrix changed in a round, if the run is FedGWC's.

    Source: FedGWC, Figure 4 and Section 4.3. A cluster that is split starts again at 1.
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
    kept = {rounds[place] for place in evenly(len(rounds), _MOST_METHOD_POINTS)}
    kept |= {int(moment) for moment, _ in marks}
    lines = []
    for cluster, own in shown.items():
        mine = sorted(kept & own.keys())
        lines.append(Line(f"cluster {cluster}", mine, [own[moment] for moment in mine]))
    tolerance = ((run.config.get("strategy") or {}).get("parameters") or {}).get("tolerance")
    if isinstance(tolerance, float):  # "auto" is another for each cluster
        lines.append(Line("split is tried below", [rounds[0], rounds[-1]], [tolerance, tolerance]))
    note = "Mean squared change of a cluster's matrix in a round, on a logarithmic scale of at most eight "
    note += "powers of ten. A cluster that is split starts again at 1."
    if len(shown) < len(values):
        note += f" The first {len(shown)} of {len(values)} clusters."
    drawn = curves(lines, "round", "mean squared change", marks=marks, log=True, form="tight")
    yield Picture("interaction_convergence", "Convergence of the interaction matrix", drawn, note)


def _splits(small: Mapping[str, NDArray], run: SavedRun) -> Iterator[Picture]:
    """Draw the clients of each split cluster in the plane of its spectral embedding.

    Source: FedGWC, Figure 3. The coordinates are eigenvectors 2 and 3 of the normalised Laplacian of the
    affinities before the split, so two clients are near each other if the others perceive them alike. Only
    distances within one plane are meaningful.
    """
    after = {change["round"]: np.asarray(change["assignment"]) for change in run.changes}
    moments = [name.removeprefix(_SPLIT) for name in small if name.startswith(_SPLIT)]
    drawn = 0
    for moment in sorted(int(text) for text in moments if text.isdigit())[:_MOST_SPLITS]:
        affinity = small[f"{_SPLIT}{moment}"]
        members = np.flatnonzero(np.isfinite(affinity.diagonal()))
        if moment not in after or len(members) <= 3:
            continue
        from sklearn.manifold import spectral_embedding  # half a second, needed by this method only

        from fedclust.clustering.fedgwc import SMALLEST

        graph = np.maximum(affinity[np.ix_(members, members)], SMALLEST)
        places = spectral_embedding(graph, n_components=2, random_state=0, drop_first=True)
        clusters = after[moment][members]
        named = [f"cluster {each}, {(clusters == each).sum()} clients" for each in clusters]
        chosen = sorted(evenly(len(members), _MOST_DOTS), key=lambda at: (int(clusters[at]), at))
        note = "Clients near each other are perceived alike by the others: the plane of the affinities' "
        note += "spectral embedding, before the split."
        if len(chosen) < len(members):
            note += f" {len(chosen):,} of {len(members):,} clients are drawn."
        drawn += 1
        name = "splits_in_embedding" + (f"_{drawn}" if drawn > 1 else "")
        x, y = places.T.tolist()
        rows = [
            {"name": f"client {members[at]}", "group": named[at], "x": x[at], "y": y[at]} for at in chosen
        ]
        chart = points(rows, "coordinate 1", "coordinate 2")
        yield Picture(name, f"Split in round {moment}", chart, note)


def rewards_of(small: Mapping[str, NDArray]) -> tuple[IntArray, FloatArray, FloatArray, int] | None:
    """Compute the rewards of the last cohort of one cluster, if the run kept its losses.

    Source: FedGWC, Figure 1 and Eq. 1.

    Returns
    -------
    The clients, the highest reward first, their rewards, their losses of shape (n, steps), and the round.
    """
    if not {"cohort_losses", "cohort_clients", "cohort_round"} <= small.keys():
        return None
    from fedclust.clustering.fedgwc import rewards  # imports SciPy, needed by this method only

    losses, clients = small["cohort_losses"], small["cohort_clients"].astype(int)
    scores = rewards(losses)
    order = np.argsort(-scores, kind="stable")
    return clients[order], scores[order], losses[order], int(small["cohort_round"])


def _rewards(small: Mapping[str, NDArray]) -> Iterator[Picture]:
    if (found := rewards_of(small)) is None:
        return
    clients, scores, losses, number = found
    steps = np.arange(1, losses.shape[1] + 1)
    chosen = evenly(len(steps), _MOST_METHOD_POINTS)
    of, x = losses[:, chosen], steps[chosen]
    mean, deviation = of.mean(axis=0), of.std(axis=0, ddof=1)
    named = [f"client {client}, reward {score:.2f}" for client, score in zip(clients, scores, strict=True)]
    lines = [Line("cohort's mean", x, mean, mean - deviation, mean + deviation)]
    lines += [Line(named[place], x, of[place]) for place in (0, -1)]
    title = f"Losses of the {len(losses)} clients of round {number}, and their rewards"
    drawn = curves(lines, "local step", "training loss, nats", form="tight")
    note = "The clients with the highest and the lowest reward. Training loss before each step, in nats; the "
    yield Picture("rewards", title, drawn, note + "band is a standard deviation either way.")
    title = "Each client, the highest reward first; local steps from left to right"
    each_step = Side([f"step {step}" for step in steps])
    drawn = cells(losses, Side(named), each_step, ends=_middle(losses), title="loss", most=MOST_CELLS)
    yield Picture("reward_cells", title, drawn, page_only=True)
