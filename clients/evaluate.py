"""Evaluate the clients of a message on their own test parts."""

from collections.abc import Mapping, Sequence

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, read_shared, respond
from fedclust.clients.node import Node
from fedclust.messages import evaluate_content, to_state
from fedclust.training import Job
from fedclust.training.evaluation import Scores

__all__ = ["evaluate", "scores"]


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate each client's received model on its own test part."""
    return respond(message, context, _evaluate)


def _evaluate(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    jobs: dict[bool, list[Job]] = {}
    for instruction, clients in read_shared(contents):
        state = to_state(instruction.arrays)
        jobs.setdefault(instruction.full, []).extend(
            Job(client, node.data.test[client], state) for client in clients
        )
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for full, batch in jobs.items():
        measured, failed = scores(node, batch, full)
        answers.update(
            (client, evaluate_content(each.figures, each.outcomes)) for client, each in measured.items()
        )
        errors.update(failed)
    return answers, errors


def scores(
    node: Node, batch: Sequence[Job], full: bool, own: bool = True
) -> tuple[dict[int, Scores], dict[int, str]]:
    """Evaluate clients, together if possible; if the model raises on a client's data, it gets an error."""
    try:
        measured = node.trainer.evaluate(batch, full=full, own=own)
    # The model is the user's code.
    except Exception as error:
        if len(batch) == 1:
            return {}, {batch[0].client: f"{type(error).__name__}: {error}"}
    else:
        return {job.client: each for job, each in zip(batch, measured, strict=True)}, {}
    found: dict[int, Scores] = {}
    errors: dict[int, str] = {}
    for job in batch:
        one, failed = scores(node, [job], full, own)
        found |= one
        errors |= failed
    return found, errors
