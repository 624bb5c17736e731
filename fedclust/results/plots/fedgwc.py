"""Plots of FedGWC as in its paper: rewards, splits and the interaction matrix's convergence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedclust.clustering.fedgwc import rewards
from fedclust.results.fedgwc import convergence_of, planes_of_splits
from fedclust.results.plots.style import COLOURS, DASHES, GREY, new_figure, tidy
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = ["gaussian_rewards", "interaction_convergence", "splits_in_embedding"]

_MARKERS = "os^DvP*"
_MOST_NAMES = 6


def gaussian_rewards(losses: FloatArray, clients: IntArray, server_round: int) -> Figure:
    """Draw a cohort's losses in one round: who lies near the mean gets a high reward.

    Source: FedGWC, Figure 1 and Eq. 1.

    Parameters
    ----------
    losses
        Training loss before each local step, in nats, shape (n, S), n >= 2.
    clients
        Their ids, shape (n,); those with the highest and the lowest reward stand out.
    server_round
        The round, for the title.
    """
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    steps = np.arange(1, losses.shape[1] + 1)
    mean, deviation = losses.mean(axis=0), losses.std(axis=0, ddof=1)
    scores = rewards(losses)
    best, worst = int(scores.argmax()), len(scores) - 1 - int(scores[::-1].argmin())  # two also on a tie
    label = "mean ± standard deviation"
    axes.fill_between(steps, mean - deviation, mean + deviation, color=COLOURS[0], alpha=0.15, label=label)
    axes.plot(steps, mean, color=COLOURS[0], linestyle="--", linewidth=2, label="cohort's mean")
    others = [place for place in range(len(losses)) if place not in (best, worst)]
    for number, place in enumerate(others):
        axes.plot(
            steps, losses[place], color=GREY, linewidth=0.7, alpha=0.6, label=None if number else "others"
        )
    for place, colour, marker in ((best, COLOURS[2], "o"), (worst, COLOURS[1], "s")):
        label = f"client {clients[place]}, reward {scores[place]:.2f}"
        axes.plot(steps, losses[place], color=colour, linewidth=2, marker=marker, markersize=4, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = f"Losses of the {len(losses)} clients of round {server_round}, and their rewards"
    tidy(axes, title, "local step", "training loss, nats")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def splits_in_embedding(
    affinities: Mapping[int, FloatArray], changes: Sequence[Mapping[str, Any]]
) -> Figure | None:
    """Draw the clients of each cluster that was split, in the plane of its spectral embedding.

    Source: FedGWC, Figure 3. A panel has a split's own plane, see
    :func:`fedclust.results.fedgwc.planes_of_splits`.

    Parameters
    ----------
    affinities
        By round of a split, affinities before it, NaN for pairs outside the cluster, shape (K, K).
    changes
        Assignments over time, as in ``clusters.json``.

    Returns
    -------
    The figure; None if no split has three clients or more.
    """
    drawn = list(planes_of_splits(affinities, changes))
    if not drawn:
        return None
    figure = new_figure(max(5.0, 3.7 * len(drawn)), 4.2)
    for axes, split in zip(figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True):
        plane, clusters = split.points, split.clusters
        for number, cluster in enumerate(np.unique(clusters)):
            of = clusters == cluster
            size = int(of.sum())
            axes.plot(
                plane[of, 0],
                plane[of, 1],
                _MARKERS[number % len(_MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=5,
                alpha=0.75,
                markeredgewidth=0,
                label=f"cluster {cluster}, {size} client{'s' * (size > 1)}",
            )
        tidy(axes, f"Split in round {split.round}", "coordinate 1", "coordinate 2")
        axes.locator_params(nbins=5)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)
    return figure


def interaction_convergence(run: SavedRun) -> Figure | None:
    """Draw the mean squared change of each cluster's interaction matrix over the rounds.

    Source: FedGWC, Figure 4, see :func:`fedclust.results.fedgwc.convergence_of`.

    Returns
    -------
    The figure; None if the run has none, as it is not FedGWC's.
    """
    found = convergence_of(run.rounds, run.config)
    if found is None:
        return None
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for number, (cluster, pieces) in enumerate(found.pieces.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        label: str | None = f"cluster {cluster}" if number < _MOST_NAMES else None
        for piece in pieces:
            rounds, values = zip(*piece, strict=True)
            marker = "o" if len(piece) == 1 else None
            drawn = axes.plot(rounds, values, color=colour, linestyle=dashes, marker=marker, label=label)[0]
            drawn.set(markersize=3, linewidth=1.3)
            label = None
    for number, moment in enumerate(dict.fromkeys(moment for moment, _ in found.splits)):
        axes.axvline(moment, color=GREY, linestyle=":", linewidth=1.2, label=None if number else "split")
    if found.tolerance:
        label = f"tried for a split below {found.tolerance:g}"
        axes.axhline(found.tolerance, color=GREY, linewidth=1.2, label=label)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes, "Convergence of the interaction matrix", "round", "mean squared change (log scale)")
    title = (
        f"the first {_MOST_NAMES} of {len(found.pieces)} clusters"
        if len(found.pieces) > _MOST_NAMES
        else None
    )
    figure.legend(
        loc="outside lower center", ncols=4, frameon=False, fontsize=9, title=title, title_fontsize=9
    )
    return figure
