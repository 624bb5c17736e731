"""Metrics of times until an event that may be censored: concordance, Kaplan–Meier curves, Brier scores.

A row has a time and an event: 1 if the event happened at that time, 0 if the row was observed until then
without it (*censored*). :mod:`scikit-survival` and :mod:`lifelines` have the same functions; a node computes
them on its own rows, and neither of the two is light enough for every hospital's machine. The tests compare
with both.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import BoolArray, FloatArray

_BLOCK = 1 << 22  # pairs of rows that are compared at a time


def _checked(times: ArrayLike, events: ArrayLike) -> tuple[FloatArray, BoolArray]:
    times, happened = np.asarray(times, dtype=np.float64), np.asarray(events)
    check_shapes(times=(times, "rows?"), events=(happened, "rows?"))
    check_entries("finite", times=times)
    if not np.isin(happened, (0, 1)).all():
        raise ValueError(f"events must be 0 or 1, got {happened[~np.isin(happened, (0, 1))][0]}")
    return times, happened.astype(bool)


def concordance_by_row(
    times: ArrayLike, events: ArrayLike, risks: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Count each row's comparable pairs, and those in which the earlier event has the higher risk.

    Source: Harrell, Califf, Pryor, Lee and Rosati, "Evaluating the yield of medical tests", JAMA 247, 1982. A
    pair is comparable if the row with the shorter time had the event; of rows with equal times, if exactly
    one had it, which counts as the earlier one. A pair with equal risks counts one half.

    Parameters
    ----------
    times, events
        Time of each row, and whether the event happened then (1) or the row was censored (0), shape (n,).
    risks
        Predicted risk of each row: any number that is larger the sooner the event is expected, shape (n,).

    Returns
    -------
    Comparable pairs that each row is in, and the concordant ones among them, each of shape (n,).

    Raises
    ------
    ValueError
        If the shapes differ, an event is neither 0 nor 1, or a time or a risk is not finite.

    Examples
    --------
    >>> pairs, concordant = concordance_by_row([1, 2, 3], [1, 0, 1], [0.9, 0.5, 0.95])
    >>> pairs, concordant  # only the first row's event is earlier than others' times
    (array([2., 1., 1.]), array([1., 1., 0.]))
    """
    times, happened = _checked(times, events)
    risks = np.asarray(risks, dtype=np.float64)
    check_shapes(times=(times, "rows?"), risks=(risks, "rows?"))
    check_entries("finite", risks=risks)
    pairs, concordant = np.zeros(len(times)), np.zeros(len(times))
    earlier = np.flatnonzero(happened)
    step = max(1, _BLOCK // max(1, len(times)))
    for first in range(0, len(earlier), step):
        block = earlier[first : first + step]
        later = times[None, :] > times[block, None]
        later |= (times[None, :] == times[block, None]) & ~happened[None, :]
        share = (risks[None, :] < risks[block, None]) + 0.5 * (risks[None, :] == risks[block, None])
        share *= later
        pairs[block] += later.sum(axis=1)
        concordant[block] += share.sum(axis=1)
        pairs += later.sum(axis=0)
        concordant += share.sum(axis=0)
    return pairs, concordant


def concordance(times: ArrayLike, events: ArrayLike, risks: ArrayLike) -> float:
    """Compute Harrell's concordance: the share of comparable pairs that the risks put in the right order.

    Parameters
    ----------
    times, events, risks
        As for :func:`concordance_by_row`.

    Returns
    -------
    In [0, 1], ½ for risks that say nothing; NaN without a comparable pair.

    Raises
    ------
    ValueError
        As for :func:`concordance_by_row`.

    Examples
    --------
    >>> concordance([1, 2, 3, 4], [1, 1, 0, 1], [0.9, 0.4, 0.5, 0.1])  # five pairs, one in the wrong order
    0.8
    """
    pairs, concordant = concordance_by_row(times, events, risks)
    return float(concordant.sum() / pairs.sum()) if pairs.any() else float("nan")


def kaplan_meier(times: ArrayLike, events: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Estimate the survival of a group.

    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958; the
    variance is Greenwood's, 1926.

    Parameters
    ----------
    times, events
        As for :func:`concordance_by_row`.

    Returns
    -------
    The distinct times t, increasing, shape (m,); the estimated probability of no event until t, those at t
    included, shape (m,); and its standard error, shape (m,).

    Raises
    ------
    ValueError
        If the shapes differ, an event is neither 0 nor 1, or a time is not finite.

    Examples
    --------
    >>> at, survival, _ = kaplan_meier([1, 2, 2, 4], [1, 1, 0, 1])
    >>> at, survival  # 3/4, 3/4·2/3, and 0
    (array([1., 2., 4.]), array([0.75, 0.5 , 0.  ]))
    """
    times, happened = _checked(times, events)
    at, places, numbers = np.unique(times, return_inverse=True, return_counts=True)
    deaths = np.bincount(places, weights=happened, minlength=len(at))
    at_risk = len(times) - np.concatenate([[0], np.cumsum(numbers)[:-1]]) if len(at) else np.zeros(0)
    survival = np.cumprod(1 - deaths / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
        errors = np.where(survival > 0, survival * np.sqrt(terms), 0.0)
    return at, survival, errors


def life_table(events: ArrayLike, censored: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Estimate the survival of a group from counts of intervals, as :func:`kaplan_meier` does from times.

    Source: Cutler and Ederer, "Maximum utilization of the life table method in analyzing survival", Journal
    of Chronic Diseases 8, 1958: a row that is censored within an interval counts as half at risk there. The
    variance is Greenwood's.

    Parameters
    ----------
    events, censored
        Rows with the event in each interval, and rows censored there, in the order of time, shape (J,).

    Returns
    -------
    Probability of no event until each interval's end, its standard error, and the rows at risk at each
    interval's start, each of shape (J,). Where nobody is at risk, the probability stays.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> survival, _, at_risk = life_table(events=[2, 1], censored=[2, 0])
    >>> survival.round(3), at_risk  # 5 rows; 1 − 2/(5 − 1), and of the one that is left, none
    (array([0.5, 0. ]), array([5., 1.]))
    """
    happened, gone = np.asarray(events, dtype=np.float64), np.asarray(censored, dtype=np.float64)
    check_shapes(events=(happened, "intervals"), censored=(gone, "intervals"))
    left = np.cumsum((happened + gone)[::-1])[::-1]
    exposed = left - gone / 2
    there = np.where(exposed > 0, exposed, 1.0)
    survival = np.cumprod(1 - happened / there)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.cumsum(np.where(exposed > 0, happened / (there * (there - happened)), 0.0))
        errors = np.where(survival > 0, survival * np.sqrt(terms), 0.0)
    return survival, errors, left


def survival_at(at: FloatArray, survival: FloatArray, moments: ArrayLike) -> FloatArray:
    """Read a survival curve.

    Parameters
    ----------
    at, survival
        As :func:`kaplan_meier` returns them.
    moments
        Times to read it at, any shape.

    Examples
    --------
    >>> survival_at(np.array([1.0, 2.0]), np.array([0.75, 0.5]), [0.5, 1.0, 3.0])
    array([1.  , 0.75, 0.5 ])
    """
    places = np.searchsorted(at, np.asarray(moments, dtype=np.float64), side="right")
    return np.concatenate([[1.0], survival])[places]


def integrated_brier(
    times: ArrayLike,
    events: ArrayLike,
    survival: ArrayLike,
    moments: ArrayLike,
    censoring: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """Compute the integrated Brier score of predicted survival, with weights for who is censored.

    Source: Graf, Schmoor, Sauerbrei and Schumacher, "Assessment and comparison of prognostic classification
    schemes for survival data", Statistics in Medicine 18, 1999. At a moment t a row whose event came before
    counts Ŝ(t)² / G(its time), a row still observed after t counts (1 − Ŝ(t))² / G(t), a row censored before
    t counts nothing, where G is the Kaplan–Meier estimate of not being censored; the mean over rows is
    integrated over the moments by the trapezoid rule, and divided by their range. As in scikit-survival, an
    event counts nothing where G is 0.

    Parameters
    ----------
    times, events
        As for :func:`concordance_by_row`.
    survival
        Predicted probability of no event until each moment, in [0, 1], shape (n, m).
    moments
        Increasing times, at least two, shape (m,).
    censoring
        Times and events of the rows that G is estimated from; those of `times` and `events` unless given.

    Returns
    -------
    In [0, 1]: 0 for certain and right, ¼ for Ŝ = ½ throughout; 1 also where equal times make the weights of
    wrong predictions add up to more.

    Raises
    ------
    ValueError
        If there are no rows, the shapes do not fit, moments do not increase, or a survival is not in [0, 1].

    Examples
    --------
    >>> integrated_brier([1, 3], [1, 1], [[0.5, 0.5], [0.5, 0.5]], [1.5, 2.5])
    0.25
    """
    times, happened = _checked(times, events)
    survival, moments = np.asarray(survival, dtype=np.float64), np.asarray(moments, dtype=np.float64)
    check_shapes(survival=(survival, f"{len(times)} moments"), moments=(moments, "moments"))
    check_entries("in [0, 1]", survival=survival)
    if len(moments) < 2 or (np.diff(moments) <= 0).any():
        raise ValueError(f"moments must be at least 2 increasing times, got {moments.tolist()}")
    since, left = (times, happened) if censoring is None else _checked(*censoring)
    at, places, numbers = np.unique(since, return_inverse=True, return_counts=True)
    events_at = np.bincount(places, weights=left, minlength=len(at))
    # Of rows with equal times, those with the event leave before those that are censored.
    at_risk = np.cumsum(numbers[::-1])[::-1] - events_at
    uncensored = np.cumprod(1 - (numbers - events_at) / np.maximum(at_risk, 1))
    own, there = (survival_at(at, uncensored, each) for each in (times, moments))
    before, after = (times[:, None] <= moments) & happened[:, None], times[:, None] > moments
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(before & (own > 0)[:, None], survival**2 / own[:, None], 0.0)
        scores += np.where(after, (1 - survival) ** 2 / there, 0.0)
        means = scores.mean(axis=0)
    area = (np.diff(moments) * (means[1:] + means[:-1]) / 2).sum()
    score = area / (moments[-1] - moments[0])
    return float(np.minimum(score, 1.0))
