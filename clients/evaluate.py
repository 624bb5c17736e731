"""Evaluate models on the clients' own rows, and describe these rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from safetensors.torch import save

from fedclust.clients.app import answers
from fedclust.clients.node import Answers, Node, grouped, measured, one_by_one, states_of, together
from fedclust.messages import description as describing, evaluation as measuring
from fedclust.messages.models import to_state
from fedclust.messages.training import LOSS, NUM_EXAMPLES
from fedclust.models.class_prototypes import cached_prototypes, class_subspaces, pooled
from fedclust.personal.layers import FINETUNE, MODELS, NONE, PRIOR, Finetune, choose, weights_file
from fedclust.proof.figure import Rows
from fedclust.proof.paired import evidence
from fedclust.settings.allowed import NotAllowed
from fedclust.support.reasons import RAISED, reason_of
from fedclust.support.rng import generator
from fedclust.training.cohort import Job
from fedclust.training.patients import by_patient
from fedclust.typing import FloatArray, IntArray, State

Shifts = Mapping[int, FloatArray]


def _tests(node: Node, models: Mapping[int, ArrayRecord], *, serving: bool = True) -> dict[int, Job]:
    """Return the job of each client to measure its model on its test part."""
    return {
        client: Job(client, node.data.test[client], node.whole(client, state, serving=serving))
        for client, state in states_of(models).items()
    }


def corrections(
    node: Node, sent: Mapping[int, FloatArray], states: Mapping[int, State]
) -> tuple[Shifts, dict[int, str]]:
    """Return what is added to the outputs of each client's model, and the errors of clients.

    Parameters
    ----------
    node
        The node.
    sent
        The correction of each client that the server computed from label counts. Where clients fit their own,
        only those do for whom it has numbers other than 0.
    states
        The model of each.
    """
    target = node.data.target
    if not target.fits_correction:
        return sent, {}
    nothing = np.zeros(node.data.num_outputs)
    jobs = {
        client: Job(client, node.data.train[client], states[client])
        for client, each in sent.items()
        if np.any(each)
    }
    fitted, errors = measured(jobs, node.trainer.logits)
    made = {client: target.correction(*each) for client, each in fitted.items()}
    return {client: made.get(client, nothing) for client in sent if client not in errors}, errors


def _held_out(node: Node) -> Sequence[IntArray]:
    return node.data.validation or (np.zeros(0, dtype=np.int64),) * node.data.num_clients


@answers(measuring.EvaluateQuestion)
def evaluate(node: Node, asked: Mapping[int, measuring.EvaluateQuestion]) -> Answers:
    """Evaluate each client's received model on its own test part."""
    jobs = _tests(node, {client: question.arrays for client, question in asked.items()})
    noised = {client: each for client, each in asked.items() if each.noise is not None}
    found, errors = _noised(node, noised, jobs) if noised else ({}, {})
    exact = {client: each.full for client, each in asked.items() if client not in noised}
    for full, clients in grouped(exact).items():
        scores, failed = measured(
            {client: jobs[client] for client in clients}, partial(node.trainer.evaluate, full=full)
        )
        errors |= failed
        for client, each in scores.items():
            found[client] = measuring.Evaluation(client, each.figures, each.outcomes)
    return found, errors


def _outputs(
    node: Node, asked: Mapping[int, measuring.EvaluateQuestion], jobs: list[Job]
) -> list[tuple[IntArray, FloatArray, IntArray]]:
    """Return the rows of each job, and outputs and labels; with secret noise, of one patient at a time.

    A network may mix the rows of a batch, and one patient would then change what is right of all others.
    """
    if any(asked[job.client].published_noise for job in jobs):
        return [(job.rows, *each) for job, each in zip(jobs, node.trainer.logits(jobs), strict=True)]
    made = []
    for job in jobs:
        parts = by_patient(job.rows, node.data.persons) or [job.rows]
        each = [(rows, *node.trainer.logits([replace(job, rows=rows)])[0]) for rows in parts]
        rows, logits, labels = map(np.concatenate, zip(*each, strict=True))
        made.append((rows, logits, labels))
    return made


