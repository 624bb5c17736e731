"""Return how raw rows become inputs."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.node import Node
from fedclust.messages import encoder_content

__all__ = ["encoder"]


@app.query("encoder")
def encoder(message: Message, context: Context) -> Message:
    """Return how the data of this node were encoded, such as columns, categories and means."""
    return respond(message, context, _encoder)


def _encoder(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    content = encoder_content(node.data.input_encoder())
    return dict.fromkeys(contents, content), {}
