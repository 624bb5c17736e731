"""Test whether one model predicts clients' held-out rows better than another.

For each row, d is the Brier score of model A minus that of model B, in [−2, 2]: above 0, B is better. Each
client reports twelve numbers about its rows, computed by :func:`evidence`; :func:`compare` adds them up and
tests whether the mean of d over rows is above a margin, and :func:`holm` corrects several tests.

**Rows count, not clients**: a client's rows count up to three times those of the median client
(:func:`most_rows`), so that neither one with two rows nor one with a thousand decides.

With N >= 120 rows the test is Hall's: Student's t of a mean, transformed so that the skewness of the
differences is allowed for. Models mostly differ by a little on many rows and by much on few, and without the
transformation B is then called better far too often. A rare loss that is in none of the rows is not in their
skewness either, so the p-value is at least half the probability of missing it (:func:`unseen`): at a level of
5 %, B is then called better in no more than 10 %, whatever the differences (benchmarks/level.py). With fewer
rows the test is a bet: on each row a gambler stakes a share of what it owns on "d is above the margin", at
odds that are fair if the mean is the margin. What it owns is then on average no more than what it began with,
so that 1/(what it owns) is a p-value: for any distribution, from one row upwards, at the price of power.
Differences that are all of full size, such as votes (:mod:`fedclust.proof.votes`), are counted instead: the
p-value is the binomial one, which is no smaller for rows of different chances (Hoeffding, "On the
distribution of the number of successes in independent trials", Annals of Mathematical Statistics 27, 1956).

Assumptions. The clients are given; each client's held-out rows are a random sample of its data, drawn
independently of the rows that either model was trained on and of the choice of what is compared.

A client may report any values within the bounds of its rows. With ten or more clients that vote, B must
also be shown to be better without the most and the least favourable tenth of them; the p-value is the larger
of the two. Votes that the others' rows make unlikely are left out before (:func:`unlikely`). docs/ATTACKS.md
has the figures.

Sources: Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54,
1992; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal
Statistical Society B 86, 2024; Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
Journal of Statistics 6, 1979.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import FloatArray, IntArray

BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.4, 1.9)
"""λ: at a margin of 0, a row can take λ/2 of what the gambler owns, or add as much."""

LARGEST_BRIER = 2.0
"""Differences of two Brier scores lie in [−2, 2]."""

ENOUGH_ROWS = 120
"""Rows from which the test is Hall's: with 100, a loss of 1.2 in one row of 50 misled 14 tests of 100."""

_ROUNDING = 1e-9
_MOST_OF_MEDIAN = 3
_MANY_VOTES = 10
_FAR = 0.5  # of the largest difference
_SPREADS = 4  # of the votes nearest to the median; far above what clients' data explain
_UNSEEN_ROWS = 3  # of n rows none of which shows an event, it has a probability of up to 3/n (at 95 %)
_CHANCE = 1e-3  # by Bennett's bound, which is mostly far above the probability


@dataclass(frozen=True, eq=False)
class Evidence:
    """Statistics of the differences d of one client or several.

    Attributes
    ----------
    count
        Number of rows n.
    sums
        Σd, Σd² and Σd³, shape (3,).
    log_wealth
        Σ ln(1 + λ(x − m)) for each margin and each bet λ of :data:`BETS`, shape (margins, 8), with
        x = (1 + d/limit)/2 and m = (1 + margin/limit)/2; λ is scaled by 1/(2m), which is 1 at a margin of 0.

    Examples
    --------
    >>> Evidence(4, np.array([2.0, 1.0, 0.5]), np.zeros((0, 8))).mean
    0.5
    """

    count: int
    sums: FloatArray
    log_wealth: FloatArray

    @property
    def mean(self) -> float:
        """Mean of d; NaN without rows."""
        return float(self.sums[0]) / self.count if self.count else math.nan


