"""Clients as points in the plane, near each other if a method finds them alike."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from fedclust.results.plots.matrices import KINDS, larger_is_alike
from fedclust.results.plots.paper import (
    WIDTHS,
    Width,
    legend_below,
    new_paper_figure,
    paper_style,
    tidy_paper,
)
from fedclust.results.plots.style import COLOURS
from fedclust.typing import FloatArray, IntArray

__all__ = ["MOST_CLIENTS", "client_map", "distances_of", "places"]

MOST_CLIENTS = 1500
"""Of more, the points would hide each other, and their places take minutes to compute."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_MOST_LISTED = 12
_MOST_NUMBERED = 30


def distances_of(name: str, values: ArrayLike) -> FloatArray:
    """Turn a matrix of ``matrices.npz`` into distances between clients.

    Where larger is more alike, a distance is the largest value − the value; else the value, and if some are
    below 0, as evidence is, the value − the least one.

    Parameters
    ----------
    name
        Name of the matrix, such as ``affinity`` or ``distances``.
    values
        Shape (K, K).

    Returns
    -------
    Symmetric, at least 0, with 0 on the diagonal, shape (K, K); a pair with two values has their mean.

    Raises
    ------
    ValueError
        If the name is not known, or it is not a square matrix of finite numbers off the diagonal: some pairs
        were not compared.
    """
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must have shape (clients, clients), got {matrix.shape}")
    off = ~np.eye(len(matrix), dtype=bool)
    missing = int((~np.isfinite(matrix[off])).sum())
    if missing:
        raise ValueError(f"{name} must have a number for every pair of clients, {missing} entries have none")
    larger = larger_is_alike(name)
    if larger is None:
        raise ValueError(f"name must start with one of {', '.join(KINDS)}, got {name}")
    matrix = matrix[off].max(initial=0.0) - matrix if larger else matrix - matrix[off].min(initial=0.0)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 0.0)
    return matrix


def places(distances: FloatArray) -> tuple[FloatArray, float]:
    """Find places in the plane whose distances are as close to the given ones as possible.

    Source: metric multidimensional scaling by SMACOF, from scikit-learn.

    Parameters
    ----------
    distances
        Symmetric, with 0 on the diagonal, shape (K, K).

    Returns
    -------
    Coordinates, shape (K, 2), and Kruskal's stress, √(Σ (d − δ)² / Σ δ²): 0 if the plane keeps all distances.

    Raises
    ------
    ValueError
        If there are fewer than three clients or more than 1,500, or all distances are 0.
    """
    if not 3 <= len(distances) <= MOST_CLIENTS:
        raise ValueError(f"a map must have 3 to {MOST_CLIENTS} clients, got {len(distances)}")
    if not distances.any():
        raise ValueError("distances must not all be 0, they are")
    from sklearn.manifold import MDS  # takes a second to import

    known = inspect.signature(MDS).parameters
    given: dict[str, Any] = {"n_init": 1, "random_state": 0, "max_iter": 1000}
    if "metric_mds" in known:  # scikit-learn 1.8
        given |= {"metric": "precomputed", "init": "classical_mds"}
    else:
        given |= {"dissimilarity": "precomputed", "normalized_stress": False, "n_init": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = MDS(**given).fit_transform(distances / distances.max()) * distances.max()
    between = np.linalg.norm(found[:, None] - found[None], axis=-1)
    return found, float(np.sqrt(((between - distances) ** 2).sum() / (distances**2).sum()))


def client_map(
    distances: FloatArray,
    assignment: IntArray,
    groups: IntArray | None = None,
    width: Width = "column",
    title: str = "",
    group_names: Sequence[str] | None = None,
) -> Figure:
    """Draw the clients in the plane, coloured by cluster, with a marker for each known group.

    With known groups, a cluster's number stands near its middle, where it covers no client; without, each
    cluster has its own marker, and its number if there are more than a legend can list. So all can be told
    apart in print without colour. Axes have no unit.

    Parameters
    ----------
    distances
        Symmetric, with 0 on the diagonal, shape (K, K); see :func:`distances_of`.
    assignment
        Cluster index of each client, shape (K,).
    groups
        Known grouping of the clients, shape (K,), if there is one.
    width
        Of the figure.
    title
        Above the axes.
    group_names
        Names of groups 0, 1, …; ``group 0``, … unless given.

    Raises
    ------
    ValueError
        If the shapes differ, or as in :func:`places`.
    """
    clients = np.asarray(assignment).shape
    if distances.shape != 2 * clients or (groups is not None and np.shape(groups) != clients):
        raise ValueError(
            f"distances must have shape (K, K), assignment and groups (K,), got {distances.shape}, {clients}"
            + ("" if groups is None else f" and {np.shape(groups)}")
        )
    found, stress = places(distances)
    clusters = np.unique(assignment)
    known = np.zeros(clients, dtype=np.int64) if groups is None else np.unique(groups, return_inverse=True)[1]
    with paper_style():
        wide, high = np.maximum(np.ptp(found, axis=0), 1e-9)
        inches = WIDTHS.get(width, 1.0)
        figure = new_paper_figure(width, float(np.clip(high / wide, 0.45, 0.9)) * inches + 0.9)
        axes = figure.subplots()
        for number, cluster in enumerate(clusters):
            for group in np.unique(known[assignment == cluster]):
                of = (assignment == cluster) & (known == group)
                marker = number if groups is None else int(group)
                axes.plot(*found[of].T, **_point(number, marker), linestyle="none", zorder=2)
        told_otherwise = 1 if groups is not None else _MOST_LISTED
        if told_otherwise < len(clusters) <= _MOST_NUMBERED:
            step = 0.17 / inches * max(wide, high)  # a number's own size
            for cluster in clusters:
                at = _free_place(found, found[assignment == cluster], step)
                text = axes.text(
                    at[0], at[1], str(cluster), ha="center", va="center", fontsize=9, weight="bold", zorder=3
                )
                text.set_path_effects([patheffects.withStroke(linewidth=2, foreground="white")])
        tidy_paper(axes, title, f"multidimensional scaling, stress {stress:.2f}")
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
        handles, labels = [], []
        if len(clusters) <= _MOST_LISTED:
            for number, cluster in enumerate(clusters):
                style = _point(number, number if groups is None else 0)
                handles.append(Line2D([], [], linestyle="none", **style))
                labels.append(f"cluster {cluster} ({int((assignment == cluster).sum())})")
        if groups is not None and len(np.unique(groups)) <= len(_MARKERS):
            for place, group in enumerate(np.unique(groups)):
                style = _point(0, place) | {"markerfacecolor": "white"}
                handles.append(Line2D([], [], linestyle="none", **style))
                labels.append(f"group {group}" if group_names is None else group_names[group])
        if handles:
            legend_below(figure, handles, labels, line=1.0)
    return figure


def _free_place(points: FloatArray, members: FloatArray, step: float) -> FloatArray:
    """Find a place near a cluster's middle where a number of this size covers no point, if there is one."""
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    middle = np.median(members, axis=0)
    around = [middle[None], *(middle + radius * step * circle for radius in (1, 2, 3, 4))]
    tried = np.concatenate(around)
    room = np.linalg.norm(tried[:, None] - points[None], axis=-1).min(axis=1)
    free = np.flatnonzero(room >= step)
    return tried[free[0] if len(free) else int(room.argmax())]


def _point(number: int, group: int) -> dict[str, Any]:
    return {
        "marker": _MARKERS[group % len(_MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": COLOURS[number % len(COLOURS)],
        "markeredgecolor": "black",
        "markeredgewidth": 0.4,
        "alpha": 0.85,
    }
