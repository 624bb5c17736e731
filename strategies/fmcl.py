"""FMCL: clients are clustered once, by the class prototypes of a frozen foundation model."""

from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedclust import records
from fedclust.clustering import fmcl
from fedclust.clustering.fmcl import Parameters, Report
from fedclust.federation import ask
from fedclust.findings import Findings
from fedclust.typing import IntArray
from strategies.clustered import ClusteredStrategy

__all__ = ["FMCL"]


class FMCL(ClusteredStrategy):
    """Cluster clients before round 1 by how alike their classes look to a frozen encoder.

    Source: FMCL, Algorithms 1 to 5.

    Parameters
    ----------
    parameters
        How to measure and group.
    options
        As for :class:`~strategies.clustered.ClusteredStrategy`.
    """

    def __init__(self, *, parameters: Parameters | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.parameters = parameters or Parameters()
        self.found: Report | None = None

    def assign(self, grid: Grid) -> IntArray:
        """Ask every client for its prototypes and group by their distances."""
        answers = [records.read_prototypes(reply) for reply in ask(grid, records.QUERY_PROTOTYPES)]
        prototypes = np.stack([answer[0] for answer in answers])
        shares = np.stack([answer[1] for answer in answers])
        assignment, self.found = fmcl.assign(prototypes, shares, self.parameters)
        return assignment

    def findings(self) -> Findings:
        """Give the distances, how much they vary, and the silhouette of each number of clusters tried."""
        assert self.found is not None, "findings are known after start()"
        curve = Findings.of_silhouettes(self.found.scores)
        return Findings(
            summary={"variation": self.found.variation, **curve.summary},
            arrays={"distances": self.found.distances, **curve.arrays},
        )