def stakes(margins: FloatArray, limit: float = LARGEST_BRIER) -> tuple[FloatArray, FloatArray]:
    """Compute the stakes of bets on "the mean of d is above the margin".

    Parameters
    ----------
    margins
        In [−limit, limit], shape (margins,).
    limit
        Largest difference.

    Returns
    -------
    fair
        m, the margin as a share of the differences' range, in [0, 1], shape (margins,).
    stakes
        λ/(2m), which is at least λ/2 and keeps 1 + stake·(x − m) > 0 for every x in [0, 1], shape
        (margins, 8). Limited where m is about 0: a larger one would turn a row's rounding into a gain.

    Examples
    --------
    >>> fair, staked = stakes(np.array([0.0]))
    >>> fair, float(staked[0, -1])
    (array([0.5]), 1.9)
    """
    fair = (1 + np.asarray(margins, dtype=np.float64) / limit) / 2
    return fair, np.array(BETS) / (2 * np.maximum(fair, 1e-4)[:, None])


def evidence(
    differences: FloatArray, margins: Sequence[float] | FloatArray = (0.0,), limit: float = LARGEST_BRIER
) -> Evidence:
    """Reduce a client's differences to what it reports.

    Parameters
    ----------
    differences
        d of each row, in [−limit, limit], shape (n,).
    margins
        The margins to bet on, each in [−limit, limit].
    limit
        Largest difference.

    Raises
    ------
    ValueError
        If a difference or a margin is outside its range.

    Examples
    --------
    >>> evidence(np.array([0.5, -0.1]), margins=[0.0]).sums.round(6)  # Σd, Σd² and Σd³
    array([0.4  , 0.26 , 0.124])
    """
    d = np.asarray(differences, dtype=np.float64)
    check_shapes(differences=(d, "rows?"))
    check_entries(f"in [{-limit - 1e-9}, {limit + 1e-9}]", differences=d, margins=margins)
    d = np.clip(d, -limit, limit)  # beyond only by rounding
    fair, staked = stakes(np.asarray(margins, dtype=np.float64), limit)
    x = (1 + d / limit) / 2
    log_wealth = np.log1p(staked[..., None] * (x - fair[:, None, None])).sum(axis=-1)
    return Evidence(len(d), np.array([d.sum(), np.square(d).sum(), (d**3).sum()]), log_wealth)


def possible(
    of: Evidence, margins: Sequence[float] | FloatArray = (0.0,), limit: float = LARGEST_BRIER
) -> bool:
    """Return whether some rows could have this evidence, up to rounding.

    With u = d/limit in [−1, 1], E(1 ± u)(a + bu)² >= 0 for all a and b: two matrices of the moments have no
    negative eigenvalue, which is also enough for moments up to the third. The logarithm of 1 + stake·(x − m)
    is concave in x: with a mean x̄ its mean is at most that at x̄ (Jensen), and at least that of rows of which
    a share x̄ has x = 1 and the others x = 0.

    Parameters
    ----------
    of
        The numbers, which must be finite.
    margins, limit
        As for :func:`evidence`.

    Examples
    --------
    >>> possible(evidence(np.array([0.5, -0.1])))
    True
    >>> possible(Evidence(1, np.array([3.0, 9.0, 27.0]), np.zeros((1, 8))))  # a difference of 3
    False
    """
    if not of.count:
        return not (np.any(of.sums) or np.any(of.log_wealth))
    first, second, third = (float(each) for each in of.sums / (of.count * limit ** np.arange(1, 4)))
    for sign in (1, -1):  # of u and of −u
        corners = 1 + sign * first, second + sign * third
        if min(corners) < -_ROUNDING or corners[0] * corners[1] < (first + sign * second) ** 2 - _ROUNDING:
            return False
    fair, staked = stakes(np.asarray(margins, dtype=np.float64), limit)
    share, fair = min(max((1 + first) / 2, 0.0), 1.0), fair[:, None]
    most = np.log1p(staked * (share - fair))
    least = share * np.log1p(staked * (1 - fair)) + (1 - share) * np.log1p(-staked * fair)
    mean = of.log_wealth / of.count
    return bool(np.all((least - _ROUNDING <= mean) & (mean <= most + _ROUNDING)))


