"""The values that a method takes and returns: clusters of clients, and findings about the clients."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedclust.messages.models import from_state, like
from fedclust.models import construction
from fedclust.support.checks import few
from fedclust.support.rng import torch_seed
from fedclust.typing import FloatArray, IntArray


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
        The method's own state from round to round; a frozen value of its own type, or None.
    aggregators
        The Flower strategy of each cluster, with its server optimiser's state. Clusters beyond the end of the
        tuple keep the strategy that they have, or start with a fresh one.
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
    aggregators: tuple[Strategy, ...] = ()
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
            The method's own state.
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
            If `labels` does not have an entry per member, or has gaps.
        """
        labels, members = np.asarray(labels), self.members(cluster)
        one_each = labels.shape == members.shape
        if not one_each or not np.array_equal(np.unique(labels), np.arange(labels.max() + 1)):
            raise ValueError(
                f"labels must be 0, 1, … without gaps, one for each of the {len(members)} members of "
                f"cluster {cluster}, got {labels.tolist()}"
            )
        children = self.children(cluster, labels)
        assignment = self.assignment.copy()
        parent = self.aggregators[cluster : cluster + 1]
        assignment[members] = np.asarray(children)[labels]
        return self.because(
            reason or f"cluster {cluster} split in {len(children)}",
            assignment=assignment,
            models=(*self.models, *(self.models[cluster] for _ in children[1:])),
            aggregators=(*self.aggregators, *(copy.deepcopy(each) for _ in children[1:] for each in parent)),
        )

    def joined(self, homes: IntArray, memory: Any, models: Sequence[ArrayRecord] = ()) -> "Clusters":
        """Add clients.

        Parameters
        ----------
        homes
            Cluster of each, in the order of their ids, shape (n,).
        memory
            The method's state with these clients.
        models
            Models of new clusters, for clients that get their own.
        """
        numbered = enumerate(homes.tolist(), start=self.num_clients)
        return self.because(
            ", ".join(f"client {client} joined cluster {home}" for client, home in numbered),
            assignment=np.concatenate([self.assignment, homes]),
            models=(*self.models, *models),
            memory=memory,
        )

    def because(self, words: str, **changes: Any) -> "Clusters":
        """Replace attributes, and add words on why to `reason`."""
        return replace(self, reason=f"{self.reason}; {words}" if self.reason else words, **changes)

    def with_report(self, **report: Any) -> "Clusters":
        """Add entries to `report`."""
        return replace(self, report={**self.report, **report})


def starting_models(
    network: nn.Module, model: ArrayRecord, number: int, seed: int
) -> tuple[ArrayRecord, ...]:
    """Draw starting models; the first is the one that other strategies start from.

    Every strategy draws the same models from the same seed, so that methods are compared from equal starts.

    Parameters
    ----------
    network
        The architecture; each layer draws its weights with its own ``reset_parameters``.
    model
        The model that all clients start from if there is only one.
    number
        Number of models, >= 1.
    seed
        The run's seed.

    Raises
    ------
    ValueError
        If a layer with parameters has no ``reset_parameters``, or the network is not the one that clients
        train.
    """

    def shared(drawn: nn.Module) -> ArrayRecord:  # without what stays with clients
        return from_state({name: each for name, each in drawn.state_dict().items() if name in model})

    if unknown := model.keys() - (own := network.state_dict()).keys():
        rule = f"network must be the one that clients train, with arrays {few(sorted(unknown))}"
        raise ValueError(f"{rule}, its own are {few(own)}")
    try:
        like(shared(network), model)
    except ValueError as error:
        raise ValueError(f"network must be the one that clients train: {error}") from error
    seeds = (torch_seed(seed, "starting models", index) for index in range(1, number))
    drawn = (construction.reinitialised(network, each) for each in seeds)
    return (model, *map(shared, drawn))


def padded(
    values: np.ndarray, number: int, value: float | None = None, *, axes: int | None = None
) -> np.ndarray:
    """Add entries at the end of axes, for clients that join.

    Parameters
    ----------
    values
        A value per client, shape (K,), or per pair of clients, shape (K, K); or a row per client.
    number
        How many clients join.
    value
        Value of the new entries; NaN unless given, −1 for whole numbers, False for truth values.
    axes
        How many axes grow, the first ones; all unless given.
    """
    if value is None:
        value = {"b": False, "i": -1}.get(values.dtype.kind, np.nan)
    grown = values.ndim if axes is None else axes
    return np.pad(values, [(0, number)] * grown + [(0, 0)] * (values.ndim - grown), constant_values=value)


class Observer:
    """Receives the events of a run; this one does nothing."""

    def assignment(self, server_round: int, assignment: IntArray, reason: str) -> None:
        """Receive the assignment of clients to clusters after a round (0: before the first)."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Receive the record of a finished round."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What clients chose for themselves; their clusters then serve them, whatever another proof may say.

    Attributes
    ----------
    text
        The verdict in one sentence.
    grouped
        Whether some client chose another model than that for all.
    layers
        Personal layer that each chose, shape (K,).
    shifts
        Label-prior correction of each one's logits for its model, also where it chose none, shape (K, C).
    summary
        Entries of ``summary.json``.
    cross_site
        How right the model of each client alone (rows) is on each other's rows (columns), shape (K, K).
    """

    text: str
    grouped: bool
    layers: np.ndarray
    shifts: FloatArray
    summary: Mapping[str, Any]
    cross_site: FloatArray


@dataclass(frozen=True, eq=False)
class Findings:
    """A method's findings about the clients of a run, for the results.

    Attributes
    ----------
    summary
        Figures, by name.
    arrays
        Matrices and curves for plots, by name.
    clients
        A value per client, by name, each of shape (K,).
    placing
        The rule by which newcomers are placed, see :mod:`fedclust.newcomers.placing`; empty for the cluster
        whose model has the least loss.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    clients: dict[str, np.ndarray] = field(default_factory=dict)
    placing: dict[str, Any] = field(default_factory=dict)

    def grown(self, num_clients: int, number: int) -> "Findings":
        """Add entries for clients that join, without findings: NaN, or −1 for whole numbers.

        Parameters
        ----------
        num_clients
            Number of clients K so far.
        number
            How many join.
        """
        arrays = dict(self.arrays)
        for name, values in arrays.items():
            if values.ndim == 2 and len(values) == num_clients:  # a row for each, or a number for each pair
                pairs = values.shape[1] == num_clients
                arrays[name] = padded(values, number) if pairs else padded(values, number, axes=1)
        columns = {name: padded(values, number) for name, values in self.clients.items()}
        return replace(self, arrays=arrays, clients=columns)

    @classmethod
    def of_distances(cls, distances: FloatArray, scores: Mapping[int, float]) -> "Findings":
        """List clients' distances, and the score of each number of clusters tried.

        Parameters
        ----------
        distances
            Shape (K, K).
        scores
            Mean silhouette by number of clusters; may be empty.
        """
        curve = cls.of_silhouettes(scores)
        return replace(curve, arrays={"distances": distances, **curve.arrays})

    @classmethod
    def of_silhouettes(cls, scores: Mapping[int, float]) -> "Findings":
        """List the silhouette of each number of clusters tried."""
        if not scores:
            return cls()
        numbers, values = zip(*sorted(scores.items()), strict=True)
        return cls(
            summary={"silhouette": dict(zip(map(str, numbers), values, strict=True))},
            arrays={"silhouette_numbers": np.asarray(numbers), "silhouette_scores": np.asarray(values)},
        )
