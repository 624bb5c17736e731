"""Local training of a whole cohort in one pass.

The clients' models are stacked along a first axis and take their t-th step together. Clients are sorted by
their number of steps, so those still training are always the first ones, and finished clients are left out of
later steps. Short batches are padded with repetitions that have weight 0 in the loss and that BatchNorm
ignores.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.func import grad_and_value, vmap

from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import Loss, cross_entropy, example_losses, mean_loss
from fedclust.training.mlp import MlpKernel, find_mlp
from fedclust.training.optimisers import LocalUpdate
from fedclust.training.parameters import LocalTraining
from fedclust.training.work import Work, collect, stacked_start
from fedclust.training.working_model import WorkingModel
from fedclust.typing import State


class Kernel(Protocol):
    """Takes training steps of the first clients of a stacked cohort."""

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients."""

    def step(
        self, inputs: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None, keys: torch.Tensor
    ) -> torch.Tensor:
        """Update the clients' models in place.

        Parameters
        ----------
        inputs, labels
            Their batches, shapes (a, B, *shape) and (a, B) or (a, B, positions).
        real
            1.0 for real examples, 0.0 for padding, shape (a, B); None when all are real.
        keys
            Dropout keys, shape (a,).

        Returns
        -------
        Losses before the step, shape (a,).
        """


class VectorisedTraining:
    """Trains cohorts together; results equal those of one after another up to float tolerance.

    Parameters
    ----------
    working
        The model; its own tensors are not touched.
    data
        The dataset.
    training
        Hyperparameters.

    Attributes
    ----------
    mlp
        The model as an MLP, if it is one and :class:`.mlp.MlpKernel` can train it; else None.
    """

    def __init__(self, working: WorkingModel, data: DeviceData, training: LocalTraining) -> None:
        self._working = working
        self._data = data
        self._training = training
        mlp = find_mlp(working)
        suits = mlp is not None and (mlp.flattens or data.example_dims == 1)
        plain = training.precision != "bf16" and not data.labels_have_positions
        plain = plain and training.loss is cross_entropy  # whose gradient the kernel has written out
        self.mlp = mlp if suits and plain else None
        self._loss = CohortLoss(working, training.loss, compiled=training.compile)
        self._used: list[str] | None = None

    def train(self, work: Work) -> CohortUpdate:
        """Train the clients of a pass together.

        Parameters
        ----------
        work
            The clients, longest first.

        Returns
        -------
        Their update, in the order of ``work.jobs``.
        """
        working = self._working
        state = stacked_start(work.jobs, working.tensors)
        for name in working.changing:
            state[name] = state[name].clone(memory_format=torch.contiguous_format)
        for name, first in working.tied.items():
            state[name] = state[first]
        losses = torch.zeros(work.batches.sizes.shape, device=self._data.device)
        working.model.train()
        used = self._used_parameters(work)
        rates = work.learning_rate, work.proximal_mu
        update = LocalUpdate([state[name] for name in used], self._training, *rates, stacked=True)
        kernel: Kernel = (
            VmapKernel(working, self._loss, state, used, update)
            if self.mlp is None
            else MlpKernel(self.mlp, {name: state[name] for name in used}, update)
        )
        with warnings.catch_warnings():
            # vmap's of a layer without a batching rule, which is slow but correct.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            self._run(kernel, work, losses)
        return collect(working, work, state, losses, {})

    def _used_parameters(self, work: Work) -> list[str]:
        """Find the parameters that the loss depends on; like torch.optim, the others are not updated.

        Otherwise weight decay would shrink them. Found once, from the gradient of one client's batch.
        """
        if self._used is None:
            loss = first_loss(self._working, self._data, self._training, work)
            found = torch.autograd.grad(loss, self._working.trainable, allow_unused=True)
            pairs = zip(self._working.trainable_names, found, strict=True)
            self._used = [name for name, gradient in pairs if gradient is not None]
        return self._used

    def _run(self, kernel: Kernel, work: Work, losses: torch.Tensor) -> None:
        batches, device = work.batches, self._data.device
        # A GPU's driver has copied them when this returns; without it the host would wait for the queue.
        rows = torch.from_numpy(batches.rows).to(self._data.rows_device, non_blocking=True)
        sizes = torch.from_numpy(batches.sizes).to(device, non_blocking=True)
        places = torch.arange(batches.rows.shape[2], device=device)
        active_at = (batches.sizes > 0).sum(axis=0).tolist()
        widths = batches.sizes.max(axis=0).tolist()
        active = len(work.jobs)
        for step, (clients, width) in enumerate(zip(active_at, widths, strict=True)):
            if clients != active:
                kernel.narrow(clients)
                active = clients
            augmentation = None if work.augmentation is None else work.augmentation[:clients, step]
            inputs, labels = self._data.batch(rows[:clients, step, :width], augmentation)
            ragged = bool((batches.sizes[:clients, step] < width).any())
            real = (places[:width] < sizes[:clients, step, None]).float() if ragged else None
            losses[:clients, step] = kernel.step(inputs, labels, real, work.keys[:clients, step])


