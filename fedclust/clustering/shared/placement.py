"""Which cluster serves a client that was not there when clusters were formed, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Placement"]


@dataclass(frozen=True)
class Placement:
    """The cluster of a client that came later, with the evidence.

    Attributes
    ----------
    cluster
        Index of the cluster whose model serves the client; None if none fits: one model for all serves it.
    reason
        Why, in words.
    evidence
        The numbers by which it was decided, by name; JSON values.
    """

    cluster: int | None
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"cluster": self.cluster, "reason": self.reason, "evidence": dict(self.evidence)}
