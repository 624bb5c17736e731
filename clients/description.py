"""Describe the clients before round 1."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.node import Node
from fedclust.messages import Description, Names, description_content, names_record, read_description_question

__all__ = ["describe"]


@app.query("description")
def describe(message: Message, context: Context) -> Message:
    """Return each client's label counts, known group and names."""
    return respond(message, context, _describe)


def _describe(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    data = node.data
    train, test = data.label_counts("train"), data.label_counts("test")
    names = Names(data.class_names, data.left_out)
    shared = names_record(names)
    tells = {client: read_description_question(content) for client, content in contents.items()}
    return {
        client: description_content(
            Description(
                train[client],
                test[client],
                None if data.groups is None else int(data.groups[client]),
                data.mean,
                data.std,
                None if data.client_names is None else data.client_names[client],
                names,
                len(data.validation[client]) if data.validation else 0,
            ),
            shared,
            tells[client],
        )
        for client in contents
    }, {}
