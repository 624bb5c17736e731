"""Run nodes in this process, and end work in it that takes too long.

Python cannot end a thread. In the main thread a signal interrupts work that waits, sleeps or loops in Python,
and the run fails with a line that gives the reason. Work that no signal interrupts, such as a call into C
that never returns or a wait for another thread, gets a few seconds more; then the command line's process ends
with that line or, if the work holds Python's lock so that nothing can be printed, with a traceback. Another
program's process, such as a notebook's, is not ended: there, the error is only logged.
"""

import faulthandler
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Annotated, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedclust.grids.nodes import RunFailed
from fedclust.support.checks import checked
from fedclust.support.flower import RUN_ID, SERVER, ErrorCode, Run, assume_identity, set_message_id

logger = logging.getLogger(__name__)

# -- A limit of time ----------------------------------------------------------------------------------------

_GRACE = 10.0  # seconds for interrupted work to end
_LONGEST = 1e8  # seconds; the most that a timer accepts
_LOOK = 1.0  # seconds between looks at the clock
_owned = False
_deadlines: dict[object, tuple[float, str]] = {}  # of the work in progress, with its message
_watcher: threading.Thread | None = None


class _TimeIsUp(BaseException):
    """Not an Exception: those are caught client by client, as errors of a client's own code."""


def end_process_when_stuck() -> None:
    """Allow :func:`time_limit` to end this process; for the command line."""
    global _owned
    _owned = True


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Limit the time of the work in a ``with`` block.

    Parameters
    ----------
    seconds
        The limit, > 0; None for no limit.
    what
        The work, for the message.

    Raises
    ------
    RunFailed
        If it takes longer and could be interrupted.
    """
    if seconds is None or seconds > _LONGEST:
        yield
        return
    line = f"{what} must end within timeout={seconds:g} s, it did not (engine=ray replaces a node that hangs)"
    key = object()
    _watch(key, time.monotonic() + seconds + _GRACE, line)
    stream = sys.__stderr__  # the process's own: a replacement may not be a file
    if _owned and stream is not None:  # for work that holds Python's lock, so that no thread runs
        faulthandler.dump_traceback_later(seconds + 1.5 * _GRACE, exit=True, file=stream)
    try:
        with _alarm(seconds) if _alarm_is_free() else nullcontext():
            yield
    except _TimeIsUp:
        raise RunFailed(line) from None
    finally:
        _deadlines.pop(key, None)
        if _owned:
            faulthandler.cancel_dump_traceback_later()


def _watch(key: object, deadline: float, line: str) -> None:
    """Watch all work with one thread: starting one per message took 3 % of a small model's round."""
    global _watcher
    _deadlines[key] = deadline, line
    if _watcher is None or not _watcher.is_alive():  # a forked process lacks its parent's thread
        _watcher = threading.Thread(target=_look, name="fedclust-watchdog", daemon=True)
        _watcher.start()


def _look() -> None:
    while True:
        time.sleep(_LOOK)
        for key, (deadline, line) in list(_deadlines.items()):
            if time.monotonic() < deadline or _deadlines.pop(key, None) is None:
                continue
            if not _owned:
                logger.error("%s, and nothing in this process can stop it", line)
                continue
            print(f"fedclust: {line}; nothing else stops it, the process ends", file=sys.stderr, flush=True)
            os._exit(1)


def _alarm_is_free() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL  # otherwise another library uses it


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise _TimeIsUp


# -- Grids --------------------------------------------------------------------------------------------------

FIRST_NODE_ID = SERVER + 1

RunConfig = Mapping[str, str | int | float | bool]


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Call a ClientApp with a message; an exception becomes an error reply, as in Flower itself."""
    try:
        reply: object = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"a ClientApp must return a Message, got {type(reply).__name__}")
        return reply
    except (KeyboardInterrupt, _TimeIsUp):
        raise
    # Whatever else an app raises makes its own reply an error and never ends the run; so does its sys.exit().
    except BaseException as error:
        logger.debug("a node raised", exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


class BlockingGrid(Grid):
    """Base class of our grids: a pushed message has been answered when :meth:`push_messages` returns.

    A subclass implements ``set_run``, ``run``, ``get_node_ids`` and ``send_and_receive``.
    """

    _pushed: Mapping[str, Message] = {}

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: deprecated in Flower in favour of ``Message(...)``."""
        raise NotImplementedError("Message(...) must make a message, create_message is deprecated")

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages and wait for the replies; return the ids to pull them by."""
        replies = {f"reply-{id(reply)}": reply for reply in self.send_and_receive(messages)}
        self._pushed = {**self._pushed, **replies}
        return list(replies)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages that were pushed, each once."""
        left = dict(self._pushed)
        found = [left.pop(name) for name in message_ids if name in left]
        self._pushed = left
        return found


class DirectGrid(BlockingGrid):
    """Base class of the grids that call their nodes directly.

    A subclass implements ``get_node_ids`` and ``send_and_receive``.
    """

    complete = True  # no further nodes can come

    def __init__(self) -> None:
        assume_identity()
        self._run = Run.create_empty(RUN_ID)
        self._message_ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Set the run of this grid."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of this grid."""
        return self._run

    def context(
        self, node: int, num_nodes: int, run_config: RunConfig, **config: str | int | float | bool
    ) -> Context:
        """Make the context of a node by its number, from 0, with further settings for this node."""
        own: dict[str, Any] = {"partition-id": node, "num-partitions": num_nodes}
        own |= {"allow": "*", "predictions": "reply", **config}
        return Context(RUN_ID, FIRST_NODE_ID + node, own, RecordDict(), dict(run_config))

    def label(self, message: Message) -> None:
        """Set the message id that the reply refers to."""
        set_message_id(message, str(next(self._message_ids)))


class LocalGrid(DirectGrid):
    """Nodes in this process, called one after another.

    A node that does not return in time ends the run, see this module: it runs in the server's own process and
    cannot be replaced. ``engine=ray`` replaces such a node.

    Parameters
    ----------
    app
        The ClientApp that every node runs.
    run_config
        The run's configuration, as a ClientApp finds it in ``context.run_config``.
    num_nodes
        Number of nodes, >= 1.

    Raises
    ------
    ValueError
        If ``num_nodes`` is below 1.
    """

    @checked
    def __init__(self, app: ClientApp, run_config: RunConfig, num_nodes: Annotated[int, ">= 1"] = 1) -> None:
        super().__init__()
        self._app = app
        contexts = [self.context(node, num_nodes, run_config) for node in range(num_nodes)]
        self._contexts = {context.node_id: context for context in contexts}

    def configure(self, settings: RunConfig) -> None:
        """Add settings to every node's own configuration."""
        for context in self._contexts.values():
            context.node_config.update(settings)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Call the nodes and return their replies.

        Raises
        ------
        RunFailed
            If a node does not answer within ``timeout`` seconds.
        """
        replies = []
        for message in messages:
            self.label(message)
            with time_limit(timeout, f"a node's work on a message of type {message.metadata.message_type}"):
                replies.append(answer(self._app, message, self._contexts[message.metadata.dst_node_id]))
        return replies
