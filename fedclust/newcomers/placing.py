"""Place newcomers by the rules of methods, or by the loss of each cluster's model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclust.clustering.placement import DistanceRule, EvidenceRule, LabelRule, SubspaceRule
from fedclust.clustering.shared.placement import NONE, Placement, least_loss
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.messages.codec import Question
from fedclust.messages.description import PrototypesQuestion, SubspacesQuestion
from fedclust.messages.packer import pack, unpack
from fedclust.typing import FloatArray, IntArray

Rule = LabelRule | EvidenceRule | DistanceRule | SubspaceRule
"""A dataclass of arrays, numbers and words with ``place``, from what a client sent to a placement."""

_RULES: dict[str, type[Rule]] = {
    "labels": LabelRule,
    "prototype_evidence": EvidenceRule,
    "prototype_distances": DistanceRule,
    "subspaces": SubspaceRule,
}


def packed(rule: Rule) -> dict[str, Any]:
    """List a rule as arrays, numbers and words by name, with the name of its kind as ``rule``."""
    kind = next(name for name, each in _RULES.items() if type(rule) is each)
    return {"rule": kind} | {name: "" if each is None else each for name, each in pack(rule).items()}


def unpacked(packed: Mapping[str, Any]) -> Rule | None:
    """Make the rule from the result of :func:`packed`, also as a file of arrays; None of nothing."""
    entries = {name: each if np.ndim(each) else np.asarray(each).item() for name, each in packed.items()}
    entries = {name: None if np.ndim(each) == 0 and each == "" else each for name, each in entries.items()}
    return unpack(_RULES[entries.pop("rule")], entries) if entries else None


def serving_clusters(clusters: Clusters) -> IntArray:
    """List the clusters that have clients."""
    return np.flatnonzero(clusters.sizes)


def silent(newcomers: Sequence[int], answered: dict[int, Placement]) -> dict[int, Placement]:
    """Add the newcomers that did not answer: no cluster is known to fit them."""
    return {
        client: answered.get(client) or Placement(None, "did not answer") for client in map(int, newcomers)
    }


def placed_by_losses(losses: FloatArray, serving: IntArray, chance: float) -> Placement:
    """Place one client by the loss of each cluster's model.

    Parameters
    ----------
    losses
        Of the clusters in `serving`, in nats, shape (k,).
    serving
        Indices of the clusters, shape (k,).
    chance
        Loss of a guess, see :func:`~fedclust.clustering.shared.placement.least_loss`.
    """
    if len(serving) == 1:
        only, loss = int(serving[0]), float(losses[0])
        return Placement(only, "there is one model for all", {"losses": {str(only): loss}})
    best = least_loss(losses, chance)
    evidence = {"losses": {str(each): float(loss) for each, loss in zip(serving, losses, strict=True)}}
    if best == NONE:
        why = f"no cluster's model is better than guessing: the least loss is {np.nanmin(losses):.3g} nats"
        return Placement(None, f"{why}, a guess has {chance:.3g}", {**evidence, "chance": chance})
    others = np.delete(losses, best)
    why = f"the model of cluster {serving[best]} has the least loss, {losses[best]:.3g} nats"
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
        Whom to ask.
    """
    serving = serving_clusters(clusters)
    losses = federation.losses([clusters.models[each] for each in serving], newcomers)
    known = federation.bounds.least_loss == 0 and federation.bounds.num_classes
    chance = float(np.log(known)) if known else np.inf
    return silent(
        newcomers, {client: placed_by_losses(each, serving, chance) for client, each in losses.items()}
    )


def by_rule(rule: Rule, newcomers: Sequence[int], federation: Federation) -> dict[int, Placement]:
    """Ask newcomers for what a rule goes by, as the method asked the others before round 1, and apply it.

    Parameters
    ----------
    rule
        The rule.
    newcomers
        Ids of the clients to place.
    federation
        Whom to ask. Of a client whose answer does not fit, why is the reason of its placement.
    """
    if isinstance(rule, LabelRule):
        described = federation.describe_newcomers(newcomers)
        return silent(
            newcomers, {client: rule.place(each.train_counts) for client, each in described.items()}
        )
    placed: dict[int, Placement] = {}
    question: Question = PrototypesQuestion()
    if isinstance(rule, SubspaceRule):
        question = SubspacesQuestion(rule.input, rule.bases.shape[-1])
    elif isinstance(rule, EvidenceRule):
        question = PrototypesQuestion(min_examples=rule.min_examples, max_norm=rule.max_norm)
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
    return silent(newcomers, placed)
