"""Flower strategies for clustered federations."""

from strategies.clust_psi_pfl import ClustPSIPFL
from strategies.clustered import ClusteredStrategy
from strategies.fedgmcc import FedGMCC
from strategies.fedgwc import FedGWC
from strategies.fmcl import FMCL

__all__ = ["FMCL", "ClustPSIPFL", "ClusteredStrategy", "FedGMCC", "FedGWC"]
