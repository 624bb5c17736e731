"""Clusters from the course of clients' losses, their loss traces; our rule for FedGWC.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340, have every client report its loss before each local step. The
mathematics here is ours. Two findings on recorded losses led to it:

- The signal is in the first local steps, and depends on the clients in the last average: after an average
  with more clients of one kind, that kind's losses are lower than the other's. Rewards relative to the
  cohort's mean (the paper's Eq. 1) lose most of this signal.
- If all or most clients take part, the average hardly varies. So the caller makes it vary: while a cluster
  is undecided, its next *training* model is the mean of a few random replies (the *probe*); the model that
  is evaluated and served is still the mean of all.

The differences of a client's losses from its cohort's over the rounds are its *trace* (:class:`Trace`). At a
few rounds (:meth:`Parameters.test_rounds`) groups are fitted to the traces: all clients of a group share a
course over the rounds, up to a constant per client (:func:`fit`). A fit is accepted if its parts are further
apart than the halves of a continuum would be (:func:`separate`), and the cluster is split if the fit is found
again one sweep later (:func:`step`). A sweep is the number of rounds in which every client can take part
once.
"""

from fedclust.clustering.loss_traces.cautions import cautions
from fedclust.clustering.loss_traces.decide import Grouping, Outcome, alone, children, groupings, start, step
from fedclust.clustering.loss_traces.initial import starts
from fedclust.clustering.loss_traces.mixture import Estimate, Fit, costs, estimate, fit
from fedclust.clustering.loss_traces.parameters import Parameters
from fedclust.clustering.loss_traces.separation import Parts, parts_of, separate, slopes
from fedclust.clustering.loss_traces.trace import Entries, Trace, deviations

__all__ = [
    "Entries",
    "Estimate",
    "Fit",
    "Grouping",
    "Outcome",
    "Parameters",
    "Parts",
    "Trace",
    "alone",
    "cautions",
    "children",
    "costs",
    "deviations",
    "estimate",
    "fit",
    "groupings",
    "parts_of",
    "separate",
    "slopes",
    "start",
    "starts",
    "step",
]
