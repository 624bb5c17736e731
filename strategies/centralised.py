"""Centralised training: all clients' training rows on one machine."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedclust.federation import Clusters, Federation, RunFailed
from fedclust.messages import POOLED, POOLED_ROWS, read_pooled
from fedclust.strategies.clustered import ClusteredStrategy
from fedclust.typing import IntArray

__all__ = ["Centralised"]


class Centralised(ClusteredStrategy):
    """Train one model on the training rows of all clients, pooled on one node; no federation could do so.

    In a round the model sees as many samples as the cohort of that round would see in its local training,
    all together: the same cohort is drawn as for one model for all, and is replaced by one client whose rows
    are everyone's. With everyone taking part in one epoch that is one pass over all rows; with a share, or a
    number of steps, it is that part of a pass, drawn anew each round without replacement. Batch size,
    learning rate and optimiser are those of the clients; an optimiser starts anew each round, as theirs does.
    So the same samples make as many steps in a row as the cohort makes beside each other.

    The client that stands for all is the first one online. Every node prepares the whole partition, so its
    node has everyone's rows, under every engine; a node that trained on fewer ends the run. A subclass that
    starts with several clusters trains one such model for each.
    """

    forms_groups: ClassVar[bool] = False
    pools_rows: ClassVar[bool] = True

    def cohort(self, clusters: Clusters, server_round: int, federation: Federation) -> IntArray:  # noqa: ARG002
        """Choose the one client that stands for all of a cluster."""
        online = set(federation.grid.get_node_ids())
        members = [clusters.members(cluster).tolist() for cluster in range(len(clusters.models))]
        return np.array([next((one for one in each if one in online), each[0]) for each in members])

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the cohort whose place is taken, and say who it is, and whose rows are pooled."""
        run = self._running
        replaced = super().cohort(run.clusters, run.server_round + 1, run.federation)
        if not len(replaced):  # a policy asked, and nobody answered: nobody trains
            run.cohort = {}
            return []
        messages = super().configure_train(server_round, arrays, config, grid)
        # Their turns, or a policy that goes by turns would draw other cohorts than for one model for all.
        run.federation.turns[list(run.cohort)] -= 1
        run.federation.turns[replaced] += 1
        for message in messages:
            cluster = run.cohort[message.metadata.dst_node_id]
            told = {
                POOLED: [int(one) for one in replaced if run.clusters.assignment[one] == cluster],
                POOLED_ROWS: run.clusters.members(cluster).tolist(),
            }
            message.content = RecordDict(
                {
                    key: ConfigRecord({**record, **told}) if isinstance(record, ConfigRecord) else record
                    for key, record in message.content.items()
                }
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take each cluster's reply, if it is of the rows of everyone in it.

        Raises
        ------
        RunFailed
            If the node trained on the rows of fewer clients, such as one that runs another app.
        """
        answers = list(replies)
        run = self._running
        for answer in answers:
            if answer.has_error():
                continue
            pooled = read_pooled(answer)
            wanted = int(run.clusters.sizes[run.cohort[answer.metadata.src_node_id]])
            if pooled < wanted:
                raise RunFailed(
                    f"{RunFailed.PHRASE} {run.server_round + 1}: centralised training must be on "
                    f"the rows of all {wanted} clients, a node used those of {pooled}"
                )
        return super().aggregate_train(server_round, answers)