def _noised(
    node: Node, asked: Mapping[int, measuring.EvaluateQuestion], jobs: Mapping[int, Job]
) -> tuple[dict[int, measuring.Evaluation], dict[int, str]]:
    """Measure only the mean accuracy of each client's test patients, with noise."""
    answered, errors = measured({client: jobs[client] for client in asked}, partial(_outputs, node, asked))
    found = {}
    for client, (rows, logits, labels) in answered.items():
        question = asked[client]
        blank = dict.fromkeys((LOSS, "accuracy", "balanced-accuracy"), math.nan)
        # A row with outputs that are not finite is wrong and no error, which would show one patient.
        finite = np.isfinite(logits)
        right = node.data.target.hits(np.where(finite, logits, 0.0), labels) if len(rows) else rows
        right = right * finite.all(axis=tuple(range(1, finite.ndim)))
        owners = rows if node.data.persons is None else node.data.persons[rows]
        _, of, counts = np.unique(owners, return_inverse=True, return_counts=True)
        draw = node.noise(published=question.published_noise)
        noise = draw("accuracy", question.server_round, client, 1)[0] * (question.noise or 0.0)
        accuracy = (np.sum(np.bincount(of, right) / counts) + noise) / len(counts) if len(rows) else math.nan
        figures = {NUM_EXAMPLES: float(len(counts)), "accuracy": float(np.clip(accuracy, 0, 1))}
        found[client] = measuring.Evaluation(client, blank | figures)
    return found, errors


@answers(measuring.LossesQuestion)
@one_by_one
def losses(node: Node, question: measuring.LossesQuestion, clients: list[int]) -> Answers:
    """Return how well each received model fits each client's whole training part.

    This is the mean loss of each model, and the number of rows on which its loss is the smallest; of models
    that tie on a row, the first counts. A model that has diverged is the last choice.
    """
    states = [to_state(model) for model in question.models]
    number = len(states)

    def by_row(some: list[int]) -> list[FloatArray]:
        """Return the loss of each model on each training row, shape (models, rows) per client."""
        # One job list: every model goes over the rows of all clients together.
        jobs = [
            Job(client, node.data.train[client], node.whole(client, state, serving=False))
            for client in some
            for state in states
        ]
        found = node.trainer.losses(jobs)
        return [np.stack(found[first : first + number]) for first in range(0, len(jobs), number)]

    answered, errors = together(clients, by_row)
    fits = {}
    for client, rows in answered.items():
        wins = np.bincount(np.nan_to_num(rows, nan=np.inf).argmin(axis=0), minlength=number)
        means = rows.mean(axis=1) if rows.shape[1] else np.full(number, np.nan)
        fits[client] = measuring.Losses(measuring.diverged_last(means), wins)
    return fits, errors


@answers(measuring.ConfusionQuestion)
def confusion(node: Node, asked: Mapping[int, measuring.ConfusionQuestion]) -> Answers:
    """Count labels and predictions of each client's received model on its own test part."""
    jobs = _tests(node, {client: question.arrays for client, question in asked.items()}, serving=False)
    counts, errors = measured(jobs, node.trainer.confusions)
    return {client: measuring.Confusion(each) for client, each in counts.items()}, errors


_REPLY = "reply"  # value of a simulated node's `predictions`


@answers(measuring.PredictionsQuestion)
def predictions(node: Node, asked: Mapping[int, measuring.PredictionsQuestion]) -> Answers:
    """Predict each client's test rows with its received model.

    A deployed node writes predictions into the folder in its own configuration, ``predictions='/folder'``,
    and replies only with their number; without a folder, it refuses.
    """
    where = str(node.config.get("predictions", ""))
    if not where:
        reason = "this node has no folder for predictions: --node-config \"predictions='/folder'\" names one"
        return {}, dict.fromkeys(asked, reason)
    found, target = {}, node.data.target
    classes = node.data.class_names or tuple(map(str, range(node.data.num_classes)))
    jobs = _tests(node, {client: question.arrays for client, question in asked.items()})
    predicted, errors = measured(jobs, node.trainer.logits)
    for client, (outputs, truth) in predicted.items():
        rows, numbers = node.data.test[client], node.data.source_rows
        rows = rows if numbers is None else numbers[rows]
        number, values = len(rows), target.table(torch.from_numpy(outputs.astype(np.float32)), classes)[1]
        made = found[client] = measuring.Predictions(number, rows, truth.astype(float), values.numpy())
        if where == _REPLY:
            continue
        found[client] = measuring.Predictions(number)
        name = None if node.data.client_names is None else node.data.client_names[client]
        try:
            folder = Path(where) / f"run-{node.run}"
            folder.mkdir(parents=True, exist_ok=True)
            table = made.table(client, name, target, classes)
            table.to_parquet(folder / f"client-{client}.parquet", index=False)
        except OSError as error:
            errors[client] = f"predictions cannot be written: {reason_of(error)}"
    return {client: each for client, each in found.items() if client not in errors}, errors


