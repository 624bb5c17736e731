"""The options of strategies with their rules, besides those that the run tells each; imports no PyTorch.

Each dataclass has the name and the arguments of a strategy; :class:`Other` has those of all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedclust.support.checks import check

Cohorts = Literal["share", "released"]
"""How many clients of a cluster take part: a share of it, rounded up, or as in the authors' released code."""


@dataclass(frozen=True)
class Other:
    """What every strategy takes: its method's parameters, and a policy of its own."""

    parameters: Any = None
    selection: Any = None


@dataclass(frozen=True)
class ClustPSIPFL(Other):
    """Options of :class:`fedclust.strategies.ClustPSIPFL`."""

    cohorts: Cohorts = "share"

    def __post_init__(self) -> None:
        check(self, cohorts=Cohorts)


@dataclass(frozen=True)
class FECFL(Other):
    """Options of :class:`fedclust.strategies.FECFL`."""

    vocabulary_size: int | None = None


@dataclass(frozen=True)
class IFCA(Other):
    """Options of :class:`fedclust.strategies.IFCA`."""

    network: Any = None


CLoVE = FedSoft = PrivateGroups = IFCA


@dataclass(frozen=True)
class FedGMCC(IFCA):
    """Options of :class:`fedclust.strategies.FedGMCC`."""

    input_shape: Sequence[int] = ()
    vocabulary_size: int | None = None
    device: str = "auto"
