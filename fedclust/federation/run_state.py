"""The state of a run after a round, in values that a checkpoint can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedclust.aggregation.optimiser_state import StateValue
from fedclust.federation.evaluations import Measured
from fedclust.grids.bundle import Traffic
from fedclust.typing import IntArray

__all__ = ["RunState"]


@dataclass(frozen=True, eq=False)
class RunState:
    """All that is needed to resume a run.

    Every draw of a run derives from (seed, purpose, round, client), so no generator needs to be saved.

    Attributes
    ----------
    server_round
        The last finished round.
    assignment
        Cluster of each client, shape (K,).
    models
        Model of each cluster.
    turns
        How many rounds each client has been chosen for, shape (K,).
    memory
        What the method remembers, arrays and scalars by name, see ``ClusteredStrategy.state``.
    aggregators
        State of each cluster's aggregator, see :mod:`fedclust.aggregation.optimiser_state`.
    measured
        Each client's measurements at the last evaluation.
    failed_replies
        Replies that failed or never came, over all rounds.
    attendance
        Who is there and since when, by name: ``joined`` and ``places``, see
        :class:`~fedclust.federation.Federation`, and :class:`~fedclust.federation.attendance.Attendance`.
    earlier
        What clusters go back to if the models turn out to be of no use, see
        :class:`~fedclust.layers.going_back.Earlier`, and ``in_a_row``, how often they have; may be empty.
    traffic
        Bytes sent and received so far; None if not counted.
    """

    server_round: int
    assignment: IntArray
    models: tuple[ArrayRecord, ...]
    turns: IntArray
    memory: Mapping[str, StateValue] = field(default_factory=dict)
    aggregators: tuple[Mapping[str, StateValue], ...] = ()
    measured: Measured = field(default_factory=Measured)
    failed_replies: int = 0
    traffic: Traffic | None = None
    attendance: Mapping[str, StateValue] = field(default_factory=dict)
    earlier: Mapping[str, StateValue] = field(default_factory=dict)
