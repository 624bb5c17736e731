"""A run in progress, and its state after a round in values that a checkpoint can hold."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedclust.aggregation.replies import Reply
from fedclust.federation.asking import Failure
from fedclust.federation.clusters import Clusters
from fedclust.federation.evaluations import Measured
from fedclust.federation.federation import Federation, RosterState
from fedclust.grids.bundle import Traffic
from fedclust.messages.evaluation import Evaluation
from fedclust.typing import IntArray


@dataclass(eq=False)
class Run:
    """What the steps of a round share; the core and its layers read and change it.

    Attributes
    ----------
    federation
        The clients.
    clusters
        The clusters as they are now.
    make_aggregator
        Makes a cluster's aggregator.
    initial
        The model that everyone starts from.
    buffers
        Names of the model's floating-point buffers.
    shows_models
        Whether Flower's loop gets all models after every round.
    server_round
        The last finished round.
    measured
        Each client's measurements at the last evaluation.
    failed_replies
        Replies that failed or never came, over all rounds.
    config
        What the user tells the clients in every round.
    cohort
        Cluster of each client of the round when it began, by client id.
    sent
        The models that the cohort starts from, by cluster.
    told
        Settings that the clients of the cohort were sent.
    replies, failures
        The valid replies of the round, and why the others failed.
    unusable
        Why the next model of a cluster cannot be used, by cluster.
    online
        Ids of the clients that were online at the round's evaluation; None in a round without one.
    sampled
        Whether a sample of the clients evaluates.
    evaluations
        What clients measured.
    record
        The round's line of ``rounds.jsonl``, as far as it is known.
    """

    federation: Federation
    clusters: Clusters
    make_aggregator: Callable[[], Strategy]
    initial: ArrayRecord
    buffers: frozenset[str] = frozenset()
    shows_models: bool = False
    server_round: int = 0
    measured: Measured = field(default_factory=Measured)
    failed_replies: int = 0
    config: ConfigRecord = field(default_factory=ConfigRecord)
    cohort: dict[int, int] = field(default_factory=dict)
    sent: tuple[ArrayRecord, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    unusable: dict[int, str] = field(default_factory=dict)
    online: set[int] | None = None
    sampled: bool = False
    evaluations: Sequence[Evaluation] = ()
    record: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.perf_counter)

    @property
    def number(self) -> int:
        """The round in progress."""
        return self.server_round + 1

    def begin_round(self, config: ConfigRecord) -> None:
        """Forget the last round."""
        self.config, self.told = ConfigRecord({**config}), {}
        self.cohort, self.sent = {}, ()
        self.replies, self.failures, self.unusable, self.evaluations = [], [], {}, ()
        self.online, self.sampled = None, False
        self.record = {"round": self.number, "cohort": [], "loss": None, "failures": []}
        self.clusters = dataclasses.replace(self.clusters, report={}, reason="")

    def finish_round(self, figures: Mapping[str, float]) -> dict[str, Any]:
        """Return the record of the round, with these figures, and count it."""
        sizes, now = self.clusters.sizes, time.perf_counter()
        record = {
            **self.record,
            "num_clusters": int(np.count_nonzero(sizes)),
            "cluster_sizes": sizes.tolist(),
            **figures,
            "strategy": dict(self.clusters.report),
            "seconds": now - self._began,
        }
        self.server_round, self._began = self.number, now
        self.failed_replies += len(record["failures"])
        return record


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
        What the method remembers, as :func:`fedclust.messages.packer.pack` lists it.
    aggregators
        State of each cluster's aggregator, see :mod:`fedclust.aggregation.optimiser_state`.
    measured
        Each client's measurements at the last evaluation.
    failed_replies
        Replies that failed or never came, over all rounds.
    traffic
        Bytes sent and received so far; None if not counted.
    roster
        Who has joined and where, see :meth:`fedclust.federation.Federation.roster_state`.
    layers
        What the layers remember, packed, by ``<layer>/<path>``.
    """

    server_round: int
    assignment: IntArray
    models: tuple[ArrayRecord, ...]
    turns: IntArray
    memory: Mapping[str, Any] = field(default_factory=dict)
    aggregators: tuple[Mapping[str, Any], ...] = ()
    measured: Measured = field(default_factory=Measured)
    failed_replies: int = 0
    traffic: Traffic | None = None
    roster: RosterState = field(default_factory=RosterState)
    layers: Mapping[str, Any] = field(default_factory=dict)
