"""A handful of sites: who trains with whom, chosen by cross-fitting.

An *arm* is a model that may serve a site: that of any coalition of sites that contains it, as it is or with
the label-prior correction. The site alone and everyone together are two of them. Every coalition trains once
without each fold of its sites' rows and once on all of them, so that each row has a prediction by a model
that has not seen it. A site reports the mean of these rows' Brier scores by each arm and the mean of the
products of any two (:class:`Scores`): every standard error of a paired difference follows, and no row leaves
it.

Arms of one coalition differ by the correction alone, which costs nothing where sites' labels are alike: of
*everyone* the corrected one stands unless it is worse by more than one standard error. A site leaves it only
for an arm that is better by more than two; it then takes the simplest within one standard error of the best:
larger coalitions first, and corrected before plain.

The *cross-site matrix* has each site's own model on every other site's rows. It shows what no site can see by
itself: that the others' models order its rows the wrong way round.

Sources: Stone, "Cross-validatory choice and assessment of statistical predictions", Journal of the Royal
Statistical Society B 36, 1974; the choice within one standard error: Breiman et al., "Classification and
Regression Trees", 1984, Section 3.4.3; the variance of the area under the curve where scores say nothing:
Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other",
Annals of Mathematical Statistics 18, 1947.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedclust.support.checks import check_shapes
from fedclust.typing import BoolArray, FloatArray, IntArray

Coalition = tuple[int, ...]
"""Ids of the sites that train a model together, sorted."""

FOLDS = 5
MOST_SITES = 10
"""With more, groups of clients are looked for, see :mod:`fedclust.clustering.auto`."""
ALL_UP_TO = 5
LEAVE, WITHIN = 2.0, 1.0
"""Standard errors by which an arm must beat everyone's, and within which arms count as equal."""
_FEWEST_ROWS = 8


def coalitions(num_sites: int, proposed: Iterable[Coalition] = ()) -> tuple[Coalition, ...]:
    """List the coalitions that train, larger ones first.

    Parameters
    ----------
    num_sites
        Number of sites K >= 1.
    proposed
        Further coalitions.

    Returns
    -------
    With up to five sites, every coalition; with more, everyone, everyone but one, each site alone, and those
    proposed.
    """
    sites = range(num_sites)
    sizes = set(sites) if num_sites <= ALL_UP_TO else {0, num_sites - 2, num_sites - 1}
    found = {each for size in sizes for each in combinations(sites, size + 1)}
    found |= {tuple(sorted(set(each))) for each in proposed}
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def folds(num_rows: int, draws: np.random.Generator, persons: IntArray | None = None) -> IntArray:
    """Draw the fold of each row, in [0, 5); rows of one person share a fold.

    Parameters
    ----------
    num_rows
        Number of rows n.
    draws
        The generator.
    persons
        A number for each row's person, shape (n,); None where every row is a person of its own.

    Returns
    -------
    Shape (n,); folds differ by at most one person in size.
    """
    owners = np.arange(num_rows) if persons is None else np.unique(persons, return_inverse=True)[1]
    number = int(owners.max(initial=-1)) + 1
    return np.asarray(draws.permutation(number) % FOLDS)[owners]


# -- What a site reports ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scores:
    """Cross-fitted Brier scores of a site's rows, reduced to what the choice needs.

    Attributes
    ----------
    count
        Number of rows n.
    means
        Mean score of each of A arms, in [0, 2], shape (A,).
    products
        Mean over rows of the products of two arms' scores, shape (A, A).
    """

    count: int
    means: FloatArray
    products: FloatArray

    @classmethod
    def of(cls, brier: FloatArray) -> "Scores":
        """Reduce the scores of each arm on each row, shape (A, n)."""
        arms, count = brier.shape
        if not count:
            return cls(0, np.zeros(arms), np.zeros((arms, arms)))
        return cls(count, brier.mean(axis=1), brier @ brier.T / count)

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """Return the mean of one arm's scores minus another's, and its standard error."""
        mean = float(self.means[one] - self.means[other])
        square = self.products[one, one] - 2 * self.products[one, other] + self.products[other, other]
        return mean, math.sqrt(max(float(square) - mean**2, 0.0) / max(self.count - 1, 1))

    def possible(self) -> bool:
        """Return whether there are rows, but for rounding, that have these means and products."""
        least = self.products - np.outer(self.means, self.means)
        symmetric = np.allclose(least, least.T, atol=1e-9)
        return bool(symmetric and np.linalg.eigvalsh(least).min(initial=0.0) > -1e-6 * max(1, len(least)))


# -- The choice ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Arm:
    """A model that may serve a site.

    Attributes
    ----------
    coalition
        Index of the coalition that trains it.
    corrected
        Whether it has the label-prior correction for the site.
    """

    coalition: int
    corrected: bool


def arms_of(number: int) -> list[Arm]:
    """List the arms of some coalitions, each as it is and corrected."""
    return [Arm(place, corrected) for place in range(number) for corrected in (False, True)]


@dataclass(frozen=True)
class Choice:
    """The arm that serves a site.

    Attributes
    ----------
    arm
        The arm, of the site's own list.
    everyone
        The arm of everyone together that it was compared with.
    gain, error
        By how much its cross-fitted Brier score is lower than that one's, and the standard error; 0 where it
        is that one.
    """

    arm: Arm
    everyone: Arm
    gain: float = 0.0
    error: float = 0.0


