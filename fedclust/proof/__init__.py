"""Test whether a grouping is better than one model for all, and say so in one sentence.

Clients score two models on held-out rows with :func:`brier_scores` and report three numbers each, computed
by :func:`difference`. :func:`compare` tests them, :func:`holm` corrects several tests, and :func:`verdict`
writes the result in one sentence; :func:`prove_grouping` does all of this for a run's clusters. Arrays in,
values out: nothing here uses messages, files or models.

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
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import BoolArray, FloatArray, IntArray

SCALE = "Brier score: 0 for a prediction that is certain and right, 2 for one that is certain and wrong."
"""The unit of a verdict's figures; for the line below it."""

# Width of the interval that a difference of two Brier scores lies in, [-2, 2].
_RANGE = 4.0
_LARGEST = 2 + 1e-9  # Brier score, but for rounding
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
    told = {"mean": means, "variance": variances, "count": counts}
    check_shapes(**{name: (values, "clients?") for name, values in told.items()})
    check_entries("in (0, 1)", confidence=confidence)
    check_entries("finite and >= 0", count=counts)
    votes = counts >= 2
    abstained = tuple(np.flatnonzero(~votes).tolist())
    means, variances, counts = means[votes], variances[votes], counts[votes]
    check_entries(f"in [-{_LARGEST}, {_LARGEST}]", mean=means)
    check_entries(">= 0 and finite", variance=variances)
    if not len(means):
        nan = math.nan
        return Comparison(nan, (nan, nan), confidence, 1.0, nan, nan, 0, 0, abstained)
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


def compare_differences(differences: Sequence[Difference], min_gain: float = 0.0) -> Comparison:
    """Compare two models by what clients reported, setting aside :func:`num_set_aside` votes.

    Parameters
    ----------
    differences
        What each client reported.
    min_gain
        In Brier score, >= 0: the p-value is that of a gain above this.

    Returns
    -------
    The comparison; all but its p-value is of the gain itself.
    """
    means, variances, counts = (
        [getattr(each, name) for each in differences] for name in ("mean", "variance", "count")
    )
    odd = num_set_aside(sum(count >= 2 for count in counts))
    found = compare(means, variances, counts, set_aside=odd)
    if not min_gain:
        return found
    beyond = compare(np.maximum(np.array(means) - min_gain, -2.0), variances, counts, set_aside=odd)
    return replace(found, p_value=beyond.p_value)


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
    check_entries("in [0, 1]", p_values=values)
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
    rows = "rows? positions?" if labels.ndim == 2 else "rows?"
    check_shapes(labels=(labels, rows), logits=(logits, f"{rows} classes"))
    check_entries(f"in [0, {logits.shape[-1]})", labels=labels)
    check_entries("finite", logits=logits)
    if log_prior_shift is not None:
        shift = np.asarray(log_prior_shift, dtype=np.float64)
        check_shapes(log_prior_shift=(shift, str(logits.shape[-1])))
        if not (shift < np.inf).all() or not np.isfinite(shift).any():
            raise ValueError(f"log_prior_shift must be finite or -inf, and finite somewhere, got {shift}")
        logits = logits + shift
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    happened = labels[..., None] == np.arange(logits.shape[-1])
    errors = weights / weights.sum(axis=-1, keepdims=True) - happened
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
    check_shapes(scores_a=(scores_a, "rows?"), scores_b=(scores_b, "rows?"))
    check_entries(f"in [0, {_LARGEST}]", scores_a=scores_a, scores_b=scores_b)
    rows = scores_a - scores_b
    if not len(rows):
        return Difference(0.0, 0.0, 0)
    # Measured from the first row, equal differences have a variance of exactly 0.
    variance = float(np.var(rows - rows[0], ddof=1)) if len(rows) > 1 else 0.0
    return Difference(float(rows.mean()), variance, len(rows))


@dataclass(frozen=True)
class Verdict:
    """Whether to train in groups, and how certain that is.

    Attributes
    ----------
    text
        The verdict in one sentence.
    grouped
        Whether the groups were shown to be better than one model for all.
    gain
        Difference by which the groups' mean Brier score is lower; None without a comparison.
    interval
        Confidence interval of `gain`; None without a comparison.
    p_value
        One-sided, corrected for the other tests of the run if there were any; None without a comparison.
    better_for
        Number of clients for which the groups' models were better.
    """

    text: str
    grouped: bool
    gain: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    better_for: int | None = None

    def summary(self) -> dict[str, Any]:
        """Return the verdict as plain values, for JSON."""
        return asdict(self)


