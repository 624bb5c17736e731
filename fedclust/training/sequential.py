"""Local training, one client after another."""

import numpy as np
import torch
from torch import Tensor

from fedclust.support.reasons import RAISED, reason_of
from fedclust.training.cohort import CohortUpdate, Work, collect, start_state
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import example_losses, mean_loss
from fedclust.training.parameters import LocalTraining
from fedclust.training.vectorised import LocalUpdate
from fedclust.training.working_model import Lanes, WorkingModel
from fedclust.typing import State


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
        if work.pairs:
            working.model.train()
            try:
                pair = work.select([index, index + 1])
                take_paired_steps(working, data, training, pair, state, index, losses)
                if work.shares is not None and pair.shares is not None:
                    work.shares[index // 2] = pair.shares[0]
            except RAISED as error:
                failed[work.jobs[index].client] = reason_of(error)
            return
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

    each = 2 if work.pairs else 1
    kind, steps = ("train", work.batches.rows.shape[2]), work.batches.steps[::each].tolist()
    lanes.each(kind, train, range(0, len(work.jobs), each), steps, seeds=work.keys[::each, 0].tolist())
    return collect(lanes.working, work, state, losses, failed)


def take_steps(
    working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work, index: int, losses: Tensor
) -> None:
    """Run one client's steps in the working model; write the loss before each to its row of `losses`."""
    # Without waiting for a GPU's queue: the driver has copied the rows when this returns.
    rows = torch.from_numpy(work.batches.rows[index]).to(data.rows_device, non_blocking=True)
    sizes = work.batches.sizes[index].tolist()
    job = work.jobs[index]
    weights = None
    if job.weights is not None:
        of_rows = job.weights[np.searchsorted(job.rows, work.batches.rows[index])]
        weights = torch.from_numpy(of_rows.astype(np.float32)).to(data.device)
    parameters: list[Tensor] = []
    update = None
    for step in range(int(work.batches.steps[index])):
        crops = None if work.augmentation is None else work.augmentation[index, step]
        inputs, labels = data.batch(rows[step, : sizes[step]], crops)
        outputs = working.forward(inputs, work.keys[index, step])
        if weights is None:
            loss = mean_loss(outputs, labels, training.loss)
        else:
            loss = (example_losses(outputs, labels, training.loss) * weights[step, : sizes[step]]).mean()
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


def take_paired_steps(
    working: WorkingModel,
    data: DeviceData,
    training: LocalTraining,
    work: Work,
    state: State,
    index: int,
    losses: Tensor,
) -> None:
    """Run one client's steps with its two models: rows `index` and `index + 1` of the stacked state."""
    rows = torch.from_numpy(work.batches.rows[0]).to(data.rows_device, non_blocking=True)
    sizes = work.batches.sizes[0].tolist()
    both = {name: stacked[index : index + 2] for name, stacked in state.items()}
    # Views of one tensor share its version, which the steps of other threads' clients would raise.
    changing = [name for name in working.changing if name not in working.tied]
    both |= {name: both[name].clone() for name in changing}
    used = working.trainable_names
    update = LocalUpdate([both[name] for name in used], training, work, stacked=True)
    for step in range(int(work.batches.steps[0])):
        crops = None if work.augmentation is None else work.augmentation[0, step]
        inputs, labels = data.batch(rows[step, : sizes[step]], crops)
        gradients: dict[str, list[Tensor]] = {name: [] for name in used}
        for row in (0, 1):
            tensors = {name: each[row] for name, each in both.items()}
            leaves = {name: tensors[name].detach().requires_grad_() for name in used}
            outputs = working.forward(inputs, work.keys[0, step], None, {**tensors, **leaves})
            loss = mean_loss(outputs, labels, training.loss)
            losses[index + row, step] = loss.detach()
            found = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
            for name, gradient in zip(used, found, strict=True):
                gradients[name] += [] if gradient is None else [gradient]
        if step == 0 and not all(gradients.values()):  # as in `take_steps`
            update.finish([both[name] for name in used])
            used = [name for name in used if gradients[name]]
            update = LocalUpdate([both[name] for name in used], training, work, stacked=True)
        parameters, zero = [both[name] for name in used], [torch.zeros(())] * 2
        stacked = [
            torch.stack(gradients[name] or [z.expand_as(both[name][0]) for z in zero]) for name in used
        ]
        update.step(parameters, stacked)
    update.finish([both[name] for name in used])
    for name in changing:
        state[name][index : index + 2].copy_(both[name])
