"""What a client does in a round: train, clip and project its update, and send it alone or in a mean."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fedclust.clients.app import answers
from fedclust.clients.coalitions import train_arms
from fedclust.clients.mixtures import row_weights
from fedclust.clients.node import Answers, Node, by_question, grouped, states_of
from fedclust.messages.models import from_stacked, from_state
from fedclust.messages.training import Instruction, Projected, TrainAnswer, Update, UpdateQuestion
from fedclust.personal.staying import APFL, Ditto, FedRep, Own
from fedclust.training import cohort
from fedclust.training.patients import PatientSteps
from fedclust.typing import FloatArray, State

Asked = Mapping[int, Instruction] | Mapping[int, UpdateQuestion]
Starts = Mapping[int, State]
"""The model that each client of a pass started from; equal models are one object."""


@answers(Instruction)
def train(node: Node, asked: Mapping[int, Instruction]) -> Answers:
    """Train each client and return its model, or its share in a mean of models, and its losses."""
    weights, errors = row_weights(node, asked)
    asked = {client: each for client, each in asked.items() if client not in errors}
    replies: dict[int, TrainAnswer] = {}
    means: dict[int, list[Mean]] = {}
    for update, starts in _passes(node, asked, weights):
        most = [asked[client].most_rows for client in update.clients.tolist()]
        update = replace(update, num_examples=np.minimum(update.num_examples, most))
        update, within = _clipped(node, asked, update, starts)
        projected = _projected(node, asked, update, starts)
        errors |= update.failed
        rows = update.rows()
        fields = {
            client: {
                "client": client,
                "num_examples": int(update.num_examples[row]),
                "losses": update.losses[row],
                "mean_loss": sum(update.losses[row].tolist()) / len(update.losses[row]),
                "projected": projected.get(client),
                "within": within.get(client),
            }
            for client, row in rows.items()
        }
        alone = [client for client in rows if not asked[client].mean_reply]
        models = from_stacked(update.state, [rows[client] for client in alone])
        for client, model in zip(alone, models, strict=True):
            replies[client] = TrainAnswer(arrays=model, **fields[client])
        shared = {client: asked[client] for client in rows if asked[client].mean_reply}
        for instruction, clients in by_question(shared):
            if instruction.norm_cap is not None:
                norms = _norms(node, clients, projected, update, starts)
                for client, norm in zip(clients, norms, strict=True):
                    fields[client]["update_norm"] = norm
            own = {client: fields[client] for client in clients}
            add_to_means(means.setdefault(id(instruction), []), instruction, update, own)
    for mean in (each for some in means.values() for each in some):
        model = from_state(mean.models.state())
        replies |= {client: TrainAnswer(arrays=model, **fields) for client, fields in mean.fields.items()}
    for client, instruction in asked.items():
        if instruction.pooled and client in replies:
            parts = zip(node.data.train, node.data.test, strict=True)  # a site has none of another's clients
            held = (each for each, (some, more) in enumerate(parts) if len(some) or len(more))
            here = {*node.clients, *held}
            used = len(here.intersection(instruction.pooled_rows or here))
            replies[client] = replace(replies[client], pooled=used)
    further = {client: each for client, each in asked.items() if each.arms and client in replies}
    for client, arms in (train_arms(node, further, weights) if further else {}).items():
        replies[client] = replace(replies[client], arms=arms)
    return replies, errors


@answers(UpdateQuestion)
def update(node: Node, asked: Mapping[int, UpdateQuestion]) -> Answers:
    """Train the received model and return only the requested parts of its change."""
    errors: dict[int, str] = {}
    replies: dict[int, Update] = {}
    for update, starts in _passes(node, asked):
        errors |= update.failed
        projected = _projected(node, asked, update, starts)
        for client, row in update.rows().items():
            changed = _changes(update, [row], starts[client], asked[client].names)
            changes = {name: array[0] for name, array in changed.items()}
            replies[client] = Update(client, int(update.num_examples[row]), changes, projected.get(client))
    return replies, errors


# -- Training -----------------------------------------------------------------------------------------------


def _passes(
    node: Node, asked: Asked, weights: Mapping[int, FloatArray] = MappingProxyType({})
) -> Iterator[tuple[cohort.CohortUpdate, Starts]]:
    """Train clients with one call per kind of training, for all models at once, so that they share passes."""
    kinds = grouped(
        {
            client: (each.server_round, each.proximal_mu, _private(each), _rule(each))
            for client, each in asked.items()
        }
    )
    for (server_round, proximal_mu, private, rule), clients in kinds.items():
        patients = private and PatientSteps(*private[:3], draw=node.noise(published=private[3]))
        # By model, not by instruction: clients with different instructions may share a model.
        starts = states_of({client: asked[client].arrays for client in clients})
        if rule[0]:
            node.kept.before(node.keeps[0], server_round, clients)
        jobs = [
            _job(node, client, asked[client], starts[client])
            if client not in weights
            else cohort.Job(
                client,
                np.sort(node.data.train[client]),
                starts[client],
                weights=weights[client][0],
                own=node.own(client, starts[client]),
            )
            for client in clients
        ]
        facts: dict[str, Any] = {"proximal_mu": proximal_mu, "patients": patients}
        if rule[0] == FedRep.choice:
            updates = _head_then_body(node, jobs, rule[1], server_round, proximal_mu)
        elif rule[0] in (Ditto.choice, APFL.choice):
            updates = _beside(node, jobs, rule, server_round, proximal_mu)
        else:
            updates = node.trainer.train(jobs, server_round, **facts)
        for update in updates:
            keeps = server_round if rule[0] else None
            yield _shared(node, update, starts[int(update.clients[0])], keeps), starts


def _rule(asked: Instruction | UpdateQuestion) -> tuple[str, float, bool]:
    """Return by which rule a client keeps something; the first is empty if it does not."""
    return asked.stays, asked.stays_rate, asked.stays_adapts


def _shared(node: Node, update: cohort.CohortUpdate, sent: State, keeps: int | None) -> cohort.CohortUpdate:
    """Leave out what the sent model lacks; clients keep it, after a round that is given."""
    lacking = {name: stacked for name, stacked in update.state.items() if name not in sent}
    staying, shares = update.own or lacking, update.shares or (1.0,) * len(update.clients)
    if not staying:
        return update
    rows = update.rows()
    if keeps is not None and rows:
        copies = {name: stacked[[*rows.values()]].unbind() for name, stacked in staying.items()}
        kept = node.kept.of(node.keeps[0])
        for place, (client, row) in enumerate(rows.items()):
            kept[client] = Own({name: each[place] for name, each in copies.items()}, shares[row], keeps)
    return replace(update, state={n: stacked for n, stacked in update.state.items() if n not in lacking})


def _beside(
    node: Node,
    jobs: Sequence[cohort.Job],
    rule: tuple[str, float, bool],
    server_round: int,
    proximal_mu: float | None,
) -> Iterator[cohort.CohortUpdate]:
    """Train each client's second model beside the shared one; its first is that of the run's beginning."""
    choice, rate, adapts = rule
    first, kept = Own(node.trainer.initial, rate), node.kept.of(node.keeps[0])
    held = {job.client: kept.get(job.client, first) for job in jobs}
    pairs = cohort.Pairs(pull=rate)
    if choice == APFL.choice:
        pairs = cohort.Pairs(shares={client: each.share for client, each in held.items()}, adapts=adapts)
    second = [replace(job, own=held[job.client].tensors) for job in jobs]
    yield from node.trainer.train(second, server_round, proximal_mu=proximal_mu, pairs=pairs)


def _head_then_body(
    node: Node, jobs: Sequence[cohort.Job], share: float, server_round: int, proximal_mu: float | None
) -> Iterator[cohort.CohortUpdate]:
    """Train what stays for a share of each client's steps, then the rest of its model for the others."""
    if empty := [job for job in jobs if not len(job.rows)]:
        yield from node.trainer.train(empty, server_round)
    full = {job.client: job for job in jobs if len(job.rows)}
    if not full:
        return
    steps = cohort.num_steps(np.array([len(job.rows) for job in full.values()]), node.trainer.training)
    heads: list[cohort.Job] = []
    bodies: dict[int, cohort.Job] = {}
    for job, total in zip(full.values(), steps.tolist(), strict=True):
        of_head = max(1, min(round(share * total), total - 1))
        of_body = max(1, total - of_head)  # a single step is one of each, on the same batch, with one loss
        heads.append(replace(job, steps=of_head))
        bodies[job.client] = replace(job, steps=of_body, first=total - of_body)
    head = list(heads[0].own)
    body = [name for name in node.trainer.initial if name not in head]
    losses: dict[int, FloatArray] = {}
    ready: list[cohort.Job] = []
    for update in node.trainer.only(head).train(heads, server_round, proximal_mu=proximal_mu):
        for client, row in update.rows().items():
            own = {name: update.state[name][row] for name in head}
            ready.append(replace(bodies[client], own=own))
            losses[client] = update.losses[row][: bodies[client].first]
        for client, reason in update.failed.items():
            yield cohort.untrained([full[client]], reason)
    for update in node.trainer.only(body).train(ready, server_round, proximal_mu=proximal_mu):
        whole = zip(update.clients.tolist(), update.losses, strict=True)
        yield replace(update, losses=tuple(np.append(losses[client], each) for client, each in whole))


