"""Pairwise matrices with the clients ordered by cluster."""

from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedclust.results.plots.style import COLOURS, cluster_edges, new_figure, sparse_ticks
from fedclust.typing import FloatArray, IntArray

__all__ = ["KINDS", "larger_is_alike", "matrix"]

_NOT_COMPARED = "#D9D9D9"
_NO_MATCH = "#000000"
_MOST_PIXELS = 1200
_MOST_NAMES = 50
_MOST_GROUPS = len(COLOURS)


@dataclass(frozen=True)
class _Kind:
    """The meaning of a matrix, and which end of its scale means alike."""

    label: str
    larger_is_alike: bool
    signed: bool = False  # whether 0 divides alike from different


_KINDS = {
    "interaction": _Kind("interaction: larger is more alike", True),
    "affinity": _Kind("affinity: larger is more alike", True),
    "distances": _Kind("distance: smaller is more alike", False),
    "evidence": _Kind("evidence that two clients differ: below 0, they look alike", False, signed=True),
    "cosines": _Kind("cosine of two clients' updates: larger is more alike", True),
    "pair_scores": _Kind("pair score: smaller is more alike", False),
}


KINDS = tuple(_KINDS)
"""Names of the matrices whose meaning is known."""


def larger_is_alike(name: str) -> bool | None:
    """Whether a larger value means that two clients are more alike; None for an unknown matrix."""
    kind = _kind(name)
    return None if kind is None else kind.larger_is_alike


def _kind(name: str) -> _Kind | None:
    return next((kind for key, kind in _KINDS.items() if name.startswith(key)), None)


