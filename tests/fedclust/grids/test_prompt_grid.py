"""The inner grid's replies arrive by a clock of the test's own."""

from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict

from fedclust.grids import prompt_grid
from fedclust.grids.identity import assume_identity
from fedclust.grids.prompt_grid import PromptGrid
from fedclust.grids.wrapped_grid import WrappedGrid


class Clock:
    """Time passes by sleeping, and by what a look costs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        monkeypatch.setattr(prompt_grid.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(prompt_grid.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class Slow(WrappedGrid):
    """Reply k arrives so many seconds after the messages were sent."""

    def __init__(self, clock: Clock, after: Iterable[float], look: float = 0.0) -> None:
        self._clock, self._after, self._look = clock, list(after), look
        self._due: dict[str, tuple[float, Message]] = {}
        self.looks = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for place, (after, message) in enumerate(zip(self._after, messages, strict=True)):
            message.metadata.__dict__["_message_id"] = str(place)
            self._due[str(place)] = self._clock.now + after, Message(RecordDict(), reply_to=message)
        return list(self._due)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.looks += 1
        self._clock.now += self._look
        ready = [name for name in message_ids if self._due[name][0] <= self._clock.now]
        return [self._due.pop(name)[1] for name in ready]


def _messages(number: int) -> list[Message]:
    assume_identity(1)
    return [Message(RecordDict(), 2 + place, "query") for place in range(number)]


def _ask(grid: Slow, number: int, timeout: float | None = None) -> list[str]:
    found = PromptGrid(grid).send_and_receive(_messages(number), timeout=timeout)
    return [reply.metadata.reply_to_message_id for reply in found]


@pytest.mark.parametrize("after", [0.0, 0.0123, 0.5, 7.0, 100.0])
def test_a_reply_is_noticed_a_tenth_later_at_most(monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    clock = Clock(monkeypatch)
    grid = Slow(clock, [after])
    assert _ask(grid, 1) == ["0"]
    # A pause is 0.1 of the time waited when it begins, at least 1 ms and at most 1 s.
    assert after <= clock.now - 100 <= after + min(1.0, max(0.001, 0.1 * after)) + 1e-6
    assert max(clock.sleeps, default=0) <= 1


def test_replies_come_in_the_order_of_their_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ask(Slow(Clock(monkeypatch), [0.9, 0.1, 0.5]), 3) == ["1", "2", "0"]


def test_looking_takes_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    grid = Slow(clock, [5.0], look=0.05)
    _ask(grid, 1)
    # After a look of 0.05 s a pause of 0.5 s or more: 5 / 0.55 = 9 whole ones, one before, one after.
    assert grid.looks <= 11


def test_what_arrives_until_the_time_is_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert _ask(Slow(clock, [0.2, 2.0, 2.1]), 3, timeout=2.0) == ["0", "1"]
    assert clock.now - 100 == pytest.approx(2.0)


def test_no_messages_need_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Slow(Clock(monkeypatch), [])
    assert _ask(grid, 0) == []
    assert grid.looks == 0


@pytest.mark.parametrize(("taken", "refused"), [(["0", None], ["1"]), ([], ["0", "1"])])
def test_a_message_that_flower_does_not_take_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch, taken: list[str | None], refused: list[str]
) -> None:
    clock = Clock(monkeypatch)

    class Refusing(Slow):
        """Flower returns no id for a malformed message, and no ids where one is too large."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            super().push_messages(messages)
            return taken  # type: ignore[return-value]

    replies = list(PromptGrid(Refusing(clock, [0.5, 0.5])).send_and_receive(_messages(2), timeout=60))
    errors = [reply for reply in replies if reply.has_error()]
    assert [reply.metadata.reply_to_message_id for reply in errors] == refused
    assert {reply.error.reason for reply in errors} == {
        "Flower did not take the message: it is too large for the SuperLink, or malformed"
    }
    assert len(replies) == 2
