"""The verdict of a run: the tests of its clusters against one model for all, in one sentence.

Held-out rows decide (:mod:`fedclust.proof.paired`), test rows give the figures that are printed
(:mod:`fedclust.proof.figure`). If the model for all predicts no better than each client's class shares, a
comparison with it alone proves nothing: groups must be better than the shares, too, or the verdict begins
with that.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclust.proof.figure import Figure, Rows, measure
from fedclust.proof.paired import LARGEST_BRIER, Comparison, Evidence, compare, holm
from fedclust.proof.words import CLASSES, Words
from fedclust.support.checks import plural
from fedclust.typing import IntArray

_NO_FIGURE = measure([])
_LISTED = 10  # clusters
NO_BETTER = "The one model for all predicts no better than"
"""Before :attr:`~fedclust.proof.words.Words.guess`."""


@dataclass(frozen=True)
class Verdict:
    """Whether to train in groups, and how certain that is.

    Attributes
    ----------
    text
        The verdict in one sentence.
    grouped
        Whether the groups were shown to be better than one model for all.
    p_value
        One-sided, corrected for the other tests of the run if there were any; None without a comparison.
    figure
        How much better the groups' models are, on test rows.
    """

    text: str
    grouped: bool
    p_value: float | None = None
    figure: Figure = _NO_FIGURE

    def summary(self) -> dict[str, Any]:
        """Return the verdict as plain values, for JSON."""
        collapsed = {"collapsed": True} if self.figure.collapsed else {}
        decision = {"text": self.text, "grouped": self.grouped, "p_value": self.p_value}
        return decision | self.figure.summary() | collapsed


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
        Result of the comparison on held-out rows.
    figure
        How much better its model is, on test rows.
    p_value
        Corrected for the run's other tests by Holm.
    proven
        Whether its model was shown to be better.
    serves
        Whether it serves its clients with ``serve="best"``.
    """

    cluster: int
    clients: tuple[int, ...]
    comparison: Comparison
    figure: Figure
    p_value: float
    proven: bool
    serves: bool

    def summary(self) -> dict[str, Any]:
        """Return the comparison as plain values, for JSON; what is unknown without votes is None."""
        figures = self.comparison.figures()
        tested = bool(figures["rows"])
        return {
            "cluster": self.cluster,
            "clients": len(self.clients),
            "voted": figures["voted"],
            "held_out_rows": figures["rows"],
            "held_out_gain": figures["gain"],
            "p_value": self.p_value if tested else None,
            "proven": self.proven if tested else None,
            **self.figure.summary(),
        }


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
        Clients that did not vote because they have no held-out rows.
    silent
        Clients that did not vote because they did not answer, or whose answer or vote could not be used.
    """

    verdict: Verdict
    clusters: tuple[ClusterProof, ...]
    too_few: tuple[int, ...]
    silent: tuple[int, ...]

    def served_by_cluster(self, num_clients: int) -> np.ndarray:
        """Return for each client whether its cluster's model is the best to serve it, shape (K,)."""
        served = np.zeros(num_clients, dtype=bool)
        for each in self.clusters:
            served[list(each.clients)] = each.serves
        return served


