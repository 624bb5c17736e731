"""Grids, through which a server reaches clients wherever they run; and clusters of clients.

:class:`~fedclust.grids.ray_grid.RayGrid` is not imported here: Ray takes seconds to import.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.aggregation.fairavg import FairAvg as FairAvg
    from fedclust.aggregation.replies import Reply as Reply
    from fedclust.aggregation.robust_rules import (
        Bulyan as Bulyan,
        GeometricMedian as GeometricMedian,
        MultiKrum as MultiKrum,
    )
    from fedclust.federation.asking import Answers as Answers, Failure as Failure
    from fedclust.federation.clusters import Clusters as Clusters
    from fedclust.federation.descriptions import Descriptions as Descriptions, left_out_line as left_out_line
    from fedclust.federation.evaluations import Measured as Measured, round_figures as round_figures
    from fedclust.federation.federation import Federation as Federation
    from fedclust.federation.questions import confuse_clusters as confuse_clusters
    from fedclust.federation.starts import starting_models as starting_models
    from fedclust.grids.bundle import (
        Traffic as Traffic,
        is_bundle as is_bundle,
        pack as pack,
        unpack as unpack,
    )
    from fedclust.grids.client_grid import (
        ClientGrid as ClientGrid,
        CohortView as CohortView,
        FederationError as FederationError,
    )
    from fedclust.grids.failures import RunFailed as RunFailed
    from fedclust.grids.local_grid import LocalGrid as LocalGrid
    from fedclust.grids.nodes import hosted_clients as hosted_clients
else:
    NAMES = {
        "fedclust.aggregation.fairavg": "FairAvg",
        "fedclust.aggregation.replies": "Reply",
        "fedclust.aggregation.robust_rules": "Bulyan GeometricMedian MultiKrum",
        "fedclust.federation.asking": "Answers Failure",
        "fedclust.federation.clusters": "Clusters",
        "fedclust.federation.descriptions": "Descriptions left_out_line",
        "fedclust.federation.evaluations": "Measured round_figures",
        "fedclust.federation.federation": "Federation",
        "fedclust.federation.questions": "confuse_clusters",
        "fedclust.federation.starts": "starting_models",
        "fedclust.grids.bundle": "Traffic is_bundle pack unpack",
        "fedclust.grids.client_grid": "ClientGrid CohortView FederationError",
        "fedclust.grids.failures": "RunFailed",
        "fedclust.grids.local_grid": "LocalGrid",
        "fedclust.grids.nodes": "hosted_clients",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
