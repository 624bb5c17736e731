"""What is asked of CUDA to record a step, on a stand-in for torch.cuda."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fedclust.training import LocalTraining, Trainer
from fedclust.training.kernels import recorders


class Cuda:
    """Streams and graphs that do nothing; the end of a capture that was broken off fails, as CUDA's does."""

    def __init__(self) -> None:
        self.current = "caller"
        self.pools = 0
        self.captures: list[dict[str, Any]] = []

    def Stream(self, device: torch.device) -> Any:
        class Lane:
            pass

        lane = Lane()
        lane.device = device  # type: ignore[attr-defined]
        return lane

    def CUDAGraph(self) -> Any:
        class Graph:
            def replay(self) -> None:
                pass

        return Graph()

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_stream(self, _: torch.device) -> Any:
        return self.current

    @contextmanager
    def stream(self, stream: Any) -> Any:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph(self, graph: Any, **options: Any) -> Any:
        cuda = self
        cuda.captures.append(options)

        class Capture:
            def __enter__(self) -> None:
                self.before, cuda.current = cuda.current, options["stream"]

            def __exit__(self, kind: Any, *_: Any) -> None:
                if kind is not None:  # torch.cuda.graph does not come to the next line then, either
                    raise RuntimeError("operation failed due to a previous error during capture")
                cuda.current = self.before

        return Capture()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    stand_in = Cuda()
    for name in ("Stream", "CUDAGraph", "graph_pool_handle", "current_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name))
    return stand_in


def test_all_steps_of_a_lane_share_its_stream_and_its_pool(cuda: Cuda) -> None:
    recorder = recorders.CudaGraphs(torch.device("cuda", 0))
    seen = []
    for _ in range(2):
        recorder.record(lambda: seen.append(cuda.current))
    assert seen == [recorder._stream] * 2
    assert [each["pool"] for each in cuda.captures] == [1, 1]
    assert cuda.current == "caller"


def test_without_recordings_the_next_has_another_pool(cuda: Cuda) -> None:
    # PyTorch refuses a pool whose last graph is gone, if some of its memory is still in use.
    recorder = recorders.CudaGraphs(torch.device("cuda", 0))
    recorder.record(lambda: None)
    recorder.forget()
    recorder.record(lambda: None)
    assert [each["pool"] for each in cuda.captures] == [1, 2]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("too much"), ValueError("of the model")])
def test_the_steps_error_counts_and_the_stream_is_the_callers(cuda: Cuda, error: Exception) -> None:
    def step() -> None:
        raise error

    recorder = recorders.CudaGraphs(torch.device("cuda", 0))
    with pytest.raises(type(error)) as raised:
        recorder.record(step)
    assert raised.value is error
    assert cuda.current == "caller"


@pytest.mark.parametrize("mode", ["cuda_graphs", "vectorised_graphs"])
def test_who_drops_all_recordings_says_so(small: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held, forgotten = [0], []

    class Pool(recorders.CallAgain):
        def record(self, step: Any) -> Any:
            held[0] += 1
            return step

        def forget(self) -> None:
            forgotten.append(held[0])
            held[0] = 0

    monkeypatch.setitem(recorders.RECORDERS, "cpu", Pool)
    data, model = small.federation(sizes=(8, 24, 8)), small.build("linear")
    jobs = small.jobs(data, small.start_of(model))
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=2, mode=mode)  # type: ignore[arg-type]
    trainer = Trainer(model, data, training, seed=1)
    list(trainer.train(jobs[:1], 1))
    assert forgotten[-1] == 0
    list(trainer.train(jobs[1:2], 1))  # six steps, where there was room for four
    assert forgotten[-1] == 1
    list(trainer.train(jobs[:1], 1))
    assert held == [1]
