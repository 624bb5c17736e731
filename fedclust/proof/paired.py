"""The paired test whether model B is better than model A for some clients.

Assumptions. The clients are given; each client's held-out rows are a random sample of its data, drawn
independently of the rows that either model was trained on and of the choice of the grouping. The mean over
clients is close to normal. Every client counts the same, however many rows it has: the test is about the
gain of clients, not of rows.

Errors if the second assumption holds only roughly, at a level of 5 % with B no better than A: with symmetric
differences B is called better in 2 to 5 % of comparisons, from two clients with two rows upwards. If B is a
little better on nine rows of ten and much worse on the tenth, in 6 % with 30 clients of 5 rows each and in
9 % with 5 clients of 20; in the opposite case, in fewer than 3 %.

A client may report what it likes, and one that reports +2, the largest value there is, moves the mean of 30
by 0.07, more than many groupings that help gain. With `set_aside`, B must also be shown to be better without
that many of the most and of the least favourable votes; the p-value is the larger of the two. That only makes
the test stricter: the errors above are at most what they were. Leaving out the most favourable votes alone
would bound a liar better, and hide most gains that are there: honest votes differ by chance, and without its
best tenth a mean of 30 is one standard error lower. docs/ATTACKS.md has the figures of both. A vote of −2 can
hide a small gain, and nothing is done against that: what follows is one model for all.

A vote with a large variance, of two rows, would hide any gain: the standard error is then that client's, with
one degree of freedom. With `set_aside`, a client's s_k²/n_k counts for at most three times the largest one
that is left without that many of the largest. Honest clients hardly reach that: the errors above do not
change.

Sources: Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics
Bulletin 2, 1946 (degrees of freedom); Holm, "A simple sequentially rejective multiple test procedure",
Scandinavian Journal of Statistics 6, 1979; Hoeffding, "Probability inequalities for sums of bounded random
variables", Journal of the American Statistical Association 58, 1963 (if all variances are 0).

A client's measurement: how much better one model predicts its held-out rows than another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedclust.typing import FloatArray, IntArray

# Width of the interval that a difference of two Brier scores lies in, [-2, 2].
_RANGE = 4.0
_FEWEST = 6  # voters of whom one is set aside
_WIDEST = 3.0


class Statistic(NamedTuple):
    """The statistics of the test, one entry per comparison.

    Attributes
    ----------
    gain
        D, mean over clients of their mean difference, in [-2, 2]; above 0 if B is better.
    standard_error
        Standard error of D.
    degrees_of_freedom
        Satterthwaite's; infinite if every client's variance is 0.
    bound
        Σ_k 1/n_k / m², used in Hoeffding's inequality instead of the standard error.
    """

    gain: FloatArray
    standard_error: FloatArray
    degrees_of_freedom: FloatArray
    bound: FloatArray


@dataclass(frozen=True)
class Comparison:
    """The result of comparing models A and B on the same held-out rows.

    Attributes
    ----------
    gain
        Mean over the clients that voted of their mean difference of Brier scores, A − B: above 0, B is
        better. NaN if no client voted.
    interval
        Two-sided confidence interval of `gain`.
    confidence
        Its confidence, such as 0.95.
    p_value
        One-sided: the probability of a gain this large if B is no better, also without the votes set aside.
        1 if no client voted.
    standard_error, degrees_of_freedom
        Those of `gain`; NaN if no client voted.
    num_clients
        Clients that voted: those with at least two rows.
    better_for
        Number of them for which B was better.
    abstained
        Positions of the clients that did not vote.
    gain_of_others, p_value_of_others
        The gain without the votes set aside, and the p-value by these votes alone; NaN if no client voted.
    """

    gain: float
    interval: tuple[float, float]
    confidence: float
    p_value: float
    standard_error: float
    degrees_of_freedom: float
    num_clients: int
    better_for: int
    abstained: tuple[int, ...]
    gain_of_others: float = float("nan")
    p_value_of_others: float = float("nan")

    @property
    def gains(self) -> bool:
        """Whether B has the better mean, of all votes and without those set aside; False without any."""
        return self.gain > 0 and self.gain_of_others > 0

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON; None for those unknown because no client voted."""
        voted = self.num_clients > 0
        return {
            "voted": self.num_clients,
            "gain": self.gain if voted else None,
            "interval": list(self.interval) if voted else None,
            "p_value": self.p_value,
            "better_for": self.better_for,
        }


