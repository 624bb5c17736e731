"""Clients that were left out of training: place them, choose the model that serves each, and measure it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering.shared.placement import Placement
from fedclust.federation.asking import Failure
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.questions import shifts_for
from fedclust.federation.run import Measured
from fedclust.messages.description import Description
from fedclust.messages.evaluation import EvaluateQuestion, ProofQuestion
from fedclust.proof import compare, holm
from fedclust.typing import BoolArray

CLUSTER, COMMON = "cluster", "common"

Place = Callable[[Clusters, Sequence[int], int, Federation], Mapping[int, Placement]]


@dataclass(frozen=True, eq=False)
class Newcomers:
    """The clients that were left out, after they were placed.

    Attributes
    ----------
    placements
        The cluster of each, and why, by client id.
    served
        Whether its cluster's model serves it, or one model for all, by client id. Without a model for all,
        who is in no cluster is served the model of the largest one.
    measured
        What they measured of that model on their test parts; figures of shape (K + newcomers,).
    described
        Label counts, known group and name of each that answered.
    failures
        Who could not answer a question.
    """

    placements: Mapping[int, Placement]
    served: Mapping[int, str]
    measured: Measured
    described: Mapping[int, Description]
    failures: Sequence[Failure] = field(default_factory=list)


def place_newcomers(place: Place, clusters: Clusters, federation: Federation, server_round: int) -> Newcomers:
    """Place the clients that were left out, and measure the models of their clusters.

    Parameters
    ----------
    place
        The method's rule, :meth:`fedclust.strategies.ClusteredStrategy.place`.
    clusters
        The clusters after the last round.
    federation
        The clients, those that were left out too.
    server_round
        The last round.
    """
    described = federation.describe_newcomers(federation.newcomers)
    placements = place(clusters, federation.newcomers, server_round, federation)
    models = {client: clusters.models[_cluster(each, clusters)] for client, each in placements.items()}
    measured = _measured(federation, models, server_round)
    served = dict.fromkeys(placements, CLUSTER)
    return Newcomers(placements, served, measured, described, federation.take_failures())


def against_common(
    newcomers: Newcomers,
    clusters: Clusters,
    common: ArrayRecord,
    federation: Federation,
    by_common: BoolArray,
    server_round: int,
    level: float = 0.05,
) -> Newcomers:
    """Serve the model for all to newcomers in no cluster, and to those for whom it is shown to be better.

    A newcomer trained neither model, so all its training rows compare them: the paired test of docs/PROOF.md,
    at one level for all newcomers by Holm's correction. A newcomer for whom the model for all is better is in
    no cluster. One whose cluster is served the model for all gets it, too.

    Parameters
    ----------
    newcomers
        As :func:`place_newcomers` placed them.
    clusters
        The clusters.
    common
        The model for all.
    federation
        The clients.
    by_common
        Whether the model for all serves each client that trained, shape (K,).
    server_round
        The last round.
    level
        Level of all tests together.
    """
    placed = {
        client: each.cluster for client, each in newcomers.placements.items() if each.cluster is not None
    }
    shifts = _shifts(newcomers, clusters, federation, placed)
    questions = {
        client: ProofQuestion(clusters.models[cluster], common, *shifts[client], on_training_rows=True)
        for client, cluster in placed.items()
        if client in shifts
    }
    tests = {
        client: compare([told.mean], [told.variance], [told.count])
        for client, told in federation.ask(questions).replies.items()
    }
    corrected = holm([each.p_value for each in tests.values()])
    placements, served = dict(newcomers.placements), {}
    several = np.count_nonzero(clusters.sizes) > 1
    for (client, test), p_value in zip(tests.items(), corrected, strict=True):
        if not test.num_clients:
            continue
        evidence = {"gain_of_common": test.gain, "p_value": float(p_value)}
        placement = placements[client]
        placement = replace(placement, evidence={**placement.evidence, **evidence})
        if p_value <= level and several:
            why = f"one model for all is better on its rows than that of cluster {placement.cluster}"
            placement = Placement(None, f"{why} (p = {p_value:.2g})", placement.evidence)
        placements[client] = placement
    commons = {int(cluster) for cluster in np.unique(clusters.assignment[by_common])}
    for client, each in placements.items():
        served[client] = COMMON if each.cluster is None or each.cluster in commons else CLUSTER
    others = {client: common for client, model in served.items() if model == COMMON}
    by_other = np.zeros(federation.num_clients + len(federation.newcomers), dtype=bool)
    by_other[list(others)] = True
    measured = newcomers.measured.served(_measured(federation, others, server_round), by_other)
    failures = [*newcomers.failures, *federation.take_failures()]
    return Newcomers(placements, served, measured, newcomers.described, failures)


def _cluster(placement: Placement, clusters: Clusters) -> int:
    return int(clusters.sizes.argmax()) if placement.cluster is None else placement.cluster


def _shifts(
    newcomers: Newcomers, clusters: Clusters, federation: Federation, placed: Mapping[int, int]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Compute the label-prior correction of both models for each newcomer."""
    counts = federation.describe().train_counts
    found = {}
    for client, cluster in placed.items():
        if client in newcomers.described:
            own = newcomers.described[client].train_counts[None]
            found[client] = (
                shifts_for(own, counts[clusters.members(cluster)])[0],
                shifts_for(own, counts)[0],
            )
    return found


def _measured(federation: Federation, models: Mapping[int, ArrayRecord], server_round: int) -> Measured:
    """Ask clients to evaluate models on their test parts."""
    shared = {id(model): EvaluateQuestion(model, server_round) for model in models.values()}
    questions = {client: shared[id(model)] for client, model in models.items()}
    found = list(federation.ask(questions, server_round=server_round).replies.values())
    return Measured.of(found, federation.num_clients + len(federation.newcomers))
