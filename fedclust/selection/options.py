"""The options of selection policies with their rules; imports the standard library alone.

Each dataclass has the name and the arguments of a class of this package, which is derived from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FedCLS:
    """Options of :class:`fedclust.selection.FedCLS`."""

    threshold: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], got {self.threshold}")


@dataclass(frozen=True)
class HACCS:
    """Options of :class:`fedclust.selection.HACCS`."""

    rho: float = 0.95
    latencies: Sequence[float] | None = None
    max_distance: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise ValueError(f"rho must be in [0, 1], got {self.rho}")
        if not 0 < self.max_distance <= 1:
            raise ValueError(f"max_distance must be in (0, 1], got {self.max_distance}")
        if self.latencies is not None and not all(0 < seconds < math.inf for seconds in self.latencies):
            raise ValueError(f"latencies must be numbers > 0, one for each client, got {self.latencies}")


@dataclass(frozen=True)
class PowerOfChoice:
    """Options of :class:`fedclust.selection.PowerOfChoice`."""

    candidates: int | None = None

    def __post_init__(self) -> None:
        if self.candidates is not None and (isinstance(self.candidates, bool) or self.candidates < 1):
            raise ValueError(f"candidates must be >= 1 or null, got {self.candidates}")
