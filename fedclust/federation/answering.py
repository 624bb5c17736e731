"""Who answers a federation's questions: functions in this process, or nodes behind a Flower grid.

A :class:`~fedclust.federation.Federation` asks without knowing which. :class:`Here` calls the functions of
``clients/`` with the questions' dataclasses; nothing becomes a message. :class:`Flower` writes each question
as records, sends one message to each node, and reads and checks the replies. An answer has the same values
either way: what a message would round or refuse is rounded and refused here, too. The third,
:class:`~fedclust.federation.any_app.AnyApp`, asks anybody's ClientApp to train and to evaluate.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedclust.messages.codec import CONFIG, BadReply, Reading, Sizes, decode, encode, passed
from fedclust.messages.traffic import Meter, Traffic
from fedclust.personal.staying import Kept
from fedclust.support.flower import assume_identity, is_lost
from fedclust.support.reasons import FederationError, one_line, reason_of
from fedclust.support.time_limit import interrupted, time_limit

# -- Answers ------------------------------------------------------------------------------------------------

Answer = TypeVar("Answer")

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""

NO_REPLY = "no reply"
"""The failure of a client that has not answered."""


@dataclass(frozen=True, eq=False)
class Answers(Generic[Answer]):
    """The clients' answers to one question.

    Attributes
    ----------
    replies
        The answer of each client that gave a valid one, by client id, in ascending order.
    failures
        Why each other client gave none, by client id.
    lost
        The clients of which a reply was lost with their node, so that another one may come.
    """

    replies: Mapping[int, Answer]
    failures: Mapping[int, str]
    lost: Collection[int] = ()

    def all(self) -> list[Answer]:
        """List the answers of all clients that were asked, sorted by client id.

        Raises
        ------
        FederationError
            If a client did not answer; before round 1 a method needs all clients.
        """
        for client, reason in self.failures.items():
            raise FederationError(f"client {client} must answer before round 1, it failed: {reason}")
        return list(self.replies.values())


def listed(failures: Mapping[int, str], phase: str) -> list[Failure]:
    """List failures by client id, in the form of the round's record."""
    return [{"client": client, "phase": phase, "reason": reason} for client, reason in failures.items()]


def failure_order(failure: Failure) -> tuple[bool, int]:
    """Sort failures by client id, those that did not reply last."""
    return failure["reason"] == NO_REPLY, int(failure["client"])


def check_alike(what: str, values: Sequence[Hashable]) -> None:
    """Check that all clients have the same value of something.

    Parameters
    ----------
    what
        What it is, for the message.
    values
        The value of each client, shape (K,).

    Raises
    ------
    FederationError
        If they do not; the message names the first client whose value differs from most.
    """
    usual = Counter(values).most_common(1)[0][0]
    for client, value in enumerate(values):
        if value != usual:
            must = f"client {client} must have the {what} of most, {usual!s:.200}"
            raise FederationError(f"{must}, it has {value!s:.200}")


# -- Who answers --------------------------------------------------------------------------------------------


class Answering(Protocol):
    """What a federation needs of whoever answers for its clients.

    Attributes
    ----------
    all_rows
        Whether clients are to hold no rows out of training; set before they describe theirs.
    plain
        Whether clients only train and evaluate. They then measure losses on the rows that they compare models
        on, so that a test would favour what these losses have chosen.
    keeps
        Names of the runs of which models are completed by what stays with clients: one, or those of a
        question's models A and B. Empty where nothing stays.
    keeps_of
        The same of single clients, in place of these, of which nothing is kept in this process.
    kept
        What stays with clients in this process; None if it stays elsewhere.
    cautions
        Warnings about the clients' data, a line each.
    repeats
        How often a client was asked again what it may have answered already, by the question's kind and the
        client's id.
    """

    all_rows: bool
    plain: bool
    keeps: tuple[str, ...]
    keeps_of: Mapping[int, tuple[str, ...]]

    @property
    def kept(self) -> Kept | None:
        """What stays with clients."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about the clients' data."""

    @property
    def repeats(self) -> Mapping[tuple[str, int], int]:
        """How often clients were asked again."""

    @property
    def simulated(self) -> bool:
        """Whether all clients are simulated in processes of the user."""

    @property
    def num_clients(self) -> int:
        """Number of clients, online or not."""

    @property
    def places(self) -> Sequence[Any]:
        """What identifies each client when a run is resumed, shape (K,)."""

    @property
    def traffic(self) -> Traffic | None:
        """Bytes sent and received so far; None if nobody counts."""

    def online(self) -> set[int]:
        """Return the ids of the clients that can be reached."""

    def answer(self, asked: Mapping[int, Any], timeout: float, at: Callable[[int], Reading]) -> Answers[Any]:
        """Ask clients questions of one kind.

        Parameters
        ----------
        asked
            A question for each client, by client id in ascending order, at least one; clients may share one.
        timeout
            Seconds that clients have to answer.
        at
            Returns the context and limits of a client's answer.
        """

    def newcomers(self) -> list[int]:
        """List the clients that wait to join, by their place."""

    def admit(self, places: Sequence[int]) -> list[int]:
        """Admit clients; return their ids, which they keep."""

    def withdraw(self, number: int) -> None:
        """Remove the clients that joined last."""

    def refuse(self, place: int, reason: str) -> None:
        """Leave out a client that does not fit."""


