"""Tests of whether a grouping is better than one model for all, and the verdict in one sentence.

- :mod:`~fedclust.proof.scores`: a model's Brier score on each row;
- :mod:`~fedclust.proof.paired`: the test of two models on the same held-out rows, from twelve numbers of each
  client, and the correction of several tests;
- :mod:`~fedclust.proof.figure`: how much better one model is, with intervals, measured on test rows;
- :mod:`~fedclust.proof.verdict`: all of this for a run's clusters, and the verdict in one sentence.

Arrays in, values out: nothing here uses messages, files or models.
"""

from fedclust.proof.paired import Comparison, Evidence, compare, counted, evidence, holm, most_rows
from fedclust.proof.scores import SCALE, brier_scores
from fedclust.proof.verdict import ClusterProof, GroupingProof, Verdict, prove_grouping

__all__ = [
    "SCALE",
    "ClusterProof",
    "Comparison",
    "Evidence",
    "GroupingProof",
    "Verdict",
    "brier_scores",
    "compare",
    "counted",
    "evidence",
    "holm",
    "most_rows",
    "prove_grouping",
]
