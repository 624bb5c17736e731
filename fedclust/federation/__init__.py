"""Address the clients of a run: questions to them, clusters, rounds, and the grids that reach them.

:class:`~fedclust.grids.ray_grid.RayGrid` is not imported here: Ray takes seconds to import.
"""

from fedclust.aggregation.flower import FairAvg as FairAvg
from fedclust.aggregation.replies import Reply as Reply, by_cluster as by_cluster
from fedclust.federation.answering import Flower as Flower, Here as Here
from fedclust.federation.clusters import (
    Clusters as Clusters,
    Findings as Findings,
    padded as padded,
    starting_models as starting_models,
)
from fedclust.federation.federation import Descriptions as Descriptions, Federation as Federation
from fedclust.federation.run import Measured as Measured
from fedclust.grids.client_grid import ClientGrid as ClientGrid
from fedclust.grids.local_grid import LocalGrid as LocalGrid
from fedclust.support.reasons import FederationError as FederationError, RunFailed as RunFailed
