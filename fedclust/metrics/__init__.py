"""Metrics of a federation: accuracy and fairness, cluster quality, heterogeneity.

All functions take arrays and return numbers or arrays.

*Accuracy* is measured by each client on its own test rows. Metrics over the pooled test rows of all clients
are computed from counts that each client sends in place of rows. For each class these are its rows, its
predictions, and its correct predictions, from which accuracy per class and F1 are exact; and two histograms
of the class's scores, one over its own rows and one over all others. :func:`pooled_auc` describes the
precision of the area under the ROC curve from these. Counts of several clients add up to those of their
pooled rows.

*Cluster quality* is how well clusters are separated, and how well they agree with a known grouping. Source of
silhouettes: Rousseeuw, "Silhouettes: A graphical aid to the interpretation and validation of cluster
analysis", 1987. A client's silhouette is (b − a) / max(a, b), where a is its mean distance from the others of
its cluster and b that from the nearest other cluster; it is 0 for a client alone in its cluster.

*Heterogeneity* is how far clients' label distributions are from the federation's: means over clients,
weighted by their numbers of examples, of a distance between a client's class shares and those of all clients
together; 0 means that all clients have the same distribution. FedGMCC (Eq. 9) and Clust-PSI-PFL (Eq. 3)
average in this way; Clust-PSI-PFL (Section III-C) compares the four measures.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import FloatArray, IntArray

CLIENT_FIGURES = ("num-examples", "loss", "accuracy", "balanced-accuracy", "macro-f1", "auc")
"""Metrics that every client reports, by their names in its reply; all others are the user's own."""


def global_accuracy(accuracy: FloatArray, num_examples: IntArray) -> float:
    """Average the clients' accuracies, weighted by their numbers of test examples.

    Parameters
    ----------
    accuracy
        Accuracy A_k of each client in [0, 1], shape (K,); ignored for a client without test examples.
    num_examples
        Test examples n_k of each client, >= 0, shape (K,).

    Returns
    -------
    Σ n_k A_k / Σ n_k, the share of all test examples that are classified correctly.

    Raises
    ------
    ValueError
        If the shapes differ, the accuracy of a client with examples is outside [0, 1], a number of examples
        is negative, or there are no examples.

    Examples
    --------
    >>> global_accuracy(np.array([1.0, 0.5]), np.array([10, 30]))  # 25 of 40
    0.625
    """
    accuracy, num_examples = np.asarray(accuracy, dtype=np.float64), np.asarray(num_examples)
    check_shapes(accuracy=(accuracy, "clients?"), num_examples=(num_examples, "clients?"))
    check_entries(">= 0", num_examples=num_examples)
    counted = num_examples > 0
    if not counted.any():
        raise ValueError(f"num_examples must be > 0 on some client, got none on {len(counted)} clients")
    check_entries("in [0, 1]", accuracy=accuracy[counted])
    return float(np.average(accuracy[counted], weights=num_examples[counted]))


def fairness(accuracy: FloatArray) -> tuple[float, float]:
    """Compute the mean and the standard deviation of the clients' distances from perfect accuracy.

    Source: Clust-PSI-PFL, Section IV: average distance and standard deviation of the average distance.

    Parameters
    ----------
    accuracy
        Accuracy A_k of each client in [0, 1], shape (K,).

    Returns
    -------
    ad
        Mean of |A_k − 1|; 0 if every client's accuracy is 1.
    sdad
        Population standard deviation of |A_k − 1|; 0 if all clients have the same accuracy.

    Raises
    ------
    ValueError
        If there are no clients or an accuracy is outside [0, 1].

    Examples
    --------
    >>> fairness(np.array([1.0, 0.5]))
    (0.25, 0.25)
    """
    accuracy = np.asarray(accuracy, dtype=np.float64)
    check_shapes(accuracy=(accuracy, "clients"))
    check_entries("in [0, 1]", accuracy=accuracy)
    distance = np.abs(accuracy - 1)
    return float(distance.mean()), float(distance.std())


