"""The layers of every run: bounds of what a round may do to a model, drift, stopping, and who is there.

An update that is many times as long as the round's median is left out and its client named; a client's rows
are limited, and the pull of its update can be, see :mod:`fedclust.messages.replies`.

A model whose loss is not finite on the clients that it was sent to is the server's fault: an aggregator's, or
of updates that it should not have taken. The cluster then goes back to the model and to the state of its
aggregator, such as momentum, that it had when the round began that made it; nobody is blamed. Of one that is
not finite itself only the aggregator's state is taken back: such a model is never taken.
"""

import copy
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation import flower as aggregation
from fedclust.federation.answering import Failure, failure_order
from fedclust.federation.clusters import Clusters, Findings, padded
from fedclust.federation.run import Layer, Round, Run, amended
from fedclust.layers.drift import Drift
from fedclust.layers.stopping import Settled, Stopping
from fedclust.messages import replies as lengths
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.replies import ANY, Caps, Reply
from fedclust.messages.training import LOSS, NUM_EXAMPLES, Projected
from fedclust.settings.run_options import RunOptions
from fedclust.typing import BoolArray, FloatArray, IntArray

START_NOT_FINITE = "non-finite loss at step 1"
"""How a client says that the loss of the model it was sent is not finite, before it changed anything."""

START_LOST = "the loss of its model was not finite"
"""Why a cluster goes back whose clients were sent such a model."""

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


class UpdateBounds(Layer):
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
        self._in_a_row: Mapping[int, int] = {}  # cluster: rounds that it went back in, without one between
        self._went: dict[int, int] = {}  # the same, with this round

    def begin(self, run: Run, state: Past | None) -> Round:
        """Start without earlier models, or with those of the last round."""
        self._earlier, self._before, self._went = None, None, {}
        if state is not None:
            models = (run.clusters.models[each] if isinstance(each, int) else each for each in state.models)
            aggregators = (aggregation.restored(run.make_aggregator(), each) for each in state.aggregators)
            self._earlier = Clusters(state.assignment, tuple(models), aggregators=tuple(aggregators))
            self._went = dict(state.in_a_row)
        return run.now

    def instruct(self, run: Run, now: Round) -> Round:
        """Ask nodes to hold single clients to the caps where they answer with a mean."""
        self._before, self._earlier = self._earlier, now.found
        self._in_a_row, self._went = self._went, {}
        caps = self.caps.instruction(run.federation.bounds.num_train)
        return replace(now, asked=amended(now.asked, **caps))

    def screen(self, run: Run, now: Round) -> Round:
        """Leave out updates that are too long, and replies of clusters whose model had no finite loss."""
        described = run.federation.bounds.num_train
        if described is None and run.federation.clients.plain:  # its replies alone say how many rows it has
            described = np.zeros(run.federation.num_clients, dtype=np.int64)
        replies, long = within(now.replies, now.number, self.caps, described)
        failures = sorted([*now.failures, *long], key=failure_order)
        lost = at_fault(failures, now.cohort) if self._before and self._blames else []
        return replace(
            now,
            replies=[reply for reply in replies if reply.cluster not in lost],
            failures=[each for each in failures if now.cohort[int(each["client"])] not in lost],
            unusable=dict.fromkeys(lost, START_LOST),
        )

    def take_back(self, now: Round) -> Round:
        """Put clusters back that cannot use their model: the one they were sent, or the one just made."""
        lost = [cluster for cluster, reason in now.unusable.items() if reason == START_LOST]
        if lost and self._earlier and self._before:
            self._earlier = put_back(self._earlier, self._before, lost)
        back = self._go_back(now, now.unusable)
        models = list(back.clusters.models)
        for cluster in now.unusable.keys() - set(lost):  # it has its model still, the new one was not taken
            models[cluster] = now.clusters.models[cluster]
        return replace(back, clusters=replace(back.clusters, models=tuple(models)), unusable={})

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Take back new models whose loss is not finite."""
        if not self._blames:
            return now
        assignment = now.clusters.assignment
        evaluations, failures, broken = blamed(now.evaluations, now.number, assignment, now.sampled)
        reasons = dict.fromkeys(broken, "the loss of its new model is not finite")
        found: dict[str, Any] = {"evaluations": evaluations, "failures": [*now.failures, *failures]}
        return self._go_back(replace(now, **found, unusable=reasons), reasons)

    def _go_back(self, now: Round, reasons: Mapping[int, str]) -> Round:
        """Put clusters back to what this round found, and note why in the round's record."""
        if not reasons or self._earlier is None:
            return now
        sizes, entries = now.clusters.sizes, list(now.record.get("went_back", ()))
        for cluster, reason in reasons.items():
            times = self._went[cluster] = self._in_a_row.get(cluster, 0) + 1
            entry = {"cluster": cluster, "clients": int(sizes[cluster]), "reason": reason, "in_a_row": times}
            entries.append(entry)
        return replace(now, clusters=put_back(now.clusters, self._earlier, reasons)).noting(went_back=entries)

    def state(self, run: Run) -> Past | None:
        """Return what this round found, and who went back."""
        if self._earlier is None:
            return None
        places = {id(model): place for place, model in reversed([*enumerate(run.clusters.models)])}
        fresh = run.make_aggregator()
        return Past(
            self._earlier.assignment,
            tuple(places.get(id(model), model) for model in self._earlier.models),
            tuple(aggregation.pack_state(each, fresh) for each in self._earlier.aggregators),
            self._went,
        )


