"""Clust-PSI-PFL: clients are clustered once, by the label counts they report."""

from typing import Any

from flwr.serverapp import Grid

from fedclust.clustering import clust_psi_pfl
from fedclust.clustering.clust_psi_pfl import Parameters, Report
from fedclust.federation import describe
from fedclust.findings import Findings
from fedclust.rng import torch_seed
from fedclust.typing import IntArray
from strategies.clustered import ClusteredStrategy

__all__ = ["ClustPSIPFL"]


class ClustPSIPFL(ClusteredStrategy):
    """Cluster clients before round 1 by how their label distributions deviate from everyone's.

    Source: Clust-PSI-PFL, Section III.

    Parameters
    ----------
    parameters
        How to group.
    options
        As for :class:`~strategies.clustered.ClusteredStrategy`.
    """

    def __init__(self, *, parameters: Parameters | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.parameters = parameters or Parameters()
        self.found: Report | None = None

    def assign(self, grid: Grid) -> IntArray:
        """Ask every client for its label counts and group by them."""
        counts = describe(grid).train_counts
        seed = torch_seed(self.seed, "assign") % 2**32
        assignment, self.found = clust_psi_pfl.assign(counts, self.parameters, seed)
        return assignment

    def findings(self) -> Findings:
        """Give the number of clusters τ, the silhouette curve that chose it, and the stability indices."""
        assert self.found is not None, "findings are known after start()"
        curve = Findings.of_silhouettes(self.found.scores)
        return Findings(
            summary={"tau": int(self.assignment.max()) + 1, **curve.summary},
            arrays=curve.arrays,
            clients={"psi": self.found.stability},
        )
