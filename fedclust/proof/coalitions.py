"""Which of a few sites train together, chosen by cross-fitting.

An *arm* is a model that may serve a site: that of any coalition of sites that contains it, as it is or with
the label-prior correction. The site alone and everyone together are two of them. Every coalition trains once
without each fold of its sites' rows and once on all of them, so that each row has a prediction by a model
that has not seen it. A site reports the mean of these rows' Brier scores by each arm and the mean of the
products of any two, how well each coalition orders its rows, and each arm's balanced accuracy
(:class:`Scores`): every standard error of a paired difference follows, and no row leaves it.

*Findings come before choices.* The *cross-site matrix* has the results of each site's own model on every
other site's rows, and of all others' models together on each site's. It shows what no site can see by itself:
that the others' models order its rows the wrong way round (:func:`turned_sites`). Nobody trains with such a
site (:func:`partners`), and *everyone* is the largest coalition without it from then on: with up to five
sites, or one such site, everyone else.

The two arms of a coalition differ by the correction alone, which costs nothing where sites' labels are alike:
the corrected arm of *everyone* is kept unless it is worse by more than one standard error, or has a lower
balanced accuracy than the site alone and than the plain arm. A site leaves it only for an arm that is better
by two standard errors, corrected for the number of arms; it then takes the simplest arm within one standard
error of the best: larger coalitions first, and corrected before plain. Scores favour models that predict a
site's most frequent class. So an arm that orders the site's rows worse than the site alone (area under the
curve), or has a lower balanced accuracy, by one standard error of the difference, is not chosen, and
everyone's does not stand if its area is lower by two.

Sources: Stone, "Cross-validatory choice and assessment of statistical predictions", Journal of the Royal
Statistical Society B 36, 1974; the choice within one standard error: Breiman et al., "Classification and
Regression Trees", 1984, Section 3.4.3; the variance of the area under the curve of random scores:
Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other",
Annals of Mathematical Statistics 18, 1947; that of a difference of two areas: DeLong, DeLong and
Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic curves",
Biometrics 44, 1988; several tests at one level: Holm, 1979, as in :func:`fedclust.proof.paired.holm`, and
Tarone, "A modified Bonferroni method for discrete data", Biometrics 46, 1990.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import combinations

import numpy as np

from fedclust.proof.paired import holm
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
LEVEL = 0.05
"""Level of all findings of a run together."""
_FEWEST_ROWS = 8
_HARM = 0.1  # in Brier score: sites that merely differ cost the others less


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


def without_sites(names: Sequence[str]) -> list[Coalition]:
    """List the coalitions without one site that has several clients, by which it can leave.

    Parameters
    ----------
    names
        Each client's name; one of a site with several is ``"site/client"``.

    Examples
    --------
    >>> without_sites(["east", "west/ward 1", "west/ward 2", "north"])
    [(0, 3)]
    """
    sites = [name.partition("/")[0] if "/" in name else None for name in names]
    several = {site for site in sites if site is not None and 1 < sites.count(site) < len(sites)}
    return [tuple(k for k, own in enumerate(sites) if own != site) for site in sorted(several)]


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
    """Cross-fitted results of a site's rows, reduced to what the choice needs.

    Attributes
    ----------
    count
        Number of rows n.
    means
        Mean Brier score of each of A arms, in [0, 2], shape (A,).
    products
        Mean over rows of the products of two arms' scores, shape (A, A).
    auc, auc_error
        Area under the curve of each coalition, in [0, 1], and the standard error of its difference to that of
        the site alone, which is the last one, shape (A/2,) each; see :func:`ranking`.
    balanced, balanced_error
        Balanced accuracy of each arm, in [0, 1], and the standard error of its difference to that of the site
        alone as it is, shape (A,) each; see :func:`balance`.
    """

    count: int
    means: FloatArray
    products: FloatArray
    auc: FloatArray
    auc_error: FloatArray
    balanced: FloatArray
    balanced_error: FloatArray

    @classmethod
    def of(
        cls, brier: FloatArray, ranks: Sequence[FloatArray] = (), balanced: Sequence[FloatArray] = ()
    ) -> "Scores":
        """Reduce the scores of each arm on each row, shape (A, n).

        With the arms' :func:`ranking` and their :func:`balance`, if known.
        """
        arms, count = brier.shape
        further = *(ranks or _unknown(arms // 2)), *(balanced or _unknown(arms))
        if not count:
            return cls(0, np.zeros(arms), np.zeros((arms, arms)), *further)
        return cls(count, brier.mean(axis=1), brier @ brier.T / count, *further)

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """Return the mean of one arm's scores minus another's, and its standard error."""
        mean = float(self.means[one] - self.means[other])
        square = self.products[one, one] - 2 * self.products[one, other] + self.products[other, other]
        return mean, math.sqrt(max(float(square) - mean**2, 0.0) / max(self.count - 1, 1))

    def uncorrected(self) -> "Scores":
        """Return the scores where no arm can be corrected: each corrected arm has those of its own as it is.

        Examples
        --------
        >>> Scores.of(np.array([[0.5, 0.5], [0.1, 0.1]])).uncorrected().means  # as it is and corrected
        array([0.5, 0.5])
        """
        plain = np.arange(len(self.means)) // 2 * 2
        means, products = self.means[plain], self.products[np.ix_(plain, plain)]
        balanced = self.balanced[plain], self.balanced_error[plain]
        return Scores(self.count, means, products, self.auc, self.auc_error, *balanced)

    def possible(self) -> bool:
        """Return whether some rows could have these means and products, up to rounding."""
        least = self.products - np.outer(self.means, self.means)
        symmetric = np.allclose(least, least.T, atol=1e-9)
        return bool(symmetric and np.linalg.eigvalsh(least).min(initial=0.0) > -1e-6 * max(1, len(least)))


def _unknown(number: int) -> tuple[FloatArray, FloatArray]:
    """Return a share of one half with an error of 1, of which nothing follows."""
    return np.full(number, 0.5), np.ones(number)


def balance(right: BoolArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """Compute each arm's balanced accuracy, the mean over classes of the share of their rows predicted right.

    Parameters
    ----------
    right
        Whether each arm predicts a row right, shape (A, n); the last but one is the site alone as it is.
    labels
        True classes, shape (n,); those with a single row do not count.

    Returns
    -------
    The balanced accuracies, and the standard error of their difference to that of the site alone, shape (A,);
    0.5 and 1 with fewer than two classes.

    Examples
    --------
    >>> right = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
    >>> balance(right, np.array([0, 0, 1, 1]))[0]
    array([0.75, 0.25, 0.25])
    """
    kinds = [labels == label for label in set(labels.tolist()) if (labels == label).sum() > 1]
    if len(kinds) < 2:
        return _unknown(len(right))
    balanced, influence = np.zeros(len(right)), np.zeros(right.shape)
    for kind in kinds:
        rows, share = int(kind.sum()), right[:, kind].mean(axis=1)
        balanced += share / len(kinds)
        few = math.sqrt(rows / (rows - 1)) / (rows * len(kinds))
        influence[:, kind] = few * (right[:, kind] - share[:, None])
    return balanced, np.sqrt(np.square(influence - influence[-2]).sum(axis=1))


def _in_order(scores: FloatArray, positive: BoolArray) -> FloatArray:
    """Count for each row the rows of the other kind that are in order with it; ties count one half."""
    counts = np.zeros(len(scores))
    for own, sign in ((positive, 1), (~positive, -1)):
        others, mine = np.sort(sign * scores[~own]), sign * scores[own]
        counts[own] = (others.searchsorted(mine, "left") + others.searchsorted(mine, "right")) / 2
    return counts


def ranking(logits: FloatArray, labels: IntArray, fold: IntArray) -> tuple[FloatArray, FloatArray]:
    """Measure how well each coalition's models order a site's rows.

    By the area under the curve; with more than two classes, its mean over classes of two rows or more, each
    against the rest. Only pairs within a fold are compared, because each fold has a model of its own.

    Parameters
    ----------
    logits
        Outputs for each row by each coalition's model without its fold, shape (coalitions, n, C); the last
        coalition is the site alone.
    labels
        True classes, shape (n,).
    fold
        Fold of each row, shape (n,).

    Returns
    -------
    The area of each coalition, and the standard error of its difference to that of the site alone, shape
    (coalitions,); 0.5 and 1 where it cannot be measured.

    Examples
    --------
    >>> logits = np.array([[0.0, 1.0, 2.0, 3.0], [3.0, 1.0, 2.0, 0.0]])[..., None] * [0, 1]
    >>> ranking(logits, np.array([0, 0, 1, 1]), fold=np.zeros(4))[0]
    array([1.  , 0.25])
    """
    number, rows, classes = logits.shape
    areas, influence, measured = np.zeros(number), np.zeros((number, rows)), 0
    for label in range(classes) if classes > 2 else [1]:
        positive = labels == label
        kinds = (positive, ~positive)
        pairs = sum(int(positive[fold == each].sum() * (~positive[fold == each]).sum()) for each in set(fold))
        if min(kind.sum() for kind in kinds) < 2 or not pairs:
            continue
        measured += 1
        rest = np.logaddexp.reduce(np.delete(logits, label, axis=2), axis=2)
        scores, own = logits[..., label] - rest, np.zeros((number, rows))
        others = np.zeros(rows)
        for each in set(fold):
            here = fold == each
            others[here] = np.where(positive[here], (~positive[here]).sum(), positive[here].sum())
            for place in range(number):
                own[place, here] = _in_order(scores[place, here], positive[here])
        area = own[:, positive].sum(axis=1) / pairs
        areas += area
        # Each row's part in the area; a kind's rows are a sample, so their squares count n/(n − 1).
        few = np.where(positive, *(math.sqrt(kind.sum() / (kind.sum() - 1)) for kind in kinds))
        influence += few * (own - area[:, None] * others) / pairs
    if not measured:
        return _unknown(number)
    spread = np.sqrt(np.square(influence - influence[-1]).sum(axis=1)) / measured
    return areas / measured, np.minimum(spread, 1.0)


def in_pairs(pairs: FloatArray, in_order: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Measure how well models order a site's rows, from the pairs of rows that can be compared.

    Parameters
    ----------
    pairs, in_order
        Comparable pairs that each row is in, and those that each model puts in the right order, shape
        (models, n); the last model is the one that others are compared with.

    Returns
    -------
    The share of pairs in order for each model, and the standard error of its difference to the last one's,
    shape (models,); 0.5 and 1 without pairs. Source: Hoeffding, "A class of statistics with asymptotically
    normal distribution", Annals of Mathematical Statistics 19, 1948: each row's part in the share.

    Examples
    --------
    >>> in_pairs(np.array([[2, 1, 1], [2, 1, 1]]), np.array([[2, 1, 1], [1, 1, 0]]))[0]
    array([1. , 0.5])
    """
    shares, influence = _parts_of_pairs(pairs, in_order)
    if shares is None:
        return _unknown(len(pairs))
    return shares, np.minimum(np.sqrt(np.square(influence - influence[-1]).sum(axis=1)), 1.0)