def first_loss(working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work) -> torch.Tensor:
    """Compute the loss of the first client's first batch, in the working model."""
    working.load(work.jobs[0].state)
    rows = torch.from_numpy(work.batches.rows[0, 0, : work.batches.sizes[0, 0]])
    inputs, labels = data.batch(rows.to(data.rows_device))
    return mean_loss(working.forward(inputs, work.keys[0, 0]), labels, training.loss)


class CohortLoss:
    """Each client's loss on its own batch with its own model, under ``torch.func.vmap``.

    Parameters
    ----------
    working
        The model.
    loss
        Loss of its outputs, per example.
    compiled
        Whether to pass the computation through ``torch.compile``.

    Attributes
    ----------
    inside
        Whether what is mapped returns gradients by the parameters and losses, instead of losses alone.
    mapped
        By whether batches are padded, a function of: parameters and own tensors, name to shape (a, *shape);
        shared tensors, name to shape; and the rest as in :meth:`Kernel.step`. Buffers are updated in place.
    """

    def __init__(self, working: WorkingModel, loss: Loss, *, compiled: bool) -> None:
        self._working = working
        self._of_outputs = loss
        # vmap can batch recurrent layers only inside a grad transform; for other models, differentiating
        # outside of vmap spends less time in Python.
        self.inside = any(isinstance(module, nn.RNNBase) for module in working.model.modules())
        self.mapped = {padded: self._map(padded, compiled) for padded in (False, True)}

    def _map(self, padded: bool, compiled: bool) -> Callable:
        function = grad_and_value(self._loss) if self.inside else self._loss
        in_dims = (0, 0, None, 0, 0, 0 if padded else None, 0)
        mapped = vmap(function, in_dims=in_dims, randomness="error")
        return torch.compile(mapped) if compiled else mapped

    def _loss(
        self,
        parameters: State,
        own: State,
        shared: State,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        real: torch.Tensor | None,
        key: torch.Tensor,
    ) -> torch.Tensor:
        """Compute one client's loss."""
        logits = self._working.forward(inputs, key, real, {**parameters, **own, **shared})
        if real is None:
            return mean_loss(logits, labels, self._of_outputs)
        return (example_losses(logits, labels, self._of_outputs) * real).sum() / real.sum()


class VmapKernel:
    """Any model: its forward pass under ``torch.func.vmap``.

    Parameters
    ----------
    working
        The model.
    loss
        Its loss and gradient.
    state
        Stacked tensors of n clients, updated in place.
    used
        Names of the parameters to train: those that the loss depends on.
    update
        What to do with their gradients.
    """

    def __init__(
        self, working: WorkingModel, loss: CohortLoss, state: State, used: Sequence[str], update: LocalUpdate
    ) -> None:
        self._loss = loss
        self._update = update
        self._parameters = {name: state[name] for name in used}
        trained = {*used, *working.tied}
        # A frozen parameter that all clients share is one tensor, not n.
        shared = {name for name in working.constant if state[name].stride(0) == 0}
        self._shared = {name: state[name][0] for name in shared - trained}
        self._own = {name: tensor for name, tensor in state.items() if name not in trained | shared}

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients."""
        self._parameters = {name: tensor[:clients] for name, tensor in self._parameters.items()}
        self._own = {name: tensor[:clients] for name, tensor in self._own.items()}
        self._update.narrow(clients)

    def step(
        self, inputs: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None, keys: torch.Tensor
    ) -> torch.Tensor:
        """Update the clients' models in place; see :class:`Kernel`."""
        mapped = self._loss.mapped[real is not None]
        batch = (self._own, self._shared, inputs, labels, real, keys)
        if self._loss.inside:
            found, losses = mapped(self._parameters, *batch)
            gradients = list(found.values())
        else:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in self._parameters.items()}
            losses = mapped(leaves, *batch)
            # The clients' losses are independent: their sum's gradient is each client's own.
            gradients = list(torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True))
        self._update.step(list(self._parameters.values()), gradients)
        return losses.detach()
