"""Train the clients of a message, and process each update by its instruction, a step per setting."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedclust.clients.app import Answers, answers, by_question, grouped, states_of
from fedclust.clients.coalitions import train_arms
from fedclust.clients.node import Node
from fedclust.messages.models import from_stacked, from_state
from fedclust.messages.training import Instruction, Projected, TrainAnswer, Update, UpdateQuestion
from fedclust.training import cohort
from fedclust.typing import FloatArray, State


@dataclass
class Trained:
    """A pass over some of a message's clients, and the results of the passes so far.

    Attributes
    ----------
    node
        The node.
    asked
        The instruction to each client of the message.
    update
        The pass.
    starts
        The model that each of its clients started from, by client id; equal models are one object.
    fields
        Each client's fields of its answer besides its model.
    replies
        The answers so far.
    means
        The means of clients that share an instruction, by its identity, sent after the last pass; several if
        the lengths of updates differ much.
    """

    node: Node
    asked: Mapping[int, Any]
    update: cohort.CohortUpdate
    starts: Mapping[int, State]
    fields: dict[int, dict[str, Any]] = field(default_factory=dict)
    replies: dict[int, TrainAnswer] = field(default_factory=dict)
    means: dict[int, list["_Mean"]] = field(default_factory=dict)

    def clients(self, step: str | None = None) -> dict[int, int]:
        """Return each client's row in the pass, of those that take a step and have not failed."""
        rows = self.update.rows().items()
        return {client: row for client, row in rows if step is None or step in self.asked[client].steps}

    def changes(self, rows: Sequence[int], start: State, names: Sequence[str]) -> dict[str, FloatArray]:
        """Compute the changes by training, for rows of the pass that started from one model.

        Returns
        -------
        Trained minus start, float64, shape (rows, *shape) by name.
        """
        return {
            name: self.update.state[name][list(rows)].detach().cpu().numpy().astype(np.float64)
            - start[name].numpy().astype(np.float64)
            for name in names
        }

    def answer(self, client: int, row: int) -> dict[str, Any]:
        """Return the fields of a client's answer besides its model."""
        losses = self.update.losses[row]
        return {
            "client": client,
            "num_examples": int(self.update.num_examples[row]),
            "losses": losses,
            "mean_loss": sum(losses.tolist()) / len(losses),
            **self.fields.get(client, {}),
        }


# -- Steps --------------------------------------------------------------------------------------------------


def _clip(trained: Trained, clients: Mapping[int, int]) -> None:
    """Clip updates before they are used; some clients report whether theirs was short enough."""
    clips = {trained.asked[client].clip for client in trained.update.clients.tolist()}
    if len(clips) > 1:
        raise ValueError(f"clients of one node must have one clip, got {sorted(map(str, clips))}")
    (clip,) = clips
    names = trained.node.trainer.trainable_names
    trained.update, short = cohort.clip_updates(trained.update, trained.starts, names, clip)
    for client, row in clients.items():
        if trained.asked[client].clip_tells:
            trained.fields.setdefault(client, {})["within"] = bool(short[row])


def _project(trained: Trained, clients: Mapping[int, int]) -> None:
    """Project the change of the trained parameters."""
    keys = {client: (id(trained.starts[client]), trained.asked[client].projection) for client in clients}
    for (_, projection), some in grouped(keys).items():
        rows = [clients[client] for client in some]
        names = trained.node.trainer.trainable_names
        changed = trained.changes(rows, trained.starts[some[0]], names)
        values = projection.of(changed)
        squares = sum(np.square(array.reshape(len(rows), -1)).sum(axis=1) for array in changed.values())
        for client, sums, norm in zip(some, values, np.sqrt(squares), strict=True):
            trained.fields.setdefault(client, {})["projected"] = Projected(sums, float(norm))


def _send(trained: Trained, clients: Mapping[int, int]) -> None:
    """Send each client's own model."""
    models = from_stacked(trained.update.state, list(clients.values()))
    for (client, row), model in zip(clients.items(), models, strict=True):
        trained.replies[client] = TrainAnswer(arrays=model, **trained.answer(client, row))


def _mean(trained: Trained, clients: Mapping[int, int]) -> None:
    """Add the clients that share an instruction to a mean, sent instead of their models.

    A mean hides its clients. If the server caps the length of updates, updates whose lengths differ by more
    than that factor go into different means, so that the server can leave out one without the other.
    """
    for first, some in by_question({client: trained.asked[client] for client in clients}):
        means = trained.means.setdefault(id(first), [])
        norms = [1.0] * len(some)
        if first.norm_cap is not None:
            norms = _norms(trained, [clients[client] for client in some], some)
            for client, norm in zip(some, norms, strict=True):
                trained.fields.setdefault(client, {})["update_norm"] = norm
        chosen: dict[int, list[int]] = {}
        for client, norm in zip(some, norms, strict=True):
            chosen.setdefault(_place(means, norm, first), []).append(client)
        for number, those in chosen.items():
            means[number].mean.add(trained.update, set(those))
            means[number].fields |= {client: trained.answer(client, clients[client]) for client in those}


STEPS: Mapping[str, Callable[[Trained, Mapping[int, int]], None]] = {
    "clip": _clip,
    "project": _project,
    "send": _send,
    "mean": _mean,
}
"""Steps of processing updates, in this order; each client takes those in its instruction."""


