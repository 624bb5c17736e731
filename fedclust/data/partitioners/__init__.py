"""Partitioners: rules for who holds which example, each a frozen dataclass of its settings."""

from fedclust.data.partitioners.base import Assignment, ClientPartitioner, Examples
from fedclust.data.partitioners.dirichlet import Dirichlet
from fedclust.data.partitioners.emd import EmdKMeans
from fedclust.data.partitioners.groups import Conventions, Domains, FlippedFeatures, Heterogeneity
from fedclust.data.partitioners.simple import Iid, Natural, Pathological, QuantitySkew, Similarity

__all__ = [
    "Assignment",
    "ClientPartitioner",
    "Conventions",
    "Dirichlet",
    "Domains",
    "EmdKMeans",
    "Examples",
    "FlippedFeatures",
    "Heterogeneity",
    "Iid",
    "Natural",
    "Pathological",
    "QuantitySkew",
    "Similarity",
]
