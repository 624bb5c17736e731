"""Local training of a whole cohort in one pass by recorded steps: ``training.mode=vectorised_graphs``.

The operations are those of :mod:`.vectorised`, on memory that stays: a step of all clients is then one call.
Rows, keys and sizes of all batches are copied there before the first step, and a counter on the device says
which of them are next. So nothing is copied between two steps, and the host waits for none.

A recording fixes how many clients take the step and how many examples a batch has. To keep recordings few,
every batch is as wide as the widest seen so far, padded as in :mod:`.vectorised`, and clients that have
stopped go on with the others until only half of the clients are left. Their models are copied before the
first step that is not theirs; what they compute afterwards is not read, and no client's numbers depend on
another's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.cohort_memory import CohortMemory
from fedclust.training.kernels.recorders import Work as Step
from fedclust.training.kernels.recorders import make_recorder
from fedclust.training.kernels.trace import NotRecordable, check_recordable
from fedclust.training.kernels.vectorised import Kernel, VectorisedTraining, no_batching_rule_warnings
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.parameters import LocalTraining
from fedclust.training.results import collect, empty_rows, stacked_start
from fedclust.training.scheduling.work import Work
from fedclust.typing import State

__all__ = ["RecordedCohorts", "numbers_of_clients"]

_logger = logging.getLogger(__name__)

# A step that is tried takes three.
_LEAST_STEPS = 4
# Most memory for the rows of batches, unless one pass needs more by itself.
_MOST_BYTES = 512 << 20


def numbers_of_clients(most: int) -> list[int]:
    """List the numbers of clients that have a recording: at most `most`, and half as many again and again.

    Never 1, if `most` is larger: a batched product of one matrix uses another kernel than that of many.
    """
    numbers = [most]
    while numbers[-1] > 2:
        numbers.append(-(-numbers[-1] // 2))
    return numbers


@dataclass(frozen=True)
class _Kind:
    """What distinguishes recordings that use the same memory.

    Attributes
    ----------
    clients
        How many take the step.
    padded
        Whether some batch of theirs is short.
    proximal
        Whether there is a proximal term.
    alike
        Whether all have the same frozen parameters.
    """

    clients: int
    padded: bool
    proximal: bool
    alike: bool


class RecordedCohorts:
    """Trains cohorts together by repeating recorded steps; results equal `vectorised`'s up to rounding.

    If the model's step cannot be recorded, `vectorised` trains from then on; the reason is logged once.

    Parameters
    ----------
    vectorised
        Trains without recordings, and makes the kernels whose steps are recorded.
    working
        The model; its own tensors are not touched.
    data
        The dataset.
    training
        Hyperparameters.

    Raises
    ------
    ValueError
        If there is nothing to record with on the device.
    """

    def __init__(
        self, vectorised: VectorisedTraining, working: WorkingModel, data: DeviceData, training: LocalTraining
    ) -> None:
        self._recorder = make_recorder(working.device, training.mode)
        self._vectorised = vectorised
        self._working = working
        self._data = data
        self._training = training
        self._memory: CohortMemory | None = None
        self._steps: dict[_Kind, Step] = {}
        self._recordings: dict[_Kind, Step] = {}
        self._kept: dict[_Kind, list[torch.Tensor]] = {}
        self._too_many: float = float("inf")
        self._reason = ""
        if data.rows_device != working.device:
            self._give_up(f"the dataset takes too much of the memory of {working.device}")

    def train(self, work: Work) -> CohortUpdate:
        """Train the clients of a pass together; see :meth:`.vectorised.VectorisedTraining.train`.

        Raises
        ------
        torch.OutOfMemoryError
            If so many clients do not fit into memory.
        """
        with no_batching_rule_warnings():
            recorded = None if self._reason else self._record(work)
            if recorded is None:
                return self._vectorised.train(work)
            state = empty_rows(self._working, work.jobs)
            losses = torch.zeros(work.batches.sizes.shape, device=self._data.device)
            start = stacked_start(work.jobs, self._working.tensors)
            self._run(*recorded, work, start, state, losses)
        return collect(self._working, work, state, losses, {})

    def _record(self, work: Work) -> tuple[CohortMemory, list[_Kind]] | None:
        """Record what a pass needs; return the memory and each step's kind, or None if that is impossible."""
        if len(work.jobs) >= self._too_many:
            raise torch.OutOfMemoryError(f"{len(work.jobs)} clients did not fit into memory before")
        used = self._vectorised.used_parameters(work)
        self._working.model.train()
        try:
            memory = self._make_room(work, used)
            kinds = self._kinds(work, memory)
            for kind in kinds:
                if kind not in self._recordings:
                    self._record_kind(kind, memory, work)
            return memory, kinds
        except NotRecordable as error:
            self._give_up(str(error))
        except torch.OutOfMemoryError:
            self._too_many = len(work.jobs)
            self._forget()
            raise
        # A capture may fail in ways that no check has foreseen, and without graphs everything works.
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return None

    def _make_room(self, work: Work, used: Sequence[str]) -> CohortMemory:
        """Provide memory for a pass; recordings that have lost theirs are forgotten."""
        clients, steps, width = work.batches.rows.shape
        there = (0, 0, 0)
        if self._memory is not None:
            there = (self._memory.rows.shape[1], self._memory.rows.shape[0], self._memory.rows.shape[2])
            if clients <= there[0] and steps <= there[1] and width <= there[2]:
                return self._memory
        # Powers of two: few passes then make it grow again.
        needed = clients, max(_LEAST_STEPS, 1 << (steps - 1).bit_length()), width
        grown = max(there[0], needed[0]), max(there[1], needed[1]), max(there[2], needed[2])
        # One long client and, in another pass, many short ones must not ask for room for many long ones.
        shape = grown if 8 * math.prod(grown) <= _MOST_BYTES else needed
        self._forget()
        self._memory = CohortMemory.empty(self._working, self._training, used, shape)
        return self._memory

    def _kinds(self, work: Work, memory: CohortMemory) -> list[_Kind]:
        """Choose the recording of each step of a pass."""
        sizes, (_, most, width) = work.batches.sizes, memory.rows.shape
        numbers = numbers_of_clients(most)
        alike = not self._working.constant or len({id(job.state) for job in work.jobs}) == 1
        return [
            _Kind(
                clients=min(number for number in numbers if number >= active),
                padded=bool((own[:active] < width).any()),
                proximal=work.proximal_mu > 0,
                alike=alike,
            )
            for active, own in zip((sizes > 0).sum(axis=0).tolist(), sizes.T, strict=True)
        ]

    def _record_kind(self, kind: _Kind, memory: CohortMemory, work: Work) -> None:
        """Try a step, so that all its memory is there, and record it."""
        inputs, start = memory.inputs(work), stacked_start(work.jobs, self._working.tensors)
        self._recorder.begin()
        try:
            self._recorder.queue(partial(self._try, kind, memory, work, inputs, start))
        finally:
            self._recorder.end()
        self._recordings[kind] = self._recorder.record(self._steps[kind])

    def _try(self, kind: _Kind, memory: CohortMemory, work: Work, *arguments: Any) -> None:
        memory.load(work, *arguments)
        state, update = memory.first(kind.clients, proximal=kind.proximal, alike=kind.alike)
        kernel = self._vectorised.kernel(state, memory.used, update)
        self._steps[kind] = step = partial(self._step, kind, memory, kernel)
        self._kept[kind] = check_recordable(self._working.model, step, self._working.device)

    def _step(self, kind: _Kind, memory: CohortMemory, kernel: Kernel) -> None:
        """Take the next step: the work that is recorded."""

        def next_of(values: torch.Tensor) -> torch.Tensor:
            return values.index_select(0, memory.step)[0, : kind.clients]

        augmentation = None if self._training.augmentation == "none" else next_of(memory.augmentation)
        inputs, labels = self._data.batch(next_of(memory.rows), augmentation)
        real = (memory.places < next_of(memory.sizes)[:, None]).float() if kind.padded else None
        losses = kernel.step(inputs, labels, real, next_of(memory.keys))
        losses = losses.detach().to(memory.losses.dtype)
        memory.losses[:, : kind.clients].index_copy_(0, memory.step, losses[None])
        memory.step.add_(1)

    def _run(
        self,
        memory: CohortMemory,
        kinds: Sequence[_Kind],
        work: Work,
        start: State,
        state: State,
        losses: torch.Tensor,
    ) -> None:
        """Queue all steps; copy the models of clients after their last one into `state`."""
        active = [*(work.batches.sizes > 0).sum(axis=0).tolist(), 0]
        inputs = memory.inputs(work)
        self._recorder.begin()
        self._recorder.queue(partial(memory.load, work, inputs, start))
        for kind, now, later in zip(kinds, active, active[1:], strict=False):
            self._recorder.queue(self._recordings[kind])
            if later < now:
                self._recorder.queue(partial(memory.store, later, now, state))
        self._recorder.queue(partial(memory.store_losses, losses))
        self._recorder.end()

    def _forget(self) -> None:
        """Free the memory that stays, and everything that was recorded with it."""
        self._memory = None
        self._steps, self._recordings, self._kept = {}, {}, {}
        self._recorder.forget()

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._forget()
        _logger.warning("clients train together without CUDA graphs: %s", reason)
