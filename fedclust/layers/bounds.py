"""Bounds of what a round may do to a model: the length of updates, finite values, and a way back.

An update that is many times as long as the round's median is left out and its client named; the pull of one
client can be limited, see :mod:`fedclust.aggregation.replies`.

A model whose loss is not finite on the clients that it was sent to is the server's fault: an aggregator's, or
of updates that it should not have taken. The cluster then goes back to the model and to the state of its
aggregator, such as momentum, that it had when the round began that made it; nobody is blamed. Of one that is
not finite itself only the aggregator's state is taken back: such a model is never taken.
"""

import copy
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from fedclust.aggregation.flower import remembers
from fedclust.aggregation.optimiser_state import pack_state, restored
from fedclust.aggregation.replies import (
    ANY,
    Caps,
    Reply,
    limited_weights,
    too_long,
    too_long_line,
    update_norm,
)
from fedclust.federation.asking import NO_REPLY, Failure
from fedclust.federation.clusters import Clusters
from fedclust.federation.run import Run
from fedclust.layers.layer import Layer
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.training import LOSS, NUM_EXAMPLES, Projected, instruct
from fedclust.typing import IntArray

START_NOT_FINITE = "non-finite loss at step 1"
"""How a client says that the loss of the model it was sent is not finite, before it changed anything."""

_DECIDING = 2  # clients of a sample, if their cluster has so many


@dataclass(frozen=True, eq=False)
class Past:
    """The clusters as the last round found them.

    Attributes
    ----------
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster; of one that is among the current models, its index there.
    aggregators
        State of each cluster's aggregator.
    in_a_row
        How many rounds a cluster went back in, up to the last one, by cluster.
    """

    assignment: IntArray
    models: tuple[ArrayRecord | int, ...]
    aggregators: tuple[Mapping[str, Any], ...]
    in_a_row: Mapping[int, int]


