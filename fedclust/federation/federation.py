"""Represent the clients of a run: ask them questions, keep their descriptions, and let clients join."""

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedclust.data.targets import Target, from_text, to_text
from fedclust.federation.answering import (
    Answer,
    Answering,
    Answers,
    Failure,
    Flower,
    check_alike,
    failure_order,
    listed,
)
from fedclust.messages.codec import Bounds, Question, Reading
from fedclust.messages.description import Description, DescriptionQuestion, Names
from fedclust.messages.evaluation import EvaluateQuestion, Evaluation, LossesQuestion, WinsQuestion
from fedclust.messages.models import canonical
from fedclust.messages.replies import Reply, too_long, too_long_line
from fedclust.messages.traffic import Traffic
from fedclust.messages.training import Instruction, Projection, Update, UpdateQuestion
from fedclust.privacy import Disclosed
from fedclust.proof.paired import counted
from fedclust.proof.words import CLASSES, Words
from fedclust.settings.run_options import DEFAULT_CAP
from fedclust.support.checks import few, plural
from fedclust.support.reasons import FederationError
from fedclust.typing import FloatArray, IntArray

# -- Descriptions -------------------------------------------------------------------------------------------

_SHOWN = 10
_NAMED = 3
_FEW_PASSES = 5


@dataclass(frozen=True, eq=False)
class Descriptions:
    """All clients' label counts, known groups and names.

    Attributes
    ----------
    counts
        Number of samples of each client and class in its own training and test part, each of shape (K, C);
        None if clients were not asked for them.
    num_train, num_test
        Number of samples of each client in its training and test part, shape (K,); 0 if not asked for.
    num_classes
        Number of classes C.
    groups
        The known grouping, shape (K,), or None if a client has none; by `named_groups` where that is all that
        is known.
    mean, std
        Mean and standard deviation by which the first client normalises each channel of its images.
    class_names
        Names of the classes in label order, shape (C,); empty if clients have none.
    target_text
        What is predicted, as :func:`fedclust.data.targets.to_text` writes it; the classes are its bins.
    client_names
        Name of each client in the data (a hospital, a writer, a user), shape (K,); None if one has none.
    left_out
        Names of sources with too few examples for a client, and their numbers of examples, by client 0.
    num_validation
        Number of each client's training rows that are held out for the proof, shape (K,); empty if unknown.
    named_groups, grouped_by
        Name of the group that people put each client in, shape (K,), and what these are by, such as a column;
        empty if a client is in none.
    """

    counts: tuple[IntArray, ...] | None
    num_train: IntArray
    num_test: IntArray
    num_classes: int
    groups: IntArray | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    target_text: str = ""
    client_names: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_validation: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    named_groups: tuple[str, ...] = ()
    grouped_by: str = ""

    @cached_property
    def target(self) -> Target:
        """What is predicted; the classes are its bins."""
        return from_text(self.target_text)

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

    @property
    def rows(self) -> IntArray:
        """Number of each client's rows that train or are held out of training, shape (K,)."""
        return self.num_train + (self.num_validation if len(self.num_validation) else 0)

    def answers(self) -> list[Description]:
        """List each client's description, as far as it is kept."""
        counts = self.counts or (self.num_train[:, None], self.num_test[:, None])  # not by class
        train, test = (np.pad(each, [(0, 0), (0, self.num_classes - each.shape[1])]) for each in counts)
        names = Names(self.class_names, self.left_out, self.target, self.grouped_by)
        same: dict[str, Any] = {"mean": self.mean, "std": self.std, "names": names}
        return [
            Description.of(
                train[client],
                test[client],
                group=None if self.groups is None else int(self.groups[client]),
                name=None if self.client_names is None else self.client_names[client],
                named_group=self.named_groups[client] if self.named_groups else None,
                num_validation=int(self.num_validation[client]),
                **same,
            )
            for client in range(len(train))
        ]

    def _counts(self) -> tuple[IntArray, ...]:
        if self.counts is None:
            raise FederationError(
                "label counts are not known with privacy.label_counts=false, privacy=client_dp or patient_dp"
            )
        return self.counts


