"""Metrics over the pooled test rows of all clients, from counts that each client sends.

A client sends counts, not rows. For each class: its rows, its predictions, and its correct predictions, from
which accuracy per class and F1 are exact; and two histograms of the class's scores, one over its own rows and
one over all others. :func:`pooled_auc` describes how exact an area under the ROC curve from these is.

Figures for people who decide: sensitivity, specificity, calibration and intervals, from clients' counts.

A client sends counts of its predictions, not rows; see :mod:`fedclust.metrics.pooled`. Counts of several
clients add up to those of their pooled rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedclust.typing import FloatArray, IntArray

NUM_BINS = 4096
"""Number of bins of a score's histogram."""

MOST_CONFUSED = 100
"""Most classes for which a client sends its confusion counts: of more, they would outgrow all else."""

# Bins have equal width, 0.01, in the logit, because probabilities crowd near 0 with many classes, and near 0
# and 1 with a good model. The upper end is half of float32's step below 1; all below 4e-11 share a bin.
_LOWEST, _HIGHEST = -24.0, 17.0


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Counts of the predictions on a client's test rows, by class.

    Attributes
    ----------
    there, predicted, hits
        Rows of each class, predictions of it, and correct predictions of it, shape (C,).
    bins
        Non-empty bins of the scores' histograms, ``class · NUM_BINS + bin``, ascending, shape (E,); None if a
        score is not finite and so cannot be ranked.
    positives, negatives
        Rows of the bin's class, and of others, whose score for the class is in the bin, shape (E,).
    confusion
        How often each label (rows) was predicted as each class (columns), shape (C, C); None for more than
        :data:`MOST_CONFUSED` classes.
    """

    there: IntArray
    predicted: IntArray
    hits: IntArray
    bins: IntArray | None
    positives: IntArray
    negatives: IntArray
    confusion: IntArray | None = None


def outcomes(labels: IntArray, predictions: IntArray, probabilities: FloatArray) -> Outcomes:
    """Count the predictions on a client's test rows.

    Parameters
    ----------
    labels, predictions
        True and predicted class of each row, 0…C − 1, shape (N,).
    probabilities
        Probability of each class for each row, in [0, 1], shape (N, C).

    Returns
    -------
    The counts.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    probabilities = np.asarray(probabilities)
    if probabilities.ndim != 2 or not labels.shape == predictions.shape == probabilities.shape[:1]:
        raise ValueError(
            "labels, predictions and probabilities must have shapes (rows,), (rows,) and (rows, classes), "
            f"got {labels.shape}, {predictions.shape}, {probabilities.shape}"
        )
    num_classes = probabilities.shape[1]
    there, predicted, hits = (
        np.bincount(classes, minlength=num_classes)
        for classes in (labels, predictions, labels[labels == predictions])
    )
    confusion = None
    if num_classes <= MOST_CONFUSED:
        pairs = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
        confusion = pairs.reshape(num_classes, num_classes)
    none = np.zeros(0, dtype=np.int64)
    if not np.isfinite(probabilities).all():
        return Outcomes(there, predicted, hits, None, none, none, confusion)
    places = _bins(probabilities) + NUM_BINS * np.arange(num_classes)
    bins, counts = np.unique(places, return_counts=True)
    own = np.searchsorted(bins, places[np.arange(len(labels)), labels])
    positives = np.bincount(own, minlength=len(bins))
    return Outcomes(there, predicted, hits, bins, positives, counts - positives, confusion)


def pooled_macro_f1(clients: Iterable[Outcomes]) -> float:
    """Compute the exact macro F1 over the pooled test rows of all clients.

    Source: FMCL, Section 4.6 (macro-averaged F1). It differs from ``macro_f1``, a mean over clients.

    Parameters
    ----------
    clients
        Counts of each client, all with the same number of classes.

    Returns
    -------
    Mean, over the classes that some row has or was predicted, of 2·hits / (there + predicted), in [0, 1];
    NaN without rows.

    Raises
    ------
    ValueError
        If the clients' numbers of classes differ.
    """
    clients = _checked(clients)
    if not clients:
        return float("nan")
    hits = np.sum([each.hits for each in clients], axis=0)
    whole = np.sum([each.there + each.predicted for each in clients], axis=0)
    defined = whole > 0
    return float((2 * hits[defined] / whole[defined]).mean()) if defined.any() else float("nan")


