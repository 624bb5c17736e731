"""Local training, one client after another."""

from collections.abc import Sequence

import torch

from fedclust.training.batches import Batches
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import mean_loss
from fedclust.training.optimisers import add_proximal_term, clip_norm, make_optimiser
from fedclust.training.parameters import LocalTraining
from fedclust.training.results import collect, empty_rows
from fedclust.training.working_model import WorkingModel

__all__ = ["train_sequentially"]


def train_sequentially(
    working: WorkingModel,
    data: DeviceData,
    training: LocalTraining,
    jobs: Sequence[Job],
    batches: Batches,
    keys: torch.Tensor,
    learning_rate: float,
    proximal_mu: float,
) -> CohortUpdate:
    """Train the clients of a pass one by one.

    Parameters
    ----------
    working
        The model to train in; its state on entry and exit is of no account.
    data
        The dataset.
    training
        Hyperparameters.
    jobs
        The n clients, each with at least one row.
    batches
        Their batches, in the order of `jobs`.
    keys
        Dropout keys, shape (n, S).
    learning_rate
        Of this round.
    proximal_mu
        FedProx's weight, >= 0.

    Returns
    -------
    What they learnt, in the order of `jobs`.
    """
    state = empty_rows(working, len(jobs))
    losses = torch.zeros(batches.sizes.shape, device=data.device)
    failed: dict[int, str] = {}
    seeds = keys[:, 0].tolist()  # for layers that draw from torch's own generator
    working.model.train()
    for index, job in enumerate(jobs):
        try:
            working.load(job.state)
            working.seed(seeds[index])
            client = _Client(working, data, training, learning_rate, proximal_mu)
            steps = int(batches.steps[index])
            client.train(batches, index, keys[index], losses[index, :steps])
        # The model is the user's code: whatever it raises on one client's data must not cost the others.
        except Exception as error:
            failed[job.client] = f"{type(error).__name__}: {error}"
        for name, tensor in working.tensors.items():
            state[name][index].copy_(tensor)
    return collect(jobs, state, losses, batches.steps, failed)


class _Client:
    """One client's optimiser and the loop over its batches."""

    def __init__(
        self,
        working: WorkingModel,
        data: DeviceData,
        training: LocalTraining,
        learning_rate: float,
        proximal_mu: float,
    ) -> None:
        self._working = working
        self._data = data
        self._training = training
        self._learning_rate = learning_rate
        self._proximal_mu = proximal_mu

    def train(self, batches: Batches, index: int, keys: torch.Tensor, losses: torch.Tensor) -> None:
        """Take the client's steps; `losses` receives the loss before each."""
        working, training = self._working, self._training
        rows = torch.from_numpy(batches.rows[index, : len(losses)]).to(self._data.device)
        sizes = batches.sizes[index].tolist()
        parameters: list[torch.Tensor] | None = None
        for step, loss_of_step in enumerate(losses.unbind()):
            inputs, labels = self._data.batch(rows[step, : sizes[step]])
            loss = mean_loss(working.forward(inputs, keys[step]), labels)
            loss_of_step.copy_(loss.detach())
            if parameters is None:
                # As torch.optim, leave alone what the loss does not depend on, weight decay included.
                found = torch.autograd.grad(loss, working.trainable, allow_unused=True)
                used = [pair for pair in zip(working.trainable, found, strict=True) if pair[1] is not None]
                parameters, gradients = [p for p, _ in used], [g for _, g in used]
                optimiser = make_optimiser(parameters, training, self._learning_rate)
                start = [p.detach().clone() for p in parameters] if self._proximal_mu else []
            else:
                gradients = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
            if self._proximal_mu:
                add_proximal_term(gradients, parameters, start, self._proximal_mu)
            if training.clip_norm is not None:
                clip_norm(gradients, training.clip_norm, stacked=False)
            optimiser.step(parameters, gradients)