# -- In this process ----------------------------------------------------------------------------------------

Work = Callable[[Any, Mapping[int, Any]], tuple[Mapping[int, Any], Mapping[int, str]]]
"""Answers a node's questions of one kind: the answers, and the errors of all other clients, by client id."""


class Here:
    """All clients, in this process.

    Work that does not return in time ends the run, see :mod:`fedclust.support.time_limit`.

    Parameters
    ----------
    node
        The clients' data and trainer, a :class:`fedclust.clients.node.Node` that hosts all of them.
    work
        What answers each kind of question.
    """

    all_rows = False
    keeps: tuple[str, ...] = ()
    keeps_of: Mapping[int, tuple[str, ...]] = MappingProxyType({})
    plain = False
    cautions: tuple[str, ...] = ()
    repeats: Mapping[tuple[str, int], int] = MappingProxyType({})

    def __init__(self, node: Any, work: Mapping[str, Work]) -> None:
        assume_identity()  # aggregators are shown Flower's messages
        self.kept = Kept()
        self._node, self._work, self._meter = replace(node, kept=self.kept), work, Meter()

    @property
    def simulated(self) -> bool:
        """Whether all clients are simulated: they are."""
        return True

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self._node.clients)

    @property
    def places(self) -> range:
        """Id in the partition of each client, shape (K,)."""
        return range(self.num_clients)

    @property
    def traffic(self) -> Traffic:
        """Bytes that the questions and answers so far have as messages, those of one node together."""
        return self._meter.read(self.num_clients)

    def online(self) -> set[int]:
        """Return the ids of all clients."""
        return set(self.places)

    def answer(self, asked: Mapping[int, Any], timeout: float, at: Callable[[int], Reading]) -> Answers[Any]:
        """Call what answers such questions.

        Raises
        ------
        RunFailed
            If it does not return within `timeout` seconds.
        """
        distinct = {id(each): each for each in asked.values()}
        self._count("down", {key: passed(each)[1] for key, each in distinct.items()}, asked)
        kind = next(iter(asked.values())).kind
        node = self._node.without_holdout() if self.all_rows else self._node
        node = replace(node, keeps=self.keeps) if self.keeps else node
        with time_limit(timeout, f"a node's work on a message of type {kind}"):
            try:
                found, errors = self._work[kind](node, asked)
            # Whatever the user's code raises is the clients' failure and never ends the run.
            except BaseException as error:
                if interrupted(error):
                    raise
                found, errors = {}, dict.fromkeys(asked, one_line(reason_of(error)))
        failures = dict(errors)
        replies: dict[int, Any] = {}
        sizes: dict[int, Sizes] = {}
        shared: dict[tuple[int, int], Any] = {}
        for client, answer in found.items():
            try:
                reply, sizes[id(answer)] = _received(answer, at(client), shared)
            # One that cannot be written, which on a node is its client's error, too.
            except Exception as error:
                reply = BadReply(one_line(reason_of(error)))
            if isinstance(reply, BadReply):
                failures[client] = str(reply)
            else:
                replies[client] = reply
        self._count("up", sizes, {client: each for client, each in found.items() if id(each) in sizes})
        return Answers(replies, dict(sorted(failures.items())))

    def _count(self, way: str, sizes: Mapping[int, Sizes], messages: Mapping[int, Any]) -> None:
        totals = {key: sum(each.values()) for key, each in sizes.items()}
        records = {name: size for each in sizes.values() for name, size in each.items()}
        by_client = {client: totals[id(each)] for client, each in messages.items()}
        self._meter.count(way, sum(records.values()), by_client)

    def newcomers(self) -> list[int]:
        """Return nobody: all clients are here from the start."""
        return []

    def admit(self, places: Sequence[int]) -> list[int]:
        """Return the clients' ids, which are their places."""
        return list(places)

    def withdraw(self, number: int) -> None:
        """Do nothing: nobody is admitted."""

    def refuse(self, place: int, reason: str) -> None:
        """Do nothing: nobody is admitted."""


def _received(answer: Any, at: Reading, shared: dict[tuple[int, int], Any]) -> tuple[Any, Sizes]:
    """Return an answer as it would be read from a message, or why it is refused; and its bytes."""
    try:
        if isinstance(answer, at.asked.answer):
            return passed(answer, at, shared)
        return decode(at.asked.answer, encode(answer), at), passed(answer)[1]
    except BadReply as error:
        return error, passed(answer)[1]


