"""The reasons of failures: in full in the user's own process, as fixed texts from a deployed node.

Errors of libraries and of the user's model may quote a row, a file or a path. A deployed node logs them and
sends only what failed; the text of a :class:`Sendable` has nothing of the node's own and is sent as it is.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

_logger = logging.getLogger(__name__)
_discreet: ContextVar[bool] = ContextVar("discreet", default=False)

_LONGEST_REASON = 900  # characters of a reason

RAISED = (Exception, GeneratorExit, SystemExit)
"""What a user's code may raise; Ctrl+C and the end of a time limit are no failures of a client."""


class FederationError(RuntimeError):
    """The federation cannot start: a node has an error, or clients are missing or hosted twice."""


class RunFailed(RuntimeError):
    """A run cannot continue, or has no result at its end; the message gives the reason."""

    PHRASE: ClassVar[str] = "the run failed in round"
    """Part of every message, by which the error is recognised where only its text arrives."""


class Sendable(ValueError):
    """An error whose text may leave a node: it repeats at most what the server itself has sent."""


@contextmanager
def discreet(wanted: bool = True) -> Iterator[None]:
    """Withhold the texts of errors inside the context, if wanted."""
    token = _discreet.set(wanted)
    try:
        yield
    finally:
        _discreet.reset(token)


@contextmanager
def about(setting: str) -> Iterator[None]:
    """Name the setting that an error inside the context is about; the innermost counts."""
    try:
        yield
    except Exception as error:
        error.add_note(setting)
        raise


def is_open() -> bool:
    """Return whether errors may be sent with their texts."""
    return not _discreet.get()


def reason_of(error: BaseException, what: str = "the client's work") -> str:
    """Describe an error in a text that may be sent.

    Parameters
    ----------
    error
        The error.
    what
        What failed, unless :func:`about` names a setting.

    Returns
    -------
    Its type and text, or the text alone if it is of ours or may be sent; from a deployed node, a fixed text.
    """
    if isinstance(error, Sendable):
        return str(error)
    if is_open():
        ours = type(error).__module__.startswith("fedclust.") and str(error)  # says itself what is wrong
        return str(error) if ours else f"{type(error).__name__}: {error}"
    setting = next(iter(getattr(error, "__notes__", ())), what)
    _logger.error("%s failed", setting, exc_info=error)
    return f"{setting} failed on this node with {type(error).__name__}, its log has the reason"


def one_line(reason: str) -> str:
    """Shorten a node's text to one printable line."""
    line = " ".join(reason[: 4 * _LONGEST_REASON].split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} …"
