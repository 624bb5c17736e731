"""What a run is told besides its strategy, its clients and its network."""

from dataclasses import dataclass

from fedclust.settings.options import KEEP, MIN_REPLIES

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """Length, seed, checkpoints and limits of a run.

    Attributes
    ----------
    rounds
        The last round.
    seed
        The run's seed.
    timeout
        Seconds that a client has to answer.
    checkpoint_every
        See :func:`fedclust.results.checkpoints.parse_interval`.
    min_replies
        See :func:`fedclust.grids.failures.check_round`.
    keep_matrices
        See :func:`fedclust.results.matrices.without_large`.
    """

    rounds: int
    seed: int = 0
    timeout: float = 3600.0
    checkpoint_every: int | str = "1min"
    min_replies: float = MIN_REPLIES
    keep_matrices: bool | str = KEEP