def _counted(node: Node, part: Sequence[IntArray], client: int, most: int) -> IntArray:
    """Return the rows of a client that count: the first ones, in an order that is drawn once for a run."""
    rows = part[client]
    if len(rows) <= most:
        return rows
    return rows[generator(node.seed, "votes", client).permutation(len(rows))[:most]]


def _compared(
    node: Node,
    asked: Mapping[int, measuring.Pair],
    rows: Mapping[int, IntArray],
    measure: Callable[[int, FloatArray, Any, FloatArray], FloatArray],
) -> tuple[dict[int, tuple[FloatArray, FloatArray]], dict[int, str]]:
    """Measure both models on rows of each client; a diverged model has no probabilities.

    Parameters
    ----------
    node
        The node.
    asked
        The models of each client.
    rows
        The rows of each.
    measure
        Measures a client's outputs, their rows' values and the correction.

    Returns
    -------
    What was measured of A and of B by each client, and why the others could not.
    """
    errors: dict[int, str] = {}

    def scores(side: str) -> dict[int, FloatArray]:
        left = {client: question for client, question in asked.items() if client not in errors}
        states = states_of({client: getattr(each, f"model_{side}") for client, each in left.items()})
        how: dict[str, Any] = {"serving": len(node.keeps) > 1, "side": "ab".index(side)}
        states = {client: node.whole(client, state, **how) for client, state in states.items()}
        shifts, failed = corrections(
            node, {client: getattr(each, f"shift_{side}") for client, each in left.items()}, states
        )
        errors.update(failed)

        def work(clients: list[int]) -> list[FloatArray]:
            jobs = [Job(each, rows[each], states[each]) for each in clients]
            return [
                measure(job.client, *each, shifts[job.client])
                for job, each in zip(jobs, node.trainer.logits(jobs), strict=True)
            ]

        found, failed = together([*shifts], work)
        errors.update(failed)
        return found

    first, second = scores("a"), scores("b")
    return {client: (first[client], second[client]) for client in second}, errors


@answers(measuring.ProofQuestion)
def proof(node: Node, asked: Mapping[int, measuring.ProofQuestion]) -> Answers:
    """Return the sums and bets of the differences of two models' Brier scores, and nothing else."""
    parts = {True: node.data.train, False: _held_out(node)}
    rows = {
        client: _counted(node, parts[each.on_training_rows], client, each.rows)
        for client, each in asked.items()
    }
    found, errors = _compared(node, asked, rows, lambda _, *each: node.data.target.scores(*each))
    return {
        client: measuring.ProofAnswer.of(evidence(first - second, [asked[client].margin]))
        for client, (first, second) in found.items()
    }, errors


@answers(measuring.AloneQuestion)
def alone(node: Node, asked: Mapping[int, measuring.AloneQuestion]) -> Answers:
    """Return the same of the received model A and a model that the client trains alone, from B."""
    starts = states_of({client: each.model_b for client, each in asked.items()})
    starts = {client: {**node.trainer.initial, **each} for client, each in starts.items()}
    served = dict(states_of({client: each.model_a for client, each in asked.items()}))
    served = {client: node.whole(client, each) for client, each in served.items()}
    errors: dict[int, str] = {}
    tuned = {client: (how, each.server_round) for client, each in asked.items() if (how := each.finetune)}
    for (how, server_round), clients in grouped(tuned).items():
        jobs = [Job(client, node.data.train[client], served[client]) for client in clients]
        for update in node.trainer.finetuner(how).train(jobs, server_round, proximal_mu=0.0):
            errors |= update.failed
            served |= update.models()
    own: dict[int, State] = {}
    for epochs in {each.epochs for each in asked.values()}:
        some = [client for client, each in asked.items() if each.epochs == epochs]
        jobs = [Job(client, node.data.train[client], starts[client]) for client in some]
        for update in node.trainer.finetuner(Finetune(epochs)).train(jobs, 1, proximal_mu=0.0):
            errors |= update.failed
            own |= update.models()
    answered, target = {}, node.data.target
    for client in (each for each in own if each not in errors):
        rows = _counted(node, _held_out(node), client, asked[client].rows)
        pair = [Job(client, rows, each) for each in (served[client], own[client])]
        shift = asked[client].shift_a
        try:
            (first, values), (second, _) = node.trainer.logits(pair)
            gains = target.scores(first, values, shift if len(shift) else None) - target.scores(
                second, values
            )
        except RAISED as error:  # also a model that has diverged, which has no probabilities
            errors[client] = reason_of(error)
        else:
            answered[client] = measuring.ProofAnswer.of(evidence(gains, [asked[client].margin]))
    return answered, errors


