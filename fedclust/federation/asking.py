"""Ask clients a question, collect their answers, and check that these agree."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedclust.grids.client_grid import FederationError
from fedclust.messages.codec import BadReply, Bounds, Question, Reading, decode, encode
from fedclust.messages.description import DescriptionQuestion
from fedclust.privacy import Tells

Answer = TypeVar("Answer")

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""


@dataclass(frozen=True, eq=False)
class Answers(Generic[Answer]):
    """The clients' answers to one question.

    Attributes
    ----------
    replies
        The answer of each client that gave a valid one, by client id, in ascending order.
    failures
        Why each other client did not, by client id.
    """

    replies: Mapping[int, Answer]
    failures: Mapping[int, str]

    def all(self) -> list[Answer]:
        """List the answers of all clients that were asked, sorted by client id.

        Raises
        ------
        FederationError
            If a client did not answer, with its reason: before round 1 a method needs all clients.
        """
        for client, reason in self.failures.items():
            raise FederationError(f"client {client} must answer before round 1, it failed: {reason}")
        return list(self.replies.values())


def send_questions(
    grid: Grid,
    question: Question[Answer] | Mapping[int, Question[Answer]],
    clients: Collection[int],
    timeout: float,
    bounds: Bounds | None = None,
    server_round: int | None = None,
) -> Answers[Answer]:
    """Send a question to clients, wait for their answers, and check them.

    Parameters
    ----------
    grid
        A grid whose node ids are client ids.
    question
        One for all, or one for each client. Records that several hold are sent once per node.
    clients
        Ids of the clients to ask.
    timeout
        Seconds that clients have to answer.
    bounds
        What clients may say of themselves.
    server_round
        The round, for error messages.
    """
    asked = question if isinstance(question, Mapping) else dict.fromkeys(clients, question)
    contents = {id(each): encode(each) for each in asked.values()}
    sent = [
        Message(contents[id(asked[client])], dst_node_id=client, message_type=asked[client].kind)
        for client in clients
    ]
    arrived = grid.send_and_receive(sent, timeout=timeout) if sent else ()
    replies: dict[int, Answer] = {}
    failures = dict.fromkeys(clients, "no reply")
    for reply in sorted(arrived, key=lambda reply: reply.metadata.src_node_id):
        client = reply.metadata.src_node_id
        at = Reading(client, server_round, bounds or Bounds(), asked[client])
        try:
            replies[client] = read_reply(asked[client].answer, reply, at)
        except BadReply as error:
            failures[client] = str(error)
        else:
            failures.pop(client, None)
    return Answers(replies, failures)


def read_reply(answer: type[Answer], reply: Message, at: Reading) -> Answer:
    """Read a client's reply, which may be an error.

    Raises
    ------
    BadReply
        If it is one, or cannot be used.
    """
    if reply.has_error():
        raise BadReply(str(reply.error.reason))
    return decode(answer, reply.content, at)


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
        self._bounds = Bounds()
        self._failures: list[Failure] = []

    @property
    def grid(self) -> Grid:
        """The grid of clients."""
        return self._grid

    @property
    def bounds(self) -> Bounds:
        """What clients may say of themselves: of rows and classes, what they described, once they have."""
        return self._bounds

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients K."""

    def ask(
        self,
        question: Question[Answer] | Mapping[int, Question[Answer]],
        clients: Iterable[int] | None = None,
        server_round: int | None = None,
    ) -> Answers[Answer]:
        """Ask clients one question.

        A client that fails, or whose answer cannot be used, is left out of the answers; the round records its
        failure, as in training.

        Parameters
        ----------
        question
            One for all, or one for each client by client id. It may hold several models; each record is sent
            once per node, however many clients it is for.
        clients
            Ids of the clients to ask; unless given, those that have a question, or all.
        server_round
            The round, for error messages; None outside of rounds.

        Returns
        -------
        The answers, and the reasons of clients without one.

        Raises
        ------
        FederationError
            If the run is differentially private and this is no question for descriptions.
        """
        if isinstance(question, Mapping):
            if not question:
                return Answers({}, {})
            kind, who = next(iter(question.values())).kind, list(question)
        else:
            kind, who = question.kind, list(range(self.num_clients))
        asked = sorted(map(int, who if clients is None else clients))
        if self.tells == "nothing" and kind not in (DescriptionQuestion.kind, *self.covered):
            raise FederationError(f"privacy=client_dp must ask clients nothing but to train, got {kind}")
        self.asked.add(kind)
        answers = send_questions(self._grid, question, asked, self.timeout, self._bounds, server_round)
        for client, reason in answers.failures.items():
            self.failed(client, kind, reason)
        return answers

    def failed(self, client: int, phase: str, reason: str) -> None:
        """Record that a client's answer could not be used."""
        self._failures.append({"client": int(client), "phase": phase, "reason": reason})

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
