"""The loss of models on each row of clients' parts."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from fedclust.training.cohort import Job
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.losses import Loss, cross_entropy, example_losses
from fedclust.training.scheduling.lanes import Lanes
from fedclust.typing import FloatArray, IntArray

__all__ = ["losses_by_job"]


def losses_by_job(
    lanes: Lanes, data: DeviceData, jobs: Sequence[Job], batch_size: int, loss: Loss = cross_entropy
) -> list[FloatArray]:
    """Compute models' losses row by row.

    Jobs that share a `state` object are put through the model together, unless the model mixes rows.

    Parameters
    ----------
    lanes
        The models to evaluate in; their state on entry and exit does not matter.
    data
        The dataset.
    jobs
        Who evaluates what, on which rows.
    batch_size
        Examples per forward pass.
    loss
        Loss of each example.

    Returns
    -------
    For each job, in order, the losses of its rows in nats, float64, shape (n,).
    """
    results: dict[int, FloatArray] = {}
    order = sorted(range(len(jobs)), key=lambda index: id(jobs[index].state))
    keys = lanes.working.batch_keys([job.state for job in jobs])
    for _, group in groupby(order, key=keys.__getitem__):
        indices = sorted(group)
        rows = [np.asarray(jobs[index].rows, dtype=np.int64) for index in indices]
        losses = _losses(lanes, data, jobs[indices[0]], np.concatenate(rows), batch_size, loss)
        ends = np.cumsum([len(part) for part in rows])[:-1]
        results |= dict(zip(indices, np.split(losses, ends), strict=True))
    return [results[index] for index in range(len(jobs))]


def _losses(
    lanes: Lanes, data: DeviceData, job: Job, rows: IntArray, batch_size: int, loss: Loss
) -> FloatArray:
    loaded: set[int] = set()

    @torch.inference_mode()
    def measure(working: WorkingModel, some: torch.Tensor) -> torch.Tensor:
        if id(working) not in loaded:
            loaded.add(id(working))
            working.load(job.state)
            working.model.eval()
        inputs, labels = data.batch(some)
        return example_losses(working.forward(inputs).float(), labels, loss)

    if not len(rows):
        return np.zeros(0)
    measured = lanes.each("losses", measure, torch.from_numpy(rows).to(data.rows_device).split(batch_size))
    return torch.cat(measured).cpu().numpy().astype(np.float64)
