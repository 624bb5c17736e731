"""What a strategy tells of its run: as it goes, and at its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedclust.typing import IntArray

__all__ = ["Findings", "Nobody", "Observer"]


class Observer(Protocol):
    """Who is told how a run goes."""

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Take note of who is in which cluster after a round (0: before the first)."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Take note of a round that is over."""


class Nobody:
    """An observer that takes no note."""

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Take no note of who is in which cluster."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Take no note of a round."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What a method has to say about the clients after a run, for the results.

    Attributes
    ----------
    summary
        Figures, by name.
    arrays
        Matrices and curves for plots, by name.
    clients
        A value per client, by name, each of shape (K,).
    """

    summary: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    clients: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of_silhouettes(cls, scores: Mapping[int, float]) -> "Findings":
        """Tell which numbers of clusters were tried, and how each scored."""
        if not scores:
            return cls()
        numbers = sorted(scores)
        curve = [scores[number] for number in numbers]
        return cls(
            summary={"silhouette": {str(number): scores[number] for number in numbers}},
            arrays={"silhouette_numbers": np.asarray(numbers), "silhouette_scores": np.asarray(curve)},
        )
