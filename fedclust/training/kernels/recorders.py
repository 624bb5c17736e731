"""Ways to repeat a step: as a CUDA graph on a stream of its own, or by calling it again.

A training step of a small network is some hundred short operations; on a GPU, starting them takes longer than
they do. A CUDA graph starts all of them at once: it is recorded once, and repeated on the same memory. So all
that differs from one repetition to the next must be in tensors that stay; see :mod:`.recorded_step`.
"""

from collections.abc import Callable
from typing import Protocol

import torch

__all__ = ["RECORDERS", "CallAgain", "CudaGraphs", "Recorder", "make_recorder"]

Work = Callable[[], None]


class Recorder(Protocol):
    """Does the work of one lane in order, beside that of other lanes."""

    def begin(self) -> None:
        """Start the lane's next work after all that the caller has queued so far."""

    def queue(self, work: Work) -> None:
        """Do some work after all that was queued here before; results must not be read until :meth:`end`."""

    def record(self, step: Work) -> Work:
        """Return what to queue to repeat a step that has run before; nothing may be queued meanwhile."""

    def end(self) -> None:
        """Start all that the caller queues from now on after the lane's work."""

    def forget(self) -> None:
        """Take new memory for the next recordings: there are none left."""


class CudaGraphs:
    """Records CUDA graphs and replays them on one stream.

    Parameters
    ----------
    device
        The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # One pool for all graphs of the lane: they never run at the same time, and none reads what another
        # has left there.
        self._pool = torch.cuda.graph_pool_handle()

    def begin(self) -> None:
        """Wait for the caller's stream, on the GPU."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def queue(self, work: Work) -> None:
        """Do some work on the lane's stream."""
        with torch.cuda.stream(self._stream):
            work()

    def record(self, step: Work) -> Work:
        """Capture a graph; what it does not allow, such as waiting for the GPU, raises a RuntimeError."""
        graph, failed = torch.cuda.CUDAGraph(), list[Exception]()
        # Other threads of the process may use the GPU meanwhile.
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            # The outer context restores the caller's stream: a capture that fails does not.
            with torch.cuda.stream(torch.cuda.current_stream(self._stream.device)), capture:
                try:
                    step()
                except Exception as error:
                    failed.append(error)
                    raise
        except Exception as error:
            # The end of a capture that was broken off raises an error of its own, which hides the step's.
            raise (failed or [error])[0] from None
        return graph.replay

    def end(self) -> None:
        """Let the caller's stream wait for this one, on the GPU."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def forget(self) -> None:
        """Use another pool: PyTorch refuses one whose last graph is gone while some of its memory is not."""
        self._pool = torch.cuda.graph_pool_handle()


class CallAgain:
    """Calls a recorded step again on the same tensors: computes what a graph would, without a GPU.

    Parameters
    ----------
    device
        Where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self) -> None:
        """Do nothing: everything queued is done."""

    def queue(self, work: Work) -> None:
        """Do the work now."""
        work()

    def record(self, step: Work) -> Work:
        """Return the step."""
        return step

    def end(self) -> None:
        """Do nothing: everything queued is done."""

    def forget(self) -> None:
        """Do nothing: a recording has no memory of its own."""


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaGraphs}
"""By type of device. Only where recording is faster; tests and benchmarks add ``CallAgain`` for CPUs."""


def make_recorder(device: torch.device, mode: str) -> Recorder:
    """Make the recorder of a device.

    Parameters
    ----------
    device
        Where to compute.
    mode
        The value of ``training.mode`` that needs it.

    Raises
    ------
    ValueError
        If there is nothing to record with on the device.
    """
    if device.type not in RECORDERS:
        raise ValueError(
            f"device must be a GPU with training.mode={mode}, got {device}; "
            "training.mode=auto works on every device"
        )
    return RECORDERS[device.type](device)