def classification_by_client(
    client_of_row: IntArray, labels: IntArray, predictions: IntArray, num_clients: int, num_classes: int
) -> dict[str, FloatArray]:
    """Compute classification metrics of many clients at once, as scikit-learn does of one.

    Parameters
    ----------
    client_of_row
        Client of each example, 0…num_clients − 1, in any order, shape (N,).
    labels, predictions
        True and predicted class of each example, 0…num_classes − 1, shape (N,).
    num_clients
        Number of clients K.
    num_classes
        Number of classes C.

    Returns
    -------
    Each in [0, 1], of shape (K,), NaN for a client without examples; memory grows with N + K·C:

    - ``accuracy``: share of correct predictions,
    - ``balanced_accuracy``: mean recall over the client's classes,
    - ``macro_f1``: mean F1 over its classes and those predicted.

    Raises
    ------
    ValueError
        If the shapes differ, or a client or class is outside its range.

    Examples
    --------
    >>> clients, labels, predictions = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([0, 0, 1])
    >>> classification_by_client(clients, labels, predictions, num_clients=2, num_classes=2)["accuracy"]
    array([0.5, 1. ])
    """
    client_of_row, labels, predictions = map(np.asarray, (client_of_row, labels, predictions))
    rows = {"labels": labels, "client_of_row": client_of_row, "predictions": predictions}
    check_shapes(**{name: (values, "examples?") for name, values in rows.items()})
    check_entries(f"in [0, {num_clients})", client_of_row=client_of_row)
    check_entries(f"in [0, {num_classes})", labels=labels, predictions=predictions)
    size = num_clients * num_classes
    true, predicted = client_of_row * num_classes + labels, client_of_row * num_classes + predictions
    hit = true[labels == predictions]
    # One bincount for three concatenated tables of shape (K, C).
    counts = np.bincount(np.concatenate([true, predicted + size, hit + 2 * size]), minlength=3 * size)
    actual, predicted_counts, right = counts.reshape(3, num_clients, num_classes)
    return {
        "accuracy": _ratio(right.sum(axis=1), actual.sum(axis=1)),
        "balanced_accuracy": _mean_of_defined(_ratio(right, actual)),
        "macro_f1": _mean_of_defined(_ratio(2 * right, actual + predicted_counts)),
    }


def auc(labels: IntArray, probabilities: FloatArray) -> float:
    """Compute the mean area under the ROC curve, one class against the rest.

    Parameters
    ----------
    labels
        True class of each example, 0…C − 1, shape (N,).
    probabilities
        Score of each class for each example, finite, shape (N, C).

    Returns
    -------
    The mean in [0, 1] over the classes that some but not all examples have; NaN if there is none.

    Examples
    --------
    >>> scores = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    >>> auc(np.array([0, 1, 1]), scores)  # every pair is in the right order, for both classes
    1.0
    """
    # The area is the Mann–Whitney statistic: the share of pairs, of an example of the class and another one,
    # in which the former scores higher; a tie counts one half. roc_auc_score is a hundred times slower for
    # 100 classes, and scipy.stats takes most of a second to import in every process that serves clients.
    positive = labels[:, None] == np.arange(probabilities.shape[1])
    num_positive = positive.sum(axis=0)
    num_negative = len(labels) - num_positive
    defined = (num_positive > 0) & (num_negative > 0)
    if not defined.any():
        return float("nan")
    areas = []
    for label in np.flatnonzero(defined):
        rest = np.sort(probabilities[~positive[:, label], label])
        own = probabilities[positive[:, label], label]
        twice = np.searchsorted(rest, own, side="left") + np.searchsorted(rest, own, side="right")
        areas.append(twice.sum() / 2 / (num_positive[label] * num_negative[label]))
    return float(np.mean(areas))


def _mean_of_defined(values: FloatArray) -> FloatArray:
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1))


def _ratio(part: FloatArray | IntArray, whole: FloatArray | IntArray) -> FloatArray:
    ratio: FloatArray = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return ratio


# -- Pooled rows --------------------------------------------------------------------------------------------

NUM_BINS = 4096
"""Number of bins of a score's histogram."""

MOST_CONFUSED = 100
"""Largest number of classes for which a client sends its confusion counts, which grow as its square."""

# Bins have equal width, 0.01, in the logit, because probabilities crowd near 0 with many classes, and near 0
# and 1 with a good model. The upper end is half of float32's step below 1; all below 4e-11 share a bin.
_LOWEST, _HIGHEST = -24.0, 17.0