def choose(sizes: Sequence[int], scores: Scores | None) -> Choice:
    """Choose the arm that serves a site.

    Parameters
    ----------
    sizes
        Number of sites of each coalition that contains it, the first that of everyone.
    scores
        Its cross-fitted scores of :func:`arms_of` these; None if it reported none. With fewer than eight rows
        nothing is chosen: everyone's model serves as it is.
    """
    arms = arms_of(len(sizes))
    plain, corrected = 0, 1
    if scores is None or scores.count < _FEWEST_ROWS:
        return Choice(arms[plain], arms[plain])
    worse, error = scores.difference(corrected, plain)
    stands = plain if worse > WITHIN * error else corrected
    against = [scores.difference(stands, place) for place in range(len(arms))]
    if not any(gain > LEAVE * error for gain, error in against):
        return Choice(arms[stands], arms[stands])
    best = int(np.argmin(scores.means))
    behind = [scores.difference(place, best) for place in range(len(arms))]
    within = [place for place, (more, error) in enumerate(behind) if more <= WITHIN * error or place == best]

    def order(place: int) -> tuple[int, bool, float]:
        arm = arms[place]
        size = sizes[arm.coalition]
        # Of everyone's arms the one that stands; alone there is nothing to correct.
        preferred = arms[stands].corrected if arm.coalition == 0 else size > 1
        return -size, arm.corrected != preferred, float(scores.means[place])

    taken = min(within, key=order)
    return Choice(arms[taken], arms[stands], *against[taken])


# -- The cross-site matrix ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """How well another site's own model fits a site's rows, as it is and with its classes renamed.

    Attributes
    ----------
    right
        With two classes, the area under the curve; with more, the share of rows predicted right. In [0, 1].
    by_chance
        What a model that knows nothing would have.
    error
        Standard error of `right`; 1 where nothing is known.
    renaming
        How much more is right with the classes renamed.
    renaming_error
        Its standard error.
    names
        With more than two classes, the best new name of each; else empty.
    """

    right: float = 0.5
    by_chance: float = 0.5
    error: float = 1.0
    renaming: float = 0.0
    renaming_error: float = 1.0
    names: tuple[int, ...] = ()

    @staticmethod
    def width(num_classes: int) -> int:
        """Return how many numbers a fit has."""
        return 5 + (num_classes if num_classes > 2 else 0)


def fit_of(logits: FloatArray, labels: IntArray, fold: IntArray) -> Fit:
    """Measure a model on rows that it has not seen.

    With two classes by their order: the area under the curve A, with 1 − A after renaming. With more by the
    share of rows that are right: the best renaming, an assignment of classes to classes, is found without
    each fold and counted on it, because the best for the rows that it is counted on gains from noise.

    Parameters
    ----------
    logits
        The model's outputs, shape (n, C).
    labels
        True classes, shape (n,).
    fold
        Fold of each row, shape (n,).

    Returns
    -------
    The fit; one that says nothing where the rows are of one class.
    """
    check_shapes(logits=(logits, "rows? classes"), labels=(labels, "rows?"), fold=(fold, "rows?"))
    classes, rows = logits.shape[1], len(labels)
    if len(np.unique(labels)) < 2:
        return Fit(names=tuple(range(classes)) if classes > 2 else ())
    if classes == 2:
        from scipy.stats import rankdata

        positive = labels == 1
        n1, n0 = int(positive.sum()), int((~positive).sum())
        ranks = rankdata(logits[:, 1] - logits[:, 0])
        area = float(ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)
        error = math.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
        return Fit(area, 0.5, error, 1 - 2 * area, 2 * error)
    from scipy.optimize import linear_sum_assignment

    predicted = logits.argmax(axis=1)
    right = predicted == labels

    def best(some: BoolArray) -> IntArray:
        pairs = np.zeros((classes, classes))
        np.add.at(pairs, (predicted[some], labels[some]), 1)
        return np.asarray(linear_sum_assignment(pairs + 1e-6 * np.eye(classes), maximize=True)[1])

    renamed = np.zeros(rows, dtype=bool)
    for number in np.unique(fold):
        here = fold == number
        renamed[here] = best(~here)[predicted[here]] == labels[here]
    gains = renamed.astype(float) - right
    predictions, actual = (np.bincount(each, minlength=classes) for each in (predicted, labels))
    chance = float(predictions @ actual) / rows**2
    share = float(right.mean())
    return Fit(
        share,
        chance,
        math.sqrt(max(share * (1 - share), chance * (1 - chance)) / rows),
        float(gains.mean()),
        max(float(gains.std()), 1 / rows) / math.sqrt(rows),
        tuple(best(np.ones(rows, dtype=bool)).tolist()),
    )


def ways(fits: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return which models fit which rows the wrong and which the right way round, by two standard errors.

    Parameters
    ----------
    fits
        The numbers of each :class:`Fit`, the model's site first, NaN where unknown, shape (K, K, 5 or more).

    Returns
    -------
    wrong, right
        Whether more is right with the classes renamed; and else, whether more is right than by chance. Each
        of shape (K, K).
    """
    right, chance, error, renaming, renaming_error = np.moveaxis(fits[..., :5], -1, 0)
    wrong = renaming > 2 * renaming_error
    return wrong, ~wrong & (right - chance > 2 * error)


def turned_sites(fits: FloatArray) -> list[int]:
    """Name the sites whose classes are the wrong way round for more of the others' models than the right way.

    Parameters
    ----------
    fits
        As for :func:`ways`.

    Returns
    -------
    Ids of the sites; both of two, of which one is turned.
    """
    wrong, right = ways(fits)
    return np.flatnonzero(wrong.sum(axis=0) > right.sum(axis=0)).tolist()
