"""Measure models on the clients' own rows, and describe these rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clients.app import Answers, answers, by_question, together
from fedclust.clients.node import Node
from fedclust.messages.description import (
    Description,
    DescriptionQuestion,
    Encoder,
    EncoderQuestion,
    Names,
    Prototypes,
    PrototypesQuestion,
    Subspaces,
    SubspacesQuestion,
)
from fedclust.messages.evaluation import (
    Confusion,
    ConfusionQuestion,
    Evaluation,
    Losses,
    LossesQuestion,
    PersonalAnswer,
    PersonalQuestion,
    Predictions,
    PredictionsQuestion,
    ProofAnswer,
    ProofQuestion,
)
from fedclust.messages.models import to_state
from fedclust.messages.training import LOSS, Instruction
from fedclust.models.class_prototypes import cached_prototypes, class_subspaces, pooled, withheld
from fedclust.personal.layers import FINETUNE, NONE, PRIOR, Finetune
from fedclust.proof import brier_scores, difference
from fedclust.settings.allowed import NotAllowed
from fedclust.training.cohort import Job
from fedclust.training.evaluation import Scores
from fedclust.typing import FloatArray, IntArray, State


def _states(models: Mapping[int, ArrayRecord]) -> dict[int, State]:
    """Convert the model of each client; clients that were sent one share its state, and so their passes."""
    distinct = {id(model): model for model in models.values()}
    states = {key: to_state(model) for key, model in distinct.items()}
    return {client: states[id(model)] for client, model in models.items()}


def _tests(
    node: Node, question: Instruction | ConfusionQuestion | PredictionsQuestion, clients: Iterable[int]
) -> list[Job]:
    state = to_state(question.arrays)
    return [Job(client, node.data.test[client], state) for client in clients]


@answers("evaluate")
def evaluate(node: Node, asked: Mapping[int, Instruction]) -> Answers:
    """Evaluate each client's received model on its own test part."""
    jobs: dict[bool, list[Job]] = {}
    for instruction, clients in by_question(asked):
        jobs.setdefault(instruction.full, []).extend(_tests(node, instruction, clients))
    found: dict[int, Evaluation] = {}
    errors: dict[int, str] = {}
    for full, batch in jobs.items():
        measured, failed = _scores(node, batch, full)
        found |= {
            client: Evaluation(client, each.figures, each.outcomes) for client, each in measured.items()
        }
        errors |= failed
    return found, errors


def _scores(
    node: Node, jobs: Sequence[Job], full: bool, own: bool = True
) -> tuple[dict[int, Scores], dict[int, str]]:
    by_client = {job.client: job for job in jobs}
    return together(
        list(by_client),
        lambda clients: node.trainer.evaluate([by_client[each] for each in clients], full=full, own=own),
    )


@answers(LossesQuestion)
def losses(node: Node, asked: Mapping[int, LossesQuestion]) -> Answers:
    """Return how well each received model fits each client's whole training part.

    That is its mean loss, and the number of rows on which no other model's is smaller; of models that tie on
    a row, the first counts.
    """
    found: dict[int, Losses] = {}
    errors: dict[int, str] = {}
    for question, clients in by_question(asked):
        states = [to_state(model) for model in question.models]

        def by_row(some: list[int], states: Sequence[State] = states) -> list[FloatArray]:
            """Return the loss of each model on each training row of clients, shape (models, rows) each."""
            # One job list: every model goes over the rows of all clients together.
            jobs = [Job(client, node.data.train[client], state) for client in some for state in states]
            measured = node.trainer.losses(jobs)
            return [
                np.stack(measured[first : first + len(states)]) for first in range(0, len(jobs), len(states))
            ]

        measured, failed = together(clients, by_row)
        errors |= failed
        for client, rows in measured.items():
            wins = np.bincount(np.nan_to_num(rows, nan=np.inf).argmin(axis=0), minlength=len(states))
            means = rows.mean(axis=1) if rows.shape[1] else np.full(len(states), np.nan)
            found[client] = Losses(means, wins)
    return found, errors


@answers(ConfusionQuestion)
def confusion(node: Node, asked: Mapping[int, ConfusionQuestion]) -> Answers:
    """Count labels and predictions of each client's received model on its own test part."""
    found: dict[int, Confusion] = {}
    for question, clients in by_question(asked):
        counts = node.trainer.confusions(_tests(node, question, clients))
        found |= {client: Confusion(each) for client, each in zip(clients, counts, strict=True)}
    return found, {}


_REPLY = "reply"  # what a simulated node's configuration says


