"""Compare two models' scores on each client's held-out rows."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.node import Node
from fedclust.messages import ProofQuestion, proof_content, read_proof_question, to_state
from fedclust.proof import brier_scores, difference
from fedclust.training import Job
from fedclust.typing import FloatArray, State

__all__ = ["proof"]


@app.query("proof")
def proof(message: Message, context: Context) -> Message:
    """Return mean, variance and number of the differences of two models' Brier scores, and nothing else."""
    return respond(message, context, _proof)


def _proof(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    asked = {client: read_proof_question(content) for client, content in contents.items()}
    errors: dict[int, str] = {}
    scores: list[dict[int, FloatArray]] = []
    for side in ("a", "b"):
        left = {client: question for client, question in asked.items() if client not in errors}
        jobs = _jobs(node, left, {client: getattr(each, f"model_{side}") for client, each in left.items()})
        shifts = {client: getattr(each, f"shift_{side}") for client, each in left.items()}
        measured, failed = _scores(node, jobs, shifts)
        scores.append(measured)
        errors |= failed
    first, second = scores
    answers = {
        client: proof_content(difference(first[client], second[client]))
        for client in contents
        if client not in errors
    }
    return answers, errors


def _jobs(node: Node, asked: Mapping[int, ProofQuestion], models: Mapping[int, ArrayRecord]) -> list[Job]:
    """Make a job per client; clients with the same model share its state, and a pass."""
    states: dict[int, State] = {}
    for model in models.values():
        if id(model) not in states:
            states[id(model)] = to_state(model)
    nothing = np.zeros(0, dtype=np.int64)
    held_out = node.data.validation or (nothing,) * node.data.num_clients
    rows = {
        client: (node.data.train if question.on_training_rows else held_out)[client]
        for client, question in asked.items()
    }
    return [Job(client, rows[client], states[id(model)]) for client, model in models.items()]


def _scores(
    node: Node, jobs: Sequence[Job], shifts: Mapping[int, FloatArray]
) -> tuple[dict[int, FloatArray], dict[int, str]]:
    """Score each client's rows, together if possible; if the model raises on a client's, it gets an error."""
    try:
        answered = node.trainer.logits(jobs)
        return {
            job.client: brier_scores(logits, labels, shifts[job.client])
            for job, (logits, labels) in zip(jobs, answered, strict=True)
        }, {}
    # The model is the user's code, and a diverged model has no probabilities.
    except Exception as error:
        if len(jobs) == 1:
            return {}, {jobs[0].client: f"{type(error).__name__}: {error}"}
    found: dict[int, FloatArray] = {}
    errors: dict[int, str] = {}
    for job in jobs:
        one, failed = _scores(node, [job], shifts)
        found |= one
        errors |= failed
    return found, errors
