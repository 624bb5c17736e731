"""Clients on separate threads: as many as are faster, with the same results for any number."""

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.training import working_model as module
from fedclust.training.cohort import Job
from fedclust.training.working_model import Lanes, WorkingModel

CPU = torch.device("cpu")


@pytest.fixture
def one_thread_inside() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lanes_of(model: nn.Module, most: int) -> Lanes:
    return Lanes(WorkingModel(model, CPU, "float32"), most)


def let_every_step_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance a thread's clock by so many seconds at each call."""
    looks = itertools.count()
    monkeypatch.setattr(module.time, "thread_time", lambda: next(looks) * seconds)


# A lane for every 0.4 ms of a step: 0.7 ms are worth one, 0.9 ms two and 2 ms five, if there are so many
# threads, and items after the first, which is used to find out.
@pytest.mark.parametrize(
    ("milliseconds", "most", "items", "threads"),
    [(0.7, 4, 9, 1), (0.9, 4, 9, 2), (2.0, 4, 9, 4), (2.0, 3, 9, 3), (2.0, 4, 3, 2), (2.0, 1, 9, 1)],
)
def test_the_number_of_threads(
    milliseconds: float, most: int, items: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_every_step_take(milliseconds / 1000, monkeypatch)
    together = threading.Barrier(threads)
    models: dict[int, WorkingModel] = {}

    def work(model: WorkingModel, item: int) -> int:
        # Each thread waits for all others at its first item but the one that is measured.
        me = threading.get_ident()
        if item > 0 and me not in models:
            models[me] = model
            together.wait(timeout=10)
        assert item == 0 or models[me] is model
        return item * item

    assert lanes_of(nn.Linear(2, 2), most).each("kind", work, range(items)) == [i * i for i in range(items)]
    assert len(models) == len(set(map(id, models.values()))) == threads


def test_the_cost_of_a_step_counts_not_that_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    names = set()

    def work(_: WorkingModel, __: int) -> None:
        names.add(threading.current_thread().name)

    # 2 ms for 10 steps are 0.2 ms a step.
    lanes_of(nn.Linear(2, 2), 4).each("kind", work, range(9), [10] * 9)
    assert names == {threading.current_thread().name}


def test_what_is_raised_comes_out_and_the_others_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    done = []

    def work(_: WorkingModel, item: int) -> None:
        if item == 1:
            raise ValueError("at once")
        time.sleep(0.02)
        done.append(item)

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="at once"):
        lanes_of(nn.Linear(2, 2), 2).each("kind", work, range(100))
    assert torch.get_num_threads() == before
    assert len(done) < 5  # the first, which is measured, and what another thread had begun


def test_an_interrupt_ends_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_step_take(2.0e-3, monkeypatch)
    done = []

    def work(_: WorkingModel, item: int) -> None:
        if item == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which only waits
        time.sleep(0.02)
        done.append(item)

    # A shell starts what runs in the background with interrupts ignored, which pytest then inherits.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lanes_of(nn.Linear(2, 2), 2).each("kind", work, range(200))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) < 50


def test_a_model_that_keeps_what_it_computed(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor with a history cannot be copied; the threads' models are copied before there is one."""
    let_every_step_take(1.0, monkeypatch)

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.kept = self.head(inputs.flatten(1))
            return self.kept

    made = small.set_up(Keeping(), threads=2, batch_size=4, mode="sequential")
    (update,) = made.trainer.train(made.jobs, 1)
    assert not update.failed


def test_nothing_to_do() -> None:
    assert lanes_of(nn.Linear(2, 2), 2).each("kind", lambda *_: 1, []) == []


@pytest.mark.parametrize(("items", "inside"), [(1, 6), (2, 3), (3, 2), (20, 1)])
def test_threads_that_clients_leave_serve_inside_operations(
    items: int, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_every_step_take(1.0, monkeypatch)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        counts = lanes_of(nn.Linear(2, 2), 6).each("kind", lambda *_: torch.get_num_threads(), range(items))
        assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)
    assert counts == [inside] * items


@pytest.mark.parametrize("kind", ["convolution", "dropout", "batch norm", "lstm"])
def test_a_cohort_learns_the_same_bits_on_any_number_of_threads(
    small: Any, kind: str, monkeypatch: pytest.MonkeyPatch, one_thread_inside: None
) -> None:
    let_every_step_take(1.0, monkeypatch)
    threads_seen = set()
    plain_forward = WorkingModel.forward

    def forward(*arguments: Any) -> torch.Tensor:
        threads_seen.add(threading.get_ident())
        time.sleep(0.001)  # so that no thread has done all before the others have started
        return plain_forward(*arguments)

    monkeypatch.setattr(WorkingModel, "forward", forward)
    results = []
    for threads in (1, 3):
        made = small.set_up(kind, threads=threads, batch_size=4, momentum=0.9, mode="sequential")
        for server_round in (1, 2):
            (update,) = made.trainer.train(made.jobs, server_round)
        scores = made.trainer.evaluate(made.jobs, full=True)
        results.append((update, scores))
    assert len(threads_seen) > 2
    (one, scores), (three, same_scores) = results
    for name, tensor in one.state.items():
        assert torch.equal(three.state[name], tensor), name
    for losses, same in zip(one.losses, three.losses, strict=True):
        np.testing.assert_array_equal(losses, same)
    assert repr(scores) == repr(same_scores)  # NaN is not equal to itself


def test_a_model_that_draws_by_itself_keeps_to_one_thread(
    monkeypatch: pytest.MonkeyPatch, small: Any
) -> None:
    let_every_step_take(1.0, monkeypatch)
    names = set()

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LazyLinear(3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            names.add(threading.current_thread().name)
            outputs = self.layer(inputs.flatten(1))
            return outputs + torch.randn(outputs.shape) if self.training else outputs

    model = Noisy()
    model(small.federation().inputs[:1].float())
    names.clear()
    made = [small.set_up(model, threads=threads, batch_size=4, mode="sequential") for threads in (1, 3)]
    results = [next(each.trainer.train(each.jobs, 1)) for each in made]
    assert names == {threading.current_thread().name}
    for name, tensor in results[0].state.items():
        assert torch.equal(results[1].state[name], tensor)


@pytest.mark.parametrize("bad", [1, 3])
def test_a_client_that_fails_costs_no_other_on_its_thread(
    small: Any, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_every_step_take(1.0, monkeypatch)
    made = [small.set_up(threads=threads, batch_size=4, mode="sequential") for threads in (1, 3)]
    jobs = list(made[0].jobs)
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in made[0].start.items()}
    jobs[bad] = Job(jobs[bad].client, jobs[bad].rows, broken)
    alone, together = (next(each.trainer.train(jobs, 1)) for each in made)
    assert list(alone.failed) == list(together.failed) == [jobs[bad].client]
    for name, tensor in alone.state.items():
        torch.testing.assert_close(together.state[name], tensor, rtol=0, atol=0, equal_nan=True)