def pooled(reports: Sequence[Evidence]) -> Evidence:
    """Add up the evidence of clients, without their bets if these were on different margins.

    Examples
    --------
    >>> both = pooled([evidence(np.array([0.5])), evidence(np.array([-0.1]))])
    >>> both.count, round(both.mean, 6)
    (2, 0.2)
    """
    if not reports:
        return Evidence(0, np.zeros(3), np.zeros((1, len(BETS))))
    alike = len({each.log_wealth.shape for each in reports}) == 1
    return Evidence(
        sum(each.count for each in reports),
        np.sum([each.sums for each in reports], axis=0),
        np.sum([each.log_wealth for each in reports], axis=0) if alike else np.zeros((0, len(BETS))),
    )


def moments(of: Evidence) -> tuple[float, float, float]:
    """Compute the mean, the population standard deviation and the skewness of d over all rows.

    The last two are 0 if all differences are equal, up to rounding.

    Examples
    --------
    >>> moments(evidence(np.array([1.0, -1.0])))
    (0.0, 1.0, 0.0)
    """
    mean, second, third = (float(each) / of.count for each in of.sums)
    variance = second - mean**2
    if variance <= 1e-12 * max(second, 1e-12):
        return mean, 0.0, 0.0
    return mean, math.sqrt(variance), (third - 3 * mean * second + 2 * mean**3) / variance**1.5


def standard_error(of: Evidence) -> float:
    """Compute the standard error of the mean of d; NaN without rows.

    Examples
    --------
    >>> standard_error(evidence(np.array([1.0, -1.0, 1.0, -1.0])))  # a deviation of 1, four rows
    0.5
    """
    return moments(of)[1] / math.sqrt(of.count) if of.count else math.nan


def hall(ratio: float, skewness: float, count: int) -> float:
    """Remove the skewness from a standardised mean.

    q = W + gW²/3 + g²W³/27 + g/(6N), Hall's transformation.

    Parameters
    ----------
    ratio
        W = (mean − margin)/standard deviation.
    skewness
        g of the differences.
    count
        Number of rows N.

    Examples
    --------
    >>> hall(2.0, skewness=0.0, count=10)  # nothing to remove
    2.0
    >>> hall(3.0, skewness=1.0, count=1)  # 3 + 9/3 + 27/27 + 1/6
    7.166666666666667
    """
    return ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + skewness / (6 * count)


def inverse_hall(value: float, skewness: float, count: int) -> float:
    """Invert :func:`hall`: compute W for a value q, from (1 + gW/3)³ = 1 + g(q − g/(6N)).

    Examples
    --------
    >>> inverse_hall(7 + 1 / 6, skewness=1.0, count=1)
    3.0
    """
    rest = value - skewness / (6 * count)
    # Close to 0, the cube root's difference from 1 has no digits left; to first order W is the rest.
    return 3 * float(np.cbrt(1 + skewness * rest) - 1) / skewness if abs(skewness) > 1e-6 else rest


def unseen(mean: float, margin: float, count: int, limit: float = LARGEST_BRIER) -> float:
    """Compute the probability that the rows miss all of the losses that would keep the mean at a margin.

    If a share r of all rows has d = −limit and none of the N rows is among them, they show a mean d̄ where the
    true one is d̄ − r(limit + d̄). It is the margin if r = (d̄ − margin)/(limit + d̄), and the N rows miss all
    such rows with a probability of (1 − r)^N.

    Parameters
    ----------
    mean
        d̄, of the rows that there are.
    margin
        The margin.
    count
        Number of rows N, >= 1.
    limit
        Largest difference.

    Examples
    --------
    >>> unseen(0.5, margin=0.0, count=2)  # a fifth of all rows: 0.8²
    0.6400000000000001
    """
    return (1 - max(mean - margin, 0.0) / (limit + mean)) ** count if mean > -limit else 1.0


def wealth(of: Evidence) -> FloatArray:
    """Compute the final wealth of a gambler who stakes 1, an eighth on each bet, shape (margins,).

    Examples
    --------
    >>> wealth(evidence(np.array([0.0, 0.0])))  # at a margin of 0 such rows win and lose nothing
    array([1.])
    """
    from scipy.special import logsumexp  # clients import this module and never test

    return np.asarray(np.exp(np.minimum(logsumexp(of.log_wealth, axis=-1) - math.log(len(BETS)), 700.0)))


