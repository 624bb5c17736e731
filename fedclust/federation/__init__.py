"""Address the clients of a run: questions to them, clusters, rounds."""

from fedclust.federation.answering import Flower as Flower, Here as Here
from fedclust.federation.clusters import (
    Clusters as Clusters,
    Findings as Findings,
    padded as padded,
    starting_models as starting_models,
)
from fedclust.federation.federation import Descriptions as Descriptions, Federation as Federation
from fedclust.federation.run import Measured as Measured
from fedclust.messages.replies import Reply as Reply, by_cluster as by_cluster
from fedclust.support.reasons import FederationError as FederationError, RunFailed as RunFailed
