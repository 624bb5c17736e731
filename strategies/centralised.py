"""Centralised training: all clients' training rows on one machine."""

from typing import ClassVar

from flwr.app import ArrayRecord

from fedclust.federation import Clusters, Federation
from fedclust.layers.pooling import Pooling
from fedclust.strategies.base import ClusteredStrategy
from fedclust.strategies.known_groups import known_clusters

__all__ = ["Centralised", "CentralisedGroups"]


class Centralised(ClusteredStrategy):
    """Train one model on the training rows of all clients, pooled on one node; no federation could do so.

    In a round the model sees as many samples as the cohort of that round would see in its local training,
    all together: the same cohort is drawn as for one model for all, and is replaced by one client whose rows
    are everyone's. With everyone taking part in one epoch that is one pass over all rows; with a share, or a
    number of steps, it is that part of a pass, drawn anew each round without replacement. Batch size,
    learning rate and optimiser are those of the clients; an optimiser starts anew each round, as theirs does.
    So the same samples make as many steps in a row as the cohort makes beside each other.

    The client that stands for all is the first one online, see :mod:`fedclust.layers.pooling`.
    """

    forms_groups: ClassVar[bool] = False
    own_layers = (Pooling,)


class CentralisedGroups(Centralised):
    """Train a model per known group on the pooled rows of its clients; no federation could do so.

    Source: FedGMCC, Section V-A: "we train two central models (cSDG0 and cSDG1) on the combined genomic
    dataset using standard SGD as baselines. Training of two models is necessary due to the concept shift":
    a model for each way of labelling. A round is as in :class:`Centralised`: each model sees as many samples
    as the cohort would that is drawn in its group.
    """

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Take the groups that clients name.

        Raises
        ------
        FederationError
            If a client names none.
        """
        return known_clusters(federation, model, "centralised_groups")