def prove_grouping(
    assignment: IntArray,
    measured: Mapping[int, Evidence],
    rows: Mapping[int, Rows],
    *,
    method: str,
    serve_best: bool = False,
    proven_before: bool = False,
    trouble: str = "",
    held_out: bool = True,
    unseen: Mapping[str, float] | None = None,
    level: float = 0.05,
    words: Words = CLASSES,
) -> GroupingProof:
    """Test a grouping's models (B) against one model for all (A).

    Every cluster is tested on its own clients, and the grouping as a whole on all of them. All these tests
    share one level by Holm's correction (:func:`~fedclust.proof.holm`), so the probability that a run in
    which nothing is better calls anything better is at most `level`. See :mod:`fedclust.proof.paired` for the
    assumptions of each test and its source.

    Parameters
    ----------
    assignment
        Cluster of each client, shape (K,).
    measured
        By client, what it reported of its held-out rows: A's Brier scores minus B's. A missing client did not
        answer.
    rows
        By client, what it reported of its test rows.
    method
        Name of the method that made the grouping, such as ``"FedGWC"``.
    serve_best
        Whether clients of clusters whose model was not shown to be better get the model for all; the verdict
        then mentions it.
    proven_before
        Whether the method kept its splits only because held-out rows showed them to be better. If the
        grouping as a whole gains, a cluster's model then serves unless the one for all has the better mean on
        its clients: each split has passed a test already, and a second one would fail for want of rows.
    trouble
        What kept the model for all from being trained, if anything; in the verdict if that model collapsed.
    held_out
        Whether the run has held-out rows. Without them the verdict is the figure of test rows alone, because
        a decision by test rows would bias that figure.
    unseen
        Where the method tested groupings and kept none, the least ``gain`` in Brier score that its tests
        could have shown, with the number of ``rows`` held out.
    level
        Level of all tests together, in (0, 1).
    words
        What is predicted, in words.

    Returns
    -------
    The verdict, and each cluster's test.

    Examples
    --------
    >>> from fedclust.proof.paired import evidence
    >>> measured = {client: evidence(np.full(100, 0.3)) for client in range(4)}  # clusters' models are better
    >>> proof = prove_grouping(np.array([0, 0, 1, 1]), measured, {}, method="FedGWC")
    >>> proof.verdict.text
    'Train in 2 groups: on held-out rows their Brier score is lower by 0.3, for 4 of 4 clients'
    """

    def compared(clients: Iterable[int]) -> Comparison:
        return compare([measured[client] for client in clients if client in measured])

    def figure(clients: Iterable[int]) -> Figure:
        found = [rows[client] for client in clients if client in rows]
        return measure(found, level=level, of_pairs=words.of_pairs)

    clusters = np.unique(assignment)
    members = [np.flatnonzero(assignment == cluster).tolist() for cluster in clusters]
    comparisons = [compared(clients) for clients in members]
    everyone = range(len(assignment))
    whole, number, several = compared(everyone), len(clusters), len(clusters) > 1
    corrected = holm([each.p_value for each in [*comparisons, *[whole] * several]]).tolist()
    last = corrected[-1]
    trusted = proven_before and several and (whole.gains or not whole.num_clients)
    proofs = tuple(
        ClusterProof(
            cluster=int(cluster),
            clients=tuple(clients),
            comparison=comparison,
            figure=figure(clients),
            p_value=p_value,
            proven=p_value <= level,
            # Silence is no evidence: a proven split whose clients do not answer keeps its model.
            serves=p_value <= level or (trusted and (comparison.gains or not comparison.num_clients)),
        )
        for cluster, clients, comparison, p_value in zip(
            clusters, members, comparisons, corrected, strict=False
        )
    )
    apart = [each for each in proofs if each.proven]
    shown, p_value, grouped = figure(everyone), last, last <= level
    collapsed, in_groups = shown.collapsed, f"Train in {number} groups: "
    no_better = f"{NO_BETTER} {words.guess}"
    earlier = "held-out rows showed them to be better during training; at the end"
    if not several:
        text, grouped = f"Train one model for all: {method} found no groups{_unseen(unseen, words)}", False
    elif not held_out and shown.num_rows:
        better = _better(whole, shown, words)
        text = f"{method}'s {number} clusters have {better}; no rows were held out to decide"
    elif not whole.num_clients:
        why, grouped = "no client has held-out rows" if measured else "no client answered", trusted
        text = f"Train one model for all: {why}, so no grouping could be tested"
        if trusted:
            text = f"{in_groups}{earlier} {why}"
    elif grouped:
        text = in_groups + _better(whole, shown, words)
    elif trusted:
        text = f"{in_groups}{earlier} {_better(whole, shown, words)}, which by itself may be chance"
        grouped = True
    elif apart:
        clients = sorted(client for each in apart for client in each.clients)
        shown, p_value, grouped = figure(clients), max(each.p_value for each in apart), True
        names = ", ".join(str(each.cluster) for each in apart)
        text = (
            f"Train {len(clients)} of {len(assignment)} clients apart (cluster{'s' * (len(apart) > 1)} "
            f"{names}) and one model for the others: {_better(compared(clients), shown, words)} of them"
        )
    else:
        text = "Train one model for all: no grouping was shown to be better; "
        text += _not_shown(f"{method}'s {number} clusters", whole, shown, words)
    if collapsed and grouped and shown.groups_inform:
        # Where groups contradict each other, one model for all can be no better.
        text += f"; {no_better[0].lower()}{no_better[1:]}, the groups' models do better"
    elif collapsed:
        shown = replace(figure(everyone), collapsed=True)
        named = (
            f"{method}'s {number} clusters have {_figures(shown, words)}"
            if several
            else text.partition(": ")[2]
        )
        why = f" ({trouble})" if trouble else ""
        text, grouped = f"{no_better}{why}: no verdict on groups against it; {named}", False
    common = [each for each in proofs if not each.serves]
    if serve_best and common and several and (trusted or last <= level):
        text += f"; {_served_common(common)}, as theirs was not shown to be better"
    silent = tuple(client for client in everyone if client not in measured)
    too_few = tuple(sorted(client for client, each in measured.items() if not each.count))
    if several and measured:
        for quiet, why in ((too_few, "no held-out rows"), (silent, "no usable answer")):
            if quiet:
                has = "has" if len(quiet) == 1 else "have"
                text += f" ({plural(len(quiet), 'client')} {has} {why} and did not vote)"
    verdict = Verdict(text, grouped, p_value if several and whole.num_clients else None, shown)
    return GroupingProof(verdict, proofs, too_few, silent)


