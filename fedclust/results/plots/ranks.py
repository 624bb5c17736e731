"""Mean ranks of methods on one axis, with bars over those that cannot be told apart."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from fedclust.results.plots.style import COLOURS, new_figure
from fedclust.typing import FloatArray

__all__ = ["groups_alike", "rank_diagram"]


def groups_alike(ranks: FloatArray, difference: float) -> list[tuple[int, int]]:
    """List the longest runs of methods, sorted by rank, whose ends lie within the critical difference.

    Parameters
    ----------
    ranks
        Mean ranks in ascending order, shape (k,).
    difference
        The critical difference.

    Returns
    -------
    First and last position of each run of two methods or more; no run lies within another.
    """
    runs: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = int(np.searchsorted(ranks, ranks[first] + difference, side="right")) - 1
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def rank_diagram(
    names: Sequence[str],
    ranks: FloatArray,
    difference: float,
    title: str = "Mean rank, the best to the left",
    inches: float = 8,
) -> Figure:
    """Draw a critical-difference diagram (Demšar, 2006, Figure 1).

    Parameters
    ----------
    names
        Of the methods, shape (k,).
    ranks
        Mean rank of each, shape (k,).
    difference
        The critical difference; a bar joins methods that lie within it.
    title
        Title of the figure.
    inches
        Width; below 8, text is smaller, from 7 points up.
    """
    order = np.argsort(ranks, kind="stable")
    sorted_ranks, number = np.asarray(ranks)[order], len(order)
    left = (number + 1) // 2
    runs = groups_alike(sorted_ranks, difference)
    first_label = 0.9 + 0.28 * len(runs)
    rows = max(left, number - left)
    figure = new_figure(inches, 1.2 + 0.3 * (rows + len(runs)))
    axes = figure.subplots()
    small, normal = (8.0, 9.0) if inches >= 8 else (7.0, 7.0)
    labels = [f"{names[method]} ({rank:.2f})" for method, rank in zip(order, sorted_ranks, strict=True)]
    # Room for the names on both sides: units of the axis that as many letters of this size take.
    room = min(0.4, (0.1 + max(map(len, labels)) * normal * 0.0088) / inches)
    beside = (number - 0.8) * room / (1 - 2 * room)
    axes.set_xlim(0.9 - beside, number + 0.1 + beside)
    axes.set_ylim(first_label + 0.5 * rows + 0.2, -1.1)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=normal + 2 if inches >= 8 else normal + 1)
    axes.plot([1, number], [0, 0], color="black", linewidth=1.2)
    for tick in range(1, number + 1):
        axes.plot([tick, tick], [0, -0.12], color="black", linewidth=1)
        axes.text(tick, -0.2, str(tick), ha="center", va="bottom", fontsize=small)
    axes.plot([1, 1 + difference], [-0.85, -0.85], color=COLOURS[1], linewidth=2)
    said = f"critical difference {difference:.2f}"
    axes.text(1 + difference + 0.1, -0.85, said, va="center", fontsize=small)
    for place, (label, rank) in enumerate(zip(labels, sorted_ranks, strict=True)):
        on_the_left = place < left
        row = first_label + 0.5 * (place if on_the_left else number - 1 - place)
        edge = 0.9 if on_the_left else number + 0.1
        shift = -0.03 * beside if on_the_left else 0.03 * beside
        axes.plot([rank, rank, edge], [0, row, row], color="black", linewidth=0.8)
        side = "right" if on_the_left else "left"
        axes.text(edge + shift, row, label, ha=side, va="center", fontsize=normal)
    for level, (first, last) in enumerate(runs):
        height = 0.35 + 0.28 * level
        ends = [sorted_ranks[first] - 0.05, sorted_ranks[last] + 0.05]
        axes.plot(ends, [height, height], color=COLOURS[0], linewidth=4, solid_capstyle="butt")
    return figure
