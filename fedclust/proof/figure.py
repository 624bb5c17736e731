"""The figure that a verdict prints: how much better one model serves clients than another, on test rows.

Whatever decided, held-out rows did; test rows decide nothing, so that a figure measured on them is not a
winner's, and its interval covers the truth whatever was decided. It is of the same rows for both models: a
client's count up to three times those of the median client, as in the test (:mod:`fedclust.proof.paired`).

The interval of a mean difference is Hall's transformation inverted, and with fewer than 200 rows, or where
all differences are alike, the margins against which no bet was won. That of a proportion is Wilson's.

Sources: those of :mod:`fedclust.proof.paired`; Wilson, "Probable inference, the law of succession, and
statistical inference", Journal of the American Statistical Association 22, 1927.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.proof.paired import LARGEST_BRIER, Evidence, inverse_hall, moments, p_value, pooled, wealth
from fedclust.typing import FloatArray

CONFIDENCE = 0.95
ENOUGH_ROWS = 200
"""From so many rows on an interval is Hall's: of 120 skewed differences, one in ten has no row of the rare kind."""
_STEPS = 81


def margins_for(num_rows: int, limit: float = LARGEST_BRIER) -> FloatArray:
    """List the margins that clients bet on for an interval: none where there are rows enough without.

    Parameters
    ----------
    num_rows
        Rows of all clients together.
    limit
        Largest difference.

    Returns
    -------
    Margins in [−limit, limit], shape (margins,).
    """
    return np.linspace(-limit, limit, _STEPS if num_rows < ENOUGH_ROWS else 0)


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
    by_shares
        A's Brier score minus that of a prediction of the client's class shares, which needs no model.
    """

    hits: FloatArray
    brier: Evidence
    brier_below: Evidence
    accuracy: Evidence
    accuracy_below: Evidence
    by_shares: Evidence


@dataclass(frozen=True)
class Figure:
    """How well two models predict the clients' test rows.

    Attributes
    ----------
    num_rows
        Rows that count; 0 where nobody has any, and then the rest is NaN.
    accuracy
        Share of them that A and that B predict right.
    accuracy_intervals
        Wilson's intervals of the two.
    accuracy_gain, accuracy_interval
        Mean difference of B's hits and A's, with its interval.
    gain, interval
        Mean difference of Brier scores, A − B, with its interval: above 0, B is better.
    better_for, num_clients
        Clients with a positive difference of Brier scores, and clients with rows.
    collapsed
        Whether A is not shown to predict better than each client's class shares do, which need no model.
    confidence
        Of all intervals.
    """

    num_rows: int
    accuracy: tuple[float, float]
    accuracy_intervals: tuple[tuple[float, float], tuple[float, float]]
    accuracy_gain: float
    accuracy_interval: tuple[float, float]
    gain: float
    interval: tuple[float, float]
    better_for: int
    num_clients: int
    collapsed: bool
    confidence: float = CONFIDENCE

    def summary(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "rows": self.num_rows,
            "accuracy_of_one_model": self.accuracy[0],
            "accuracy_of_groups": self.accuracy[1],
            "accuracy_gain": self.accuracy_gain,
            "accuracy_interval": list(self.accuracy_interval),
            "gain": self.gain,
            "interval": list(self.interval),
            "better_for": self.better_for,
            "clients": self.num_clients,
            "collapsed": self.collapsed,
        }


def wilson(hits: float, rows: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Compute Wilson's interval of a proportion.

    Source: Wilson, 1927. (p + z²/2n ± z√(p(1 − p)/n + z²/4n²)) / (1 + z²/n), p = hits/n; it is not empty
    where p is 0 or 1.

    Parameters
    ----------
    hits
        In [0, rows].
    rows
        Number of rows n, >= 0; without any the interval is [0, 1].
    confidence
        In (0, 1).
    """
    if not rows:
        return 0.0, 1.0
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    share, square = hits / rows, z**2 / rows
    half = z * math.sqrt(share * (1 - share) / rows + square / (4 * rows))
    ends = ((share + square / 2 + sign * half) / (1 + square) for sign in (-1, 1))
    low, high = (min(max(end, 0.0), 1.0) for end in ends)
    return (0.0 if hits == 0 else low), (1.0 if hits == rows else high)


def interval(
    above: Evidence, below: Evidence, limit: float = LARGEST_BRIER, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Compute a two-sided interval of the mean of d over rows.

    Parameters
    ----------
    above, below
        Of d and of −d, all clients' together; they bet on :func:`margins_for` the number of rows.
    limit
        Largest difference.
    confidence
        In (0, 1).
    """
    count = above.count
    if not count:
        return math.nan, math.nan
    mean, deviation, skewness = moments(above)
    if not len(above.log_wealth):
        if deviation == 0:  # nobody bet, as rows are many: Hoeffding's inequality
            half = limit * math.sqrt(2 * math.log(2 / (1 - confidence)) / count)
            return max(mean - half, -limit), min(mean + half, limit)
        from scipy.special import stdtrit

        reach = float(stdtrit(count - 1, (1 + confidence) / 2)) / math.sqrt(count)
        ratios = (inverse_hall(each, skewness, count) for each in (reach, -reach))
        low, high = (mean - deviation * each for each in ratios)
        return max(low, -limit), min(high, limit)
    margins = np.linspace(-limit, limit, len(above.log_wealth))
    step, won = margins[1] - margins[0], 2 / (1 - confidence)
    # A margin against which nobody won may be the mean, and so may what lies between it and the next.
    low = margins[np.argmax(wealth(above) < won)] - step
    high = step - margins[np.argmax(wealth(below) < won)]
    return max(float(low), -limit), min(float(high), limit)


def measure(reports: Sequence[Rows], confidence: float = CONFIDENCE, level: float = 0.05) -> Figure:
    """Measure how much better B serves clients than A.

    Parameters
    ----------
    reports
        What each client reported.
    confidence
        Of the intervals, in (0, 1).
    level
        Of the test whether A has collapsed, in (0, 1).
    """
    brier, accuracy = pooled([each.brier for each in reports]), pooled([each.accuracy for each in reports])
    rows, having = brier.count, [each for each in reports if each.brier.count]
    hits = [float(sum(each.hits[side] for each in reports)) for side in (0, 1)]
    below, less = ([getattr(each, name) for each in reports] for name in ("brier_below", "accuracy_below"))
    first, second = (wilson(each, rows, confidence) for each in hits)
    against_shares = pooled([each.by_shares for each in reports])
    return Figure(
        num_rows=rows,
        accuracy=(hits[0] / rows, hits[1] / rows) if rows else (math.nan, math.nan),
        accuracy_intervals=(first, second),
        accuracy_gain=accuracy.mean,
        accuracy_interval=interval(accuracy, pooled(less), 1.0, confidence),
        gain=brier.mean,
        interval=interval(brier, pooled(below), LARGEST_BRIER, confidence),
        better_for=sum(each.brier.mean > 0 for each in having),
        num_clients=len(having),
        collapsed=rows > 0 and p_value(against_shares) > level,
        confidence=confidence,
    )
