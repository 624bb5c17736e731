"""Centralised yardsticks: one client of a cluster trains on the rows of all."""

import numpy as np
from flwr.app import ConfigRecord

from fedclust.federation.run import Run
from fedclust.grids.nodes import RunFailed
from fedclust.layers.layer import Layer
from fedclust.messages.training import instruct, read_pooled
from fedclust.typing import IntArray


class Pooling(Layer):
    """Replaces the cohort of a cluster by one client, the first one online, that trains on everyone's rows.

    In a round the model sees as many samples as the cohort would in its local training, all together. Every
    node prepares the whole partition, so the client's node has everyone's rows, under every engine; a node
    that trained on fewer ends the run.
    """

    def __init__(self) -> None:
        self._replaced: IntArray = np.zeros(0, dtype=np.int64)

    def stand_in(self, run: Run, cohort: IntArray) -> IntArray:
        """Choose the one client that stands for all of a cluster; nobody where nobody was to train."""
        self._replaced = cohort
        if not len(cohort):  # a policy asked, and nobody answered
            return cohort
        online = set(run.federation.grid.get_node_ids())
        members = [run.clusters.members(cluster).tolist() for cluster in range(len(run.clusters.models))]
        return np.array([next((one for one in each if one in online), each[0]) for each in members])

    def tell(self, run: Run, cluster: int, config: ConfigRecord) -> None:
        """Say whose place is taken, and whose rows are pooled."""
        in_cluster = run.clusters.assignment[self._replaced] == cluster
        members = run.clusters.members(cluster)
        config.update(instruct(pooled=self._replaced[in_cluster], pooled_rows=members))

    def screen(self, run: Run) -> None:
        """Check that each reply is of the rows of everyone in the cluster.

        Raises
        ------
        RunFailed
            If the node trained on the rows of fewer clients, such as one that runs another app.
        """
        for reply in run.replies:
            pooled, wanted = read_pooled(reply.message), int(run.clusters.sizes[reply.cluster])
            if pooled < wanted:
                raise RunFailed(
                    f"{RunFailed.PHRASE} {run.number}: centralised training must be on "
                    f"the rows of all {wanted} clients, a node used those of {pooled}"
                )