def p_value(of: Evidence, margin: float = 0.0, *, enough: bool | None = None) -> float:
    """Test whether the mean of d is above a margin, the only one that was bet on.

    Parameters
    ----------
    of
        The differences of all clients that vote.
    margin
        The margin.
    enough
        Whether there are enough rows for Hall's test; by default, if there are :data:`ENOUGH_ROWS`.

    Returns
    -------
    In [0, 1]; 1 without rows.

    Examples
    --------
    >>> p_value(evidence(np.zeros(5)))
    1.0
    >>> p_value(evidence(np.full(200, 0.5))) < 1e-6
    True
    >>> p_value(evidence(np.array([2.0, 2.0, 2.0, 2.0, -2.0])))  # (5 + 1)/2**5
    0.1875
    """
    if not of.count:
        return 1.0
    fair = (1 + margin / LARGEST_BRIER) / 2
    if of.sums[1] == of.count * LARGEST_BRIER**2:  # all are of full size: the exact test of their number
        from scipy.special import bdtrc

        better = round((of.count + float(of.sums[0]) / LARGEST_BRIER) / 2)
        return float(bdtrc(better - 1, of.count, fair)) if better else 1.0
    mean, deviation, skewness = moments(of)
    if not (of.count >= ENOUGH_ROWS if enough is None else enough) or deviation == 0:
        return float(min(1.0, 1 / wealth(of)[0]))
    from scipy.special import stdtr

    value = hall((mean - margin) / deviation, skewness, of.count)
    by_hall = float(stdtr(of.count - 1, -math.sqrt(of.count) * value))
    return max(by_hall, unseen(mean, margin, of.count) / 2)


def least_gain(error: float, count: int, level: float, margin: float = 0.0) -> float:
    """Compute the least gain that a test of so many rows could show, with differences that spread like these.

    Of a gain of that size about half of all tests show that it is above the margin. The differences are taken
    to be half a deviation above the gain and half below it, which has no skewness.

    Parameters
    ----------
    error
        Standard error of the mean of d.
    count
        Number of rows N, >= 1.
    level
        Level of the test, in (0, 1).
    margin
        The margin that a gain must exceed.

    Returns
    -------
    In (margin, 2]; 2 where no gain could be shown.

    Examples
    --------
    >>> round(least_gain(0.02, count=400, level=0.05), 3)  # 1.65 standard errors
    0.033
    >>> least_gain(0.02, count=1, level=0.05)  # one row proves nothing
    2.0
    """
    deviation = error * math.sqrt(count)

    def shown(gain: float) -> bool:
        ends = np.clip([gain - deviation, gain + deviation], -LARGEST_BRIER, LARGEST_BRIER)
        fair, staked = stakes(np.array([margin]))
        x = (1 + ends / LARGEST_BRIER) / 2
        log_wealth = count * np.log1p(staked[..., None] * (x - fair[:, None, None])).mean(axis=-1)
        sums = np.array([np.mean(ends**power) for power in (1, 2, 3)]) * count
        return p_value(Evidence(count, sums, log_wealth), margin) <= level

    low, high = margin, LARGEST_BRIER
    if not shown(high):
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def most_rows(counts: IntArray, times: float = _MOST_OF_MEDIAN) -> int:
    """Return the largest number of rows with which a client counts: three times the median client's.

    Parameters
    ----------
    counts
        Rows of each client, shape (K,); clients without rows are ignored.
    times
        Another multiple of the median.

    Examples
    --------
    >>> most_rows(np.array([0, 2, 10, 1000]))
    30
    """
    having = np.asarray(counts)[np.asarray(counts) > 0]
    return max(1, int(times * np.median(having))) if len(having) else 1


def counted(counts: IntArray, times: float | None) -> IntArray:
    """Limit the rows with which each client counts in a mean to a multiple of the median client's.

    With ten clients or more, the limit is lowered to the most rows that any client has once the tenth with
    the most is left out, but not below half of that multiple. So where sizes are alike, a tenth that lies
    about its rows gains little, however many it claims.

    Parameters
    ----------
    counts
        Rows of each client, shape (K,).
    times
        The multiple; None for all rows.

    Examples
    --------
    >>> counted(np.array([2, 10, 1000]), times=3)
    array([ 2, 10, 30])
    """
    counts = np.asarray(counts)
    having = np.sort(counts[counts > 0])
    if times is None or not len(having):
        return counts
    others = having[-1 - num_set_aside(len(having))]
    return np.minimum(counts, np.clip(others, most_rows(counts, times / 2), most_rows(counts, times)))


