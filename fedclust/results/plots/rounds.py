"""Plot of accuracy and number of clusters over the rounds."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import uniform_filter1d

from fedclust.results.plots.style import COLOURS, DASHES, GREY, new_figure, starts_above_0, tidy
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray

__all__ = ["accuracy_per_round", "loss_per_round"]

_MOST_MARKS = 12
_MANY_ROUNDS = 400


def accuracy_per_round(run: SavedRun) -> Figure | None:
    """Draw mean client accuracy over the rounds, for the run and the runs compared with it.

    Below it, the number of clusters if it was ever more than one. Lines mark changes of the assignment, up
    to twelve; more would hide the curve.

    Returns
    -------
    The figure; None if no round was evaluated.
    """
    curves = [(name, *each.series("mean_client_accuracy")) for name, each in run.side_by_side]
    if not any(len(rounds) for _, rounds, _ in curves):
        return None
    clusters = [each.series("num_clusters") for _, each in run.side_by_side]
    several = any((counts > 1).any() for _, counts in clusters)
    figure = new_figure(8, 5.2 if several else 4.2)
    heights = [4, 1] if several else [1]
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    upper = grid[0, 0]
    smoothed = max(len(rounds) for _, rounds, _ in curves) > _MANY_ROUNDS
    lowest, highest = 1.0, 0.0
    for place, (name, rounds, values) in enumerate(curves):
        if not len(rounds):
            continue
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        label = f"{name} ({values[-1]:.3f})"
        shown = values
        if smoothed:  # single rounds look like a band: draw it together with its running mean
            upper.plot(rounds, values, color=colour, alpha=0.25, linewidth=0.5)
            shown = _running_mean(values)
        marker = "o" if len(rounds) < 3 else None
        upper.plot(rounds, shown, color=colour, linestyle=dash, linewidth=1.8, label=label, marker=marker)
        lowest, highest = min(lowest, values.min()), max(highest, values.max())
    margin = max(0.02, 0.05 * (highest - lowest))
    bottom = max(-0.02, lowest - margin)
    upper.set_ylim(bottom, min(1.02, highest + margin))
    _mark_changes(upper, run.changes)
    _, sampled = run.series("evaluated_clients")
    label = "mean client accuracy"
    if sampled.size:
        label += f"\n(last round: all; others: samples of {sampled.max():.0f})"
    label += starts_above_0(bottom).replace(" (", "\n(")
    tidy(upper, "Accuracy on each client's own test part", "" if several else "round", label)
    title = "last value in brackets" + ("; thick: running mean" if smoothed else "")
    upper.legend(loc="best", frameon=False, title=title, title_fontsize=8, fontsize=9, alignment="left")
    if several:
        lower = grid[1, 0]
        for place, (rounds, counts) in enumerate(clusters):
            style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
            lower.step(rounds, counts, where="post", linewidth=1.5, **style)
        lower.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        lower.set_ylim(bottom=0)
        tidy(lower, "", "round", "clusters")
    grid[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def loss_per_round(panels: Mapping[str, Mapping[str, SavedRun]]) -> Figure | None:
    """Draw the loss on clients' test parts over the rounds, a panel per setting and a line per method.

    Source: FedGMCC, Figure 3. With several models, it is the mean over all clients' test rows of the loss of
    the model that each client has.

    Parameters
    ----------
    panels
        Runs by method, by title of the panel.

    Returns
    -------
    The figure; None if no round of any run was evaluated.
    """
    names = list(dict.fromkeys(name for runs in panels.values() for name in runs))
    curves = {
        title: {name: run.series("test_loss") for name, run in runs.items()} for title, runs in panels.items()
    }
    if not any(rounds.size for runs in curves.values() for rounds, _ in runs.values()):
        return None
    figure = new_figure(max(5.0, 3.6 * len(panels)), 3.8)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for column, (title, runs) in enumerate(curves.items()):
        axes = grid[0, column]
        for name, (rounds, values) in runs.items():
            place = names.index(name)
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
            marker = "o" if len(rounds) < 3 else None
            axes.plot(rounds, values, color=colour, linestyle=dash, linewidth=1.8, label=name, marker=marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(axes, title, "round", "" if column else "test loss, nats")
    found = {
        label: line
        for axes in grid.flat
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    return figure


def _running_mean(values: FloatArray) -> FloatArray:
    return uniform_filter1d(values, max(5, len(values) // 100), mode="nearest")


def _mark_changes(axes: Axes, changes: list[dict[str, Any]]) -> None:
    moments = [change["round"] for change in changes if change["round"] > 0]
    if 0 < len(moments) <= _MOST_MARKS:
        for place, moment in enumerate(moments):
            label = "clusters changed" if place == 0 else None
            axes.axvline(moment, color=GREY, linestyle=":", linewidth=1.3, label=label, zorder=1)
