"""The report to each site: with whom to train, how well that works, and what is odd about its rows.

The choice itself is made in :mod:`fedclust.proof.coalitions`, by training rows; the figures are of test rows.
Accuracy favours models that predict a site's most frequent class, so balanced accuracy and the area under the
curve are shown next to it. A site is advised only if these figures do not contradict the choice; otherwise it
is undecided. A site with turned labels is warned first.

Source of the area's interval: Birnbaum and Klose, "Bounds for the variance of the Mann-Whitney statistic",
Annals of Mathematical Statistics 28, 1957: with m rows of the rarer class, the variance of an area A is at
most A(1 − A)/m, that of a share of m rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fedclust.proof.coalitions import Choice, Coalition, at_own_shares, turned_sites, ways
from fedclust.proof.figure import Figure
from fedclust.proof.units import Mend
from fedclust.proof.words import CLASSES, FEWEST, Words, joined, rarest
from fedclust.typing import FloatArray, IntArray

SERVED = ("chosen", "everyone", "alone")
"""The arms whose figures stand side by side: the site's choice, everyone together, and the site alone."""

_LOWERED = 0.02
_OTHERS = "the others", "the others' models"


def figures_of(
    measured: Mapping[str, float],
    brier: float,
    counts: IntArray,
    interval: Callable[[float, float], FloatArray],
    words: Words = CLASSES,
) -> dict[str, Any]:
    """Return the figures of one arm on a site's test rows; None where they are not defined.

    Parameters
    ----------
    measured
        Metrics of an evaluation, with its number of rows.
    brier
        Mean Brier score.
    counts
        Test rows of each class, shape (C,); with fewer than three of a class that the site has, or of one
        class alone, there is no AUC.
    interval
        Returns the ends of the interval of a share, given a number and of how many.
    words
        What is predicted, in words.

    Examples
    --------
    >>> from fedclust.metrics import wilson
    >>> measured = {"num-examples": 4, "accuracy": 0.75, "auc": 1.0}
    >>> figures = figures_of(measured, brier=0.3, counts=np.array([3, 1]), interval=wilson)
    >>> figures["accuracy"], round(figures["accuracy_low"], 2), figures["auc"]
    (0.75, 0.3, None)
    """
    rows, fewest = int(measured["num-examples"]), rarest(counts)[1]
    names = [key for key, _ in words.compared]
    values = {name: measured.get(name.replace("_", "-"), measured.get(name, np.nan)) for name in names}
    values |= {"brier": brier} | ({"auc": np.nan} if fewest < FEWEST else {})
    defined = {name: float(each) if rows and np.isfinite(each) else None for name, each in values.items()}
    ends: dict[str, Any] = {}
    for name, number in (("accuracy", words.counted(rows, counts)), ("auc", fewest)):
        share = defined.get(name)
        pair = (None, None) if share is None or not number else interval(share * number, number).tolist()
        ends |= {f"{name}_low": pair[0], f"{name}_high": pair[1]}
    return defined | ends


@dataclass(frozen=True, eq=False)
class Site:
    """A site's choice.

    Attributes
    ----------
    client, name
        Its id and its name.
    coalition
        The sites that train its model.
    choice
        The choice.
    figures
        The :func:`figures_of` each of :data:`SERVED`; empty if the site did not answer.
    num_test, test_counts
        Number of its test rows, and how many labels they have of each class, shape (C,).
    everyone
        The sites whose model its choice was compared with: all, but for those that nobody trains with.
    over_alone
        How much better its choice predicts its test rows than its own model; of a site that chose its own,
        than everyone's. None if it did not answer.
    over_shares
        How much lower its choice's score of test rows is than that of a prediction without inputs; NaN if
        unknown.
    words
        What is predicted, in words.
    """

    client: int
    name: str
    coalition: Coalition
    choice: Choice
    figures: Mapping[str, Mapping[str, Any]]
    num_test: int
    test_counts: IntArray
    everyone: Coalition
    over_alone: Figure | None = None
    over_shares: float = np.nan
    words: Words = CLASSES

    @property
    def leaves(self) -> bool:
        """Whether its model is not that of everyone whom it may train with."""
        return self.coalition != self.everyone

    @property
    def rival(self) -> str:
        """The arm that :attr:`over_alone` compares with."""
        return "alone" if len(self.coalition) > 1 else "everyone"

    def summary(self, names: Sequence[str], classes: Sequence[str], text: str) -> dict[str, Any]:
        """Return the choice as plain values, for JSON.

        Parameters
        ----------
        names
            Names of all sites.
        classes
            Names of the classes.
        text
            What it is to be advised, as of :func:`advice`.
        """
        over = {} if self.over_alone is None else {f"over_{self.rival}": self.over_alone.summary()}
        if over:
            kept = "accuracy_gain", "accuracy_interval", "gain", "interval"
            over = {arm: {key: each[key] for key in kept} for arm, each in over.items()}
        return {
            "client": self.client,
            "name": self.name,
            "train_with": [names[site] for site in self.coalition if site != self.client],
            "leaves": self.leaves,
            "correction": "prior" if self.choice.arm.corrected else "none",
            "gain": self.choice.gain,
            "gain_error": self.choice.error,
            "test_rows": self.num_test,
            "test_rows_of": dict(zip(classes, self.test_counts.tolist(), strict=True)),
            **{arm: dict(figures) for arm, figures in self.figures.items()},
            **over,
            "text": text,
        }

    def lowered(self) -> list[str]:
        """List the figures by which everyone's model, or its own, is better by more than 0.02, in words."""
        lower = []
        own, words = self.figures.get("chosen", {}), {"everyone": "with everyone", "alone": "alone"}
        for key, title in self.words.compared:
            known = [(self.figures[arm][key], words[arm]) for arm in words if self.figures]
            best, where = max((each for each in known if each[0] is not None), default=(-1.0, ""))
            if own.get(key) is not None and own[key] < best - _LOWERED:
                lower.append(f"{title} {own[key]:.2f}, {where} {best:.2f}")
        return lower


