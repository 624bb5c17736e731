"""Aggregate robustly against a few hostile clients of a cluster, whatever the cluster's size.

Flower's :class:`~flwr.serverapp.strategy.MultiKrum` and :class:`~flwr.serverapp.strategy.Bulyan` take a
number of attackers f, and need 2f + 3 and 4f + 3 replies for it. The number of replies differs by cluster and
round; with too few, Flower's Bulyan keeps the old model, for ever in a cluster that stays small. Here f is
lowered to the most that the round's replies allow, and this is logged. Flower's rules also collect garbage
for each reply, which takes longer than the rule.

The geometric median, which Flower lacks, needs no such number.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from scipy.spatial.distance import pdist, squareform

from fedclust.messages.codec import of_kind
from fedclust.messages.models import to_vector, with_vector
from fedclust.support.checks import checked
from fedclust.typing import FloatArray, IntArray

logger = logging.getLogger(__name__)

_MOST_STEPS = 300
_TOLERANCE = 1e-10  # of the objective, relative


def allowed_attackers(num_replies: int, num_malicious: int, replies_each: int) -> int:
    """Return the f that a rule can use among n replies: at most (n − 3)/c, so that cf + 3 <= n.

    Source: c = 2 for Krum and Multi-Krum, Blanchard et al., "Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent", NeurIPS 2017, Proposition 1; c = 4 for Bulyan, El Mhamdi et al., "The Hidden
    Vulnerability of Distributed Learning in Byzantium", ICML 2018, Section 4.
    """
    return max(0, min(num_malicious, (num_replies - 3) // replies_each))


def krum_scores(distances: FloatArray, num_malicious: int) -> FloatArray:
    """Add up each model's squared distances to the n − f − 2 nearest others, at least one.

    Source: Blanchard et al., 2017, Section 4.

    Parameters
    ----------
    distances
        Squared distances between models, shape (n, n).
    num_malicious
        f >= 0.

    Returns
    -------
    Scores, smaller is better, shape (n,); 0 for a single model.
    """
    others = np.array(distances, dtype=np.float64)
    np.fill_diagonal(others, np.inf)
    nearest = min(max(1, len(others) - num_malicious - 2), len(others) - 1)
    return np.asarray(np.sort(others, axis=1)[:, :nearest].sum(axis=1))


def select_krum(distances: FloatArray, num_malicious: int, number: int) -> IntArray:
    """Select the models with the smallest scores; of equal scores, the first.

    Parameters
    ----------
    distances, num_malicious
        As for :func:`krum_scores`.
    number
        Number of models to select, in 1…n.

    Returns
    -------
    Their rows, best first, shape (number,).
    """
    return np.argsort(krum_scores(distances, num_malicious), kind="stable")[:number]


def geometric_median(models: FloatArray) -> FloatArray:
    """Find the model whose sum of distances to all models is the smallest.

    Source: Weiszfeld's algorithm, smoothed as in Pillutla et al., "Robust Aggregation for Federated
    Learning", IEEE Transactions on Signal Processing 70, 2022 (RFA), Algorithm 2: repeat
    v ← Σ x_i/d_i / Σ 1/d_i with d_i = max(‖v − x_i‖, ν). Here it starts from the median of each coordinate,
    not from the mean, which a single model can move anywhere; ν is 1e-6 of the median distance from there.
    Fewer than half of the models cannot move the result arbitrarily far.

    Parameters
    ----------
    models
        One model per row, finite, shape (n, d).

    Returns
    -------
    The model, shape (d,).
    """
    rows = np.asarray(models, dtype=np.float64)
    centre = np.median(rows, axis=0)
    rows = rows - centre  # keeps the differences of long and similar models
    distances = np.linalg.norm(rows, axis=1)
    smallest = 1e-6 * float(np.median(distances)) or np.finfo(np.float64).tiny
    shift, before = np.zeros(rows.shape[1]), np.inf
    for _ in range(_MOST_STEPS):
        pull = 1 / np.maximum(distances, smallest)
        shift = (pull / pull.sum()) @ rows
        distances = np.linalg.norm(rows - shift, axis=1)
        objective = float(distances.sum())
        if before - objective <= _TOLERANCE * objective:
            break
        before = objective
    return np.asarray(centre + shift)


class _OfRows(FedAvg):
    """Makes the next model from the replies' models, laid out as rows; ignores numbers of samples."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies' models by the rule."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        first, names = _model(valid[0]), list(_model(valid[0]))
        made = with_vector(first, names, self.rule(server_round, _rows(valid)), cast=True)
        return made, self.train_metrics_aggr_fn([each.content for each in valid], self.weighted_by_key)

    def rule(self, server_round: int, models: FloatArray) -> FloatArray:
        """Combine models of shape (n, d) into one of shape (d,)."""
        raise NotImplementedError


