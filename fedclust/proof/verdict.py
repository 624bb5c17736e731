"""The result of a comparison as a recommendation in one sentence.

Turn clients' measurements into a verdict, and choose the model that serves each cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedclust.proof.paired import Comparison, Difference, compare, holm, num_set_aside
from fedclust.typing import IntArray

SCALE = "Brier score: 0 for a prediction that is certain and right, 2 for one that is certain and wrong."
"""The unit of a verdict's figures; for the line below it."""


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
        return asdict(self) | {"interval": None if self.interval is None else list(self.interval)}


def verdict(
    comparison: Comparison | None,
    *,
    method: str,
    num_groups: int,
    p_value: float | None = None,
    level: float = 0.05,
) -> Verdict:
    """Write the result of comparing one model for all (A) with a grouping's models (B).

    Parameters
    ----------
    comparison
        The comparison; None if the method found one group and there is nothing to compare.
    method
        Name of the method, such as ``"FedGWC"``.
    num_groups
        Number of groups, >= 1.
    p_value
        The comparison's p-value as corrected by :func:`~fedclust.proof.holm`; None if it is the run's only
        test.
    level
        The grouping is shown to be better if its p-value is at most this, in (0, 1).

    Returns
    -------
    The verdict. Its interval is two-sided, the test one-sided: at a p-value between 0.025 and 0.05 the 95 %
    interval just contains 0.

    Raises
    ------
    ValueError
        If there is no comparison of several groups.
    """
    if num_groups == 1:
        return Verdict(f"Train one model for all: {method} found no groups", grouped=False)
    if comparison is None:
        raise ValueError(f"comparison must be given for {num_groups} groups, got None")
    if comparison.num_clients == 0:
        text = "Train one model for all: no client has two held-out rows, so no grouping could be tested"
        return Verdict(text, grouped=False)
    proven = comparison.p_value if p_value is None else p_value
    grouped = proven <= level
    text = _groups(comparison, num_groups) if grouped else _one_model(comparison, method, num_groups)
    return _verdict_of(comparison, text, proven, grouped=grouped)


def verdict_apart(
    comparison: Comparison, *, clusters: Sequence[int], num_apart: int, num_clients: int, p_value: float
) -> Verdict:
    """Write that some clusters should train separately, although the grouping as a whole is not better.

    Parameters
    ----------
    comparison
        One model for all (A) with these clusters' models (B), on these clusters' clients.
    clusters
        The clusters, by index.
    num_apart, num_clients
        Number of clients of these clusters, and of all.
    p_value
        The largest of these clusters' corrected p-values.
    """
    gain, interval = _figures(comparison, 1)
    one = len(clusters) == 1
    names = ", ".join(map(str, clusters))
    text = (
        f"Train {num_apart} of {num_clients} clients apart (cluster{'' if one else 's'} {names}) and one "
        f"model for the others: on held-out rows {'its model beats' if one else 'their models beat'} one "
        f"model for all by {gain} ({interval}), for {comparison.better_for} of {comparison.num_clients} of "
        "them"
    )
    return _verdict_of(comparison, text, p_value)


def verdict_kept(comparison: Comparison, *, num_groups: int, p_value: float) -> Verdict:
    """Write that groups stay which were shown to be better during training, whatever the last test says.

    Parameters
    ----------
    comparison
        One model for all (A) with the groups' models (B), after the last round; its gain is above 0.
    num_groups
        Number of groups.
    p_value
        Corrected.
    """
    gain, interval = _figures(comparison, 1)
    text = (
        f"Train in {num_groups} groups: held-out rows showed them to be better during training; at the end "
        f"their models beat one model for all by {gain} ({interval}), for {comparison.better_for} of "
        f"{comparison.num_clients} clients, which by itself may be chance"
    )
    return _verdict_of(comparison, text, p_value)


def _verdict_of(comparison: Comparison, text: str, p_value: float, *, grouped: bool = True) -> Verdict:
    """Add the figures of a comparison, and who did not vote."""
    text += _abstentions(comparison)
    return Verdict(text, grouped, comparison.gain, comparison.interval, p_value, comparison.better_for)


def _groups(comparison: Comparison, num_groups: int) -> str:
    gain, interval = _figures(comparison, 1)
    return (
        f"Train in {num_groups} groups: on held-out rows their models beat one model for all by {gain} "
        f"({interval}), for {comparison.better_for} of {comparison.num_clients} clients"
    )


