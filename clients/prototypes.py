"""Compute each client's class prototypes with a frozen foundation model."""

from collections.abc import Mapping

from flwr.app import Context, Message, RecordDict

from fedclust.clients.app import Answers, app, respond
from fedclust.clients.inputs import encoder_for
from fedclust.clients.node import Node
from fedclust.messages import PrototypesQuestion, prototypes_content, read_prototypes_question
from fedclust.models.class_prototypes import cached_prototypes, pooled, withheld
from fedclust.settings.allowed import NotAllowed

__all__ = ["prototypes"]


@app.query("prototypes")
def prototypes(message: Message, context: Context) -> Message:
    """Return each client's class prototypes, with their numbers of examples and the scatter of these."""
    return respond(message, context, _prototypes)


def _prototypes(node: Node, contents: Mapping[int, RecordDict]) -> Answers:
    asked: dict[PrototypesQuestion, list[int]] = {}
    for client in sorted(contents):
        asked.setdefault(read_prototypes_question(contents[client]), []).append(client)
    answers: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for question, clients in asked.items():
        try:
            encoder = encoder_for(node, question.input, question.vocabulary_size)
        except NotAllowed as error:
            errors |= dict.fromkeys(clients, str(error))
            continue
        found = cached_prototypes(encoder, node.data, clients, device=node.device, max_norm=question.max_norm)
        if question.pooled:
            found = pooled(found)
        found = withheld(found, question.min_examples)
        for position, client in enumerate(clients):
            answers[client] = prototypes_content(*(values[position] for values in found))
    return answers, errors