def _unseen(least: Mapping[str, float] | None, words: Words) -> str:
    """Describe what a search for groups could not see."""
    if least is None:
        return ""
    if least["gain"] >= LARGEST_BRIER:
        return f", and could have shown none: {least['rows']} held-out rows are too few"
    return (
        f" (groups may still be better by less than {least['gain']:.2g} in {words.score}, which "
        f"{least['rows']:,} held-out rows cannot show)"
    )


def _served_common(common: Sequence[ClusterProof]) -> str:
    """Describe which clusters' clients the model for all serves."""
    clients = sum(len(each.clients) for each in common)
    listed = [str(each.cluster) for each in common]
    if more := listed[_LISTED:]:
        listed = [*listed[:_LISTED], f"{len(more)} more"]
    *first, last = listed
    names = f"clusters {', '.join(first)} and {last}" if first else f"cluster {last}"
    return f"{plural(clients, 'client')} of {names} {'are' if clients > 1 else 'is'} served the model for all"


def _better(comparison: Comparison, figure: Figure, words: Words) -> str:
    """Describe how much better groups are, and for how many clients."""
    of = figure if figure.num_rows else comparison
    text = _figures(figure, words) if of is figure else words.lower("on held-out rows their {}", of.gain)
    lower = "" if of.gain > 0 else "lower "  # for whom it is, after a mean that is not
    return f"{text}, {lower}for {of.better_for} of {plural(of.num_clients, 'client')}"


def _not_shown(what: str, comparison: Comparison, figure: Figure, words: Words) -> str:
    """Describe the figures of groups that were not shown to be better."""
    if not figure.num_rows:
        return words.lower(f"on held-out rows the {{}} of {what}", comparison.gain)
    if figure.gain == 0 == figure.accuracy_gain:
        return f"{what} predict every test row just as well"
    low, high = figure.interval
    end = ", which may be chance" if low <= 0 <= high else ", which held-out rows did not show" * (low > 0)
    return f"{what} would have {_figures(figure, words)}{end}"


def _figures(figure: Figure, words: Words) -> str:
    """Write accuracies and Brier scores with their intervals, with digits for the intervals' widths."""
    common, groups = figure.accuracy
    ends = " to ".join(_number(each, figure.accuracy_interval, "+") for each in figure.accuracy_interval)
    sign = -1 if figure.gain < 0 else 1
    lowest, highest = sorted(sign * end for end in figure.interval)
    brier, low, high = (_number(each, figure.interval) for each in (sign * figure.gain, lowest, highest))
    return (
        f"{words.in_shares(groups, common)} ({figure.accuracy_gain:+z.3f}, "
        f"{round(100 * figure.confidence, 3):g} % interval {ends}), {words.score} "
        f"{'higher' if sign < 0 else 'lower'} by {brier} ({low} to {high})"
    )


def _number(value: float, interval: tuple[float, float], sign: str = "") -> str:
    half = (interval[1] - interval[0]) / 2
    digits = min(6, max(2, -math.floor(math.log10(half)))) if half > 0 else 2
    return f"{value:{sign}z.{digits}f}"