@dataclass(frozen=True)
class Comparison:
    """The result of comparing models A and B on the same held-out rows.

    Attributes
    ----------
    gain
        Mean over rows of the difference of Brier scores, A − B: above 0, B is better. NaN without rows.
    p_value
        One-sided: the probability of a gain this large if B is no better by more than the margin, also
        without the votes set aside. 1 without rows.
    num_clients
        Clients that voted: those with at least one row.
    better_for
        Number of them for which B was better.
    num_rows
        Rows that counted.
    gain_of_others, p_value_of_others
        Without the votes set aside; NaN and 1 without rows.
    error, error_of_others
        Standard errors of the two gains; NaN without rows.
    rows_of_others
        Rows that counted without the votes set aside.
    """

    gain: float
    p_value: float
    num_clients: int
    better_for: int
    num_rows: int = 0
    gain_of_others: float = math.nan
    p_value_of_others: float = 1.0
    error: float = math.nan
    error_of_others: float = math.nan
    rows_of_others: int = 0

    def least_gain(self, level: float, margin: float = 0.0) -> float:
        """Return the least gain above a margin that such a comparison could show, see :func:`least_gain`.

        Examples
        --------
        >>> compare([evidence(np.tile([0.2, -0.1], 50))] * 2).least_gain(0.05) < 0.04
        True
        >>> compare([]).least_gain(0.05)
        2.0
        """
        known = self.rows_of_others > 0
        return (
            least_gain(self.error_of_others, self.rows_of_others, level, margin) if known else LARGEST_BRIER
        )

    def exceeds(self, margin: float) -> bool:
        """Return whether B is better than A by a standard error more than a margin; False without votes.

        For choices between two models of which either may serve, where nothing has to be proven.

        Examples
        --------
        >>> Comparison(0.1, 0.04, 5, 4, gain_of_others=0.1, error=0.05, error_of_others=0.05).exceeds(0.01)
        True
        """
        of_all, of_others = self.gain - self.error, self.gain_of_others - self.error_of_others
        return of_all > margin and of_others > margin

    @property
    def gains(self) -> bool:
        """Whether B has the better mean, of all votes and without those set aside; False without any."""
        return self.gain > 0 and self.gain_of_others > 0

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON; None for those unknown because no client voted."""
        return {
            "voted": self.num_clients,
            "rows": self.num_rows,
            "gain": self.gain if self.num_clients else None,
            "gain_error": self.error if self.num_clients else None,
            "p_value": self.p_value,
            "better_for": self.better_for,
        }


def in_the_middle(reports: Sequence[Evidence]) -> tuple[list[Evidence], list[Evidence]]:
    """Return the votes of clients with rows, and those left without :func:`num_set_aside` at either end.

    Examples
    --------
    >>> votes = [evidence(np.array([value / 10])) for value in range(10)]
    >>> [round(vote.mean, 1) for vote in in_the_middle(votes)[1]]
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    """
    votes = sorted((each for each in reports if each.count), key=lambda each: each.mean)
    aside = num_set_aside(len(votes))
    return votes, votes[aside : len(votes) - aside]


def num_set_aside(num_clients: int) -> int:
    """Return how many of the most favourable votes, and of the least favourable, are set aside.

    A tenth of the voters if there are ten or more. Fewer without two of them would leave little to test;
    there every vote counts, even an invented one.

    Examples
    --------
    >>> num_set_aside(9), num_set_aside(25)
    (0, 2)
    """
    return num_clients // 10 if num_clients >= _MANY_VOTES else 0


def unlikely(reports: Sequence[Evidence], limit: float = LARGEST_BRIER) -> list[int]:
    """Find votes that lie outside what the others' rows make likely.

    Bennett's inequality bounds the probability that the mean of n rows, of variance v and each at most b from
    its expectation, is t away from it: exp(−(nv/b²)·h(bt/v)) with h(u) = (1 + u)ln(1 + u) − u. The centre is
    the median vote. The two thirds of the votes nearest to it give v, with three more rows that differ by all
    there is, as a rare loss may be in none of theirs; and t is what lies beyond four times the distance of
    the farthest of them, as clients' data differ. A vote of few rows is never unlikely.

    Source: Bennett, "Probability inequalities for the sum of independent random variables", Journal of the
    American Statistical Association 57, 1962.

    Parameters
    ----------
    reports
        Evidence of clients that compared the same two models; one without rows does not vote.
    limit
        Largest difference b.

    Returns
    -------
    Positions, ascending: those more than half the limit from the median, with a probability of at most
    0.001. None of fewer than ten votes.

    Examples
    --------
    >>> honest = [evidence(np.tile([0.3, -0.1], 10))] * 11
    >>> unlikely([*honest, evidence(np.full(20, -2.0))])
    [11]
    >>> unlikely([*honest, evidence(np.full(2, -2.0))])  # two rows may be anything
    []
    """
    places = [place for place, each in enumerate(reports) if each.count]
    if len(places) < _MANY_VOTES:
        return []
    votes = [reports[place] for place in places]
    centre = float(np.median([each.mean for each in votes]))
    away = np.array([abs(each.mean - centre) for each in votes])
    near = np.argsort(away, kind="stable")[: len(votes) - len(votes) // 3]
    core = pooled([votes[each] for each in near])
    squares = float(core.sums[1]) - 2 * centre * float(core.sums[0]) + core.count * centre**2
    variance = (max(squares, 0.0) + _UNSEEN_ROWS * limit**2) / (core.count + _UNSEEN_ROWS)
    beyond = np.maximum(away - _SPREADS * away[near].max(), 0.0)
    ratio, counts = limit * beyond / variance, np.array([each.count for each in votes])
    log_chance = -counts * variance / limit**2 * ((1 + ratio) * np.log1p(ratio) - ratio)
    found = (away > _FAR * limit) & (log_chance <= math.log(_CHANCE))
    return [place for place, out in zip(places, found, strict=True) if out]


def compare(reports: Sequence[Evidence], margin: float = 0.0) -> Comparison:
    """Test whether model B is better than model A by more than a margin.

    For a fair comparison both models' logits should have the label-prior correction, each for the class
    shares it was trained on, so that B must be better by more than the clients' label shares explain.

    Parameters
    ----------
    reports
        Evidence of each client, with bets on this margin alone; a client without rows does not vote.
    margin
        In [−2, 2].

    Returns
    -------
    The gain itself, and the p-value of a gain above the margin.

    Examples
    --------
    >>> comparison = compare([evidence(np.array([0.2, 0.4])), evidence(np.array([-0.3]))])
    >>> comparison.num_clients, comparison.better_for, round(comparison.gain, 6)
    (2, 1, 0.1)
    """
    votes, middle = in_the_middle(reports)
    whole, others = pooled(votes), pooled(middle)
    # The rows that are left get the same kind of test as all rows.
    of_others = p_value(others, margin, enough=whole.count >= ENOUGH_ROWS)
    return Comparison(
        gain=whole.mean,
        p_value=max(p_value(whole, margin), of_others),
        num_clients=len(votes),
        better_for=sum(each.mean > 0 for each in votes),
        num_rows=whole.count,
        gain_of_others=others.mean,
        p_value_of_others=of_others,
        error=standard_error(whole),
        error_of_others=standard_error(others),
        rows_of_others=others.count,
    )


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Correct the p-values of several tests, so that all share one level.

    Source: Holm, 1979. With the tests in order of their p-values, the i-th of m is multiplied by m − i + 1,
    and raised to the one before if that is larger. Rejecting what is at most α afterwards keeps the
    probability of any false rejection at most α, however the tests depend on each other.

    Parameters
    ----------
    p_values
        In [0, 1], shape (m,).

    Returns
    -------
    Corrected p-values in [0, 1], in the order given, shape (m,).

    Raises
    ------
    ValueError
        If a p-value is outside its range.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).round(6)  # 3·0.01, 1·0.04 raised to 2·0.03, 2·0.03
    array([0.03, 0.06, 0.06])
    """
    values = np.asarray(p_values, dtype=np.float64)
    check_entries("in [0, 1]", p_values=values)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
