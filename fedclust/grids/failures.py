"""When a run fails: too few clients answered, or work in this process takes too long.

Python cannot end a thread. In the main thread a signal interrupts what waits, sleeps or loops in Python, and
the run fails with a line that says so. Work that no signal interrupts, such as a call into C that never
returns or a wait for another thread's end, is given some seconds more; then the process of the command line
ends, and where the work does not let go of Python's lock, so that no line can be printed, with a traceback.
Another program's process, such as a notebook's, is not ended: there, it is only logged.
"""

import faulthandler
import gc
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from fedclust.settings.run_options import MIN_REPLIES

_SHOWN = 5
_MOST_IN_A_ROW = 3
_BY_CHANCE = 10  # clients of a sample: so many, and more, do not all fail by chance
# The client and round that a reason names; removed to count equal reasons.
_CLIENT_AND_ROUND = re.compile(r"^client \d+((, round \d+)?: | is (?=offline))")


class RunFailed(RuntimeError):
    """A run cannot continue, or has no result at its end; the message gives the reason."""

    PHRASE: ClassVar[str] = "the run failed in round"
    """Part of every message, to recognise the error where only its text arrives."""


def check_round(record: Mapping[str, Any], num_rounds: int, min_replies: float = MIN_REPLIES) -> None:
    """Check that a round has trained and measured enough clients.

    A client that fails is only excluded from its round. A round in which every client failed changes no
    model, so reporting the final models as a result would be wrong.

    Parameters
    ----------
    record
        The round's line in the results: ``round``, ``cohort``, ``failures``, ``global_accuracy`` if a client
        measured one, ``evaluated_clients`` if only a sample was asked, and ``went_back`` with
        ``num_clusters`` and ``cluster_sizes`` if a cluster went back to an earlier model; each entry has the
        number of ``clients`` that the cluster had then.
    num_rounds
        Number of rounds of the run; the last one must have an accuracy.
    min_replies
        Least share of the round's clients that must be trained, in [0, 1]. Above 0, one client must be
        trained and one evaluated; with 0 a round without any reply is passed over, unless it is the last.

    Raises
    ------
    RunFailed
        If too few clients were trained, every reply to evaluation failed, unless few were sampled, the last
        round has no accuracy, or the clusters of more than half of the clients go back to earlier models so
        often that nothing is learnt. One client alone in its cluster can say of any model that it is of no
        use.
    """
    server_round = record["round"]
    where = f"{RunFailed.PHRASE} {server_round} of {num_rounds}"
    reasons = {
        phase: [failure["reason"] for failure in record["failures"] if failure["phase"] == phase]
        for phase in ("train", "evaluate")
    }
    cohort = len(record["cohort"])
    back = record.get("went_back", ())
    # Its clients are those of when it went back: the method may have merged or renumbered clusters since.
    stuck = {each["cluster"]: each for each in back if each["in_a_row"] >= _MOST_IN_A_ROW}
    if stuck and 2 * sum(each["clients"] for each in stuck.values()) > sum(record["cluster_sizes"]):
        cluster, first = next(iter(stuck.items()))
        raise RunFailed(
            f"{where}, cluster {cluster} went back to an earlier model for the "
            f"{_MOST_IN_A_ROW}rd time in a row: {first['reason']}"
        )
    clusters = {each["cluster"] for each in back}
    if back and server_round == num_rounds and len(clusters) >= record["num_clusters"]:
        raise RunFailed(f"{where}, no cluster made a model that is of use: {back[0]['reason']}")
    trained = cohort - len(reasons["train"])
    if min_replies and cohort and trained < max(1, min_replies * cohort):
        who = (
            "no client was trained" if trained < 1 else _too_few(trained, cohort, "were trained", min_replies)
        )
        raise RunFailed(f"{where}, {who}: {count_reasons(reasons['train'], cohort)}")
    if "global_accuracy" in record:
        return
    measured = len(reasons["evaluate"])
    chance = "evaluated_clients" in record and measured < _BY_CHANCE
    if measured and ((min_replies and not chance) or server_round == num_rounds):
        raise RunFailed(f"{where}, no client was evaluated: {count_reasons(reasons['evaluate'], measured)}")
    if server_round == num_rounds:
        raise RunFailed(f"{where}, no client has an accuracy: no test examples, or none is online")


def check_answered(
    failures: Sequence[Mapping[str, Any]], measured: int, clients: int, where: str, min_replies: float
) -> None:
    """Check that the figures of a run are those of enough clients.

    Parameters
    ----------
    failures
        Of the last round.
    measured
        Clients with an accuracy.
    clients
        Clients with test examples.
    where
        Which round it is, for the message, such as ``"5 of 5"``.
    min_replies
        Least share of `clients` that must have an accuracy.

    Raises
    ------
    RunFailed
        If fewer have.
    """
    if measured >= min_replies * clients:
        return
    reasons = [each["reason"] for each in failures if each["phase"] == "evaluate"]
    silent = clients - measured - len(reasons)
    reasons += ["offline"] * max(0, silent)
    raise RunFailed(
        f"{RunFailed.PHRASE} {where}, {_too_few(measured, clients, 'were evaluated', min_replies)}: "
        f"{count_reasons(reasons, clients)}"
    )


def _too_few(number: int, total: int, done: str, min_replies: float) -> str:
    least = math.ceil(min_replies * total)
    return f"{number} of {total} clients {done}, min_replies={min_replies:g} needs {least}"


def count_reasons(reasons: Iterable[str], total: int) -> str:
    """Format reasons, each with its number of clients, the most frequent first.

    Parameters
    ----------
    reasons
        A reason per failed client.
    total
        Number of clients asked.

    Returns
    -------
    ``"28 of 30 clients: disk full; 2 of 30 clients: no reply"``; beyond five reasons, how many more.
    """
    counts = Counter(_CLIENT_AND_ROUND.sub("", " ".join(reason.split())) for reason in reasons).most_common()
    parts = [f"{count} of {total} clients: {reason}" for reason, count in counts[:_SHOWN]]
    if len(counts) > _SHOWN:
        parts.append(_more(counts[_SHOWN:]))
    return "; ".join(parts)


def _more(counts: Sequence[tuple[str, int]]) -> str:
    clients = sum(count for _, count in counts)
    return f"{len(counts)} more reasons of {clients} clients"


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