def error_of(name: str) -> str:
    """Return the name of a figure's standard error.

    Examples
    --------
    >>> error_of("rmse")
    'rmse_error'
    """
    return f"{name}_error"


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Counts of the predictions on a client's test rows, by class.

    Attributes
    ----------
    there, predicted, hits
        Numbers of rows, predictions, and correct predictions of each class, shape (C,).
    bins
        Non-empty bins of the scores' histograms, ``class · NUM_BINS + bin``, ascending, shape (E,); None if a
        score is not finite and so cannot be ranked.
    positives, negatives
        Numbers of rows of the bin's class, and of others, whose score for the class is in the bin, shape
        (E,).
    confusion
        How often each label (rows) was predicted as each class (columns), shape (C, C); None for more than
        :data:`MOST_CONFUSED` classes.
    sums
        Of numbers, whose bins these are: the sums of what is known, of what is predicted, and of the squared
        errors, over the rows that are predicted to be in each bin, shape (3, C); None of classes.
    """

    there: IntArray  # the name is part of checkpoints
    predicted: IntArray
    hits: IntArray
    bins: IntArray | None
    positives: IntArray
    negatives: IntArray
    confusion: IntArray | None = None
    sums: FloatArray | None = None


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

    Examples
    --------
    >>> labels, predictions = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> counts = outcomes(labels, predictions, np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]))
    >>> counts.there, counts.predicted, counts.hits
    (array([2, 1]), array([1, 2]), array([1, 1]))
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    probabilities = np.asarray(probabilities)
    rows = {"labels": (labels, "rows?"), "predictions": (predictions, "rows?")}
    check_shapes(**rows, probabilities=(probabilities, "rows? classes?"))
    num_classes = probabilities.shape[1]
    actual, predicted, hits = [
        np.bincount(classes, minlength=num_classes)
        for classes in (labels, predictions, labels[labels == predictions])
    ]
    confusion = None
    if num_classes <= MOST_CONFUSED:
        pairs = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
        confusion = pairs.reshape(num_classes, num_classes)
    none = np.zeros(0, dtype=np.int64)
    if not np.isfinite(probabilities).all():
        return Outcomes(actual, predicted, hits, None, none, none, confusion)
    places = _bins(probabilities) + NUM_BINS * np.arange(num_classes)
    bins, counts = np.unique(places, return_counts=True)
    own = np.searchsorted(bins, places[np.arange(len(labels)), labels])
    positives = np.bincount(own, minlength=len(bins))
    return Outcomes(actual, predicted, hits, bins, positives, counts - positives, confusion)


def _with_same_classes(clients: Iterable[Outcomes]) -> list[Outcomes]:
    """List the counts; raise ValueError unless all have the same number of classes."""
    listed = list(clients)
    if len(classes := sorted({len(each.there) for each in listed})) > 1:
        raise ValueError(f"clients must have the same number of classes, got {', '.join(map(str, classes))}")
    return listed


def pooled_macro_f1(clients: Iterable[Outcomes]) -> float:
    """Compute the exact macro F1 over the pooled test rows of all clients.

    Source: FMCL, Section 4.6 (macro-averaged F1). It differs from ``macro_f1``, a mean over clients.

    Parameters
    ----------
    clients
        Counts of each client, all with the same number of classes.

    Returns
    -------
    Mean of 2·hits / (there + predicted) over the classes in the labels or predictions, in [0, 1]; NaN
    without rows.

    Raises
    ------
    ValueError
        If the clients' numbers of classes differ.

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    >>> counts = outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), probabilities)
    >>> round(pooled_macro_f1([counts, counts]), 4)  # both classes: 2·2/(4 + 2) and 2·2/(2 + 4)
    0.6667
    """
    clients = _with_same_classes(clients)
    hits = np.sum([each.hits for each in clients], axis=0)
    whole = np.sum([each.there + each.predicted for each in clients], axis=0)
    defined = whole > 0
    return float((2 * hits[defined] / whole[defined]).mean()) if defined.any() else float("nan")


def pooled_auc(clients: Iterable[Outcomes]) -> float:
    """Compute the mean area under the classes' ROC curves over the pooled test rows of all clients.

    Source: FMCL, Section 4.6 (AUC-ROC); one class against the rest, each class with the same weight.

    Scores in the same bin count as ties, one half. So the error of a class's area is at most half the
    probability that a random row of the class and a random other row share a bin: below 0.001 if the logits
    of either are spread evenly over a range of 5 or more (a bin is 0.01 wide), and much smaller in practice
    because errors cancel within a bin.

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

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    >>> counts = outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), probabilities)
    >>> pooled_auc([counts])  # of two pairs, one is in the right order
    0.5
    """
    clients = _with_same_classes(clients)
    if not clients:
        return float("nan")
    shape = len(clients[0].there), NUM_BINS
    positives, negatives = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for each in clients:  # a client's bins are distinct
        if each.bins is None:
            return float("nan")
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
        Training rows of each class on each client, shape (K, C); the shares p are these divided by their sum.
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

    Examples
    --------
    >>> train_counts, hits, test_counts = np.array([[9, 1]]), np.array([[10, 0]]), np.array([[10, 10]])
    >>> share_weighted_accuracy(train_counts, hits, test_counts)
    array([0.9])
    """
    train_counts, hits, test_counts = map(np.asarray, (train_counts, hits, test_counts))
    tables = {"train_counts": train_counts, "hits": hits, "test_counts": test_counts}
    check_shapes(**{name: (table, "clients? classes?") for name, table in tables.items()})
    if (hits > test_counts).any():
        raise ValueError(f"hits must be at most test_counts, got {(hits - test_counts).max()} more")
    weighted = train_counts.astype(float)  # the shares up to a factor that cancels
    return _ratio((weighted * hits).sum(axis=1), (weighted * test_counts).sum(axis=1))


def _bins(probabilities: FloatArray) -> IntArray:
    chances = np.clip(probabilities.astype(np.float64), 0, 1)
    with np.errstate(divide="ignore"):  # at 0 and 1, whose logits are infinite
        logits = np.log(chances) - np.log1p(-chances)
    places = (logits - _LOWEST) * (NUM_BINS / (_HIGHEST - _LOWEST))
    return np.clip(places, 0, NUM_BINS - 1).astype(np.int64)


