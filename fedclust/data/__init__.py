"""Datasets, their partitions over clients, and the cache for both."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.data.dataset import Dataset, FederatedData
    from fedclust.data.loading import load, save_partition
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = ["Dataset", "FederatedData", "load", "save_partition"]