@answers(PredictionsQuestion)
def predictions(node: Node, asked: Mapping[int, PredictionsQuestion]) -> Answers:
    """Predict each client's test rows with the model it is sent.

    A deployed node writes them into the folder that its own configuration names, ``predictions='/folder'``,
    and replies only how many there are; without a folder, it refuses.
    """
    where = str(node.config.get("predictions", ""))
    if not where:
        reason = "no folder for predictions on this node: --node-config \"predictions='/folder'\" names one"
        return {}, dict.fromkeys(asked, reason)
    from scipy.special import softmax  # few runs ask for predictions

    found: dict[int, Predictions] = {}
    errors: dict[int, str] = {}
    for question, clients in by_question(asked):
        jobs = _tests(node, question, clients)
        for job, (logits, labels) in zip(jobs, node.trainer.logits(jobs), strict=True):
            client, rows = job.client, job.rows
            chances = softmax(logits.astype(np.float32), axis=-1)
            made = Predictions(len(rows), rows, labels, chances)
            if where == _REPLY:
                found[client] = made
                continue
            name = None if node.data.client_names is None else node.data.client_names[client]
            try:
                folder = Path(where) / f"run-{node.run}"
                folder.mkdir(parents=True, exist_ok=True)
                table = made.table(client, name, node.data.class_names)
                table.to_parquet(folder / f"client-{client}.parquet", index=False)
            except OSError as error:
                errors[client] = f"predictions cannot be written: {error}"
            else:
                found[client] = Predictions(len(rows))
    return found, errors


def _held_out(node: Node) -> Sequence[IntArray]:
    return node.data.validation or (np.zeros(0, dtype=np.int64),) * node.data.num_clients


@answers(ProofQuestion)
def proof(node: Node, asked: Mapping[int, ProofQuestion]) -> Answers:
    """Return mean, variance and number of the differences of two models' Brier scores, and nothing else."""
    held_out = _held_out(node)
    rows = {
        client: (node.data.train if question.on_training_rows else held_out)[client]
        for client, question in asked.items()
    }
    errors: dict[int, str] = {}

    def scores(side: str) -> dict[int, FloatArray]:
        """Score each client's rows; a diverged model has no probabilities."""
        left = {client: question for client, question in asked.items() if client not in errors}
        states = _states({client: getattr(each, f"model_{side}") for client, each in left.items()})

        def work(clients: list[int]) -> list[FloatArray]:
            jobs = [Job(client, rows[client], states[client]) for client in clients]
            return [
                brier_scores(logits, labels, getattr(left[job.client], f"shift_{side}"))
                for job, (logits, labels) in zip(jobs, node.trainer.logits(jobs), strict=True)
            ]

        found, failed = together(list(left), work)
        errors.update(failed)
        return found

    first, second = scores("a"), scores("b")
    found = {client: difference(first[client], second[client]) for client in asked if client not in errors}
    return {
        client: ProofAnswer(each.mean, each.variance, each.count) for client, each in found.items()
    }, errors


# -- Personal layers ----------------------------------------------------------------------------------------


@answers(PersonalQuestion)
def personal(node: Node, asked: Mapping[int, PersonalQuestion]) -> Answers:
    """Measure each client's test part and validation rows with each personal layer.

    Fine-tuned models stay on the node; they are gone when it has answered.
    """
    served = _states({client: question.model for client, question in asked.items()})
    trial = _Trial(node)
    trial.measure(NONE, served, test=False)
    corrected = {client: question.shift for client, question in asked.items() if question.shift is not None}
    trial.measure(PRIOR, {client: served[client] for client in corrected}, corrected)
    kinds: dict[tuple[Finetune, int], list[int]] = {}
    for client, question in asked.items():
        if (finetune := question.finetune) is not None:
            kinds.setdefault((finetune, question.server_round), []).append(client)
    for (finetune, server_round), clients in kinds.items():
        trial.finetune(finetune, server_round, {client: served[client] for client in clients})
    return trial.answers(asked)


