"""Place newcomers by the rules of methods or the loss of each cluster's model; evaluate their models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fedclust.clustering.placement import DistanceRule, LabelRule, SubspaceRule
from fedclust.clustering.shared.placement import NONE, Placement, least_loss
from fedclust.federation.answering import Failure
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.federation.questions import shifts_for
from fedclust.federation.run import Measured
from fedclust.messages.codec import Question
from fedclust.messages.description import Description, PrototypesQuestion, SubspacesQuestion
from fedclust.messages.evaluation import EvaluateQuestion, ProofQuestion
from fedclust.messages.packer import join_arrays, pack, split_arrays, unpack
from fedclust.proof import compare, holm
from fedclust.typing import BoolArray, FloatArray, IntArray

Rule = LabelRule | DistanceRule | SubspaceRule
"""A dataclass of arrays, numbers and words, whose ``place`` converts a client's reply to a placement."""

_RULES: dict[str, type[Rule]] = {
    "labels": LabelRule,
    "prototype_distances": DistanceRule,
    "subspaces": SubspaceRule,
}


def packed(rule: Rule) -> dict[str, Any]:
    """Convert a rule to arrays by name, with the name of its kind as ``rule`` and its values as JSON."""
    kind = next(name for name, each in _RULES.items() if type(rule) is each)
    values, arrays = split_arrays(pack(rule))
    return {"rule": kind, "values": values} | arrays


def unpacked(packed: Mapping[str, Any]) -> Rule | None:
    """Create a rule from the result of :func:`packed`, even after saving as arrays; None if it is empty."""
    arrays = dict(packed)
    if not arrays:
        return None
    kind, values = (str(arrays.pop(name)) for name in ("rule", "values"))
    return unpack(_RULES[kind], join_arrays(values, arrays))


def with_unanswered(newcomers: Sequence[int], answered: dict[int, Placement]) -> dict[int, Placement]:
    """Add newcomers that did not answer, without a cluster."""
    return {
        client: answered.get(client) or Placement(None, "did not answer") for client in map(int, newcomers)
    }


def placed_by_losses(losses: FloatArray, serving: IntArray, chance: float, unit: str = " nats") -> Placement:
    """Place one client by the loss of each cluster's model.

    Parameters
    ----------
    losses
        Losses of the models of the clusters in `serving`, shape (k,).
    serving
        Indices of the clusters, shape (k,).
    chance
        Loss of a guess, see :func:`~fedclust.clustering.shared.placement.least_loss`.
    unit
        Unit of the losses, after a space.
    """
    if len(serving) == 1:
        only, loss = int(serving[0]), float(losses[0])
        return Placement(only, "there is one model for all", {"losses": {str(only): loss}})
    best = least_loss(losses, chance)
    evidence = {"losses": {str(each): float(loss) for each, loss in zip(serving, losses, strict=True)}}
    if best == NONE:
        why = f"no cluster's model is better than guessing: the least loss is {np.nanmin(losses):.3g}{unit}"
        return Placement(None, f"{why}, a guess has {chance:.3g}", {**evidence, "chance": chance})
    others = np.delete(losses, best)
    why = f"the model of cluster {serving[best]} has the least loss, {losses[best]:.3g}{unit}"
    return Placement(int(serving[best]), f"{why}; the next one has {np.nanmin(others):.3g}", evidence)


def by_least_loss(
    clusters: Clusters, newcomers: Sequence[int], federation: Federation
) -> dict[int, Placement]:
    """Ask newcomers for the loss of every cluster's model on their training rows, in one message each.

    They trained none of these models, so their training rows are as good as held-out ones.

    Parameters
    ----------
    clusters
        The clusters; those without clients are left out.
    newcomers
        Ids of the clients to place.
    federation
        The clients.
    """
    serving = np.flatnonzero(clusters.sizes)
    models, target = [clusters.models[each] for each in serving], federation.describe().target
    known = federation.bounds.least_loss == 0 and federation.bounds.num_classes
    chance = float(np.log(known)) if known else np.inf
    if target.loss is None:
        losses = federation.losses(models, newcomers)
        guesses = dict.fromkeys(losses, chance)
    else:  # what a network that returns 0 predicts depends on the client's rows
        answers = federation.losses([*models, _returning_zero(models[0])], newcomers)
        losses = {client: each[:-1] for client, each in answers.items()}
        guesses = {client: float(each[-1]) for client, each in answers.items()}
    return with_unanswered(
        newcomers,
        {
            client: placed_by_losses(each, serving, guesses[client], target.loss_unit)
            for client, each in losses.items()
        },
    )


def _returning_zero(model: ArrayRecord) -> ArrayRecord:
    """Return a model without weights, which returns 0 for every row."""
    return ArrayRecord({name: Array(np.zeros_like(each.numpy())) for name, each in model.items()})


def by_rule(rule: Rule, newcomers: Sequence[int], federation: Federation) -> dict[int, Placement]:
    """Ask newcomers what the method asked the others before round 1, and apply the rule.

    Parameters
    ----------
    rule
        The rule.
    newcomers
        Ids of the clients to place.
    federation
        The clients. If a client's answer does not fit, the placement's reason explains why.
    """
    if isinstance(rule, LabelRule):
        described = federation.describe_newcomers(newcomers)
        return with_unanswered(
            newcomers, {client: rule.place(each.train_counts) for client, each in described.items()}
        )
    placed: dict[int, Placement] = {}
    question: Question = PrototypesQuestion()
    if isinstance(rule, SubspaceRule):
        question = SubspacesQuestion(rule.input, rule.bases.shape[-1])
    answers = federation.ask(question, newcomers)
    for client, answer in answers.replies.items():
        try:
            if isinstance(rule, SubspaceRule):
                placed[client] = rule.place(answer.subspaces)
            else:
                placed[client] = rule.place(answer.prototypes, answer.counts)
        except ValueError as error:  # of another width than the rule's
            federation.failed(client, question.kind, str(error))
            placed[client] = Placement(None, f"its answer cannot be used: {error}")
    return with_unanswered(newcomers, placed)