def _private(asked: Instruction | UpdateQuestion) -> tuple[float, float, float, bool] | None:
    """Return how an instruction protects patients; None if it does not."""
    if not isinstance(asked, Instruction) or asked.patient_clip is None:
        return None
    return asked.patient_clip, asked.patient_noise, asked.patient_sampling, asked.published_noise


def _job(node: Node, client: int, asked: Instruction | UpdateQuestion, state: State) -> cohort.Job:
    if not asked.pooled:
        return cohort.Job(client, node.data.train[client], state, own=node.own(client, state))
    training = node.trainer.training
    rows = [node.data.train[other] for other in asked.pooled_rows or range(node.data.num_clients)]
    examples = np.array([len(node.data.train[other]) for other in asked.pooled])
    samples = max(1, cohort.total_seen(examples, training))
    pooled = np.concatenate(rows)
    return cohort.Job(client, pooled, state, cohort.steps_to_see(samples, max(1, len(pooled)), training))


# -- The change by training ---------------------------------------------------------------------------------


def _clipped(
    node: Node, asked: Mapping[int, Instruction], update: cohort.CohortUpdate, starts: Starts
) -> tuple[cohort.CohortUpdate, dict[int, bool]]:
    """Clip updates if asked to; return whether they were short enough, of the clients that report it."""
    clients = update.clients.tolist()
    clips = {asked[client].clip for client in clients}
    if len(clips) > 1:
        raise ValueError(f"clients of one node must have one clip, got {sorted(map(str, clips))}")
    (clip,) = clips
    if clip is None:
        return update, {}
    clipped, short = cohort.clip_updates(update, starts, _trained(node, update), clip)
    pairs = zip(clients, short.tolist(), strict=True)
    return clipped, {client: within for client, within in pairs if asked[client].clip_tells}


