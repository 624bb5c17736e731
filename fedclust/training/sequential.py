"""Local training, one client after another."""

import torch
from torch import Tensor

from fedclust.support.reasons import RAISED, reason_of
from fedclust.training.cohort import CohortUpdate, Work, collect, start_state
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import mean_loss
from fedclust.training.parameters import LocalTraining
from fedclust.training.vectorised import LocalUpdate
from fedclust.training.working_model import Lanes, WorkingModel


def train_sequentially(lanes: Lanes, data: DeviceData, training: LocalTraining, work: Work) -> CohortUpdate:
    """Train the clients of a pass one by one, on several threads if that is faster.

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
    state = start_state(lanes.working, work.jobs)
    losses = torch.zeros(work.batches.sizes.shape, device=data.device)
    failed: dict[int, str] = {}

    def train(working: WorkingModel, index: int) -> None:
        working.load(work.jobs[index].whole)
        working.model.train()
        try:
            take_steps(working, data, training, work, index, losses)
            working.copy_replaced_buffers()
        # The model is the user's code: an error on one client's data must not stop the others.
        except RAISED as error:
            failed[work.jobs[index].client] = reason_of(error)
        for name in working.changing:
            state[name][index].copy_(working.tensors[name].detach())

    kind, steps = ("train", work.batches.rows.shape[2]), work.batches.steps.tolist()
    lanes.each(kind, train, range(len(work.jobs)), steps, seeds=work.keys[:, 0].tolist())
    return collect(lanes.working, work, state, losses, failed)


def take_steps(
    working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work, index: int, losses: Tensor
) -> None:
    """Run one client's steps in the working model; write the loss before each to its row of `losses`."""
    # Without waiting for a GPU's queue: the driver has copied the rows when this returns.
    rows = torch.from_numpy(work.batches.rows[index]).to(data.rows_device, non_blocking=True)
    sizes = work.batches.sizes[index].tolist()
    parameters: list[Tensor] = []
    update = None
    for step in range(int(work.batches.steps[index])):
        crops = None if work.augmentation is None else work.augmentation[index, step]
        inputs, labels = data.batch(rows[step, : sizes[step]], crops)
        loss = mean_loss(working.forward(inputs, work.keys[index, step]), labels, training.loss)
        losses[index, step] = loss.detach()
        if update is None:
            # Like torch.optim, leave parameters that the loss does not depend on unchanged, even by weight
            # decay.
            all_gradients = torch.autograd.grad(loss, working.trainable, allow_unused=True)
            pairs = zip(working.trainable, all_gradients, strict=True)
            used = [pair for pair in pairs if pair[1] is not None]
            parameters, gradients = [pair[0] for pair in used], [pair[1] for pair in used]
            update = LocalUpdate(parameters, training, work, stacked=False)
        else:
            gradients = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
        update.step(parameters, gradients)
