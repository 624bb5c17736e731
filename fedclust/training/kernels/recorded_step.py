"""One client's training step on memory that stays, so that it can be recorded once and repeated.

A client's rows and dropout keys are copied into fixed tensors before its first step, and a counter on the
device says which of them are next, so that nothing is copied between two steps. A recording fixes the size of
the batch, whether there is a proximal term, and all hyperparameters that no round or client changes. It reads
anew: parameters, buffers, the optimiser's state, the learning rate, FedProx's weight, rows and keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.optimisers import LocalUpdate
from fedclust.training.kernels.recorders import Recorder
from fedclust.training.kernels.recorders import Work as Step
from fedclust.training.kernels.trace import check_recordable
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.losses import Loss, mean_loss
from fedclust.training.parameters import LocalTraining
from fedclust.training.scheduling.work import Work
from fedclust.typing import State

__all__ = ["RecordedLane", "Results"]

# Recordings that a lane keeps: one for each size of batch, the last one of an epoch included.
_MOST = 64
_LEAST_STEPS = 4


@dataclass(frozen=True, eq=False)
class Results:
    """Where a pass's results go.

    Attributes
    ----------
    state
        Stacked models, name to tensor of shape (n, *shape).
    losses
        Loss before each step, shape (n, S).
    """

    state: State
    losses: torch.Tensor


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What a step reads besides the model and the dataset; the memory stays.

    Attributes
    ----------
    rows
        Rows of a client's batches, shape (S, B).
    keys, augmentation
        Keys of its steps, shape (S,).
    losses
        Written: the loss before each step, shape (S,).
    step
        Which step is next, shape (1,).
    learning_rate, proximal_mu
        0-d, in float64.
    """

    rows: torch.Tensor
    keys: torch.Tensor
    augmentation: torch.Tensor
    losses: torch.Tensor
    step: torch.Tensor
    learning_rate: torch.Tensor
    proximal_mu: torch.Tensor

    @classmethod
    def empty(cls, steps: int, width: int, device: torch.device) -> _Inputs:
        """Allocate for so many steps with batches of at most `width`."""
        whole = partial(torch.zeros, dtype=torch.int64, device=device)
        return cls(
            rows=whole((steps, width)),
            keys=whole(steps),
            augmentation=whole(steps),
            losses=torch.zeros(steps, device=device),
            step=whole(1),
            learning_rate=torch.zeros((), dtype=torch.float64, device=device),
            proximal_mu=torch.zeros((), dtype=torch.float64, device=device),
        )


