"""Collect clients' answers to a question, and check that they agree."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedclust.support.reasons import FederationError

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