# -- After the last round -----------------------------------------------------------------------------------

CLUSTER, COMMON = "cluster", "common"

Place = Callable[[Clusters, Sequence[int], int, Federation], Mapping[int, Placement]]


@dataclass(frozen=True, eq=False)
class Newcomers:
    """The clients held out of training, after placement.

    Attributes
    ----------
    placements
        The cluster of each and the reason, by client id.
    served
        Whether the client's cluster's model serves it, or one model for all, by client id. Without a model
        for all, clients in no cluster are served the model of the largest one.
    measured
        Their metrics of that model on their test parts, shape (K + newcomers,).
    described
        Label counts, known group and name of each client that answered.
    failures
        Clients that could not answer a question.
    """

    placements: Mapping[int, Placement]
    served: Mapping[int, str]
    measured: Measured
    described: Mapping[int, Description]
    failures: Sequence[Failure] = field(default_factory=list)


def place_newcomers(place: Place, clusters: Clusters, federation: Federation, server_round: int) -> Newcomers:
    """Place the clients held out of training, and evaluate the models of their clusters.

    Parameters
    ----------
    place
        The method's rule, :meth:`fedclust.strategies.ClusteredStrategy.place`.
    clusters
        The clusters after the last round.
    federation
        The clients, including those held out.
    server_round
        The last round.
    """
    described = federation.describe_newcomers(federation.newcomers)
    placements = place(clusters, federation.newcomers, server_round, federation)
    models = {client: clusters.models[_cluster(each, clusters)] for client, each in placements.items()}
    measured = _measured(federation, models, server_round)
    served = dict.fromkeys(placements, CLUSTER)
    return Newcomers(placements, served, measured, described, federation.take_failures())


def against_common(
    newcomers: Newcomers,
    clusters: Clusters,
    common: ArrayRecord,
    federation: Federation,
    by_common: BoolArray,
    server_round: int,
    level: float = 0.05,
) -> Newcomers:
    """Serve the model for all to newcomers in no cluster and to those for whom it proves to be better.

    A newcomer trained neither model, so all its training rows can be used to compare them, by the paired test
    of docs/PROOF.md with Holm's correction over all newcomers. A newcomer for whom the model for all is
    better is assigned to no cluster. One whose cluster is served the model for all gets it, too.

    Parameters
    ----------
    newcomers
        Result of :func:`place_newcomers`.
    clusters
        The clusters.
    common
        The model for all.
    federation
        The clients.
    by_common
        Whether the model for all serves each client that trained, shape (K,).
    server_round
        The last round.
    level
        Level of all tests together.
    """
    placed = {
        client: each.cluster for client, each in newcomers.placements.items() if each.cluster is not None
    }
    shifts = _shifts(newcomers, clusters, federation, placed)
    questions = {
        client: ProofQuestion(clusters.models[placed[client]], common, *each, on_training_rows=True)
        for client, each in shifts.items()
    }
    answers = federation.ask(questions).replies.items()
    tests = {client: compare([answer.evidence]) for client, answer in answers}
    corrected = holm([each.p_value for each in tests.values()])
    placements = dict(newcomers.placements)
    several = np.count_nonzero(clusters.sizes) > 1
    for (client, test), p_value in zip(tests.items(), corrected, strict=True):
        if not test.num_clients:
            continue
        evidence = {"gain_of_common": test.gain, "p_value": float(p_value)}
        placement = placements[client]
        placement = replace(placement, evidence={**placement.evidence, **evidence})
        if p_value <= level and several:
            why = f"one model for all is better on its rows than that of cluster {placement.cluster}"
            placement = Placement(None, f"{why} (p = {p_value:.2g})", placement.evidence)
        placements[client] = placement
    commons = {None, *clusters.assignment[by_common].tolist()}  # clusters that it serves, and no cluster
    served = {client: COMMON if each.cluster in commons else CLUSTER for client, each in placements.items()}
    others = {client: common for client, model in served.items() if model == COMMON}
    by_other = np.zeros(federation.num_clients + len(federation.newcomers), dtype=bool)
    by_other[list(others)] = True
    measured = newcomers.measured.served(_measured(federation, others, server_round), by_other)
    failures = [*newcomers.failures, *federation.take_failures()]
    return Newcomers(placements, served, measured, newcomers.described, failures)


def _cluster(placement: Placement, clusters: Clusters) -> int:
    return int(clusters.sizes.argmax()) if placement.cluster is None else placement.cluster


def _shifts(
    newcomers: Newcomers, clusters: Clusters, federation: Federation, placed: Mapping[int, int]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Compute the label-prior correction of both models for each newcomer."""
    described = federation.describe()
    counts, fitted, shifts = described.train_counts, described.target.fits_correction, {}
    for client, cluster in placed.items():
        if client in newcomers.described:
            own, members = newcomers.described[client].train_counts[None], clusters.members(cluster)
            trained = counts[members], counts
            first, second = (shifts_for(own, each, fitted=fitted)[0] for each in trained)
            shifts[client] = first, second
    return shifts


def _measured(federation: Federation, models: Mapping[int, ArrayRecord], server_round: int) -> Measured:
    """Ask clients to evaluate models on their test parts."""
    shared = {id(model): EvaluateQuestion(model, server_round, full=True) for model in models.values()}
    questions = {client: shared[id(model)] for client, model in models.items()}
    answers = list(federation.ask(questions, server_round=server_round).replies.values())
    return Measured.of(answers, federation.num_clients + len(federation.newcomers))
