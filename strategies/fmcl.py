"""FMCL: clients are clustered once, by the class prototypes of a frozen foundation model."""

from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import fmcl, prototype_groups
from fedclust.clustering.fmcl import Parameters
from fedclust.clustering.placement import DistanceRule, EvidenceRule, LabelRule
from fedclust.clustering.prototype_groups import Prototypes, sent_counts
from fedclust.federation import Clusters, Federation, Findings
from fedclust.federation.asking import check_alike
from fedclust.messages.description import PrototypesQuestion
from fedclust.newcomers.placing import packed
from fedclust.strategies.base import ClusteredStrategy
from fedclust.typing import FloatArray, IntArray

_MOST_CLIENTS = 4096  # up to which the distances are kept for the plots; K² numbers
_Sent = tuple[FloatArray, IntArray, FloatArray]  # prototypes, counts and scatter, a row per client


class FMCL(ClusteredStrategy):
    """Cluster clients before round 1 by the similarity of their classes in a frozen encoder's embedding.

    Source: FMCL, Algorithms 1 to 5; our rule: :mod:`fedclust.clustering.prototype_groups`.

    Parameters
    ----------
    parameters
        Settings of the grouping; their class chooses the rule: :class:`prototype_groups.Parameters
        <fedclust.clustering.prototype_groups.Parameters>` for ours, which we recommend, and
        :class:`~fedclust.clustering.fmcl.Parameters` for the paper's.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    paper_name = "FMCL"

    parameters_type = prototype_groups.Parameters
    parameters: Parameters | prototype_groups.Parameters

    moves_clients = True

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """Warn where prototypes of single examples are sent."""
        if isinstance(self.parameters, prototype_groups.Parameters) and self.parameters.min_examples > 1:
            return []
        return [
            "the prototype of a class with one example is that example's embedding, and with encoder=pixels "
            "the picture itself; strategy=fmcl with min_examples > 1 keeps it on the client"
        ]

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Ask every client for its prototypes and group by them.

        The memory holds the decision, the evidence that each pair of clients differs (by the paper's rule
        their distance, up to 4,096 clients), and the curve that chose the number of clusters.
        """
        given, question = self.parameters, PrototypesQuestion()
        if isinstance(given, prototype_groups.Parameters):
            question = PrototypesQuestion(min_examples=given.min_examples, max_norm=given.max_norm)
        answers = [each.all for each in federation.ask(question).all()]
        check_alike("shape of prototypes", [each.shape for each, _, _ in answers])
        prototypes, counts, scatter = (np.stack(values) for values in zip(*answers, strict=True))
        if isinstance(given, Parameters):
            assignment, findings = _by_paper(prototypes, counts, given)
        else:
            sent, seed = (prototypes, counts, scatter), self.derived_seed("assign")
            assignment, findings = _by_prototype_groups(sent, given, seed)
        return Clusters.of(assignment, model, findings)


def _by_paper(prototypes: FloatArray, counts: IntArray, parameters: Parameters) -> tuple[IntArray, Findings]:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    assignment, found = fmcl.assign(prototypes, shares, parameters)
    curve = Findings.of_silhouettes(found.scores)
    pooled = Prototypes(prototypes, counts.astype(np.float64), np.ones(counts.shape[1])).pooled(assignment)
    clusters = pooled.counts / np.maximum(pooled.counts.sum(axis=1, keepdims=True), 1)
    return assignment, Findings(
        summary={"variation": found.variation, **curve.summary},
        arrays=({} if len(counts) > _MOST_CLIENTS else {"distances": found.distances}) | curve.arrays,
        placing=packed(DistanceRule(pooled.means.astype(np.float32), clusters, parameters)),
    )


def _by_prototype_groups(
    sent: _Sent, parameters: prototype_groups.Parameters, seed: int
) -> tuple[IntArray, Findings]:
    assignment, found = prototype_groups.assign(*sent, parameters, seed)
    labels = {
        str(group): {
            "p_value": details.homogeneity.p_value,
            "error_ratios": {str(number): ratio for number, ratio in details.error_ratios.items()},
        }
        for group, details in found.labels.items()
    }
    # Several groups have one curve of label counts each, only in the summary.
    curve = Findings()
    if parameters.labels is not None and len(found.labels) == 1:
        curve = Findings.of_error_ratios(found.labels[0].error_ratios, parameters.labels.max_error_ratio)
    return assignment, Findings(
        summary={
            "decision": prototype_groups.decision(assignment, found, parameters),
            "p_value": found.test.p_value,
            "num_prototype_groups": int(found.groups.max()) + 1,
            "explained": {f"{share:g}": explained for share, explained in found.explained.items()},
            "class_separation": found.class_separation,
            "alone": found.alone.tolist(),
            "labels": labels,
        },
        arrays=({} if found.evidence is None else {"evidence": found.evidence}) | curve.arrays,
        clients={"prototype_group": found.groups, "alone": np.isin(np.arange(len(assignment)), found.alone)},
        placing=packed(_rule(sent, assignment, found, parameters)),
    )


def _rule(
    sent: _Sent,
    assignment: IntArray,
    found: prototype_groups.Details,
    parameters: prototype_groups.Parameters,
) -> EvidenceRule:
    """Keep what later clients are compared with: the pooled prototypes of each group."""
    prototypes, counts, scatter = sent
    least, norm = parameters.min_examples, parameters.max_norm
    clients, used = prototype_groups.measured(prototypes, sent_counts(counts, least), scatter)
    share = [*found.explained, parameters.separations[0]][max(0, len(found.explained) - 1)]
    threshold = share * found.class_separation
    pooled = clients.pooled(found.groups)
    pooled = replace(pooled, means=pooled.means.astype(np.float32))
    labels = LabelRule(counts, assignment)
    return EvidenceRule(pooled, used, threshold, found.groups, labels, least, norm)