class Bounds(Layer):
    """Leaves out updates that are too long, and takes back models that turn out to be of no use.

    Parameters
    ----------
    caps
        How far updates may move a model.
    blames
        Whether a model is taken back for what its clients say of its loss; if not, only for what an
        aggregator makes of finite replies.
    """

    memory_type: ClassVar[Any] = Past | None

    def __init__(self, caps: Caps = ANY, *, blames: bool = True) -> None:
        self.caps, self._blames = caps, blames
        self.needs_client_models = caps.pull is not None
        self._earlier: Clusters | None = None  # as this round found the clusters
        self._before: Clusters | None = None  # as the one before did
        self._lost: list[int] = []
        self._in_a_row: dict[int, int] = {}  # cluster: how many rounds it went back in, without one between
        self._went: dict[int, int] = {}  # the same, with this round

    def begin(self, run: Run) -> None:
        """Know of no earlier models."""
        self._earlier, self._before, self._went = None, None, {}

    def before_round(self, run: Run) -> Clusters:
        """Keep what the round finds; aggregators that remember are copied."""
        self._before, self._in_a_row, self._went = self._earlier, self._went, {}
        copies = (copy.deepcopy(each) if remembers(each) else each for each in run.clusters.aggregators)
        self._earlier = dataclasses.replace(run.clusters, aggregators=tuple(copies), memory=None)
        return run.clusters

    def tell(self, run: Run, cluster: int, config: ConfigRecord) -> None:
        """Ask nodes to hold single clients to the cap where they answer with a mean."""
        if self.caps.norm is not None:
            config.update(instruct(norm_cap=self.caps.norm))

    def screen(self, run: Run) -> None:
        """Leave out what is too long, and all replies of clusters whose model had no finite loss."""
        run.replies, long = within(run.replies, run.number, self.caps)
        run.failures = sorted([*run.failures, *long], key=failure_order)
        self._lost = at_fault(run.failures, run.cohort) if self._before and self._blames else []
        if self._lost:
            run.replies = [reply for reply in run.replies if reply.cluster not in self._lost]
            run.failures = [
                each for each in run.failures if run.cohort[int(each["client"])] not in self._lost
            ]

    def after_aggregation(self, run: Run) -> Clusters:
        """Take back models that had no finite loss, and those that an aggregator just made."""
        if self._lost and self._earlier and self._before:
            self._earlier = put_back(self._earlier, self._before, self._lost)
        reasons = dict.fromkeys(self._lost, "the loss of its model was not finite")
        clusters = self._go_back(run, reasons | run.unusable)
        # What an aggregator could not use was not taken: that cluster has its model still.
        models = (
            (run.clusters if cluster in run.unusable else clusters).models[cluster]
            for cluster in range(len(clusters.models))
        )
        return dataclasses.replace(clusters, models=tuple(models)) if run.unusable else clusters

    def measured(self, run: Run) -> Clusters:
        """Take back new models whose loss is not finite."""
        if not self._blames:
            return run.clusters
        run.evaluations, failures, broken = blamed(
            run.evaluations, run.number, run.clusters.assignment, run.sampled
        )
        run.failures = [*run.failures, *failures]
        run.unusable = dict.fromkeys(broken, "the loss of its new model is not finite")
        return self._go_back(run, run.unusable)

    def _go_back(self, run: Run, reasons: Mapping[int, str]) -> Clusters:
        """Put clusters back to what this round found, and note why in the round's record."""
        if not reasons or self._earlier is None:
            return run.clusters
        sizes = run.clusters.sizes
        for cluster, reason in reasons.items():
            times = self._went[cluster] = self._in_a_row.get(cluster, 0) + 1
            told = {"cluster": cluster, "clients": int(sizes[cluster]), "reason": reason, "in_a_row": times}
            run.record.setdefault("went_back", []).append(told)
        return put_back(run.clusters, self._earlier, reasons)

    def state(self, run: Run) -> Past | None:
        """Return what this round found, and who went back."""
        if self._earlier is None:
            return None
        places = {id(model): place for place, model in reversed([*enumerate(run.clusters.models)])}
        fresh = run.make_aggregator()
        return Past(
            self._earlier.assignment,
            tuple(places.get(id(model), model) for model in self._earlier.models),
            tuple(pack_state(each, fresh) for each in self._earlier.aggregators),
            self._went,
        )

    def restore(self, run: Run, state: Past | None) -> None:
        """Take up what the last round found."""
        if state is None:
            return
        models = (run.clusters.models[each] if isinstance(each, int) else each for each in state.models)
        aggregators = (restored(run.make_aggregator(), each) for each in state.aggregators)
        self._earlier = Clusters(state.assignment, tuple(models), aggregators=tuple(aggregators))
        self._went = dict(state.in_a_row)


def failure_order(failure: Failure) -> tuple[bool, int]:
    """Sort failures by client id, those that did not reply last."""
    return failure["reason"] == NO_REPLY, int(failure["client"])


def put_back(clusters: Clusters, earlier: Clusters, broken: Collection[int]) -> Clusters:
    """Put clusters back to the model and aggregator of the cluster that most of their members were in.

    Parameters
    ----------
    clusters
        As they are now.
    earlier
        As they were.
    broken
        The clusters to put back; the others stay as they are, and so does one of clients that have just
        joined.
    """
    models, aggregators = list(clusters.models), list(clusters.aggregators)
    for cluster in broken:
        members = clusters.members(cluster)
        were = earlier.assignment[members[members < earlier.num_clients]]
        if not len(were) and cluster >= len(earlier.models):
            continue
        most = int(np.bincount(were).argmax()) if len(were) else 0
        models[cluster] = earlier.models[most]
        aggregators[cluster] = copy.deepcopy(earlier.aggregators[most])
    return dataclasses.replace(clusters, models=tuple(models), aggregators=tuple(aggregators))


def at_fault(failures: Sequence[Failure], cohort: Mapping[int, int]) -> list[int]:
    """List the clusters whose model had no finite loss on more than half of the clients that it was sent to.

    Parameters
    ----------
    failures
        Those of the round's training.
    cohort
        The cluster of each client that was sent a model, by client id.
    """
    asked, without = (dict.fromkeys(cohort.values(), 0) for _ in range(2))
    for cluster in cohort.values():
        asked[cluster] += 1
    for failure in failures:
        if str(failure["reason"]).endswith(START_NOT_FINITE):
            without[cohort[int(failure["client"])]] += 1
    return sorted(cluster for cluster, number in without.items() if 2 * number > asked[cluster])