@answers(measuring.FigureQuestion)
def figure(node: Node, asked: Mapping[int, measuring.FigureQuestion]) -> Answers:
    """Return how well two models predict each client's test rows, and its class shares, added up."""
    rows = {client: _counted(node, node.data.test, client, each.rows) for client, each in asked.items()}
    target, truth = node.data.target, node.data.truth
    shares = {
        client: target.without_inputs(truth[node.data.train[client]].numpy(), node.data.num_classes)
        for client in asked
    }

    def measure(client: int, outputs: FloatArray, values: Any, shift: FloatArray) -> FloatArray:
        """Return scores, hits, and scores of the client's class shares, shape (3, rows)."""
        by_shares = target.scores(np.zeros(outputs.shape), values, shares[client])
        return np.stack(
            [target.scores(outputs, values, shift), target.hits(outputs, values, shift), by_shares]
        )

    found, errors = _compared(node, asked, rows, measure)
    answered = {}
    for client, (first, second) in found.items():
        brier, right, by_shares = np.stack([first, second], axis=1)
        compared = Rows.of(brier, by_shares[0], right, asked[client].bets)
        answered[client] = measuring.FigureAnswer.of(compared)
    return answered, errors


@answers(measuring.PersonalQuestion)
def personal(node: Node, asked: Mapping[int, measuring.PersonalQuestion]) -> Answers:
    """Measure each client's test part and validation rows with each personal layer.

    Fine-tuned models stay on the node: in the folder ``models='/folder'`` of its own configuration; without
    one, they are discarded once it has answered.
    """
    served = states_of({client: question.model for client, question in asked.items()})
    served = {client: node.whole(client, each) for client, each in served.items()}
    found = {client: measuring.PersonalAnswer(client, {}, {}, {}, {}) for client in asked}
    by_row: dict[int, dict[str, FloatArray]] = {client: {} for client in asked}
    errors: dict[int, str] = {}
    score = partial(node.trainer.evaluate, full=True)

    def jobs(part: Sequence[IntArray], states: Mapping[int, State], shifts: Shifts) -> dict[int, Job]:
        return {
            client: Job(client, part[client], state, shift=shifts.get(client))
            for client, state in states.items()
            if client not in errors
        }

    def validated(states: Mapping[int, State]) -> Mapping[int, Any]:
        """Return the logits and labels of validation rows, of the clients that have some."""
        some = {client: job for client, job in jobs(_held_out(node), states, {}).items() if len(job.rows)}
        answered, failed = measured(some, node.trainer.logits)
        errors.update(failed)
        return answered

    def measure(
        layer: str,
        states: Mapping[int, State],
        held: Mapping[int, Any],
        shifts: Shifts = MappingProxyType({}),
    ) -> None:
        """Measure clients with a layer, each with its model and its shift of the logits."""
        for client in states.keys() & held.keys():
            outputs, values = held[client]
            known = bool(np.isfinite(outputs).all())
            rows = (
                node.data.target.scores(outputs, values, shifts.get(client))
                if known
                else np.full(len(values), np.nan)
            )
            by_row[client][layer], found[client].losses[layer] = rows, float(rows.mean())
        if layer == NONE:
            return
        tested, failed = measured(jobs(node.data.test, states, shifts), score)
        errors.update(failed)
        for client, each in tested.items():
            found[client].figures[layer] = each.figures
            if each.outcomes is not None:
                found[client].outcomes[layer] = each.outcomes

    held = validated(served)  # the correction has the same logits
    measure(NONE, served, held)
    sent = {client: question.shift for client, question in asked.items() if question.shift is not None}
    corrected, failed = corrections(node, sent, served)
    errors.update(failed)
    measure(PRIOR, {client: served[client] for client in corrected}, held, corrected)
    fitted = corrected if node.data.target.fits_correction else {}
    kinds: dict[tuple[Finetune, int], dict[int, State]] = {}
    for client, question in asked.items():
        if (finetune := question.finetune) is not None:
            kinds.setdefault((finetune, question.server_round), {})[client] = served[client]
    for (how, server_round), states in kinds.items():
        training = list(jobs(node.data.train, states, {}).values())
        for update in node.trainer.finetuner(how).train(training, server_round, proximal_mu=0.0):
            for client, reason in update.failed.items():
                found[client].failed[FINETUNE] = reason
            tuned = update.models()
            measure(FINETUNE, tuned, validated(tuned))
            errors |= _keep(node, tuned)
    return {
        client: replace(
            each, chosen=choose(by_row[client]) if by_row[client] else NONE, shift=fitted.get(client)
        )
        for client, each in found.items()
        if client not in errors
    }, errors