@dataclass
class _Mean:
    """A mean model, and the other fields of its clients' answers."""

    mean: cohort.ModelMean
    fields: dict[int, dict[str, Any]] = field(default_factory=dict)
    shortest: float = 1.0
    longest: float = 1.0


def _place(means: list[_Mean], norm: float, instruction: Instruction) -> int:
    """Find the mean for a client, whose updates have a similar length; add a new one if there is none."""
    cap = math.inf if instruction.norm_cap is None else instruction.norm_cap
    ends = [(min(each.shortest, norm), max(each.longest, norm)) for each in means]
    number = next((place for place, (least, most) in enumerate(ends) if most <= cap * least), len(means))
    if number == len(means):
        means.append(_Mean(cohort.ModelMean(equal=instruction.equal_weights)))
        ends.append((norm, norm))
    means[number].shortest, means[number].longest = ends[number]
    return number


def _norms(trained: Trained, rows: list[int], clients: list[int]) -> list[float]:
    """Compute the lengths of updates; for trained parameters, only if their projection did not."""
    start, state = trained.starts[clients[0]], trained.update.state
    projected = [trained.fields.get(client, {}).get("projected") for client in clients]
    sketches = [each for each in projected if each is not None]
    if len(sketches) < len(clients):
        return cohort.update_norms(state, start, rows)
    known = set(trained.node.trainer.trainable_names)
    others = {name: tensor for name, tensor in state.items() if name not in known}
    rest = cohort.update_norms(others, start, rows)
    return [math.hypot(each.norm, norm) for each, norm in zip(sketches, rest, strict=True)]


# -- Messages -----------------------------------------------------------------------------------------------


@answers(Instruction)
def train(node: Node, asked: Mapping[int, Instruction]) -> Answers:
    """Train each client and return its model and its losses."""
    errors: dict[int, str] = {}
    replies: dict[int, TrainAnswer] = {}
    means: dict[int, list[_Mean]] = {}
    for update, starts in _passes(node, asked):
        most = [asked[client].most_rows for client in update.clients.tolist()]
        update = replace(update, num_examples=np.minimum(update.num_examples, most))
        trained = Trained(node, asked, update, starts, replies=replies, means=means)
        for name, step in STEPS.items():
            if clients := trained.clients(name):
                step(trained, clients)
        errors |= trained.update.failed
    for each in (each for some in means.values() for each in some):
        model = from_state(each.mean.state())
        replies |= {client: TrainAnswer(arrays=model, **fields) for client, fields in each.fields.items()}
    for client, instruction in asked.items():
        if instruction.pooled and client in replies:
            used = len(instruction.pooled_rows) or node.data.num_clients
            replies[client] = replace(replies[client], pooled=used)
    further = {client: each for client, each in asked.items() if each.arms and client in replies}
    for client, arms in (train_arms(node, further) if further else {}).items():
        replies[client] = replace(replies[client], arms=arms)
    return replies, errors


@answers(UpdateQuestion)
def update(node: Node, asked: Mapping[int, UpdateQuestion]) -> Answers:
    """Train the received model and return only the requested parts of its change."""
    errors: dict[int, str] = {}
    replies: dict[int, Update] = {}
    for update, starts in _passes(node, asked):
        trained = Trained(node, asked, update, starts)
        errors |= update.failed
        _project(trained, trained.clients("project"))
        for client, row in trained.clients().items():
            changed = trained.changes([row], starts[client], asked[client].names)
            changes = {name: array[0] for name, array in changed.items()}
            sketch = trained.fields.get(client, {}).get("projected")
            replies[client] = Update(client, int(update.num_examples[row]), changes, sketch)
    return replies, errors


def _passes(
    node: Node, asked: Mapping[int, Instruction] | Mapping[int, UpdateQuestion]
) -> Iterator[tuple[cohort.CohortUpdate, Mapping[int, State]]]:
    """Train clients with one call per kind of training, for all models together, so that they share passes.

    Yields
    ------
    A pass, and the model that each client started from, by client id; equal models are one object.
    """
    kinds = grouped({client: (each.server_round, each.proximal_mu) for client, each in asked.items()})
    for (server_round, proximal_mu), clients in kinds.items():
        # By model, not by instruction: clients with different instructions may share a model.
        states = states_of({client: asked[client].arrays for client in clients})
        jobs = [_job(node, client, asked[client], states[client]) for client in clients]
        starts = {job.client: job.state for job in jobs}
        for update in node.trainer.train(jobs, server_round, proximal_mu=proximal_mu):
            yield update, starts


def _job(node: Node, client: int, asked: Instruction | UpdateQuestion, state: State) -> cohort.Job:
    if not asked.pooled:
        return cohort.Job(client, node.data.train[client], state)
    training = node.trainer.training
    rows = [node.data.train[other] for other in asked.pooled_rows or range(node.data.num_clients)]
    examples = np.array([len(node.data.train[other]) for other in asked.pooled])
    samples = max(1, cohort.total_seen(examples, training))
    pooled = np.concatenate(rows)
    return cohort.Job(client, pooled, state, cohort.steps_to_see(samples, max(1, len(pooled)), training))
