"""Compare groupings that are on trial, on the held-out rows of the clients that they would group."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedclust.clustering import auto
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.proof import ask_differences
from fedclust.layers.trial_memory import Trial
from fedclust.layers.trials import Trainee
from fedclust.proof import Comparison
from fedclust.typing import IntArray

__all__ = ["compare_trials", "compare_with_whole", "place_unknown"]


def compare_with_whole(
    clusters: Clusters, trial: Trial, federation: Federation, min_gain: float
) -> Comparison:
    """Compare the models of a trial's parts (B) with the unsplit cluster's (A).

    Parameters
    ----------
    clusters
        The clusters, with the unsplit one's model.
    trial
        The trial.
    federation
        The clients; those whose part is known are asked.
    min_gain
        Gain that the parts must exceed, as for :func:`fedclust.clustering.auto.compare_beyond`.
    """
    model = Trainee(clusters.models[trial.cluster])
    whole = dataclasses.replace(trial, labels=np.zeros_like(trial.labels), parts=(model,))
    return compare_trials(federation, clusters.members(trial.cluster), whole, trial, min_gain)


def compare_trials(
    federation: Federation, members: IntArray, one: Trial, other: Trial, min_gain: float
) -> Comparison:
    """Compare two groupings' models on the clients whose part is known in both.

    Parameters
    ----------
    federation
        The clients.
    members
        Ids of the cluster's clients, in the order of the trials' labels, shape (n,).
    one, other
        Trials of that cluster, A and B.
    min_gain
        Gain that B must exceed, as for :func:`fedclust.clustering.auto.compare_beyond`.
    """
    sides = []
    for trial in (one, other):
        assignment = np.full(federation.num_clients, -1)
        assignment[members] = trial.labels
        sides.append((assignment, [part.model for part in trial.parts]))
    known = members[(one.labels >= 0) & (other.labels >= 0)]
    measured, _ = ask_differences(federation, sides[0], sides[1], known.tolist())
    return auto.compare_beyond(list(measured.values()), min_gain)


def place_unknown(trials: Sequence[Trial], members: IntArray, federation: Federation) -> list[Trial]:
    """Assign each client whose part is not known to the part whose model fits it best.

    One message asks each client about all trials.

    Parameters
    ----------
    trials
        Trials of one cluster.
    members
        Ids of its clients, in the order of the trials' labels, shape (n,).
    federation
        The clients.
    """
    if all((trial.labels >= 0).all() for trial in trials):
        return list(trials)
    unknown = np.any([trial.labels < 0 for trial in trials], axis=0)
    models = [part.model for trial in trials for part in trial.parts]
    measured = federation.losses(models, members[unknown].tolist())
    placed, first = [], 0
    for trial in trials:
        last = first + len(trial.parts)
        losses = {
            place: measured[int(client)][first:last]
            for place, client in enumerate(members)
            if int(client) in measured
        }
        placed.append(dataclasses.replace(trial, labels=auto.place(trial.labels, losses)))
        first = last
    return placed
