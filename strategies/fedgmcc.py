"""FedGMCC: clients are clustered every round, by the low-loss curves between their models."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedProx

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Fitting, Outcome, chain_scores
from fedclust.clustering.fedgmcc import Parameters
from fedclust.clustering.placement import place
from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.clustering.shared.placement import Placement
from fedclust.federation import Clusters, Federation, Findings, Reply, padded, starting_models
from fedclust.messages.models import from_stacked, like, to_state
from fedclust.newcomers.placing import with_unanswered
from fedclust.strategies.base import NetworkStrategy
from fedclust.support.reasons import one_line
from fedclust.support.rng import torch_seed
from fedclust.typing import FloatArray, IntArray, State

_MOST_TRIED = 10  # clusters that a newcomer trains the models of
_PROFILES = 2  # pairs of each kind, closest and farthest, whose curves are kept for the plot
_LAST_ROUNDS = 10  # rounds over which groupings are counted


@dataclass(frozen=True, eq=False)
class Memory:
    """FedGMCC's memory.

    Attributes
    ----------
    percentile
        Percentile of the losses that is the next round's ε.
    scores
        Last score of every pair, NaN if never fitted, shape (K, K).
    groupings
        Assignment after each of the last ten rounds, numbered in order of appearance, shape (rounds, K); −1
        for clients that had not joined.
    profile
        Curves for the plot.
    """

    percentile: float
    scores: FloatArray
    groupings: IntArray
    profile: Mapping[str, np.ndarray] = field(default_factory=dict)


class FedGMCC(NetworkStrategy):
    """Average the models of a round along the curves that join them; models without a curve stay separate.

    Source: FedGMCC, Algorithm 1; see :mod:`fedclust.clustering.fedgmcc` for what the paper leaves open. The
    cohort is drawn from all clients, whatever their clusters. A client starts a round from the model of its
    last cluster; before its first round it has the initial model. So clients outside the cohort form separate
    clusters with the models they have. A client whose model overflows is alone in its cluster.

    Clusters are formed anew in every round, and often alternate between two groupings, so those of the last
    round say little alone. ``groupings_of_last_rounds`` in the summary counts the groupings of the last ten.

    Parameters
    ----------
    input_shape
        Shape of one input.
    vocabulary_size
        Number of tokens of a network that takes tokens, None for one that takes numbers.
    device
        Device to fit curves on: a torch device, or ``"auto"`` for a GPU if there is one.
    parameters
        Settings of the fit and the grouping.
    options
        As for :class:`~fedclust.strategies.ClusteredStrategy`; the aggregator must be FedAvg or
        FedProx, since models are only averaged along curves.

    Raises
    ------
    ValueError
        If the aggregator is another one.
    """

    needs_last_round = True

    needs_client_models = True
    parameters_type = Parameters
    parameters: Parameters
    memory_type = Memory
    needs_whole_models = True

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        vocabulary_size: int | None = None,
        device: str = "auto",
        **given: Any,
    ) -> None:
        super().__init__(**given)
        kind = type(self.make_aggregator())
        if kind not in (FedAvg, FedProx):
            why = "fedavg or fedprox with FedGMCC, which averages along curves"
            raise ValueError(f"aggregator must be {why}, got {kind.__name__.lower()}")
        self.input_shape, self.vocabulary_size = tuple(input_shape), vocabulary_size
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = automatic if device == "auto" else device

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        """Start with all clients in one cluster.

        Raises
        ------
        ValueError
            If the network is not the one that clients train, or does not take inputs of this shape.
        """
        starting_models(self.network, model, 1, self.seed)
        shape, size = self.input_shape, self.vocabulary_size
        row = curve_fitting.draw_inputs(1, shape, torch.Generator(), vocabulary_size=size)
        try:
            with torch.no_grad():
                copy.deepcopy(self.network).cpu().eval()(row)
        except (RuntimeError, IndexError) as error:
            rule = f"input_shape must be that of the network's inputs, got {list(shape)}"
            raise ValueError(f"{rule}: {one_line(str(error))}") from error
        unknown = np.full((federation.num_clients, federation.num_clients), np.nan)
        none = np.zeros((0, federation.num_clients), dtype=np.int64)
        memory = Memory(self.parameters.first_percentile, unknown, none)
        return replace(super().begin(federation, model), memory=memory)

    def grown(self, clusters: Clusters, homes: IntArray) -> Memory:
        """No curve to a newcomer's model is known, and it was in no cluster before."""
        memory: Memory = clusters.memory
        groupings = np.pad(memory.groupings, ((0, 0), (0, len(homes))), constant_values=-1)
        return replace(memory, scores=padded(memory.scores, len(homes)), groupings=groupings)

    def cohort(self, clusters: Clusters, federation: Federation) -> IntArray:
        """Choose the round's cohort from all clients."""
        return self.select(np.arange(clusters.num_clients), clusters.models[0], federation)

    def entering(
        self, clusters: Clusters, replies: Sequence[Reply], federation: Federation
    ) -> Sequence[Reply]:
        """Aggregate nothing: groups are averaged along their curves."""
        return ()

    def after_round(self, clusters: Clusters, replies: Sequence[Reply], federation: Federation) -> Clusters:
        """Fit the curves between the round's models, group them, and average each group along its curves."""
        if not replies:
            return clusters
        memory, members = clusters.memory, np.array([reply.client for reply in replies])
        models = _stack([to_state(reply.model) for reply in replies])
        fitting = self._fitting(federation, "curves", federation.server_round)
        percentile, outcome = curve_fitting.step(memory.percentile, fitting, models)
        scores, profile = memory.scores.copy(), memory.profile
        first, second = members[outcome.chains.pairs].T
        scores[members, members] = 0
        scores[first, second] = scores[second, first] = outcome.scores
        if federation.server_round == federation.num_rounds and len(replies) > 1:
            profile = _profile(fitting, models, outcome, members)
        report = {"percentile": memory.percentile, **_report(members, outcome)}
        adopted = _adopted(clusters, members, outcome).with_report(**report)
        latest = in_order_of_appearance(adopted.assignment)
        groupings = np.vstack([memory.groupings, latest])[-_LAST_ROUNDS:]
        return replace(adopted, memory=Memory(percentile, scores, groupings, profile))

    def place(
        self, clusters: Clusters, newcomers: Sequence[int], server_round: int, federation: Federation
    ) -> dict[int, Placement]:
        """Ask newcomers to train the clusters' models for a round; the chain of least loss decides.

        With more than ten clusters only the ten largest are tried.
        """
        tried = np.argsort(-clusters.sizes, kind="stable")[:_MOST_TRIED]
        tried = np.sort(tried[clusters.sizes[tried] > 0])
        if len(tried) == 1:
            return super().place(clusters, newcomers, server_round, federation)
        models = [to_state(clusters.models[each]) for each in tried]
        names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
        answers = [
            federation.updates(clusters.models[each], newcomers, server_round + 1, names=names)
            for each in tried
        ]
        placed: dict[int, Placement] = {}
        for client in set(newcomers).intersection(*answers):
            trained = []
            for model, changes in zip(models, (each[client].changes for each in answers), strict=True):
                moved = {name: model[name] + torch.as_tensor(changes[name]).to(model[name]) for name in names}
                trained.append(model | moved)
            fitting = self._fitting(federation, "place", server_round)
            own, apart = chain_scores(fitting, _stack(models), _stack(trained))
            placed[client] = place(own, apart, tried)
        return with_unanswered(newcomers, placed)

    def findings(self, clusters: Clusters) -> Findings:
        """Count the last rounds' groupings; return pairs' last scores, and outputs along a few curves."""
        memory: Memory = clusters.memory
        found, rounds = np.unique(memory.groupings, axis=0, return_counts=True)
        counted = [
            {"rounds": int(rounds[each]), "assignment": found[each].tolist()}
            for each in np.argsort(-rounds, kind="stable")
        ]
        arrays = {"pair_scores": memory.scores, **memory.profile}
        return Findings(summary={"groupings_of_last_rounds": counted}, arrays=arrays)

    def _fitting(self, federation: Federation, purpose: str, server_round: int) -> Fitting:
        """Draw the random inputs of a round."""
        draws = torch.Generator().manual_seed(torch_seed(self.seed, purpose, server_round))
        described, number = federation.describe(), self.parameters.num_inputs
        mean, std, size = described.mean, described.std, self.vocabulary_size
        inputs = curve_fitting.draw_inputs(
            number, self.input_shape, draws, mean=mean, std=std, vocabulary_size=size
        )
        return Fitting(self.network, inputs, self.parameters, draws, self.device)