def verdict(
    comparison: Comparison, *, method: str, num_groups: int, p_value: float | None = None, level: float = 0.05
) -> Verdict:
    """Write the result of comparing one model for all (A) with a grouping's models (B).

    Parameters
    ----------
    comparison
        The comparison; not used if there is one group.
    method
        Name of the method, such as ``"FedGWC"``.
    num_groups
        Number of groups, >= 1.
    p_value
        The comparison's p-value as corrected by :func:`holm`; None if it is the run's only test.
    level
        The grouping is shown to be better if its p-value is at most this, in (0, 1).

    Returns
    -------
    The verdict. Its interval is two-sided, the test one-sided: at a p-value between 0.025 and 0.05 the 95 %
    interval just contains 0.
    """
    if num_groups == 1:
        return Verdict(f"Train one model for all: {method} found no groups", grouped=False)
    if comparison.num_clients == 0:
        text = "Train one model for all: no client has two held-out rows, so no grouping could be tested"
        return Verdict(text, grouped=False)
    proven = comparison.p_value if p_value is None else p_value
    if proven <= level:
        beaten = _beaten(comparison)
        text = f"Train in {num_groups} groups: on held-out rows their models beat {beaten} clients"
        return _verdict_of(comparison, text, proven)
    text = f"Train one model for all: no grouping was shown to be better; {method}'s {num_groups} clusters "
    if comparison.interval == (0, 0):
        text += "predict every held-out row just as well"
    elif comparison.interval[1] < 0:
        text += f"would cost {_figures(comparison, -1)}"
    else:
        sign = -1 if comparison.gain < 0 else 1
        word = "cost" if sign < 0 else "gain"
        text += f"{word} {_figures(comparison, sign)}, which may be chance"
    return _verdict_of(comparison, text, proven, grouped=False)


def _verdict_of(comparison: Comparison, text: str, p_value: float, *, grouped: bool = True) -> Verdict:
    """Add the figures of a comparison, and who did not vote."""
    if number := len(comparison.abstained):
        has = "has" if number == 1 else "have"
        text += f" ({_clients(number)} {has} fewer than two held-out rows and did not vote)"
    return Verdict(text, grouped, comparison.gain, comparison.interval, p_value, comparison.better_for)


def _clients(number: int) -> str:
    return "1 client" if number == 1 else f"{number} clients"


def _beaten(comparison: Comparison) -> str:
    figures = _figures(comparison, 1)
    return f"one model for all by {figures}, for {comparison.better_for} of {comparison.num_clients}"


def _figures(comparison: Comparison, sign: int) -> str:
    """Write the gain, or with sign −1 the cost, and its interval, with digits for the interval's width."""
    lowest, highest = sorted(sign * end for end in comparison.interval)
    half = (highest - lowest) / 2
    digits = min(6, max(2, -math.floor(math.log10(half)))) if half > 0 else 2
    value, low, high = (f"{each:z.{digits}f}" for each in (sign * comparison.gain, lowest, highest))
    return f"{value} ({round(100 * comparison.confidence, 3):g} % interval {low} to {high})"


@dataclass(frozen=True)
class ClusterProof:
    """The comparison of a cluster's model with one model for all, on the cluster's own clients.

    Attributes
    ----------
    cluster
        Index of the cluster.
    clients
        Its clients.
    comparison
        Result of the comparison.
    p_value
        Corrected for the run's other tests by Holm.
    proven
        Whether its model was shown to be better.
    serves
        Whether it serves its clients if the best is to serve.
    """

    cluster: int
    clients: tuple[int, ...]
    comparison: Comparison
    p_value: float
    proven: bool
    serves: bool

    def summary(self) -> dict[str, Any]:
        """Return it as plain values, for JSON; None for values that are unknown because no client voted."""
        figures = {"clients": len(self.clients)} | self.comparison.figures()
        return {"cluster": self.cluster} | figures | {"p_value": self.p_value, "proven": self.proven}


@dataclass(frozen=True)
class GroupingProof:
    """The comparison of a grouping with one model for all.

    Attributes
    ----------
    verdict
        The recommendation in one sentence, with its figures.
    clusters
        Each cluster that has clients.
    too_few
        Clients that did not vote because they have fewer than two held-out rows.
    silent
        Clients that did not vote because they did not answer.
    """

    verdict: Verdict
    clusters: tuple[ClusterProof, ...]
    too_few: tuple[int, ...]
    silent: tuple[int, ...]

    def served_by_cluster(self, num_clients: int) -> np.ndarray:
        """Return for each client whether its cluster's model is the best to serve it, shape (K,)."""
        found = np.zeros(num_clients, dtype=bool)
        for each in self.clusters:
            found[list(each.clients)] = each.serves
        return found