class GeometricMedian(_OfRows):
    """The geometric median of the cohort's models, see :func:`geometric_median`.

    Source: Pillutla et al., 2022, who weight models by samples. Here all have the same weight: a client can
    report any number of samples, and half of the weight is all that an attacker needs.
    """

    def rule(self, server_round: int, models: FloatArray) -> FloatArray:  # noqa: ARG002
        """Find the geometric median."""
        return geometric_median(models)


class _Limited(_OfRows):
    """Lowers the configured number of attackers f to what the number of replies allows.

    Attributes
    ----------
    replies_each
        c, such that n >= cf + 3 replies are needed.
    """

    replies_each: ClassVar[int]

    @checked
    def __init__(self, *, num_malicious_nodes: Annotated[int, ">= 0"] = 0, **options: Any) -> None:
        super().__init__(**options)
        self.num_malicious_nodes = num_malicious_nodes

    def attackers(self, server_round: int, num_replies: int) -> int:
        """Return f for a number of replies; log if it was lowered."""
        asked = self.num_malicious_nodes
        allowed = allowed_attackers(num_replies, asked, self.replies_each)
        if allowed < asked:
            words = "round %d: %s allows for %d attackers instead of %d among %d replies"
            logger.info(words, server_round, type(self).__name__, allowed, asked, num_replies)
        return allowed


class Bulyan(_Limited):
    """Bulyan for clusters: with fewer than 4f + 3 replies f is lowered to (n − 3)/4.

    Source: El Mhamdi et al., 2018. As there, the n − 2f models are selected one by one: each time the one
    with the smallest Krum score among those left. (Flower takes the n − 2f smallest scores at once.) Then,
    for each parameter, the mean of the n − 4f values nearest to the selected ones' median. For one or two
    replies it is the mean. Numbers of samples have no influence.

    Parameters
    ----------
    num_malicious_nodes
        f >= 0 attackers of each cluster's cohort.
    options
        As for Flower's class.
    """

    replies_each = 4

    def rule(self, server_round: int, models: FloatArray) -> FloatArray:
        """Select models, shape (n, d), and average the values near their median, shape (d,)."""
        return _bulyan(models, self.attackers(server_round, len(models)))


class MultiKrum(_Limited):
    """Multi-Krum for clusters: the mean of the n − f − 2 models with the smallest scores.

    Source: Blanchard et al., 2017; this number as in Damaskinos et al., "AggregaThor", MLSys 2019. Weighted
    by samples, as in Flower. With fewer than 2f + 3 replies f is lowered to (n − 3)/2.

    Parameters
    ----------
    num_malicious_nodes
        f >= 0 attackers of each cluster's cohort.
    options
        As for Flower's class.
    """

    replies_each = 2

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the selected replies."""
        if not (listed := list(replies)):
            return None, None
        attackers = self.attackers(server_round, len(listed))
        number = max(1, len(listed) - attackers - 2)
        chosen = select_krum(_squared_distances(_rows(listed)), attackers, number)
        return FedAvg.aggregate_train(self, server_round, [listed[row] for row in chosen.tolist()])


def _bulyan(models: FloatArray, num_malicious: int) -> FloatArray:
    """Select n − 2f models one by one, then average each parameter's n − 4f values nearest their median.

    Parameters
    ----------
    models
        One model per row, shape (n, d).
    num_malicious
        f, with n >= 4f + 1.

    Returns
    -------
    The model, shape (d,).
    """
    apart, left = _squared_distances(models), list(range(len(models)))
    chosen: list[int] = []
    while len(chosen) < len(models) - 2 * num_malicious:
        best = int(select_krum(apart[np.ix_(left, left)], num_malicious, 1)[0])
        chosen.append(left.pop(best))
    values = models[chosen]
    nearest = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    kept = np.take_along_axis(values, nearest[: len(models) - 4 * num_malicious], axis=0)
    return np.asarray(kept.mean(axis=0))


def _model(reply: Message) -> ArrayRecord:
    return next(iter(of_kind(reply.content, ArrayRecord).values()))


def _rows(replies: Sequence[Message]) -> FloatArray:
    """Lay each reply's model out as a row, shape (n, d), float64."""
    return np.stack([to_vector(model, list(model)) for model in map(_model, replies)])


def _squared_distances(models: FloatArray) -> FloatArray:
    """Compute squared distances between rows, shape (n, n).

    From differences in double precision: Flower's ‖x‖² + ‖y‖² − 2xy in float32 loses the distances between
    long and similar models.
    """
    return np.asarray(squareform(pdist(models, "sqeuclidean")))