_PARTS = 15
CONFIDENCE = 0.95
"""Confidence of all intervals."""

_WIDTH = (_HIGHEST - _LOWEST) / NUM_BINS


@dataclass(frozen=True, eq=False)
class Decisions:
    """Metrics of predictions on the rows of groups of clients.

    Attributes
    ----------
    rows
        Number of rows of each group, shape (G,).
    sensitivity, specificity
        For each class against the rest, shape (G, C); NaN without rows of the class, or of the others.
    brier
        Brier score, shape (G,); NaN without rows or if a client's scores are not finite.
    calibration_error
        Expected calibration error, likewise.
    """

    rows: IntArray
    sensitivity: FloatArray
    specificity: FloatArray
    brier: FloatArray
    calibration_error: FloatArray


def rates(actual: IntArray, predicted: IntArray, hits: IntArray) -> tuple[FloatArray, FloatArray]:
    """Compute each class's sensitivity and specificity against the rest.

    Parameters
    ----------
    actual, predicted, hits
        Numbers of rows, predictions, and correct predictions of each class, shape (..., C).

    Returns
    -------
    hits / actual, and the share of other rows that were not predicted as the class, both (..., C); NaN if
    there are no such rows.

    Examples
    --------
    >>> rates(np.array([10, 30]), predicted=np.array([14, 26]), hits=np.array([8, 24]))
    (array([0.8, 0.8]), array([0.8, 0.8]))
    """
    actual, predicted, hits = np.asarray([actual, predicted, hits], dtype=float)
    others = actual.sum(axis=-1, keepdims=True) - actual
    return _ratio(hits, actual), _ratio(others - (predicted - hits), others)


def decisions(groups: Sequence[Sequence[Outcomes]]) -> Decisions:
    """Compute metrics over the pooled rows of each group of clients.

    Each score is replaced by the centre of its bin, which is 0.01 wide in the logit. The error of a
    probability p is then at most 0.005·p·(1 − p) <= 0.00125.

    - Brier score: the mean over rows of Σ_c (p_c − y_c)², in [0, 2] for any number of classes (Brier, 1950).
    - Expected calibration error: scores of a class fall into 15 intervals of equal width; the sum over them
      of |Σ p − rows of the class| over the number of rows; the mean over classes (Kull et al., 2019,
      class-wise; for two classes it is that of the second class).

    Parameters
    ----------
    groups
        Counts of the clients of each group, at least one, all with the same number of classes.

    Raises
    ------
    ValueError
        If the clients' numbers of classes differ.

    Examples
    --------
    >>> labels = np.array([0, 1])
    >>> measured = decisions([[outcomes(labels, labels, np.array([[1.0, 0.0], [0.5, 0.5]]))]])
    >>> measured.rows, measured.sensitivity, measured.brier.round(3)  # the mean of 0 and 2·(1/2)²
    (array([2]), array([[1., 1.]]), array([0.25]))
    """
    from scipy.special import expit

    _with_same_classes(chain.from_iterable(groups))
    num_classes = len(groups[0][0].there)
    counts = np.zeros((3, len(groups), num_classes), dtype=np.int64)
    squares, errors = np.zeros((2, len(groups)))
    for group, clients in enumerate(groups):
        gaps = np.zeros((num_classes, _PARTS))
        for each in clients:
            counts[:, group] += each.there, each.predicted, each.hits
            if each.bins is None:
                squares[group] = errors[group] = np.nan
                continue
            label, place = np.divmod(each.bins, NUM_BINS)
            p = expit(_LOWEST + (place + 0.5) * _WIDTH)  # the centre of the bin
            squares[group] += (each.positives * (1 - p) ** 2 + each.negatives * p**2).sum()
            part = np.minimum((p * _PARTS).astype(np.int64), _PARTS - 1)
            np.add.at(gaps, (label, part), (each.positives + each.negatives) * p - each.positives)
        errors[group] += np.abs(gaps).sum()
    rows = counts[0].sum(axis=-1)
    return Decisions(rows, *rates(*counts), _ratio(squares, rows), _ratio(errors, rows) / num_classes)


