"""Turn clients' measurements into a verdict, and choose the model that serves each cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclust.proof.paired import Comparison, compare, holm, num_set_aside
from fedclust.proof.scores import Difference
from fedclust.proof.verdict import Verdict, verdict, verdict_apart, verdict_kept
from fedclust.typing import IntArray

__all__ = ["ClusterProof", "GroupingProof", "prove_grouping"]


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
        voted = self.comparison.num_clients > 0
        return {
            "cluster": self.cluster,
            "clients": len(self.clients),
            "voted": self.comparison.num_clients,
            "gain": self.comparison.gain if voted else None,
            "interval": list(self.comparison.interval) if voted else None,
            "p_value": self.p_value,
            "better_for": self.comparison.better_for,
            "proven": self.proven,
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
