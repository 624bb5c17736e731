"""From stacked tensors to a CohortUpdate, with the failures found."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.working_model import WorkingModel
from fedclust.typing import IntArray, State

__all__ = ["collect", "empty_rows", "untrained"]


def empty_rows(working: WorkingModel, clients: int) -> State:
    """Allocate the stacked state of so many clients, on the device."""
    return {
        name: torch.empty((clients, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        for name, tensor in working.tensors.items()
    }


def collect(
    jobs: Sequence[Job], state: State, losses: torch.Tensor, steps: IntArray, failed: Mapping[int, str]
) -> CohortUpdate:
    """Make a pass's result; find who diverged, and give back their start to those that failed.

    Parameters
    ----------
    jobs
        The n clients.
    state
        Their trained models, stacked; changed in place for those that failed.
    losses
        Loss before each step, shape (n, S).
    steps
        Steps of each client, shape (n,).
    failed
        Failures known so far, client id to reason.

    Returns
    -------
    The result, clients in the order of `jobs`.
    """
    reasons = dict(failed)
    # The first look at any value: on a GPU everything before has only been queued.
    values = losses.cpu().numpy()
    finite = _finite_models(state, len(jobs))
    for index, job in enumerate(jobs):
        bad = np.flatnonzero(~np.isfinite(values[index, : steps[index]]))
        if job.client in reasons:
            pass
        elif bad.size:
            reasons[job.client] = f"non-finite loss at step {bad[0] + 1}"
        elif not finite[index]:
            reasons[job.client] = "non-finite parameters after the last step"
        if job.client in reasons:
            for name, stacked in state.items():
                stacked[index].copy_(job.state[name])
    return CohortUpdate(
        clients=np.array([job.client for job in jobs], dtype=np.int64),
        state=state,
        losses=tuple(row[:count].astype(np.float64) for row, count in zip(values, steps, strict=True)),
        num_examples=np.array([len(job.rows) for job in jobs], dtype=np.int64),
        failed=reasons,
    )


def untrained(working: WorkingModel, jobs: Sequence[Job], reason: str) -> CohortUpdate:
    """Make the result of clients that could not start, all for one reason."""
    losses = torch.zeros((len(jobs), 0))
    steps = np.zeros(len(jobs), dtype=np.int64)
    return collect(jobs, empty_rows(working, len(jobs)), losses, steps, {job.client: reason for job in jobs})


def _finite_models(state: State, clients: int) -> list[bool]:
    finite = None
    for stacked in state.values():
        if stacked.is_floating_point() and stacked.numel():
            rows = torch.isfinite(stacked.reshape(clients, -1)).all(dim=1)
            finite = rows if finite is None else finite & rows
    return [True] * clients if finite is None else finite.tolist()