def put_back(clusters: Clusters, earlier: Clusters, broken: Collection[int]) -> Clusters:
    """Put clusters back to the model and aggregator of the cluster that most of their members were in.

    Parameters
    ----------
    clusters
        As they are now.
    earlier
        As they were.
    broken
        The clusters to put back; the others stay as they are. One of clients that have just joined goes back
        to its own, and stays if there was none.
    """
    models, aggregators = list(clusters.models), list(clusters.aggregators)
    for cluster in broken:
        members = clusters.members(cluster)
        were = earlier.assignment[members[members < earlier.num_clients]]
        if not len(were) and cluster >= len(earlier.models):
            continue
        most = int(np.bincount(were).argmax()) if len(were) else cluster
        models[cluster] = earlier.models[most]
        aggregators[cluster] = copy.deepcopy(earlier.aggregators[most])
    return replace(clusters, models=tuple(models), aggregators=tuple(aggregators))


def at_fault(failures: Sequence[Failure], cohort: Mapping[int, int]) -> list[int]:
    """List the clusters whose model had no finite loss on more than half of the clients that it was sent to.

    Parameters
    ----------
    failures
        Those of the round's training.
    cohort
        The cluster of each client that was sent a model, by client id.
    """
    ended = [each for each in failures if str(each["reason"]).endswith(START_NOT_FINITE)]
    return _most(Counter(cohort[int(each["client"])] for each in ended), Counter(cohort.values()))


def _most(broken: Mapping[int, int], of: Mapping[int, int]) -> list[int]:
    """List the clusters of which more than half of the clients have no finite loss."""
    return sorted(cluster for cluster, number in broken.items() if 2 * number > of[cluster])


def within(
    replies: Sequence[Reply], server_round: int, caps: Caps, described: IntArray | None = None
) -> tuple[list[Reply], list[Failure]]:
    """Leave out the replies whose model, or the projection of its change, moved too far; limit weights.

    Parameters
    ----------
    replies, server_round, caps
        The replies to a round of training, and what limits them.
    described
        Training rows of each client, as it says, shape (K,); None if nobody asked: then none are capped. If
        all are 0, as of anybody's ClientApp, those of the replies count.

    Returns
    -------
    The replies that are left, and a failure for each of the others.
    """
    if caps == ANY:
        return list(replies), []
    if described is not None and not described.any():
        described = np.zeros_like(described)
        described[[each.client for each in replies]] = [each.num_examples for each in replies]
    if described is not None and (most := caps.most_rows(described)) is not None:
        replies = [
            replace(each, num_examples=min(each.num_examples, most))
            if described[each.client] > most
            else each
            for each in replies  # which say more where rows are pooled
        ]
    shared = {id(reply.model): (reply.model, reply.start) for reply in replies}
    moved = {key: lengths.update_norm(*models) for key, models in shared.items()}
    norms = [max(moved[id(reply.model)], _projected_norm(reply.projected)) for reply in replies]
    own = [
        norm if reply.update_norm is None else reply.update_norm
        for norm, reply in zip(norms, replies, strict=True)
    ]
    begun = {id(reply.start): reply.start for reply in replies}
    started = {key: lengths.update_norm(start) for key, start in begun.items()}
    starts = [started[id(reply.start)] for reply in replies]
    of = [reply.cluster for reply in replies]
    long = {} if caps.norm is None else lengths.too_long(norms, own, of, caps.norm, starts)
    failures: list[Failure] = []
    for position, limit in long.items():
        client = replies[position].client
        why = lengths.too_long_line(norms[position], *limit)
        reason = f"client {client}, round {server_round}: {why}"
        failures.append({"client": client, "phase": "train", "reason": reason})
    kept = [position for position in range(len(replies)) if position not in long]
    left = [replies[position] for position in kept]
    if caps.pull is None:
        return left, failures
    samples, clusters = [reply.num_examples for reply in left], [reply.cluster for reply in left]
    weights = lengths.limited_weights(samples, [norms[each] for each in kept], clusters, caps.pull)
    limited = zip(left, weights, strict=True)
    return [replace(reply, num_examples=weight) for reply, weight in limited], failures


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
    measuring = [each.client for each in evaluations if each.metrics[NUM_EXAMPLES]]
    without, sizes = Counter(assignment[[*odd]].tolist()), np.bincount(assignment)
    broken = [
        cluster
        for cluster in _most(without, Counter(assignment[measuring].tolist()))
        if not sampled or without[cluster] >= min(_DECIDING, sizes[cluster])
    ]
    kept = [each for each in evaluations if assignment[each.client] not in broken]
    failures: list[Failure] = []
    for each in kept:
        if each.client in odd:
            why = f"{LOSS} must be finite, got {each.metrics[LOSS]}"
            reason = f"client {each.client}, round {server_round}: {why}"
            failures.append({"client": each.client, "phase": "evaluate", "reason": reason})
    return [each for each in kept if each.client not in odd], failures, broken


