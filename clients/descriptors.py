"""Describe clients' rows by moments of a model's latent features."""

import numpy as np

from fedclust.clients.app import answers
from fedclust.clients.node import Answers, Node, one_by_one, together
from fedclust.clustering import flux
from fedclust.messages.descriptors import Descriptor, DescriptorQuestion
from fedclust.messages.models import to_state
from fedclust.training.cohort import Job


@answers(DescriptorQuestion)
@one_by_one
def descriptors(node: Node, question: DescriptorQuestion, clients: list[int]) -> Answers:
    """Return the moments of each client's latent features, and how many rows the model predicts right."""
    state = to_state(question.arrays)

    def described(some: list[int]) -> list[Descriptor]:
        jobs = [
            Job(client, node.data.train[client], node.whole(client, state, serving=False)) for client in some
        ]
        return [_descriptor(node, question.num_classes, job) for job in jobs]

    return together(clients, described)


def _descriptor(node: Node, num_classes: int, job: Job) -> Descriptor:
    latent, ((outputs, values),) = node.trainer.latent(job), node.trainer.logits([job])
    own = latent.astype(np.float64).reshape(-1, latent.shape[-1])  # each position of a row that has several
    right, labels = int(node.data.target.hits(outputs, values).sum()), node.data.labels[job.rows].numpy()
    moments = flux.moments(own, labels.ravel(), num_classes)
    return Descriptor(moments, own.shape[1], float(own.max()), right, len(labels))