def prove_grouping(
    assignment: IntArray,
    measured: Mapping[int, Difference],
    *,
    method: str,
    serve_best: bool = False,
    proven_before: bool = False,
    level: float = 0.05,
) -> GroupingProof:
    """Test a grouping's models (B) against one model for all (A).

    Every cluster is tested on its own clients, and the grouping as a whole on all of them. All these tests
    share one level by Holm's correction (:func:`~fedclust.proof.holm`), so the probability that a run in
    which nothing is better calls anything better is at most `level`. See :mod:`fedclust.proof` for the
    assumptions of each test and its source.

    Parameters
    ----------
    assignment
        Cluster of each client, shape (K,).
    measured
        By client, the three numbers that it reported: A's Brier scores minus B's. A missing client did not
        answer.
    method
        Name of the method that made the grouping, such as ``"FedGWC"``.
    serve_best
        Whether clients of clusters whose model was not shown to be better get the model for all; the verdict
        then mentions it.
    proven_before
        Whether the method kept its splits only because held-out rows showed them to be better. If the
        grouping as a whole gains, a cluster's model then serves unless the one for all has the better mean on
        its clients: each split has passed a test already, and a second one would fail for want of rows.
    level
        Level of all tests together, in (0, 1).

    Returns
    -------
    The verdict, and each cluster's test.
    """
    clusters = np.unique(assignment)
    members = [np.flatnonzero(assignment == cluster).tolist() for cluster in clusters]
    comparisons = [_compare(clients, measured) for clients in members]
    everyone = range(len(assignment))
    whole = _compare(everyone, measured)
    several = len(clusters) > 1
    corrected = holm([each.p_value for each in [*comparisons, *[whole] * several]]).tolist()
    trusted = proven_before and several and whole.gains
    proofs = tuple(
        ClusterProof(
            int(cluster),
            tuple(clients),
            comparison,
            p_value,
            proven=p_value <= level,
            serves=p_value <= level or (trusted and comparison.gains),
        )
        for cluster, clients, comparison, p_value in zip(
            clusters, members, comparisons, corrected, strict=False
        )
    )
    last, number = corrected[-1], len(proofs)
    apart = [each for each in proofs if each.proven]
    silent = tuple(client for client in everyone if client not in measured)
    if several and not measured:
        text = "Train one model for all: no client answered, so no grouping could be tested"
        result = Verdict(text, grouped=False)
    elif trusted and last > level:
        text = (
            f"Train in {number} groups: held-out rows showed them to be better during training; at the end "
            f"their models beat {_beaten(whole)} clients, which by itself may be chance"
        )
        result = _verdict_of(whole, text, last)
    elif several and apart and last > level:
        result = _verdict_apart(apart, measured, len(assignment))
    else:
        result = verdict(whole, method=method, num_groups=number, p_value=last, level=level)
    common = [each for each in proofs if not each.serves]
    if serve_best and common and (trusted or (several and last <= level)):
        clients = sum(len(each.clients) for each in common)
        *first, last_name = (str(each.cluster) for each in common)
        names = f"clusters {', '.join(first)} and {last_name}" if first else f"cluster {last_name}"
        served = f"{_clients(clients)} of {names} {'are' if clients > 1 else 'is'} served the model for all"
        result = replace(result, text=f"{result.text}; {served}, as theirs was not shown to be better")
    if several and measured and silent:
        text = f"{result.text} ({_clients(len(silent))} did not answer and did not vote)"
        result = replace(result, text=text)
    too_few = tuple(sorted(client for client, each in measured.items() if each.count < 2))
    return GroupingProof(result, proofs, too_few, silent)


def _verdict_apart(
    apart: Sequence[ClusterProof], measured: Mapping[int, Difference], num_clients: int
) -> Verdict:
    """Write that some clusters should train separately, although the grouping as a whole is not better."""
    clients = sorted(client for each in apart for client in each.clients)
    comparison = _compare(clients, measured)
    many = len(apart) > 1
    names = ", ".join(str(each.cluster) for each in apart)
    text = (
        f"Train {len(clients)} of {num_clients} clients apart (cluster{'s' if many else ''} {names}) and one "
        f"model for the others: on held-out rows {'their models beat' if many else 'its model beats'} "
        f"{_beaten(comparison)} of them"
    )
    return _verdict_of(comparison, text, max(each.p_value for each in apart))


def _compare(clients: Iterable[int], measured: Mapping[int, Difference]) -> Comparison:
    return compare_differences([measured[client] for client in clients if client in measured])
