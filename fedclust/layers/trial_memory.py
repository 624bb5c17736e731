"""What is remembered of groupings on trial, and how a checkpoint holds it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.optimiser_state import StateValue
from fedclust.clustering.loss_traces import Trace
from fedclust.layers.trials import Trainee
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.typing import IntArray

__all__ = ["Trial", "TrialMemory"]


@dataclass(frozen=True, eq=False)
class Trial:
    """A grouping of one cluster that is on trial.

    Attributes
    ----------
    cluster
        The cluster.
    source
        What proposed it.
    labels
        Part of each member of the cluster, −1 where it is not known yet, shape (n,).
    parts
        The model of each part.
    look
        The look that it comes from.
    proposals
        How many proposals there were for the cluster.
    level
        Level of all tests of the cluster in this look.
    rounds
        Rounds trained so far.
    trainings
        Trainings of a client for it so far.
    num_bytes
        Bytes that these cost both ways, as if every client had messages of its own.
    first
        What came of the comparison after one round, in plain values.
    """

    cluster: int
    source: str
    labels: IntArray
    parts: tuple[Trainee, ...]
    look: int = 1
    proposals: int = 1
    level: float = 0.05
    rounds: int = 0
    trainings: int = 0
    num_bytes: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Clients of each part that are known."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.parts)).tolist()

    def entry(self) -> dict[str, Any]:
        """Describe it in plain values, for JSON."""
        return {
            "look": self.look,
            "cluster": self.cluster,
            "source": self.source,
            "parts": len(self.parts),
            "sizes": self.sizes,
            "rounds": self.rounds,
            "trainings": self.trainings,
            "bytes": self.num_bytes,
            "after_one_round": dict(self.first) or None,
        }

    def pack(self) -> dict[str, StateValue]:
        """List it as arrays and scalars by name."""
        plain = {name: getattr(self, name) for name in _PLAIN} | {"first": dict(self.first)}
        packed: dict[str, StateValue] = {"plain": json.dumps(plain), "labels": self.labels}
        for number, part in enumerate(self.parts):
            packed |= {f"model/{number}/{name}": to_numpy(array) for name, array in part.model.items()}
            packed |= {f"optimiser/{number}/{path}": value for path, value in part.optimiser.items()}
        return packed

    @classmethod
    def unpack(cls, packed: Mapping[str, StateValue]) -> "Trial":
        """Make it from what :meth:`pack` listed."""
        models: dict[int, ArrayRecord] = {}
        optimisers: dict[int, dict[str, StateValue]] = {}
        for path, value in packed.items():
            kind, _, rest = path.partition("/")
            number, _, name = rest.partition("/")
            if kind == "model":
                models.setdefault(int(number), ArrayRecord())[name] = from_numpy(np.asarray(value))
            elif kind == "optimiser":
                optimisers.setdefault(int(number), {})[name] = value
        parts = tuple(Trainee(models[number], optimisers.get(number, {})) for number in sorted(models))
        return cls(labels=np.asarray(packed["labels"]), parts=parts, **json.loads(str(packed["plain"])))


_PLAIN = ("cluster", "source", "look", "proposals", "level", "rounds", "trainings", "num_bytes")


@dataclass(frozen=True, eq=False)
class TrialMemory:
    """What is remembered from round to round.

    Attributes
    ----------
    traces
        Losses of each cluster's clients.
    looks
        Looks so far.
    trials
        Groupings on trial, the same for all: either after one round or among the finalists.
    history
        Every proposal whose trial is over, in plain values.
    spent
        Trainings of a client that looks and trials have cost so far.
    bytes_down, bytes_up
        Bytes that they have cost, as if every client had messages of its own.
    alone
        Ids of the clients that a look found unlike all others, sorted, by the source that it went by.
    """

    traces: tuple[Trace, ...]
    looks: int = 0
    trials: tuple[Trial, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    spent: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    alone: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def by_cluster(self) -> dict[int, list[Trial]]:
        """Sort what is on trial by cluster."""
        found: dict[int, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.cluster, []).append(trial)
        return found

    def pack(self) -> dict[str, StateValue]:
        """List it as arrays and scalars by name, for a checkpoint."""
        packed: dict[str, StateValue] = {name: getattr(self, name) for name in _COUNTERS}
        packed["history"] = json.dumps(list(self.history))
        packed["alone"] = json.dumps({source: list(clients) for source, clients in self.alone.items()})
        for cluster, trace in enumerate(self.traces):
            packed |= {f"trace/{cluster}/{name}": array for name, array in trace.to_arrays().items()}
        for number, trial in enumerate(self.trials):
            packed |= {f"trial/{number}/{name}": value for name, value in trial.pack().items()}
        return packed

    @classmethod
    def unpack(cls, packed: Mapping[str, StateValue]) -> "TrialMemory":
        """Make it from what :meth:`pack` listed."""
        groups: dict[str, dict[int, dict[str, Any]]] = {"trace": {}, "trial": {}}
        for path, value in packed.items():
            kind, _, rest = path.partition("/")
            number, _, name = rest.partition("/")
            if kind in groups:
                groups[kind].setdefault(int(number), {})[name] = value
        traces, trials = groups["trace"], groups["trial"]
        counters = {name: int(str(packed[name])) for name in _COUNTERS}
        return cls(
            traces=tuple(Trace.from_arrays(traces[number]) for number in sorted(traces)),
            trials=tuple(Trial.unpack(trials[number]) for number in sorted(trials)),
            history=tuple(json.loads(str(packed["history"]))),
            alone=json.loads(str(packed.get("alone", "{}"))),
            **counters,
        )


_COUNTERS = ("looks", "spent", "bytes_down", "bytes_up")
