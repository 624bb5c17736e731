"""Train clients and return what changed, in few numbers or in some arrays, instead of their models."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedclust.clients.app import Answers, app, read_shared, respond
from fedclust.clients.node import Node
from fedclust.clients.train import changes, passes, projected
from fedclust.messages import read_update_names, update_content
from fedclust.support.array_bytes import from_numpy

__all__ = ["update"]


@app.query("update")
def update(message: Message, context: Context) -> Message:
    """Train the received model and return the requested parts of its change, not the model."""
    return respond(message, context, _update)


def _update(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    instructions = {
        client: instruction for instruction, clients in read_shared(contents) for client in clients
    }
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for trained, starts in passes(node, instructions):
        errors.update(trained.failed)
        sketches = projected(node, trained, instructions, starts)
        for position, client in enumerate(trained.clients.tolist()):
            if client in trained.failed:
                continue
            names = read_update_names(contents[client])
            changed = changes(trained, [position], starts[client], names)
            kept = ArrayRecord({name: from_numpy(array[0].astype("f4")) for name, array in changed.items()})
            answers[client] = update_content(int(trained.num_examples[position]), sketches.get(client), kept)
    return answers, errors
