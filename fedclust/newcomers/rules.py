"""The rules of methods that place clients by what these tell of their data, as arrays for a run's folder."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclust.clustering.placement import DistanceRule, EvidenceRule, LabelRule, SubspaceRule
from fedclust.messages.packer import pack, unpack

__all__ = ["Rule", "packed", "unpacked"]

Rule = LabelRule | EvidenceRule | DistanceRule | SubspaceRule
"""A dataclass of arrays, numbers and words with ``place``, from what a client sent to a placement."""

_RULES: dict[str, type[Rule]] = {
    "labels": LabelRule,
    "prototype_evidence": EvidenceRule,
    "prototype_distances": DistanceRule,
    "subspaces": SubspaceRule,
}


def packed(rule: Rule) -> dict[str, Any]:
    """List a rule as arrays, numbers and words by name, with the name of its kind as ``rule``."""
    kind = next(name for name, each in _RULES.items() if type(rule) is each)
    return {"rule": kind} | {name: "" if each is None else each for name, each in pack(rule).items()}


def unpacked(packed: Mapping[str, Any]) -> Rule | None:
    """Make the rule from the result of :func:`packed`, also as a file of arrays; None of nothing."""
    entries = {name: each if np.ndim(each) else np.asarray(each).item() for name, each in packed.items()}
    entries = {name: None if np.ndim(each) == 0 and each == "" else each for name, each in entries.items()}
    return unpack(_RULES[entries.pop("rule")], entries) if entries else None
