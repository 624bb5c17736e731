"""Plots that belong to one method."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedclust.results.plots.style import COLOURS, DASHES, GREY, new_figure, tidy
from fedclust.typing import FloatArray, IntArray

__all__ = ["error_ratio_curve", "loss_trace", "outputs_along_chains", "separations", "silhouette_curve"]

_MOST_PAIRS = 6
_MOST_LINES = 300


def silhouette_curve(numbers: IntArray, scores: FloatArray) -> Figure:
    """Draw the silhouette for each candidate number of clusters.

    Source: Clust-PSI-PFL, selection of τ.

    Parameters
    ----------
    numbers
        Numbers of clusters, ascending, shape (n,).
    scores
        Mean silhouette of each, shape (n,); the first maximum is marked as chosen.
    """
    figure = new_figure(7, 4)
    axes = figure.subplots()
    marker = "o" if len(numbers) <= 60 else None
    axes.plot(numbers, scores, color=COLOURS[0], linewidth=1.5, marker=marker, markersize=4)
    best = int(np.nanargmax(scores))
    label = f"highest: {numbers[best]} clusters, {scores[best]:.3f}"
    axes.plot(numbers[best], scores[best], "D", color=COLOURS[1], markersize=8, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)
    tidy(axes, "Choosing the number of clusters", "number of clusters", "mean silhouette")
    axes.legend(loc="best", frameon=False, fontsize=9)
    return figure


def error_ratio_curve(numbers: IntArray, ratios: FloatArray, limit: float) -> Figure:
    """Draw the predicted error of each number of clusters that was tried.

    Source: :func:`fedclust.clustering.label_groups.error_ratio`.

    Parameters
    ----------
    numbers
        Numbers of clusters, ascending, shape (n,).
    ratios
        Predicted error of each, relative to one model's, > 0, shape (n,); the first lowest one is marked.
    limit
        The ratio below which clients are split.
    """
    figure = new_figure(7, 4)
    axes = figure.subplots()
    axes.axhline(1, color=GREY, linewidth=1.2, linestyle=":", label="one model for all")
    axes.axhline(limit, color=COLOURS[2], linewidth=1.5, linestyle="--", label=f"split below {limit:g}")
    axes.plot(numbers, ratios, color=COLOURS[0], linewidth=1.5, marker="o", markersize=4)
    best = int(np.argmin(ratios))
    verdict = "chosen" if ratios[best] < limit else "lowest, not below the limit"
    label = f"{verdict}: {numbers[best]} clusters, {ratios[best]:.3f}"
    axes.plot(numbers[best], ratios[best], "D", color=COLOURS[1], markersize=8, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    title = "Choosing the number of clusters by label counts"
    tidy(axes, title, "number of clusters", "predicted error, relative to one model's")
    axes.legend(loc="best", frameon=False, fontsize=9)
    return figure


def outputs_along_chains(
    points: FloatArray,
    chain: FloatArray,
    line: FloatArray,
    pairs: IntArray,
    assignment: IntArray | None = None,
) -> Figure:
    """Draw the distance of the outputs between two clients' models from those of the second model.

    FedGMCC fits the bend to make this distance small and scores the direction by its steepest slope. It uses
    no labels and no losses of clients.

    Source: FedGMCC, Fig. 2.

    Parameters
    ----------
    points
        Positions u from the first model to the second, in [0, 1], shape (n,).
    chain, line
        Squared distance of the class probabilities at u from those of the second model, averaged over random
        inputs, in [0, 2], along the fitted chain and along the straight line, shape (pairs, n).
    pairs
        The two clients of each row, shape (pairs, 2); the first six rows are drawn.
    assignment
        Cluster index of each client, shape (K,), to mark pairs that share a cluster.
    """
    shown = min(len(pairs), _MOST_PAIRS)
    columns = 2 if shown == 4 else min(shown, 3)
    rows = -(-shown // columns)
    figure = new_figure(max(6.0, 3.1 * columns + 0.8), 2.7 * rows + 1.2)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= shown:
            axes.set_visible(False)
            continue
        # A bend that hardly moved lies on the line, which is drawn wider so that both are visible.
        axes.plot(points, line[place], color=GREY, alpha=0.5, linewidth=5, label="straight line")
        axes.plot(points, chain[place], color=COLOURS[0], linewidth=1.8, label="fitted chain")
        first, second = pairs[place]
        title = f"clients {first} and {second}"
        if assignment is not None:
            title += ", same cluster" if assignment[first] == assignment[second] else ", apart"
        below = place + columns >= shown
        tidy(axes)
        axes.set_title(title, loc="left", fontsize=9)
        axes.tick_params(labelbottom=below)
        axes.set_xticks([0, 0.5, 1], ["first", "bend", "second"])
    grid[0, 0].set_ylim(bottom=0)  # shared by all axes, so only after drawing every curve
    figure.suptitle("Outputs along the way between two models", x=0.01, ha="left", fontsize=11)
    figure.supylabel(
        "squared distance from the second model's\nclass probabilities, random inputs", fontsize=9
    )
    figure.supxlabel("position u, from the first client's model to the second's", fontsize=9)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def separations(tests: FloatArray) -> Figure:
    """Draw how far apart the groups were that each test of the clients' losses found.

    Source: :mod:`fedclust.clustering.loss_traces`.

    Parameters
    ----------
    tests
        A row per fit, at least one of them with a finite separation: round, cluster, number of parts,
        separation in units of the required one, and 0 if it was not used, 1 for a proposal, 2 for a
        split; shape (fits, 5). Of a cluster's fits in a round the furthest apart is drawn, or that of which
        something came.
    """
    figure = new_figure(7, 4)
    axes = figure.subplots()
    shown = tests[np.isfinite(tests[:, 3])]
    shown = shown[np.lexsort((-shown[:, 3], -shown[:, 4], shown[:, 1], shown[:, 0]))]
    _, first = np.unique(shown[:, :2], axis=0, return_index=True)
    shown = shown[first]
    for number, cluster in enumerate(np.unique(shown[:, 1]).astype(int)):
        of = shown[shown[:, 1] == cluster]
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        for piece in np.split(of, np.flatnonzero(of[:, 4] == 2) + 1):  # after a split it is another cluster
            axes.plot(piece[:, 0], piece[:, 3], color=colour, linestyle=dashes, linewidth=1.2, alpha=0.7)
        axes.plot(of[:, 0], of[:, 3], "o", color=colour, markersize=4, label=f"cluster {cluster}")
    for came, marker, word in ((1, "s", "proposed"), (2, "D", "split")):
        for parts in np.unique(shown[shown[:, 4] == came, 2]).astype(int):
            of = shown[(shown[:, 4] == came) & (shown[:, 2] == parts)]
            label = f"{word}, {parts} parts"
            axes.plot(of[:, 0], of[:, 3], marker, color="none", mec="black", markersize=10, label=label)
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set_ylim(min(0.0, *shown[:, 3]), 1.15 * max(1.0, *shown[:, 3]))
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    y = "separation of the nearest two parts\n(1: more than halves of a continuum)"
    tidy(axes, "Do the clients' losses fall into groups?", "round", y)
    axes.legend(loc="best", frameon=False, fontsize=9)
    return figure


def loss_trace(entries: FloatArray, title: str) -> Figure:
    """Draw clients' losses against their cohort's over the rounds, which is what sets groups apart.

    Source: :mod:`fedclust.clustering.loss_traces`.

    Parameters
    ----------
    entries
        A row per client and round: round, client, entry x in √nats, and the part that the client went to;
        shape (N, 4).
    title
        Name of the cluster, and whether it was split.
    """
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    clients = np.unique(entries[:, 1])
    for client in clients[:: -(-len(clients) // _MOST_LINES)]:
        of = entries[entries[:, 1] == client]
        part = int(of[0, 3])
        axes.plot(of[:, 0], of[:, 2], color=COLOURS[part % len(COLOURS)], linewidth=0.6, alpha=0.3)
    for part in np.unique(entries[:, 3]).astype(int):
        of = entries[entries[:, 3] == part]
        rounds, place = np.unique(of[:, 0], return_inverse=True)
        mean = np.bincount(place, of[:, 2]) / np.bincount(place)
        label = f"part {part}, {len(np.unique(of[:, 1]))} clients"
        colour, dashes = COLOURS[part % len(COLOURS)], DASHES[part % len(DASHES)]
        axes.plot(rounds, mean, color=colour, linestyle=dashes, linewidth=2.4, label=label)
    axes.axhline(0, color=GREY, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    y = "root of the loss in the first steps\nless the cohort's mean, √nats"
    tidy(axes, title, "round of this cluster (thin: a client, thick: a part's mean)", y)
    axes.legend(loc="best", frameon=False, fontsize=9)
    return figure