def wilson(hits: ArrayLike, rows: ArrayLike, confidence: float = CONFIDENCE) -> FloatArray:
    """Compute Wilson's intervals of proportions.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22, 1927: (p + z²/2n ± z√(p(1 − p)/n + z²/4n²)) / (1 + z²/n),
    p = hits/n. It is not empty where p is 0 or 1.

    Parameters
    ----------
    hits
        In [0, rows], shape (...).
    rows
        Number of rows n, >= 0, shape (...).
    confidence
        In (0, 1).

    Returns
    -------
    The ends of the intervals, shape (..., 2); NaN without rows.

    Examples
    --------
    >>> wilson(5, 10).round(3)
    array([0.237, 0.763])
    >>> wilson(0, 10).round(3)  # to z²/(n + z²), z = 1.96
    array([0.   , 0.278])
    """
    hits, rows = np.asarray(hits, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    known = rows > 0
    number, z = np.where(known, rows, 1.0), NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = hits / number, z**2 / number
    half = z * np.sqrt(share * (1 - share) / number + square / (4 * number))
    middle = share + square / 2
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    # Exactly 0 and 1 where no row is right or none is wrong.
    ends = np.stack([np.where(hits == 0, 0.0, low), np.where(hits == rows, 1.0, high)], axis=-1)
    return np.where(known[..., None], ends, np.nan)


def intervals(
    actual: IntArray, predicted: IntArray, hits: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute :func:`wilson` intervals of accuracy and of each class's sensitivity and specificity.

    Parameters
    ----------
    actual, predicted, hits
        Numbers of rows, predictions, and correct predictions of each class, shape (..., C).

    Returns
    -------
    The interval of accuracy, shape (..., 2), and those of each class's sensitivity and specificity, both
    (..., C, 2); NaN if undefined.

    Examples
    --------
    >>> actual, predicted, hits = np.array([10, 10]), np.array([15, 5]), np.array([10, 5])
    >>> accuracy, sensitivity, specificity = intervals(actual, predicted, hits)
    >>> sensitivity.round(3)  # 10 of 10, and 5 of 10
    array([[0.722, 1.   ],
           [0.237, 0.763]])
    """
    actual, predicted, hits = np.asarray([actual, predicted, hits], dtype=np.int64)
    rows = actual.sum(axis=-1)
    others = rows[..., None] - actual
    right = others - (predicted - hits)
    return wilson(hits.sum(axis=-1), rows), wilson(hits, actual), wilson(right, others)


def pooled_confusion(clients: Iterable[Outcomes]) -> IntArray | None:
    """Sum the confusion counts, labels by predictions, shape (C, C); None if a client has none.

    Examples
    --------
    >>> counts = outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), np.full((3, 2), 0.5))
    >>> pooled_confusion([counts, counts])
    array([[2, 2],
           [0, 2]])
    """
    counts = [each.confusion for each in _with_same_classes(clients)]
    known = [each for each in counts if each is not None]
    return np.sum(known, axis=0) if known and len(known) == len(counts) else None


# -- Heterogeneity ------------------------------------------------------------------------------------------

Smoothing = Literal["clip", "add"]


def label_shares(counts: IntArray) -> FloatArray:
    """Compute each client's class frequencies from label counts.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Shares in [0, 1] that add up to 1 on every client, shape (K, C).

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, or a client has no examples.

    Examples
    --------
    >>> label_shares(np.array([[3, 1], [0, 2]]))
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    numbers = np.asarray(counts, dtype=np.float64)
    check_shapes(counts=(numbers, "clients classes"))
    check_entries("finite and >= 0", counts=numbers)
    totals = numbers.sum(axis=1, keepdims=True)
    if not totals.all():
        raise ValueError(f"counts must have an example on every client, got none on client {totals.argmin()}")
    return numbers / totals


def stability_index(
    counts: IntArray, epsilon: float = 1e-4, smoothing: Smoothing = "clip", federation: IntArray | None = None
) -> FloatArray:
    """Compute the distance of each client's share of each class from the federation's.

    Source: Clust-PSI-PFL, Eq. 2; a row's sum is the client's index, Eq. 1.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    epsilon
        Constant that keeps probabilities above 0, > 0.
    smoothing
        ``"clip"`` (lower bound `epsilon`) or ``"add"`` (`epsilon` on top); neither renormalises.
    federation
        Counts of the clients whose examples determine the federation's shares; `counts` itself unless given.

    Returns
    -------
    Contributions PSI_{i,c} >= 0 in nats, shape (K, C); 0 if the shares agree.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of finite numbers >= 0, a client has no examples, or `epsilon` is outside
        (0, 1).

    Examples
    --------
    >>> stability_index(np.array([[3, 1], [1, 3]])).round(4)  # 0.25 ln(3/2), 0.25 ln 2
    array([[0.1014, 0.1733],
           [0.1733, 0.1014]])
    """
    check_entries("in (0, 1)", epsilon=epsilon)
    each = label_shares(counts)
    whole = np.asarray(counts if federation is None else federation, dtype=np.float64)
    everyone = whole.sum(axis=0) / whole.sum()
    if smoothing == "clip":
        everyone, each = np.maximum(everyone, epsilon), np.maximum(each, epsilon)
    else:
        everyone, each = everyone + epsilon, each + epsilon
    return (everyone - each) * np.log(everyone / each)


def weighted_psi(counts: IntArray, epsilon: float = 1e-4) -> float:
    """Average the clients' population stability indices (WPSI).

    Source: Clust-PSI-PFL, Eq. 3.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    epsilon
        Lower bound of every share, > 0.

    Returns
    -------
    Index >= 0, in nats.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0, a client has no examples, or `epsilon` is outside its
        range.

    Examples
    --------
    >>> round(weighted_psi(np.array([[3, 1], [1, 3]])), 4)  # 0.25 ln 3 for both
    0.2747
    """
    return _weighted(stability_index(counts, epsilon).sum(axis=1), counts)


