"""Test whether a grouping is better than one model for all.

Clients score two models on held-out rows with :func:`brier_scores` and report three numbers each, computed
by :func:`difference`. :func:`compare` tests them, :func:`holm` corrects several tests, and :func:`verdict`
writes the result in one sentence; :func:`prove_grouping` does all of this for a run's clusters. Arrays in,
values out: nothing here uses messages, files or models.
"""

from fedclust.proof.paired import (
    Comparison,
    Difference,
    brier_scores,
    compare,
    difference,
    holm,
    num_set_aside,
)
from fedclust.proof.verdict import SCALE, ClusterProof, GroupingProof, Verdict, prove_grouping, verdict

__all__ = [
    "SCALE",
    "ClusterProof",
    "Comparison",
    "Difference",
    "GroupingProof",
    "Verdict",
    "brier_scores",
    "compare",
    "difference",
    "holm",
    "num_set_aside",
    "prove_grouping",
    "verdict",
]
