"""The rules of methods that place clients by what these tell of their data, as arrays for a run's folder."""

from collections.abc import Mapping

import numpy as np

from fedclust.clustering.clust_psi_pfl.placement import LabelRule
from fedclust.clustering.fmcl.placement import DistanceRule, EvidenceRule
from fedclust.clustering.pacfl import SubspaceRule

__all__ = ["Rule", "packed", "unpacked"]

Rule = LabelRule | EvidenceRule | DistanceRule | SubspaceRule
"""A rule has ``place``, from what a client told to a placement, ``pack`` and ``unpack``."""

_RULES: dict[str, type[Rule]] = {
    "labels": LabelRule,
    "prototype_evidence": EvidenceRule,
    "prototype_distances": DistanceRule,
    "subspaces": SubspaceRule,
}


def packed(rule: Rule) -> dict[str, np.ndarray | str]:
    """List a rule as arrays by name, and its kind as ``rule``."""
    kind = next(name for name, each in _RULES.items() if type(rule) is each)
    return {"rule": kind, **rule.pack()}


def unpacked(arrays: Mapping[str, np.ndarray]) -> Rule | None:
    """Make the rule from the result of :func:`packed`; None of nothing."""
    return _RULES[str(arrays["rule"])].unpack(arrays) if arrays else None
