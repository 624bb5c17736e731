"""Train the clients of a message."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedclust.clients.app import Answers, app, read_shared, respond
from fedclust.clients.node import Node
from fedclust.messages import (
    Instruction,
    Projected,
    from_stacked,
    from_state,
    pooled_content,
    to_state,
    train_content,
    within_content,
)
from fedclust.messages.projecting import Projection
from fedclust.training import CohortUpdate, Job, ModelMean
from fedclust.training.batches import steps_to_see, total_seen
from fedclust.training.cohort import clip_updates, update_norms
from fedclust.typing import FloatArray, State

__all__ = ["changes", "passes", "projected", "train"]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train each client that the message addresses and return its model and its losses."""
    return respond(message, context, _train)


def _train(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    instructions = {
        client: instruction for instruction, clients in read_shared(contents) for client in clients
    }
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    means: dict[int, _Means] = {}
    short: dict[int, bool] = {}
    for trained, starts in passes(node, instructions):
        update, within = _clipped(node, trained, starts, instructions)
        short.update(within)
        errors.update(update.failed)
        _collect(node, update, instructions, starts, means, answers)
    for shared in means.values():
        answers.update(shared.answers())
    for client in short.keys() & answers.keys():
        answers[client] = within_content(answers[client], short[client])
    for client in answers:
        if instructions[client].pooled:
            used = len(instructions[client].pooled_rows) or node.data.num_clients
            answers[client] = pooled_content(answers[client], used)
    return answers, errors


def passes(
    node: Node, instructions: Mapping[int, Instruction]
) -> Iterator[tuple[CohortUpdate, Mapping[int, State]]]:
    """Train clients; one call per kind of training, for all models together, so that they share passes.

    Yields
    ------
    A pass, and the model that each client started from, by client id; the same object if it is the same one.
    """
    kinds: dict[tuple[int, float | None], list[int]] = {}
    for client, instruction in instructions.items():
        kinds.setdefault((instruction.server_round, instruction.proximal_mu), []).append(client)
    for (server_round, proximal_mu), clients in kinds.items():
        jobs = _jobs(node, {client: instructions[client] for client in clients})
        starts = {job.client: job.state for job in jobs}
        for update in node.trainer.train(jobs, server_round, proximal_mu=proximal_mu):
            yield update, starts


def changes(
    update: CohortUpdate, positions: Sequence[int], start: State, names: Sequence[str]
) -> dict[str, FloatArray]:
    """Compute the change by training, for clients of a pass that started from one model.

    Parameters
    ----------
    update
        The pass.
    positions
        Rows of the clients in it.
    start
        The model that they started from.
    names
        Arrays of the model.

    Returns
    -------
    Trained minus start, float64, shape (positions, *shape) by name.
    """
    return {
        name: update.state[name][list(positions)].detach().cpu().numpy().astype(np.float64)
        - start[name].numpy().astype(np.float64)
        for name in names
    }


def projected(
    node: Node,
    update: CohortUpdate,
    instructions: Mapping[int, Instruction],
    starts: Mapping[int, State],
) -> dict[int, Projected]:
    """Project the change of the trained parameters, for clients that were asked for it."""
    asked: dict[tuple[int, Projection], list[int]] = {}
    for position, client in enumerate(update.clients.tolist()):
        projection = instructions[client].projection
        if client not in update.failed and projection is not None:
            asked.setdefault((id(starts[client]), projection), []).append(position)
    found: dict[int, Projected] = {}
    for (_, projection), positions in asked.items():
        start = starts[int(update.clients[positions[0]])]
        changed = changes(update, positions, start, node.trainer.trainable_names)
        values = projection.of(changed)
        squares = sum(np.square(array.reshape(len(positions), -1)).sum(axis=1) for array in changed.values())
        norms = np.sqrt(squares)
        for row, position in enumerate(positions):
            found[int(update.clients[position])] = Projected(values[row], float(norms[row]))
    return found


def _clipped(
    node: Node,
    update: CohortUpdate,
    starts: Mapping[int, State],
    instructions: Mapping[int, Instruction],
) -> tuple[CohortUpdate, dict[int, bool]]:
    """Clip the updates of a pass where the server asks for it, before anything is made of them.

    Returns
    -------
    The pass, and by client whether its update was short enough, for those that are to say so.

    Raises
    ------
    ValueError
        If clients of one node are to clip to different lengths.
    """
    clients = update.clients.tolist()
    asked = {instructions[client].clip for client in clients}
    if len(asked) > 1:
        raise ValueError(f"clients of one node must have one clip, got {sorted(map(str, asked))}")
    (clip,) = asked
    if clip is None:
        return update, {}
    clipped, short = clip_updates(update, starts, node.trainer.trainable_names, clip)
    told = dict(zip(clients, short.tolist(), strict=True))
    return clipped, {client: told[client] for client in clients if instructions[client].clip_tells}


def _norms(
    node: Node,
    update: CohortUpdate,
    positions: Sequence[int],
    start: State,
    sketches: Mapping[int, Projected],
) -> list[float]:
    """Compute the lengths of updates; of trained parameters, only where their projection did not."""
    clients = [int(update.clients[position]) for position in positions]
    if not all(client in sketches for client in clients):
        return update_norms(update.state, start, positions)
    trained = set(node.trainer.trainable_names)
    others = {name: tensor for name, tensor in update.state.items() if name not in trained}
    rest = update_norms(others, start, positions)
    return [math.hypot(sketches[client].norm, norm) for client, norm in zip(clients, rest, strict=True)]


def _jobs(node: Node, instructions: Mapping[int, Instruction]) -> list[Job]:
    # By model, not by instruction: clients that answer differently may start from the same one.
    distinct = {id(instruction.arrays): instruction.arrays for instruction in instructions.values()}
    states = {key: to_state(arrays) for key, arrays in distinct.items()}
    return [
        _job(node, client, instruction, states[id(instruction.arrays)])
        for client, instruction in instructions.items()
    ]


def _job(node: Node, client: int, instruction: Instruction, state: State) -> Job:
    if not instruction.pooled:
        return Job(client, node.data.train[client], state)
    pooled = instruction.pooled_rows or range(node.data.num_clients)
    rows = np.concatenate([node.data.train[other] for other in pooled])
    training = node.trainer.training
    examples = np.array([len(node.data.train[other]) for other in instruction.pooled])
    samples = max(1, total_seen(examples, training))
    return Job(client, rows, state, steps_to_see(samples, max(1, len(rows)), training))


class _Shared:
    """Collects the answers of clients that share a mean model."""

    def __init__(self, *, equal: bool) -> None:
        self.mean = ModelMean(equal=equal)
        self.reported: dict[int, tuple[int, FloatArray, Projected | None, float | None]] = {}
        self.shortest, self.longest = np.inf, 0.0

    def takes(self, norm: float, cap: float) -> bool:
        """Check whether a client's update is about as long as those of the others."""
        return max(self.longest, norm) <= cap * min(self.shortest, norm)

    def add(
        self,
        update: CohortUpdate,
        norms: Mapping[int, float | None],
        sketches: Mapping[int, Projected],
    ) -> None:
        """Add some clients of a pass, by position, with the lengths of their updates if asked for."""
        self.mean.add(update, {int(update.clients[position]) for position in norms})
        for position, norm in norms.items():
            client, number = int(update.clients[position]), int(update.num_examples[position])
            self.reported[client] = number, update.losses[position], sketches.get(client), norm

    def answers(self) -> dict[int, RecordDict]:
        arrays: ArrayRecord = from_state(self.mean.state(exact=True))
        return {client: train_content(arrays, *reported) for client, reported in self.reported.items()}


class _Means:
    """The means of clients that got one instruction, a mean for each length of update.

    A mean hides whoever is in it. Where the server caps the length of updates, one that is so many times as
    long as another does not go into the same mean, so that the server can leave out one without the other.
    """

    def __init__(self, *, equal: bool) -> None:
        self._equal = equal
        self._means: list[_Shared] = []

    def add(
        self,
        update: CohortUpdate,
        norms: Mapping[int, float | None],
        sketches: Mapping[int, Projected],
        cap: float | None,
    ) -> None:
        """Add some clients of a pass, by position; without a cap, their norms are None."""
        chosen: dict[int, dict[int, float | None]] = {}
        for position, norm in norms.items():
            chosen.setdefault(self._place(norm, cap), {})[position] = norm
        for number, some in chosen.items():
            self._means[number].add(update, some, sketches)

    def _place(self, norm: float | None, cap: float | None) -> int:
        """Find the mean that a client goes into; make one if it goes into none."""
        if norm is None or cap is None:
            self._means = self._means or [_Shared(equal=self._equal)]
            return 0
        places = [number for number, mean in enumerate(self._means) if mean.takes(norm, cap)]
        number = places[0] if places else len(self._means)
        if not places:
            self._means.append(_Shared(equal=self._equal))
        mean = self._means[number]
        mean.shortest, mean.longest = min(mean.shortest, norm), max(mean.longest, norm)
        return number

    def answers(self) -> dict[int, RecordDict]:
        answers: dict[int, RecordDict] = {}
        for mean in self._means:
            answers.update(mean.answers())
        return answers


def _collect(
    node: Node,
    update: CohortUpdate,
    instructions: Mapping[int, Instruction],
    starts: Mapping[int, State],
    means: dict[int, _Means],
    answers: dict[int, RecordDict],
) -> None:
    """Collect a pass's answers: own models at once, shared means after the last pass."""
    sharing: dict[int, list[int]] = {}
    sketches, own = projected(node, update, instructions, starts), []
    for position, client in enumerate(update.clients.tolist()):
        if client in update.failed:
            continue
        instruction = instructions[client]
        if instruction.mean_reply:
            sharing.setdefault(id(instruction), []).append(position)
        else:
            own.append(position)
    for position, model in zip(own, from_stacked(update.state, own), strict=True):
        client = int(update.clients[position])
        answers[client] = train_content(
            model, int(update.num_examples[position]), update.losses[position], sketches.get(client)
        )
    for key, positions in sharing.items():
        first = instructions[int(update.clients[positions[0]])]
        shared = means.setdefault(key, _Means(equal=first.equal_weights))
        norms: Sequence[float | None] = [None] * len(positions)
        if first.norm_cap is not None:
            norms = _norms(node, update, positions, starts[int(update.clients[positions[0]])], sketches)
        shared.add(update, dict(zip(positions, norms, strict=True)), sketches, first.norm_cap)