def hellinger(counts: IntArray) -> float:
    """Average the clients' Hellinger distances, ‖√p − √q‖ / √2.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1); 1 would mean that clients share no class with the federation.

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.

    Examples
    --------
    >>> round(hellinger(np.array([[5, 0], [0, 5]])), 4)  # √(1 − √(1/2))
    0.5412
    """
    each, everyone = _shares(counts)
    return _weighted(np.linalg.norm(np.sqrt(each) - np.sqrt(everyone), axis=1) / np.sqrt(2), counts)


def jensen_shannon(counts: IntArray) -> float:
    """Average the clients' Jensen–Shannon distances (square roots of the divergences, in base 2).

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1].

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.

    Examples
    --------
    >>> round(jensen_shannon(np.array([[5, 0], [0, 5]])), 4)  # √(3/2 − (3/4) log₂ 3)
    0.5579
    """
    from scipy.special import rel_entr

    each, everyone = _shares(counts)

    middle = (each + everyone) / 2
    divergence = (rel_entr(each, middle) + rel_entr(everyone, middle)).sum(axis=1) / (2 * np.log(2))
    # For equal distributions, rounding can make the divergence negative; scipy's jensenshannon returns NaN.
    return _weighted(np.sqrt(np.maximum(divergence, 0.0)), counts)


def earth_movers(counts: IntArray) -> float:
    """Average the clients' earth mover's distances, where moving to any other class costs 1.

    Classes have no order, so all are equally far apart. The distance is then half the sum of the absolute
    differences (total variation): the share of its examples that a client would have to exchange. Zhao et
    al., "Federated Learning with Non-IID Data", 2018, use the whole sum, twice this. FedGMCC (Appendix) moves
    inputs instead, by the distances between them, which label counts do not contain.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).

    Returns
    -------
    Distance in [0, 1].

    Raises
    ------
    ValueError
        If `counts` is not a matrix of numbers >= 0 or a client has no examples.

    Examples
    --------
    >>> earth_movers(np.array([[5, 0], [0, 5]]))  # half of the examples would have to be exchanged
    0.5
    """
    each, everyone = _shares(counts)
    return _weighted(np.abs(each - everyone).sum(axis=1) / 2, counts)


def _shares(counts: IntArray) -> tuple[FloatArray, FloatArray]:
    return label_shares(counts), np.sum(counts, axis=0) / np.sum(counts)


def _weighted(distances: FloatArray, counts: IntArray) -> float:
    return float(np.average(distances, weights=np.sum(counts, axis=1)))


# -- Clusters -----------------------------------------------------------------------------------------------

_BLOCK = 256  # rows at a time
_NEAR = 2**20  # bytes of rows at a time, so that a core's cache holds them

# Centroids closer than this are equal but for rounding errors.
_TOUCHING = 1e-8


def davies_bouldin(points: FloatArray, labels: IntArray) -> float:
    """Compute the Davies–Bouldin score: cluster width relative to cluster distance; smaller is better.

    Source: Davies and Bouldin, "A Cluster Separation Measure", IEEE TPAMI 1(2), 1979; FedGWC, Eq. 41.

    Parameters
    ----------
    points
        One row per client, shape (K, features).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.

    Returns
    -------
    Score >= 0; infinite if two clusters have the same centroid (a division by 0).

    Raises
    ------
    ValueError
        If the number of clusters is not in 2…K − 1.

    Examples
    --------
    >>> points = np.array([[0.0], [2.0], [10.0], [12.0]])  # both of width 1, 10 apart
    >>> davies_bouldin(points, np.array([0, 0, 1, 1]))
    0.2
    """
    # Not scikit-learn's score, whose import takes longer than all that a run does after its rounds.
    from scipy.spatial.distance import cdist

    kinds = np.unique(labels)
    if not 2 <= len(kinds) < len(points):
        raise ValueError(f"labels must have 2 to {len(points) - 1} clusters, got {len(kinds)}")
    points = points if points.dtype.kind == "f" else points.astype(np.float64)
    members = [np.flatnonzero(labels == kind) for kind in kinds]
    centroids = np.stack([_centroid(points, rows) for rows in members])
    spreads = np.array([_spread(points, *each) for each in zip(members, centroids, strict=True)])
    apart = cdist(centroids, centroids)
    np.fill_diagonal(apart, math.inf)
    if apart.min() <= _TOUCHING:
        return math.inf
    return float(((spreads[:, None] + spreads) / apart).max(axis=1).mean())


