"""What methods are compared with: known groups, every client alone, everyone's rows on one node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation, FederationError, Findings
from fedclust.federation.run import Layer, Round, Run
from fedclust.messages.training import Instruction
from fedclust.newcomers.placing import with_unanswered
from fedclust.strategies.base import ClusteredStrategy
from fedclust.support.reasons import RunFailed


class KnownGroups(ClusteredStrategy):
    """One model per known group, such as a partition's conventions or domains; nothing is looked for.

    It is no method but a yardstick: no method can know these groups, and none need be better than one model
    for all.

    Parameters
    ----------
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    holds_client_dp = frozenset()  # groups are taken for public
    holds_patient_dp = True

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Make the groups that clients name the clusters.

        Raises
        ------
        FederationError
            If a client names none.
        """
        return known_clusters(federation, model, "known_groups")

    def place(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> dict[int, Placement]:
        """Place each newcomer in the cluster of the group that it names, if there is one."""
        described, assignment = federation.describe(), clusters.assignment.tolist()
        # A newcomer that joins a running federation is described by now, too.
        known = () if described.groups is None else described.groups.tolist()
        numbers = dict(zip(known, assignment, strict=False))
        names = dict(zip(described.named_groups, assignment, strict=False))  # that people gave
        placed = {}
        for client, each in federation.describe_newcomers(newcomers).items():
            if each.group is None and each.named_group is not None:
                placed[client] = Placement(names.get(each.named_group), f"it names group {each.named_group}")
            else:
                placed[client] = Placement(numbers.get(each.group), f"it names group {each.group}")
        return with_unanswered(newcomers, placed)


def known_clusters(federation: Federation, model: ArrayRecord, strategy: str) -> Clusters:
    """Make one cluster of each group that clients name.

    Raises
    ------
    FederationError
        If a client names none; `strategy` is the name in the message.
    """
    groups = federation.describe().groups
    if groups is None:
        raise FederationError(
            f"strategy={strategy} must have clients of known groups, this partition names none"
        )
    _, assignment = np.unique(groups, return_inverse=True)
    return Clusters.of(assignment, model, Findings(summary={"decision": "the known groups"}))


class Local(ClusteredStrategy):
    """Train every client on its own, from the model that everyone starts from.

    What clustering is compared with from the other side: nobody shares anything. Each client is a cluster of
    one, of which every share takes part, so all clients train in every round, whatever `participation` is.
    The server keeps a model per client.
    """

    holds_patient_dp = True

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Put every client in a cluster of its own."""
        return Clusters.of(np.arange(federation.num_clients), model)

    def join(self, clusters: Clusters, newcomers: Sequence[int], federation: Federation) -> Clusters:
        """Put every newcomer in a cluster of its own, which starts from the model of round 1."""
        homes = len(clusters.models) + np.arange(len(newcomers))
        return clusters.joined(homes, None, [self.run.initial] * len(newcomers))


class Pooling(Layer):
    """Replaces the cohort of a cluster by one client, the first one online, that trains on everyone's rows.

    In a round the model sees as many samples as the cohort would in its local training, all together. Every
    node prepares the whole partition, so the client's node has everyone's rows, under every engine; a node
    that trained on fewer ends the run.
    """

    def instruct(self, run: Run, now: Round) -> Round:
        """Instruct one client of each cluster in place of all that were to train."""
        online, assignment = run.federation.clients.online(), now.clusters.assignment
        standing: dict[int, Instruction] = {}
        for cluster in sorted({int(assignment[client]) for client in now.asked}):
            replaced = tuple(client for client in sorted(now.asked) if assignment[client] == cluster)
            members = tuple(now.clusters.members(cluster).tolist())
            one = next((member for member in members if member in online), members[0])
            fields: dict[str, Any] = {"pooled": replaced, "pooled_rows": members, "mean_reply": False}
            standing[one] = replace(now.asked[replaced[0]], **fields)
        return replace(now, asked=standing)

    def screen(self, run: Run, now: Round) -> Round:
        """Check that each reply is of the rows of everyone in the cluster.

        Raises
        ------
        RunFailed
            If the node trained on the rows of fewer clients, such as one that runs another app.
        """
        for reply in now.replies:
            wanted = int(now.clusters.sizes[reply.cluster])
            if reply.pooled < wanted:
                raise RunFailed(
                    f"{RunFailed.PHRASE} {now.number}: centralised training must be on "
                    f"the rows of all {wanted} clients, a node used those of {reply.pooled}"
                )
        return now


class Centralised(ClusteredStrategy):
    """Train one model on the training rows of all clients, pooled on one node; no federation could do so.

    In a round the model sees as many samples as the cohort of that round would see in its local training,
    all together: the same cohort is drawn as for one model for all, and is replaced by one client whose rows
    are everyone's. With everyone taking part in one epoch that is one pass over all rows; with a share, or a
    number of steps, it is that part of a pass, drawn anew each round without replacement. Batch size,
    learning rate and optimiser are those of the clients; an optimiser starts anew each round, as theirs does.
    So the same samples make as many steps in a row as the cohort makes beside each other.

    The client that stands for all is the first one online, see :class:`Pooling`.
    """

    forms_groups = False

    def add_layers(self, *further: Layer, **limits: Any) -> None:
        """Add the layer that pools rows."""
        super().add_layers(Pooling(), *further, **limits)


class CentralisedGroups(Centralised):
    """Train a model per known group on the pooled rows of its clients; no federation could do so.

    Source: FedGMCC, Section V-A: "we train two central models (cSDG0 and cSDG1) on the combined genomic
    dataset using standard SGD as baselines. Training of two models is necessary due to the concept shift":
    a model for each way of labelling. A round is as in :class:`Centralised`: each model sees as many samples
    as the cohort would that is drawn in its group.
    """

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Make the groups that clients name the clusters.

        Raises
        ------
        FederationError
            If a client names none.
        """
        return known_clusters(federation, model, "centralised_groups")
