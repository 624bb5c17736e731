"""Evaluate the clients of a message on their own test parts."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from clients.app import Answers, app, read_shared, respond
from clients.node import Node
from fedclust import records
from fedclust.training import Job

__all__ = ["evaluate"]


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model each client was sent on the client's own test part."""
    return respond(message, context, _evaluate)


def _evaluate(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    jobs: dict[bool, list[Job]] = {}
    for instruction, clients in read_shared(contents):
        state = records.to_state(instruction.arrays)
        jobs.setdefault(instruction.full, []).extend(
            Job(client, node.data.test[client], state) for client in clients
        )
    answers = {}
    for full, batch in jobs.items():
        for job, metrics in zip(batch, node.trainer.evaluate(batch, full=full), strict=True):
            answers[job.client] = records.evaluate_content(metrics)
    return answers, {}
