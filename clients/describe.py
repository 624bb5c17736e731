"""Describe the clients' data: labels and names, encodings, prototypes and subspaces of classes."""

from collections.abc import Mapping

from fedclust.clients.app import Answers, answers
from fedclust.clients.node import Node
from fedclust.messages.description import Description, DescriptionQuestion, Encoder, EncoderQuestion, Names
from fedclust.messages.prototypes import Prototypes, PrototypesQuestion, Subspaces, SubspacesQuestion
from fedclust.models.class_prototypes import cached_prototypes, class_subspaces, pooled, withheld
from fedclust.settings.allowed import NotAllowed


@answers(DescriptionQuestion)
def describe(node: Node, asked: Mapping[int, DescriptionQuestion]) -> Answers:
    """Return each client's label counts, known group and names."""
    data = node.data
    train, test = data.label_counts("train"), data.label_counts("test")
    names = Names(data.class_names, data.left_out)
    return {
        client: Description.of(
            train[client],
            test[client],
            question.tells,
            known_group=None if data.groups is None else int(data.groups[client]),
            mean=data.mean,
            std=data.std,
            name=None if data.client_names is None else data.client_names[client],
            names=names,
            num_validation=len(data.validation[client]) if data.validation else 0,
        )
        for client, question in asked.items()
    }, {}


@answers(EncoderQuestion)
def encoder(node: Node, asked: Mapping[int, EncoderQuestion]) -> Answers:
    """Return how the data of this node were encoded, such as columns, categories and means."""
    return dict.fromkeys(asked, Encoder(node.data.input_encoder())), {}


@answers(PrototypesQuestion)
def prototypes(node: Node, asked: Mapping[int, PrototypesQuestion]) -> Answers:
    """Return each client's class prototypes, with their numbers of examples and the scatter of these."""
    found: dict[int, Prototypes] = {}
    errors: dict[int, str] = {}
    for question in dict.fromkeys(asked.values()):
        clients = [client for client in sorted(asked) if asked[client] == question]
        try:
            frozen = node.encoder_for(question.input, question.vocabulary_size)
        except NotAllowed as error:
            errors |= dict.fromkeys(clients, str(error))
            continue
        told = cached_prototypes(frozen, node.data, clients, device=node.device, max_norm=question.max_norm)
        told = withheld(pooled(told) if question.pooled else told, question.min_examples)
        for client, *values in zip(clients, *told, strict=True):
            found[client] = Prototypes(*values)
    return found, errors


@answers(SubspacesQuestion)
def subspaces(node: Node, asked: Mapping[int, SubspacesQuestion]) -> Answers:
    """Return the first left singular vectors of each class of each client's training part."""
    found: dict[int, Subspaces] = {}
    errors: dict[int, str] = {}
    data = node.data
    for client, question in asked.items():
        try:
            bases = class_subspaces(
                node.encoder_for(question.input),
                data.inputs,
                data.labels,
                data.train[client],
                data.num_classes,
                question.vectors,
                mean=data.mean,
                std=data.std,
                device=node.device,
            )
        # numpy raises LinAlgError, a ValueError, where examples are not finite.
        except ValueError as error:
            errors[client] = str(error)
        else:
            found[client] = Subspaces(bases)
    return found, errors
