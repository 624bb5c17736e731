"""Ask clients a question, collect their answers, and check that these agree."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedclust.aggregation.replies import Reply
from fedclust.grids.nodes import FederationError
from fedclust.messages.codec import BadReply, Bounds, Question, Reading, decode, encode
from fedclust.messages.models import canonical
from fedclust.messages.training import TrainAnswer, TrainAsked

Answer = TypeVar("Answer")

Failure = dict[str, int | str]
"""Which client failed, in which phase of the round, and the reason."""

NO_REPLY = "no reply"
"""The failure of a client that has not answered."""

_NOTHING = TrainAsked()
_TOLD = ("num_examples", "loss", "losses", "projected", "within", "update_norm")  # in answer and reply alike


@dataclass(frozen=True, eq=False)
class Answers(Generic[Answer]):
    """The clients' answers to one question.

    Attributes
    ----------
    replies
        The answer of each client that gave a valid one, by client id, in ascending order.
    failures
        Why each other client gave none, by client id.
    """

    replies: Mapping[int, Answer]
    failures: Mapping[int, str]

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
        One for all, or one for each client. Shared records are sent once per node.
    clients
        Ids of the clients to ask.
    timeout
        Seconds that clients have to answer.
    bounds
        Limits on the answers.
    server_round
        The round, for error messages.
    """
    asked = question if isinstance(question, Mapping) else dict.fromkeys(clients, question)
    if not clients:
        return Answers({}, {})
    contents = {id(each): encode(each) for each in asked.values()}
    kind, answer = next((each.kind, each.answer) for each in asked.values())
    sent = [Message(contents[id(asked[each])], dst_node_id=each, message_type=kind) for each in clients]

    def at(client: int) -> Reading:
        return Reading(client, server_round, bounds or Bounds(), asked[client])

    read: Answers[Answer] = read_each(answer, grid.send_and_receive(sent, timeout=timeout), at)
    failures = {each: read.failures.get(each, NO_REPLY) for each in clients if each not in read.replies}
    return Answers(read.replies, failures)


def read_each(
    answer: type[Answer], messages: Iterable[Message], at: Callable[[int], Reading]
) -> Answers[Answer]:
    """Read clients' replies, some of which may be errors.

    Parameters
    ----------
    answer
        Type of the answers.
    messages
        The replies, at most one of a client.
    at
        Returns the context and limits of a client's answer.
    """
    replies: dict[int, Answer] = {}
    failures: dict[int, str] = {}
    for message in sorted(messages, key=lambda message: message.metadata.src_node_id):
        client = message.metadata.src_node_id
        try:
            if message.has_error():
                raise BadReply(str(message.error.reason))
            replies[client] = decode(answer, message.content, at(client))
        except BadReply as error:
            failures[client] = str(error)
    return Answers(replies, failures)


def listed(failures: Mapping[int, str], phase: str) -> list[Failure]:
    """List failures by client id, in the form of the round's record."""
    return [{"client": client, "phase": phase, "reason": reason} for client, reason in failures.items()]


def read_replies(
    messages: Iterable[Message],
    server_round: int,
    cohort: Mapping[int, int],
    models: Sequence[ArrayRecord],
    bounds: Bounds | None = None,
    *,
    means: bool = True,
    asked: TrainAsked = _NOTHING,
) -> tuple[list[Reply], list[Failure]]:
    """Read the replies that can be aggregated, and list the failures of the others.

    Parameters
    ----------
    messages
        The replies.
    server_round
        The round, for error messages.
    cohort
        The cluster of each client that was sent its cluster's model, by client id.
    models
        The model of each cluster; a reply's model must have its names and shapes.
    bounds
        Limits on the answers.
    means
        Whether a model may be a node's mean, in float64; other models are cast to the cluster model's types.
    asked
        What clients were asked for besides their models.

    Returns
    -------
    The valid replies, sorted by client id, with copied and checked models; and a failure for each other
    client, including those that did not reply.
    """
    sent = {message.metadata.src_node_id: message for message in messages}
    answers = read_each(
        TrainAnswer, sent.values(), lambda client: Reading(client, server_round, bounds or Bounds(), asked)
    )
    valid: list[Reply] = []
    failures = dict(answers.failures)
    # By identity of the model, which many replies may share, and by cluster.
    made: dict[tuple[int, int], ArrayRecord | str] = {}
    for client, trained in answers.replies.items():
        cluster = cohort[client]
        key = (id(trained.arrays), cluster)
        if key not in made:
            try:
                made[key] = canonical(trained.arrays, models[cluster], means=means)
            except ValueError as error:
                made[key] = str(error)
        if isinstance(model := made[key], str):
            failures[client] = f"client {client}, round {server_round}: {model}"
            continue
        about: dict[str, Any] = {name: getattr(trained, name) for name in _TOLD}
        about |= {"start": models[cluster], "model": model, "message": sent[client]}
        valid.append(Reply(client, cluster, **about))
    silent = sorted(cohort.keys() - answers.replies.keys() - failures.keys())
    return valid, listed(dict(sorted(failures.items())) | dict.fromkeys(silent, NO_REPLY), "train")


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
    for reason in unlike(what, dict(enumerate(values))).values():
        raise FederationError(reason)


def unlike(what: str, values: Mapping[int, Hashable]) -> dict[int, str]:
    """Find the clients whose value differs from most.

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
        client: f"client {client} must have the {what} of most, {usual!s:.200}, it has {value!s:.200}"
        for client, value in values.items()
        if value != usual
    }
