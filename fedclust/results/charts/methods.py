"""Charts that belong to one method: how it chose its clusters, and what it saw of the clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.results.charts.chart import MOST_CELLS, Line, Picture, cells, cells_from, curves, points
from fedclust.results.saved_run import SavedRun
from fedclust.results.thinned import evenly
from fedclust.typing import FloatArray, IntArray

_MOST_POINTS = 300
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
    kept = {rounds[place] for place in evenly(len(rounds), _MOST_POINTS)} | {
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
    chosen = evenly(len(steps), _MOST_POINTS)
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
    chosen = evenly(len(rounds), _MOST_POINTS)
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