def _parts_of_pairs(pairs: FloatArray, in_order: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    """Return each model's share of pairs in order, and each row's part in it; None without pairs."""
    total = pairs.sum(axis=1, keepdims=True)
    rows = pairs.shape[1]
    if rows < 2 or not total.all():
        return None, np.zeros(pairs.shape)
    shares = in_order.sum(axis=1, keepdims=True) / total
    # Every pair counts for both of its rows.
    influence = math.sqrt(rows / (rows - 1)) * 2 * (in_order - shares * pairs) / total
    return shares[:, 0], influence


def fit_of_pairs(
    pairs: FloatArray,
    in_order: FloatArray,
    began: int,
    turned: tuple[FloatArray, FloatArray, int] | None = None,
) -> "Fit":
    """Measure how well a model orders rows that it has not seen.

    Parameters
    ----------
    pairs, in_order
        As for :func:`in_pairs`, of one model, shape (n,).
    began
        Rows that begin a pair: of times, those with the event.
    turned
        The same three if the site's events were coded the other way.

    Returns
    -------
    The fit, in which `right` is the share of pairs in order. Turning round gains what the other order does,
    or what the other coding of events does, whichever is more.

    Examples
    --------
    >>> fit = fit_of_pairs(np.array([2.0, 2.0, 2.0]), np.array([0.0, 1.0, 1.0]), began=3)
    >>> round(fit.right, 6), round(fit.renaming, 6)
    (0.333333, 0.333333)
    """
    shares, influence = _parts_of_pairs(pairs[None], in_order[None])
    if shares is None or began < 2:
        return Fit()
    # Scores that say nothing put a row's pairs in order by a uniform share, of variance 1/12.
    by_chance = 1 / (12 * began)
    error = math.sqrt(max(float(np.square(influence).sum()), by_chance))
    right = float(shares[0])
    found = Fit(right, 0.5, error, 1 - 2 * right, 2 * error)
    if turned is None:
        return found
    others, parts = _parts_of_pairs(turned[0][None], turned[1][None])
    if others is None or turned[2] < 2:
        return found
    least = by_chance + 1 / (12 * turned[2])
    spread = math.sqrt(max(float(np.square(parts - influence).sum()), least))
    gain = float(others[0]) - right
    return replace(found, renaming=gain, renaming_error=spread) if gain > found.renaming else found


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


def choose(
    listed: Sequence[Coalition],
    scores: Scores | None,
    apart: Collection[int] = (),
    informing: int | None = None,
) -> Choice:
    """Choose the arm that serves a site.

    Parameters
    ----------
    listed
        The coalitions that contain the site: everyone first, larger ones before smaller ones, itself last.
    scores
        The site's cross-fitted scores by the :func:`arms_of` these coalitions; None if it reported none. With
        fewer than eight rows there is no choice: everyone's model serves as it is.
    apart
        Sites with which it must not train; *everyone* is the largest coalition without them. If that is the
        site alone, there is no choice, either.
    informing
        Rows that tell two models apart, >= 1: of times until an event, those that had it. The fewer they are,
        the less certain are the errors. None for all.

    Examples
    --------
    >>> everyone, alone = np.full((2, 8), 0.5), np.full((2, 8), 0.1)  # scores as it is and corrected, 8 rows
    >>> choose([(0, 1, 2), (0,)], Scores.of(np.concatenate([everyone, alone]))).arm
    Arm(coalition=1, corrected=False)
    """
    arms, alone = arms_of(len(listed)), len(listed) - 1
    allowed = [place for place, members in enumerate(listed) if not set(members) & set(apart)]
    together = allowed[0]
    plain, corrected = 2 * together, 2 * together + 1
    if together == alone:
        gain, error = (0.0, 0.0) if scores is None else scores.difference(0, plain)
        return Choice(arms[plain], arms[0], gain, error)
    if scores is None or scores.count < _FEWEST_ROWS:
        return Choice(arms[plain], arms[plain])
    lost, unbalanced = scores.auc[alone] - scores.auc, scores.balanced[2 * alone] - scores.balanced
    worse, error = scores.difference(corrected, plain)
    one_sided = unbalanced[corrected] > max(0, unbalanced[plain])
    stands = plain if worse > WITHIN * error or one_sided else corrected
    able = np.repeat(lost <= WITHIN * scores.auc_error, 2) & (unbalanced <= WITHIN * scores.balanced_error)
    able[2 * alone :] = True
    tried = [place for place, arm in enumerate(arms) if able[place] and arm.coalition in allowed]
    against = {place: scores.difference(stands, place) for place in [stands, *tried]}
    least, ranked = _standard_errors(2 * (len(allowed) - 1), informing or scores.count), LEAVE
    if informing is not None and informing < scores.count:
        ranked = _standard_errors(1, informing)
    better = any(gain > least * error for gain, error in against.values())
    if not better and lost[together] <= ranked * scores.auc_error[together]:
        return Choice(arms[stands], arms[stands])
    best = min(tried, key=lambda place: float(scores.means[place]))
    behind = {place: scores.difference(place, best) for place in tried}
    within = [place for place, (more, error) in behind.items() if more <= WITHIN * error or place == best]

    def order(place: int) -> tuple[int, bool, float]:
        arm = arms[place]
        size = len(listed[arm.coalition])
        # Of everyone's arms the one that stands; alone there is nothing to correct.
        preferred = arms[stands].corrected if arm.coalition == together else size > 1
        return -size, arm.corrected != preferred, float(scores.means[place])

    taken = min(within, key=order)
    return Choice(arms[taken], arms[stands], *against[taken])


def _standard_errors(tests: int, rows: int) -> float:
    """Return how many standard errors one of several tests needs, for two of a single normal variable."""
    from scipy.special import stdtrit

    return -float(stdtrit(rows - 1, math.erfc(LEAVE / math.sqrt(2)) / 2 / tests))


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
    gains, gain_errors
        With more than two classes, what renaming gains on rows of each class, and its standard error; where
        there are none, the least that it may gain, and 1.
    """

    right: float = 0.5
    by_chance: float = 0.5
    error: float = 1.0
    renaming: float = 0.0
    renaming_error: float = 1.0
    names: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    gain_errors: tuple[float, ...] = ()

    @staticmethod
    def width(num_classes: int) -> int:
        """Return the number of values in a fit."""
        return 5 + (3 * num_classes if num_classes > 2 else 0)

    @property
    def values(self) -> list[float]:
        """All of its numbers."""
        return [*astuple(self)[:5], *self.names, *self.gains, *self.gain_errors]

    @classmethod
    def unknown(cls, num_classes: int) -> "Fit":
        """Return the fit that says nothing."""
        found = cls(names=tuple(range(num_classes)))
        return found.by_class(np.zeros(0), np.zeros(0, dtype=np.int64)) if num_classes > 2 else cls()

    def by_class(self, gains: FloatArray, labels: IntArray) -> "Fit":
        """Add what renaming gains on rows of each class, from the gain of each row, shape (n,)."""
        means, errors = [], []
        for label, name in enumerate(np.argsort(self.names)):
            of = gains[labels == label]
            # Few rows that agree say little of others: one in n may not.
            spread = max(float(of.std()), len(of) ** -0.5) if len(of) else 1.0
            means.append(float(of.mean()) if len(of) else 0.0 - (name != label))
            errors.append(spread / math.sqrt(max(1, len(of))))
        return replace(self, gains=tuple(means), gain_errors=tuple(errors))


def fit_of(logits: FloatArray, labels: IntArray, fold: IntArray, *, within: bool = False) -> Fit:
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
    within
        Whether each fold has a model of its own; rows' order then counts within folds.

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
        return Fit.unknown(classes)
    if classes == 2:
        scores, positive = logits[:, 1] - logits[:, 0], labels == 1
        in_order = pairs = variance = 0.0
        for part in [fold == each for each in set(fold)] if within else [np.ones(rows, dtype=bool)]:
            n1, n0 = int(positive[part].sum()), int((~positive[part]).sum())
            in_order += float(_in_order(scores[part], positive[part])[positive[part]].sum())
            pairs += n1 * n0
            variance += n1 * n0 * (n1 + n0 + 1) / 12
        if not pairs:
            return Fit()
        area, error = in_order / pairs, math.sqrt(variance) / pairs
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
    found = Fit(
        share,
        chance,
        math.sqrt(max(share * (1 - share), chance * (1 - chance), 1 / rows) / rows),
        float(gains.mean()),
        max(float(gains.std()), 1 / rows) / math.sqrt(rows),
        tuple(best(np.ones(rows, dtype=bool)).tolist()),
    )
    return found.by_class(gains, labels)


def ways(fits: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Find the models that fit another site's rows the wrong way round, or the right way.

    Each by two standard errors.

    Parameters
    ----------
    fits
        The numbers of each :class:`Fit`, the model's site first, NaN where unknown, shape (K, K, 5 or more).
        Those of a site's own rows are cross-fitted.

    Returns
    -------
    wrong, right
        Whether more is right with the classes renamed; if not, whether more is right than by chance. Each of
        shape (K, K), False for a site's own rows.

    Examples
    --------
    >>> good, turned = [0.9, 0.5, 0.1, -0.8, 0.2], [0.1, 0.5, 0.1, 0.8, 0.2]
    >>> wrong, right = ways(np.array([[good, turned, good]] * 3))
    >>> wrong[:, 1].tolist(), right[:, 2].tolist()
    ([True, False, True], [True, True, False])
    """
    against, better = _errors(fits)
    others = ~np.eye(len(fits), dtype=bool)
    wrong = others & (against > 2)
    return wrong, others & ~wrong & (better > 2)


def at_own_shares(fits: FloatArray, together: FloatArray, counts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Measure what renaming gains where the classes have the shares of each model's own site.

    A model predicts best where the classes have the shares of the rows that it trained on: there renaming
    gains nothing unless classes have other names. Where they have other shares, it may gain much: a model
    from a site that has mostly one class predicts that class for most rows of a site that has mostly another.
    With two classes, the area under the curve does not depend on shares.

    Source: Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori
    probabilities", Neural Computation 14, 2002: rows of a class count by the ratio of its shares.

    Parameters
    ----------
    fits, together
        As for :func:`turned_sites`, with the numbers by class of :class:`Fit`, shape (…, 5 + 3C).
    counts
        Training rows of each site and class, shape (K, C).

    Returns
    -------
    Both, with `renaming` and `renaming_error` at these shares if there are more than two classes; for all
    others' models together at the shares of that of the others where least is shown.

    Examples
    --------
    >>> fit = [0.1, 0.4, 0.1, 0.7, 0.1, *(1, 0, 2), *(1.0, -0.5, 0.0), *(0.1, 0.1, 0.1)]
    >>> counts = np.array([[1, 4, 5], [7, 2, 1]])
    >>> fits, _ = at_own_shares(np.array([[fit] * 2] * 2), np.array([fit] * 2), counts)
    >>> fits[:, 0, 3].round(6).tolist()  # 0.1 − 0.4 · 0.5 and 0.7 − 0.2 · 0.5
    [-0.1, 0.6]
    """
    classes = counts.shape[1]
    if fits.shape[-1] == Fit.width(2):
        return fits, together
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))

    def weighed(found: FloatArray) -> FloatArray:
        gains, errors = found[..., 5 + classes : 5 + 2 * classes], found[..., 5 + 2 * classes :]
        error = np.sqrt((np.square(shares[:, None] * errors)).sum(axis=-1))
        return np.stack([(shares[:, None] * gains).sum(axis=-1), np.maximum(error, 1e-9)], axis=-1)

    at_others = weighed(np.broadcast_to(together, fits.shape))
    shown = np.where(np.eye(len(fits), dtype=bool), np.inf, at_others[..., 0] / at_others[..., 1])
    least = at_others[shown.argmin(axis=0), np.arange(len(fits))]
    return (
        np.concatenate([fits[..., :3], weighed(fits), fits[..., 5:]], axis=-1),
        np.concatenate([together[:, :3], least, together[:, 5:]], axis=-1),
    )


def _errors(fits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return by how many standard errors more is right with classes renamed, and more than by chance."""
    right, chance, error, renaming, renaming_error = np.moveaxis(fits[..., :5], -1, 0)
    return renaming / renaming_error, (right - chance) / error


def turned_sites(fits: FloatArray, together: FloatArray, level: float = LEVEL) -> list[int]:
    """List the sites whose rows the others' models fit the wrong way round.

    Where all others' models together are the wrong way round, in a test at one level for all sites (Holm, two
    ways, of those whose rows suffice to reach it: Tarone), and more of the others' own models are than the
    right way, among them that of a site which has learnt something: its model is better than by chance on its
    own rows, again at one level for all sites. A model that has learnt nothing orders rows the one way or the
    other, which accuses nobody. The site with the largest majority is named first, and has no vote from then
    on.

    Parameters
    ----------
    fits
        As for :func:`ways`; with more than two classes from :func:`at_own_shares`.
    together
        How all others' models together fit each site's rows, in the same numbers, shape (K, 5 or more).
    level
        Level of all findings together, in (0, 1).

    Returns
    -------
    Ids of the sites, sorted. Of two sites both, because it is unknown which of them is turned; likewise with
    equal majorities.

    Examples
    --------
    >>> good, turned = [0.9, 0.5, 0.1, -0.8, 0.2], [0.1, 0.5, 0.1, 0.8, 0.2]
    >>> fits = [[good, good, turned], [good, good, turned], [turned, turned, good]]
    >>> turned_sites(np.array(fits), together=np.array([good, good, turned]))
    [2]
    """
    from scipy.special import ndtr

    wrong, right = ways(fits)
    against, better = _errors(together)
    # A site whose test could not reach the level, as with a single row of a class, takes no part in it.
    testable = 2 * ndtr(-(1 - together[:, 1]) / together[:, 2]) <= level
    shown = np.zeros(len(fits), dtype=bool)
    shown[testable] = holm(2 * ndtr(-np.maximum(against, better)[testable]).clip(0, 0.5)) <= level
    own = np.nan_to_num(_errors(np.diagonal(fits).T)[1])
    learnt = holm(ndtr(-own)) <= level
    candidates, voting = shown & (against > better), np.ones(len(fits), dtype=bool)
    while True:
        accusers = wrong & voting[:, None]
        accused = candidates & voting & (accusers & learnt[:, None]).any(axis=0)
        majority = np.where(accused, accusers.sum(axis=0) - (right & voting[:, None]).sum(axis=0), 0)
        if majority.max(initial=0) <= 0:
            return np.flatnonzero(~voting).tolist()
        voting &= majority < majority.max()


def harmful_sites(
    listed: Sequence[Coalition], scores: Mapping[int, Scores], level: float = LEVEL
) -> list[int]:
    """List the sites without which most of the others predict their own rows clearly better.

    Each other site compares the model of everyone with that of everyone but the site, as they are, on its
    cross-fitted rows. The test is that the second has a Brier score lower by more than 0.1 at more than half
    of them, u of m: (m − u + 1) times the u-th smallest p-value, so that no single site can accuse another.
    All sites share one level (Holm). Of two sites, nobody knows which harms the other; and where half of the
    sites would be named, they are of different kinds, and none is.

    Source: Benjamini and Heller, "Screening for partial conjunction hypotheses", Biometrics 64, 2008.

    Parameters
    ----------
    listed
        The :func:`coalitions`, everyone first.
    scores
        What the sites reported, by site.
    level
        Level of all tests together, in (0, 1).

    Examples
    --------
    >>> listed = coalitions(3)  # with site 2, others' Brier scores are 1, and 0 without it
    >>> other = Scores.of(np.repeat([1.0, 0.0, 1.0, 0.0], 2)[:, None] * np.ones(20))
    >>> itself = Scores.of(np.ones((8, 20)))
    >>> harmful_sites(listed, {0: other, 1: other, 2: itself})
    [2]
    """
    from scipy.special import ndtr

    sites = listed[0]
    p_values = np.ones(len(sites))
    for site in sites:
        without = tuple(other for other in sites if other != site)
        found = []
        for other in without:
            own = [coalition for coalition in listed if other in coalition]
            if other in scores and scores[other].count >= _FEWEST_ROWS and without in own:
                gain, error = scores[other].difference(0, 2 * own.index(without))
                found.append(float(ndtr((_HARM - gain) / max(error, 1e-9))))
        if (most := len(without) // 2 + 1) <= len(found) and len(without) > 1:
            p_values[site] = min(1.0, (len(found) - most + 1) * sorted(found)[most - 1])
    named = np.flatnonzero(holm(p_values) <= level).tolist()
    return named if 2 * len(named) < len(sites) else []


def partners(fits: FloatArray, turned: Collection[int], harmful: Collection[int] = ()) -> BoolArray:
    """Return which sites may train with each other, shape (K, K).

    Nobody may with a turned or a harmful site. Where as many sites are turned as not, nobody knows which of
    them are: then those may not whose models fit each other's rows the wrong way round.

    Parameters
    ----------
    fits
        As for :func:`ways`.
    turned
        Ids of the :func:`turned_sites`.
    harmful
        Ids of sites that harm the others.

    Examples
    --------
    >>> fits = np.tile([0.9, 0.5, 0.1, -0.8, 0.2], (3, 3, 1))
    >>> partners(fits, turned=[2]).tolist()
    [[True, True, False], [True, True, False], [False, False, True]]
    """
    number = len(fits)
    named = np.isin(np.arange(number), list(turned))
    wrong = ways(fits)[0]
    unclear = 2 * len(turned) >= number
    apart = wrong | wrong.T if unclear else named[:, None] | named
    harms = np.isin(np.arange(number), list(harmful))
    apart = apart | harms[:, None] | harms
    return np.asarray(~apart | np.eye(number, dtype=bool))