def partners_of(site: Site, names: Sequence[str]) -> str:
    """Name the sites that a site trains with.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(1, corrected=False), Arm(0, corrected=False))
    >>> for coalition in ((0, 1, 2, 3), (0, 1, 2), (0, 3)):
    ...     site = Site(0, "Bern", coalition, choice, {}, 0, np.zeros(2), everyone=(0, 1, 2, 3))
    ...     partners_of(site, ["Bern", "Graz", "Linz", "Ulm"])
    'everyone'
    'everyone but Ulm'
    'Ulm'
    """
    others = [names[each] for each in site.coalition if each != site.client]
    missing = [name for each, name in enumerate(names) if each not in site.coalition]
    if not (missing and others):
        return "everyone" if others else "nobody"
    return f"everyone but {joined(missing)}" if len(missing) < len(others) else joined(others)


def advice(
    site: Site, names: Sequence[str], classes: Sequence[str], stop: str = "", learnt: bool = True
) -> str:
    """Write with whom a site is to train, with figures that agree.

    Parameters
    ----------
    site
        The site.
    names, classes
        Names of all sites and of the classes.
    stop
        Why its coding has to be checked first, a sentence.
    learnt
        Whether the models have learnt enough for any advice.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(0, corrected=True), Arm(0, corrected=True))
    >>> site = Site(0, "Graz", (0, 1), choice, {}, 0, np.zeros(2, dtype=int), everyone=(0, 1))
    >>> advice(site, ["Graz", "Ulm"], ["ill", "well"])
    'Graz: no advice, it sent no figures after the last round.'
    """
    if not site.figures:
        return f"{site.name}: no advice, it sent no figures after the last round."
    alone, corrected = len(site.coalition) == 1, site.choice.arm.corrected
    correction = f", with the {site.words.own_correction}" * corrected
    chosen = site.figures.get("chosen", {})
    measured = chosen.get("accuracy") is not None
    partners = partners_of(site, names)
    served = f"it is served {'its own model' if alone else f'the model that it trains with {partners}'}"
    lowered = site.lowered() if learnt and not stop else []
    if stop:
        text = f"{stop} Until then {served}"
    elif not learnt:
        text = f"no advice, the models have learnt too little; {served}"
    elif lowered:
        text = f"undecided; by its training rows {served}"
    else:
        doubt = site.words.doubt(site.test_counts, chosen)
        text = f"{doubt}; " * bool(doubt) + ("stay out" if alone else f"train with {partners}")
    text = f"{site.name}: {text}{correction}"
    if not measured:
        return f"{text}."
    further = site.words.further(site.num_test, site.test_counts, classes, chosen) if learnt else ""
    if not site.words.counted(site.num_test, site.test_counts):  # the figures are ½, of nothing
        return f"{text}.{further}"
    ends = chosen["accuracy_low"], chosen["accuracy_high"]
    between = "" if ends[0] is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    parts = [f"{site.words.share} {chosen['accuracy']:.2f}{between}"]
    for arm, words in (("alone", "alone"), ("everyone", "with everyone")):
        if (arm == "alone" and alone) or (arm == "everyone" and not site.leaves):
            continue
        part = f"{words} {site.figures[arm]['accuracy']:.2f}"
        if arm == site.rival and site.over_alone is not None:
            low, high = site.over_alone.accuracy_interval
            part += f" (difference {site.over_alone.accuracy_gain:+.2f}, {low:+.2f} to {high:+.2f})"
        parts.append(part)
    parts += [each for each in lowered if not each.startswith(site.words.share)]
    contrast = site.words.contrast(chosen, site.figures["alone"]) if learnt and not (stop or alone) else ""
    return f"{text}: {', '.join(parts)}.{further}{contrast}"