def lost(evaluation: Evaluation) -> bool:
    """Whether a client with test rows has a loss that is not finite."""
    measured = evaluation.metrics
    return bool(measured[NUM_EXAMPLES]) and not math.isfinite(measured[LOSS])


@dataclass(frozen=True, eq=False)
class Seen:
    """Of each client, whether it is there and what it measured last.

    Attributes
    ----------
    online
        Whether it was online at the last evaluation, shape (K,).
    last_round
        The last round in which it measured an accuracy, or a loss if it measures no accuracies, 0 for none,
        shape (K,).
    last_accuracy
        That accuracy, NaN for none, shape (K,).
    """

    online: BoolArray
    last_round: IntArray
    last_accuracy: FloatArray

    def grown(self, num_clients: int) -> "Seen":
        """Add clients that joined; they are taken to be online."""
        number = num_clients - len(self.online)
        return Seen(
            padded(self.online, number, True),
            padded(self.last_round, number, 0),
            padded(self.last_accuracy, number),
        )


_NOBODY = Seen(np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64), np.zeros(0))


class Attendance(Layer):
    """Notes at evaluations who left, who is back, and what each client measured last.

    It has columns of the clients' table: ``joined``, the round, if anybody joined after the start;
    ``last_round``, ``last_accuracy`` and ``left``, if anybody has left. The accuracy of a client that left,
    which is of the last round, is unknown, and no mean counts it.
    """

    memory_type: ClassVar[Any] = Seen

    def __init__(self) -> None:
        self._seen = _NOBODY

    def begin(self, run: Run, state: Seen | None) -> Round:
        """Start with all clients online, or with what was noted."""
        self._seen = _NOBODY.grown(run.clusters.num_clients) if state is None else state
        return run.now

    def after_evaluation(self, run: Run, now: Round) -> Round:
        """Note who is online and what they measured; who left or is back is in the round's record."""
        if now.online is None:
            return now
        before = self._seen.grown(now.clusters.num_clients)
        online = np.isin(np.arange(len(before.online)), list(now.online))
        changes = {"left": before.online & ~online, "back": online & ~before.online}
        rounds, accuracy = before.last_round.copy(), before.last_accuracy.copy()
        for each in now.evaluations:
            measured = each.metrics.get("accuracy", np.nan)
            if np.isfinite(measured) or "accuracy" not in each.metrics:  # as some of the user's own clients
                rounds[each.client], accuracy[each.client] = now.number, measured
        self._seen = Seen(online, rounds, accuracy)
        return now.noting(
            **{name: np.flatnonzero(who).tolist() for name, who in changes.items() if who.any()}
        )

    def findings(self, run: Run) -> Findings:
        """Return who joined when, who left, and what those measured last."""
        joined, seen = run.federation.joined, self.state(run)
        left = (seen.last_round < run.server_round) & ~seen.online
        columns: dict[str, Any] = {"joined": joined} if joined.any() else {}
        if left.any():
            columns |= {"last_round": seen.last_round, "last_accuracy": seen.last_accuracy, "left": left}
        return Findings(clients=columns)

    def state(self, run: Run) -> Seen:
        """Return what was noted."""
        return self._seen.grown(run.clusters.num_clients)


def caps_of(options: RunOptions) -> Caps:
    """Return how far clients may move a cluster's model in a run."""
    return Caps(options.update_norm_cap, options.update_pull_cap, options.row_cap)


def standard_layers(
    options: RunOptions,
    *further: Layer,
    moves_clients: bool = False,
    capped: bool = True,
    blames: bool = True,
    settled: Settled = lambda *_: True,
) -> tuple[UpdateBounds, list[Layer]]:
    """Make the bounds of every run, and list its further layers in their order.

    Parameters
    ----------
    options
        Of the run.
    further
        Layers of the method's or the run's own.
    moves_clients
        Whether drift may move clients; else it is only reported.
    capped
        Whether the options' limits of updates count; if not, one of `further` has limits of its own.
    blames
        Whether models are taken back for what single clients say.
    settled
        Whether the method may stop with these clusters after a round.
    """
    caps = caps_of(options) if capped else ANY
    drift = [Drift(options.drift_every, moves=moves_clients)] if options.drift_every else []
    best = options.serve_round == "best"
    watch = [Stopping(options.patience, serve_best=best, settled=settled)] if options.compares_rounds else []
    return UpdateBounds(caps, blames=blames), [*further, *drift, *watch, Attendance()]