def num_set_aside(num_clients: int) -> int:
    """Return how many of the most favourable votes, and of the least favourable, are set aside.

    A tenth of the voters, at least one of six. Without two of fewer, little would be left to test; there
    every vote counts, an invented one too.
    """
    return 0 if num_clients < _FEWEST else max(1, num_clients // 10)


def limited(of_mean: FloatArray, number: int) -> FloatArray:
    """Limit the largest variances to three times the largest of the others.

    Parameters
    ----------
    of_mean
        v_k = s_k²/n_k of each client, >= 0, shape (m,).
    number
        How many may be too large, in [0, m).

    Returns
    -------
    The same where `number` is 0 or all of the others are 0.
    """
    most = _WIDEST * float(np.sort(of_mean)[len(of_mean) - 1 - number])
    return np.minimum(of_mean, most) if number and most > 0 else of_mean


def statistic(mean: FloatArray, variance: FloatArray, count: FloatArray) -> Statistic:
    """Compute the gain, its standard error and degrees of freedom.

    D = Σ_k d̄_k / m; with v_k = s_k²/n_k the standard error is √Σ v_k / m, and Satterthwaite's degrees of
    freedom are (Σ v_k)² / Σ v_k²/(n_k − 1).

    Parameters
    ----------
    mean, variance, count
        What each client reported: d̄_k, s_k², n_k >= 2, shape (..., m), m >= 1.

    Returns
    -------
    A value per comparison, shape (...).
    """
    num_clients = mean.shape[-1]
    of_mean = variance / count
    total = of_mean.sum(axis=-1)
    # In units of the total no square under- or overflows.
    shares = of_mean / np.where(total > 0, total, 1.0)[..., None]
    spread = (np.square(shares) / (count - 1)).sum(axis=-1)
    degrees = np.divide(1.0, spread, out=np.full(spread.shape, np.inf), where=spread > 0)
    bound = (1 / count).sum(axis=-1) / num_clients**2
    return Statistic(mean.mean(axis=-1), np.sqrt(total) / num_clients, degrees, bound)


def p_values(of: Statistic) -> FloatArray:
    """Compute the one-sided p-value of each comparison, for "B is better".

    Student's t of D over its standard error. If all rows of each client have the same difference, so that the
    spread is unknown, Hoeffding's inequality: P(D >= x) <= exp(−2x² / (4² Σ 1/n_k / m²)) for differences in
    [−2, 2]; 1 if D <= 0.

    Returns
    -------
    In [0, 1], of the shape of the entries of `of`.
    """
    from scipy.special import stdtr  # clients import this module and never test

    certain = of.standard_error == 0
    ratio = of.gain / np.where(certain, 1.0, of.standard_error)
    finite = np.where(certain, 1.0, of.degrees_of_freedom)
    hoeffding = np.exp(-2 * np.square(np.maximum(of.gain, 0.0)) / (_RANGE**2 * of.bound))
    return np.where(certain, hoeffding, stdtr(finite, -ratio))


def compare(
    mean: ArrayLike, variance: ArrayLike, count: ArrayLike, *, confidence: float = 0.95, set_aside: int = 0
) -> Comparison:
    """Test whether model B is better than model A, from three numbers per client.

    See the module for the assumptions. For a fair comparison both models' logits should have the label-prior
    correction, each for the class shares it was trained on, so that B must be better by more than the
    clients' label shares explain. Two clients are enough, and so is one.

    Parameters
    ----------
    mean
        Each client's mean over its rows of the difference of Brier scores A − B, in [−2, 2], shape (m,).
    variance
        Sample variance (n − 1) of each client's differences, >= 0, shape (m,).
    count
        Rows of each client, shape (m,). A client with fewer than two does not vote; its other numbers are
        ignored.
    confidence
        Confidence of the two-sided interval, in (0, 1).
    set_aside
        B must also be better without so many of the most and of the least favourable votes, >= 0 and less
        than half of them; see :func:`num_set_aside`. So many of the largest variances are limited, too.

    Returns
    -------
    The gain with its interval, and the one-sided p-value.

    Raises
    ------
    ValueError
        If the shapes differ or a number is outside its range, or too many votes are set aside.
    """
    means, variances, counts = (np.asarray(a, dtype=np.float64) for a in (mean, variance, count))
    if means.ndim != 1 or not means.shape == variances.shape == counts.shape:
        raise ValueError(
            f"mean, variance and count must have shape (clients,), got {means.shape}, {variances.shape} "
            f"and {counts.shape}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    whole = np.isfinite(counts) & (counts >= 0) & (counts == np.floor(counts))
    if not whole.all():
        raise ValueError(f"count must be whole numbers >= 0, got {counts[~whole][0]}")
    votes = counts >= 2
    abstained = tuple(np.flatnonzero(~votes).tolist())
    means, variances, counts = means[votes], variances[votes], counts[votes]
    for name, values, rule, kept in (
        ("mean", means, "in [-2, 2]", np.abs(means) <= 2 + 1e-9),
        ("variance", variances, ">= 0 and finite", (variances >= 0) & np.isfinite(variances)),
    ):
        if not kept.all():
            raise ValueError(f"{name} must be {rule}, got {values[~kept][0]}")
    if not len(means):
        nothing = float("nan")
        return Comparison(nothing, (nothing, nothing), confidence, 1.0, nothing, nothing, 0, 0, abstained)
    if not 0 <= 2 * set_aside < len(means):
        raise ValueError(f"set_aside must be >= 0 and less than half of {len(means)} votes, got {set_aside}")
    variances = counts * limited(variances / counts, set_aside)
    found = statistic(means, variances, counts)
    gain, half = float(found.gain), _half_width(found, confidence)
    rest = np.argsort(means, kind="stable")[set_aside : len(means) - set_aside]
    others = statistic(means[rest], variances[rest], counts[rest])
    if found.standard_error == 0 and not means.any():
        half = 0.0  # the two models agree on every row
    return Comparison(
        gain=gain,
        interval=(max(gain - half, -2.0), min(gain + half, 2.0)),
        confidence=confidence,
        p_value=max(float(p_values(found)), float(p_values(others))),
        standard_error=float(found.standard_error),
        degrees_of_freedom=float(found.degrees_of_freedom),
        num_clients=len(means),
        better_for=int((means > 0).sum()),
        abstained=abstained,
        gain_of_others=float(others.gain),
        p_value_of_others=float(p_values(others)),
    )


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Correct the p-values of several tests, so that all share one level.

    Source: Holm, 1979. With the tests in order of their p-values, the i-th of m is multiplied by m − i + 1,
    and is no smaller than the one before. Rejecting what is at most α afterwards keeps the probability of
    any false rejection at most α, however the tests depend on each other.

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
    """
    values = np.asarray(p_values, dtype=np.float64)
    kept = (values >= 0) & (values <= 1)
    if values.ndim != 1 or not kept.all():
        raise ValueError(f"p_values must be in [0, 1], shape (tests,), got {values.tolist()}")
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def _half_width(found: Statistic, confidence: float) -> float:
    """Compute half the width of the interval, from Student's t or by Hoeffding as in :func:`p_values`."""
    if found.standard_error == 0:
        return float(np.sqrt(np.log(2 / (1 - confidence)) * _RANGE**2 * found.bound / 2))
    from scipy.special import stdtrit

    return float(found.standard_error * stdtrit(found.degrees_of_freedom, (1 + confidence) / 2))


@dataclass(frozen=True)
class Difference:
    """The three numbers that a client reports about two models A and B.

    Attributes
    ----------
    mean
        Mean over its rows of A's Brier score minus B's, in [-2, 2]; above 0 if B is better. 0 without rows.
    variance
        Sample variance (n − 1) of those differences, in [0, 8]; 0 with fewer than two rows.
    count
        Number of rows.
    """

    mean: float
    variance: float
    count: int


def brier_scores(
    logits: FloatArray, labels: IntArray, log_prior_shift: ArrayLike | None = None
) -> FloatArray:
    """Score a model's class probabilities for each row.

    Source: Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78,
    1950: Σ_c (p_c − 1[y = c])². It is bounded, so no single row can decide a comparison, and smallest on
    average for the true probabilities.

    Parameters
    ----------
    logits
        The model's outputs before the softmax, shape (n, C), or (n, positions, C) for models that label
        every position of a row.
    labels
        True classes, 0…C − 1, shape (n,), or (n, positions).
    log_prior_shift
        Added to each row's logits, shape (C,): ln(class share on this client / class share the model was
        trained on), the label-prior correction; −∞ for a class that the client cannot have. None adds
        nothing.

    Returns
    -------
    Scores in [0, 2], shape (n,): 0 for certain and right, 2 for certain and wrong; averaged over the
    positions of a row, because rows are the sampled unit.

    Raises
    ------
    ValueError
        If the shapes do not fit, a label is not a class, or a value is not a number that can be scored.
    """
    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if logits.ndim not in (2, 3) or labels.shape != logits.shape[:-1] or not logits.shape[-1]:
        raise ValueError(
            f"logits and labels must have shapes (rows, classes) and (rows,), or (rows, positions, classes) "
            f"and (rows, positions), got {logits.shape} and {labels.shape}"
        )
    num_classes = logits.shape[-1]
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must be in [0, {num_classes}), got {labels.min()} to {labels.max()}")
    if not np.isfinite(logits).all():
        raise ValueError(f"logits must be finite, got {logits[~np.isfinite(logits)][0]}")
    if log_prior_shift is not None:
        shift = np.asarray(log_prior_shift, dtype=np.float64)
        if shift.shape != (num_classes,):
            raise ValueError(f"log_prior_shift must have shape ({num_classes},), got {shift.shape}")
        if not (shift < np.inf).all() or not np.isfinite(shift).any():
            raise ValueError(f"log_prior_shift must be finite or -inf, and finite somewhere, got {shift}")
        logits = logits + shift
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    errors = weights / weights.sum(axis=-1, keepdims=True) - (labels[..., None] == np.arange(num_classes))
    scores = np.square(errors).sum(axis=-1)
    return scores if scores.ndim == 1 else scores.mean(axis=1)


def difference(scores_a: FloatArray, scores_b: FloatArray) -> Difference:
    """Reduce two models' scores on the same rows to the numbers that a client reports.

    Parameters
    ----------
    scores_a, scores_b
        Brier score of each row under model A and under model B, shape (n,).

    Returns
    -------
    Mean, variance and number of the differences A − B.

    Raises
    ------
    ValueError
        If the shapes differ or a score is outside [0, 2].
    """
    scores_a, scores_b = np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)
    if scores_a.ndim != 1 or scores_a.shape != scores_b.shape:
        raise ValueError(
            f"scores_a and scores_b must have shape (rows,), got {scores_a.shape} and {scores_b.shape}"
        )
    for name, scores in (("scores_a", scores_a), ("scores_b", scores_b)):
        wrong = ~((scores >= 0) & (scores <= 2 + 1e-9))
        if wrong.any():
            raise ValueError(f"{name} must be in [0, 2], got {scores[wrong][0]}")
    rows = scores_a - scores_b
    if not len(rows):
        return Difference(0.0, 0.0, 0)
    # Measured from the first row, equal differences have a variance of exactly 0.
    variance = float(np.var(rows - rows[0], ddof=1)) if len(rows) > 1 else 0.0
    return Difference(float(rows.mean()), variance, len(rows))
