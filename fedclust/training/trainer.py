"""The trainer: jobs in, updates and scores out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fedclust.rng import torch_seed
from fedclust.training.batches import draw_batches
from fedclust.training.choice import Chooser
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.device_data import DeviceData
from fedclust.training.evaluation import evaluate_jobs
from fedclust.training.memory import clients_per_pass
from fedclust.training.parameters import LocalTraining
from fedclust.training.results import untrained
from fedclust.training.sequential import train_sequentially
from fedclust.training.step_context import dropout_keys
from fedclust.training.vectorised import VectorisedTraining
from fedclust.training.work import Work
from fedclust.training.working_model import WorkingModel
from fedclust.typing import State

if TYPE_CHECKING:
    from fedclust.data.federated import FederatedData

__all__ = ["Trainer"]

_logger = logging.getLogger(__name__)

# A chain of linear layers trains faster together whenever the cohort's models fit into the cache; no trial is
# needed to know, so that such runs repeat bit by bit.
_CERTAIN_BYTES = 32 << 20


class Trainer:
    """Trains and evaluates clients on one device.

    Nothing it computes depends on which clients share a call, but for float tolerance.

    Parameters
    ----------
    model
        Architecture; it is copied, its own parameters are never used.
    data
        The federation.
    training
        Hyperparameters.
    seed
        The run's seed; batches and dropout masks derive from it, the round and the client.
    device
        Where to compute.

    Raises
    ------
    ValueError
        If a label of `data` is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        data: FederatedData,
        training: LocalTraining,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.training = training
        self._seed = seed
        self._device = torch.device(device)
        self._data = DeviceData(data, self._device)
        self._working = WorkingModel(model, self._device, training.precision)
        self._vectorised = VectorisedTraining(self._working, self._data, training)
        self._together_works = training.mode != "sequential"
        self._pass_sizes: dict[tuple[int, bool], int] = {}
        self._chooser = Chooser(
            self._sequential,
            self._vectorised.train,
            self._device,
            tolerance=1e-3 if training.precision == "float32" else 5e-2,
        )

    def train(
        self, jobs: Sequence[Job], server_round: int, *, proximal_mu: float | None = None
    ) -> Iterator[CohortUpdate]:
        """Train clients on their rows.

        A client whose loss or model becomes non-finite, who has no rows, or on whose data the model raises,
        is named in the update's `failed`; the others are none the worse.

        Parameters
        ----------
        jobs
            One job per client.
        server_round
            The round, from 1.
        proximal_mu
            FedProx's weight for this call; None for that of the hyperparameters.

        Yields
        ------
        Updates of some of the clients each, every client in exactly one; in which order is left open.

        Raises
        ------
        ValueError
            If a client is given twice, a state does not fit the model, or a number is out of range.
        """
        mu = self.training.proximal_mu if proximal_mu is None else proximal_mu
        if not 0 <= mu < float("inf"):
            raise ValueError(f"proximal_mu must be >= 0 and finite, got {mu}")
        learning_rate = self.training.learning_rate_at(server_round)
        clients, times = np.unique([job.client for job in jobs], return_counts=True)
        if (times > 1).any():
            raise ValueError(f"each client must have one job, got {times.max()} of {clients[times.argmax()]}")
        jobs = self._check(jobs)
        empty = [job for job in jobs if len(job.rows) == 0]
        if empty:
            yield untrained(empty, "no training examples")
        full = sorted((job for job in jobs if len(job.rows)), key=lambda job: -len(job.rows))
        for work in self._passes(full, server_round, learning_rate, mu):
            with self._working.settings():
                updates = list(self._train_pass(work))
            yield from updates

    def evaluate(self, jobs: Sequence[Job], *, full: bool = False) -> list[dict[str, float]]:
        """Measure models on clients' rows.

        Parameters
        ----------
        jobs
            Who evaluates what.
        full
            Whether to add ``macro-f1`` and ``auc``.

        Returns
        -------
        For each job ``num-examples``, ``loss`` (nats), ``accuracy`` and ``balanced-accuracy``, NaN where
        undefined.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        with self._working.settings():
            return evaluate_jobs(
                self._working, self._data, self._check(jobs), self.training.evaluation_batch_size, full=full
            )

    def _check(self, jobs: Sequence[Job]) -> list[Job]:
        """Check the states and move each to the device once."""
        moved: dict[int, State] = {}
        for job in jobs:
            if id(job.state) not in moved:
                self._working.check(job.state, f"client {job.client}")
                moved[id(job.state)] = {
                    name: tensor.detach().to(self._device) for name, tensor in job.state.items()
                }
        return [dataclasses.replace(job, state=moved[id(job.state)]) for job in jobs]

    def _passes(
        self, jobs: Sequence[Job], server_round: int, learning_rate: float, mu: float
    ) -> Iterator[Work]:
        """Cut a cohort, longest clients first, into passes that fit into memory, and draw their batches."""
        seed = torch_seed(self._seed, "dropout", server_round)
        first = 0
        while first < len(jobs):
            one = self._work(jobs[first : first + 1], server_round, learning_rate, mu, seed)
            size = self._pass_size(one)
            yield self._work(jobs[first : first + size], server_round, learning_rate, mu, seed)
            first += size

    def _work(
        self, jobs: Sequence[Job], server_round: int, learning_rate: float, mu: float, dropout_seed: int
    ) -> Work:
        clients = [job.client for job in jobs]
        batches = draw_batches(clients, [job.rows for job in jobs], self.training, self._seed, server_round)
        keys = dropout_keys(dropout_seed, torch.tensor(clients, device=self._device), batches.rows.shape[1])
        return Work(jobs, batches, keys, learning_rate, mu)

    def _pass_size(self, one: Work) -> int:
        if self.training.chunk != "auto":
            return self.training.chunk
        width = one.batches.rows.shape[2]
        together = self._together_works
        if (width, together) not in self._pass_sizes:
            self._pass_sizes[width, together] = clients_per_pass(
                self._working, self._data, self.training, one, together=together
            )
        return self._pass_sizes[width, together]

    def _train_pass(self, work: Work) -> Iterator[CohortUpdate]:
        """Train a pass the way `mode` says, as far as the model allows it."""
        alone = len(work.jobs)
        if self._together_works:
            try:
                alone = self._number_alone(work)
            # A model may refuse to be vectorised with any exception at all.
            except Exception as error:
                self._give_up(error)
        if alone:
            yield self._sequential(work.part(0, alone))
        if alone < len(work.jobs):
            yield from self._train_together(work.part(alone, len(work.jobs)))

    def _number_alone(self, work: Work) -> int:
        if self.training.mode == "vectorised":
            return 0
        chain = self._vectorised.chain
        if chain is not None and len(work.jobs) * chain.nbytes(self._working) <= _CERTAIN_BYTES:
            return 0
        return self._chooser.number_alone(work)

    def _train_together(self, work: Work) -> Iterator[CohortUpdate]:
        try:
            yield self._vectorised.train(work)
        except torch.OutOfMemoryError:
            half = len(work.jobs) // 2
            if half == 0:
                yield self._sequential(work)
            else:
                yield from self._train_together(work.part(0, half))
                yield from self._train_together(work.part(half, len(work.jobs)))
        except Exception as error:
            self._give_up(error)
            yield self._sequential(work)

    def _sequential(self, work: Work) -> CohortUpdate:
        return train_sequentially(self._working, self._data, self.training, work)

    def _give_up(self, error: Exception) -> None:
        self._together_works = False
        _logger.warning(
            "clients train one after another: the model cannot be vectorised (%s: %s)",
            type(error).__name__,
            str(error).partition("\n")[0],
        )
