import signal
import time
from collections.abc import Iterator

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust.federation import LocalGrid, RunFailed
from fedclust.support import time_limit as limits
from fedclust.support.time_limit import time_limit


@pytest.fixture(autouse=True)
def _alarm_as_before() -> Iterator[None]:
    yield
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_what_sleeps_is_interrupted() -> None:
    began = time.monotonic()
    with (
        pytest.raises(RunFailed, match=r"^a pass must end within timeout=0.1 s, it did not"),
        time_limit(0.1, "a pass"),
    ):
        time.sleep(60)
    assert time.monotonic() - began < 30


def swallow_every_exception() -> None:
    """Do what a firewall around a client's own code does."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def test_a_handler_of_the_clients_own_code_does_not_swallow_it() -> None:
    with pytest.raises(RunFailed, match="a loop must end"), time_limit(0.1, "a loop"):
        swallow_every_exception()


@pytest.mark.parametrize("seconds", [None, float("inf"), 60])
def test_what_ends_in_time_is_left_alone(seconds: float | None) -> None:
    done = []
    with time_limit(seconds, "a pass"):
        done.append(1)
    assert done == [1]


def test_an_alarm_of_another_library_is_not_touched() -> None:
    def others(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGALRM, others)
    try:
        with time_limit(0.1, "a pass"):
            time.sleep(0.2)
        assert signal.getsignal(signal.SIGALRM) is others
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_what_no_signal_stops_ends_the_process_of_the_command_line(monkeypatch, capsys) -> None:
    ended: list[int] = []
    monkeypatch.setattr(limits, "_owned", True)
    monkeypatch.setattr(limits, "_GRACE", 0.1)
    monkeypatch.setattr(limits.os, "_exit", ended.append)
    monkeypatch.setattr(limits.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(limits, "_alarm_is_free", lambda: False)
    with time_limit(0.1, "a pass"):
        deadline = time.monotonic() + 30
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ended == [1]
    assert capsys.readouterr().err.startswith("fedclust: a pass must end within timeout=0.1 s, it did not")


def _grid(do: object) -> LocalGrid:
    app = ClientApp()

    @app.query("do")
    def act(message: Message, context: Context) -> Message:
        do()
        return Message(RecordDict(), reply_to=message)

    return LocalGrid(app, {})


def test_a_node_that_hangs_ends_the_run() -> None:
    grid = _grid(lambda: time.sleep(60))
    (node,) = grid.get_node_ids()
    with pytest.raises(RunFailed, match=r"a node's work on a message of type query.do must end within"):
        grid.send_and_receive([Message(RecordDict(), node, "query.do")], timeout=0.1)


MADE = None, "a text", GeneratorExit("of theirs"), SystemExit(0), BaseException("x")


@pytest.mark.parametrize("made", MADE, ids=repr)
def test_whatever_a_clients_code_makes_or_raises_is_its_own_failure(made: object) -> None:
    def app(_: Message, __: Context) -> object:
        if isinstance(made, BaseException):
            raise made
        return made

    grid = LocalGrid(app, {})  # type: ignore[arg-type]
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "train")])
    raised = f"{type(made).__name__}: {made}" if isinstance(made, BaseException) else "TypeError: a Client"
    assert reply.error.reason.startswith(raised)
