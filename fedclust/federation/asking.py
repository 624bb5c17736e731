"""Ask clients a question, collect their answers, and check that these agree."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedclust.grids.client_grid import FederationError
from fedclust.messages import QUERY_DESCRIPTION, BadReply
from fedclust.privacy.settings import Tells

__all__ = ["Answers", "Asker", "Failure", "check_alike", "send_questions", "unlike"]

Answer = TypeVar("Answer")

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The clients' answers to one question.

    Attributes
    ----------
    replies
        The reply of each client that answered, by client id, in ascending order.
    failures
        Why each other client did not, by client id.
    """

    replies: Mapping[int, Message]
    failures: Mapping[int, str]

    def all(self) -> list[Message]:
        """List the replies of all clients that were asked, sorted by client id.

        Raises
        ------
        FederationError
            If a client did not answer, with its reason: before round 1 a method needs all clients.
        """
        for client, reason in self.failures.items():
            raise FederationError(f"client {client} must answer before round 1, it failed: {reason}")
        return list(self.replies.values())

    def read_all(self, read: Callable[[Message], Answer]) -> list[Answer]:
        """Read the replies of all clients that were asked, sorted by client id.

        Raises
        ------
        FederationError
            If a client did not answer, or its answer cannot be read, with the reason.
        """
        try:
            return [read(reply) for reply in self.all()]
        except BadReply as error:
            raise FederationError(f"{error} (every client must answer before round 1)") from error


def send_questions(
    grid: Grid,
    query: str,
    clients: Collection[int],
    content: RecordDict | Mapping[int, RecordDict] | None,
    timeout: float,
) -> Answers:
    """Send a question to clients and wait for their answers.

    Parameters
    ----------
    grid
        A grid whose node ids are client ids.
    query
        Message type of the question, such as ``"query.description"``.
    clients
        Ids of the clients to ask.
    content
        Content of the message: one for all, or one for each client; None for an empty one.
    timeout
        Seconds that clients have to answer.
    """
    shared = content if isinstance(content, RecordDict) else RecordDict()
    contents = content if isinstance(content, Mapping) and not isinstance(content, RecordDict) else {}
    questions = [
        Message(contents.get(client, shared), dst_node_id=client, message_type=query) for client in clients
    ]
    arrived = grid.send_and_receive(questions, timeout=timeout) if questions else ()
    replies: dict[int, Message] = {}
    failures = dict.fromkeys(clients, "no reply")
    for reply in sorted(arrived, key=lambda reply: reply.metadata.src_node_id):
        client = reply.metadata.src_node_id
        if reply.has_error():
            failures[client] = str(reply.error.reason)
        else:
            replies[client] = reply
            failures.pop(client, None)
    return Answers(replies, failures)


class Asker(ABC):
    """Asks clients, and keeps what was asked and who failed.

    Parameters
    ----------
    grid
        A grid whose node ids are client ids.
    timeout
        Seconds that clients have to answer a question.
    tells
        What clients are asked to say of their rows, see :class:`~fedclust.federation.Federation`.

    Attributes
    ----------
    asked
        Types of the questions that were asked.
    covered
        Types of the questions that may be asked in a differentially private run, as ε covers what becomes of
        the answers; none but that for descriptions unless set.
    """

    def __init__(self, grid: Grid, timeout: float, tells: Tells) -> None:
        self.timeout = timeout
        self.tells = tells
        self.asked: set[str] = set()
        self.covered: Collection[str] = ()
        self._grid = grid
        self._failures: list[Failure] = []

    @property
    def grid(self) -> Grid:
        """The grid of clients."""
        return self._grid

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients K."""

    def ask(
        self,
        query: str,
        clients: Iterable[int] | None = None,
        content: RecordDict | Mapping[int, RecordDict] | None = None,
    ) -> Answers:
        """Ask clients one question.

        A client that fails is left out of the answers; the round records its failure, as in training.

        Parameters
        ----------
        query
            Message type of the question, such as ``"query.description"``.
        clients
            Ids of the clients to ask; all by default.
        content
            Content of the message: one for all, or one for each client. It may hold several models; each
            record is sent once per node, however many clients it is for.

        Returns
        -------
        The answers, and the reasons of clients that did not answer.

        Raises
        ------
        FederationError
            If the run is differentially private and this is no question for descriptions.
        """
        if self.tells == "nothing" and query not in (QUERY_DESCRIPTION, *self.covered):
            raise FederationError(f"privacy=client_dp must ask clients nothing but to train, got {query}")
        self.asked.add(query)
        asked = sorted(map(int, range(self.num_clients) if clients is None else clients))
        answers = send_questions(self._grid, query, asked, content, self.timeout)
        self._failures += [
            {"client": client, "phase": query, "reason": reason}
            for client, reason in answers.failures.items()
        ]
        return answers

    def failed(self, client: int, phase: str, error: BadReply | str) -> None:
        """Record that a client's answer could not be used."""
        self._failures.append({"client": int(client), "phase": phase, "reason": str(error)})

    def take_failures(self) -> list[Failure]:
        """Return the failures recorded since the last call."""
        taken, self._failures = self._failures, []
        return taken


def check_alike(what: str, values: Sequence[Hashable]) -> None:
    """Check that all clients have one value of something.

    Parameters
    ----------
    what
        What it is, for the message.
    values
        The value of each client, shape (K,).

    Raises
    ------
    FederationError
        If they do not; the message names the first client whose value is not that of most.
    """
    for reason in unlike(what, dict(enumerate(values))).values():
        raise FederationError(reason)


def unlike(what: str, values: Mapping[int, Hashable]) -> dict[int, str]:
    """Find the clients whose value is not that of most.

    Parameters
    ----------
    what
        What it is, for the reasons.
    values
        The value of each client, by client id.

    Returns
    -------
    A reason for each such client, by client id.
    """
    if not values:
        return {}
    usual = Counter(values.values()).most_common(1)[0][0]
    return {
        client: f"client {client} must have the {what} of most, {usual}, it has {value}"
        for client, value in values.items()
        if value != usual
    }