def have_learnt(sites: Sequence[Site], train_counts: IntArray) -> bool:
    """Return whether the models that sites chose have learnt enough for advice.

    Their mean Brier score on test rows is better than that of each site's class shares by more than 0.01, or
    their balanced accuracy better than that of one answer, by more than 0.02 and two standard errors of as
    many coins; and not every site has one answer for all its rows. Of amounts and times, their mean score is
    better than that of a prediction without inputs by more than a fiftieth.

    Parameters
    ----------
    sites
        The sites' choices.
    train_counts
        Training rows of each site and class, shape (K, C).

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> everyone = Choice(Arm(0, corrected=False), Arm(0, corrected=False))
    >>> for brier in (0.48, 0.5):  # shares of one half have a score of 0.5
    ...     figures = {"chosen": {"brier": brier, "balanced_accuracy": 0.55}}
    ...     site = Site(0, "Bern", (0,), everyone, figures, 100, np.array([50, 50]), everyone=(0,))
    ...     have_learnt([site], train_counts=np.array([[30, 30]]))
    True
    False
    """
    known = [each for each in sites if each.figures and each.test_counts.any()]
    if not known:
        return True
    there = np.stack([each.test_counts for each in known])
    train = np.asarray(train_counts, dtype=float)[[each.client for each in known]]
    rows, over = (np.array([getattr(each, name) for each in known]) for name in ("num_test", "over_shares"))
    return known[0].words.learnt([each.figures["chosen"] for each in known], there, train, rows, over)


def headline(
    sites: Sequence[Site],
    names: Sequence[str],
    turned: Sequence[str] = (),
    *,
    learnt: bool = True,
    units: Sequence[str] = (),
) -> str:
    """Summarise the choices in one sentence.

    Parameters
    ----------
    sites
        The sites' choices.
    names
        Names of all sites.
    turned
        Names of sites whose classes are turned round.
    learnt
        Whether the models have learnt enough for any advice.
    units
        Names of sites with values in another unit than the others'.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(0, corrected=False), Arm(0, corrected=False))
    >>> rest = (0, 1), choice, {}, 9, np.zeros(2), (0, 1)
    >>> sites = [Site(client, name, *rest) for client, name in enumerate(["Graz", "Ulm"])]
    >>> headline(sites, ["Graz", "Ulm"])
    'Train one model for all: no site gains by leaving it'
    """
    if not learnt:
        return "No advice on who trains with whom: the models have learnt too little"
    alone = [site.name for site in sites if len(site.coalition) == 1]
    some = [site.name for site in sites if site.leaves and site.name not in alone]
    groups: dict[Coalition, list[Site]] = {}
    for site in sites:
        if site.name not in (*alone, *some):
            groups.setdefault(site.coalition, []).append(site)
    parts = []
    for coalition, members in groups.items():
        missing, who = len(names) - len(coalition), joined([each.name for each in members])
        if missing and missing + 1 >= len(coalition):
            parts.append(f"{who} train together" if len(members) > 1 else f"{who} trains with a few")
        else:
            number = f"{len(members)} of {len(sites)} sites train" if len(members) > 1 else f"{who} trains"
            parts.append(f"{number} with {partners_of(members[0], names)}")
    if some:
        parts.append(f"{joined(some)} with some of the others")
    if alone:
        parts.append(f"{joined(alone)} {'stays' if len(alone) == 1 else 'stay'} out")
    unsure = [site.name for site in sites if site.lowered() and site.name not in (*turned, *units)]
    text = "; ".join([*parts, *([f"undecided by test rows: {joined(unsure)}"] if unsure else [])])
    if turned or units:
        every = 2 < len(sites) == len(turned)
        codings = "codings of all sites" if every else f"coding of {joined(turned)}" if turned else ""
        what = " and the ".join(filter(None, (f"units of {joined(units)}" if units else "", codings)))
        return f"Stop: check the {what} and run again. Until then: {text}"
    if not (alone or some):
        return f"Train one model for all: no site gains by leaving it{text.removeprefix(parts[0])}"
    return f"Who trains with whom: {text}"