def _keep(node: Node, tuned: Mapping[int, State]) -> dict[int, str]:
    """Write fine-tuned models into the folder of the node's own configuration; return clients' errors."""
    errors: dict[int, str] = {}
    for client, state in tuned.items() if MODELS in node.config else ():
        file = weights_file(Path(str(node.config[MODELS])) / f"run-{node.run}", client)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(save({name: each.cpu().clone() for name, each in state.items()}))
        except OSError as error:
            errors[client] = f"the fine-tuned model cannot be written: {reason_of(error)}"
    return errors


# -- The rows themselves ------------------------------------------------------------------------------------


@answers(describing.DescriptionQuestion)
def describe(node: Node, asked: Mapping[int, describing.DescriptionQuestion]) -> Answers:
    """Return each client's label counts, known group and names."""
    data, own = node.data, node.rules and node.rules.group  # of the operator, for all clients of the node
    train, test = data.label_counts("train"), data.label_counts("test")
    names = describing.Names(
        data.class_names, data.left_out, data.target, "group" if own else data.grouped_by
    )
    return {
        client: describing.Description.of(
            train[client],
            test[client],
            question.disclosed,
            group=None if data.groups is None else int(data.groups[client]),
            mean=data.mean,
            std=data.std,
            name=None if data.client_names is None else data.client_names[client],
            named_group=own or (data.named_groups[client] if data.named_groups else None),
            names=names,
            num_validation=len(data.validation[client]) if data.validation else 0,
        )
        for client, question in asked.items()
    }, {}


@answers(describing.EncoderQuestion)
def encoder(node: Node, asked: Mapping[int, describing.EncoderQuestion]) -> Answers:
    """Return the encoding of this node's data, such as columns, categories and means."""
    encoding = describing.Encoder(node.data.input_encoder(), node.data.embedded_by)
    return dict.fromkeys(asked, encoding), {}


@answers(describing.PrototypesQuestion)
@one_by_one
def prototypes(node: Node, question: describing.PrototypesQuestion, clients: list[int]) -> Answers:
    """Return each client's class prototypes, with their numbers of examples."""
    try:
        frozen = node.encoder_for(question.input, question.vocabulary_size)
    except NotAllowed as error:
        return {}, dict.fromkeys(clients, str(error))
    clients = sorted(clients)
    classes = cached_prototypes(frozen, node.data, clients, node.device)
    sent = pooled(classes) if question.pooled else classes
    made = [describing.Prototypes(*values) for values in zip(*sent, strict=True)]
    return dict(zip(clients, made, strict=True)), {}


@answers(describing.SubspacesQuestion)
def subspaces(node: Node, asked: Mapping[int, describing.SubspacesQuestion]) -> Answers:
    """Return the first left singular vectors of each class of each client's training part."""
    found, errors = {}, {}
    data = node.data
    for client, question in asked.items():
        try:
            frozen = node.encoder_for(question.input)
            bases = class_subspaces(frozen, data, data.train[client], question.vectors, node.device)
        # numpy raises LinAlgError, a ValueError, where examples are not finite.
        except ValueError as error:
            errors[client] = reason_of(error)
        else:
            found[client] = describing.Subspaces(bases)
    return found, errors
