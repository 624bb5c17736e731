"""The curves of a method, for the page: choices, tests, chains between models, and losses over the rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.results.page.matrices import averaged
from fedclust.results.page.values import evenly, pack, shorts
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = [
    "MOST_POINTS",
    "Curve",
    "Line",
    "Trace",
    "trace_of",
    "view_accuracies",
    "view_curves",
    "view_traces",
]

MOST_POINTS = 300
"""Points of a line; of more, so many are shown, evenly spaced."""
_MOST_TRACES = 4
_MOST_ROWS, _MOST_COLUMNS = 120, 120  # of a trace's cells; larger ones are shrunk
_CAME = {1: "proposed", 2: "split"}


@dataclass(frozen=True)
class Line:
    """One line of a curve: a value for each x, None where unknown, and the ends of a band around it."""

    name: str
    y: list[float | int | None]
    low: list[float | int | None] | None = None
    high: list[float | int | None] | None = None


@dataclass(frozen=True)
class Curve:
    """Lines over one x, such as the silhouette for each number of clusters.

    Attributes
    ----------
    title
        Its heading.
    x_label
        Name of x.
    x
        Positions, ascending.
    lines
        What is drawn over them.
    marks
        Pairs of an x and what happened there.
    note
        A sentence on how to read it.
    logarithmic
        Whether its values are drawn on a logarithmic scale.
    """

    title: str
    x_label: str
    x: list[float | int | None]
    lines: list[Line]
    marks: list[list[float | int | str]]
    note: str = ""
    logarithmic: bool = False


@dataclass(frozen=True)
class Trace:
    """Clients' losses over the rounds, or over the local steps of one round.

    Attributes
    ----------
    title
        Whose losses, and when.
    means
        What is drawn beside the cells: a mean of each part, or of all.
    members
        Clients of each row of the cells: one, or several that were averaged.
    parts
        Part of each row's first client, ascending; empty without parts.
    spans
        First and last round, or step, of each column of the cells.
    column
        What a column is, ``"round"`` or ``"step"``.
    caption
        How the cells are ordered.
    colours
        ``sequential`` or ``diverging``.
    notes
        Of each row, what to say beside its clients; may be empty.
    low, high
        Ends of the codes of `values`.
    shown_low, shown_high
        Ends of the colour scale, which leave out the outermost hundredths.
    values
        Rows by columns, packed by :func:`fedclust.results.page.values.pack`.
    """

    title: str
    means: Curve
    members: list[list[int]]
    parts: list[int]
    spans: list[list[int]]
    column: str
    caption: str
    colours: str
    notes: list[str]
    low: float
    high: float
    shown_low: float
    shown_high: float
    values: str


def view_curves(small: Mapping[str, NDArray], assignment: IntArray | None = None) -> list[Curve]:
    """List the curves from which a method chose its clusters.

    Parameters
    ----------
    small
        Arrays of ``matrices.npz`` by name.
    assignment
        Cluster index of each client, shape (K,), to tell which chains join clients of one cluster.
    """
    return [*_choices(small), *_tests(small.get("separations")), *_chains(small, assignment)]


def _choices(small: Mapping[str, NDArray]) -> Iterator[Curve]:
    for numbers, values, title, label in (
        ("silhouette_numbers", "silhouette_scores", "Choosing the number of clusters", "mean silhouette"),
        (
            "error_ratio_numbers",
            "error_ratios",
            "Choosing the number of clusters by label counts",
            "predicted error, relative to one model's",
        ),
    ):
        if numbers in small and values in small and np.isfinite(small[values]).any():
            line = Line(label, shorts(small[values].tolist()))
            yield Curve(title, "number of clusters", shorts(small[numbers].tolist()), [line], [])


def _tests(tests: FloatArray | None) -> Iterator[Curve]:
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
    rounds = np.unique(shown[:, 0])
    lines = []
    for cluster in np.unique(shown[:, 1]):
        of = shown[shown[:, 1] == cluster]
        values = np.full(len(rounds), np.nan)
        values[np.searchsorted(rounds, of[:, 0])] = of[:, 3]
        lines.append(Line(f"cluster {int(cluster)}", shorts(values.tolist())))
    marks: list[list[float | int | str]] = [
        [int(number), f"cluster {int(cluster)}: {_CAME[int(came)]}, {int(parts)} parts"]
        for number, cluster, parts, _, came in shown
        if came
    ]
    yield Curve(
        "Do the clients' losses fall into groups?",
        "round",
        shorts(rounds.astype(int).tolist()),
        lines,
        marks,
        "Separation of the nearest two parts; above 1 they are further apart than halves of a continuum.",
    )


def _chains(small: Mapping[str, NDArray], assignment: IntArray | None) -> Iterator[Curve]:
    """Draw how far the outputs are from the second model's along each way between two clients' models."""
    pairs = small.get("curve_pairs")
    if pairs is None or not {"curve_points", "curve_losses", "line_losses"} <= small.keys():
        return
    for (first, second), chain, line in zip(
        pairs.tolist(), small["curve_losses"], small["line_losses"], strict=True
    ):
        where = ""
        if assignment is not None:
            where = ", same cluster" if assignment[first] == assignment[second] else ", apart"
        yield Curve(
            f"From client {first}'s model to client {second}'s{where}",
            "position",
            shorts(small["curve_points"].tolist()),
            [Line("fitted chain", shorts(chain.tolist())), Line("straight line", shorts(line.tolist()))],
            [],
            "Squared distance from the second model's class probabilities on random inputs; bend at 0.5.",
        )


def view_accuracies(run: SavedRun) -> Curve | None:
    """Return the clients' accuracies from the worst client to the best, of the run and those compared.

    The value at x percent is that of a client: the least accuracy that x percent of the clients do not
    exceed. None if no client was evaluated, or only one.
    """
    percents = np.arange(101)
    lines = []
    for name, each in run.side_by_side:
        if each.clients is None:
            continue
        columns = {name: "accuracy", f"{name}, personal": "personal_accuracy"}
        for title, column in columns.items():
            if column not in each.clients:
                continue
            values = each.clients[column].to_numpy(dtype=float)
            values = values[np.isfinite(values)]
            if values.size > 1:
                drawn = np.quantile(values, percents / 100, method="inverted_cdf")
                lines.append(Line(title, shorts(drawn.tolist())))
    if not lines:
        return None
    return Curve(
        "Accuracy of the clients, from the worst to the best",
        "% of clients",
        shorts(percents),
        lines,
        [],
        "At 10 %: one client in ten has this accuracy or less, on its own test part.",
    )


def view_traces(small: Mapping[str, NDArray]) -> list[Trace]:
    """List the first clusters' losses, those that were split before those that never were."""
    names = [name for name, values in small.items() if name.startswith("loss_trace") and len(values)]
    return [_trace(name, small[name]) for name in names[:_MOST_TRACES]]