def findings(
    sites: Sequence[Site],
    fits: FloatArray,
    together: FloatArray,
    counts: IntArray,
    classes: Sequence[str],
    harmful: Collection[int] = (),
    mends: Mapping[int, Sequence[Mend]] = MappingProxyType({}),
    *,
    learnt: bool = True,
) -> list[dict[str, Any]]:
    """List what is odd about sites' rows.

    Parameters
    ----------
    sites
        The sites' choices.
    fits, together
        The cross-site matrix, and how all others' models together fit each site, as for
        :func:`~fedclust.proof.coalitions.turned_sites`.
    counts
        Training rows of each site and class, shape (K, C).
    classes
        Names of the classes.
    harmful
        Ids of sites that harm the others.
    mends
        Conversions of units by which sites would gain, by site.
    learnt
        Whether the models have learnt enough for any advice.

    Returns
    -------
    ``client``, ``name``, ``kind`` and ``text`` of each: values are in another unit, its classes are turned
    round, its updates harm the others, its rows are too few to choose by, its censoring depends on the risk,
    it has only one class, or it is of another population.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(0, corrected=False), Arm(0, corrected=False))
    >>> rest = (0, 1), choice, {}, 9, np.zeros(2), (0, 1)
    >>> sites = [Site(client, name, *rest) for client, name in enumerate(["Graz", "Ulm"])]
    >>> counts, nothing = np.array([[5, 5], [9, 0]]), np.full((2, 2, 5), np.nan)
    >>> [odd["text"] for odd in findings(sites, nothing, nothing[0], counts, ["ill", "well"])]
    ['It holds only ill: nothing else can be learnt or measured there.']
    """
    words = sites[0].words if sites else CLASSES
    miscoded, measured = words.miscoded(counts[: len(fits)]), words.measured(together)
    fits, together = words.tested(fits), words.tested(together)
    tested = at_own_shares(fits, together, counts[: len(fits)])
    turned = turned_sites(*tested) if learnt or not words.must_learn else []
    wrong_way, right_way = ways(tested[0])
    odd = list[dict[str, Any]]()
    in_order = words.in_order(len(classes))

    def add(site: Site, kind: str, text: str) -> None:
        odd.append({"client": site.client, "name": site.name, "kind": kind, "text": text})

    def right(values: FloatArray) -> str:
        """Return how right models are, as a range."""
        low, high = (f"{each:.2f}" for each in (values.min(), values.max()))
        ends = low if low == high else f"{low} to {high}"
        return f"{words.order_in} of {{}} {ends}" if in_order else f"{{}} right on a share of {ends}"

    clear = 2 * len(turned) < len(sites)
    for site in sites:
        at = site.client
        accusers = np.flatnonzero(wrong_way[:, at])
        if mended := mends.get(at):
            listed = "; ".join(each.text(words.would) for each in mended)
            add(site, "unit", f"Stop: {listed}. Mend this first and run again.")
        if at in miscoded:
            add(site, "turned", f"Stop: {miscoded[at]}. Check its coding and run again.")
        elif at in turned and len(accusers):
            exchanged, this, that = words.renamed(fits[accusers, at], classes)
            wrong = [each.name for each in sites if each.client in accusers]
            of = f"model{'s' * (len(wrong) > 1)} of {joined(wrong)}"
            named = joined(wrong), f"the {of}"
            others, models = named if len(wrong) < max(2, len(sites) - 1) else _OTHERS
            how = right(fits[accusers, at, 0]).format(models)
            what = f"what {others} call{'s' * (len(wrong) == 1)} {this} it calls {that}"
            text = f"Stop: {exchanged} ({how}): {what}. "
            text += "Check both codings" if len(sites) == 2 else "Check its coding"
            if clear:
                gain = together[at, 0] + together[at, 3]
                then = f"{words.order_in} {gain:.2f}" if in_order else f"{gain:.0%} right"
                text += f" and run again: corrected, the others' models together would have {then} there"
            add(site, "turned", f"{text}.")
        elif at in harmful:
            text = "Its updates harm the others, so nobody trains with it: its data or node may be damaged."
            add(site, "harmful", text)
        elif few := words.few(counts[at]):
            add(site, "few", few)
        elif learnt and at in measured:
            add(site, "censoring", measured[at])
        elif only := words.only(counts[site.client], counts.sum(axis=0), classes):
            add(site, "one_class", only)
        elif not mended and len(sites) > 2 and len(site.coalition) == 1 and not right_way[:, at].any():
            text = "No other site's model is better than chance there: its rows may be of "
            add(site, "population", f"{text}another population, of other classes, or in other units.")
    return odd
