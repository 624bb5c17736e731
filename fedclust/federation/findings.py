"""What a strategy reports about its run: after each round, and at its end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedclust.support.strict_json import dumps
from fedclust.typing import FloatArray, IntArray

__all__ = ["Findings", "NoObserver", "Observer", "padded"]


def padded(values: np.ndarray, number: int, value: float | None = None) -> np.ndarray:
    """Add entries for clients that join at the end of every axis.

    Parameters
    ----------
    values
        A value per client, shape (K,), or per pair of clients, shape (K, K).
    number
        How many clients join.
    value
        Value of the new entries; NaN unless given, −1 for whole numbers, False for truth values.
    """
    kind = values.dtype.kind
    if value is None:
        value = {"b": False, "i": -1}.get(kind, np.nan)
    return np.pad(values, [(0, number)] * values.ndim, constant_values=value)


class Observer(Protocol):
    """Receives the events of a run."""

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Receive the assignment of clients to clusters after a round (0: before the first)."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Receive the record of a finished round."""


class NoObserver:
    """An observer that does nothing."""

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Do nothing."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What a method found out about the clients of a run, for the results.

    Attributes
    ----------
    summary
        Figures, by name.
    arrays
        Matrices and curves for plots, by name.
    clients
        A value per client, by name, each of shape (K,).
    placing
        The rule by which clients that come later are placed, see :mod:`fedclust.newcomers.rules`; empty for
        the cluster model of least loss.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    clients: dict[str, np.ndarray] = field(default_factory=dict)
    placing: dict[str, np.ndarray | str] = field(default_factory=dict)

    def grown(self, num_clients: int, number: int) -> "Findings":
        """Make room for clients that join, of which nothing was found out: NaN, or −1 for whole numbers.

        Parameters
        ----------
        num_clients
            Number of clients K so far.
        number
            How many join.
        """
        pairs = {
            name: padded(values, number) if values.shape == (num_clients,) * 2 else values
            for name, values in self.arrays.items()
        }
        columns = {name: padded(values, number) for name, values in self.clients.items()}
        return replace(self, arrays=pairs, clients=columns)

    def pack(self) -> dict[str, Any]:
        """List everything as arrays and text by name; :meth:`unpack` reads it."""
        packed: dict[str, Any] = {"summary": dumps(self.summary)}
        packed |= {f"array/{name}": array for name, array in self.arrays.items()}
        packed |= {f"placing/{name}": array for name, array in self.placing.items()}
        return packed | {f"client/{name}": values for name, values in self.clients.items()}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> "Findings":
        """Make findings from the result of :meth:`pack`."""
        parts: dict[str, dict[str, Any]] = {"array": {}, "client": {}, "placing": {}}
        for path, value in packed.items():
            kind, _, name = path.partition("/")
            if kind in parts:
                parts[kind][name] = value
        return cls(json.loads(packed["summary"]), parts["array"], parts["client"], parts["placing"])

    @classmethod
    def of_error_ratios(cls, ratios: Mapping[int, float], limit: float) -> "Findings":
        """List the predicted error of each number of clusters tried, relative to one model's.

        Parameters
        ----------
        ratios
            By number of clusters.
        limit
            The ratio below which clients are split.
        """
        if not ratios:
            return cls()
        numbers = sorted(ratios)
        return cls(
            summary={"error_ratios": {str(number): ratios[number] for number in numbers}},
            arrays={
                "error_ratio_numbers": np.asarray(numbers),
                "error_ratios": np.asarray([ratios[number] for number in numbers]),
                "error_ratio_limit": np.asarray(limit),
            },
        )

    @classmethod
    def of_distances(cls, distances: FloatArray, scores: Mapping[int, float]) -> "Findings":
        """List clients' distances, and which numbers of clusters were tried and how each scored.

        Parameters
        ----------
        distances
            Shape (K, K).
        scores
            Mean silhouette by number of clusters; may be empty.
        """
        curve = cls.of_silhouettes(scores)
        return cls(summary=curve.summary, arrays={"distances": distances, **curve.arrays})

    @classmethod
    def of_silhouettes(cls, scores: Mapping[int, float]) -> "Findings":
        """List the silhouette of each number of clusters tried."""
        if not scores:
            return cls()
        numbers = sorted(scores)
        curve = [scores[number] for number in numbers]
        return cls(
            summary={"silhouette": {str(number): scores[number] for number in numbers}},
            arrays={"silhouette_numbers": np.asarray(numbers), "silhouette_scores": np.asarray(curve)},
        )
