"""Compute the subspaces that each client's classes span."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.inputs import encoder_for
from fedclust.clients.node import Node
from fedclust.messages import read_subspaces_question, subspaces_content
from fedclust.models.subspaces import class_subspaces

__all__ = ["subspaces"]


@app.query("subspaces")
def subspaces(message: Message, context: Context) -> Message:
    """Return the first left singular vectors of each class of each client's training part."""
    return respond(message, context, _subspaces)


def _subspaces(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    data = node.data
    for client, content in contents.items():
        name, vectors = read_subspaces_question(content)
        try:
            found = class_subspaces(
                encoder_for(node, name),
                data.inputs,
                data.labels,
                data.train[client],
                data.num_classes,
                vectors,
                mean=data.mean,
                std=data.std,
                device=node.device,
            )
        # numpy raises LinAlgError, a ValueError, where examples are not finite.
        except ValueError as error:
            errors[client] = str(error)
        else:
            answers[client] = subspaces_content(found)
    return answers, errors
