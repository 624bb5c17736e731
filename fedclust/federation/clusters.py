"""The clusters of clients and their models: the value that a clustering method takes and returns."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedclust.aggregation.optimiser_state import StateValue
from fedclust.typing import IntArray

__all__ = ["Clusters"]


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of a federation at one moment.

    Every client is in exactly one cluster by construction: membership is one vector. A cluster may be empty;
    it then keeps its model. Make a new value with :meth:`split`, :func:`dataclasses.replace` or the
    constructor; never change one in place.

    Attributes
    ----------
    assignment
        Cluster of each client, in 0 … ``len(models)`` − 1, int64, shape (K,).
    models
        Model of each cluster, by cluster index.
    memory
        What the method remembers from round to round; a frozen value of the method's own type, or None.
    parents
        For clusters that are new since the last hook, the cluster whose server-optimiser state each takes a
        copy of. A cluster that is not listed keeps the state of its own index, or starts afresh.
    optimisers
        For clusters whose server-optimiser state is known otherwise, such as of models that were trained on
        the side: that state, see :mod:`fedclust.aggregation.optimiser_state`. It goes before `parents`.
    report
        The method's entries in this round's line of ``rounds.jsonl``; JSON values by name. It is empty at
        the start of each round.
    reason
        Why the assignment changed, in words such as ``"cluster 0 split in 2"``.

    Raises
    ------
    ValueError
        If there is no client or no model, or a client is assigned to a cluster without a model.
    """

    assignment: IntArray
    models: tuple[ArrayRecord, ...]
    memory: Any = None
    parents: Mapping[int, int] = field(default_factory=dict)
    optimisers: Mapping[int, Mapping[str, StateValue]] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        assignment = np.array(self.assignment, dtype=np.int64)  # a copy: the caller may change its own
        if assignment.ndim != 1 or not len(assignment):
            raise ValueError(f"assignment must have an entry per client, got shape {assignment.shape}")
        if not self.models or not 0 <= assignment.min() <= assignment.max() < len(self.models):
            raise ValueError(
                f"assignment must name clusters 0 to {len(self.models) - 1}, one per model, "
                f"got {assignment.min()} to {assignment.max()}"
            )
        assignment.setflags(write=False)
        object.__setattr__(self, "assignment", assignment)
        object.__setattr__(self, "models", tuple(self.models))

    @classmethod
    def of(cls, assignment: Sequence[int] | IntArray, model: ArrayRecord, memory: Any = None) -> "Clusters":
        """Start every cluster of an assignment from one model.

        Parameters
        ----------
        assignment
            Cluster of each client, from 0 without gaps, shape (K,).
        model
            The model that all clients start from.
        memory
            What the method remembers.
        """
        clusters = np.asarray(assignment, dtype=np.int64)
        return cls(clusters, (model,) * (int(clusters.max()) + 1), memory)

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return len(self.assignment)

    @property
    def sizes(self) -> IntArray:
        """Number of clients of each cluster, shape (clusters,)."""
        return np.bincount(self.assignment, minlength=len(self.models))

    def members(self, cluster: int) -> IntArray:
        """List the ids of a cluster's clients, sorted."""
        return np.flatnonzero(self.assignment == cluster)

    def children(self, cluster: int, labels: IntArray) -> list[int]:
        """List the indices that the parts of a cluster get in :meth:`split`, in label order."""
        return [cluster, *range(len(self.models), len(self.models) + int(np.max(labels)))]

    def split(self, cluster: int, labels: IntArray, reason: str = "") -> "Clusters":
        """Split a cluster; each part continues with its model and its server-optimiser state.

        Parameters
        ----------
        cluster
            The cluster to split. Its first part keeps this index, the others get new ones.
        labels
            Part of each member, in :meth:`members` order, from 0 without gaps.
        reason
            Why, in words; default ``"cluster <i> split in <n>"``. Added to an earlier reason.

        Raises
        ------
        ValueError
            If `labels` does not have an entry per member or leaves a number out.
        """
        labels, members = np.asarray(labels), self.members(cluster)
        if labels.shape != members.shape or not np.array_equal(
            np.unique(labels), np.arange(labels.max() + 1)
        ):
            raise ValueError(
                f"labels must be 0, 1, … without gaps, one for each of the {len(members)} members of "
                f"cluster {cluster}, got {labels.tolist()}"
            )
        children = self.children(cluster, labels)
        assignment = self.assignment.copy()
        assignment[members] = np.asarray(children)[labels]
        words = reason or f"cluster {cluster} split in {len(children)}"
        return dataclasses.replace(
            self,
            assignment=assignment,
            models=(*self.models, *(self.models[cluster] for _ in children[1:])),
            parents={**self.parents, **{child: self.parents.get(cluster, cluster) for child in children[1:]}},
            reason=f"{self.reason}; {words}" if self.reason else words,
        )

    def joined(self, homes: IntArray, memory: Any, models: Sequence[ArrayRecord] = ()) -> "Clusters":
        """Add clients.

        Parameters
        ----------
        homes
            Cluster of each, in the order of their ids, shape (n,).
        memory
            What the method then remembers.
        models
            Models of further clusters, for clients that get one of their own.
        """
        found = enumerate(homes.tolist(), start=self.num_clients)
        words = ", ".join(f"client {client} joined cluster {home}" for client, home in found)
        return dataclasses.replace(
            self,
            assignment=np.concatenate([self.assignment, homes]),
            models=(*self.models, *models),
            memory=memory,
            reason=f"{self.reason}; {words}" if self.reason else words,
        )

    def with_report(self, **report: Any) -> "Clusters":
        """Add entries to `report`."""
        return dataclasses.replace(self, report={**self.report, **report})
