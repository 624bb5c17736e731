"""Check the clients' replies to a round of training, and average them."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedclust.clustering.shared.weighted_sums import weighted_sums
from fedclust.federation.asking import Failure
from fedclust.layers.update_norms import ANY, Caps, limited_weights, too_long, too_long_line, update_norm
from fedclust.messages import (
    ARRAYS,
    LOSS,
    METRICS,
    NUM_EXAMPLES,
    BadReply,
    Bounds,
    Projected,
    canonical,
    read_train,
)
from fedclust.messages.kinds import Content
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.typing import FloatArray

__all__ = ["Reply", "by_cluster", "read_replies", "weighted_loss", "weighted_mean"]


@dataclass(frozen=True, eq=False)
class Reply:
    """A client's reply to a round of training.

    Attributes
    ----------
    client
        Its id.
    cluster
        The cluster it was in when the round began.
    start
        The model it started from.
    model
        Its model; or, if a node may send one mean for its clients, the mean of those of its cluster.
    num_examples
        Number of its training samples, as far as they count: see
        :func:`fedclust.layers.update_norms.limited_weights`.
    loss
        Mean training loss over its steps, in nats.
    losses
        Training loss before each local step, in nats, shape (steps,).
    projected
        Projection of the change by its own training, also if `model` is a mean; None unless the method asks
        for it (:meth:`fedclust.strategies.hooks.Hooks.projection`).
    message
        The message that all this was read from.
    within
        Whether its update was at most as long as the clip; None where it does not say.
    """

    client: int
    cluster: int
    start: ArrayRecord
    model: ArrayRecord
    num_examples: int
    loss: float
    losses: FloatArray
    message: Message
    projected: Projected | None = None
    within: bool | None = None

    def as_message(self) -> Message:
        """Make the message that an aggregator is given: what has been checked, and nothing else."""
        message = copy.copy(self.message)
        message.content = Content(
            {
                ARRAYS: self.model,
                METRICS: MetricRecord({NUM_EXAMPLES: self.num_examples, LOSS: self.loss}),
            }
        )
        return message

    def update(self) -> dict[str, FloatArray]:
        """Compute the change by training, ``model − start``, by array name, in float64."""
        return {
            name: to_numpy(self.model[name]).astype("f8") - to_numpy(array).astype("f8")
            for name, array in self.start.items()
        }


def read_replies(
    messages: Iterable[Message],
    server_round: int,
    cohort: Mapping[int, int],
    models: Sequence[ArrayRecord],
    bounds: Bounds | None = None,
    *,
    means: bool = True,
    caps: Caps = ANY,
    projection_size: int = 0,
    pooled: bool = False,
) -> tuple[list[Reply], list[Failure]]:
    """Read the replies that can be aggregated, and list the failures of the others.

    Parameters
    ----------
    messages
        The replies.
    server_round
        The round, for error messages.
    cohort
        The cluster of each client that was sent its cluster's model, by client id.
    models
        The model of each cluster; a reply's must have its names and shapes.
    bounds
        What clients may say of themselves.
    means
        Whether a model may be a node's mean, in float64; every other model is cast to its template's types.
    caps
        How far updates may move a model; any distance by default.
    projection_size
        Length of the projection that clients were asked for; 0 for none.
    pooled
        Whether clients were asked to train on the rows of all.

    Returns
    -------
    The valid replies, sorted by client id, with models of their own that nothing can be wrong with; and a
    failure for each other client, those that did not reply included.
    """
    bounds = bounds or Bounds()
    valid: list[Reply] = []
    failures: list[Failure] = []
    # By the identity of the model, which many replies may share, and by cluster.
    made: dict[tuple[int, int], ArrayRecord | BadReply] = {}
    said: list[float | None] = []
    silent = set(cohort)
    for message in sorted(messages, key=lambda message: message.metadata.src_node_id):
        client = message.metadata.src_node_id
        silent.discard(client)
        try:
            if message.has_error():
                raise BadReply(str(message.error.reason))
            trained = read_train(
                message, server_round, bounds, projection_size=projection_size, pooled=pooled
            )
            start = models[cohort[client]]
            key = (id(trained.arrays), cohort[client])
            if key not in made:
                made[key] = _model(trained.arrays, start, means)
            model = made[key]
            if isinstance(model, BadReply):
                raise BadReply(f"client {client}, round {server_round}: {model}")
            valid.append(
                Reply(
                    client=client,
                    cluster=cohort[client],
                    start=start,
                    model=model,
                    num_examples=trained.num_examples,
                    loss=trained.loss,
                    losses=trained.losses,
                    message=message,
                    projected=trained.projected,
                    within=trained.within,
                )
            )
            said.append(trained.update_norm)
        except BadReply as error:
            failures.append({"client": client, "phase": "train", "reason": str(error)})
    if caps != ANY:
        valid, long = _within(valid, said, server_round, caps)
        failures = sorted([*failures, *long], key=lambda failure: int(failure["client"]))
    failures += [{"client": client, "phase": "train", "reason": "no reply"} for client in sorted(silent)]
    return valid, failures


def _model(arrays: ArrayRecord, start: ArrayRecord, means: bool) -> ArrayRecord | BadReply:
    """Make a reply's model one that can be aggregated, or return why it cannot be."""
    try:
        return canonical(arrays, start, means=means)
    except ValueError as error:
        return BadReply(str(error))


