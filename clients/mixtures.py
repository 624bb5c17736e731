"""How much each of several models is responsible for clients' rows, and the weights it gives them."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedclust.clients.app import answers
from fedclust.clients.node import Answers, Node, together
from fedclust.clustering import fedrc
from fedclust.messages.coalitions import number_of
from fedclust.messages.mixtures import Responsibilities, ResponsibilitiesQuestion
from fedclust.messages.models import to_state
from fedclust.messages.training import Instruction
from fedclust.training.cohort import Job
from fedclust.typing import FloatArray, IntArray


@answers(ResponsibilitiesQuestion)
def responsibilities(node: Node, asked: Mapping[int, ResponsibilitiesQuestion]) -> Answers:
    """Return the sums of the models' responsibilities over the rows of each class."""
    found, errors = _measured(
        node, {client: (each.models, each.mixture, each.label_shares) for client, each in asked.items()}
    )
    classes = node.data.num_classes
    return {
        client: Responsibilities(fedrc.class_sums(gamma, _labels(node, client), classes))
        for client, gamma in found.items()
    }, errors


def row_weights(node: Node, asked: Mapping[int, Instruction]) -> tuple[dict[int, FloatArray], dict[int, str]]:
    """Compute the weights with which clients are to train their rows, of those that are told a mixture.

    Returns
    -------
    By client id, the weight of each sorted row in the training of each model, the instruction's own first,
    shape (models, n); and the errors.
    """
    given = {}
    for client, each in asked.items():
        if each.mixture is not None and each.label_shares is not None:
            arms = (each.arms[name] for name in sorted(each.arms, key=number_of))
            given[client] = ((each.arrays, *arms), each.mixture, each.label_shares)
    return _measured(node, given) if given else ({}, {})


def _labels(node: Node, client: int) -> IntArray:
    return node.data.labels[np.sort(node.data.train[client])].numpy()


def _measured(
    node: Node, asked: Mapping[int, tuple[Sequence[ArrayRecord], FloatArray, FloatArray]]
) -> tuple[dict[int, FloatArray], dict[int, str]]:
    distinct = {id(model): model for models, *_ in asked.values() for model in models}
    states = {key: to_state(model) for key, model in distinct.items()}

    def work(clients: list[int]) -> list[FloatArray]:
        jobs = [
            Job(client, np.sort(node.data.train[client]), states[id(model)])
            for client in clients
            for model in asked[client][0]
        ]
        losses, found = iter(node.trainer.losses(jobs)), []
        for client in clients:
            models, mixture, shares = asked[client]
            of_models = np.stack([next(losses) for _ in models])
            table = shares.reshape(len(models), -1)
            found.append(fedrc.responsibilities(of_models, _labels(node, client), mixture, table))
        return found

    return together(list(asked), work)