def _trained(node: Node, update: cohort.CohortUpdate) -> list[str]:
    """List the parameters that training changes and clients send."""
    return [name for name in node.trainer.trainable_names if name in update.state]


def _changes(
    update: cohort.CohortUpdate, rows: Sequence[int], start: State, names: Iterable[str]
) -> dict[str, FloatArray]:
    """Compute trained minus start, float64, shape (rows, *shape) by name, for rows that share a start."""
    return {
        name: update.state[name][list(rows)].detach().cpu().numpy().astype(np.float64)
        - start[name].numpy().astype(np.float64)
        for name in names
    }


def _projected(node: Node, asked: Asked, update: cohort.CohortUpdate, starts: Starts) -> dict[int, Projected]:
    """Project the change of the trained parameters, for the clients that are asked to."""
    rows = update.rows()
    keys = {client: (id(starts[client]), asked[client].projection) for client in rows}
    projected: dict[int, Projected] = {}
    for (_, projection), clients in grouped(keys).items():
        if projection is None:
            continue
        own = [rows[client] for client in clients]
        changed = _changes(update, own, starts[clients[0]], _trained(node, update))
        squares = sum(np.square(array.reshape(len(own), -1)).sum(axis=1) for array in changed.values())
        for client, sums, norm in zip(clients, projection.of(changed), np.sqrt(squares), strict=True):
            projected[client] = Projected(sums, float(norm))
    return projected


def _norms(
    node: Node,
    clients: Sequence[int],
    projected: Mapping[int, Projected],
    update: cohort.CohortUpdate,
    starts: Starts,
) -> list[float]:
    """Compute the lengths of updates from one model; for trained parameters, only without a projection."""
    state, rows = update.state, update.rows()
    known = [projected[client].norm for client in clients if client in projected]
    if len(known) == len(clients):
        trained = set(_trained(node, update))
        state = {name: tensor for name, tensor in state.items() if name not in trained}
    norms = cohort.update_norms(state, starts[clients[0]], [rows[client] for client in clients])
    return list(map(math.hypot, known, norms)) if len(known) == len(clients) else norms


# -- Means --------------------------------------------------------------------------------------------------


@dataclass
class Mean:
    """The mean model of clients that share an instruction.

    Attributes
    ----------
    models
        Their models.
    fields
        The other fields of each one's answer, by client id.
    shortest, longest
        Lengths of their updates.
    """

    models: cohort.ModelMean
    fields: dict[int, dict[str, Any]] = field(default_factory=dict)
    shortest: float = math.inf
    longest: float = 0.0


def add_to_means(
    means: list[Mean],
    instruction: Instruction,
    update: cohort.CohortUpdate,
    fields: Mapping[int, dict[str, Any]],
) -> None:
    """Add the clients of a pass that share an instruction to a mean, sent instead of their models.

    A mean hides its clients. If the server caps the length of updates, updates whose lengths differ by more
    than that factor go into different means, so that the server can leave out one without the other.

    Parameters
    ----------
    means
        The instruction's means so far; changed in place.
    instruction
        The instruction.
    update
        The pass.
    fields
        Fields of each client's answer; with a cap, with the length of its update, ``update_norm``.
    """
    cap = math.inf if instruction.norm_cap is None else instruction.norm_cap
    chosen: dict[int, list[int]] = {}
    for client, own in fields.items():
        norm = own.get("update_norm", 1.0)
        place = 0
        while place < len(means) and max(means[place].longest, norm) > cap * min(means[place].shortest, norm):
            place += 1
        if place == len(means):
            means.append(Mean(cohort.ModelMean(equal=instruction.equal_weights)))
        mean = means[place]
        mean.shortest, mean.longest = min(mean.shortest, norm), max(mean.longest, norm)
        mean.fields[client] = own
        chosen.setdefault(place, []).append(client)
    for place, clients in chosen.items():
        means[place].models.add(update, clients)
