"""FedGWC's parameters: the paper's, our guards, and options to follow the authors' released code."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from fedclust.clustering.fedgwc.spectral import AssignLabels, ScoreOn
from fedclust.support.sampling import cohort_size

__all__ = ["Parameters"]

Initial = Literal["zero", "uniform"]
Change = Literal["matrix", "cohort", "last"]
Compare = Literal["rows", "columns"]

_SMALLEST_COHORT = 3  # Theorem A.5
_LARGEST_STEP = 0.5  # for the default; Theorem 5.2 requires less than 1


@dataclass(frozen=True)
class Parameters:
    """Settings of FedGWC. The attributes from `limit_parts` on follow the released code.

    Attributes
    ----------
    kernel_width
        β > 0 of Eq. 4; the larger it is, the smaller the affinities.
    tolerance
        ε > 0: the matrix has settled when the running mean of its squared change is below ε.
    max_clusters
        n_max >= 2: largest number of parts of one split.
    step_size
        α in (0, 1): weight of a round. None uses the share of clients that takes part, at most ½, set by
        :meth:`resolve`. With 1 the matrix would follow every round and never converge.
    max_davies_bouldin
        Largest Davies–Bouldin score, > 0, of an acceptable split.
    patience
        Number of consecutive rounds, >= 1, in which the matrix must be settled; None uses
        round(K / `cohort_size`).
    min_pair_coverage
        Share in [0, 1] of a cluster's pairs that must have met in a cohort before its matrix can be settled.
    min_cluster_size
        Least number of clients of a part, >= 1: a smaller part joins the others before a division is scored.
        None uses 3/ρ rounded up (Theorem A.5), set by :meth:`resolve`.
    cohort_size
        Clients per round, >= 2, if all clusters draw the same number; a cluster of K then has
        α = `cohort_size`/K, at most ½, unless `step_size` is set. None if a cluster draws a share.
    limit_parts
        Whether a cluster of K is split into at most K // `cohort_size` parts.
    reward_shares
        Whether a round's rewards are divided by their sum before they enter the matrix.
    initial
        Initial entries of the matrix: ``"zero"``, or ``"uniform"`` for 1/K².
    change
        Squared change to average: over the whole ``"matrix"``, or over the pairs of the ``"cohort"``. With
        ``"last"``, only the matrix's last change decides whether it has settled; use it with
        `min_pair_coverage`, since with few clients per round the last change is always small.
    compare
        Eq. 4 compares ``"rows"`` of the matrix, or ``"columns"`` of the matrix scaled to [0, 1].
    score_on, assign_labels
        As for :func:`fedclust.clustering.fedgwc.spectral.candidates`.
    reset_change
        Whether a test without a split resets the running mean to 1.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    kernel_width: float = 0.5
    tolerance: float = 1e-5
    max_clusters: int = 5
    step_size: float | None = None
    max_davies_bouldin: float = 0.5
    patience: int | None = 10
    min_pair_coverage: float = 0.9
    min_cluster_size: int | None = None
    cohort_size: int | None = None
    limit_parts: bool = False
    reward_shares: bool = False
    initial: Initial = "zero"
    change: Change = "matrix"
    compare: Compare = "rows"
    score_on: ScoreOn = "affinity"
    assign_labels: AssignLabels = "kmeans"
    reset_change: bool = False

    def __post_init__(self) -> None:
        for name, rule, kept in (
            ("kernel_width", "> 0", self.kernel_width > 0),
            ("tolerance", "> 0", self.tolerance > 0),
            ("max_clusters", ">= 2", self.max_clusters >= 2),
            ("step_size", "in (0, 1) or None", self.step_size is None or 0 < self.step_size < 1),
            ("max_davies_bouldin", "> 0", self.max_davies_bouldin > 0),
            ("patience", ">= 1 or None", self.patience is None or self.patience >= 1),
            ("patience", "set unless cohort_size is", (self.patience or self.cohort_size) is not None),
            ("min_pair_coverage", "in [0, 1]", 0 <= self.min_pair_coverage <= 1),
            ("min_cluster_size", ">= 1 or None", self.min_cluster_size is None or self.min_cluster_size >= 1),
            ("cohort_size", ">= 2 or None", self.cohort_size is None or self.cohort_size >= 2),
            ("limit_parts", "false without cohort_size", not self.limit_parts or bool(self.cohort_size)),
        ):
            if not kept:
                raise ValueError(f"{name} must be {rule}, got {getattr(self, name)}")
        for name, choices in (
            ("initial", get_args(Initial)),
            ("change", get_args(Change)),
            ("compare", get_args(Compare)),
            ("score_on", get_args(ScoreOn)),
            ("assign_labels", get_args(AssignLabels)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    def resolve(self, participation: float) -> "Parameters":
        """Set the values that follow from the share of clients that takes part in a round.

        Parameters
        ----------
        participation
            Share ρ in (0, 1].

        Returns
        -------
        A copy with `min_cluster_size` set and, unless it follows from `cohort_size`, `step_size`.

        Raises
        ------
        ValueError
            If `participation` is outside its range.
        """
        if not 0 < participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {participation}")
        step_size, min_cluster_size = self.step_size, self.min_cluster_size
        if step_size is None and self.cohort_size is None:
            step_size = min(participation, _LARGEST_STEP)
        if min_cluster_size is None:
            min_cluster_size = math.ceil(round(3 / participation, 9))  # rounding error must not add one
        return dataclasses.replace(self, step_size=step_size, min_cluster_size=min_cluster_size)

    def step_size_of(self, num_members: int) -> float:
        """Return α for a cluster of `num_members` clients.

        Raises
        ------
        ValueError
            If neither `step_size` nor `cohort_size` is set.
        """
        if self.step_size is not None:
            return self.step_size
        if self.cohort_size is None:
            raise ValueError("step_size must be set before the first round, as by resolve, got None")
        return min(_LARGEST_STEP, self.cohort_size / num_members)

    def patience_of(self, num_members: int) -> int:
        """Return the number of consecutive settled rounds that a cluster of `num_members` clients needs."""
        if self.patience is not None:
            return self.patience
        return max(1, round(num_members / (self.cohort_size or num_members)))

    def cohort_size_of(self, num_members: int, participation: float) -> int:
        """Return the number of a cluster's clients that take part in a round.

        Parameters
        ----------
        num_members
            Number of clients in the cluster.
        participation
            Share ρ of them that takes part if `cohort_size` is None, in (0, 1].
        """
        if self.cohort_size is not None:
            return min(self.cohort_size, num_members)
        return cohort_size(num_members, participation, _SMALLEST_COHORT)

    @property
    def smallest_part(self) -> int:
        """Smallest part of a split.

        Raises
        ------
        ValueError
            If `min_cluster_size` is not set.
        """
        if self.min_cluster_size is None:
            raise ValueError("min_cluster_size must be set before the first round, as by resolve, got None")
        return self.min_cluster_size

    def max_clusters_of(self, num_members: int) -> int:
        """Return the largest number of parts of a cluster of `num_members` clients; 1 if it cannot be split.

        Raises
        ------
        ValueError
            If `min_cluster_size` is not set.
        """
        if num_members < max(3, 2 * self.smallest_part):
            return 1  # two parts would be too small, and two clients have no score
        if self.limit_parts and self.cohort_size is not None:
            return min(self.max_clusters, num_members // self.cohort_size)
        return self.max_clusters