@dataclass
class _Trial:
    """What a node's clients measured so far."""

    node: Node
    tests: dict[int, dict[str, Scores]] = field(default_factory=dict)
    losses: dict[int, dict[str, float]] = field(default_factory=dict)
    failed: dict[int, dict[str, str]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def measure(
        self,
        layer: str,
        states: Mapping[int, State],
        shifts: Mapping[int, FloatArray] | None = None,
        *,
        test: bool = True,
    ) -> None:
        """Measure clients with a layer, each under its model and with what is added to its logits."""
        data, shifts = self.node.data, shifts or {}

        def jobs(part: Sequence[IntArray]) -> list[Job]:
            return [
                Job(client, part[client], state, shift=shifts.get(client))
                for client, state in states.items()
                if client not in self.errors
            ]

        held_out = jobs(_held_out(self.node))
        validated, failed = _scores(self.node, [job for job in held_out if len(job.rows)], False, own=False)
        self.errors |= failed
        for client, each in validated.items():
            self.losses.setdefault(client, {})[layer] = each.figures[LOSS]
        if test:
            tested, failed = _scores(self.node, jobs(data.test), True)
            self.errors |= failed
            for client, each in tested.items():
                self.tests.setdefault(client, {})[layer] = each

    def finetune(self, how: Finetune, server_round: int, states: Mapping[int, State]) -> None:
        """Train clients from their models, and measure them with what comes of it."""
        node = self.node
        jobs = [
            Job(client, node.data.train[client], state)
            for client, state in states.items()
            if client not in self.errors
        ]
        for update in node.trainer.finetuner(how).train(jobs, server_round, proximal_mu=0.0):
            for client, reason in update.failed.items():
                self.failed.setdefault(client, {})[FINETUNE] = reason
            self.measure(
                FINETUNE,
                {
                    client: {name: stacked[place] for name, stacked in update.state.items()}
                    for place, client in enumerate(update.clients.tolist())
                    if client not in update.failed
                },
            )

    def answers(self, asked: Mapping[int, PersonalQuestion]) -> Answers:
        """Return what each client measured."""
        left = [client for client in asked if client not in self.errors]
        return {
            client: PersonalAnswer(
                client,
                {layer: each.figures for layer, each in self.tests.get(client, {}).items()},
                {
                    layer: each.outcomes
                    for layer, each in self.tests.get(client, {}).items()
                    if each.outcomes is not None
                },
                self.losses.get(client, {}),
                self.failed.get(client, {}),
            )
            for client in left
        }, self.errors


# -- The rows themselves ------------------------------------------------------------------------------------


@answers(DescriptionQuestion)
def describe(node: Node, asked: Mapping[int, DescriptionQuestion]) -> Answers:
    """Return each client's label counts, known group and names."""
    data = node.data
    train, test = data.label_counts("train"), data.label_counts("test")
    names = Names(data.class_names, data.left_out)
    return {
        client: Description.of(
            train[client],
            test[client],
            question.tells,
            known_group=None if data.groups is None else int(data.groups[client]),
            mean=data.mean,
            std=data.std,
            name=None if data.client_names is None else data.client_names[client],
            names=names,
            num_validation=len(data.validation[client]) if data.validation else 0,
        )
        for client, question in asked.items()
    }, {}


@answers(EncoderQuestion)
def encoder(node: Node, asked: Mapping[int, EncoderQuestion]) -> Answers:
    """Return how the data of this node were encoded, such as columns, categories and means."""
    return dict.fromkeys(asked, Encoder(node.data.input_encoder())), {}


@answers(PrototypesQuestion)
def prototypes(node: Node, asked: Mapping[int, PrototypesQuestion]) -> Answers:
    """Return each client's class prototypes, with their numbers of examples and the scatter of these."""
    found: dict[int, Prototypes] = {}
    errors: dict[int, str] = {}
    for question in dict.fromkeys(asked.values()):
        clients = [client for client in sorted(asked) if asked[client] == question]
        try:
            frozen = node.encoder_for(question.input, question.vocabulary_size)
        except NotAllowed as error:
            errors |= dict.fromkeys(clients, str(error))
            continue
        told = cached_prototypes(frozen, node.data, clients, device=node.device, max_norm=question.max_norm)
        told = withheld(pooled(told) if question.pooled else told, question.min_examples)
        for client, *values in zip(clients, *told, strict=True):
            found[client] = Prototypes(*values)
    return found, errors


@answers(SubspacesQuestion)
def subspaces(node: Node, asked: Mapping[int, SubspacesQuestion]) -> Answers:
    """Return the first left singular vectors of each class of each client's training part."""
    found: dict[int, Subspaces] = {}
    errors: dict[int, str] = {}
    data = node.data
    for client, question in asked.items():
        try:
            bases = class_subspaces(
                node.encoder_for(question.input),
                data.inputs,
                data.labels,
                data.train[client],
                data.num_classes,
                question.vectors,
                mean=data.mean,
                std=data.std,
                device=node.device,
            )
        # numpy raises LinAlgError, a ValueError, where examples are not finite.
        except ValueError as error:
            errors[client] = str(error)
        else:
            found[client] = Subspaces(bases)
    return found, errors
