"""Rows of `benchmarks/gpu.py` in processes of their own, as long as there is time."""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["LATE", "Found", "in_time", "so_far"]

LATE = 45.0  # seconds before the end in which no row starts
GENEROUS = 3.0  # times its share of the time that is left, after which a row is ended if shares are fair
CORES = 4  # from here on the next row's process starts, and imports PyTorch, while a row is measured

_replies: list[Connection] = []  # in the process of a row: where its results go
_said = [0.0]  # and when it last said what it had so far


@dataclass(frozen=True)
class Found:
    """What the rows of an item gave: values by name, and by name why there is none or why it ended early."""

    values: dict[str, Any]
    missing: dict[str, str]
    early: dict[str, str] = field(default_factory=dict)

    def notes(self) -> str:
        """List what is missing, and what was not measured to its end."""
        early = (f"\nEnded early: {name}: {reason}." for name, reason in self.early.items())
        missing = (f"\nNot measured: {name}: {reason}." for name, reason in self.missing.items())
        return "".join((*early, *missing))


def so_far(value: Any) -> None:
    """Report what a row has measured so far, which counts if the row is ended; no more than once a second."""
    now = time.monotonic()
    if _replies and now - _said[0] >= 1:
        _said[0] = now
        _replies[0].send(("so far", value))


def in_time(
    rows: Mapping[str, tuple[Any, ...]],
    work: Callable[..., Any],
    ends: float,
    workers: int = 1,
    late: float = LATE,
    apart: bool = True,
    fair: bool = False,
) -> Found:
    """Do the work of each row in another process, as long as there is time.

    A row that raises, or whose process dies, is missing with the reason; the others go on.

    Parameters
    ----------
    rows
        Arguments of `work` by the row's name, begun in this order.
    work
        A function of a module.
    ends
        When the time is over, as ``time.time()``; rows that still run are ended.
    workers
        Rows at a time.
    late
        Seconds before `ends` in which no row starts.
    apart
        Whether each row has a process of its own: it cannot be hurt by another's errors or memory.
    fair
        Whether a row is ended after three times its share of the time that was left when it began, so that
        one that hangs, or compiles for minutes, leaves time for the rows after it.
    """
    found, waiting = Found({}, {}), list(rows.items())
    going: list[_Worker] = []
    idle: list[_Worker] = []
    try:
        while waiting or going:
            while waiting and len(going) < workers and time.time() <= ends - late:
                worker = idle.pop() if idle else _Worker(work)
                worker.take(*waiting.pop(0), ends)
                going.append(worker)
                if apart and waiting and not idle and (os.cpu_count() or 1) >= CORES:
                    idle.append(_Worker(work))
            if not going:
                break
            first = min(0.0 if each.may_begin else each.ends for each in going)
            wait([each.pipe for each in going], max(0.0, first - time.time()))
            for worker in list(going):
                share = (ends - time.time()) * workers / max(workers, len(waiting) + len(going))
                if not worker.ended(found, ends - late, GENEROUS * share if fair else ends - time.time()):
                    continue
                going.remove(worker)
                if apart or not worker.process.is_alive():
                    worker.stop()
                else:
                    idle.append(worker)
    finally:
        for worker in (*going, *idle):
            worker.stop()
    for name, _ in waiting:
        _note(found, name, "no time left to start it")
    return found


class _Worker:
    """A process that does the work of rows, one at a time."""

    def __init__(self, work: Callable[..., Any]) -> None:
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, work), daemon=True)
        self.process.start()
        other.close()
        self.ends = self._over = self._began = 0.0
        self._ready = self._stopped = False
        self._name, self._arguments = "", ()
        self._so_far: Any = None

    def take(self, name: str, arguments: tuple[Any, ...], ends: float) -> None:
        """Take a row, which begins when the process is ready."""
        self._name, self._arguments, self._so_far = name, arguments, None
        self.ends = self._over = ends
        self._began = 0.0

    @property
    def may_begin(self) -> bool:
        """Whether the process is ready for the row that it has taken."""
        return self._ready and not self._began

    def ended(self, found: Found, latest: float, seconds: float) -> bool:
        """Read what the process has sent; return whether the row is over, whose value or reason is noted.

        Parameters
        ----------
        found
            Where it is noted.
        latest
            When a row may still begin.
        seconds
            For how long one that begins now may go on.
        """
        if self.may_begin:
            return self._begin(found, latest, seconds)
        if not self.pipe.poll():
            return self.ends <= time.time() and self._cut(found)
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            _note(found, self._name, f"its process ended with exit code {self.process.exitcode}")
            return True
        if kind == "ready":
            self._ready = True
            return self._begin(found, latest, seconds)
        if kind == "so far":
            self._so_far = value
            return self.ends <= time.time() and self._cut(found)
        if kind == "done":
            found.values[self._name] = value
            _say(self._name, "done")
        else:
            _note(found, self._name, value)
        return True

    def _begin(self, found: Found, latest: float, seconds: float) -> bool:
        if time.time() > latest:
            _note(found, self._name, "no time left to start it")
            return True
        self._began = time.time()
        self.ends = min(self.ends, self._began + seconds)
        self.pipe.send(self._arguments)
        return False

    def _cut(self, found: Found) -> bool:
        reason = "had not ended when the time was over"
        if self.ends < self._over:
            took = time.time() - self._began
            reason = f"was ended after {took:.0f} s, {GENEROUS:g} times its share of the time"
        self.stop()
        if self._so_far is None:
            _note(found, self._name, reason)
        else:
            found.values[self._name] = self._so_far
            found.early[self._name] = f"{reason}; what it had measured by then counts"
            _say(self._name, found.early[self._name])
        return True

    def stop(self) -> None:
        """End the process and those that it has started."""
        if self._stopped:
            return
        self._stopped = True
        if self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # it has a session of its own, once it has begun
        self.process.kill()
        self.process.join(10)
        self.pipe.close()


def _note(found: Found, name: str, reason: str) -> None:
    found.missing[name] = reason
    _say(name, reason)


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _serve(pipe: Connection, work: Callable[..., Any]) -> None:
    """Do rows until the other end is closed."""
    os.setsid()  # what it starts, such as compilers, can be ended with it
    logging.disable(logging.INFO)
    _replies.append(pipe)
    pipe.send(("ready", None))
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(work, arguments))


def _attempt(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", work(*arguments)
    except Exception as error:  # a row's failure is a line below the table and not the end of it
        line = str(error).strip().partition("\n")[0]
        line = re.sub(re.escape(tempfile.gettempdir()) + r"[^\s;,]*", "a folder that is gone", line)
        return "failed", f"{type(error).__name__}: {line}"
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
