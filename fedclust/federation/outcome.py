"""What a strategy's ``start`` returns: Flower's result, with the clusters and what became of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from fedclust.proof.verdict import Verdict
from fedclust.typing import IntArray


@dataclass(repr=False)
class Outcome(Result):
    """Flower's result, whose arrays hold every cluster's model, with the clusters.

    Attributes
    ----------
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster.
    nodes
        Flower's id of each client's node, shape (K,); of fedclust's own clients their places.
    verdict
        Whether groups were shown to be better than one model for all; None where nothing was compared.
    rounds
        The record of each round, as a line of ``rounds.jsonl`` has it.
    """

    assignment: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    models: tuple[ArrayRecord, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    verdict: Verdict | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