def combine(answers: Sequence[Description], disclosed: Disclosed) -> Descriptions:
    """Combine the descriptions of all clients.

    Parameters
    ----------
    answers
        The description of each client, shape (K,).
    disclosed
        What clients reported about their rows, see :class:`fedclust.federation.Federation`.

    Raises
    ------
    FederationError
        If the clients differ in the number or the names of their classes.
    """
    trained = [answer.train_counts for answer in answers]
    check_alike("number of classes", list(map(len, trained)))
    first = answers[0]
    # If label 3 is another class on one node, training goes wrong without any error.
    check_alike("class names", [answer.names.classes for answer in answers])
    check_alike("target", [to_text(answer.names.target) for answer in answers])
    named = tuple(answer.named_group for answer in answers if answer.named_group is not None)
    named = named if len(named) == len(answers) else ()
    groups = [answer.group for answer in answers if answer.group is not None]
    groups = groups or np.unique(named, return_inverse=True)[1].tolist()
    names = [answer.name for answer in answers if answer.name is not None]
    train = np.stack(trained)
    test = np.stack([answer.test_counts for answer in answers])
    return Descriptions(
        counts=(train, test) if disclosed == "labels" else None,
        num_train=train.sum(axis=1),
        num_test=test.sum(axis=1),
        num_classes=train.shape[1],
        groups=np.asarray(groups, dtype=np.int64) if len(groups) == len(answers) else None,
        mean=first.mean,
        std=first.std,
        class_names=first.names.classes,
        target_text=to_text(first.names.target),
        client_names=tuple(names) if len(names) == len(answers) else None,
        left_out=first.names.left_out,
        num_validation=np.array([answer.num_validation for answer in answers]),
        named_groups=named,
        grouped_by=first.names.grouped_by if named else "",
    )


def misfit(answer: Description, described: Descriptions) -> str:
    """Return how a newcomer's classes differ from the other clients'; empty if they do not."""
    number = described.num_classes
    if len(answer.train_counts) != number:
        return f"number of classes must be that of the others, {number}, got {len(answer.train_counts)}"
    if answer.names.classes != described.class_names:
        theirs, own = _shortened(described.class_names), _shortened(answer.names.classes)
        return f"class names must be those of the others, {theirs}, got {own}"
    return ""


def _check_same_rows(client: int, answer: Description, before: Description) -> None:
    """Check that a client of a run to resume has the name and the numbers of rows, by class, that it had."""
    was, now = (
        f"{each.name or 'without a name'}: {each.train_counts.sum() + each.num_validation} rows to train on "
        f"or hold out, {each.test_counts.sum()} to test on"
        for each in (before, answer)
    )
    if now != was:
        raise FederationError(f"resume must have the run's data, client {client} was {was}; it is {now}")
    same = np.array_equal(answer.test_counts, before.test_counts)
    if answer.num_validation == before.num_validation:  # otherwise other rows are held out than were
        same &= np.array_equal(answer.train_counts, before.train_counts)
    if not same:
        raise FederationError(
            f"resume must have the run's data, client {client} was {was}; now its rows have other classes"
        )


def left_out_line(left_out: Mapping[str, int]) -> str | None:
    """List for the user the sources with too few examples for a client; None if there are none.

    Examples
    --------
    >>> left_out_line({"": 5, "Mercy": 1})  # five have no owner
    'left out, too few examples for a client: 1, Mercy (1); without the name of a client: 5 examples'
    """
    small = {name: rows for name, rows in left_out.items() if name}
    shown = [f"{name} ({rows})" for name, rows in list(small.items())[:_SHOWN]]
    more = f" and {len(small) - _SHOWN} more" if len(small) > _SHOWN else ""
    parts = [f"too few examples for a client: {len(small)}, {', '.join(shown)}{more}"] if small else []
    if "" in left_out:
        parts.append(f"without the name of a client: {left_out['']:,} examples")
    return f"left out, {'; '.join(parts)}" if parts else None


