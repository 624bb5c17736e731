"""Work that takes too long ends, and says why."""

import signal
import threading
import time
from typing import Any

import pytest

from fedclust.support import time_limit as module
from fedclust.support.reasons import RunFailed
from fedclust.support.time_limit import interrupted, time_limit

LINE = "a client must end within timeout=0.05 s, it did not (engine=ray replaces a node that hangs)"


@pytest.fixture(autouse=True)
def _no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_watcher", threading.current_thread())  # alive, and looks at nothing


def _swallow_every_exception() -> None:
    """Do what a firewall around a client's own code does."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


@pytest.mark.parametrize("work", [lambda: time.sleep(60), _swallow_every_exception])
def test_work_that_waits_or_loops_is_interrupted(work: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(RunFailed) as raised, time_limit(0.05, "a client"):
        work()
    assert str(raised.value) == LINE
    assert time.monotonic() - begun < 2
    assert (module._deadlines, signal.getsignal(signal.SIGALRM)) == ({}, signal.SIG_DFL)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("seconds", [None, 1e9, 1.0])
def test_work_within_its_limit_is_left_alone(seconds: float | None) -> None:
    with time_limit(seconds, "a client"):
        watched = len(module._deadlines)
    assert watched == (seconds == 1.0)  # a timer accepts no longer limits
    assert (module._deadlines, signal.getitimer(signal.ITIMER_REAL)) == ({}, (0.0, 0.0))
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_another_library_s_alarm_and_other_threads_are_left_alone() -> None:
    def other(*_: object) -> None: ...

    signal.signal(signal.SIGALRM, other)
    try:
        with time_limit(0.01, "a client"):
            time.sleep(0.05)
        assert signal.getsignal(signal.SIGALRM) is other
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    free: list[bool] = []
    thread = threading.Thread(target=lambda: free.append(module._alarm_is_free()))
    thread.start()
    thread.join()
    assert (free, module._alarm_is_free()) == ([False], True)


@pytest.mark.parametrize("owned", [False, True])
def test_work_that_nothing_interrupts_ends_the_command_line_and_no_other_process(
    owned: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    looks = iter([None, None])
    monkeypatch.setattr(module, "_owned", owned)
    monkeypatch.setattr(module.os, "_exit", end)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: next(looks))
    now = time.monotonic()
    monkeypatch.setattr(
        module, "_deadlines", {"late": (now - 1, "it hangs"), "early": (now + 60, "it does not")}
    )
    with pytest.raises(SystemExit if owned else StopIteration):
        module._look()
    assert module._deadlines.keys() == {"early"}
    ended = "fedclust: it hangs; nothing else stops it, the process ends\n"
    assert capsys.readouterr().err == (ended if owned else "")
    logged = [] if owned else ["it hangs, and nothing in this process can stop it"]
    assert [record.message for record in caplog.records] == logged


def test_the_thread_that_watches_sees_work_that_no_signal_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(module, "_watcher", None)
    monkeypatch.setattr(module, "_LOOK", 0.01)
    monkeypatch.setattr(module, "_GRACE", 0.05)
    monkeypatch.setattr(module, "_alarm_is_free", lambda: False)
    monkeypatch.setattr(module.logger, "error", lambda *_: ended.set())
    with time_limit(0.05, "a pass"):
        assert ended.wait(30)


def test_the_command_line_s_process_dumps_where_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps: list[Any] = []
    monkeypatch.setattr(module, "_owned", False)
    module.end_process_when_stuck()
    monkeypatch.setattr(
        module.faulthandler,
        "dump_traceback_later",
        lambda seconds, **how: dumps.append((seconds, how["exit"])),
    )
    monkeypatch.setattr(module.faulthandler, "cancel_dump_traceback_later", lambda: dumps.append("cancelled"))
    with time_limit(2.0, "a client"):
        ((deadline, _),) = module._deadlines.values()
        assert deadline - time.monotonic() == pytest.approx(2 + 10, abs=1)
    assert dumps == [(2 + 15, True), "cancelled"]


def test_one_thread_watches_all_work_and_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Thread:
        def __init__(self, **how: Any) -> None:
            self.how, self.alive = how, True

        def start(self) -> None:
            started.append(self.how)

        def is_alive(self) -> bool:
            return self.alive

    monkeypatch.setattr(module, "_watcher", None)
    monkeypatch.setattr(module.threading, "Thread", Thread)
    monkeypatch.setattr(module, "_deadlines", {})
    for _ in range(2):
        module._watch(object(), 1.0, "work")
    assert len(started) == 1
    assert started[0]["daemon"] is True
    module._watcher.alive = False  # type: ignore[union-attr]
    module._watch(object(), 1.0, "work")
    assert (len(started), len(module._deadlines)) == (2, 3)


def test_what_ends_work_from_outside() -> None:
    ends = [KeyboardInterrupt(), module._TimeIsUp(), ValueError(), SystemExit()]
    assert list(map(interrupted, ends)) == [True, True, False, False]
