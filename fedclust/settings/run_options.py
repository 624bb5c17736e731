"""What a run tells every strategy, whatever its method; imports nothing but the standard library."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedclust.support.fractions import check_number_or_share

__all__ = ["DEFAULT_CAP", "RunOptions", "check_cap"]

DEFAULT_CAP = 30.0
"""Default of ``update_norm_cap``; see docs/SECURITY.md for what honest clients reach."""


def check_cap(cap: float | None, name: str = "update_norm_cap") -> None:
    """Check a cap; raise ValueError unless it is a number above 1, or None for no cap."""
    if cap is not None and (
        isinstance(cap, bool) or not isinstance(cap, int | float) or not 1 < cap < math.inf
    ):
        raise ValueError(f"{name} must be > 1 and finite, or null, got {cap}")


@dataclass(frozen=True)
class RunOptions:
    """What a strategy's constructor is given by the run; ``FedGWC(participation=0.5)`` makes it, too.

    Attributes
    ----------
    participation
        Share ρ of each cluster's clients that takes part in a round, in (0, 1].
    seed
        The run's seed.
    aggregator
        Makes the Flower strategy that aggregates within a cluster; None for FedAvg.
    selection
        Policy that chooses a cluster's clients, see :mod:`fedclust.selection`; None for the method's own.
    evaluate_every
        Evaluate every so many rounds, >= 1; the last round always is.
    evaluate_clients
        How many clients do, or which share of all in (0, 1], drawn anew each time of those that are online;
        None, and the last round: all.
    update_norm_cap
        How many times as long as the round's median an update may be, > 1; a longer one is left out and its
        client named. None for any length. See :mod:`fedclust.layers.bounds`.
    update_pull_cap
        How many times the round's median rows times length of an update count for at most, > 1; None: any.
    drift_every
        Look every so many rounds, where clients evaluate, for those that another cluster's model serves
        better; 0 for never. See :mod:`fedclust.layers.drift`.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    participation: float = 1.0
    seed: int = 0
    aggregator: Callable[[], Any] | None = None
    selection: Any = None
    evaluate_every: int = 1
    evaluate_clients: int | float | None = None
    update_norm_cap: float | None = DEFAULT_CAP
    update_pull_cap: float | None = None
    drift_every: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if self.evaluate_every < 1:
            raise ValueError(f"evaluate_every must be >= 1, got {self.evaluate_every}")
        if self.drift_every < 0:
            raise ValueError(f"drift_every must be >= 0, got {self.drift_every}")
        check_number_or_share("evaluate_clients", self.evaluate_clients)
        check_cap(self.update_norm_cap)
        check_cap(self.update_pull_cap, "update_pull_cap")