def matrix(name: str, values: FloatArray, assignment: IntArray, groups: IntArray | None = None) -> Figure:
    """Draw a matrix with one row and one column per client.

    Bright is alike for every kind of matrix but evidence, which is blue where clients look alike, white at 0
    and red where they differ. The scale covers the middle 98 % of the entries off the
    diagonal, so that one far pair does not wash out the rest.

    Parameters
    ----------
    name
        ``interaction``, ``affinity``, ``distances``, ``evidence``, ``cosines`` or ``pair_scores``, possibly
        with more behind it, such as ``interaction_round_60``; any other name is drawn as larger is brighter.
    values
        Shape (K, K); NaN for a pair that was not compared, ∞ for a pair that cannot match.
    assignment
        Cluster index of each client, shape (K,).
    groups
        Known grouping, shape (K,), shown as a strip next to the rows.

    Raises
    ------
    ValueError
        If the matrix is not (K, K).
    """
    num_clients = len(assignment)
    if values.shape != (num_clients, num_clients):
        raise ValueError(f"matrix {name} must have shape ({num_clients}, {num_clients}), got {values.shape}")
    kind = _kind(name) or _Kind("value", True)
    shown_groups = groups if groups is not None and len(np.unique(groups)) <= _MOST_GROUPS else None
    order = np.lexsort((np.zeros(num_clients) if shown_groups is None else shown_groups, assignment))
    ordered = values[np.ix_(order, order)].astype(np.float32)
    low, high, extend = _scale(ordered)

    figure = new_figure(7.2, 6.2)
    keys = []
    if shown_groups is None:
        named = axes = figure.subplots()
    else:
        named, axes = figure.subplots(1, 2, width_ratios=[1, 28], gridspec_kw={"wspace": 0.01})
        keys = _group_strip(named, shown_groups[order])
    map_name = "RdBu_r" if kind.signed else "viridis" if kind.larger_is_alike else "viridis_r"
    colours = colormaps[map_name].with_extremes(bad=_NOT_COMPARED)
    image = axes.imshow(
        np.ma.masked_invalid(_shrink(ordered)),
        cmap=colours,
        norm=_around_0(low, high) if kind.signed else Normalize(low, high),
        extent=(-0.5, num_clients - 0.5, num_clients - 0.5, -0.5),
        interpolation="nearest" if num_clients <= 200 else "antialiased",
        aspect="auto" if shown_groups is not None else "equal",
    )
    figure.colorbar(image, ax=axes, label=kind.label, extend=extend, shrink=0.85)
    title = name.replace("_round_", ", round ").replace("_", " ").capitalize()
    several = len(np.unique(assignment)) > 1
    axes.set_title(f"{title}, {'ordered by cluster' if several else 'one cluster'}", loc="left", fontsize=11)
    if np.isinf(ordered).any():
        axes.imshow(
            np.ma.masked_equal(_shrink(np.isinf(ordered).astype(np.float32)) > 0, False),
            cmap=ListedColormap([_NO_MATCH]),
            extent=image.get_extent(),
            interpolation="nearest",
            aspect=axes.get_aspect(),
        )
        keys.append(Patch(color=_NO_MATCH, label="no match: a model overflows"))
    _name_clusters(axes, assignment[order], "black" if kind.signed else "white")
    axes.set_yticks([])
    if num_clients <= _MOST_NAMES:
        sparse_ticks(named.yaxis, [str(client) for client in order], _MOST_NAMES)
        named.tick_params(axis="y", labelsize=7)
    named.set_ylabel("client")
    if np.isnan(ordered).any():
        keys.append(Patch(color=_NOT_COMPARED, label="not compared"))
    if keys:
        figure.legend(handles=keys, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return figure


def _scale(values: FloatArray) -> tuple[float, float, str]:
    """Choose the ends of the colour scale, and which of them some entries exceed."""
    finite = np.isfinite(values)
    compared = values[finite & ~np.eye(len(values), dtype=bool)]
    if not compared.size:
        return 0.0, 1.0, "neither"
    low, high = (float(end) for end in np.percentile(compared, [1, 99]))
    if low == high:  # a single pair or equal entries: any width will do
        high = low + 0.1 * (abs(low) or 1.0)
    below, above = values.min(initial=low, where=finite) < low, values.max(initial=high, where=finite) > high
    return low, high, "both" if below and above else "min" if below else "max" if above else "neither"


def _around_0(low: float, high: float) -> Normalize:
    """Scale each side of 0 by itself, since differences are often far larger than what speaks for alike.

    The side above 0 reaches at least as far as the one below: among alike clients, chance shall not look like
    a difference.
    """
    low = min(low, -0.01 * abs(high))  # a side without entries still needs a width
    return TwoSlopeNorm(0.0, low, max(high, -low))


def _shrink(values: FloatArray) -> FloatArray:
    """Average blocks of a matrix larger than the plot; drawing it whole would take gigabytes."""
    step = -(-len(values) // _MOST_PIXELS)
    if step == 1:
        return values
    starts = np.arange(0, len(values), step)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.add.reduceat(np.where(known, values, 0), starts, axis=0), starts, axis=1)
    counts = np.add.reduceat(np.add.reduceat(known.astype(np.int32), starts, axis=0), starts, axis=1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan, sums.dtype), where=counts > 0)


def _name_clusters(axes: Axes, sorted_clusters: IntArray, line_colour: str) -> None:
    edges = cluster_edges(sorted_clusters)
    sizes = np.diff(edges)
    if len(sizes) <= 60:
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color=line_colour, linewidth=1)
            axes.axvline(edge - 0.5, color=line_colour, linewidth=1)
    axes.tick_params(axis="x", length=0)
    if len(sizes) == 1:
        axes.set_xticks([])
        axes.set_xlabel("one cluster: all clients together")
        return
    # A label needs about a thirtieth of the width; narrower clusters get none.
    named = np.flatnonzero(sizes >= len(sorted_clusters) / 30)
    names = [str(cluster) for cluster in sorted_clusters[edges[named]]]
    axes.set_xticks(edges[named] + sizes[named] / 2 - 0.5, names)
    axes.set_xlabel(f"cluster ({len(sizes)} in all)")


def _group_strip(axes: Axes, sorted_groups: IntArray) -> list[Patch]:
    names, codes = np.unique(sorted_groups, return_inverse=True)
    colours = COLOURS[: len(names)]
    norm = BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names))
    palette = ListedColormap(colours)
    axes.imshow(codes[:, None], cmap=palette, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    pairs = zip(colours, names, strict=True)
    return [Patch(color=colour, label=f"known group {name}") for colour, name in pairs]
