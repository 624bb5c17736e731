"""Models' outputs for each row of clients' parts."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from fedclust.training.cohort import Job
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.scheduling.lanes import Lanes
from fedclust.typing import FloatArray, IntArray

__all__ = ["logits_by_job"]


def logits_by_job(
    lanes: Lanes, data: DeviceData, jobs: Sequence[Job], batch_size: int
) -> list[tuple[FloatArray, IntArray]]:
    """Compute models' outputs before the softmax.

    Jobs that share a `state` object are put through the model together, unless the model mixes rows.

    Parameters
    ----------
    lanes
        The models to evaluate in; their state on entry and exit does not matter.
    data
        The dataset.
    jobs
        One job per client: its rows and the model to evaluate.
    batch_size
        Examples per forward pass.

    Returns
    -------
    For each job, in order, logits, shape (n, C) or (n, positions, C), and labels, shape (n,) or
    (n, positions).
    """
    results: dict[int, tuple[FloatArray, IntArray]] = {}
    order = sorted(range(len(jobs)), key=lambda index: id(jobs[index].state))
    keys = lanes.working.batch_keys([job.state for job in jobs])
    for _, group in groupby(order, key=keys.__getitem__):
        indices = sorted(group)
        rows = [np.asarray(jobs[index].rows, dtype=np.int64) for index in indices]
        logits, labels = _logits(lanes, data, jobs[indices[0]], np.concatenate(rows), batch_size)
        ends = np.cumsum([len(part) for part in rows])[:-1]
        parts = zip(np.split(logits, ends), np.split(labels, ends), strict=True)
        results |= dict(zip(indices, parts, strict=True))
    return [results[index] for index in range(len(jobs))]


def _logits(
    lanes: Lanes, data: DeviceData, job: Job, rows: IntArray, batch_size: int
) -> tuple[FloatArray, IntArray]:
    loaded: set[int] = set()

    @torch.inference_mode()
    def answer(working: WorkingModel, some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if id(working) not in loaded:
            loaded.add(id(working))
            working.load(job.state)
            working.model.eval()
        inputs, labels = data.batch(some)
        return working.forward(inputs).float(), labels

    if not len(rows):
        return np.zeros((0, data.num_classes)), np.zeros(0, dtype=np.int64)
    answered = lanes.each("logits", answer, torch.from_numpy(rows).to(data.rows_device).split(batch_size))
    logits, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*answered, strict=True))
    return logits, labels
