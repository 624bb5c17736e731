"""End work in this process that takes too long.

Python cannot end a thread. In the main thread a signal interrupts work that waits, sleeps or loops in Python,
and the run fails with a line that gives the reason. Work that no signal interrupts, such as a call into C
that never returns or a wait for another thread, gets a few seconds more; then the command line's process ends
with that line or, if the work holds Python's lock so that nothing can be printed, with a traceback. Another
program's process, such as a notebook's, is not ended: there, the error is only logged.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from fedclust.support.reasons import RunFailed

logger = logging.getLogger(__name__)

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


def interrupted(error: BaseException) -> bool:
    """Return whether an error ends the work from outside: Ctrl+C, or the end of its time."""
    return isinstance(error, KeyboardInterrupt | _TimeIsUp)


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