def _trace(name: str, entries: FloatArray) -> Trace:
    cluster, _, split = name.removeprefix("loss_trace_").replace("_", " ").partition(" round ")
    clients, row = np.unique(entries[:, 1].astype(int), return_inverse=True)
    rounds, column = np.unique(entries[:, 0].astype(int), return_inverse=True)
    part = np.zeros(len(clients), dtype=np.int64)
    part[row] = entries[:, 3]
    table = np.full((len(clients), len(rounds)), np.nan)
    table[row, column] = entries[:, 2]
    order = np.argsort(part, kind="stable")
    until = f", up to its split in round {split}" if split else ", never split"
    return trace_of(
        table[order],
        clients[order],
        rounds,
        title=f"Losses in {cluster}{until}",
        means=_means(table, part, rounds),
        parts=part[order],
        column="round",
        caption="Each client, ordered by part; rounds from left to right",
        colours="diverging",
    )


def trace_of(
    table: FloatArray,
    clients: IntArray,
    moments: IntArray,
    *,
    title: str,
    means: Curve,
    column: str,
    caption: str,
    colours: str,
    parts: IntArray | None = None,
    notes: Sequence[str] | None = None,
) -> Trace:
    """Prepare losses as cells, shrunk if there are many.

    Parameters
    ----------
    table
        Losses, NaN where unknown, shape (clients, moments).
    clients
        Client of each row.
    moments
        Round or step of each column, ascending.
    title, means, column, caption, colours
        As the attributes of :class:`Trace`.
    parts
        Part of each row, ascending.
    notes
        What to say of each client; of averaged ones the first is named.
    """
    rows, columns = (
        np.arange(0, count, -(-count // most))
        for count, most in zip(table.shape, (_MOST_ROWS, _MOST_COLUMNS), strict=True)
    )
    cells = averaged(table, rows, columns)
    known = cells[np.isfinite(cells)]
    low, high = float(known.min()), float(known.max())
    shown = np.percentile(known, [1, 99])
    return Trace(
        title,
        means,
        [each.tolist() for each in np.split(clients, rows[1:])],
        [] if parts is None else parts[rows].tolist(),
        [[int(each[0]), int(each[-1])] for each in np.split(moments, columns[1:])],
        column,
        caption,
        colours,
        [] if notes is None else [notes[row] for row in rows],
        low,
        high,
        float(shown[0]),
        float(shown[1]),
        pack(cells, low, high),
    )


def _means(table: FloatArray, part: IntArray, rounds: IntArray) -> Curve:
    chosen = evenly(len(rounds), MOST_POINTS)
    lines = []
    for number in np.unique(part):
        own = table[part == number][:, chosen]
        known = np.isfinite(own)
        count = known.sum(axis=0)
        mean = np.divide(
            np.where(known, own, 0.0).sum(axis=0), count, out=np.full(len(chosen), np.nan), where=count > 0
        )
        low, high = np.where(known, own, np.inf).min(axis=0), np.where(known, own, -np.inf).max(axis=0)
        name = f"part {number}, {len(own)} client{'s' if len(own) != 1 else ''}"
        lines.append(Line(name, shorts(mean.tolist()), shorts(low.tolist()), shorts(high.tolist())))
    return Curve(
        "Mean of each part; the band reaches from its lowest client to its highest",
        "round",
        rounds[chosen].tolist(),
        lines,
        [],
        "Root of the loss in the first steps, less the cohort's mean, in √nats.",
    )
