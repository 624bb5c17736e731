"""Flower strategies for clustered federations."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.strategies.auto import Auto as Auto
    from fedclust.strategies.base import ClusteredStrategy as ClusteredStrategy
    from fedclust.strategies.cfl import CFL as CFL
    from fedclust.strategies.clove import CLoVE as CLoVE
    from fedclust.strategies.clust_psi_pfl import ClustPSIPFL as ClustPSIPFL
    from fedclust.strategies.fecfl import FECFL as FECFL
    from fedclust.strategies.fedclust_weights import FedClustWeights as FedClustWeights
    from fedclust.strategies.feddrift import FedDrift as FedDrift
    from fedclust.strategies.fedgmcc import FedGMCC as FedGMCC
    from fedclust.strategies.fedgwc import FedGWC as FedGWC
    from fedclust.strategies.fedrc import FedRC as FedRC
    from fedclust.strategies.fedsoft import FedSoft as FedSoft
    from fedclust.strategies.fesem import FeSEM as FeSEM
    from fedclust.strategies.fl_hc import FLHC as FLHC
    from fedclust.strategies.flux import FLUX as FLUX
    from fedclust.strategies.fmcl import FMCL as FMCL
    from fedclust.strategies.ifca import IFCA as IFCA
    from fedclust.strategies.pacfl import PACFL as PACFL
    from fedclust.strategies.private_groups import PrivateGroups as PrivateGroups
    from fedclust.strategies.yardsticks import (
        Centralised as Centralised,
        CentralisedGroups as CentralisedGroups,
        KnownGroups as KnownGroups,
        Local as Local,
    )
else:
    NAMES = {
        "fedclust.strategies.auto": "Auto",
        "fedclust.strategies.base": "ClusteredStrategy",
        "fedclust.strategies.cfl": "CFL",
        "fedclust.strategies.clove": "CLoVE",
        "fedclust.strategies.clust_psi_pfl": "ClustPSIPFL",
        "fedclust.strategies.fecfl": "FECFL",
        "fedclust.strategies.fedclust_weights": "FedClustWeights",
        "fedclust.strategies.feddrift": "FedDrift",
        "fedclust.strategies.fedgmcc": "FedGMCC",
        "fedclust.strategies.fedgwc": "FedGWC",
        "fedclust.strategies.fedrc": "FedRC",
        "fedclust.strategies.fedsoft": "FedSoft",
        "fedclust.strategies.fesem": "FeSEM",
        "fedclust.strategies.fl_hc": "FLHC",
        "fedclust.strategies.flux": "FLUX",
        "fedclust.strategies.fmcl": "FMCL",
        "fedclust.strategies.ifca": "IFCA",
        "fedclust.strategies.pacfl": "PACFL",
        "fedclust.strategies.private_groups": "PrivateGroups",
        "fedclust.strategies.yardsticks": "Centralised CentralisedGroups KnownGroups Local",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
