"""What the clients of a federation say about themselves before round 1."""

from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust import records
from fedclust.federation.client_grid import FederationError
from fedclust.typing import IntArray

__all__ = ["Descriptions", "ask", "describe"]


@dataclass(frozen=True, eq=False)
class Descriptions:
    """All clients' label counts and known groups.

    Attributes
    ----------
    train_counts, test_counts
        Number of samples of each client and class in its own training and test part, shape (K, C).
    groups
        The known grouping, shape (K,), or None where a client has none.
    mean, std
        What clients subtract from each channel of their images and divide it by, as the first one says.
    """

    train_counts: IntArray
    test_counts: IntArray
    groups: IntArray | None
    mean: tuple[float, ...]
    std: tuple[float, ...]


def ask(grid: Grid, query: str) -> list[Message]:
    """Ask every client one question.

    Parameters
    ----------
    grid
        A grid whose node ids are client ids.
    query
        Message type of the question, such as ``"query.description"``.

    Returns
    -------
    The replies, sorted by client id.

    Raises
    ------
    FederationError
        If a client cannot answer, with its reason.
    """
    content = RecordDict()
    questions = [
        Message(content, dst_node_id=client, message_type=query) for client in sorted(grid.get_node_ids())
    ]
    replies = sorted(grid.send_and_receive(questions), key=lambda reply: reply.metadata.src_node_id)
    for reply in replies:
        if reply.has_error():
            client = reply.metadata.src_node_id
            raise FederationError(f"client {client} must answer {query!r}, it failed: {reply.error.reason}")
    return replies


def describe(grid: Grid) -> Descriptions:
    """Ask every client for its label counts and known group.

    Raises
    ------
    FederationError
        If a client cannot answer.
    """
    answers = [records.read_description(reply) for reply in ask(grid, records.QUERY_DESCRIPTION)]
    groups = [answer.group for answer in answers if answer.group is not None]
    return Descriptions(
        train_counts=np.stack([answer.train_counts for answer in answers]),
        test_counts=np.stack([answer.test_counts for answer in answers]),
        groups=np.asarray(groups, dtype=np.int64) if len(groups) == len(answers) else None,
        mean=answers[0].mean,
        std=answers[0].std,
    )
