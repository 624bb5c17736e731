"""The report to each site: with whom to train, how well that works, and what is odd about its rows.

The choice itself is made in :mod:`fedclust.proof.coalitions`. Accuracy favours models that predict a site's
most frequent class, so balanced accuracy and the area under the curve are shown next to it, and the sentence
mentions if the chosen arm lowers one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.proof.coalitions import Choice, Coalition, turned_sites, ways
from fedclust.typing import FloatArray, IntArray

FIGURES = ("accuracy", "balanced_accuracy", "auc", "brier")
SERVED = ("chosen", "everyone", "alone")
"""The arms whose figures stand side by side: the site's choice, everyone together, and the site alone."""

_LOWERED = 0.02


def figures_of(measured: Mapping[str, float], brier: float, ends: Sequence[float]) -> dict[str, Any]:
    """Return the figures of one arm on a site's test rows; None where they are not defined.

    Parameters
    ----------
    measured
        Metrics of an evaluation, with its number of rows.
    brier
        Mean Brier score.
    ends
        Ends of the accuracy's interval.

    Examples
    --------
    >>> measured = {"num-examples": 4, "accuracy": 0.75, "auc": float("nan")}
    >>> figures = figures_of(measured, brier=0.3, ends=(0.3, 0.95))
    >>> figures["accuracy"], figures["accuracy_low"], figures["auc"]
    (0.75, 0.3, None)
    """
    rows = int(measured["num-examples"])
    values = {name: measured.get(name.replace("_", "-"), np.nan) for name in FIGURES} | {"brier": brier}
    defined = {name: float(each) if rows and np.isfinite(each) else None for name, each in values.items()}
    low, high = ends if rows else (None, None)
    return {**defined, "accuracy_low": low, "accuracy_high": high}


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
    num_test
        Number of its test rows.
    """

    client: int
    name: str
    coalition: Coalition
    choice: Choice
    figures: Mapping[str, Mapping[str, Any]]
    num_test: int

    def summary(self, names: Sequence[str], odd: Sequence[str] = ()) -> dict[str, Any]:
        """Return the choice as plain values, for JSON.

        Parameters
        ----------
        names
            Names of all sites.
        odd
            What is odd about its rows, in sentences.
        """
        return {
            "client": self.client,
            "name": self.name,
            "train_with": [names[site] for site in self.coalition if site != self.client],
            "correction": "prior" if self.choice.arm.corrected else "none",
            "gain": self.choice.gain,
            "gain_error": self.choice.error,
            "test_rows": self.num_test,
            **{arm: dict(figures) for arm, figures in self.figures.items()},
            "text": " ".join([self._text(names), *odd]),
        }

    def _text(self, names: Sequence[str]) -> str:
        """Write the verdict in one sentence, or two where a figure is lower."""
        others = [names[site] for site in self.coalition if site != self.client]
        everyone = self.choice.arm.coalition == self.choice.everyone.coalition
        what = f"train with {'everyone' if everyone else joined(others)}" if others else "stay out"
        if self.choice.arm.corrected:
            what += ", with the prior correction"
        rivals = {"everyone": "with everyone", "alone": "alone"}
        same = "everyone" if everyone else "" if others else "alone"
        parts = []
        if (own := self.figures.get("chosen", {})).get("accuracy") is not None:
            parts.append(f"{own['accuracy']:.2f} ({own['accuracy_low']:.2f} to {own['accuracy_high']:.2f})")
            parts += [
                f"{words} {self.figures[arm]['accuracy']:.2f}" for arm, words in rivals.items() if arm != same
            ]
        text = f"{self.name}: {what}{': ' if parts else ''}{', '.join(parts)}."
        lowered = []
        for key, title in (("balanced_accuracy", "balanced accuracy"), ("auc", "AUC")):
            known = {
                arm: self.figures[arm][key]
                for arm in rivals
                if self.figures.get(arm, {}).get(key) is not None
            }
            if own.get(key) is not None and known:
                best = max(known, key=lambda arm: known[arm])
                if own[key] < known[best] - _LOWERED:
                    lowered.append(
                        f"its {title} is lower, {own[key]:.2f} instead of {known[best]:.2f} {rivals[best]}"
                    )
        return text + (f" But {', and '.join(lowered)}." if lowered else "")


def joined(names: Sequence[str]) -> str:
    """Join names with commas and a last "and".

    Examples
    --------
    >>> joined(["Basel", "Graz", "Ulm"])
    'Basel, Graz and Ulm'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def headline(sites: Sequence[Site], turned: Sequence[str] = ()) -> str:
    """Summarise the choices in one sentence, with the names of sites whose classes are turned round.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(0, corrected=False), Arm(0, corrected=False))
    >>> sites = [Site(client, name, (0, 1), choice, {}, 9) for client, name in enumerate(["Graz", "Ulm"])]
    >>> headline(sites)
    'Train one model for all: no site gains by leaving it'
    """
    everyone = [site for site in sites if site.choice.arm.coalition == site.choice.everyone.coalition]
    alone = [site.name for site in sites if len(site.coalition) == 1]
    some = [site.name for site in sites if site not in everyone and site.name not in alone]
    parts = []
    if everyone:
        one = f"{everyone[0].name} trains"
        many = f"{len(everyone)} of {len(sites)} sites train"
        parts.append(f"{one if len(everyone) == 1 else many} with everyone")
    if some:
        parts.append(f"{joined(some)} with some of the others")
    if alone:
        parts.append(f"{joined(alone)} {'stays' if len(alone) == 1 else 'stay'} out")
    text = "Who trains with whom: " + "; ".join(parts)
    if len(everyone) == len(sites):
        text = "Train one model for all: no site gains by leaving it"
    if not turned:
        return text
    every = 2 < len(sites) == len(turned)
    return f"{text}; check {'the codings of all sites' if every else f'the coding of {joined(turned)}'} first"