def _within(
    replies: Sequence[Reply], said: Sequence[float | None], server_round: int, caps: Caps
) -> tuple[list[Reply], list[Failure]]:
    """Leave out the replies whose model, or the projection of its change, moved too far; limit weights."""
    moved: dict[int, float] = {}
    for reply in replies:
        if id(reply.model) not in moved:
            moved[id(reply.model)] = update_norm(reply.model, reply.start)
    norms = [max(moved[id(reply.model)], _projected_norm(reply.projected)) for reply in replies]
    own = [norm if told is None else told for norm, told in zip(norms, said, strict=True)]
    cap = math.inf if caps.norm is None else caps.norm
    long = too_long(norms, own, [reply.cluster for reply in replies], cap)
    failures: list[Failure] = [
        {
            "client": replies[position].client,
            "phase": "train",
            "reason": f"client {replies[position].client}, round {server_round}: "
            + too_long_line(norms[position], median, cap),
        }
        for position, median in long.items()
    ]
    kept = [position for position in range(len(replies)) if position not in long]
    within = [replies[position] for position in kept]
    if caps.pull is not None:
        weights = limited_weights(
            [reply.num_examples for reply in within],
            [norms[position] for position in kept],
            [reply.cluster for reply in within],
            caps.pull,
        )
        within = [replace(reply, num_examples=weight) for reply, weight in zip(within, weights, strict=True)]
    return within, failures


def _projected_norm(projected: Projected | None) -> float:
    """Compute the length of a change by its projection; a random one hardly changes it."""
    return 0.0 if projected is None else max(projected.norm, float(np.linalg.norm(projected.values)))


def by_cluster(replies: Iterable[Reply]) -> dict[int, list[Reply]]:
    """Group replies by the cluster that their clients were in when the round began."""
    sorted_replies: dict[int, list[Reply]] = {}
    for reply in replies:
        sorted_replies.setdefault(reply.cluster, []).append(reply)
    return sorted_replies


def weighted_loss(replies: Sequence[Reply]) -> float | None:
    """Average the clients' losses by their numbers of samples, in nats; None without replies."""
    total = sum(reply.num_examples for reply in replies)
    return math.fsum(reply.loss * reply.num_examples for reply in replies) / total if total else None


def weighted_mean(replies: Sequence[Reply], names: Iterable[str]) -> dict[str, Array]:
    """Average the replies' models, each weighted by its samples; of whole numbers, take the largest.

    Replies that share a model count together, so the mean hardly depends on which clients share a node. It is
    computed in float64.

    Parameters
    ----------
    replies
        At least one.
    names
        Names of the arrays to average.

    Returns
    -------
    By name, the mean in float64; of a single model, its arrays as they are.
    """
    models: dict[int, ArrayRecord] = {}
    samples: dict[int, int] = {}
    for reply in replies:
        models[id(reply.model)] = reply.model
        samples[id(reply.model)] = samples.get(id(reply.model), 0) + reply.num_examples
    if len(models) == 1:
        (only,) = models.values()
        return {name: only[name] for name in names}
    weights = np.array([samples[key] for key in models], dtype=np.float64)
    return {
        name: from_numpy(_average([to_numpy(model[name]) for model in models.values()], weights))
        for name in names
    }


def _average(values: Sequence[NDArray], weights: FloatArray) -> NDArray:
    first = values[0]
    if first.dtype.kind not in "fc":
        largest: NDArray = np.max(np.stack(values), axis=0)
        return largest
    mean: NDArray = np.asarray(weighted_sums(values, weights) / weights.sum())
    return mean
