"""Memory of a stacked cohort that stays, so that its steps can be recorded once and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from fedclust.training.kernels.optimisers import LocalUpdate
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.parameters import LocalTraining
from fedclust.training.scheduling.work import Work
from fedclust.typing import State

__all__ = ["CohortMemory"]


@dataclass(frozen=True, eq=False)
class CohortMemory:
    """What a cohort's steps read and write, for at most n clients, S steps and B examples.

    Attributes
    ----------
    working
        The model.
    training
        Hyperparameters.
    used
        Names of the parameters to train.
    rows
        Rows of the dataset, shape (S, n, B).
    sizes
        Real rows of each batch, >= 1, shape (S, n).
    keys, augmentation
        Keys of the steps, shape (S, n).
    losses
        Written: the loss before each step, shape (S, n).
    step
        Which step is next, shape (1,).
    places
        0 to B - 1.
    learning_rate, proximal_mu
        0-d, in float64.
    state
        Stacked models without their frozen parameters, name to tensor of shape (n, *shape).
    """

    working: WorkingModel
    training: LocalTraining
    used: Sequence[str]
    rows: torch.Tensor
    sizes: torch.Tensor
    keys: torch.Tensor
    augmentation: torch.Tensor
    losses: torch.Tensor
    step: torch.Tensor
    places: torch.Tensor
    learning_rate: torch.Tensor
    proximal_mu: torch.Tensor
    state: State
    # Allocated when a pass first needs them: by whether all clients have the same frozen parameters, and by
    # whether there is a proximal term.
    _frozen: dict[bool, State] = field(default_factory=dict)
    _updates: dict[bool, LocalUpdate] = field(default_factory=dict)

    @classmethod
    def empty(
        cls,
        working: WorkingModel,
        training: LocalTraining,
        used: Sequence[str],
        shape: tuple[int, int, int],
    ) -> CohortMemory:
        """Allocate on the device of the model, for as many clients, steps and examples as `shape` says."""
        clients, steps, width = shape
        whole = partial(torch.zeros, dtype=torch.int64, device=working.device)
        number = partial(torch.zeros, (), dtype=torch.float64, device=working.device)
        state = {
            name: working.tensors[name].detach().new_zeros((clients, *working.tensors[name].shape))
            for name in working.changing
            if name not in working.tied
        }
        return cls(
            working=working,
            training=training,
            used=used,
            rows=whole((steps, clients, width)),
            sizes=whole((steps, clients)).fill_(1),
            keys=whole((steps, clients)),
            augmentation=whole((steps, clients)),
            losses=torch.zeros((steps, clients), device=working.device),
            step=whole(1),
            places=torch.arange(width, device=working.device),
            learning_rate=number(),
            proximal_mu=number(),
            state=state | {name: state[first] for name, first in working.tied.items() if first in state},
        )

    def first(self, clients: int, *, proximal: bool, alike: bool) -> tuple[State, LocalUpdate]:
        """Return the tensors and the update of the first clients, after a pass of that kind was loaded."""
        tensors = (self.state | self._frozen[alike]).items()
        return {name: tensor[:clients] for name, tensor in tensors}, self._updates[proximal].first(clients)

    def inputs(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a pass's rows and sizes to the device, shapes (S, n, B) and (S, n), for :meth:`load`."""
        rows, sizes = work.batches.rows, np.maximum(work.batches.sizes, 1)
        missing = self.rows.shape[2] - rows.shape[2]
        if missing:  # filled like all short batches: with a row of the client's own
            rows = np.concatenate([rows, np.repeat(rows[:, :, :1], missing, axis=2)], axis=2)
        # A GPU's driver has copied them when this returns; without it the host would wait for the queue.
        return (
            torch.from_numpy(np.ascontiguousarray(rows.swapaxes(0, 1))).to(
                self.rows.device, non_blocking=True
            ),
            torch.from_numpy(np.ascontiguousarray(sizes.T)).to(self.sizes.device, non_blocking=True),
        )

    def load(self, work: Work, inputs: tuple[torch.Tensor, torch.Tensor], start: State) -> None:
        """Let a pass begin: its models, an optimiser without a past, its rows, sizes and keys, step 0.

        Parameters
        ----------
        work
            The pass.
        inputs
            Of :meth:`inputs`.
        start
            The stacked models that the clients start from; one without stride if all have the same.
        """
        steps, clients = inputs[1].shape
        self.rows[:steps, :clients].copy_(inputs[0])
        self.sizes[:steps, :clients].copy_(inputs[1])
        self.keys[:steps, :clients].copy_(work.keys.T)
        if work.augmentation is not None:
            self.augmentation[:steps, :clients].copy_(work.augmentation.T)
        self.step.zero_()
        self.learning_rate.fill_(work.learning_rate)
        self.proximal_mu.fill_(work.proximal_mu)
        for name, tensor in self.state.items():
            if name not in self.working.tied:
                tensor[:clients].copy_(start[name])
        self._load_frozen(start, clients)
        parameters, proximal = [self.state[name] for name in self.used], work.proximal_mu > 0
        if proximal not in self._updates:
            mu = self.proximal_mu if proximal else 0.0
            self._updates[proximal] = LocalUpdate(
                parameters, self.training, self.learning_rate, mu, stacked=True
            )
        self._updates[proximal].restart(parameters)

    def _load_frozen(self, start: State, clients: int) -> None:
        """Copy frozen parameters: once if all clients have the same, which layers then compute with once."""
        alike = all(start[name].stride(0) == 0 for name in self.working.constant)
        if alike not in self._frozen:
            tensors = {name: self.working.tensors[name].detach() for name in self.working.constant}
            each = self.rows.shape[1]
            self._frozen[alike] = {
                name: tensor.new_zeros((1 if alike else each, *tensor.shape)).expand(each, *tensor.shape)
                for name, tensor in tensors.items()
            }
        for name, tensor in self._frozen[alike].items():
            if alike:
                tensor[0].copy_(start[name][0])
            else:
                tensor[:clients].copy_(start[name])

    def store(self, first: int, last: int, state: State) -> None:
        """Copy the models of clients `first` to `last` - 1 to their places in `state`."""
        for name in self.working.changing:
            state[name][first:last].copy_(self.state[name][first:last])

    def store_losses(self, losses: torch.Tensor) -> None:
        """Copy the losses of a pass of n clients and S steps to `losses`, shape (n, S)."""
        clients, steps = losses.shape
        losses.copy_(self.losses[:steps, :clients].T)
