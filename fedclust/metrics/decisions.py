"""Figures for people who decide: sensitivity, specificity, calibration and intervals, from clients' counts.

A client sends counts of its predictions, not rows; see :mod:`fedclust.metrics.pooled`. Counts of several
clients add up to those of their pooled rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from fedclust.metrics.pooled import _HIGHEST, _LOWEST, NUM_BINS, Outcomes
from fedclust.typing import FloatArray, IntArray

__all__ = ["Decisions", "accuracy_interval", "decisions", "intervals", "pooled_confusion", "rates"]

_PARTS = 15
_DRAWS = 2_000
_LEVEL = 0.95

_WIDTH = (_HIGHEST - _LOWEST) / NUM_BINS
_CENTRES = expit(_LOWEST + (np.arange(NUM_BINS) + 0.5) * _WIDTH)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Figures of a model's predictions on some rows.

    Attributes
    ----------
    rows
        Number of rows.
    sensitivity, specificity
        Of each class against the rest, shape (C,); NaN without rows of the class, or of the others.
    brier
        Brier score; NaN without rows or where a client's scores are not finite.
    calibration_error
        Expected calibration error, likewise.
    """

    rows: int
    sensitivity: FloatArray
    specificity: FloatArray
    brier: float
    calibration_error: float


def rates(there: IntArray, predicted: IntArray, hits: IntArray) -> tuple[FloatArray, FloatArray]:
    """Compute each class's sensitivity and specificity against the rest.

    Parameters
    ----------
    there, predicted, hits
        Rows of each class, predictions of it, and correct ones, shape (..., C).

    Returns
    -------
    hits / there, and the share of the other rows that were not predicted as the class, both (..., C); NaN
    where there are no such rows.
    """
    there, predicted, hits = (np.asarray(each, dtype=float) for each in (there, predicted, hits))
    others = there.sum(axis=-1, keepdims=True) - there
    return _ratio(hits, there), _ratio(others - (predicted - hits), others)


def decisions(clients: Iterable[Outcomes]) -> Decisions:
    """Compute the figures of the pooled rows of some clients.

    Scores are taken at the centre of their bin, which is 0.01 wide in the logit. A probability p is then off
    by at most 0.005·p·(1 − p), at most 0.00125.

    - Brier score: the mean over rows of Σ_c (p_c − y_c)², halved for two classes, which makes it the usual
      (p − y)² (Brier, 1950; scikit-learn has the same convention).
    - Expected calibration error: scores of a class fall into 15 intervals of equal width; the sum over them
      of |Σ p − rows of the class| over the number of rows; the mean over classes (Kull et al., 2019,
      class-wise; for two classes it is that of the second class).

    Raises
    ------
    ValueError
        If the clients' numbers of classes differ, or there are no clients.
    """
    clients = list(clients)
    if len(sizes := {len(each.there) for each in clients}) != 1:
        raise ValueError(f"clients must be some, with one number of classes, got {sorted(sizes)}")
    there, predicted, hits = (
        np.sum([getattr(each, name) for each in clients], axis=0) for name in ("there", "predicted", "hits")
    )
    rows = int(there.sum())
    sensitivity, specificity = rates(there, predicted, hits)
    brier = error = float("nan")
    if rows and all(each.bins is not None for each in clients):
        brier, error = _calibration(clients, len(there), rows)
    return Decisions(rows, sensitivity, specificity, brier, error)


def _calibration(clients: list[Outcomes], num_classes: int, rows: int) -> tuple[float, float]:
    squares = 0.0
    gaps = np.zeros((num_classes, _PARTS))
    for each in clients:
        if each.bins is None:
            continue
        label, place = np.divmod(each.bins, NUM_BINS)
        p = _CENTRES[place]
        squares += float((each.positives * (1 - p) ** 2 + each.negatives * p**2).sum())
        part = np.minimum((p * _PARTS).astype(np.int64), _PARTS - 1)
        np.add.at(gaps, (label, part), (each.positives + each.negatives) * p - each.positives)
    halved = 2 if num_classes == 2 else 1
    return squares / rows / halved, float(np.abs(gaps).sum() / rows / num_classes)


def intervals(
    there: IntArray, predicted: IntArray, hits: IntArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute bootstrap intervals of accuracy and of each class's sensitivity and specificity.

    Rows are drawn with replacement, as many as there are. Drawing rows is drawing the counts of a class's
    four kinds of rows (hit or missed, taken for it or not) from a multinomial distribution, so that 2,000
    draws need no rows.

    Parameters
    ----------
    there, predicted, hits
        Counts of the rows, shape (C,).
    rng
        Source of the draws.

    Returns
    -------
    The 2.5th and 97.5th percentile of accuracy, shape (2,), and of each class's sensitivity and specificity,
    both (C, 2); NaN where undefined. A draw without rows of a class does not count for it.
    """
    there, predicted, hits = (np.asarray(each, dtype=np.int64) for each in (there, predicted, hits))
    rows = int(there.sum())
    unknown = np.full((len(there), 2), np.nan)
    if not rows:
        return unknown[0], unknown, unknown.copy()
    accuracy = accuracy_interval(int(hits.sum()), rows, rng)
    found = [unknown.copy(), unknown.copy()]
    for label in range(len(there)):
        hit, taken = hits[label], predicted[label]
        cells = np.array([hit, there[label] - hit, taken - hit, rows - there[label] - (taken - hit)])
        drawn = rng.multinomial(rows, cells / rows, size=_DRAWS).T
        for limits, right, wrong in ((found[0], drawn[0], drawn[1]), (found[1], drawn[3], drawn[2])):
            limits[label] = _percentiles(_ratio(right, right + wrong))
    return accuracy, found[0], found[1]


def accuracy_interval(hits: int, rows: int, rng: np.random.Generator) -> FloatArray:
    """Compute the bootstrap interval of an accuracy alone, as :func:`intervals` does, shape (2,)."""
    if not rows:
        return np.full(2, np.nan)
    return _percentiles(rng.binomial(rows, hits / rows, size=_DRAWS) / rows)


def pooled_confusion(clients: Iterable[Outcomes]) -> IntArray | None:
    """Add up the confusion counts, labels by predictions, shape (C, C); None if a client has none."""
    counts = [each.confusion for each in clients]
    known = [each for each in counts if each is not None]
    return np.sum(known, axis=0) if known and len(known) == len(counts) else None


def _percentiles(values: FloatArray) -> FloatArray:
    known = values[np.isfinite(values)]
    if not known.size:
        return np.full(2, np.nan)
    found: FloatArray = np.quantile(known, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return found


def _ratio(part: FloatArray | IntArray, whole: FloatArray | IntArray) -> FloatArray:
    undefined = np.full(np.shape(whole), np.nan)
    found: FloatArray = np.divide(part, whole, out=undefined, where=np.asarray(whole) > 0)
    return found
