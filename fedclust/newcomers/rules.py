"""The rules of methods that place clients by what these tell of their data, as arrays for a run's folder."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclust.clustering.placement import DistanceRule, EvidenceRule, LabelRule, SubspaceRule

__all__ = ["Rule", "packed", "unpacked"]

Rule = LabelRule | EvidenceRule | DistanceRule | SubspaceRule
"""A rule has ``place``, from what a client told to a placement, ``pack`` and ``unpack``."""

_RULES: dict[str, type[Rule]] = {
    "labels": LabelRule,
    "prototype_evidence": EvidenceRule,
    "prototype_distances": DistanceRule,
    "subspaces": SubspaceRule,
}


def packed(rule: Rule) -> dict[str, Any]:
    """List a rule as arrays by name, with the name of its kind as ``rule``."""
    kind = next(name for name, each in _RULES.items() if type(rule) is each)
    entries = {name: np.asarray(each) for name, each in rule.pack().items()}
    words = {name: each.tolist() for name, each in entries.items() if each.dtype.kind == "U"}
    return {"rule": kind, **entries, **words}


def unpacked(packed: Mapping[str, Any]) -> Rule | None:
    """Make the rule from the result of :func:`packed`; None of nothing."""
    arrays = {name: np.asarray(each) for name, each in packed.items()}
    return _RULES[str(arrays["rule"])].unpack(arrays) if arrays else None
