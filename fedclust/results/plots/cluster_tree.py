"""How clusters split, merge and exchange clients over the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from fedclust.results.plots.paper import SMALL, Width, new_paper_figure, paper_style, tidy_paper
from fedclust.results.plots.style import COLOURS
from fedclust.typing import FloatArray, IntArray

__all__ = ["MOST_CHANGES", "Stage", "cluster_tree", "stages"]

MOST_CHANGES = 30
"""Of more changes, a drawing would be a web of lines."""

_GAP = 0.06  # of all clients, between two clusters
_WIDE: dict[Width, float] = {"column": 2.5, "page": 6.0}  # inches of the axes
_TURN = 0.35  # of the time between two changes, and at most 4 % of all rounds, in which clients move over


@dataclass(frozen=True, eq=False)
class Stage:
    """The clusters between two changes.

    Attributes
    ----------
    start, end
        Rounds: the clusters came after the first and lasted until the second.
    assignment
        Cluster index of each client, shape (K,).
    tops
        Where each cluster's bar begins, in clients from the middle downwards.
    """

    start: int
    end: int
    assignment: IntArray
    tops: Mapping[int, float]


def stages(changes: Sequence[Mapping[str, Any]], rounds: int) -> list[Stage]:
    """Lay out the clients so that those who were together stay together.

    Parameters
    ----------
    changes
        Assignments over time, as in ``clusters.json``, each with its round.
    rounds
        The last round.

    Returns
    -------
    A stage for each assignment that lasted, in order. Of two in one round, the later one lasted.

    Raises
    ------
    ValueError
        If there is no change, or they are not of the same clients.
    """
    lasting = {int(change["round"]): np.asarray(change["assignment"], dtype=np.int64) for change in changes}
    if not lasting or len({assignment.shape for assignment in lasting.values()}) != 1:
        sizes = sorted({len(assignment) for assignment in lasting.values()})
        raise ValueError(f"changes must be one or more of the same clients, got numbers of clients {sizes}")
    moments = sorted(lasting)
    history = [lasting[moment] for moment in moments]
    # Sorted by the first assignment, then the second, …: splits alone leave every cluster in one piece.
    order = np.lexsort(history[::-1])
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order))
    # A change after the last round has no rounds of its own: it still needs a bar that can be seen.
    ends = [*moments[1:], max(rounds, moments[-1] + max(1, rounds // 20))]
    return [
        Stage(start, end, assignment, _tops(assignment, rank))
        for start, end, assignment in zip(moments, ends, history, strict=True)
    ]


def _tops(assignment: IntArray, rank: FloatArray) -> dict[int, float]:
    """Stack clusters by the mean place of their clients, with a gap between them."""
    clusters, sizes = np.unique(assignment, return_counts=True)
    mean_places = [rank[assignment == cluster].mean() for cluster in clusters]
    gap = _GAP * len(assignment)
    tops, top = {}, -(len(assignment) + gap * (len(clusters) - 1)) / 2
    for place in np.argsort(mean_places, kind="stable"):
        tops[int(clusters[place])] = float(top)
        top += sizes[place] + gap
    return tops


def cluster_tree(
    changes: Sequence[Mapping[str, Any]], rounds: int, width: Width = "column", title: str = ""
) -> Figure:
    """Draw the clusters as bars over the rounds, as high as they have clients, and who moves where.

    Parameters
    ----------
    changes
        Assignments over time, as in ``clusters.json``.
    rounds
        The last round.
    width
        Of the figure.
    title
        Above the axes.

    Raises
    ------
    ValueError
        If there are no changes, or more than 30.
    """
    drawn = stages(changes, rounds)
    if len(drawn) - 1 > MOST_CHANGES:
        raise ValueError(f"changes must be at most {MOST_CHANGES} to be drawn, got {len(drawn) - 1}")
    num_clients = len(drawn[0].assignment)
    most = max(len(np.unique(stage.assignment)) for stage in drawn)
    with paper_style():
        figure = new_paper_figure(width, float(np.clip(1.3 + 0.22 * most, 1.9, 5.5)))
        axes = figure.subplots()
        span = max(drawn[-1].end - drawn[0].start, 1)
        turns = [
            min(_TURN * (after.end - after.start), _TURN * (before.end - before.start), 0.04 * span)
            for before, after in pairwise(drawn)
        ]
        extent = num_clients * (1 + _GAP * (most - 1))
        room = 72 * (figure.get_figheight() - 0.5) / extent  # points per client
        for place, stage in enumerate(drawn):
            left = stage.start + (turns[place - 1] if place else 0)
            right = stage.end - (turns[place] if place < len(turns) else 0)
            for cluster, top in stage.tops.items():
                size = int((stage.assignment == cluster).sum())
                points = 72 * _WIDE[width] * (right - left) / span, size * room
                _number(axes, cluster, ((left + right) / 2, top + size / 2), points)
                axes.broken_barh([(left, right - left)], (top, size), color=_colour(cluster), linewidth=0)
        for turn, before, after in zip(turns, drawn[:-1], drawn[1:], strict=True):
            _moves(axes, before, after, turn)
        axes.set_xlim(drawn[0].start - 0.01 * span, drawn[-1].end)
        axes.set_ylim(extent / 2 + 0.5, -extent / 2 - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        tidy_paper(axes, title, "round")
        axes.grid(visible=False)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        last = drawn[-1]
        for cluster, top in last.tops.items():
            size = int((last.assignment == cluster).sum())
            if (size + _GAP * num_clients) * room >= SMALL:
                axes.annotate(
                    f"{cluster}: {size} client{'s' * (size != 1)}",
                    (last.end, top + size / 2),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                    annotation_clip=False,
                )
    return figure


def _colour(cluster: int) -> str:
    return COLOURS[cluster % (len(COLOURS) - 1)]  # without black, on which no number can be read


def _number(axes: Axes, cluster: int, at: tuple[float, float], room: tuple[float, float]) -> None:
    """Write a cluster's number on its bar if it has room: without colour, bars differ little."""
    text = str(cluster)
    if room[0] >= 0.75 * SMALL * len(text) and room[1] >= SMALL + 1:
        red, green, blue = to_rgb(_colour(cluster))
        colour = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
        axes.text(*at, text, ha="center", va="center", fontsize=SMALL, color=colour, weight="bold")


def _moves(axes: Axes, before: Stage, after: Stage, turn: float) -> None:
    """Draw a band per pair of clusters with clients in common, as high as their number."""
    left, right = dict(before.tops), dict(after.tops)  # where the next band begins
    for old in sorted(before.tops, key=before.tops.__getitem__):
        for new in sorted(after.tops, key=after.tops.__getitem__):
            size = int(((before.assignment == old) & (after.assignment == new)).sum())
            if size:
                _band(
                    axes,
                    (after.start - turn, left[old]),
                    (after.start + turn, right[new]),
                    size,
                    _colour(new),
                )
                left[old] += size
                right[new] += size


def _band(axes: Axes, left: tuple[float, float], right: tuple[float, float], size: int, colour: str) -> None:
    middle, (top, new_top) = (left[0] + right[0]) / 2, (left[1], right[1])
    outline = [
        left, (middle, top), (middle, new_top), right,
        (right[0], new_top + size), (middle, new_top + size), (middle, top + size), (left[0], top + size),
        left,
    ]  # fmt: skip
    codes = [Path.MOVETO, *3 * [Path.CURVE4], Path.LINETO, *3 * [Path.CURVE4], Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(outline, codes), facecolor=colour, edgecolor="none", alpha=0.55))