class RecordedLane:
    """Trains clients one after another by repeating recorded steps.

    Parameters
    ----------
    working
        A model that nobody else uses.
    data
        The dataset, on the device.
    training
        Hyperparameters.
    loss
        The loss, without tensors on the host.
    recorder
        Records and repeats steps; the lane's alone.
    """

    def __init__(
        self,
        working: WorkingModel,
        data: DeviceData,
        training: LocalTraining,
        loss: Loss,
        recorder: Recorder,
    ) -> None:
        self.recorder = recorder
        self._working = working
        self._data = data
        self._training = training
        self._loss = loss
        self._inputs = _Inputs.empty(_LEAST_STEPS, 1, working.device)
        self._parameters: list[torch.Tensor] | None = None
        self._updates: dict[bool, LocalUpdate] = {}
        self._recordings: dict[tuple[int, bool], Step] = {}
        self._kept: dict[tuple[int, bool], list[torch.Tensor]] = {}

    def make_room(self, steps: int, width: int, needed: Sequence[tuple[int, bool]]) -> None:
        """Provide for a pass; forget recordings that have lost their memory, or are too many.

        Parameters
        ----------
        steps, width
            The most steps of a client, and examples of a batch.
        needed
            Recordings that the pass needs, as in :meth:`try_step`.
        """
        there = self._inputs.rows.shape
        if steps > there[0] or width > there[1]:
            # Powers of two: few clients then make it grow again.
            grown = max(there[0], 1 << (steps - 1).bit_length()), max(there[1], width)
            self._inputs = _Inputs.empty(*grown, self._working.device)
            self._updates = {}
            self._forget_all_but(())
        if len({*self._recordings, *needed}) > _MOST:
            self._forget_all_but(needed)

    def _forget_all_but(self, needed: Sequence[tuple[int, bool]]) -> None:
        self._recordings = {key: self._recordings[key] for key in needed if key in self._recordings}
        self._kept = {key: self._kept[key] for key in self._recordings}
        if not self._recordings:
            self.recorder.forget()

    def try_step(self, size: int, proximal: bool, work: Work, index: int) -> None:
        """Try a step that is not recorded yet, so that all its memory is there.

        Parameters
        ----------
        size
            Examples in the batch.
        proximal
            Whether there is a proximal term.
        work, index
            A client that has such a batch.

        Raises
        ------
        NotRecordable
            If no step of this model can be recorded.
        Exception
            That of the model or the loss, for a batch of this size.
        """
        if (size, proximal) in self._recordings:
            return
        self._working.model.train()
        self.recorder.begin()
        try:
            self.recorder.queue(partial(self._try, size, proximal, work, index))
        finally:
            self.recorder.end()

    def record(self, size: int, proximal: bool) -> None:
        """Record a step that was tried, if it is not recorded yet."""
        if (size, proximal) not in self._recordings:
            step = partial(self._step, size, proximal)
            self._recordings[size, proximal] = self.recorder.record(step)

    def begin(self, work: Work) -> None:
        """Begin a pass."""
        self.recorder.begin()
        self.recorder.queue(partial(self._set, work.learning_rate, work.proximal_mu))

    def train(self, work: Work, index: int, rows: torch.Tensor, results: Results) -> Iterator[int]:
        """Train a client of a pass; the recordings that it needs are ready.

        Parameters
        ----------
        work
            The pass.
        index
            Which client.
        rows
            The pass's rows, shape (n, S, B), on the device.
        results
            Where the client's go, after :meth:`Recorder.end`.

        Yields
        ------
        The size of each batch, when its step is queued.
        """
        sizes = work.batches.sizes[index, : int(work.batches.steps[index])].tolist()
        self.recorder.queue(partial(self._load, work, index, rows[index, : len(sizes)]))
        for size in sizes:
            self.recorder.queue(self._recordings[size, work.proximal_mu > 0])
            yield size
        self.recorder.queue(partial(self._store, index, len(sizes), results))

    def _set(self, learning_rate: float, proximal_mu: float) -> None:
        """Set what a round may change."""
        self._inputs.learning_rate.fill_(learning_rate)
        self._inputs.proximal_mu.fill_(proximal_mu)

    def _load(self, work: Work, index: int, rows: torch.Tensor) -> None:
        """Let a client begin: its model, an optimiser without a past, its rows and keys, step 0."""
        steps, width = rows.shape
        inputs = self._inputs
        self._working.load(work.jobs[index].state)
        inputs.rows[:steps, :width].copy_(rows)
        inputs.keys[:steps].copy_(work.keys[index, :steps])
        if work.augmentation is not None:
            inputs.augmentation[:steps].copy_(work.augmentation[index, :steps])
        inputs.step.zero_()
        if self._parameters is not None:
            self._updates[work.proximal_mu > 0].restart(self._parameters)

    def _store(self, index: int, steps: int, results: Results) -> None:
        """Copy a client's results."""
        for name in self._working.changing:
            results.state[name][index].copy_(self._working.tensors[name].detach())
        results.losses[index, :steps].copy_(self._inputs.losses[:steps])

    def _step(self, size: int, proximal: bool) -> None:
        """Take the next step: the work that is recorded."""
        inputs, augmentation = self._inputs, None
        if self._training.augmentation != "none":
            augmentation = inputs.augmentation.index_select(0, inputs.step)
        rows = inputs.rows.index_select(0, inputs.step)[0, :size]
        key = inputs.keys.index_select(0, inputs.step)[0]
        batch, labels = self._data.batch(rows, augmentation)
        loss = mean_loss(self._working.forward(batch, key), labels, self._loss)
        inputs.losses.index_copy_(0, inputs.step, loss.detach().view(1).to(inputs.losses.dtype))
        parameters, gradients = self._gradients(loss)
        self._update(parameters, proximal).step(parameters, gradients)
        inputs.step.add_(1)

    def _gradients(self, loss: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        if self._parameters is None:
            # Like torch.optim, do not change parameters that the loss does not depend on, not even by decay.
            trainable = self._working.trainable
            found = torch.autograd.grad(loss, trainable, allow_unused=True)
            used = [pair for pair in zip(trainable, found, strict=True) if pair[1] is not None]
            self._parameters = [parameter for parameter, _ in used]
            return self._parameters, [gradient for _, gradient in used]
        return self._parameters, list(torch.autograd.grad(loss, self._parameters, materialize_grads=True))

    def _update(self, parameters: list[torch.Tensor], proximal: bool) -> LocalUpdate:
        if proximal not in self._updates:
            mu = self._inputs.proximal_mu if proximal else 0.0
            rate = self._inputs.learning_rate
            self._updates[proximal] = LocalUpdate(parameters, self._training, rate, mu, stacked=False)
        return self._updates[proximal]

    def _try(self, size: int, proximal: bool, work: Work, index: int) -> None:
        """Take steps on a client's first batch of a size, so that all memory is there; check them."""
        taken = work.batches.sizes[index].tolist().index(size)
        batch = torch.from_numpy(work.batches.rows[index, taken, :size]).to(self._working.device)
        self._inputs.rows[:, :size].copy_(batch.expand(len(self._inputs.rows), -1))
        self._working.load(work.jobs[index].state)
        self._inputs.step.zero_()
        step = partial(self._step, size, proximal)
        self._kept[size, proximal] = check_recordable(self._working.model, step, self._working.device)
