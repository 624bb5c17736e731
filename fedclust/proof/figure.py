"""The figure that a verdict prints: how much better one model serves clients than another, on test rows.

Decisions are made on held-out rows and never on test rows, so a figure measured on test rows has no selection
bias, and its interval covers the truth whatever was decided. Both models are measured on the same rows; a
client's rows count up to three times those of the median client, as in the test
(:mod:`fedclust.proof.paired`).

The interval of a mean difference inverts Hall's transformation, and is wide enough for a rare difference that
none of the rows shows. With fewer than 200 rows it consists of the margins against which no bet was won,
which is wide enough for shares of pairs, too.
Sources: those of :mod:`fedclust.proof.paired`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.proof.paired import (
    LARGEST_BRIER,
    Evidence,
    evidence,
    in_the_middle,
    inverse_hall,
    moments,
    p_value,
    pooled,
    wealth,
)
from fedclust.typing import FloatArray

CONFIDENCE = 0.95
ENOUGH_ROWS = 200
"""Rows from which intervals are Hall's: of 120 rows, one sample in ten has none of a kind of 2 %."""
_STEPS = 81
NEGLIGIBLE = 0.01
"""Largest gain in Brier score that counts as none."""


def margins(limit: float = LARGEST_BRIER) -> FloatArray:
    """List the margins that clients bet on for an interval, in [−limit, limit], shape (81,).

    Examples
    --------
    >>> margins(1.0)[[0, 40, 80]]
    array([-1.,  0.,  1.])
    """
    return np.linspace(-limit, limit, _STEPS)


@dataclass(frozen=True, eq=False)
class Rows:
    """What a client reports of two models on its test rows.

    Attributes
    ----------
    hits
        Rows that A and that B predict right, shape (2,).
    brier, accuracy
        The differences d of the rows, A's Brier score minus B's in [−2, 2], and B's hits minus A's in
        [−1, 1]: above 0, B is better.
    brier_below, accuracy_below
        The same of −d, for the upper ends of intervals.
    by_shares, by_shares_less_b
        The Brier score of predicting the client's class shares, which needs no model, minus A's and minus
        B's.

    Examples
    --------
    >>> brier, hits = np.array([[0.5, 0.7], [0.1, 0.5]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> rows = Rows.of(brier, by_shares=np.array([0.5, 0.5]), hits=hits, bets=False)
    >>> rows.hits.tolist(), round(rows.brier.mean, 6)  # B is better by 0.4 and 0.2
    ([1.0, 2.0], 0.3)
    """

    hits: FloatArray
    brier: Evidence
    brier_below: Evidence
    accuracy: Evidence
    accuracy_below: Evidence
    by_shares: Evidence
    by_shares_less_b: Evidence

    @classmethod
    def of(cls, brier: FloatArray, by_shares: FloatArray, hits: FloatArray, bets: bool) -> "Rows":
        """Reduce a client's rows to what it reports.

        Parameters
        ----------
        brier
            Brier scores of A and of B, shape (2, n).
        by_shares
            Brier score of predicting the client's class shares, shape (n,).
        hits
            Whether A and B predict a row right, in [0, 1], shape (2, n).
        bets
            Whether to bet on :func:`margins`, which give the interval if rows are few.
        """
        lower, more = brier[0] - brier[1], hits[1] - hits[0]
        of_brier, of_accuracy = (margins(each) if bets else np.zeros(0) for each in (LARGEST_BRIER, 1.0))
        return cls(
            hits.sum(axis=1),
            evidence(lower, of_brier),
            evidence(-lower, of_brier),
            evidence(more, of_accuracy, 1.0),
            evidence(-more, of_accuracy, 1.0),
            evidence(by_shares - brier[0]),
            evidence(by_shares - brier[1]),
        )


@dataclass(frozen=True)
class Figure:
    """How well two models predict the clients' test rows.

    Attributes
    ----------
    num_rows
        Rows that count. If 0, because no client has any, the other figures are NaN.
    accuracy
        Share of them that A and that B predict right.
    accuracy_gain, accuracy_interval
        Mean difference of B's hits and A's, with its interval.
    gain, interval
        Mean difference of Brier scores, A − B, with its interval: above 0, B is better.
    better_for, num_clients
        Clients with a positive difference of Brier scores, and clients with rows.
    collapsed
        Whether A predicts no better than each client's class shares, which need no model: not shown to be
        better, and better by no more than 0.01 Brier, without the most and the least favourable tenth of
        ten clients or more.
    groups_inform
        Whether B is shown to predict better than each client's class shares, in the same way.
    confidence
        Confidence of all intervals.
    """

    num_rows: int
    accuracy: tuple[float, float]
    accuracy_gain: float
    accuracy_interval: tuple[float, float]
    gain: float
    interval: tuple[float, float]
    better_for: int
    num_clients: int
    collapsed: bool
    groups_inform: bool = False
    confidence: float = CONFIDENCE

    def summary(self) -> dict[str, Any]:
        """Return the figure as plain values, for JSON; without rows, all but their number are None."""
        figures = {
            "gain": self.gain,
            "interval": list(self.interval),
            "better_for": self.better_for,
            "accuracy_of_one_model": self.accuracy[0],
            "accuracy_of_groups": self.accuracy[1],
            "accuracy_gain": self.accuracy_gain,
            "accuracy_interval": list(self.accuracy_interval),
        }
        return {**(figures if self.num_rows else dict.fromkeys(figures)), "test_rows": self.num_rows}


