"""Datasets, what is predicted from them, their partitions over clients, and the cache."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.data.dataset import Dataset as Dataset, FederatedData as FederatedData
    from fedclust.data.loading import load as load, save_partition as save_partition
else:
    NAMES = {
        "fedclust.data.dataset": "Dataset FederatedData",
        "fedclust.data.loading": "load save_partition",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