def _shortened(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''} ({len(names)})"


def imbalance_line(
    train_counts: IntArray,
    class_names: Sequence[str] = (),
    client_names: Sequence[str] | None = None,
    words: Words = CLASSES,
) -> str:
    """Describe in one line the largest and smallest class, and the clients that lack a class.

    Parameters
    ----------
    train_counts
        Training rows of each client and class, shape (K, C).
    class_names
        Names of the classes, shape (C,); their numbers if empty.
    client_names
        Names of the clients, shape (K,); their ids if None.
    words
        What is predicted, in words.
    """
    counts = np.asarray(train_counts)
    clients, classes = counts.shape
    names = list(class_names if len(class_names) == classes else map(str, range(classes)))
    who = list(client_names or (f"client {each}" for each in range(clients)))
    rows = counts.sum(axis=0)
    most, least = int(rows.argmax()), int(rows.argmin())
    largest, smallest = (f"{names[label]} {rows[label] / max(1, rows.sum()):.1%}" for label in (most, least))
    line = f"{words.bins}: largest {largest}, smallest {smallest} of {int(rows.sum()):,} training rows"
    if classes > 1 and rows.min() == rows.max():
        line = f"{words.bins}: {classes} of equal size, training rows of each: {int(rows[0]):,}"
    lacking = np.flatnonzero((counts == 0).any(axis=1))
    if not len(lacking):
        return f"{line}; every client has every {words.bin}"
    some = [
        f"{who[client]}: {few((names[label] for label in np.flatnonzero(counts[client] == 0)), _NAMED)}"
        for client in lacking
    ]
    return f"{line}; {len(lacking)} of {clients} clients lack {words.a_bin}: {few(some, _NAMED, '; ')}"


def capped_lines(described: Descriptions, row_cap: float | None, training: Mapping[str, Any]) -> list[str]:
    """Name the clients whose training or test rows do not all count, see :func:`fedclust.proof.counted`.

    Parameters
    ----------
    described
        The clients' descriptions.
    row_cap
        As in :class:`~fedclust.settings.run_options.RunOptions`.
    training
        The ``training`` node. With `epochs`, the lines say how long such a client trains: the cap shortens
        nobody's training.
    """
    lines, epochs = [], training["epochs"]
    for what, rows in (("training", described.num_train), ("test", described.num_test)):
        having, counts = rows[rows > 0], counted(rows, row_cap)
        who = sorted(np.flatnonzero(counts < rows).tolist(), key=lambda client: -rows[client])
        names = described.client_names or [f"client {client}" for client in range(len(rows))]
        said = [
            f"{names[client]} says {rows[client]:,} {what} rows, the median {np.median(having):,g}; "
            f"a mean by rows counts {counts[client]:,}"
            for client in who
        ]
        if not said:
            continue
        line = f"{few(said, _NAMED, '; ')} (row_cap={row_cap:g})"
        if epochs is not None and what == "training":
            steps = epochs * math.ceil(rows[who[0]] / training["batch_size"])
            line += (
                f"; {names[who[0]]} trains on all of them, {steps:,} steps a round: training.steps= bounds it"
            )
        lines.append(line)
    return lines


def few_passes_line(
    described: Descriptions, rounds: int, participation: float, training: Mapping[str, Any]
) -> str | None:
    """Say in one line how often a run passes over the median client's rows; None for five times or more.

    Parameters
    ----------
    described
        The clients' descriptions.
    rounds
        Rounds of the run.
    participation
        Share of the rounds in which a client trains.
    training
        The ``training`` node: `batch_size`, and `steps` or `epochs`.
    """
    having = described.num_train[described.num_train > 0]
    if not len(having):  # nobody says how many
        return None
    rows, steps, batch = float(np.median(having)), training["steps"], training["batch_size"]
    epochs = training["epochs"] if steps is None else steps / math.ceil(rows / batch)
    if (passes := rounds * participation * epochs) >= _FEW_PASSES:
        return None
    length = plural(epochs, "epoch") if steps is None else f"{plural(steps, 'step')} of {batch} rows"
    share = f" (a client trains in {participation:.0%} of the rounds)" if participation < 1 else ""
    whose = f"the median client's {rows:,g} training rows{share}"
    return f"{plural(rounds, 'round')} of {length}: {passes:.2g} passes over {whose}; rounds= adds more"