def pooled_auc(clients: Iterable[Outcomes]) -> float:
    """Compute the mean area under the classes' ROC curves over the pooled test rows of all clients.

    Source: FMCL, Section 4.6 (AUC-ROC); one class against the rest, each class with the same weight.

    Scores in the same bin count as ties, one half. So the error of a class's area is at most half the
    probability that a random row of the class and a random other row share a bin: below 0.001 if the logits
    of either are spread evenly over 5 or more (a bin is 0.01 wide), and much smaller in practice because
    errors cancel within a bin.

    Parameters
    ----------
    clients
        Counts of each client, all with the same number of classes.

    Returns
    -------
    Mean over the classes that some but not all rows have, in [0, 1]; NaN if there is no such class, or if
    a client's scores are not finite.

    Raises
    ------
    ValueError
        If the clients' numbers of classes differ.
    """
    clients = _checked(clients)
    if not clients or any(each.bins is None for each in clients):
        return float("nan")
    shape = len(clients[0].there), NUM_BINS
    positives, negatives = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for each in clients:  # a client's bins are distinct
        positives.reshape(-1)[each.bins] += each.positives
        negatives.reshape(-1)[each.bins] += each.negatives
    pairs = positives.sum(axis=1, dtype=float) * negatives.sum(axis=1)
    defined = pairs > 0
    if not defined.any():
        return float("nan")
    below = np.cumsum(negatives, axis=1) - negatives
    wins = (positives * (below + negatives / 2)).sum(axis=1)
    return float((wins[defined] / pairs[defined]).mean())


def share_weighted_accuracy(train_counts: IntArray, hits: IntArray, test_counts: IntArray) -> FloatArray:
    """Compute each client's test accuracy with classes weighted by their shares of its training rows.

    Source: the code of FedGWC's authors, where the paper (Appendix F) says balanced accuracy. If two classes
    have equally many test rows and the client has nine times more training rows of one, that one counts nine
    times as much.

    Parameters
    ----------
    train_counts
        Training rows of each class on each client, shape (K, C); its shares p are these over their sum.
    hits, test_counts
        Correctly predicted test rows of each class, and all its test rows n, shape (K, C).

    Returns
    -------
    Σ_c p_c·hits_c / Σ_c p_c·n_c of each client, in [0, 1], shape (K,); NaN for a client without test rows of
    a class it trains on.

    Raises
    ------
    ValueError
        If the shapes differ, or there are more hits than rows.
    """
    train_counts, hits, test_counts = (np.asarray(a) for a in (train_counts, hits, test_counts))
    if train_counts.ndim != 2 or not train_counts.shape == hits.shape == test_counts.shape:
        raise ValueError(
            "train_counts, hits and test_counts must have one shape (clients, classes), "
            f"got {train_counts.shape}, {hits.shape}, {test_counts.shape}"
        )
    if (hits > test_counts).any():
        raise ValueError(f"hits must be at most test_counts, got {(hits - test_counts).max()} more")
    weighted = train_counts.astype(float)  # the shares up to a factor that cancels
    whole = (weighted * test_counts).sum(axis=1)
    undefined = np.full(len(whole), np.nan)
    return np.divide((weighted * hits).sum(axis=1), whole, out=undefined, where=whole > 0)


def _bins(probabilities: FloatArray) -> IntArray:
    chances = np.clip(probabilities.astype(np.float64), 0, 1)
    with np.errstate(divide="ignore"):  # at 0 and 1, whose logits are infinite
        logits = np.log(chances) - np.log1p(-chances)
    places = (logits - _LOWEST) * (NUM_BINS / (_HIGHEST - _LOWEST))
    return np.clip(places, 0, NUM_BINS - 1).astype(np.int64)


def _checked(clients: Iterable[Outcomes]) -> list[Outcomes]:
    clients = list(clients)
    if len(sizes := {len(each.there) for each in clients}) > 1:
        raise ValueError(f"clients must have one number of classes, got {sorted(sizes)}")
    return clients


_PARTS = 15
_DRAWS = 2_000
_LEVEL = 0.95

_WIDTH = (_HIGHEST - _LOWEST) / NUM_BINS


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
    from scipy.special import expit

    squares = 0.0
    gaps = np.zeros((num_classes, _PARTS))
    for each in clients:
        if each.bins is None:
            continue
        label, place = np.divmod(each.bins, NUM_BINS)
        p = expit(_LOWEST + (place + 0.5) * _WIDTH)  # the centre of the bin
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
