"""A time limit for work in this process.

Python cannot end a thread. In the main thread a signal interrupts what waits, sleeps or loops in Python, and
the run fails with a line that says so. Work that no signal interrupts, such as a call into C that never
returns or a wait for another thread's end, is given some seconds more; then the process of the command line
ends, and where the work does not let go of Python's lock, so that no line can be printed, with a traceback.
Another program's process, such as a notebook's, is not ended: there, it is only logged.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedclust.grids.failures import RunFailed

__all__ = ["end_hung_actors", "end_process_when_stuck", "time_limit"]

logger = logging.getLogger(__name__)

_GRACE = 10.0  # seconds that interrupted work has to end
_LONGEST = 1e8  # seconds; what a timer takes
_LOOK = 1.0  # seconds between looks at the clock
_owned = False
_deadlines: dict[object, tuple[float, str]] = {}  # of the work at hand, and what to say of it
_watcher: threading.Thread | None = None


class _TimeIsUp(BaseException):
    """No Exception: those of a client's own code are caught client by client."""


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
        The limit, > 0; None for none.
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
    stream = sys.__stderr__  # the process's own: what stands in for it may be no file
    if _owned and stream is not None:  # where not even this thread runs, as the work keeps Python's lock
        faulthandler.dump_traceback_later(seconds + 1.5 * _GRACE, exit=True, file=stream)
    try:
        if _alarm_is_free():
            with _alarm(seconds):
                yield
        else:
            yield
    except _TimeIsUp:
        raise RunFailed(line) from None
    finally:
        _deadlines.pop(key, None)
        if _owned:
            faulthandler.cancel_dump_traceback_later()


def _watch(key: object, deadline: float, line: str) -> None:
    """Have one thread for all work: starting one per message took 3 % of a round of a small model."""
    global _watcher
    _deadlines[key] = deadline, line
    if _watcher is None or not _watcher.is_alive():  # the thread of a parent process is not here
        _watcher = threading.Thread(target=_look, name="fedclust-watchdog", daemon=True)
        _watcher.start()


def _look() -> None:
    while True:
        time.sleep(_LOOK)
        for key, (deadline, line) in list(_deadlines.items()):
            if time.monotonic() >= deadline and _deadlines.pop(key, None) is not None:
                _give_up(line)


def end_hung_actors() -> None:
    """End what still runs in Flower's simulation when the server has ended; Flower would wait for it."""
    simulation = sys.modules.get("flwr.simulation.ray_transport.ray_actor")
    if simulation is None:
        return
    import ray

    # Flower keeps its actors to itself.
    for pool in (each for each in gc.get_objects() if type(each) is simulation.BasicActorPool):
        for actor in list(pool._future_to_actor.values()):
            ray.kill(actor)


def _alarm_is_free() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL  # else it is another library's


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


def _give_up(line: str) -> None:
    if not _owned:
        logger.error("%s, and nothing in this process can stop it", line)
        return
    print(f"fedclust: {line}; nothing else stops it, the process ends", file=sys.stderr, flush=True)
    os._exit(1)
