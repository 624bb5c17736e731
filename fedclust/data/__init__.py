"""Datasets, how they are partitioned over clients, and the cache of both."""

from fedclust.data.dataset import Dataset
from fedclust.data.federated import FederatedData

__all__ = ["Dataset", "FederatedData"]
