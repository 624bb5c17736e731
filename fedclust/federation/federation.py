"""The questions that a clustering method may ask its federation."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedclust.aggregation.replies import too_long, too_long_line
from fedclust.federation.asking import Answers, Asker, send_questions
from fedclust.federation.descriptions import Descriptions, combine, misfit
from fedclust.grids.bundle import Traffic
from fedclust.messages.codec import Bounds
from fedclust.messages.description import Description, DescriptionQuestion, Names
from fedclust.messages.evaluation import LossesQuestion, WinsQuestion
from fedclust.messages.training import Projection, Update, UpdateQuestion
from fedclust.privacy import Tells
from fedclust.settings.run_options import DEFAULT_CAP
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Described:
    """What all clients said of themselves, see :class:`fedclust.messages.Description`; K clients, C classes.

    Attributes
    ----------
    train_counts, test_counts
        Shape (K, C).
    num_validation
        Shape (K,).
    about
        Group and name of each client.
    mean, std, names
        The same for all.
    """

    train_counts: IntArray
    test_counts: IntArray
    num_validation: IntArray
    about: Any
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: Names

    @classmethod
    def of(cls, answers: Sequence[Description]) -> "Described":
        """Combine the clients' answers."""
        return cls(
            np.stack([each.train_counts for each in answers]),
            np.stack([each.test_counts for each in answers]),
            np.array([each.num_validation for each in answers], dtype=np.int64),
            [[each.group, each.name] for each in answers],
            answers[0].mean,
            answers[0].std,
            answers[0].names,
        )

    def answers(self) -> list[Description]:
        """List the answer of each client."""
        return [
            Description.of(
                train,
                test,
                known_group=group,
                mean=self.mean,
                std=self.std,
                name=name,
                names=self.names,
                num_validation=int(held_out),
            )
            for train, test, held_out, (group, name) in zip(
                self.train_counts, self.test_counts, self.num_validation, self.about, strict=True
            )
        ]


@dataclass(frozen=True, eq=False)
class RosterState:
    """Who had joined a run and where, for a checkpoint.

    Attributes
    ----------
    places
        Where each client is hosted, see :attr:`fedclust.grids.ClientGrid.places`.
    joined
        The round in which each joined, 0 for those at the start.
    described
        What they said of themselves; None if nobody was asked.
    """

    places: Any = ()
    joined: tuple[int, ...] = ()
    described: Described | None = None

    def roster(self) -> "Roster":
        """Make the roster of a run that goes on."""
        made = Roster(self.joined)
        made.earlier = dict(enumerate(self.described.answers() if self.described else ()))
        return made


class Roster:
    """The clients of a federation in the order in which they joined, which is that of their ids.

    All runs over one federation share it: those that a run is compared with have every client join in the
    round in which it joined that run.

    Parameters
    ----------
    joined
        The round in which each client joined, 0 for those at the start, in ascending order, shape (K,).

    Attributes
    ----------
    answers
        What clients said of themselves, by client id; also of clients that take no part.
    earlier
        What they said before a run was interrupted, for those that have left.
    open
        Whether clients may still join.
    """

    def __init__(self, joined: Sequence[int]) -> None:
        self.joined = list(map(int, joined))
        self.answers: dict[int, Description] = {}
        self.earlier: dict[int, Description] = {}
        self.open = True

    def count(self, server_round: int | None = None) -> int:
        """Count the clients that have joined by a round; all of them for None."""
        if server_round is None:
            return len(self.joined)
        return sum(each <= server_round for each in self.joined)

    def admit(
        self,
        grid: Grid,
        server_round: int,
        described: Callable[[], Descriptions],
        tells: Tells,
        timeout: float,
    ) -> None:
        """Ask the clients that are waiting to describe themselves, and let those join that fit.

        Parameters
        ----------
        grid
            The clients; only a grid that has newcomers can have somebody waiting.
        server_round
            The round in which they join.
        described
            Returns what the others said of themselves; called only if somebody is waiting.
        tells, timeout
            As for :class:`fedclust.federation.Federation`.
        """
        door: Any = grid
        places = door.newcomers() if hasattr(grid, "newcomers") else []
        if not places:
            return
        asked, others = door.admit(places), described()
        answers = send_questions(grid, DescriptionQuestion(tells), asked, timeout)
        door.withdraw(len(asked))
        fitting: dict[int, Description] = {}
        for client, place in zip(asked, places, strict=True):
            answer = answers.replies.get(client)
            reason = answers.failures[client] if answer is None else misfit(answer, others)
            if answer is None or reason:
                door.refuse(place, reason.removeprefix(f"client {client}: "))
            else:
                fitting[place] = answer
        door.admit(list(fitting))
        for answer in fitting.values():
            self.answers[len(self.joined)] = answer
            self.joined.append(server_round)


