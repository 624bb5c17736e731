"""The groups that are known beforehand: what a method could reach that finds them."""

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation, FederationError
from fedclust.federation.clusters import Findings
from fedclust.newcomers.placing import silent
from fedclust.strategies.base import ClusteredStrategy

__all__ = ["KnownGroups", "known_clusters"]


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

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Take the groups that clients name.

        Raises
        ------
        FederationError
            If a client names none.
        """
        return known_clusters(federation, model, "known_groups")

    def place(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> dict[int, Placement]:
        """Take the group that each newcomer names, if a cluster is of it."""
        known = federation.describe().groups
        assignment = clusters.assignment.tolist()
        # A newcomer that joins a running federation is described by now, too.
        groups = {} if known is None else dict(zip(known.tolist(), assignment, strict=False))
        placed = {
            client: Placement(groups.get(each.group), f"it names group {each.group}")
            for client, each in federation.describe_newcomers(newcomers).items()
        }
        return silent(newcomers, placed)


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
