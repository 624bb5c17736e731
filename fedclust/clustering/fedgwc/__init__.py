"""FedGWC: clusters from losses, split during training; :mod:`.algorithm` names the paper."""

from fedclust.clustering.fedgwc.affinities import affinity, affinity_of
from fedclust.clustering.fedgwc.algorithm import (
    Interaction,
    Outcome,
    Parameters,
    children,
    rewards,
    split,
    start,
    step,
    update_interaction,
    update_mse,
    update_weights,
)

__all__ = [
    "Interaction",
    "Outcome",
    "Parameters",
    "affinity",
    "affinity_of",
    "children",
    "rewards",
    "split",
    "start",
    "step",
    "update_interaction",
    "update_mse",
    "update_weights",
]
