"""A run in progress."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedclust.federation import Clusters, Federation, Measured
from fedclust.federation.going_back import Earlier
from fedclust.federation.optimiser_state import restore_state

__all__ = ["Running", "aggregators_of"]


class Running:
    """The values that Flower's separate calls in one round share."""

    def __init__(self, federation: Federation, clusters: Clusters, aggregators: Sequence[Strategy]) -> None:
        self.federation = federation
        self.clusters = clusters
        self.aggregators = list(aggregators)
        self.buffers: frozenset[str] = frozenset()
        self.server_round = 0  # the last finished one
        self.cohort: dict[int, int] = {}  # client: its cluster when the round began
        self.sent: tuple[ArrayRecord, ...] = ()  # the models that the cohort started from
        self.config = ConfigRecord()  # what clients are told in every round
        self.projection_size = 0  # of what the cohort was asked for
        self.record: dict[str, Any] = {}
        self.failed_replies = 0
        self.measured = Measured()
        self.sampled = False  # whether the last evaluation was one of a sample of clients
        self.earlier: Earlier | None = None  # as this round found the clusters
        self.before: Earlier | None = None  # as the one before did
        self.in_a_row: dict[int, int] = {}  # cluster: how many rounds it went back in, without one between
        self.began = time.perf_counter()

    def begin(self) -> None:
        """Remember what a round finds."""
        self.before, self.earlier = self.earlier, Earlier(self.clusters, self.aggregators)

    def go_back(self, reasons: Mapping[int, str], *, to_before: bool = False) -> None:
        """Put clusters back to what this round found, or the one before, and note why in the round's record.

        Parameters
        ----------
        reasons
            Why, by cluster.
        to_before
            Whether what this round found is of no use either.
        """
        if not reasons or self.earlier is None:
            return
        if to_before and self.before is not None:
            self.earlier = self.earlier.repaired(self.before, reasons)
        self.clusters, self.aggregators = self.earlier.back(self.clusters, self.aggregators, reasons)
        self.record.setdefault("went_back", []).extend(
            {"cluster": cluster, "reason": reason, "in_a_row": self.in_a_row.get(cluster, 0) + 1}
            for cluster, reason in reasons.items()
        )

    def count_in_a_row(self) -> None:
        """Count for how many rounds each cluster has gone back, at the end of one."""
        self.in_a_row = {each["cluster"]: each["in_a_row"] for each in self.record.get("went_back", ())}


def aggregators_of(
    clusters: Clusters, before: Sequence[Strategy], make: Callable[[], Strategy]
) -> list[Strategy]:
    """Make the aggregators of changed clusters: a child's copies its parent's state or has its own."""
    made = []
    for cluster in range(len(clusters.models)):
        parent = clusters.parents.get(cluster)
        if cluster in clusters.optimisers:
            made.append(make())
            restore_state(made[-1], copy.deepcopy(dict(clusters.optimisers[cluster])))
        elif parent is not None:
            made.append(copy.deepcopy(before[parent]))
        else:
            made.append(before[cluster] if cluster < len(before) else make())
    return made
