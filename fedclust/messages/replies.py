"""Average clients' replies to a round of training, and limit how far each moves the model.

An update of 1e30 is finite, but its mean with a thousand honest updates is useless. Honest updates of one
round differ by small factors, whatever the clients' data (docs/SECURITY.md has figures), so one that is many
times as long as the round's median can be recognised.

Below that cap a single client can still reverse a weighted mean, with a long update or by claiming rows that
it does not have. So a client's rows count for at most a multiple of the median client's; and, as the mean
moves by the product of both, the pull, a client's weight can be lowered until its pull is at most a multiple
of the median's. That is off by default: it needs each client's own model. docs/ATTACKS.md has figures.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fedclust.clustering.shared.weighted_sums import weighted_sums
from fedclust.messages.codec import ARRAYS, METRICS, Content
from fedclust.messages.training import LOSS, NUM_EXAMPLES, Projected, TrainAnswer
from fedclust.proof.paired import counted
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.typing import FloatArray, IntArray

LEAST_CAP = 10.0
"""Multiple of the median by which updates that are alike may differ."""
_FEWEST = 3  # of two, either may be wrong
_MANY = 10  # replies, of which the spread is known
_SPREADS, _OF_NORMAL = 5, 1.4826
_NOTICED = 0.1  # of a model's length
_OF_ANSWER = (
    *("client", "num_examples", "loss", "losses", "projected", "within", "update_norm", "pooled", "arms"),
)


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
        Its model; or, if a node may send one mean for its clients, the mean of those in its cluster.
    num_examples
        Number of its training samples, possibly lowered by :class:`Caps`.
    loss
        Mean training loss over its steps, in nats; NaN if withheld.
    losses
        Training loss before each local step, in nats, shape (steps,).
    projected
        Projection of the change by its own training, even if `model` is a mean; None if not asked for.
    within
        Whether its update was at most as long as the clip; None if not reported.
    update_norm
        Length of its own update, as it or its node reports; None if not reported.
    pooled
        Number of clients whose training rows were used.
    arms
        Further models that it trained, by name; not checked.
    """

    client: int
    cluster: int
    start: ArrayRecord
    model: ArrayRecord
    num_examples: int
    loss: float
    losses: FloatArray
    projected: Projected | None = None
    within: bool | None = None
    update_norm: float | None = None
    pooled: int = 1
    arms: Mapping[str, ArrayRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: TrainAnswer, cluster: int, start: ArrayRecord, model: ArrayRecord) -> "Reply":
        """Make the reply of a client's answer, with its checked model."""
        about = zip(_OF_ANSWER, attrgetter(*_OF_ANSWER)(answer), strict=True)
        return cls(cluster=cluster, start=start, model=model, **dict(about))

    def as_message(self) -> Message:
        """Make the message for an aggregator, with only what has been checked."""
        asked = Message(RecordDict(), dst_node_id=max(self.client, 0), message_type=MessageType.TRAIN)
        metrics = MetricRecord({NUM_EXAMPLES: self.num_examples, LOSS: self.loss})
        return Message(Content({ARRAYS: self.model, METRICS: metrics}), reply_to=asked)


def by_cluster(replies: Iterable[Reply]) -> dict[int, list[Reply]]:
    """Group replies by the cluster that their clients were in when the round began."""
    sorted_replies: dict[int, list[Reply]] = {}
    for reply in replies:
        sorted_replies.setdefault(reply.cluster, []).append(reply)
    return sorted_replies


def weighted_loss(replies: Sequence[Reply]) -> float | None:
    """Average the losses that are finite by numbers of samples, in nats; None if none is."""
    known = [reply for reply in replies if math.isfinite(reply.loss)]
    total = sum([reply.num_examples for reply in known])
    mean = math.fsum([reply.loss * reply.num_examples for reply in known]) / total if total else math.nan
    return mean if math.isfinite(mean) else None


def weighted_mean(replies: Sequence[Reply], names: Iterable[str]) -> dict[str, Array]:
    """Average the replies' models, weighted by samples, in float64; of integer arrays, take the largest.

    Replies that share a model count together, so the mean hardly depends on which clients share a node.

    Parameters
    ----------
    replies
        At least one.
    names
        Names of the arrays to average.

    Returns
    -------
    The means in float64, by name; of a single model, its arrays unchanged.
    """
    models, samples = {id(reply.model): reply.model for reply in replies}, Counter[int]()
    for reply in replies:
        samples[id(reply.model)] += reply.num_examples
    if len(models) == 1:
        (only,) = models.values()
        return {name: only[name] for name in names}
    weights = np.array([samples[key] for key in models], dtype=np.float64)
    means: dict[str, Array] = {}
    for name in names:
        values = [to_numpy(model[name]) for model in models.values()]
        averaged = values[0].dtype.kind in "fc"
        mean = weighted_sums(values, weights) / weights.sum() if averaged else np.max(values, axis=0)
        means[name] = from_numpy(np.asarray(mean))
    return means


@dataclass(frozen=True)
class Caps:
    """How far clients may move a cluster's model.

    Attributes
    ----------
    norm
        Largest length of an update, in multiples of the median; None for any.
    pull
        Largest pull (samples times length) of an update, in multiples of the median; None for any.
    rows
        Most rows that a client counts for, see :func:`fedclust.proof.counted`; None for all of them.
    """

    norm: float | None = None
    pull: float | None = None
    rows: float | None = None

    def instruction(self, described: IntArray | None) -> dict[str, Any]:
        """Return the fields of an instruction that hold a node's clients to these limits.

        Parameters
        ----------
        described
            Training rows of each client, as it says, shape (K,); None if nobody asked.
        """
        most = self.most_rows(described)
        return {"norm_cap": self.norm} | ({} if most is None else {"most_rows": most})

    def most_rows(self, described: IntArray | None) -> int | None:
        """Return how many rows of a client count; None if all rows of all clients do."""
        if described is None or not len(described):
            return None
        most = int(counted(described, self.rows).max())
        return most if most < described.max() else None


