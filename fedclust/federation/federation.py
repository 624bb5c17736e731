"""The questions that a clustering method may ask its federation."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedclust import records
from fedclust.clustering.shared.projection import Projection
from fedclust.federation.client_grid import FederationError
from fedclust.federation.optimiser_state import StateValue
from fedclust.federation.roster import Roster
from fedclust.federation.traffic import Traffic
from fedclust.federation.update_norms import DEFAULT_CAP, too_long
from fedclust.privacy.settings import Tells
from fedclust.records import BadReply, Bounds, Update
from fedclust.typing import FloatArray, IntArray

__all__ = ["Answers", "Descriptions", "Failure", "Federation", "check_alike", "left_out_line", "unlike"]

_SHOWN = 10

Answer = TypeVar("Answer")
Values = TypeVar("Values", FloatArray, IntArray)

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""


@dataclass(frozen=True, eq=False)
class Descriptions:
    """All clients' label counts, known groups and names.

    Attributes
    ----------
    counts
        Number of samples of each client and class in its own training and test part, each of shape (K, C);
        None where clients were not asked for them.
    num_train, num_test
        Number of samples of each client in its training and test part, shape (K,); 0 where not asked for.
    num_classes
        Number of classes C.
    groups
        The known grouping, shape (K,), or None if a client has none.
    mean, std
        The numbers that the first client subtracts from and divides each channel of its images by.
    class_names
        Names of the classes in label order, shape (C,); empty if clients have none.
    client_names
        Name of each client in the data (a hospital, a writer, a user), shape (K,); None if one has none.
    left_out
        Names of those with too few examples to be a client, and their numbers of examples, from client 0.
    num_validation
        Number of each client's training rows that are held out for the proof, shape (K,); empty if unknown.
    """

    counts: tuple[IntArray, IntArray] | None
    num_train: IntArray
    num_test: IntArray
    num_classes: int
    groups: IntArray | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_validation: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def train_counts(self) -> IntArray:
        """Number of training samples of each client and class, shape (K, C).

        Raises
        ------
        FederationError
            If clients were not asked for them.
        """
        return self._counts()[0]

    @property
    def test_counts(self) -> IntArray:
        """Number of test samples of each client and class, shape (K, C); raises as :attr:`train_counts`."""
        return self._counts()[1]

    def _counts(self) -> tuple[IntArray, IntArray]:
        if self.counts is None:
            raise FederationError(
                "label counts were not asked for, by privacy.label_counts=false or client_dp"
            )
        return self.counts


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


class Federation:
    """The clients, for a method to ask.

    Parameters
    ----------
    grid
        A grid whose node ids are client ids.
    num_rounds
        Rounds of the run.
    timeout
        Seconds that clients have to answer a question.
    own_metrics
        Names of the user's own metrics, which clients measure besides the usual ones.
    least_loss
        Least value of the loss: 0 for cross-entropy; minus infinity where unknown.
    tells
        What clients are asked to say of their rows: ``"labels"``, their number of each class; ``"sizes"``,
        their number; ``"nothing"``, after which no other question may be asked either.
    num_newcomers
        Clients of the grid that take no part, those with the highest ids: they are asked only by their ids.
    roster
        Of a run that goes on, who had joined; all clients of the grid at the start unless given.

    Attributes
    ----------
    turns
        How many rounds each client has been chosen for so far, shape (K,).
    asked
        Types of the questions that were asked, by any run over these clients.
    covered
        Types of the questions that may be asked in a differentially private run, as ε covers what becomes of
        the answers; none but that for descriptions unless set.
    """

    def __init__(
        self,
        grid: Grid,
        num_rounds: int = 1,
        timeout: float = 3600,
        *,
        own_metrics: Collection[str] = (),
        least_loss: float = -math.inf,
        tells: Tells = "labels",
        num_newcomers: int = 0,
        roster: Roster | None = None,
    ) -> None:
        clients = _all_clients(grid)
        if not 0 <= num_newcomers < clients:
            raise ValueError(f"num_newcomers must be in 0 to {clients - 1}, got {num_newcomers}")
        self._num_newcomers = num_newcomers
        self._roster = roster or Roster([0] * (clients - num_newcomers))
        self.num_rounds = num_rounds
        self.timeout = timeout
        self.tells = tells
        self.asked: set[str] = set()
        self.covered: Collection[str] = ()
        self.turns: IntArray = np.zeros(clients - num_newcomers, dtype=np.int64)
        self._grid = grid
        self._descriptions: Descriptions | None = None
        self._description_traffic: Traffic | None = None
        self._described = False
        self._failures: list[Failure] = []
        self._bounds = Bounds(own_metrics=frozenset(own_metrics), least_loss=least_loss)

    @property
    def bounds(self) -> Bounds:
        """What clients may say of themselves: of rows and classes, what they described, once they have."""
        return self._bounds

    @property
    def grid(self) -> Grid:
        """The grid of clients."""
        return self._grid

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return len(self.turns)

    @property
    def newcomers(self) -> tuple[int, ...]:
        """Ids of the clients that take no part: K, K+1, …"""
        return tuple(range(self.num_clients, self.num_clients + self._num_newcomers))

    @property
    def joined(self) -> IntArray:
        """Round in which each client joined, 0 for those at the start, shape (K,)."""
        return np.array(self._roster.joined[: self.num_clients], dtype=np.int64)

    def attendance(self) -> dict[str, StateValue]:
        """Return who has joined and when, for a checkpoint, see :class:`RunState`."""
        places = getattr(self._grid, "places", range(self.num_clients))[: self.num_clients]
        clients = range(self.num_clients) if self._descriptions is not None else ()
        return {"places": json.dumps(list(places)), **self._roster.pack(self.num_clients, clients)}

    def run(self, num_rounds: int, timeout: float, after: int | None = None) -> "Federation":
        """Make the federation of another run over the same clients; it reuses their descriptions.

        Parameters
        ----------
        num_rounds, timeout
            Of that run.
        after
            The round after which it goes on, 0 for one that begins: it has the clients that had joined by
            then, and the others join in the rounds in which they did. None: all that have joined so far.
        """
        other = Federation(
            self._grid, num_rounds, timeout, tells=self.tells, num_newcomers=self._num_newcomers
        )
        other._roster, other._bounds, other.asked = self._roster, self._bounds, self.asked
        other._description_traffic = self._description_traffic
        other.turns = np.zeros(self._roster.count(after), dtype=np.int64)
        if self._descriptions is not None:
            same = other.num_clients == self.num_clients
            other._descriptions = self._descriptions if same else other._combine()
        return other

    def welcome(self, server_round: int) -> IntArray:
        """Let clients that are waiting join, at the beginning of a round.

        Returns
        -------
        Ids of those that join, sorted: they follow those of all others.
        """
        first = self.num_clients
        if self._roster.open and self._roster.count() == first and not self._num_newcomers:
            self._admit(server_round)
        last = self._roster.count(server_round)
        if last > first:
            self.turns = np.append(self.turns, np.zeros(last - first, dtype=np.int64))
            if self._descriptions is not None:
                self._descriptions = self._combine()
        return np.arange(first, last)

    def close(self) -> None:
        """Let nobody join any more: runs that are compared are to have the same clients."""
        self._roster.open = False

    def _admit(self, server_round: int) -> None:
        """Ask the clients that are waiting to describe themselves, and let those join that fit."""
        grid: Any = self._grid
        places = grid.newcomers() if hasattr(grid, "newcomers") else []
        if not places:
            return
        asked = grid.admit(places)
        described = self._known()
        failures = list(self._failures)
        answers = self._ask_to_describe(asked)
        self._failures = failures  # they are no clients yet
        grid.withdraw(len(asked))
        fitting: dict[int, records.Description] = {}
        for client, place in zip(asked, places, strict=True):
            try:
                if client in answers.failures:
                    raise BadReply(answers.failures[client])
                fitting[place] = _fitting(self._read_description(answers.replies[client]), described)
            except BadReply as error:
                grid.refuse(place, str(error).removeprefix(f"client {client}: "))
        grid.admit(list(fitting))
        self._roster.add(server_round, list(fitting.values()))

    @property
    def description_traffic(self) -> Traffic | None:
        """Bytes of asking for the descriptions, where :meth:`describe` was called here; else None.

        Descriptions are asked for once, before any run, for its tables; this is how a run whose method used
        them comes to count them.
        """
        return self._description_traffic if self._described else None

    def describe(self) -> Descriptions:
        """Get every client's label counts, known group and names; clients are asked only once.

        Raises
        ------
        FederationError
            If a client cannot answer, or has another number of classes or other names for them than most.
        """
        self._described = True
        return self._known()

    @property
    def descriptions(self) -> Descriptions | None:
        """What :meth:`describe` returns, if it has been called for this or another run; nobody is asked."""
        return self._descriptions

    def _known(self) -> Descriptions:
        if self._descriptions is None:
            before = self._traffic()
            unknown = [client for client in range(self.num_clients) if client not in self._roster.answers]
            self._roster.answers |= self._ask_descriptions(unknown)
            self._descriptions = self._combine()
            after = self._traffic()
            if before is not None and after is not None:
                self._description_traffic = after.since(before)
        return self._descriptions

    def _ask_descriptions(self, clients: Sequence[int]) -> dict[int, records.Description]:
        """Ask clients to describe themselves; those that have left are as a checkpoint has them."""
        earlier = self._roster.earlier
        answers = self._ask_to_describe(clients)
        left = {client: earlier[client] for client in answers.failures if client in earlier}
        missing = {client: why for client, why in answers.failures.items() if client not in left}
        found = Answers(answers.replies, missing).read_all(self._read_description)
        return {**dict(zip(answers.replies, found, strict=True)), **left}

    def _ask_to_describe(self, clients: Iterable[int]) -> Answers:
        return self.ask(records.QUERY_DESCRIPTION, clients, records.description_question(self.tells))

    def _read_description(self, reply: Message) -> records.Description:
        return records.read_description(reply, tells=self.tells)

    def _combine(self) -> Descriptions:
        """Combine the descriptions of this run's clients, and bound what they may reply by them."""
        answers = [self._roster.answers[client] for client in range(self.num_clients)]
        described, told = _described(answers, self.tells), self.tells != "nothing"
        self._bounds = replace(
            self._bounds,
            num_train=described.num_train if told else None,
            num_test=described.num_test if told else None,
            num_validation=described.num_validation if told else None,
            num_classes=described.num_classes,
        )
        return described

    def describe_newcomers(self, newcomers: Iterable[int]) -> dict[int, records.Description]:
        """Get the label counts, known group and name of clients that came later; each is asked only once.

        Parameters
        ----------
        newcomers
            Their ids.

        Returns
        -------
        By client id. A client that fails, or has other classes than the others, is left out and recorded.
        """
        described, wanted, known = self.describe(), list(map(int, newcomers)), self._roster.answers
        unknown = [client for client in wanted if client not in known]
        for client, reply in self._ask_to_describe(unknown).replies.items():
            try:
                known[client] = _fitting(self._read_description(reply), described)
            except BadReply as error:
                self.failed(client, records.QUERY_DESCRIPTION, error)
        return {client: known[client] for client in wanted if client in known}

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
        if self.tells == "nothing" and query not in (records.QUERY_DESCRIPTION, *self.covered):
            raise FederationError(f"privacy=client_dp must ask clients nothing but to train, got {query}")
        self.asked.add(query)
        asked = sorted(map(int, range(self.num_clients) if clients is None else clients))
        shared = content if isinstance(content, RecordDict) else RecordDict()
        contents = content if isinstance(content, Mapping) and not isinstance(content, RecordDict) else {}
        questions = [
            Message(contents.get(client, shared), dst_node_id=client, message_type=query) for client in asked
        ]
        arrived = self._grid.send_and_receive(questions, timeout=self.timeout) if questions else ()
        replies: dict[int, Message] = {}
        failures = dict.fromkeys(asked, "no reply")
        for reply in sorted(arrived, key=lambda reply: reply.metadata.src_node_id):
            client = reply.metadata.src_node_id
            if reply.has_error():
                failures[client] = str(reply.error.reason)
            else:
                replies[client] = reply
                failures.pop(client, None)
        self._failures += [
            {"client": client, "phase": query, "reason": reason} for client, reason in failures.items()
        ]
        return Answers(replies, failures)

    def losses(self, models: Sequence[ArrayRecord], clients: Iterable[int]) -> dict[int, FloatArray]:
        """Ask clients for the loss of each of several models.

        Every model is sent once per node, and a node measures all of them in one pass.

        Parameters
        ----------
        models
            The models, such as :attr:`Clusters.models`.
        clients
            Ids of the clients to ask.

        Returns
        -------
        By client id, the mean loss of each model on the client's whole training part, in nats, shape
        (models,). Clients that failed are left out and recorded.
        """
        return self._fits(models, clients, records.read_losses)

    def wins(self, models: Sequence[ArrayRecord], clients: Iterable[int]) -> dict[int, IntArray]:
        """Ask clients on how many of their training rows each of several models has the smallest loss.

        The question is that of :meth:`losses`, and costs the same.

        Parameters
        ----------
        models
            The models.
        clients
            Who is asked.

        Returns
        -------
        By client id, the number of rows of each model, shape (models,); on a tie the row counts for the
        first. Clients that failed are left out and recorded.
        """
        return self._fits(models, clients, records.read_wins)

    def _fits(
        self,
        models: Sequence[ArrayRecord],
        clients: Iterable[int],
        read: Callable[[Message, int, Bounds], Values],
    ) -> dict[int, Values]:
        answers = self.ask(records.QUERY_LOSSES, clients, records.losses_question(models))
        measured: dict[int, Values] = {}
        for client, reply in answers.replies.items():
            try:
                measured[client] = read(reply, len(models), self._bounds)
            except BadReply as error:
                self.failed(client, records.QUERY_LOSSES, error)
        return measured

    def updates(
        self,
        model: ArrayRecord,
        clients: Iterable[int],
        server_round: int,
        *,
        projection: Projection | None = None,
        names: Sequence[str] = (),
        cap: float | None = DEFAULT_CAP,
    ) -> dict[int, Update]:
        """Ask clients to train a model as in a round and to return only its change, not the model.

        Parameters
        ----------
        model
            The model to start from.
        clients
            Ids of the clients to ask.
        server_round
            The round whose batches and learning rate they use.
        projection
            Projection of the change of all trained parameters, see
            :meth:`fedclust.strategies.hooks.Hooks.update_projection`; None for none.
        names
            Arrays of the model whose change is returned without projection.
        cap
            How many times the median of the answers a change may be long, see
            :mod:`fedclust.federation.update_norms`; None for any length.

        Returns
        -------
        The changes by client id, in ascending order. Clients that failed are left out and recorded.
        """
        question = records.update_question(model, server_round, projection, names)
        answers = self.ask(records.QUERY_UPDATE, clients, question)
        found: dict[int, Update] = {}
        for client, reply in answers.replies.items():
            try:
                found[client] = records.read_update(reply, model, projection, names, self._bounds)
            except BadReply as error:
                self.failed(client, records.QUERY_UPDATE, error)
        return self._not_too_long(found, cap)

    def _not_too_long(self, found: dict[int, Update], cap: float | None) -> dict[int, Update]:
        """Leave out and record the changes that are many times as long as the others."""
        if cap is None or not found:
            return found
        norms = [update.norm for update in found.values()]
        long = too_long(norms, norms, [0] * len(norms), cap)
        for position, (client, update) in enumerate(found.items()):
            if position in long:
                self.failed(
                    client,
                    records.QUERY_UPDATE,
                    f"client {client}: update must be at most {cap:g} times as long as the median of "
                    f"{long[position]:.3g}, its length is {update.norm:.3g}",
                )
        return {
            client: update for position, (client, update) in enumerate(found.items()) if position not in long
        }

    def failed(self, client: int, phase: str, error: BadReply | str) -> None:
        """Record that a client's answer could not be used."""
        self._failures.append({"client": int(client), "phase": phase, "reason": str(error)})

    def _traffic(self) -> Traffic | None:
        found: Traffic | None = getattr(self._grid, "traffic", None)
        return found

    def take_failures(self) -> list[Failure]:
        """Return the failures recorded since the last call."""
        taken, self._failures = self._failures, []
        return taken


