"""Flower strategies for clustered federations."""

from strategies.clustered import ClusteredStrategy
from strategies.fedgwc import FedGWC

__all__ = ["ClusteredStrategy", "FedGWC"]