def _near(points: FloatArray, rows: IntArray) -> Iterator[FloatArray]:
    """Yield some points in blocks below a free row, always in the same memory, which is faster."""
    many = max(1, _NEAR // max(1, points[0].nbytes))
    memory = np.empty((1 + min(many, len(rows)), points.shape[1]), dtype=points.dtype)
    for first in range(0, len(rows), many):
        chosen = rows[first : first + many]
        np.take(points, chosen, axis=0, out=memory[1 : 1 + len(chosen)], mode="clip")
        yield memory[: 1 + len(chosen)]


def _centroid(points: FloatArray, rows: IntArray) -> FloatArray:
    """Average some points; blocks are added one after another, which gives the sum over all at once."""
    total = None
    for block in _near(points, rows):
        if total is not None:
            block[0] = total
        total = block[total is None :].sum(axis=0)
    assert total is not None
    return np.asarray(total / len(rows))


def _spread(points: FloatArray, rows: IntArray, centre: FloatArray) -> np.floating:
    """Average the distances of some points from a centre."""
    far = []
    for block in _near(points, rows):
        apart = np.subtract(block[1:], centre, out=block[1:])
        far.append(np.sqrt(np.square(apart, out=apart).sum(axis=1)))
    return np.concatenate(far).mean()


MANY = 4096
"""With more clients than this, silhouettes are computed on a sample."""

_SAMPLE = 2048


def silhouettes(distances: FloatArray, labels: IntArray, rows: IntArray) -> FloatArray:
    """Compute the silhouettes of some clients, each exactly.

    Parameters
    ----------
    distances
        Distances of these clients from all, shape (n, K).
    labels
        Cluster of each client, shape (K,), with at least two clusters.
    rows
        Their ids, shape (n,).

    Returns
    -------
    Silhouettes in [-1, 1], shape (n,).

    Examples
    --------
    >>> points = np.array([0.0, 2.0, 10.0])
    >>> silhouettes(abs(np.subtract.outer(points, points)), np.array([0, 0, 1]), rows=np.arange(3))
    array([0.8 , 0.75, 0.  ])
    """
    from scipy.sparse import csr_array

    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    members = csr_array((np.ones(len(codes)), codes, np.arange(len(codes) + 1)))
    sums = np.asarray(np.asarray(distances, dtype=np.float64) @ members)
    own, each = codes[rows], np.arange(len(rows))
    within = sums[each, own] / np.maximum(sizes[own] - 1, 1)
    others = sums / sizes
    others[each, own] = np.inf
    nearest = others.min(axis=1)
    widest = np.maximum(within, nearest)
    known = (sizes[own] > 1) & (widest > 0)
    return np.divide(nearest - within, widest, out=np.zeros(len(rows)), where=known)


def silhouette(distances: FloatArray, labels: IntArray, rows: IntArray | None = None) -> float:
    """Compute the mean silhouette: how much closer clients are to their own cluster than to the next.

    Computed in blocks of rows. The mean over some clients is an unbiased estimate of that over all; its
    standard error for those of :func:`sample` is at most 1/√2048 = 0.022, when half of the clients have
    silhouette 1 and the others −1.

    Parameters
    ----------
    distances
        Distances of some clients from all, of any precision, with 0 from themselves, shape (n, K).
    labels
        Cluster of each client, shape (K,), with 2 to K − 1 clusters.
    rows
        Ids of the n clients; None for all.

    Returns
    -------
    Mean silhouette, in [-1, 1], rounded to 12 decimals so that rounding errors do not decide ties.

    Examples
    --------
    >>> points = np.array([0.0, 2.0, 9.0, 11.0])
    >>> silhouette(abs(np.subtract.outer(points, points)), np.array([0, 0, 1, 1]))  # 1 − 2/10, 1 − 2/8
    0.775
    """
    rows = np.arange(len(labels)) if rows is None else rows
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
    total = sum(float(silhouettes(distances[block], labels, rows[block]).sum()) for block in blocks)
    return round(total / len(rows), 12)


def sample(num_clients: int, seed: int) -> IntArray:
    """Draw the clients whose silhouettes are computed, sorted; all of them up to :data:`MANY`.

    Parameters
    ----------
    num_clients
        Number of clients K.
    seed
        Seed of the draw.

    Examples
    --------
    >>> sample(4, seed=0), len(sample(5000, seed=0))
    (array([0, 1, 2, 3]), 2048)
    """
    if num_clients <= MANY:
        return np.arange(num_clients)
    return np.sort(np.random.default_rng(seed).choice(num_clients, _SAMPLE, replace=False))


def wasserstein_adjusted_silhouette(counts: IntArray, assignment: IntArray) -> float | None:
    """Compute the silhouette of clusters by the imbalance of the clients' labels (WAS).

    Source: FedGWC, Section 6 and Appendix B: the silhouette of the clients' class frequencies, each client's
    sorted in descending order. For sorted frequencies the Euclidean distance is a Wasserstein distance up to
    a constant (Eq. 38, p = 2), which cancels. It does not matter which classes are frequent. With more than
    4,096 clients it is the mean over 2,048 of them, drawn with a fixed seed.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,).

    Returns
    -------
    Mean silhouette in [-1, 1], larger is better; None if it is undefined, with one cluster or as many
    clusters as clients.

    Raises
    ------
    ValueError
        If the shapes do not fit, a count is negative, or a client has no examples.

    Examples
    --------
    >>> counts = np.array([[9, 1], [1, 9], [5, 5], [5, 5]])  # two imbalanced clients, two balanced ones
    >>> wasserstein_adjusted_silhouette(counts, np.array([0, 0, 1, 1]))
    1.0
    """
    from scipy.spatial.distance import cdist

    frequencies, assignment = _sorted_frequencies(counts, assignment)
    if not _scorable(assignment):
        return None
    rows = sample(len(assignment), 0)
    return silhouette(cdist(frequencies[rows], frequencies), assignment, rows)


def wasserstein_adjusted_davies_bouldin(counts: IntArray, assignment: IntArray) -> float | None:
    """Compute the Davies–Bouldin score of clusters by the imbalance of the clients' labels (WADB).

    Source: FedGWC, Section 6 and Appendix B: the Davies–Bouldin score of the frequencies of
    :func:`wasserstein_adjusted_silhouette`.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,).

    Returns
    -------
    Score >= 0, smaller is better; None if it is undefined, with one cluster, as many clusters as clients, or
    two clusters with the same mean.

    Raises
    ------
    ValueError
        If the shapes do not fit, a count is negative, or a client has no examples.

    Examples
    --------
    >>> counts = np.array([[9, 1], [1, 9], [5, 5], [5, 5]])  # two imbalanced clients, two balanced ones
    >>> wasserstein_adjusted_davies_bouldin(counts, np.array([0, 0, 1, 1]))
    0.0
    """
    frequencies, assignment = _sorted_frequencies(counts, assignment)
    if not _scorable(assignment):
        return None
    score = davies_bouldin(frequencies, assignment)
    return score if math.isfinite(score) else None


def rand_index(a: IntArray, b: IntArray) -> float:
    """Compute the Rand index of two groupings: the share of pairs of clients on which they agree.

    Source: Rand, "Objective Criteria for the Evaluation of Clustering Methods", 1971; FedGWC, Appendix E.

    Parameters
    ----------
    a, b
        Group of each client in either grouping, shape (K,); the numbering does not matter.

    Returns
    -------
    Share of the pairs that both groupings put together or both keep apart, in [0, 1]; 1 for a single client.

    Examples
    --------
    >>> rand_index(np.array([0, 0, 1]), np.array([5, 5, 5]))  # the groupings agree on one pair of three
    0.3333333333333333
    """
    both, first, second, neither = _pairs(a, b)
    pairs = both + first + second + neither
    return (both + neither) / pairs if pairs else 1.0


def adjusted_rand_index(a: IntArray, b: IntArray) -> float:
    """Compute the Rand index of two groupings, adjusted for chance.

    Source: Hubert and Arabie, "Comparing Partitions", 1985. For a single cluster or random clusters the plain
    index can exceed one half by chance; the adjusted index is then 0 on average.

    Parameters
    ----------
    a, b
        Group of each client in either grouping, shape (K,); the numbering does not matter.

    Returns
    -------
    (index − expected) / (1 − expected), from the Rand index and its expectation over groupings with the same
    sizes; in [-0.5, 1], 0 on average for random groupings, 1 for equal groupings and for a single client.

    Raises
    ------
    ValueError
        If the groupings differ in length.

    Examples
    --------
    >>> adjusted_rand_index(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    >>> adjusted_rand_index(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))  # (1/3 − 5/9)/(1 − 5/9)
    -0.5
    """
    both, first, second, neither = _pairs(a, b)
    if not first and not second:
        return 1.0
    expected = (both + first) * (first + neither) + (both + second) * (second + neither)
    return 2 * (both * neither - first * second) / expected


def _pairs(a: IntArray, b: IntArray) -> tuple[int, int, int, int]:
    """Count the pairs of clients that are together in both groupings, only in a, only in b, in neither.

    scikit-learn counts them too, but its metrics take a second to import, in every run.
    """
    check_shapes(a=(a, "clients"), b=(b, "clients"))
    sizes = [np.unique(groups, axis=-1, return_counts=True)[1] for groups in (np.stack([a, b]), a, b)]
    both, in_a, in_b = (int((size * (size - 1)).sum()) // 2 for size in sizes)
    return both, in_a - both, in_b - both, len(a) * (len(a) - 1) // 2 - in_a - in_b + both


def _sorted_frequencies(counts: IntArray, assignment: IntArray) -> tuple[FloatArray, IntArray]:
    shares, assignment = label_shares(counts), np.asarray(assignment)
    check_shapes(counts=(shares, "clients classes"), assignment=(assignment, "clients"))
    return np.sort(shares, axis=1)[:, ::-1], assignment


def _scorable(assignment: IntArray) -> bool:
    return 1 < len(np.unique(assignment)) < len(assignment)