def findings(
    sites: Sequence[Site],
    fits: FloatArray,
    counts: IntArray,
    classes: Sequence[str],
) -> list[dict[str, Any]]:
    """List what is odd about sites' rows.

    Parameters
    ----------
    sites
        The sites' choices.
    fits
        The cross-site matrix, as for :func:`~fedclust.proof.coalitions.ways`.
    counts
        Training rows of each site and class, shape (K, C).
    classes
        Names of the classes; their numbers if empty.

    Returns
    -------
    ``client``, ``name``, ``kind`` and ``text`` of each: its classes are turned round, it has only one, or it
    is of another population.

    Examples
    --------
    >>> from fedclust.proof.coalitions import Arm
    >>> choice = Choice(Arm(0, corrected=False), Arm(0, corrected=False))
    >>> sites = [Site(client, name, (0, 1), choice, {}, 9) for client, name in enumerate(["Graz", "Ulm"])]
    >>> counts = np.array([[5, 5], [9, 0]])
    >>> [odd["text"] for odd in findings(sites, np.full((2, 2, 5), np.nan), counts, ["ill", "well"])]
    ['It holds only ill: nothing else can be learnt or measured there.']
    """
    labels = list(classes) or [str(label) for label in range(counts.shape[1])]
    turned, (wrong_way, right_way) = turned_sites(fits), ways(fits)
    odd = list[dict[str, Any]]()

    def add(site: Site, kind: str, text: str) -> None:
        odd.append({"client": site.client, "name": site.name, "kind": kind, "text": text})

    if len(sites) == 2 and turned:
        first, second = (site.name for site in sites)
        this, that = _renamed(fits[:1, 1, 5:], labels)
        for site in sites:
            names = f"Of {first} and {second}, what {first} calls {this} {second} calls {that}"
            add(site, "turned", f"{names}. Check both codings.")
    for site in sites:
        held = np.flatnonzero(counts[site.client])
        if len(sites) > 2 and site.client in turned:
            this, that = _renamed(fits[wrong_way[:, site.client], site.client, 5:], labels)
            wrong = [each.name for each in sites if wrong_way[each.client, site.client]]
            others = "the others" if len(wrong) == len(sites) - 1 else joined(wrong)
            verb = "calls" if len(wrong) == 1 else "call"
            text = f"What {others} {verb} {this} it calls {that}. Check its coding."
            add(site, "turned", text)
        elif len(held) == 1 and (counts.sum(axis=0) > 0).sum() > 1:
            text = f"It holds only {labels[held[0]]}: nothing else can be learnt or measured there."
            add(site, "one_class", text)
        elif len(sites) > 2 and len(site.coalition) == 1 and not right_way[:, site.client].any():
            text = "No other site's model is better than chance there: "
            add(site, "population", f"{text}its rows may be of another population, or in other units.")
    return odd


def _renamed(names: FloatArray, labels: Sequence[str]) -> tuple[str, str]:
    """List the classes for which most models have another name than a site, and the site's names.

    Parameters
    ----------
    names
        The best new name of each class for each model that is the wrong way round, shape (models, C); without
        columns if there are two classes.
    labels
        Names of the classes.
    """
    pairs = [(labels[0], labels[1])] if len(labels) == 2 else []
    for label, named in enumerate(names.T.astype(int)):
        other = int(np.bincount(named).argmax())
        if other != label and 2 * (named == other).sum() > len(named):
            pairs.append((labels[label], labels[other]))
    this, that = zip(*pairs or [("one class", "another")], strict=True)
    return joined(this), joined(that)
