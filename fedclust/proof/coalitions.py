"""Which of a few sites train together, chosen by cross-fitting.

An *arm* is a model that may serve a site: that of any coalition of sites that contains it, as it is or with
the label-prior correction. The site alone and everyone together are two of them. Every coalition trains once
without each fold of its sites' rows and once on all of them, so that each row has a prediction by a model
that has not seen it. A site reports the mean of these rows' Brier scores by each arm and the mean of the
products of any two (:class:`Scores`): every standard error of a paired difference follows, and no row leaves
it.

The two arms of a coalition differ by the correction alone, which costs nothing where sites' labels are alike:
the corrected arm of *everyone* is kept unless it is worse by more than one standard error. A site leaves it
only for an arm that is better by more than two; it then takes the simplest arm within one standard error of
the best: larger coalitions first, and corrected before plain.

The *cross-site matrix* has the results of each site's own model on every other site's rows. It shows what no
site can see by itself: that the others' models order its rows the wrong way round.

Sources: Stone, "Cross-validatory choice and assessment of statistical predictions", Journal of the Royal
Statistical Society B 36, 1974; the choice within one standard error: Breiman et al., "Classification and
Regression Trees", 1984, Section 3.4.3; the variance of the area under the curve of random scores:
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
"""Largest number of sites; with more, see :mod:`fedclust.clustering.auto`."""
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

    Examples
    --------
    >>> coalitions(3)
    ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
    """
    sites = range(num_sites)
    sizes = set(sites) if num_sites <= ALL_UP_TO else {0, num_sites - 2, num_sites - 1}
    listed = {each for size in sizes for each in combinations(sites, size + 1)}
    listed |= {tuple(sorted(set(each))) for each in proposed}
    return tuple(sorted(listed, key=lambda each: (-len(each), each)))


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

    Examples
    --------
    >>> draws = np.random.default_rng(0)
    >>> np.bincount(folds(10, draws))
    array([2, 2, 2, 2, 2])
    >>> len(set(folds(4, draws, persons=np.array([7, 7, 7, 7])).tolist()))  # rows of one person
    1
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

    Examples
    --------
    >>> scores = Scores.of(np.array([[0.2, 0.4], [0.1, 0.1]]))  # two arms, two rows
    >>> [round(value, 6) for value in scores.difference(0, 1)]  # of 0.1 and 0.3
    [0.2, 0.1]
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
        """Return whether some rows could have these means and products, up to rounding."""
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
    """List the arms of some coalitions, each as it is and corrected.

    Examples
    --------
    >>> arms_of(1)
    [Arm(coalition=0, corrected=False), Arm(coalition=0, corrected=True)]
    """
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
        How much lower its cross-fitted Brier score is than that of `everyone`, and the standard error; 0 if
        it is the same arm.
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
        The site's cross-fitted scores by the :func:`arms_of` these coalitions; None if it reported none. With
        fewer than eight rows there is no choice: everyone's model serves as it is.

    Examples
    --------
    >>> everyone, alone = np.full((2, 8), 0.5), np.full((2, 8), 0.1)  # scores as it is and corrected, 8 rows
    >>> choose([3, 1], Scores.of(np.concatenate([everyone, alone]))).arm
    Arm(coalition=1, corrected=False)
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
        Value of `right` that is expected by chance.
    error
        Standard error of `right`; 1 where nothing is known.
    renaming
        Increase of `right` when the classes are renamed.
    renaming_error
        Standard error of `renaming`.
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
        """Return the number of values in a fit."""
        return 5 + (num_classes if num_classes > 2 else 0)


def fit_of(logits: FloatArray, labels: IntArray, fold: IntArray) -> Fit:
    """Measure how well a model fits rows that it has not seen.

    With two classes, by the area under the curve A, which is 1 − A after renaming. With more, by the share of
    rows predicted right. The best renaming, an assignment of classes to classes, is chosen without each fold
    and counted on it: a renaming chosen on the rows on which it is counted would gain from noise.

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
    The fit; its default, without any information, if all rows are of one class.

    Examples
    --------
    >>> logits = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
    >>> fit_of(logits, np.array([0, 0, 1, 1]), fold=np.arange(4)).right  # in the opposite order
    0.0
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
    """Find the models that fit a site's rows the wrong way round, or the right way, by two standard errors.

    Parameters
    ----------
    fits
        The numbers of each :class:`Fit`, the model's site first, NaN where unknown, shape (K, K, 5 or more).

    Returns
    -------
    wrong, right
        Whether more is right with the classes renamed; if not, whether more is right than by chance. Each of
        shape (K, K).

    Examples
    --------
    >>> names = "right by_chance error renaming renaming_error".split()
    >>> good, turned = [0.9, 0.5, 0.1, -0.8, 0.2], [0.1, 0.5, 0.1, 0.8, 0.2]
    >>> wrong, right = ways(np.array([[good, turned], [turned, good]]))
    >>> wrong.tolist(), right.tolist()
    ([[False, True], [True, False]], [[True, False], [False, True]])
    """
    right, chance, error, renaming, renaming_error = np.moveaxis(fits[..., :5], -1, 0)
    wrong = renaming > 2 * renaming_error
    return wrong, ~wrong & (right - chance > 2 * error)


def turned_sites(fits: FloatArray) -> list[int]:
    """List the sites whose rows more of the others' models fit the wrong way round than the right way.

    Parameters
    ----------
    fits
        As for :func:`ways`.

    Returns
    -------
    Ids of the sites. Of two sites both, because it is unknown which of them is turned.

    Examples
    --------
    >>> good, turned = [0.9, 0.5, 0.1, -0.8, 0.2], [0.1, 0.5, 0.1, 0.8, 0.2]
    >>> fits = [[good, good, turned], [good, good, turned], [turned, turned, good]]
    >>> turned_sites(np.array(fits))
    [2]
    """
    wrong, right = ways(fits)
    return np.flatnonzero(wrong.sum(axis=0) > right.sum(axis=0)).tolist()