def _all_clients(grid: Grid) -> int:
    """Count the clients of a grid, also those that are offline now, where the grid knows them."""
    known = getattr(grid, "num_clients", None)
    if isinstance(known, int):
        return known
    clients = sorted(grid.get_node_ids())
    if not clients or clients != list(range(len(clients))):
        raise ValueError(f"grid must know clients 0..K-1, it knows {clients[:10]}")
    return len(clients)


def _fitting(answer: records.Description, described: Descriptions) -> records.Description:
    """Return the description of a client that comes later, if its classes are those of the others."""
    number = described.num_classes
    if len(answer.train_counts) != number:
        raise BadReply(
            f"classes must be as many as the others have, {number}, got {len(answer.train_counts)}"
        )
    if answer.names.classes != described.class_names:
        theirs, own = _shortened(described.class_names), _shortened(answer.names.classes)
        raise BadReply(f"class names must be those of the others, {theirs}, got {own}")
    return answer


def _described(answers: Sequence[records.Description], tells: Tells) -> Descriptions:
    """Combine the answers of all clients."""
    check_alike("number of classes", [len(answer.train_counts) for answer in answers])
    first = answers[0]
    for client, answer in enumerate(answers):
        # If label 3 is another class on one node, training goes wrong without any error.
        if answer.names.classes != first.names.classes:
            raise FederationError(
                f"all clients must have the same class names, client 0 has {_shortened(first.names.classes)} "
                f"and client {client} {_shortened(answer.names.classes)}"
            )
    groups = [answer.group for answer in answers if answer.group is not None]
    names = [answer.name for answer in answers if answer.name is not None]
    train = np.stack([answer.train_counts for answer in answers])
    test = np.stack([answer.test_counts for answer in answers])
    return Descriptions(
        counts=(train, test) if tells == "labels" else None,
        num_train=train.sum(axis=1),
        num_test=test.sum(axis=1),
        num_classes=train.shape[1],
        groups=np.asarray(groups, dtype=np.int64) if len(groups) == len(answers) else None,
        mean=first.mean,
        std=first.std,
        class_names=first.names.classes,
        client_names=tuple(names) if len(names) == len(answers) else None,
        left_out=first.names.left_out,
        num_validation=np.array([answer.num_validation for answer in answers]),
    )


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


def left_out_line(left_out: Mapping[str, int]) -> str | None:
    """List those with too few examples to be a client, for the user; None if there are none."""
    if not left_out:
        return None
    shown = [f"{name} ({rows})" for name, rows in list(left_out.items())[:_SHOWN]]
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    return f"left out, too few examples to be a client: {len(left_out)}, {', '.join(shown)}{more}"


def _shortened(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''} ({len(names)})"
