"""The ClientApp, which replies for many clients at once."""

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust.clients.node import Node
from fedclust.clients.own_data import own_sites
from fedclust.data.dataset import content_digest
from fedclust.federation import is_bundle, pack, unpack
from fedclust.messages import Instruction, clients_content, read_instruction, registered_content
from fedclust.training.batches import num_steps

__all__ = ["Answers", "app", "read_shared", "respond"]

app = ClientApp()

Answers = tuple[Mapping[int, RecordDict], Mapping[int, str]]
"""The content of each client that has one, and the error of each other client, by client id."""


@app.query("clients")
def hosted(message: Message, context: Context) -> Message:
    """Return the clients that this node hosts: names if it holds its own data; else ids, and a digest.

    A node that may train any client adds the steps of each.
    """
    if (sites := own_sites(context)) is not None:
        return Message(registered_content(sites.registered()), reply_to=message)
    node = Node.of(context)
    name = str(context.node_config.get("name", ""))
    steps: list[int] = []
    if context.node_config.get("shared"):  # the server divides the clients of a round by it
        examples = np.array([max(1, len(node.data.train[client])) for client in node.clients])
        steps = num_steps(examples, node.trainer.training).tolist()
    digest = content_digest(node.data)
    content = clients_content(node.clients, node.data.num_clients, name, digest, steps)
    return Message(content, reply_to=message)


def respond(
    message: Message, context: Context, work: Callable[[Node, Mapping[int, RecordDict]], Answers]
) -> Message:
    """Answer a message for each client that it addresses.

    A message from a :class:`~fedclust.federation.ClientGrid` is a bundle for some of the node's clients. Any
    other message is for the node's only client, so that the app also works with a plain Flower strategy.

    Parameters
    ----------
    work
        Function that computes the clients' answers from their contents.

    Raises
    ------
    RuntimeError
        If the message is not a bundle and the node's only client failed; the message gives the reason.
    ValueError
        If the message is not a bundle and the node hosts several clients.
    """
    node = Node.of(context)
    if is_bundle(message.content):
        contents, _ = unpack(message.content)
        unknown = {
            client: f"client {client} must be hosted by this node, it hosts {list(node.clients)}"
            for client in contents.keys() - set(node.clients)
        }
        mine = {client: content for client, content in contents.items() if client not in unknown}
        answers, errors = work(node, mine)
        return Message(pack(answers, {**errors, **unknown}), reply_to=message)
    if len(node.clients) != 1:
        raise ValueError(
            f"a node of several clients must be sent bundles, this one hosts {list(node.clients)}"
        )
    (client,) = node.clients
    answers, errors = work(node, {client: message.content})
    if client in errors:
        raise RuntimeError(errors[client])
    return Message(answers[client], reply_to=message)


def read_shared(contents: Mapping[int, RecordDict]) -> list[tuple[Instruction, list[int]]]:
    """Read the instructions for clients, once for all clients that share a content.

    Returns
    -------
    Each instruction with its clients.
    """
    sharing: dict[int, list[int]] = {}
    for client, content in contents.items():
        sharing.setdefault(id(content), []).append(client)
    return [(read_instruction(contents[clients[0]]), clients) for clients in sharing.values()]
