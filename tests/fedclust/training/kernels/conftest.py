"""Stand-ins for recording on a GPU."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
import torch

from fedclust.training.kernels import recorders

Work = Callable[[], None]


class Counting(recorders.CallAgain):
    """Counts recordings."""

    made = 0

    def record(self, step: Work) -> Work:
        Counting.made += 1
        return super().record(step)


class Late(recorders.CallAgain):
    """Behaves like a GPU with other work to do: what is queued happens at :meth:`end`, not before.

    Lanes go on in a random order then, each in its own. It is an error to queue work before :meth:`begin`, to
    record while other work waits, or not to wait for the end.
    """

    lanes: ClassVar[list["Late"]] = []
    draws = random.Random(0)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.waiting: deque[Work] = deque()
        self.open = False
        Late.lanes.append(self)

    def begin(self) -> None:
        assert not self.open
        self.open = True

    def queue(self, work: Work) -> None:
        assert self.open, "queued before the lane waits for the caller"
        self.waiting.append(work)

    def record(self, step: Work) -> Work:
        assert not self.waiting
        return step

    def end(self) -> None:
        self.open = False
        while self.waiting:
            some = Late.draws.choice([lane for lane in Late.lanes if lane.waiting])
            some.waiting.popleft()()


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setitem(recorders.RECORDERS, "cpu", Counting)
    monkeypatch.setattr(Counting, "made", 0)
    return Counting


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Late]]:
    monkeypatch.setitem(recorders.RECORDERS, "cpu", Late)
    monkeypatch.setattr(Late, "lanes", [])
    monkeypatch.setattr(Late, "draws", random.Random(3))
    yield Late
    assert not any(lane.waiting or lane.open for lane in Late.lanes)
