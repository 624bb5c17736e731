"""Test whether a grouping is better than one model for all.

Clients score two models on held-out rows with :func:`brier_scores` and report three numbers each, computed
by :func:`difference`. :func:`compare` tests them, :func:`holm` corrects several tests, and :func:`verdict`
writes the result in one sentence; :func:`prove_grouping` does all of this for a run's clusters. Arrays in,
values out: nothing here uses messages, files or models.
"""

from fedclust.proof.grouping import ClusterProof, GroupingProof, prove_grouping
from fedclust.proof.paired import Comparison, compare, holm, num_set_aside
from fedclust.proof.scores import Difference, brier_scores, difference
from fedclust.proof.verdict import SCALE, Verdict, verdict

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
