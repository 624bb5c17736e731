"""Local training that is differentially private for each patient: DP-SGD, with a patient as one example.

Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, "Deep Learning with Differential Privacy",
CCS 2016, Algorithm 1; settings and pitfalls: Ponomareva et al., "How to DP-fy ML", JAIR 77, 2023.

A patient is all rows of the client with one key of ``group=``; without a key, a row. In each step every
patient is drawn with the same probability q, independently. The gradient of the mean loss of a patient's rows
is shortened to length C, Gaussian noise of standard deviation z · C is added to their sum, and the result is
divided by q times the number of patients. That number, which is also the client's weight in means, is taken
for public, as neighbours differ in a patient whose rows are not there. What the optimiser makes of the noisy
gradient costs nothing more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedclust.privacy.accountant import Noise
from fedclust.training.cohort import CohortUpdate, Work, collect
from fedclust.training.device_data import DeviceData
from fedclust.training.parameters import LocalTraining
from fedclust.training.vectorised import LocalUpdate, client_loss
from fedclust.training.working_model import WorkingModel, scramble
from fedclust.typing import IntArray, State

# Values of gradients, and rows, that are computed at a time: 64 MB.
_MOST_VALUES, _MOST_ROWS = 1 << 24, 1 << 13


@dataclass(frozen=True)
class PatientSteps:
    """How steps protect patients.

    Attributes
    ----------
    clip
        C, largest length of a patient's gradient, > 0.
    noise
        z, standard deviation of the noise as a multiple of `clip`, >= 0.
    sampling
        q, probability that a step draws a patient, in (0, 1].
    draw
        Draws standard normal numbers, for the noise and for who is drawn.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    clip: float
    noise: float
    sampling: float
    draw: Noise

    def __post_init__(self) -> None:
        if not (0 < self.clip < math.inf and 0 <= self.noise < math.inf and 0 < self.sampling <= 1):
            got = f"got {self.clip}, {self.noise} and {self.sampling}"
            raise ValueError(f"patients must have clip > 0, noise >= 0 and sampling in (0, 1], {got}")


def patient_steps(training: Any, sampling: float) -> int:
    """Count the steps of a round: those of the hyperparameters, or epochs of as many as draw everyone once.

    Parameters
    ----------
    training
        Has ``steps`` and ``epochs``, one of them None.
    sampling
        Probability that a step draws a patient, in (0, 1].

    Examples
    --------
    >>> patient_steps(LocalTraining(learning_rate=0.1, batch_size=8, epochs=2), sampling=0.3)
    8
    """
    return int(training.steps) if training.epochs is None else int(training.epochs) * math.ceil(1 / sampling)


def by_patient(rows: IntArray, persons: IntArray | None) -> list[IntArray]:
    """Divide a client's rows by patient, the one with the fewest rows first.

    Parameters
    ----------
    rows
        Rows of the dataset, shape (n,).
    persons
        The patient of each row of the dataset, shape (N,); None if each row is one.

    Examples
    --------
    >>> by_patient(np.array([4, 0, 2]), persons=np.array([7, 7, 8, 9, 7]))
    [array([2]), array([0, 4])]
    """
    rows = np.sort(rows)
    if persons is None:
        return list(rows[:, None])
    _, owners, counts = np.unique(persons[rows], return_inverse=True, return_counts=True)
    parts = np.split(rows[np.argsort(owners, kind="stable")], np.cumsum(counts)[:-1])
    return sorted(parts, key=len)