def _one_model(comparison: Comparison, method: str, num_groups: int) -> str:
    text = f"Train one model for all: no grouping was shown to be better; {method}'s {num_groups} clusters "
    lowest, highest = comparison.interval
    if lowest == highest == 0:
        return text + "predict every held-out row just as well"
    if highest < 0:
        cost, interval = _figures(comparison, -1)
        return text + f"would cost {cost} ({interval})"
    if comparison.gain < 0:
        cost, interval = _figures(comparison, -1)
        return text + f"cost {cost} ({interval}), which may be chance"
    gain, interval = _figures(comparison, 1)
    return text + f"gain {gain} ({interval}), which may be chance"


def _figures(comparison: Comparison, sign: int) -> tuple[str, str]:
    """Write the gain, or with sign −1 the cost, and its interval, with digits for the interval's width."""
    lowest, highest = sorted(sign * end for end in comparison.interval)
    half = (highest - lowest) / 2
    digits = min(6, max(2, -math.floor(math.log10(half)))) if half > 0 else 2
    value, low, high = (_number(number, digits) for number in (sign * comparison.gain, lowest, highest))
    return value, f"{round(100 * comparison.confidence, 3):g} % interval {low} to {high}"


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _abstentions(comparison: Comparison) -> str:
    num = len(comparison.abstained)
    if not num:
        return ""
    who = "1 client has" if num == 1 else f"{num} clients have"
    return f" ({who} fewer than two held-out rows and did not vote)"


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
    which nothing is better calls anything better is at most `level`. See :mod:`fedclust.proof.paired` for the
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
    members = [np.flatnonzero(assignment == cluster) for cluster in clusters]
    everyone = np.arange(len(assignment))
    comparisons = [_compare(clients, measured) for clients in members]
    whole = _compare(everyone, measured)
    tests = [*comparisons, *([whole] if len(clusters) > 1 else [])]
    corrected = holm([each.p_value for each in tests])
    trusted = proven_before and len(clusters) > 1 and whole.gains
    proofs = tuple(
        ClusterProof(
            int(cluster),
            tuple(clients.tolist()),
            comparison,
            float(p_value),
            proven=bool(p_value <= level),
            serves=bool(p_value <= level or (trusted and comparison.gains)),
        )
        for cluster, clients, comparison, p_value in zip(
            clusters, members, comparisons, corrected, strict=False
        )
    )
    last = float(corrected[-1])
    if trusted and last > level:
        result = verdict_kept(whole, num_groups=len(proofs), p_value=last)
    else:
        result = _verdict(proofs, whole, last, measured, method, level)
    if serve_best and (trusted or (last <= level and len(proofs) > 1)):
        result = _with_those_served_the_common_model(result, proofs)
    silent = tuple(int(client) for client in everyone if int(client) not in measured)
    if not measured and len(proofs) > 1:
        result = Verdict(
            "Train one model for all: no client answered, so no grouping could be tested", grouped=False
        )
    elif silent and len(proofs) > 1:
        who = "1 client" if len(silent) == 1 else f"{len(silent)} clients"
        result = replace(result, text=f"{result.text} ({who} did not answer and did not vote)")
    too_few = tuple(sorted(client for client, each in measured.items() if each.count < 2))
    return GroupingProof(result, proofs, too_few, silent)


def _verdict(
    proofs: Sequence[ClusterProof],
    whole: Comparison,
    p_value: float,
    measured: Mapping[int, Difference],
    method: str,
    level: float,
) -> Verdict:
    if len(proofs) == 1:
        return verdict(None, method=method, num_groups=1, level=level)
    apart = [each for each in proofs if each.proven]
    if p_value > level and apart:
        clients = np.sort(np.concatenate([each.clients for each in apart]))
        return verdict_apart(
            _compare(clients, measured),
            clusters=[each.cluster for each in apart],
            num_apart=len(clients),
            num_clients=sum(len(each.clients) for each in proofs),
            p_value=max(each.p_value for each in apart),
        )
    return verdict(whole, method=method, num_groups=len(proofs), p_value=p_value, level=level)


def _with_those_served_the_common_model(result: Verdict, proofs: Sequence[ClusterProof]) -> Verdict:
    common = [each for each in proofs if not each.serves]
    if not common:
        return result
    number = sum(len(each.clients) for each in common)
    names = _listed([each.cluster for each in common])
    plural = "s" if len(common) > 1 else ""
    theirs = f"{number} client{'s' if number > 1 else ''} of cluster{plural} {names}"
    verb = "are" if number > 1 else "is"
    return replace(
        result,
        text=f"{result.text}; {theirs} {verb} served the model for all, as theirs was not shown to be better",
    )


def _compare(clients: IntArray, measured: Mapping[int, Difference]) -> Comparison:
    found = [measured[int(client)] for client in clients if int(client) in measured]
    return compare(
        [each.mean for each in found],
        [each.variance for each in found],
        [each.count for each in found],
        set_aside=num_set_aside(sum(each.count >= 2 for each in found)),
    )


def _listed(names: Sequence[int]) -> str:
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last
