"""The options of strategies besides their method's ``parameters``; imports the standard library alone."""

from dataclasses import dataclass
from typing import Literal, get_args

Cohorts = Literal["share", "released"]
"""How many clients of a cluster take part: a share of it, rounded up, or as in the authors' released code."""


@dataclass(frozen=True)
class ClustPSIPFL:
    """Options of :class:`fedclust.strategies.ClustPSIPFL`."""

    cohorts: Cohorts = "share"

    def __post_init__(self) -> None:
        if self.cohorts not in get_args(Cohorts):
            raise ValueError(f"cohorts must be one of {', '.join(get_args(Cohorts))}, got {self.cohorts!r}")