# -- Who has joined -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RosterState:
    """The clients that had joined a run and their places, for a checkpoint.

    Attributes
    ----------
    places
        Place of each client, see :attr:`fedclust.grids.ClientGrid.places`.
    joined
        The round in which each joined, 0 for those at the start.
    described
        Their descriptions without names; None if they were not asked.
    names
        Their names; None if one has no name.
    asked
        Types of the questions that they were asked.
    cautions
        Warnings about their data so far, a line each.
    """

    places: Any = ()
    joined: tuple[int, ...] = ()
    described: Descriptions | None = None
    names: Any = None
    asked: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    def roster(self) -> "Roster":
        """Make the roster of the resumed run."""
        made = Roster(list(self.joined))
        if self.described is not None:
            named = replace(self.described, client_names=self.names and tuple(self.names))
            made.earlier = dict(enumerate(named.answers()))
        return made


@dataclass(eq=False)
class Roster:
    """The clients of a federation in the order in which they joined, which is that of their ids.

    All runs over one federation share it: in runs compared with another, clients join in the same rounds.

    Attributes
    ----------
    joined
        The round in which each client joined, 0 for those at the start, in ascending order, shape (K,).
    answers
        The clients' descriptions by client id, including clients that take no part.
    earlier
        Descriptions from before a run was interrupted, for clients that have left.
    open
        Whether clients may still join.
    """

    joined: list[int]
    answers: dict[int, Description] = field(default_factory=dict)
    earlier: dict[int, Description] = field(default_factory=dict)
    open: bool = True

    def count(self, server_round: int | None = None) -> int:
        """Count the clients that have joined by a round; all for None."""
        return len(self.joined) if server_round is None else bisect_right(self.joined, server_round)


# -- The clients --------------------------------------------------------------------------------------------