class Federation(Asker):
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
        super().__init__(grid, timeout, tells)
        clients = _all_clients(grid)
        if not 0 <= num_newcomers < clients:
            raise ValueError(f"num_newcomers must be in 0 to {clients - 1}, got {num_newcomers}")
        self._num_newcomers = num_newcomers
        self._roster = roster or Roster([0] * (clients - num_newcomers))
        self.num_rounds = num_rounds
        self.turns: IntArray = np.zeros(clients - num_newcomers, dtype=np.int64)
        self._descriptions: Descriptions | None = None
        self._description_traffic: Traffic | None = None
        self._described = False
        self._bounds = Bounds(own_metrics=frozenset(own_metrics), least_loss=least_loss)

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

    def roster_state(self) -> RosterState:
        """Return who has joined and when, for a checkpoint, see :class:`.RunState`."""
        places = getattr(self._grid, "places", range(self.num_clients))[: self.num_clients]
        described = None
        if self._descriptions is not None:
            described = Described.of([self._roster.answers[client] for client in range(self.num_clients)])
        return RosterState(list(places), tuple(self._roster.joined[: self.num_clients]), described)

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
        other.covered = self.covered
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
            self._roster.admit(self._grid, server_round, self._known, self.tells, self.timeout)
        last = self._roster.count(server_round)
        if last > first:
            self.turns = np.append(self.turns, np.zeros(last - first, dtype=np.int64))
            if self._descriptions is not None:
                self._descriptions = self._combine()
        return np.arange(first, last)

    def close(self) -> None:
        """Let nobody join any more: runs that are compared are to have the same clients."""
        self._roster.open = False

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

    def _ask_descriptions(self, clients: Sequence[int]) -> dict[int, Description]:
        """Ask clients to describe themselves; those that have left are as a checkpoint has them."""
        earlier = self._roster.earlier
        answers = self.ask(DescriptionQuestion(self.tells), clients)
        left = {client: earlier[client] for client in answers.failures if client in earlier}
        missing = {client: why for client, why in answers.failures.items() if client not in left}
        Answers(answers.replies, missing).all()
        return {**answers.replies, **left}

    def _combine(self) -> Descriptions:
        """Combine the descriptions of this run's clients, and bound what they may reply by them."""
        answers = [self._roster.answers[client] for client in range(self.num_clients)]
        described, told = combine(answers, self.tells), self.tells != "nothing"
        self._bounds = replace(
            self._bounds,
            num_train=described.num_train if told else None,
            num_test=described.num_test if told else None,
            num_validation=described.num_validation if told else None,
            num_classes=described.num_classes,
        )
        return described

    def describe_newcomers(self, newcomers: Iterable[int]) -> dict[int, Description]:
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
        for client, answer in self.ask(DescriptionQuestion(self.tells), unknown).replies.items():
            if reason := misfit(answer, described):
                self.failed(client, DescriptionQuestion.kind, reason)
            else:
                known[client] = answer
        return {client: known[client] for client in wanted if client in known}

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
        answers = self.ask(LossesQuestion(tuple(models)), clients)
        return {client: answer.losses for client, answer in answers.replies.items()}

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
        answers = self.ask(WinsQuestion(tuple(models)), clients)
        return {client: answer.wins for client, answer in answers.replies.items()}

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
            :meth:`fedclust.strategies.ClusteredStrategy.update_projection`; None for none.
        names
            Arrays of the model whose change is returned without projection.
        cap
            How many times the median of the answers a change may be long, see
            :mod:`fedclust.aggregation.replies`; None for any length.

        Returns
        -------
        The changes by client id, in ascending order. Clients that failed are left out and recorded.
        """
        question = UpdateQuestion.of(model, server_round, names, projection)
        return self._not_too_long(dict(self.ask(question, clients).replies), cap)

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
                    UpdateQuestion.kind,
                    f"client {client}: {too_long_line(update.norm, long[position], cap)}",
                )
        return {
            client: update for position, (client, update) in enumerate(found.items()) if position not in long
        }

    def _traffic(self) -> Traffic | None:
        found: Traffic | None = getattr(self._grid, "traffic", None)
        return found


def _all_clients(grid: Grid) -> int:
    """Count the clients of a grid, also those that are offline now, where the grid knows them."""
    known = getattr(grid, "num_clients", None)
    if isinstance(known, int):
        return known
    clients = sorted(grid.get_node_ids())
    if not clients or clients != list(range(len(clients))):
        raise ValueError(f"grid must know clients 0..K-1, it knows {clients[:10]}")
    return len(clients)
