"""What is predicted, in words: the nouns of texts, tables and charts, and what depends on them.

Texts are written once, with these nouns in them: ``f"mean client {words.share}"``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedclust.proof.figure import NEGLIGIBLE
from fedclust.proof.scores import SCALE
from fedclust.typing import FloatArray, IntArray

FEW, FEWEST = 10, 3
"""Test rows of a class below which their number is reported, and below which there is no area."""

_ABOVE_COINS = 0.02


class Words:
    """The words of classes; other targets have words of their own.

    Attributes
    ----------
    share, shares
        What the first figure is, and several of it.
    of_pairs
        Whether it is a share of pairs of rows.
    score
        What models are compared by.
    label
        What a row has, without an s.
    bin, bins, bin_shares, label_shares
        A row's bin, several of them, and how many rows are in each.
    counts
        What a site states of its rows.
    guess
        What a prediction without inputs is.
    correction, own_correction
        A personal layer, and a site's.
    exchanged
        What a turned site is.
    ordered
        Explanation of the cross-site matrix.
    scale, certain
        Explanation of a verdict's figures, and of a score's least and largest value.
    predicted
        What the table of predictions has.
    figures
        Keys, titles and digits of the target's own figures.
    without
        Keys of figures that the target does not have.
    would
        How right models would be of a site's rows, with places for two shares.
    order_in
        What says how well models order a site's rows.
    compared
        Keys and titles of the figures by which a choice may be worse than another model, larger is better.
    """

    share, shares = "accuracy", "accuracies"
    of_pairs = False
    score = "Brier score"
    label = "label"
    bin, bins = "class", "classes"
    bin_shares, label_shares = "class shares", "label shares"
    guess = "each client's class shares"
    correction, own_correction = "label-prior correction", "prior correction"
    exchanged = "labels look exchanged"
    ordered = (
        "Right: area under the curve with two classes, else share predicted right. A column of areas below "
        "0.5 is a site whose classes are the wrong way round for the others."
    )
    scale = SCALE
    counts = "label counts"
    certain = ": 0 for a prediction that is certain and right, 2 for one that is certain and wrong"
    predicted = "a column of probabilities per class"
    figures: tuple[tuple[str, str, int], ...] = ()
    without: tuple[str, ...] = ()
    order_in = "AUC"
    would = "be right for {} of its rows instead of {}"
    compared: tuple[tuple[str, str], ...] = (
        ("accuracy", "accuracy"),
        ("balanced_accuracy", "balanced accuracy"),
        ("auc", "AUC"),
    )

    def title(self, key: str) -> str:
        """Return the title of a key of ``summary.json`` or ``clients.parquet``.

        Examples
        --------
        >>> CLASSES.title("mean_client_accuracy")
        'mean client accuracy'
        """
        return key.replace("_", " ")

    def beside(self, others: Iterable["Words"]) -> "Words":  # noqa: ARG002
        """Return words that hold of other runs, too."""
        return self

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Keys and titles of the figures of a table of sites."""
        return *self.compared, ("brier", self.score)

    @property
    def a_bin(self) -> str:
        """A bin, with its article."""
        return f"{'an' if self.bin[0] in 'aeiou' else 'a'} {self.bin}"

    def in_shares(self, groups: float, common: float) -> str:
        """Compare the first figure of groups with that of one model.

        Examples
        --------
        >>> CLASSES.in_shares(0.75, 0.5)
        '0.750 instead of 0.500 of test rows predicted right'
        """
        return f"{groups:.3f} instead of {common:.3f} of test rows predicted right"

    def lower(self, of: str, gain: float) -> str:
        """Say by how much a score is lower than another, or higher.

        Parameters
        ----------
        of
            Whose score it is, with {} for its name.
        gain
            By how much it is lower.

        Examples
        --------
        >>> CLASSES.lower("their {}", 0.25)
        'their Brier score is lower by 0.25'
        """
        word = "lower" if gain >= 0 else "higher"
        return f"{of.format(self.score)} is {word} by {abs(gain):.2g}"

    def counted(self, rows: int, counts: IntArray) -> int:  # noqa: ARG002
        """Return how many test rows say something of the first figure.

        Parameters
        ----------
        rows
            Number of test rows.
        counts
            Test rows of each bin, shape (C,).
        """
        return rows

    def further(self, rows: int, counts: IntArray, classes: Sequence[str], figures: Mapping[str, Any]) -> str:
        """Return a sentence on what few test rows are of; empty if all have many.

        Parameters
        ----------
        rows, counts
            As for :meth:`counted`.
        classes
            Names of the bins.
        figures
            Those of the chosen model.

        Examples
        --------
        >>> CLASSES.further(92, np.array([90, 2]), ["well", "ill"], {})
        ' Of its 92 test rows 2 are ill: too few for an AUC.'
        """
        label, number = rarest(counts)
        if number >= FEW or (len(counts) > 2 and np.count_nonzero(counts) < 2):
            return ""
        auc = "too few for an AUC"
        if figures.get("auc") is not None:
            auc = f"AUC {figures['auc']:.2f} ({figures['auc_low']:.2f} to {figures['auc_high']:.2f})"
        verb = "is" if number == 1 else "are"
        return f" Of its {rows:,} test rows {number or 'none'} {verb} {classes[label]}: {auc}."

    def doubt(self, counts: IntArray, figures: Mapping[str, Any]) -> str:
        """Return why a model is none to recommend as it is; empty without a reason.

        Parameters
        ----------
        counts
            Test rows of each bin, shape (C,).
        figures
            Those of the chosen model.

        Examples
        --------
        >>> CLASSES.doubt(np.array([90, 10]), {"balanced_accuracy": 0.51})
        'its model hardly tells the classes apart (balanced accuracy 0.51, by guessing 0.50)'
        """
        classes, balanced = np.count_nonzero(counts), figures.get("balanced_accuracy")
        if classes < 2 or balanced is None or balanced >= 1 / classes + _ABOVE_COINS:
            return ""
        guess = f"balanced accuracy {balanced:.2f}, by guessing {1 / classes:.2f}"
        return f"its model hardly tells the classes apart ({guess})"

    def contrast(self, chosen: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
        """Return a sentence where a choice has the better score and tells classes worse than the site alone.

        Examples
        --------
        >>> chosen = {"brier": 0.3, "balanced_accuracy": 0.5, "auc": 0.6}
        >>> CLASSES.contrast(chosen, {"brier": 0.4, "balanced_accuracy": 0.7, "auc": 0.7})[:52]
        ' Its Brier score is better than alone (0.30, 0.40), '
        """
        keys = "brier", "balanced_accuracy", "auc"
        if any(arm.get(key) is None for arm in (chosen, alone) for key in keys):
            return ""
        pairs = [(f"{chosen[key]:.2f}", f"{alone[key]:.2f}") for key in keys]
        (score, own_score), *shares = pairs
        if not (score < own_score and all(one < other for one, other in shares)):
            return ""
        brier, balanced, auc = (", ".join(pair) for pair in pairs)
        return (
            f" Its {self.score} is better than alone ({brier}), its balanced accuracy and AUC are worse "
            f"({balanced}; {auc}): its probabilities are better, and a model of its own tells the classes "
            "apart better. Which counts depends on whether probabilities are used, or decisions in which "
            "each class counts the same."
        )

    def learnt(
        self,
        chosen: Sequence[Mapping[str, Any]],
        there: IntArray,
        train: FloatArray,
        rows: IntArray,
        over: FloatArray,  # noqa: ARG002
    ) -> bool:
        """Return whether the models that sites chose have learnt enough for advice.

        Parameters
        ----------
        chosen
            Figures of each site's choice, of n sites.
        there, train
            Test and training rows of each bin, shape (n, C).
        rows
            Test rows of each, shape (n,).
        over
            How much lower each one's score is than that of a prediction without inputs, shape (n,).
        """
        shares = train / np.maximum(train.sum(axis=1, keepdims=True), 1)
        rows, classes = there.sum(axis=1), (there > 0).sum(axis=1)
        # The mean over test rows y of Σ_c (p_c − [c = y])² is 1 + Σ_c p_c² − 2 Σ_c p_c n_c/n.
        by_shares = 1 + np.square(shares).sum(axis=1) - 2 * (shares * there).sum(axis=1) / rows
        gains = by_shares - np.array([each["brier"] for each in chosen])
        above = np.array([each["balanced_accuracy"] or 0.0 for each in chosen]) - 1 / classes
        several = classes > 1
        if not several.any():
            return True
        coins = max(_ABOVE_COINS, 1 / np.sqrt(rows[several].sum()))
        score = np.average(gains, weights=rows) > NEGLIGIBLE
        balanced = np.average(above[several], weights=rows[several]) > coins
        return bool((score or balanced) and (above[several] > 1e-9).any())

    def in_order(self, num_bins: int) -> bool:
        """Return whether models are measured by how they order rows."""
        return num_bins == 2

    def only(self, counts: IntArray, everyone: IntArray, classes: Sequence[str]) -> str:
        """Return what a site with one class cannot do; empty with several.

        Parameters
        ----------
        counts, everyone
            Training rows of each bin at the site and at all, shape (C,).
        classes
            Names of the bins.
        """
        held = np.flatnonzero(counts)
        if len(held) != 1 or np.count_nonzero(everyone) < 2:
            return ""
        return f"It holds only {classes[held[0]]}: nothing else can be learnt or measured there."

    def renamed(self, fits: FloatArray, classes: Sequence[str]) -> tuple[str, str, str]:
        """Return what looks exchanged at a turned site, and two names: the others', and the site's for it.

        Parameters
        ----------
        fits
            Numbers of the models that are the wrong way round there, shape (models, 5 or more).
        classes
            Names of the bins.
        """
        pairs = [(classes[0], classes[1])] if len(classes) == 2 else []
        for label, named in enumerate(fits[:, 5 : 5 + len(classes)].T.astype(int)):
            other = int(np.bincount(named).argmax())  # the best new name of the class for most models
            if other != label and 2 * (named == other).sum() > len(named):
                pairs.append((classes[label], classes[other]))
        this, that = zip(*pairs or [("one class", "another")], strict=True)
        return self.exchanged, joined(this), joined(that)

    def miscoded(self, counts: IntArray) -> dict[int, str]:  # noqa: ARG002
        """Return the sites whose coding differs by their counts alone, and why.

        Parameters
        ----------
        counts
            Training rows of each site and bin, shape (K, C).
        """
        return {}

    def few(self, counts: IntArray) -> str:  # noqa: ARG002
        """Return why a site with enough rows still has too little to choose by; empty if it does not.

        Parameters
        ----------
        counts
            Training rows of each bin, shape (C,).
        """
        return ""

    must_learn = False
    """Whether a site is named as turned round only if the models have learnt anything."""

    def tested(self, fits: FloatArray) -> FloatArray:
        """Return the numbers of fits by which a site may be named, of the same shape.

        Parameters
        ----------
        fits
            Those of :class:`~fedclust.proof.coalitions.Fit`, shape (…, 5 or more).
        """
        return fits

    def measured(self, together: FloatArray) -> dict[int, str]:  # noqa: ARG002
        """Return what is odd at sites but names none, by site.

        Parameters
        ----------
        together
            How all others' models together fit each site's rows, as for :meth:`tested`, shape (K, 5 or more).
        """
        return {}


CLASSES = Words()


def rarest(counts: IntArray) -> tuple[int, int]:
    """Return the class with the fewest test rows and their number: of two classes, or of those with rows.

    Examples
    --------
    >>> rarest(np.array([5, 0, 2]))
    (2, 2)
    """
    there = np.arange(len(counts)) if len(counts) == 2 else np.flatnonzero(counts)
    if not len(there):
        return 0, 0
    label = int(there[np.argmin(np.asarray(counts)[there])])
    return label, int(counts[label]) if len(there) > 1 else 0


def joined(names: Sequence[str]) -> str:
    """Join names with commas and a last "and".

    Examples
    --------
    >>> joined(["Basel", "Graz", "Ulm"])
    'Basel, Graz and Ulm'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
