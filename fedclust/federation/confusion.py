"""Confusion counts of each cluster's model on the other clusters' clients."""

import numpy as np
from flwr.app import RecordDict

from fedclust.federation.asking import Answers
from fedclust.federation.clusters import Clusters
from fedclust.federation.federation import Federation
from fedclust.messages import ARRAYS, QUERY_CONFUSION, BadReply, read_confusion
from fedclust.typing import IntArray

__all__ = ["confuse_clusters"]

# More would be hard to read in a picture, and each model takes a pass over the test parts.
_MOST_CLUSTERS, _MOST_CLIENTS = 4, 50


def confuse_clusters(federation: Federation, clusters: Clusters) -> dict[str, IntArray]:
    """Count what each cluster's model predicts on the test parts of each cluster's clients.

    This shows how clusters differ where label counts do not, such as in different names for the same
    things. The four largest clusters and up to 50 clients of each, evenly spaced, are used; a client that
    does not answer is left out.

    Parameters
    ----------
    federation
        The clients.
    clusters
        The clusters and their models.

    Returns
    -------
    ``confusion_clusters``, shape (m,), and ``confusion``, shape (m, m, C, C): clusters of the clients,
    clusters of the models, labels, predictions. Empty if there is only one cluster, or no client of a
    cluster answered.
    """
    largest = np.argsort(-clusters.sizes, kind="stable")[:_MOST_CLUSTERS]
    shown = np.sort(largest[clusters.sizes[largest] > 0])
    if len(shown) < 2:
        return {}
    clients = {int(cluster): _spaced(clusters.members(int(cluster))) for cluster in shown}
    everyone = np.concatenate(list(clients.values()))
    table: list[list[IntArray]] = [[] for _ in shown]
    for model in shown:
        content = RecordDict({ARRAYS: clusters.models[int(model)]})
        counts = _read(federation, federation.ask(QUERY_CONFUSION, everyone, content))
        for row, members in zip(table, clients.values(), strict=True):
            answered = [counts[int(client)] for client in members if int(client) in counts]
            if not answered:
                return {}
            row.append(np.sum(answered, axis=0))
    return {"confusion_clusters": shown, "confusion": np.array(table)}


def _spaced(members: IntArray) -> IntArray:
    if len(members) <= _MOST_CLIENTS:
        return members
    return members[np.linspace(0, len(members) - 1, _MOST_CLIENTS).astype(int)]


def _read(federation: Federation, answers: Answers) -> dict[int, IntArray]:
    counts = {}
    for client, reply in answers.replies.items():
        try:
            counts[client] = read_confusion(reply, federation.bounds)
        except BadReply as error:  # a missing picture must not end a run
            federation.failed(client, QUERY_CONFUSION, error)
    return counts
