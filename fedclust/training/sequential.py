"""Local training, one client after another."""

import torch

from fedclust.training.cohort import CohortUpdate
from fedclust.training.device_data import DeviceData
from fedclust.training.lanes import Lanes
from fedclust.training.losses import mean_loss
from fedclust.training.optimisers import LocalUpdate
from fedclust.training.parameters import LocalTraining
from fedclust.training.work import Work, collect, empty_rows
from fedclust.training.working_model import WorkingModel


def train_sequentially(lanes: Lanes, data: DeviceData, training: LocalTraining, work: Work) -> CohortUpdate:
    """Train the clients of a pass one by one, on several threads where that is faster.

    Parameters
    ----------
    lanes
        The models to train in; their state on entry and exit does not matter.
    data
        The dataset.
    training
        Hyperparameters.
    work
        The clients.

    Returns
    -------
    Their update, in the order of ``work.jobs``.
    """
    state = empty_rows(lanes.working, work.jobs)
    losses = torch.zeros(work.batches.sizes.shape, device=data.device)
    failed: dict[int, str] = {}
    rows = torch.from_numpy(work.batches.rows).to(data.rows_device)

    def train(working: WorkingModel, index: int) -> None:
        working.load(work.jobs[index].state)
        working.model.train()
        try:
            _train_client(working, data, training, work, index, rows[index], losses[index])
            working.copy_replaced_buffers()
        # The model is the user's code: an error on one client's data must not stop the others.
        except Exception as error:
            failed[work.jobs[index].client] = f"{type(error).__name__}: {error}"
        for name in working.changing:
            state[name][index].copy_(working.tensors[name].detach())

    lanes.each(
        ("train", work.batches.rows.shape[2]),
        train,
        range(len(work.jobs)),
        steps=work.batches.steps.tolist(),
        seeds=work.keys[:, 0].tolist(),
    )
    return collect(lanes.working, work, state, losses, failed)


def _train_client(
    working: WorkingModel,
    data: DeviceData,
    training: LocalTraining,
    work: Work,
    index: int,
    rows: torch.Tensor,
    losses: torch.Tensor,
) -> None:
    """Run one client's steps in the working model; write the loss before each into `losses`."""
    steps = int(work.batches.steps[index])
    sizes = work.batches.sizes[index].tolist()
    parameters: list[torch.Tensor] = []
    update = None
    augmentation = work.augmentation
    for step in range(steps):
        inputs, labels = data.batch(
            rows[step, : sizes[step]], None if augmentation is None else augmentation[index, step]
        )
        loss = mean_loss(working.forward(inputs, work.keys[index, step]), labels, training.loss)
        losses[step] = loss.detach()
        if update is None:
            # Like torch.optim, do not change parameters that the loss does not depend on, not even by decay.
            found = torch.autograd.grad(loss, working.trainable, allow_unused=True)
            used = [pair for pair in zip(working.trainable, found, strict=True) if pair[1] is not None]
            parameters, gradients = [pair[0] for pair in used], [pair[1] for pair in used]
            update = LocalUpdate(parameters, training, work.learning_rate, work.proximal_mu, stacked=False)
        else:
            gradients = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
        update.step(parameters, gradients)
