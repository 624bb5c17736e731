"""FedGWC's own figures, for the page: rewards, convergence, and its splits in the embedding."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.results.fedgwc import Plane, convergence_of, planes_of_splits
from fedclust.results.page.curves import MOST_POINTS, Curve, Line, Trace, trace_of
from fedclust.results.page.matrices import small_arrays
from fedclust.results.page.values import evenly, shorts
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = ["Dots", "Rewards", "view_convergence", "view_rewards", "view_splits"]

_MOST_CLUSTERS = 20
_MOST_DOTS = 1_500
_MOST_SPLITS = 4
_MOST_LISTED = 1_500
_SPLIT = "affinity_round_"


@dataclass(frozen=True)
class Dots:
    """Clients as points of a plane.

    Attributes
    ----------
    title
        Its heading.
    clients
        The n clients drawn.
    x, y
        Where each is, n numbers each.
    clusters
        Cluster of each, n.
    note
        How to read it.
    """

    title: str
    clients: list[int]
    x: list[float | int | None]
    y: list[float | int | None]
    clusters: list[int]
    note: str


@dataclass(frozen=True)
class Rewards:
    """A cohort's losses in one round, and the reward of each client.

    Attributes
    ----------
    trace
        Losses over the local steps, the highest reward first.
    clients, rewards, losses
        The clients in that order, with reward and mean loss.
    """

    trace: Trace
    clients: list[int]
    rewards: list[float | int | None]
    losses: list[float | int | None]


def view_convergence(run: SavedRun) -> list[Curve]:
    """Return the curve of how settled each interaction matrix is, if the run has one."""
    found = convergence_of(run.rounds, run.config)
    if found is None:
        return []
    pieces = {
        cluster: dict(entry for piece in own for entry in piece)
        for cluster, own in list(found.pieces.items())[:_MOST_CLUSTERS]
    }
    splits = [(moment, cluster) for moment, cluster in found.splits if cluster in pieces]
    rounds = sorted({moment for own in pieces.values() for moment in own})
    kept = {rounds[place] for place in evenly(len(rounds), MOST_POINTS)} | {moment for moment, _ in splits}
    rounds = sorted(kept)
    lines = [
        Line(f"cluster {cluster}", shorts(own.get(moment) for moment in rounds))
        for cluster, own in pieces.items()
    ]
    if found.tolerance:
        lines.append(Line("split is tried below", shorts([found.tolerance] * len(rounds))))
    left_out = len(found.pieces) - len(pieces)
    some = f" The first {len(pieces)} of {len(found.pieces)} clusters." if left_out else ""
    return [
        Curve(
            "Convergence of the interaction matrix",
            "round",
            list(rounds),
            lines,
            [[moment, f"cluster {cluster} was split"] for moment, cluster in splits],
            "Mean squared change of a cluster's matrix in a round, on a logarithmic scale of "
            "at most eight powers of ten. "
            f"A cluster that is split starts anew at 1.{some}",
            logarithmic=True,
        )
    ]


def view_rewards(small: Mapping[str, NDArray]) -> Rewards | None:
    """Return the losses and rewards of the last cohort of one cluster, if the run kept them.

    Parameters
    ----------
    small
        Arrays of ``matrices.npz`` by name.
    """
    if not {"cohort_losses", "cohort_clients", "cohort_round"} <= small.keys():
        return None
    from fedclust.clustering.fedgwc import rewards  # brings SciPy, which other methods' pages save

    losses, number = small["cohort_losses"], int(small["cohort_round"])
    scores = rewards(losses)
    order = np.argsort(-scores, kind="stable")
    losses, clients, scores = losses[order], small["cohort_clients"].astype(int)[order], scores[order]
    steps = np.arange(1, losses.shape[1] + 1)
    listed = evenly(len(clients), _MOST_LISTED)
    trace = trace_of(
        losses,
        clients,
        steps,
        title=f"Losses of the {len(losses)} clients of round {number}, and their rewards",
        means=_losses(losses, clients, scores, steps),
        column="step",
        caption="Each client, the highest reward first; local steps from left to right",
        colours="sequential",
        notes=[f"reward {score:.2f}" for score in scores],
    )
    means = losses[listed].mean(axis=1)
    return Rewards(trace, clients[listed].tolist(), shorts(scores[listed]), shorts(means))


def _losses(losses: FloatArray, clients: IntArray, scores: FloatArray, steps: IntArray) -> Curve:
    chosen = evenly(len(steps), MOST_POINTS)
    of = losses[:, chosen]
    mean, deviation = of.mean(axis=0), of.std(axis=0, ddof=1)
    lines = [
        Line("cohort's mean", shorts(mean), shorts(mean - deviation), shorts(mean + deviation)),
        *(
            Line(f"client {clients[place]}, reward {scores[place]:.2f}", shorts(of[place]))
            for place in (0, -1)
        ),
    ]
    return Curve(
        "The clients with the highest and the lowest reward",
        "local step",
        steps[chosen].tolist(),
        lines,
        [],
        "Training loss before each step, in nats; the band is a standard deviation either way.",
    )


def view_splits(run: SavedRun) -> list[Dots]:
    """List the first splits, each with its clients in the plane of the spectral embedding."""
    found = small_arrays(run, (f"{_SPLIT}*",))
    affinities = {
        int(moment): values
        for name, values in found.items()
        if (moment := name.removeprefix(_SPLIT)).isdigit()
    }
    first = dict(sorted(affinities.items())[:_MOST_SPLITS])
    return [_dots(plane) for plane in planes_of_splits(first, run.changes)]


def _dots(plane: Plane) -> Dots:
    chosen = evenly(len(plane.clients), _MOST_DOTS)
    some = (
        f" {len(chosen):,} of {len(plane.clients):,} clients are drawn."
        if len(chosen) < len(plane.clients)
        else ""
    )
    return Dots(
        f"Split in round {plane.round}",
        plane.clients[chosen].tolist(),
        shorts(plane.points[chosen, 0]),
        shorts(plane.points[chosen, 1]),
        plane.clusters[chosen].tolist(),
        "Clients near each other are perceived alike by the others: the plane of the affinities' spectral "
        f"embedding, before the split.{some}",
    )