class Federation:
    """The clients of a run, which a method asks questions.

    Parameters
    ----------
    clients
        Who answers for the clients: :class:`~fedclust.federation.answering.Here`, or a Flower grid whose node
        ids are client ids.
    num_rounds
        Rounds of the run.
    timeout
        Seconds that clients have to answer a question.
    own_metrics
        Names of the user's own metrics, which clients measure besides the usual ones.
    least_loss
        Least value of the loss: 0 for cross-entropy; minus infinity where unknown.
    num_steps
        Returns how many steps clients with some numbers of rows train in a round; None where unknown.
    disclosed
        What clients report about their rows: ``"labels"``, the number of each class; ``"sizes"``, their
        number; ``"nothing"``, which allows no other question either.
    num_newcomers
        Number of clients of the grid that take no part, those with the highest ids; they are asked only if
        their ids are given.
    roster
        The clients of a run to resume; all clients of the grid, from the start, unless given.

    Attributes
    ----------
    clients, timeout, disclosed
        As given.
    server_round
        The round in progress, from 1; 0 before the first.
    turns
        Number of rounds for which each client has been chosen so far, shape (K,).
    asked
        Types of the questions that were asked, by any run over these clients.
    covered
        Types of further questions allowed in a differentially private run, because ε covers the use of the
        answers; by default only descriptions are allowed.
    evaluation
        Further fields of the questions that ask clients to evaluate a round's models, such as noise.
    num_steps
        Counts the steps of a round of clients by their numbers of rows; None if unknown.
    bounds
        Limits on the answers: rows and classes as described, once they are.
    descriptions
        The result of :meth:`describe`, if it was called for this or another run; otherwise None.
    """

    def __init__(
        self,
        clients: Answering | Grid,
        num_rounds: int = 1,
        timeout: float = 3600,
        *,
        own_metrics: Collection[str] = (),
        least_loss: float = -math.inf,
        num_steps: Callable[[IntArray], IntArray] | None = None,
        disclosed: Disclosed = "labels",
        num_newcomers: int = 0,
        roster: Roster | None = None,
    ) -> None:
        self.clients: Answering = Flower(clients) if isinstance(clients, Grid) else clients
        number = self.clients.num_clients
        if not 0 <= num_newcomers < number:
            raise ValueError(f"num_newcomers must be in 0 to {number - 1}, got {num_newcomers}")
        self.num_rounds, self.timeout, self.disclosed = num_rounds, timeout, disclosed
        self.turns: IntArray = np.zeros(number - num_newcomers, dtype=np.int64)
        self.asked: set[str] = set()
        self.covered: Collection[str] = ()
        self.evaluation: Mapping[str, Any] = {}
        self.bounds = Bounds(own_metrics=frozenset(own_metrics), least_loss=least_loss)
        self.num_steps = num_steps
        self.descriptions: Descriptions | None = None
        self._num_newcomers = num_newcomers
        self._roster = roster or Roster([0] * (number - num_newcomers))
        self._failures: list[Failure] = []
        self.server_round = 0
        self._description_traffic: Traffic | None = None
        self._described = False

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
        """Return the clients that have joined, for a checkpoint, see :class:`.RunState`."""
        places = self.clients.places[: self.num_clients]
        joined, described, names = tuple(self._roster.joined[: self.num_clients]), self.descriptions, None
        if described is not None:
            names, described = described.client_names, replace(described, client_names=None)
        asked, cautions = tuple(sorted(self.asked)), self.clients.cautions
        return RosterState(list(places), joined, described, names and list(names), asked, cautions)

    def run(self, num_rounds: int, timeout: float, after: int | None = None) -> "Federation":
        """Make the federation of another run over the same clients; it reuses their descriptions.

        Parameters
        ----------
        num_rounds, timeout
            Of that run.
        after
            The round after which that run is resumed, 0 for a new run: it has the clients that had joined by
            then, and the others join in their rounds. None for all that have joined so far.
        """
        other = copy.copy(self)
        other.num_rounds, other.timeout = num_rounds, timeout
        other.turns = np.zeros(self._roster.count(after), dtype=np.int64)
        other._failures, other._described = [], False
        if self.descriptions is not None and other.num_clients != self.num_clients:
            other.descriptions = other._combine()
        return other

    def welcome(self, server_round: int) -> IntArray:
        """Admit the clients that wait to join, at the beginning of a round.

        Returns
        -------
        Ids of the clients that join, sorted; they follow all earlier ids.
        """
        first = self.num_clients
        if self._roster.open and self._roster.count() == first and not self._num_newcomers:
            self._admit(server_round)
        last = self._roster.count(server_round)
        if last > first:
            self.turns = np.append(self.turns, np.zeros(last - first, dtype=np.int64))
            if self.descriptions is not None:
                self.descriptions = self._combine()
        return np.arange(first, last)

    def _admit(self, server_round: int) -> None:
        """Ask the waiting clients for descriptions, and let those that fit join."""
        door = self.clients
        places = door.newcomers()
        if not places:
            return
        asked, others = door.admit(places), self._known()
        question = DescriptionQuestion(self.disclosed)
        answers = self._answers(dict.fromkeys(asked, question), bounds=Bounds())
        door.withdraw(len(asked))
        for client, place in zip(asked, places, strict=True):
            if client in answers.lost:
                continue  # it is asked again when it is back
            answer = answers.replies.get(client)
            reason = answers.failures[client] if answer is None else misfit(answer, others)
            if answer is None or reason:
                door.refuse(place, reason.removeprefix(f"client {client}: "))
            else:
                door.admit([place])
                self._roster.answers[len(self._roster.joined)] = answer
                self._roster.joined.append(server_round)

    def close(self) -> None:
        """Admit no further clients, so that compared runs have the same ones."""
        self._roster.open = False

    @property
    def description_traffic(self) -> Traffic | None:
        """Bytes of the descriptions if :meth:`describe` was called for this run; otherwise None.

        Descriptions are asked for once, before any run, for its tables; a run whose method uses them counts
        their bytes by this.
        """
        return self._description_traffic if self._described else None

    def describe(self) -> Descriptions:
        """Get every client's label counts, known group and names; clients are asked only once.

        Raises
        ------
        FederationError
            If a client cannot answer, or the clients differ in the number or the names of their classes; or
            if a client of a run to resume has other rows than it had.
        """
        self._described = True
        return self._known()

    def _known(self) -> Descriptions:
        if self.descriptions is None:
            roster, before = self._roster, self.clients.traffic
            unknown = [client for client in range(self.num_clients) if client not in roster.answers]
            asked = self.ask(DescriptionQuestion(self.disclosed), unknown)
            # Clients that have left are described by the checkpoint.
            left = {client: roster.earlier[client] for client in asked.failures if client in roster.earlier}
            missing = {client: why for client, why in asked.failures.items() if client not in left}
            Answers(asked.replies, missing).all()
            for client in sorted(asked.replies.keys() & roster.earlier.keys()):
                _check_same_rows(client, asked.replies[client], roster.earlier[client])
            roster.answers |= {**asked.replies, **left}
            self.descriptions = self._combine()
            if before is not None and (after := self.clients.traffic) is not None:
                self._description_traffic = after.since(before)
        return self.descriptions

    def train_on_all_rows(self) -> None:
        """Use held-out rows for training, too, and ask for new descriptions; before round 1."""
        self.clients.all_rows = True
        self.descriptions, self._roster.answers = None, {}
        self._known()

    def _combine(self) -> Descriptions:
        """Combine the descriptions of this run's clients, and limit their answers accordingly."""
        answers = [self._roster.answers[client] for client in range(self.num_clients)]
        described = combine(answers, self.disclosed)
        rows = ("num_train", "num_test", "num_validation") if self.disclosed != "nothing" else ()
        limits = {name: getattr(described, name) for name in rows}
        if rows and self.num_steps is not None:
            limits["num_steps"] = self.num_steps(np.maximum(1, described.rows))
        self.bounds = replace(
            self.bounds, num_classes=described.num_classes, target=described.target, **limits
        )
        return described

    def describe_newcomers(self, newcomers: Iterable[int]) -> dict[int, Description]:
        """Get the label counts, known group and name of newcomers; each is asked only once.

        Parameters
        ----------
        newcomers
            Their ids.

        Returns
        -------
        Descriptions by client id. A client that fails, or whose classes differ, is left out and recorded.
        """
        described, wanted, known = self.describe(), list(map(int, newcomers)), self._roster.answers
        unknown = [client for client in wanted if client not in known]
        for client, answer in self.ask(DescriptionQuestion(self.disclosed), unknown).replies.items():
            if reason := misfit(answer, described):
                self.failed(client, DescriptionQuestion.kind, reason)
            else:
                known[client] = answer
        return {client: known[client] for client in wanted if client in known}

    def ask(
        self,
        question: Question[Answer] | Mapping[int, Question[Answer]],
        clients: Iterable[int] | None = None,
        server_round: int | None = None,
    ) -> Answers[Answer]:
        """Ask clients a question.

        A client that fails, or whose answer is invalid, is left out of the answers; the round records its
        failure, as in training.

        Parameters
        ----------
        question
            One for all, or one for each client, by client id. Each record in it, such as a model, is sent
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
            If the run is differentially private and does not allow this question.
        """
        if not isinstance(question, Mapping):
            question = dict.fromkeys(
                map(int, range(self.num_clients) if clients is None else clients), question
            )
        elif clients is not None:
            question = {int(client): question[client] for client in clients}
        if not question:
            return Answers({}, {})
        kind = next(iter(question.values())).kind
        if self.disclosed == "nothing" and kind not in (DescriptionQuestion.kind, *self.covered):
            rule = "privacy=client_dp and patient_dp allow no question but to train"
            raise FederationError(f"{rule}, got {kind}")
        self.asked.add(kind)
        answers: Answers[Answer] = self._answers(question, server_round)
        self._failures += listed(answers.failures, kind)
        return answers

    def _answers(
        self, asked: Mapping[int, Any], server_round: int | None = None, bounds: Bounds | None = None
    ) -> Answers[Any]:
        """Ask clients, each its question by client id, without recording it."""
        if not asked:
            return Answers({}, {})
        limits = self.bounds if bounds is None else bounds

        def at(client: int) -> Reading:
            return Reading(client, server_round, limits, asked[client])

        return self.clients.answer(dict(sorted(asked.items())), self.timeout, at)

    def unrecorded(self, question: Question[Answer], client: int) -> Answers[Answer]:
        """Ask one client outside of rounds; neither that it was asked nor that it failed is recorded."""
        return self._answers({client: question}, bounds=Bounds())

    def train(
        self,
        asked: Mapping[int, Instruction],
        cohort: Mapping[int, int],
        starts: Sequence[ArrayRecord],
        *,
        means: bool,
    ) -> tuple[list[Reply], list[Failure]]:
        """Ask clients to train for a round.

        Parameters
        ----------
        asked
            The instruction to each client, by client id.
        cohort
            Which of `starts` each client starts from, by client id.
        starts
            The models, such as each cluster's; a reply's model must have its names and shapes.
        means
            Whether a model may be a node's mean, in float64; other models are cast to their start's types.

        Returns
        -------
        The valid replies, sorted by client id, with checked models; and a failure for each other client,
        those that did not reply last.
        """
        number = self.server_round
        answers = self._answers(asked, number)
        valid: list[Reply] = []
        failures = dict(answers.failures)
        # By identity of the model, which many replies may share, and by start.
        made: dict[tuple[int, int], ArrayRecord | str] = {}
        for client, trained in answers.replies.items():
            key = id(trained.arrays), cohort[client]
            if key not in made:
                try:
                    made[key] = canonical(trained.arrays, starts[cohort[client]], means=means)
                except ValueError as error:
                    made[key] = str(error)
            if isinstance(model := made[key], str):
                failures[client] = f"client {client}, round {number}: {model}"
            else:
                valid.append(Reply.of(trained, cohort[client], starts[cohort[client]], model))
        return valid, sorted(listed(failures, "train"), key=failure_order)

    def evaluate(self, asked: Mapping[int, EvaluateQuestion]) -> tuple[list[Evaluation], list[Failure]]:
        """Ask clients to evaluate models in a round; a loss may be non-finite.

        Returns
        -------
        The valid evaluations, and a failure for each other client.
        """
        answers = self._answers(asked, self.server_round)
        return list(answers.replies.values()), listed(answers.failures, "evaluate")

    def failed(self, client: int, phase: str, reason: str) -> None:
        """Record that a client's answer could not be used."""
        self._failures.append({"client": int(client), "phase": phase, "reason": reason})

    def take_failures(self) -> list[Failure]:
        """Return the failures recorded since the last call."""
        taken, self._failures = self._failures, []
        return taken

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
        The mean loss of each model on the client's whole training part, in nats, by client id, shape
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
            Ids of the clients to ask.

        Returns
        -------
        The number of rows of each model by client id, shape (models,); a tied row counts for the first
        model. Clients that failed are left out and recorded.
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
        """Ask clients to train a model as in a round, and to return only its change.

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
            Largest length of a change, in multiples of the answers' median, see
            :mod:`fedclust.messages.replies`; None for any length.

        Returns
        -------
        The changes by client id, in ascending order. Clients that failed are left out and recorded.
        """
        question = UpdateQuestion.of(model, server_round, names, projection)
        changes = dict(self.ask(question, clients).replies)
        if cap is None:
            return changes
        answered, norms = list(changes), [update.norm for update in changes.values()]
        for position, limit in too_long(norms, norms, [0] * len(norms), cap).items():
            line = too_long_line(changes.pop(answered[position]).norm, *limit)
            self.failed(answered[position], UpdateQuestion.kind, f"client {answered[position]}: {line}")
        return changes
