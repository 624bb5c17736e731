"""What clients say about themselves before round 1."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from clients.app import Answers, app, respond
from clients.node import Node
from fedclust import records
from fedclust.records import Description

__all__ = ["describe"]


@app.query("description")
def describe(message: Message, context: Context) -> Message:
    """Report each client's label counts and known group."""
    return respond(message, context, _describe)


def _describe(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    train, test = node.data.label_counts("train"), node.data.label_counts("test")
    data = node.data
    return {
        client: records.description_content(
            Description(
                train[client],
                test[client],
                None if data.groups is None else int(data.groups[client]),
                data.mean,
                data.std,
            )
        )
        for client in contents
    }, {}
