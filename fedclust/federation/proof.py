"""Ask clients how two models compare on their held-out rows."""

from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from fedclust.clustering import label_prior
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.federation.federation import Federation
from fedclust.messages import QUERY_PROOF, BadReply, proof_question, read_proof
from fedclust.proof import Difference
from fedclust.typing import FloatArray, IntArray

__all__ = ["ask_differences", "prior_shifts", "shifts_for"]

Models = tuple[IntArray, Sequence[ArrayRecord]]
"""Cluster of each client, shape (K,), and each cluster's model."""


def ask_differences(
    federation: Federation, common: Models, grouped: Models, clients: Iterable[int] | None = None
) -> tuple[dict[int, Difference], dict[int, str]]:
    """Ask clients how much better the model of their group predicts their held-out rows.

    Both models get the label-prior correction, each for the class shares it was trained on, so that a
    grouping must be better by more than the clients' label shares explain. Each model is sent once per node.

    Parameters
    ----------
    federation
        The clients.
    common
        Model A of each client: the one for all.
    grouped
        Model B of each client.
    clients
        Who is asked, everyone by default. A client of cluster −1 is in none: it must not be asked, and its
        labels do not count among those that a model was trained on.

    Returns
    -------
    Mean, variance and number of A's Brier scores minus B's, of each client that answered; and the reasons of
    the others.
    """
    counts = federation.describe().train_counts
    shifts = [prior_shifts(counts, assignment) for assignment, _ in (common, grouped)]
    questions: dict[int, RecordDict] = {}
    for client in map(int, range(federation.num_clients) if clients is None else clients):
        first, second = (models[int(assignment[client])] for assignment, models in (common, grouped))
        questions[client] = proof_question(first, second, shifts[0][client], shifts[1][client])
    answers = federation.ask(QUERY_PROOF, questions, questions)
    measured: dict[int, Difference] = {}
    failures = dict(answers.failures)
    for client, reply in answers.replies.items():
        try:
            measured[client] = read_proof(reply, federation.bounds)
        except BadReply as error:
            failures[client] = str(error)
    return measured, failures


def shifts_for(counts: IntArray, trained: IntArray) -> FloatArray:
    """Compute what is added to clients' logits of a model that they need not have trained.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (n, C).
    trained
        The same of the clients that trained the model, shape (m, C).

    Returns
    -------
    Shifts, shape (n, C); 0 where a client, or those that trained, have no examples.
    """
    having = trained[np.any(trained, axis=1)]
    if not len(having):
        return np.zeros(np.shape(counts))
    examples = label_prior.pseudo_examples(having)
    return label_prior.correction(counts, having.sum(axis=0), examples)


def prior_shifts(counts: IntArray, assignment: IntArray) -> FloatArray:
    """Compute what is added to each client's logits; 0 for one without training examples or of cluster −1.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    assignment
        Cluster of each client, shape (K,); −1 for none.

    Returns
    -------
    Shifts, shape (K, C).
    """
    shifts = np.zeros(np.shape(counts))
    known = (np.sum(counts, axis=1) > 0) & (np.asarray(assignment) >= 0)
    if known.any():
        table, clusters = limit_sizes(np.asarray(counts)[known]), np.asarray(assignment)[known]
        shifts[known] = label_prior.assign(table, clusters, label_prior.Parameters())[0]
    return shifts