def _profile(fitting: Fitting, models: State, outcome: Outcome, members: IntArray) -> dict[str, np.ndarray]:
    """Compute the outputs' distances along some fitted chains and straight lines (Fig. 2)."""
    finite = np.isfinite(outcome.losses).sum()  # infinite losses come last, and cannot be drawn
    order = np.argsort(outcome.losses, kind="stable")[:finite]
    which = list(dict.fromkeys([*order[:_PROFILES].tolist(), *order[-_PROFILES:].tolist()]))
    pairs, straight = outcome.chains.pairs[which], replace(fitting.parameters, steps=0)
    lines = curve_fitting.fit_pairs(replace(fitting, parameters=straight), models, pairs)
    return {
        "curve_pairs": members[pairs],
        "curve_points": np.linspace(0, 1, fitting.parameters.num_points),
        "curve_losses": outcome.chains.distances[which],
        "line_losses": lines.distances,
    }


def _adopted(clusters: Clusters, members: IntArray, outcome: Outcome) -> Clusters:
    """Assign this round's clients to their new clusters; the others keep their models."""
    found = int(outcome.labels.max()) + 1
    models = [like(each, clusters.models[0]) for each in from_stacked(outcome.models, range(found))]
    held = clusters.assignment.copy()
    held[members] = -1
    assignment = np.empty_like(held)
    assignment[members] = outcome.labels
    for old in np.unique(held[held >= 0]):
        assignment[held == old] = len(models)
        models.append(clusters.models[int(old)])
    reason = f"{found} cluster{'s' if found != 1 else ''} among the cohort"
    return replace(clusters, assignment=assignment, models=tuple(models), reason=reason)


def _report(members: IntArray, outcome: Outcome) -> dict[str, Any]:
    """List the losses and scores of the round's pairs, the budget, and the resulting groups.

    Infinite scores, such as those of a model that overflows, become null in ``rounds.jsonl``.
    """
    matched = np.unique(outcome.chains.pairs[np.isfinite(outcome.losses)])
    alone: list[int] = np.delete(members, matched).tolist() if len(members) > 1 else []
    return {
        "epsilon": outcome.epsilon,
        "num_connected": int(outcome.connected.sum()),
        "pairs": members[outcome.chains.pairs].tolist(),
        "curve_finding_losses": outcome.losses.tolist(),
        "pair_scores": outcome.scores.tolist(),
        "overflowing": alone,
        "components": [
            members[outcome.labels == cluster].tolist() for cluster in range(int(outcome.labels.max()) + 1)
        ],
    }


def _stack(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}
