"""FMCL: clusters from class prototypes, the paper's rule and the one that we recommend."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.clustering.fmcl.algorithm import (
        Details,
        Parameters,
        assign,
        cluster,
        distances,
        num_clusters,
    )
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "Details",
    "Parameters",
    "assign",
    "cluster",
    "distances",
    "num_clusters",
]
