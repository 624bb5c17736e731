"""FLUX: after some rounds, clients are clustered once by moments of the model's latent features."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clustering import flux
from fedclust.clustering.flux import Parameters
from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation, Findings
from fedclust.messages.descriptors import Descriptor, DescriptorQuestion
from fedclust.newcomers.placing import with_unanswered
from fedclust.strategies.base import ClusteredStrategy
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Groups:
    """How newcomers are placed.

    Attributes
    ----------
    model
        The model under which clients were described.
    width
        Number of latent features.
    most, low, high
        The largest latent feature, and the ranges by which descriptors are scaled, shape (2 + 2 C, 1).
    centres
        Mean scaled descriptor of P(X) of each cluster, shape (clusters, 2, axes).
    """

    model: ArrayRecord
    width: int
    most: float
    low: FloatArray
    high: FloatArray
    centres: FloatArray


@dataclass(frozen=True, eq=False)
class Memory:
    """What FLUX remembers.

    Attributes
    ----------
    accuracies
        Accuracy on all clients' training rows after each round, until clients were clustered; NaN if unknown.
    groups
        How newcomers are placed, once there are clusters.
    """

    accuracies: FloatArray
    groups: Groups | None = None


class FLUX(ClusteredStrategy):
    """Train one model for all until it gains little, then cluster by its latent features on clients' rows.

    Source: :mod:`fedclust.clustering.flux`. Before each round but the first all clients describe their rows,
    until the accuracy that they report with it gains little; then they are clustered. A client that does not
    answer goes with the largest cluster.

    Parameters
    ----------
    parameters
        When clients are clustered.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`.
    """

    asks = frozenset({DescriptorQuestion.kind})

    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory

    def cautions(self, num_clients: int, rounds: int) -> list[str]:
        """List why clients cannot be clustered."""
        first = f"after round {self.parameters.min_rounds} (strategy.parameters.min_rounds) at the earliest"
        text = f"clusters are formed {first}, and there are {rounds}"
        return [text] if rounds <= self.parameters.min_rounds else []

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with one model for all."""
        everyone = np.zeros(federation.num_clients, dtype=np.int64)
        return Clusters.of(everyone, model, Memory(np.zeros(0)))

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        """Ask all clients for descriptors until they have been clustered."""
        memory: Memory = clusters.memory
        if memory.groups is not None or federation.server_round == 1:
            return clusters
        answers = _asked(clusters.models[0], range(clusters.num_clients), federation)
        rows = sum(each.num_examples for each in answers.values())
        accuracy = sum(each.right for each in answers.values()) / rows if rows else np.nan
        memory = replace(memory, accuracies=np.append(memory.accuracies, accuracy))
        if len(answers) < 2 or not flux.levelled(memory.accuracies, self.parameters):
            return replace(clusters, memory=memory)
        most = max(each.most for each in answers.values())
        width = next(iter(answers.values())).width
        found = _centred(list(answers.values()), most)
        low, high = flux.ranges(found)
        described = flux.scaled(found, low, high)
        found_in = flux.clusters(described)
        assignment = np.full(clusters.num_clients, np.bincount(found_in).argmax())
        assignment[list(answers)] = found_in
        parts = (described[found_in == each, :2] for each in range(found_in.max() + 1))
        centres = np.stack([part.mean(axis=0) for part in parts])
        memory = replace(memory, groups=Groups(clusters.models[0], width, most, low, high, centres))
        split = clusters.split(0, assignment) if assignment.any() else clusters
        return replace(split, memory=memory)

    def place(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> dict[int, Placement]:
        """Put each newcomer to the cluster whose mean descriptor of P(X), without labels, is nearest."""
        groups: Groups | None = clusters.memory.groups
        if groups is None or len(np.unique(clusters.assignment)) == 1:
            return super().place(clusters, newcomers, server_round, federation)
        placed = {}
        for client, answer in _asked(groups.model, newcomers, federation, groups.width).items():
            described = flux.scaled(_centred([answer], groups.most), groups.low, groups.high)[0, :2]
            apart = np.linalg.norm((groups.centres - described).reshape(len(groups.centres), -1), axis=1)
            evidence = {"distances": apart.tolist()}
            placed[client] = Placement(int(apart.argmin()), "its latent features are nearest", evidence)
        return with_unanswered(newcomers, placed)

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """Remember nothing of newcomers."""
        memory: Memory = clusters.memory
        return memory

    def settled(self, clusters: Clusters, server_round: int) -> bool:
        """Return whether clients have been clustered."""
        return clusters.memory.groups is not None

    def findings(self, clusters: Clusters) -> Findings:
        """Return the accuracies until clients were clustered."""
        return Findings(summary={"accuracies": clusters.memory.accuracies.tolist()})


def _asked(
    model: ArrayRecord, clients: Iterable[int], federation: Federation, width: int = 0
) -> dict[int, Descriptor]:
    """Ask clients for descriptors, and leave out those of another width than that given, or than most."""
    question = DescriptorQuestion(model, federation.describe().num_classes)
    answers = dict(federation.ask(question, clients).replies)
    widths = [each.width for each in answers.values()]
    usual = width or max(set(widths), key=widths.count, default=0)
    for client in [client for client, each in answers.items() if each.width != usual]:
        why = f"client {client}: width must be {usual}, got {answers.pop(client).width}"
        federation.failed(client, DescriptorQuestion.kind, why)
    return answers


def _centred(answers: Sequence[Descriptor], most: float) -> FloatArray:
    return flux.centred(np.stack([each.moments for each in answers]), most, answers[0].width)
