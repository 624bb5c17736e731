"""Passes recorded as CUDA graphs: on a GPU, the many short operations of all steps start with one call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from fedclust.training.cohort import Work
from fedclust.typing import State

_logger = logging.getLogger(__name__)

# Kinds of passes remembered. A run whose clients keep their numbers of rows has one or two.
_MOST = 8
# Relative difference between a pass and its repetition: additions on a GPU may have no fixed order.
_TOLERANCE = 1e-2

Inputs = list[Tensor]
"""Rows, numbers of real rows and dropout keys of all steps; and augmentation keys, if there are any."""

Take = Callable[[Work, State, Inputs], Tensor]
"""Takes the steps of a pass: updates the stacked state in place and returns the losses, shape (n, S)."""

Record = Callable[[Callable[[], object]], Callable[[], object]]
"""Makes, of operations on tensors that stay where they are, a function that repeats them."""


class CudaGraphs:
    """Records operations on a GPU as CUDA graphs, which share memory for what is computed in between."""

    def __init__(self, device: torch.device) -> None:
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._latest: torch.cuda.CUDAGraph | None = None  # no pool may lose its last graph and get another

    def __call__(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Capture the operations, which are not computed yet.

        Raises
        ------
        RuntimeError
            If an operation needs the value of another or CUDA cannot capture it.
        """
        graph, failed = torch.cuda.CUDAGraph(), list[Exception]()
        before = torch.cuda.get_sync_debug_mode()
        # Other threads of the process may use the GPU meanwhile.
        capture = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local")
        # A capture that fails does not restore the caller's stream; the outer context does.
        current = torch.cuda.stream(torch.cuda.current_stream(self._stream.device))
        with warnings.catch_warnings(), current, capture:
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            try:
                # PyTorch refuses to wait for the GPU before CUDA does, which would leave a broken capture.
                torch.cuda.set_sync_debug_mode("error")
                operations()
            except Exception as error:
                failed.append(error)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        if failed:
            raise failed[0]
        self._latest = graph
        return graph.replay


class RecordedPasses:
    """Takes the steps of passes, from a recording if there was a pass of the same kind before.

    Passes of one kind have the same numbers of clients, steps and rows, the same learning rate and the same
    proximal weight. The second pass of a kind is recorded, too, and compared with its repetition; if that
    fails or differs, no pass is recorded from then on.

    Parameters
    ----------
    record
        Records a pass; None to record none.
    """

    def __init__(self, record: Record | None) -> None:
        self._record = record
        self._kinds: dict[Hashable, Take | None] = {}

    def take(self, take: Take, work: Work, state: State, inputs: Inputs) -> Tensor:
        """Take the steps of a pass by `take` or its recording; see :data:`Take`."""
        if self._record is None:
            return take(work, state, inputs)
        shared = tuple(tensor.stride(0) == 0 for tensor in state.values())
        shape, sizes = work.batches.rows.shape, work.batches.sizes.tobytes()
        kind = (shape, sizes, work.learning_rate, work.proximal_mu, shared)
        seen, repeat = kind in self._kinds, self._kinds.pop(kind, None)
        if repeat is not None:
            losses = repeat(work, state, inputs)
        else:
            start = _copied(state) if seen else {}
            losses = take(work, state, inputs)
            if seen and losses.isfinite().all():
                repeat = self._recorded(self._record, take, work, start, inputs, {"": losses, **state})
        self._kinds[kind] = repeat
        if len(self._kinds) > _MOST:
            del self._kinds[next(iter(self._kinds))]  # the one that was needed last the longest time ago
        return losses

    def _recorded(
        self, record: Record, take: Take, work: Work, start: State, inputs: Inputs, expected: State
    ) -> Take | None:
        """Record a pass; return None if that fails or repeating it does not give what is expected."""
        try:
            repeat = _repeating(record, take, work, start, inputs)
            found = {"": repeat(work, start, inputs), **start}
            if all(_close(expected[name], found[name]) for name in expected):
                return repeat
            reason = "a repeated pass gives another result"
        # A capture may fail with any exception at all, and without it everything works.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        self._record = None
        _logger.warning("clients train together without recorded CUDA graphs: %s", reason)
        return None


def _repeating(record: Record, take: Take, work: Work, state: State, inputs: Inputs) -> Take:
    """Record a pass on copies of its tensors; return what repeats it on others of the same shapes."""
    state, own = _copied(state), [tensor.clone() for tensor in inputs]
    losses = torch.zeros(work.batches.sizes.shape, device=own[1].device)
    repeat = record(lambda: losses.copy_(take(work, state, own)))
    moving = [name for name, tensor in state.items() if tensor.stride(0)]

    def take_again(_: Work, others: State, inputs: Inputs) -> Tensor:
        torch._foreach_copy_(own, inputs)
        for name, tensor in state.items():
            place = slice(None) if name in moving else 0
            tensor[place].copy_(others[name][place])
        repeat()
        for name in moving:
            others[name].copy_(state[name])
        return losses.clone()

    return take_again


def _copied(state: State) -> State:
    """Copy tensors; those that all clients share, and two names of one tensor, stay so."""
    copies = {
        id(tensor): tensor.clone() if tensor.stride(0) else tensor[:1].clone().expand_as(tensor)
        for tensor in state.values()
    }
    return {name: copies[id(tensor)] for name, tensor in state.items()}


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), _TOLERANCE, _TOLERANCE, equal_nan=True)
