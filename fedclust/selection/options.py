"""The options of selection policies with their rules; imports no third-party library.

Each dataclass has the name and the arguments of a class of this package, which is derived from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fedclust.support.checks import Checked


@dataclass(frozen=True)
class FedCLS(Checked):
    """Options of :class:`fedclust.selection.FedCLS`."""

    threshold: Annotated[float, "in (0, 1]"] = 0.1


@dataclass(frozen=True)
class HACCS(Checked):
    """Options of :class:`fedclust.selection.HACCS`."""

    rho: Annotated[float, "in [0, 1]"] = 0.95
    latencies: Annotated[Sequence[float] | None, "numbers > 0 and finite or None"] = None
    max_distance: Annotated[float, "in (0, 1]"] = 0.25


@dataclass(frozen=True)
class PowerOfChoice(Checked):
    """Options of :class:`fedclust.selection.PowerOfChoice`."""

    candidates: Annotated[int | None, "a whole number >= 1 or None"] = None