def within(replies: Sequence[Reply], server_round: int, caps: Caps) -> tuple[list[Reply], list[Failure]]:
    """Leave out the replies whose model, or the projection of its change, moved too far; limit weights.

    Returns
    -------
    The replies that are left, and a failure for each of the others.
    """
    if caps == ANY:
        return list(replies), []
    moved: dict[int, float] = {}
    for reply in replies:
        if id(reply.model) not in moved:
            moved[id(reply.model)] = update_norm(reply.model, reply.start)
    norms = [max(moved[id(reply.model)], _projected_norm(reply.projected)) for reply in replies]
    own = [
        norm if reply.update_norm is None else reply.update_norm
        for norm, reply in zip(norms, replies, strict=True)
    ]
    cap = math.inf if caps.norm is None else caps.norm
    long = too_long(norms, own, [reply.cluster for reply in replies], cap)
    failures: list[Failure] = []
    for position, median in long.items():
        client = replies[position].client
        why = f"client {client}, round {server_round}: {too_long_line(norms[position], median, cap)}"
        failures.append({"client": client, "phase": "train", "reason": why})
    kept = [position for position in range(len(replies)) if position not in long]
    left = [replies[position] for position in kept]
    if caps.pull is not None:
        weights = limited_weights(
            [reply.num_examples for reply in left],
            [norms[position] for position in kept],
            [reply.cluster for reply in left],
            caps.pull,
        )
        left = [
            dataclasses.replace(reply, num_examples=weight)
            for reply, weight in zip(left, weights, strict=True)
        ]
    return left, failures


def _projected_norm(projected: Projected | None) -> float:
    """Compute the length of a change by its projection; a random one hardly changes it."""
    return 0.0 if projected is None else max(projected.norm, float(np.linalg.norm(projected.values)))


def blamed(
    evaluations: Sequence[Evaluation], server_round: int, assignment: IntArray, sampled: bool
) -> tuple[list[Evaluation], list[Failure], list[int]]:
    """Find who is to blame for losses that are not finite: a cluster's model, or a client.

    Where more than half of a cluster's clients have such a loss, the model they were sent is to blame and
    none of them; what they measured of it is left out. Where fewer have, they are. In a sample one client
    does not decide for others that were not asked: it takes two of them.

    Parameters
    ----------
    evaluations
        What clients measured.
    server_round
        The round, for the reasons.
    assignment
        Cluster of each client, shape (K,).
    sampled
        Whether only a sample of the clients was asked.

    Returns
    -------
    The evaluations that count, a failure for each client to blame, and the clusters whose model is.
    """
    odd = {each.client for each in evaluations if lost(each)}
    if not odd:
        return list(evaluations), [], []
    measuring: dict[int, list[int]] = {}
    for each in evaluations:
        if each.metrics[NUM_EXAMPLES]:
            measuring.setdefault(int(assignment[each.client]), []).append(each.client)
    sizes = np.bincount(assignment)
    broken = [
        cluster
        for cluster, clients in measuring.items()
        if 2 * (number := len(odd.intersection(clients))) > len(clients)
        and (not sampled or number >= min(_DECIDING, sizes[cluster]))
    ]
    kept = [each for each in evaluations if int(assignment[each.client]) not in broken]
    failures: list[Failure] = [
        {
            "client": each.client,
            "phase": "evaluate",
            "reason": f"client {each.client}, round {server_round}: {LOSS} must be finite, "
            f"got {each.metrics[LOSS]}",
        }
        for each in kept
        if each.client in odd
    ]
    return [each for each in kept if each.client not in odd], failures, sorted(broken)


def lost(evaluation: Evaluation) -> bool:
    """Whether a client with test rows has a loss that is not finite."""
    measured = evaluation.metrics
    return bool(measured[NUM_EXAMPLES]) and not np.isfinite(measured[LOSS])
