"""Pictures of what sets clients apart, for ``task=advise``."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.decomposition import KernelPCA

from fedclust.clustering.prototype_evidence import Prototypes, compare
from fedclust.results.plots.style import COLOURS, GREY, new_figure, tidy
from fedclust.typing import FloatArray, IntArray

__all__ = ["client_map", "client_sizes"]

_MOST_CLIENTS = 500  # on the map: it compares all pairs
_MARKERS = "osD^vP*"


def client_sizes(sizes: IntArray) -> Figure:
    """Draw how many training examples clients have, from the largest to the smallest.

    Parameters
    ----------
    sizes
        Of each client, shape (K,).
    """
    ordered = np.sort(sizes)[::-1]
    figure = new_figure(8, 3.6)
    axes = figure.subplots()
    axes.stairs(ordered, np.arange(len(ordered) + 1) + 0.5, fill=True, color=GREY)
    median = float(np.median(sizes))
    axes.axhline(median, color=COLOURS[1], linestyle="--", linewidth=1.5, label=f"median {median:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.08 * max(1, ordered[0]))
    axes.legend(frameon=False)
    tidy(axes, "Training examples of each client", "client, from the largest to the smallest", "examples")
    return figure


def client_map(prototypes: Prototypes, groups: IntArray) -> Figure:
    """Draw clients so that those whose class prototypes differ more lie further apart.

    Classical multidimensional scaling (Torgerson, 1952) of the square root of the unbiased squared distance;
    pairs without a common class are taken to be as far apart as the others are on average. No more than 500
    clients are drawn.

    Parameters
    ----------
    prototypes
        Of the K clients.
    groups
        Group of each client, shape (K,), for colours and markers.
    """
    shown = np.arange(len(groups))
    if len(shown) > _MOST_CLIENTS:
        shown = np.sort(np.random.default_rng(0).choice(shown, _MOST_CLIENTS, replace=False))
    rows = prototypes.rows(shown)
    squares = np.maximum(compare(rows, rows).distance(np.nan), 0)
    distances: FloatArray = np.sqrt(squares)
    distances = np.where(np.isnan(distances), np.nanmean(distances), distances)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    # KernelPCA centres −D²/2 and takes its leading eigenvectors: that is classical multidimensional scaling.
    places = KernelPCA(2, kernel="precomputed").fit_transform(-(distances**2) / 2)
    places = np.column_stack([places, np.zeros((len(places), 2 - places.shape[1]))])
    figure = new_figure(6.4, 5.6)
    axes = figure.subplots()
    for group in np.unique(groups[shown]):
        mine = groups[shown] == group
        axes.scatter(
            places[mine, 0],
            places[mine, 1],
            color=COLOURS[group % len(COLOURS)],
            marker=_MARKERS[group % len(_MARKERS)],
            s=45,
            edgecolors="white",
            label=f"group {group} ({int((groups == group).sum())})",
        )
    if len(np.unique(groups)) <= 12:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    tidy(axes, "Clients by their class prototypes: further apart, more different", "", "")
    return figure
