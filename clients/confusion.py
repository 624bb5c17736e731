"""Count a model's predictions on the clients' own test parts."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, read_shared, respond
from fedclust.clients.node import Node
from fedclust.messages import confusion_content, to_state
from fedclust.training import Job

__all__ = ["confusion"]


@app.query("confusion")
def confusion(message: Message, context: Context) -> Message:
    """Count labels and predictions of each client's received model on its own test part."""
    return respond(message, context, _confusion)


def _confusion(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    answers: dict[int, RecordDict] = {}
    for instruction, clients in read_shared(contents):
        state = to_state(instruction.arrays)
        jobs = [Job(client, node.data.test[client], state) for client in clients]
        for client, counts in zip(clients, node.trainer.confusions(jobs), strict=True):
            answers[client] = confusion_content(counts)
    return answers, {}