class PatientTraining:
    """Trains a client by private steps.

    Parameters
    ----------
    working
        The model; its own tensors are not touched.
    data
        The dataset.
    training
        Hyperparameters; the batch size does not count.
    persons
        The patient of each row of the dataset, shape (N,); None if each row is one.
    """

    def __init__(
        self, working: WorkingModel, data: DeviceData, training: LocalTraining, persons: IntArray | None
    ) -> None:
        self._working, self._data, self._training, self._persons = working, data, training, persons
        loss = partial(client_loss, working, training.loss)
        # Of many patients: a patient is to this function what a client is elsewhere.
        self._gradients = vmap(grad(loss), in_dims=(None, None, None, 0, 0, 0, 0), randomness="error")

    def train(self, work: Work, steps: PatientSteps, server_round: int) -> CohortUpdate:
        """Train the only client of a pass.

        Returns
        -------
        Its update, with the number of its patients as that of its examples, and no losses: those of rows
        would leave without noise.
        """
        working, training, (job,) = self._working, self._training, work.jobs
        patients = by_patient(job.rows, self._persons)
        state = {name: tensor[None].clone() for name, tensor in job.state.items()}
        trained = {name: state[name][0] for name in working.trainable_names}
        fixed = {name: tensor[0] for name, tensor in state.items() if name not in trained}
        update = LocalUpdate(list(trained.values()), training, work, stacked=False)
        numbers = sum(each.numel() for each in trained.values())
        working.model.train()
        # The normal quantile, by torch: importing scipy takes long, and every client imports this module.
        limit = float(torch.special.ndtri(torch.tensor(steps.sampling, dtype=torch.float64)))
        for step in range(int(work.batches.steps[0])):
            drawn = steps.draw(f"patients {step}", server_round, job.client, len(patients))
            chosen = np.flatnonzero(drawn <= limit).tolist()
            noise = steps.draw(f"gradient {step}", server_round, job.client, numbers)
            total = torch.from_numpy(steps.noise * steps.clip * noise).to(self._data.device)
            for block in _blocks(patients, chosen, numbers):
                total += self._clipped_sum(trained, fixed, patients, block, work.keys[0, step], steps.clip)
            total /= steps.sampling * len(patients)
            parts = total.split([each.numel() for each in trained.values()])
            gradients = [
                part.view_as(each).to(each.dtype) for part, each in zip(parts, trained.values(), strict=True)
            ]
            update.step(list(trained.values()), gradients)
        losses = torch.zeros(work.batches.sizes.shape)
        done = collect(working, work, state, losses, {})
        return CohortUpdate(
            done.clients, done.state, (np.zeros(1),), np.array([len(patients)], dtype=np.int64), done.failed
        )

    def _clipped_sum(
        self,
        trained: State,
        fixed: State,
        patients: list[IntArray],
        block: list[int],
        key: Tensor,
        clip: float,
    ) -> Tensor:
        """Sum the clipped gradients of some patients, in float64, shape (P,)."""
        data, width = self._data, max(len(patients[each]) for each in block)
        # A patient with fewer rows is filled with its own first one, which then counts nothing.
        rows = np.stack([np.resize(patients[each], width) for each in block])
        sizes = np.array([len(patients[each]) for each in block])
        real = torch.from_numpy((np.arange(width) < sizes[:, None]).astype(np.float32)).to(data.device)
        inputs, labels = data.batch(torch.from_numpy(rows).to(data.rows_device))
        keys = scramble(key ^ torch.tensor(block, device=key.device))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # slow, but correct
            found = self._gradients(trained, {}, fixed, inputs, labels, real, keys)
        gradients = torch.cat([found[name].reshape(len(block), -1) for name in trained], dim=1).double()
        lengths = gradients.norm(dim=1)
        # A patient without a finite gradient counts as one of zero: whether there is one must not show.
        usable = lengths.isfinite()
        factors = torch.where(usable, clip / lengths.clamp(min=clip), 0.0)
        return factors @ gradients.masked_fill(~usable[:, None], 0.0)


def _blocks(patients: list[IntArray], chosen: list[int], numbers: int) -> Iterator[list[int]]:
    """Divide patients, sorted by their number of rows, into blocks that fit into memory."""
    most, block = max(1, _MOST_VALUES // numbers), list[int]()
    for each in chosen:
        if block and (len(block) == most or (len(block) + 1) * len(patients[each]) > _MOST_ROWS):
            yield block
            block = []
        block.append(each)
    if block:
        yield block