ANY = Caps()
"""Any length and any pull."""


def update_norm(model: ArrayRecord, start: ArrayRecord | None = None) -> float:
    """Compute the length of the change by training, over all floating-point arrays of finite models.

    Without a start, that of the model.
    """
    squares = 0.0
    with np.errstate(over="ignore"):
        for name, after in model.items():
            new = to_numpy(after)
            if new.dtype.kind != "f":
                continue
            old = np.zeros_like(new) if start is None else to_numpy(start[name])
            change = np.subtract(new, old).ravel()
            square = _square(change)
            if not math.isfinite(square):  # squares of float32 numbers may overflow float32
                wide = new.astype(np.float64).ravel() - old.astype(np.float64).ravel()
                square = _square(wide)
            squares += square
    return math.sqrt(squares)


def _square(change: FloatArray) -> float:
    # Not by BLAS: its threads would wait actively for 0.1 s, and the sum would depend on their number.
    return float(np.einsum("i,i->", change, change))


def too_long(
    models: Sequence[float],
    clients: Sequence[float],
    clusters: Sequence[int],
    cap: float,
    starts: Sequence[float] = (),
) -> dict[int, tuple[float, float]]:
    """Find the replies whose model moved too far.

    A cluster of ten replies or more has a cap of its own. With lengths e^x, it is e to the power of five
    standard deviations of x, estimated by 1.4826 times the median distance of x to its median, which up to
    half of the replies cannot change. It is in [10, `cap`], as honest lengths are not normal.

    Parameters
    ----------
    models
        Length of the update of each reply's model, which several may share, shape (n,).
    clients
        Length of each client's own update, as it or its node reports, shape (n,).
    clusters
        Cluster of each, shape (n,).
    cap
        Largest length of an update, in multiples of the median of `clients`.
    starts
        Length of the model that each started from; an update of at most a tenth of it is not too long: where
        most clients' losses are about 0, those of others are many times as long. By default any may be.

    Returns
    -------
    The median that was exceeded and the multiple of it that was allowed, by position. The median is over the
    reply's cluster, or over all clusters if that has fewer than three replies; with fewer than three in all,
    no update is too long.

    Examples
    --------
    >>> lengths = [*range(90, 100), 2000]  # the median is 95, the others are at most 5 away from it
    >>> too_long(lengths, lengths, [0] * 11, cap=30)
    {10: (95, 10.0)}
    >>> too_long(lengths, lengths, [0] * 11, cap=30, starts=[20_000] * 11)
    {}
    """
    if len(models) < _FEWEST:
        return {}
    medians, caps = _medians(clients, clusters), dict.fromkeys(clusters, cap)
    for cluster, number in Counter(clusters).items():
        own = np.array([norm for norm, of in zip(clients, clusters, strict=True) if of == cluster])
        if number >= _MANY and medians[cluster] > 0:
            logs = np.log(own[own > 0] / medians[cluster])
            spread = _OF_NORMAL * float(np.median(np.abs(logs - np.median(logs))))
            caps[cluster] = min(cap, max(LEAST_CAP, math.exp(min(_SPREADS * spread, math.log(cap)))))
    floors = [_NOTICED * each for each in starts] or [0.0] * len(models)
    return {
        position: (medians[cluster], caps[cluster])
        for position, (norm, cluster, floor) in enumerate(zip(models, clusters, floors, strict=True))
        if 0 < medians[cluster] < norm / caps[cluster] and norm > floor
    }


def too_long_line(norm: float, median: float, cap: float) -> str:
    """Explain why an update is left out."""
    most = f"{cap:g} times as long as the median of {median:.3g}"
    return f"update must be at most {most}, got length {norm:.3g}"


def limited_weights(
    num_examples: Sequence[int], norms: Sequence[float], clusters: Sequence[int], cap: float
) -> list[int]:
    """Lower the numbers of samples of replies whose pull on a weighted mean is too large.

    Parameters
    ----------
    num_examples
        Number that each reply reports, >= 1, shape (n,).
    norms
        Length of each client's update, shape (n,).
    clusters
        Cluster of each, shape (n,).
    cap
        Largest pull, in multiples of the median of samples times length.

    Returns
    -------
    Numbers in 1 to `num_examples`, shape (n,), with which samples times `norms` is at most `cap` times the
    median, over the same replies as in :func:`too_long`.
    """
    if len(norms) < _FEWEST:
        return list(num_examples)
    medians = _medians([number * norm for number, norm in zip(num_examples, norms, strict=True)], clusters)
    limited = []
    for number, norm, cluster in zip(num_examples, norms, clusters, strict=True):
        most = cap * medians[cluster]
        limited.append(max(1, math.floor(most / norm)) if 0 < most < number * norm else number)
    return limited


def _medians(values: Sequence[float], clusters: Sequence[int]) -> dict[int, float]:
    """Compute each cluster's median; for clusters of fewer than three, the median over all clusters."""
    everyone, grouped = median(values), dict[int, list[float]]()
    for value, cluster in zip(values, clusters, strict=True):
        grouped.setdefault(cluster, []).append(value)
    return {cluster: median(own) if len(own) >= _FEWEST else everyone for cluster, own in grouped.items()}
