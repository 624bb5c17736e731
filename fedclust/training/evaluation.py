"""Evaluation of many clients' parts in few large batches, reduced per client."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

import numpy as np
import torch

from fedclust.training.cohort import Job
from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.losses import Loss, cross_entropy, example_losses
from fedclust.training.own_metrics import Metric
from fedclust.training.own_metrics import measure as measure_own
from fedclust.training.scheduling.lanes import Lanes
from fedclust.training.scores import Scores, scores_by_client
from fedclust.typing import State

__all__ = ["evaluate_jobs"]

_MOST_VALUES = 1 << 26  # of models' outputs, kept until they are reduced: 256 MiB

_Batch = tuple[State, torch.Tensor, torch.Tensor]
"""A model, rows, and the position of the job of each."""


def evaluate_jobs(
    lanes: Lanes,
    data: DeviceData,
    jobs: Sequence[Job],
    batch_size: int,
    *,
    full: bool,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> list[Scores]:
    """Measure models on clients' rows.

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
    full
        Whether to add macro-F1, AUC and the counts for figures over all clients' rows.
    loss
        Loss of each example.
    metrics
        The user's own metrics, by name.

    Returns
    -------
    The scores of each job, in order.
    """
    order = sorted(range(len(jobs)), key=lambda index: id(jobs[index].state))
    width = data.positions * (data.num_classes if full or metrics else 1)
    found: list[Scores] = []
    for part in _parts([jobs[index] for index in order], max(1, _MOST_VALUES // width)):
        found += _evaluate(lanes, data, part, batch_size, full, loss, metrics)
    places = {index: place for place, index in enumerate(order)}
    return [found[places[index]] for index in range(len(jobs))]


def _parts(jobs: Sequence[Job], most: int) -> Iterator[Sequence[Job]]:
    """Divide jobs into parts of at most so many rows, or of one job with more."""
    first = rows = 0
    for place, job in enumerate(jobs):
        if place > first and rows + len(job.rows) > most:
            yield jobs[first:place]
            first, rows = place, 0
        rows += len(job.rows)
    if jobs:
        yield jobs[first:]


def _evaluate(
    lanes: Lanes,
    data: DeviceData,
    jobs: Sequence[Job],
    batch_size: int,
    full: bool,
    loss: Loss,
    metrics: Mapping[str, Metric],
) -> list[Scores]:
    """Evaluate jobs, of which those with one state stand together; every batch is of one state."""
    counts = np.array([len(job.rows) for job in jobs], dtype=np.int64)
    shifts, owners = _shifts(jobs, data)
    loaded: dict[int, int] = {}

    @torch.inference_mode()
    def measure(working: WorkingModel, batch: _Batch) -> tuple[torch.Tensor, ...]:
        state, some, whose = batch
        if id(working) not in loaded:
            working.model.eval()
        if loaded.get(id(working)) != id(state):
            loaded[id(working)] = id(state)
            working.load(state)
        inputs, labels = data.batch(some)
        logits = working.forward(inputs).float()
        if shifts is not None:
            own = shifts[whose.to(shifts.device)]
            logits = logits + own.view(len(own), *[1] * (logits.dim() - 2), -1)
        output = logits.softmax(-1) if full else logits.argmax(-1)
        return (example_losses(logits, labels, loss), output, labels, *([logits] if metrics else []))

    measured = lanes.each("evaluate", measure, _batches(lanes.working, jobs, owners, data, batch_size))
    if not measured:
        none, chances = np.zeros(0, int), np.zeros((0, data.num_classes)) if full else None
        empty = scores_by_client(counts, np.zeros(0), none, none, data.num_classes, chances)
        nothing = dict.fromkeys(metrics, float("nan"))
        return [replace(score, figures=score.figures | nothing) for score in empty]
    losses, output, labels, *outputs = (torch.cat(parts) for parts in zip(*measured, strict=True))
    scores = scores_by_client(
        counts,
        losses.cpu().numpy(),
        labels.cpu().numpy(),
        (output.argmax(-1) if full else output).cpu().numpy(),
        data.num_classes,
        output.cpu().numpy() if full else None,
    )
    if not outputs:
        return scores
    own = measure_own(metrics, counts, outputs[0], labels)
    return [
        replace(score, figures=score.figures | figures) for score, figures in zip(scores, own, strict=True)
    ]


def _batches(
    working: WorkingModel, jobs: Sequence[Job], owners: torch.Tensor, data: DeviceData, batch_size: int
) -> list[_Batch]:
    """Divide the rows of the jobs of each state, with the position of each row's job, into batches."""
    batches: list[_Batch] = []
    first = 0
    keys = working.batch_keys([job.state for job in jobs])
    for _, group in groupby(zip(keys, jobs, strict=True), key=lambda pair: pair[0]):
        together = [job for _, job in group]
        rows = torch.from_numpy(np.concatenate([job.rows for job in together]).astype(np.int64))
        whose, first = owners[first : first + len(rows)], first + len(rows)
        if len(rows):
            parts = zip(rows.to(data.rows_device).split(batch_size), whose.split(batch_size), strict=True)
            batches += [(together[0].state, *part) for part in parts]
    return batches


def _shifts(jobs: Sequence[Job], data: DeviceData) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Stack what is added to each job's logits, None where nothing is, and name the job of each row."""
    owners = torch.from_numpy(np.repeat(np.arange(len(jobs)), [len(job.rows) for job in jobs]))
    if all(job.shift is None for job in jobs):
        return None, owners
    nothing = np.zeros(data.num_classes)
    stacked = np.stack([nothing if job.shift is None else job.shift for job in jobs])
    return torch.from_numpy(stacked).to(data.device, torch.float32), owners