def interval(
    above: Evidence,
    below: Evidence,
    limit: float = LARGEST_BRIER,
    confidence: float = CONFIDENCE,
    *,
    of_pairs: bool = False,
) -> tuple[float, float]:
    """Compute a two-sided interval of the mean of d over rows.

    Parameters
    ----------
    above, below
        Evidence of d and of −d, pooled over clients, with bets on :func:`margins`; without bets the interval
        is Hall's.
    limit
        Largest difference.
    confidence
        In (0, 1).
    of_pairs
        Whether d is a row's share of pairs. Each pair is in the shares of two rows, so the standard error of
        the mean is twice that of as many independent rows (Hoeffding, "A class of statistics with
        asymptotically normal distribution", Annals of Mathematical Statistics 19, 1948).

    Examples
    --------
    >>> differences = np.tile([0.1, 0.3], 5000)  # mean 0.2, standard error 0.001
    >>> low, high = interval(evidence(differences), evidence(-differences))
    >>> round(low, 3), round(high, 3)
    (0.198, 0.202)
    """
    count = above.count
    if not count:
        return math.nan, math.nan
    mean, deviation, skewness = moments(above)
    tried = margins(limit)
    if count >= ENOUGH_ROWS or not len(above.log_wealth):
        from scipy.special import stdtrit

        reach = (1 + of_pairs) * float(stdtrit(count - 1, (1 + confidence) / 2)) / math.sqrt(count)
        ratios = (inverse_hall(each, skewness, count) for each in (reach, -reach))
        low, high = (mean - deviation * each for each in ratios)
        share = 1 - ((1 - confidence) / 2) ** (1 / count)  # of rows like none of these, see `unseen`
        low, high = min(low, mean - share * (limit + mean)), max(high, mean + share * (limit - mean))
        return max(low, -limit), min(high, limit)
    won = 2 / (1 - confidence)
    # A margin against which no bet won may be the mean, and so may any value between it and the next.
    step = tried[1] - tried[0]
    low = tried[np.argmax(wealth(above) < won)] - step
    high = step - tried[np.argmax(wealth(below) < won)]
    return max(float(low), -limit), min(float(high), limit)


def measure(
    reports: Sequence[Rows], confidence: float = CONFIDENCE, level: float = 0.05, *, of_pairs: bool = False
) -> Figure:
    """Measure how much better B serves clients than A.

    If both have the same Brier score on every row, to the last digit, they are taken for one model: the
    difference is 0 without an interval.

    Parameters
    ----------
    reports
        What each client reported.
    confidence
        Confidence of the intervals, in (0, 1).
    level
        Level of the test of whether A has collapsed, in (0, 1).
    of_pairs
        Whether hits are shares of pairs, see :func:`interval`.

    Examples
    --------
    >>> brier, hits = np.array([[0.5, 0.7], [0.1, 0.5]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> rows = Rows.of(brier, by_shares=np.array([0.5, 0.5]), hits=hits, bets=True)
    >>> figure = measure([rows])
    >>> figure.accuracy, round(figure.gain, 6), figure.better_for
    ((0.5, 1.0), 0.3, 1)
    """
    brier, accuracy = pooled([each.brier for each in reports]), pooled([each.accuracy for each in reports])
    rows, having = brier.count, [each for each in reports if each.brier.count]
    hits = [float(sum(each.hits[side] for each in reports)) for side in (0, 1)]
    below, less = ([getattr(each, name) for each in reports] for name in ("brier_below", "accuracy_below"))
    # As in a test, one client's numbers can neither make nor hide a collapse of many.
    against_shares, groups_against = (
        pooled(in_the_middle([getattr(each, name) for each in reports])[1])
        for name in ("by_shares", "by_shares_less_b")
    )
    one_model = rows > 0 and brier.sums[1] == 0  # Σd²
    nothing = (0.0, 0.0)
    return Figure(
        num_rows=rows,
        accuracy=(hits[0] / rows, hits[1] / rows) if rows else (math.nan, math.nan),
        accuracy_gain=accuracy.mean,
        accuracy_interval=nothing
        if one_model
        else interval(accuracy, pooled(less), 1.0, confidence, of_pairs=of_pairs),
        gain=brier.mean,
        interval=nothing if one_model else interval(brier, pooled(below), LARGEST_BRIER, confidence),
        better_for=sum(each.brier.mean > 0 for each in having),
        num_clients=len(having),
        collapsed=rows > 0 and against_shares.mean <= NEGLIGIBLE and p_value(against_shares) > level,
        groups_inform=p_value(groups_against) <= level,
        confidence=confidence,
    )
