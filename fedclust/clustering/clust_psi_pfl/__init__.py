"""Clust-PSI-PFL: clusters from label counts, the paper's rule and the one that we recommend."""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.clustering.clust_psi_pfl.algorithm import (
        Details,
        Parameters,
        assign,
        cluster,
        features,
        stability_index,
    )
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "Details",
    "Parameters",
    "assign",
    "cluster",
    "features",
    "stability_index",
]
