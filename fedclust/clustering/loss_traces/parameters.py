"""Settings of loss traces: when they are tested, and when a cluster is split."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedclust.support.sampling import cohort_size

__all__ = ["Parameters"]

_SMALLEST_COHORT = 3  # FedGWC, Theorem A.5


@dataclass(frozen=True)
class Parameters:
    """Settings of loss traces.

    Attributes
    ----------
    probe
        Number of random replies, >= 2, whose mean is the next training model of an undecided cluster; None
        for the mean of all. With fewer replies the losses of different groups differ more, but the mean is
        less anonymous. Used only by the caller.
    first_steps
        Number of a round's first local steps that are used, >= 1.
    sweeps
        Numbers of sweeps after which the traces are tested, increasing, each >= 2. A sweep is ⌈K/n⌉ rounds
        for cohorts of n of K clients.
    max_clusters
        Most parts of one split, >= 2.
    min_cluster_size
        Smallest part of a split, >= 2; clients of smaller ones join another.
    significance
        α in (0, 0.5): probability to underestimate the spread within two parts.
    min_agreement
        Adjusted Rand index in (0, 1] that two fits one sweep apart must have for a split.
    participation
        Share ρ in (0, 1] of a cluster's clients that takes part in a round. None uses the strategy's, set by
        :meth:`resolve`.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    probe: int | None = 3
    first_steps: int = 3
    sweeps: Sequence[int] = (5, 7, 10, 14, 20, 28, 40)
    max_clusters: int = 4
    min_cluster_size: int = 3
    significance: float = 0.001
    min_agreement: float = 0.9
    participation: float | None = None

    def __post_init__(self) -> None:
        sweeps = tuple(self.sweeps)
        object.__setattr__(self, "sweeps", sweeps)
        increasing = all(a < b for a, b in pairwise(sweeps))
        for name, rule, kept in (
            ("probe", ">= 2 or None", self.probe is None or self.probe >= 2),
            ("first_steps", ">= 1", self.first_steps >= 1),
            ("sweeps", "increasing, each >= 2, at least one", sweeps and sweeps[0] >= 2 and increasing),
            ("max_clusters", ">= 2", self.max_clusters >= 2),
            ("min_cluster_size", ">= 2", self.min_cluster_size >= 2),
            ("significance", "in (0, 0.5)", 0 < self.significance < 0.5),
            ("min_agreement", "in (0, 1]", 0 < self.min_agreement <= 1),
            ("participation", "in (0, 1] or None", self.participation is None or 0 < self.participation <= 1),
        ):
            if not kept:
                raise ValueError(f"{name} must be {rule}, got {getattr(self, name)}")

    def resolve(self, participation: float) -> "Parameters":
        """Set the share of clients that takes part in a round.

        Raises
        ------
        ValueError
            If `participation` is outside (0, 1].
        """
        if not 0 < participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {participation}")
        return dataclasses.replace(self, participation=participation)

    def can_split(self, num_members: int) -> bool:
        """Return whether a cluster of `num_members` clients is large enough for two parts."""
        return num_members >= 2 * self.min_cluster_size

    def sweep(self, num_members: int) -> int:
        """Compute the rounds of a sweep of a cluster of `num_members` clients, ⌈K/n⌉.

        Raises
        ------
        ValueError
            If `participation` is not set.
        """
        return -(-num_members // self._cohort_size(num_members))

    def test_rounds(self, num_members: int) -> tuple[int, ...]:
        """List the rounds after which a cluster of `num_members` clients is tested, counted from its first.

        ⌈qK/n⌉ + 1 for each of the sweeps q: the first round has no previous average, so it is not used.
        The earliest split is one sweep after the first test.

        Returns
        -------
        Rounds, increasing; empty for a cluster too small to be split.

        Raises
        ------
        ValueError
            If `participation` is not set.
        """
        if not self.can_split(num_members):
            return ()
        size = self._cohort_size(num_members)
        rounds = [-(-sweeps * num_members // size) + 1 for sweeps in self.sweeps]
        return tuple(sorted(set(rounds)))

    def _cohort_size(self, num_members: int) -> int:
        if self.participation is None:
            raise ValueError("participation must be set before the first round, as by resolve, got None")
        return cohort_size(num_members, self.participation, _SMALLEST_COHORT)
