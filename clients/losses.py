"""Compute the losses of several models on each client."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.node import Node
from fedclust.messages import losses_content, read_losses_question, to_state
from fedclust.training import Job
from fedclust.typing import FloatArray, State

__all__ = ["losses"]


@app.query("losses")
def losses(message: Message, context: Context) -> Message:
    """Return how well each received model fits each client's whole training part.

    That is its mean loss, and the number of rows on which no other model's is smaller; of models that tie on
    a row, the first counts.
    """
    return respond(message, context, _losses)


def _losses(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    asked: dict[int, list[int]] = {}
    for client, content in contents.items():
        asked.setdefault(id(content), []).append(client)
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for clients in asked.values():  # clients that share a content have the same models
        models = read_losses_question(contents[clients[0]])
        found, failed = _by_row(node, clients, [to_state(model) for model in models])
        errors |= failed
        for client, rows in found.items():
            wins = np.bincount(np.nan_to_num(rows, nan=np.inf).argmin(axis=0), minlength=len(models))
            means = rows.mean(axis=1) if rows.shape[1] else np.full(len(models), np.nan)
            answers[client] = losses_content(means.tolist(), wins.tolist())
    return answers, errors


def _by_row(
    node: Node, clients: Sequence[int], states: Sequence[State]
) -> tuple[dict[int, FloatArray], dict[int, str]]:
    """Measure models, one pass each for all clients; one on whose data a model raises has an error instead.

    Returns
    -------
    By client, the loss of each model on each training row, shape (models, rows); and the errors.
    """
    # One job list: every model goes over the rows of all clients together.
    jobs = [Job(client, node.data.train[client], state) for client in clients for state in states]
    try:
        measured = node.trainer.losses(jobs)
    # The model is the user's code.
    except Exception as error:
        if len(clients) == 1:
            return {}, {clients[0]: f"{type(error).__name__}: {error}"}
    else:
        parts = [measured[first : first + len(states)] for first in range(0, len(measured), len(states))]
        return {client: np.stack(part) for client, part in zip(clients, parts, strict=True)}, {}
    found: dict[int, FloatArray] = {}
    errors: dict[int, str] = {}
    for client in clients:
        one, failed = _by_row(node, [client], states)
        found |= one
        errors |= failed
    return found, errors