# -- Through Flower -----------------------------------------------------------------------------------------


class Flower:
    """The clients of a Flower grid whose node ids are client ids.

    Parameters
    ----------
    grid
        The grid, such as a :class:`~fedclust.grids.client_grid.ClientGrid`.

    Raises
    ------
    ValueError
        If the nodes of another grid are not 0…K−1.
    """

    kept = None
    plain = False

    def __init__(self, grid: Grid) -> None:
        self.grid: Any = grid
        self._known = None
        if not isinstance(getattr(grid, "num_clients", None), int):  # else it knows those offline, too
            clients = sorted(grid.get_node_ids())
            if not clients or clients != list(range(len(clients))):
                raise ValueError(f"grid must have clients 0..K-1, got {clients[:10]}")
            self._known = len(clients)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about sites' data, a line each; none from a grid without sites."""
        return tuple(getattr(self.grid, "cautions", ()))

    @property
    def repeats(self) -> Mapping[tuple[str, int], int]:
        """How often clients were asked again; unknown from a grid that is not fedclust's."""
        return getattr(self.grid, "repeats", {})

    @property
    def simulated(self) -> bool:
        """Whether the nodes run in processes of the user."""
        return bool(getattr(self.grid, "simulated", False))

    @property
    def all_rows(self) -> bool:
        """Whether clients are to hold no rows out of training."""
        return bool(getattr(self.grid, "all_rows", False))

    @all_rows.setter
    def all_rows(self, value: bool) -> None:
        self.grid.all_rows = value

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the runs of which models are completed by what stays with clients."""
        return tuple(getattr(self.grid, "keeps", ()))

    @keeps.setter
    def keeps(self, names: tuple[str, ...]) -> None:
        if names or self.keeps:
            self.grid.keeps = names

    @property
    def keeps_of(self) -> Mapping[int, tuple[str, ...]]:
        """The same of single clients."""
        return dict(getattr(self.grid, "keeps_of", {}))

    @keeps_of.setter
    def keeps_of(self, names: Mapping[int, tuple[str, ...]]) -> None:
        if names or self.keeps_of:
            self.grid.keeps_of = names

    @property
    def num_clients(self) -> int:
        """Number of clients, including those offline if the grid knows them."""
        return self._known or int(self.grid.num_clients)

    @property
    def places(self) -> Sequence[Any]:
        """What identifies each client when a run is resumed, shape (K,)."""
        return getattr(self.grid, "places", range(self.num_clients))

    @property
    def traffic(self) -> Traffic | None:
        """Bytes sent and received so far; None for a grid that does not count."""
        return getattr(self.grid, "traffic", None)

    def online(self) -> set[int]:
        """Return the ids of the clients that can be reached."""
        return set(self.grid.get_node_ids())

    def answer(self, asked: Mapping[int, Any], timeout: float, at: Callable[[int], Reading]) -> Answers[Any]:
        """Write the questions as messages, send them, and read and check the replies."""
        questions = {id(each): each for each in asked.values()}
        contents = {key: _content(each) for key, each in questions.items()}
        kind, answer = next((each.kind, each.answer) for each in asked.values())
        messages = [Message(contents[id(each)], client, kind) for client, each in asked.items()]
        sent = self.grid.send_and_receive(messages, timeout=timeout)
        arrived = {message.metadata.src_node_id: message for message in sent}
        replies: dict[int, Any] = {}
        failures: dict[int, str] = {}
        lost = {client for client, each in arrived.items() if is_lost(each)}
        for client in asked:
            try:
                if (message := arrived.get(client)) is None:
                    raise BadReply(NO_REPLY)
                if message.has_error():
                    raise BadReply(str(message.error.reason))
                replies[client] = decode(answer, message.content, at(client))
            except BadReply as error:
                failures[client] = str(error)
        return Answers(replies, failures, lost)

    def newcomers(self) -> list[int]:
        """List the clients that wait to join, by their place; nobody where the grid knows none."""
        return self.grid.newcomers() if hasattr(self.grid, "newcomers") else []

    def admit(self, places: Sequence[int]) -> list[int]:
        """Admit clients; return their ids, which they keep."""
        return self.grid.admit(places)

    def withdraw(self, number: int) -> None:
        """Remove the clients that joined last."""
        self.grid.withdraw(number)

    def refuse(self, place: int, reason: str) -> None:
        """Leave out a client that does not fit."""
        self.grid.refuse(place, reason)


def _content(question: Any) -> RecordDict:
    """Write a question, with the user's own entries beside those of its fields."""
    content = encode(question)
    if extra := getattr(question, "extra", None):
        content[CONFIG] = ConfigRecord({**extra, **content.config_records[CONFIG]})
    return content
