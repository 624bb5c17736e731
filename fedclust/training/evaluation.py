"""Evaluation of many clients' parts in few large batches, reduced per client."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from fedclust.training.cohort import Job
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import example_losses
from fedclust.training.scores import scores_by_client
from fedclust.training.working_model import WorkingModel

__all__ = ["evaluate_jobs"]


def evaluate_jobs(
    working: WorkingModel, data: DeviceData, jobs: Sequence[Job], batch_size: int, *, full: bool
) -> list[dict[str, float]]:
    """Measure models on clients' rows.

    Jobs that share a `state` object are put through the model together.

    Parameters
    ----------
    working
        The model to evaluate in; its state on entry and exit is of no account.
    data
        The dataset.
    jobs
        Who evaluates what.
    batch_size
        Examples per forward pass.
    full
        Whether to add macro-F1 and AUC.

    Returns
    -------
    For each job, in order, what :func:`fedclust.training.scores.scores_by_client` names.
    """
    results: list[dict[str, float]] = [{} for _ in jobs]
    order = sorted(range(len(jobs)), key=lambda index: id(jobs[index].state))
    working.model.eval()
    for _, group in groupby(order, key=lambda index: id(jobs[index].state)):
        indices = sorted(group)
        together = [jobs[index] for index in indices]
        for index, scores in zip(indices, _evaluate(working, data, together, batch_size, full), strict=True):
            results[index] = scores
    return results


@torch.inference_mode()
def _evaluate(
    working: WorkingModel, data: DeviceData, jobs: Sequence[Job], batch_size: int, full: bool
) -> list[dict[str, float]]:
    working.load(jobs[0].state)
    counts = np.array([len(job.rows) for job in jobs])
    rows = torch.from_numpy(np.concatenate([job.rows for job in jobs]).astype(np.int64)).to(data.rows_device)
    losses, outputs, labels = [], [], []
    for some in rows.split(batch_size) if len(rows) else ():
        inputs, targets = data.batch(some)
        logits = working.forward(inputs).float()
        losses.append(example_losses(logits, targets))
        outputs.append(logits.softmax(-1) if full else logits.argmax(-1))
        labels.append(targets)
    if not losses:
        return scores_by_client(counts, np.zeros(0), np.zeros(0, int), np.zeros(0, int), data.num_classes)
    output = torch.cat(outputs)
    return scores_by_client(
        counts,
        torch.cat(losses).cpu().numpy(),
        torch.cat(labels).cpu().numpy(),
        (output.argmax(-1) if full else output).cpu().numpy(),
        data.num_classes,
        output.cpu().numpy() if full else None,
    )
