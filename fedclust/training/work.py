"""The work of one pass, the input of either way of training, and how its result is assembled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedclust.training.batches import Batches
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.working_model import WorkingModel
from fedclust.typing import BoolArray, State

# Nats. Above, neighbouring float32 numbers are 2 nats apart: no step can be judged by such a loss.
_LARGEST_LOSS = 2.0**24


@dataclass(frozen=True, eq=False)
class Work:
    """The n clients of a pass, longest first, and all that they need besides the dataset.

    Attributes
    ----------
    jobs
        One job per client, each with at least one row; states on the device; numbers of steps do not
        increase from one to the next.
    batches
        Their batches, in the order of `jobs`.
    keys
        Dropout keys of their steps, shape (n, S), on the device.
    learning_rate
        Learning rate of this round.
    proximal_mu
        FedProx's weight, >= 0.
    augmentation
        Keys of their steps' random crops and flips, shape (n, S), on the device; None for images as they are.
    """

    jobs: Sequence[Job]
    batches: Batches
    keys: torch.Tensor
    learning_rate: float
    proximal_mu: float
    augmentation: torch.Tensor | None = None

    def part(self, first: int, last: int, steps: int | None = None) -> Work:
        """Return clients `first` to `last` - 1, with at most the first `steps` steps of each."""
        return self.select(range(len(self.jobs))[first:last], steps)

    def select(self, indices: Sequence[int], steps: int | None = None) -> Work:
        """Return the clients at some places in `jobs`, given in increasing order, and their first steps."""
        batches, chosen = self.batches, np.asarray(indices, dtype=np.int64)
        longest = int(batches.steps[chosen].max(initial=0))
        kept = longest if steps is None else min(steps, longest)
        rows, sizes = (each[chosen, :kept] for each in (batches.rows, batches.sizes))
        return replace(
            self,
            jobs=[self.jobs[index] for index in indices],
            batches=Batches(rows, sizes, batches.steps[chosen].clip(max=kept)),
            keys=self.keys[chosen, :kept],
            augmentation=None if self.augmentation is None else self.augmentation[chosen, :kept],
        )


def empty_rows(working: WorkingModel, jobs: Sequence[Job]) -> State:
    """Allocate the stacked state of clients before training, on the device.

    Parameters
    ----------
    working
        Gives names and shapes.
    jobs
        The n clients.

    Returns
    -------
    Name to tensor of shape (n, *shape). Tensors that training changes are uninitialised, frozen parameters
    are those of `jobs`.
    """
    constant = stacked_start(jobs, working.constant)
    return {
        name: constant[name]
        if name in constant
        else torch.empty((len(jobs), *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        for name, tensor in working.tensors.items()
    }


def stacked_start(jobs: Sequence[Job], names: Iterable[str]) -> State:
    """Stack tensors of the models that clients start from; views of one if all start from the same.

    Parameters
    ----------
    jobs
        The n clients.
    names
        Which tensors.

    Returns
    -------
    Name to tensor of shape (n, *shape).
    """
    states = {id(job.state): job.state for job in jobs}
    if len(states) == 1:
        (state,) = states.values()
        return {name: state[name].unsqueeze(0).expand(len(jobs), *state[name].shape) for name in names}
    positions = {key: position for position, key in enumerate(states)}
    device = next(iter(jobs[0].state.values())).device
    of_client = torch.tensor([positions[id(job.state)] for job in jobs], device=device)
    return {name: torch.stack([state[name] for state in states.values()])[of_client] for name in names}


def collect(
    working: WorkingModel, work: Work, state: State, losses: torch.Tensor, failed: Mapping[int, str]
) -> CohortUpdate:
    """Assemble a pass's result; find clients that diverged, and reset those that failed to their start.

    A client diverged if a loss of its steps or a value of its model is not finite, or a loss exceeds 2^24
    nats.

    Parameters
    ----------
    working
        Gives the names of the tensors that training changes.
    work
        The n clients.
    state
        Their trained models, stacked; changed in place for those that failed.
    losses
        Loss before each step, shape (n, S).
    failed
        Failures known so far, client id to reason.

    Returns
    -------
    The result, clients in the order of ``work.jobs``.
    """
    reasons = dict(failed)
    # The first time that values are read: on a GPU, everything before is only queued.
    values = losses.cpu().numpy().astype(np.float64)
    taken = np.arange(values.shape[1]) < work.batches.steps[:, None]
    bad = ~(values < _LARGEST_LOSS) & taken  # NaN included
    diverged = bad.any(axis=1) | ~_finite_models([state[name] for name in working.changing], len(work.jobs))
    for index in np.flatnonzero(diverged).tolist():
        reason = "non-finite parameters after the last step"
        if bad[index].any():
            step = int(bad[index].argmax())
            kind = "loss above 2^24 nats" if np.isfinite(values[index, step]) else "non-finite loss"
            reason = f"{kind} at step {step + 1}"
        reasons.setdefault(work.jobs[index].client, reason)
    if reasons:
        for index, job in enumerate(work.jobs):
            if job.client in reasons:
                for name in working.changing:
                    state[name][index].copy_(job.state[name])
    return CohortUpdate(
        clients=np.array([job.client for job in work.jobs], dtype=np.int64),
        state=state,
        losses=tuple(row[:steps] for row, steps in zip(values, work.batches.steps, strict=True)),
        num_examples=np.array([len(job.rows) for job in work.jobs], dtype=np.int64),
        failed=reasons,
    )


def untrained(jobs: Sequence[Job], reason: str) -> CohortUpdate:
    """Return the result of clients that could not start, all for one reason."""
    return CohortUpdate(
        clients=np.array([job.client for job in jobs], dtype=np.int64),
        state=stacked_start(jobs, jobs[0].state),
        losses=(np.zeros(0),) * len(jobs),
        num_examples=np.array([len(job.rows) for job in jobs], dtype=np.int64),
        failed={job.client: reason for job in jobs},
    )


def _finite_models(tensors: Sequence[torch.Tensor], clients: int) -> BoolArray:
    finite = np.ones(clients, dtype=bool)
    flat = [stacked.reshape(clients, -1) for stacked in tensors if stacked.is_floating_point()]
    if flat:
        # A finite sum has finite terms only; a non-finite sum may be a mere overflow, so check its terms.
        sums = torch.stack([rows.sum(1, dtype=torch.float32) for rows in flat])
        for client in np.flatnonzero(~sums.isfinite().all(dim=0).cpu().numpy()).tolist():
            finite[client] = all(bool(rows[client].isfinite().all()) for rows in flat)
    return finite
