"""The trainer: jobs in, updates and scores out."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fedclust.personal.layers import Finetune
from fedclust.support.rng import torch_seed
from fedclust.training.batches import draw_batches, num_steps
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.device_data import DeviceData
from fedclust.training.dispatch import Dispatcher
from fedclust.training.evaluation import (
    Measure,
    Metric,
    Scores,
    answers,
    check_names,
    evaluate_jobs,
)
from fedclust.training.lanes import Lanes
from fedclust.training.losses import WeightedCrossEntropy, example_losses
from fedclust.training.parameters import LocalTraining
from fedclust.training.work import Work, untrained
from fedclust.training.working_model import WorkingModel, only_last_layer, step_keys
from fedclust.typing import FloatArray, IntArray, State

if TYPE_CHECKING:
    from fedclust.data.dataset import FederatedData


# Most memory for the rows of a pass's batches.
_NO_ROWS = np.zeros(0, dtype=np.int64)
_BATCH_BYTES = 256 << 20


class Trainer:
    """Trains and evaluates clients on one device.

    Results do not depend on which clients share a call, up to float tolerance.

    Parameters
    ----------
    model
        Architecture; it is copied, its own parameters are never used.
    data
        The federation.
    training
        Hyperparameters.
    seed
        The run's seed; batches, dropout masks, crops and flips derive from it, the round and the client.
    device
        Where to compute.
    metrics
        The user's own metrics, by name; see :data:`fedclust.training.evaluation.Metric`.
    threads
        Most clients to train at the same time on separate threads, if `device` is the CPU and that is faster;
        None for as many as PyTorch may use.

    Raises
    ------
    ValueError
        If a label of `data` is out of range, a metric has the name of an existing figure, or augmentation is
        set for data that are not images.
    """

    def __init__(
        self,
        model: nn.Module,
        data: FederatedData,
        training: LocalTraining,
        seed: int,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        if isinstance(training.loss, WeightedCrossEntropy):
            # Every client weighs classes alike, by the label counts of all of them.
            training = replace(training, loss=training.loss.fitted(data.label_counts().sum(axis=0).tolist()))
        self.training = training
        self._model = model
        self._metrics = dict(metrics or {})
        check_names(self._metrics)
        self._seed = seed
        # As tensors name it, with its number: "cuda" is not "cuda:0", and not all of torch.cuda takes both.
        self._device = torch.empty(0, device=device).device
        if training.augmentation != "none" and data.inputs.dim() != 4:
            raise ValueError(
                f"training.augmentation must be none for examples of shape {list(data.input_shape)}, "
                f"which are not images, got {training.augmentation}"
            )
        self._data = DeviceData(data, self._device)
        self._working = WorkingModel(model, self._device, training.precision)
        self._lanes = Lanes(self._working, threads or torch.get_num_threads())
        self._dispatcher = Dispatcher(self._lanes, self._data, training)

    @property
    def trainable_names(self) -> tuple[str, ...]:
        """Names of the parameters that training changes, in the model's order."""
        return tuple(self._working.trainable_names)

    def train(
        self, jobs: Sequence[Job], server_round: int, *, proximal_mu: float | None = None
    ) -> Iterator[CohortUpdate]:
        """Train clients on their rows.

        A client whose loss or model becomes non-finite, whose loss exceeds 2^24 nats, who has no rows, whose
        state does not fit the model, or on whose data the model raises, is listed in the update's `failed`;
        the others are not affected.

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
        Updates of some of the clients each, every client in exactly one, in any order.

        Raises
        ------
        ValueError
            If a client is given twice, or a number is out of range.
        """
        mu = self.training.proximal_mu if proximal_mu is None else proximal_mu
        if not 0 <= mu < float("inf"):
            raise ValueError(f"proximal_mu must be >= 0 and finite, got {mu}")
        learning_rate = self.training.learning_rate_at(server_round)
        times = Counter(job.client for job in jobs)
        if len(times) < len(jobs):
            ((client, most),) = times.most_common(1)
            raise ValueError(f"each client must have one job, got {most} of {client}")
        misfits: dict[int, str] = {}
        jobs = self._check(jobs, misfits)
        yield from (untrained([Job(client, _NO_ROWS, {})], reason) for client, reason in misfits.items())
        empty = [job for job in jobs if len(job.rows) == 0]
        if empty:
            yield untrained(empty, "no training examples")
        full = sorted((job for job in jobs if len(job.rows)), key=lambda job: -len(job.rows))
        first = 0
        while first < len(full):
            # Not across a yield: the caller must find torch's global settings as they were.
            with self._working.settings():
                work = self._next_pass(full[first:], server_round, learning_rate, mu)
                updates = list(self._dispatcher.train(work))
            yield from updates
            first += len(work.jobs)

    def finetuner(self, finetune: Finetune) -> Trainer:
        """Make the trainer of a client's personal model; it shares the data with this one.

        Parameters
        ----------
        finetune
            What differs from training in a round.
        """
        rate = self.training.learning_rate if finetune.learning_rate is None else finetune.learning_rate
        training = replace(
            self.training,
            epochs=finetune.epochs,
            steps=None,
            learning_rate=rate,
            schedule="constant",
            proximal_mu=0.0,
        )
        other = copy.copy(self)
        other.training = training
        model = self._model if finetune.layers == "all" else only_last_layer(self._model)
        other._working = WorkingModel(model, self._device, training.precision)
        other._lanes = Lanes(other._working, self._lanes.most)
        other._dispatcher = Dispatcher(other._lanes, self._data, training)
        return other

    def evaluate(self, jobs: Sequence[Job], *, full: bool = False, own: bool = True) -> list[Scores]:
        """Measure models on clients' rows.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.
        full
            Whether to add ``macro-f1``, ``auc`` and the counts for figures over all clients' rows.
        own
            Whether to add the user's own metrics.

        Returns
        -------
        The scores of each job, in order.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        with self._working.settings():
            return evaluate_jobs(
                self._lanes,
                self._data,
                self._check(jobs),
                self.training.evaluation_batch_size,
                full=full,
                loss=self.training.loss,
                metrics=self._metrics if own else {},
            )

    def confusions(self, jobs: Sequence[Job]) -> list[IntArray]:
        """Count models' predictions for the examples of each class.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.

        Returns
        -------
        For each job how often each label (rows) was predicted as each class (columns), shape (C, C); where
        labels have positions, each of them counts.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        classes = self._data.num_classes
        answered = self._answers(jobs, lambda logits, labels, _: (labels * classes + logits.argmax(-1),))
        return [
            np.bincount(pairs.numpy().ravel(), minlength=classes**2).reshape(classes, classes)
            for (pairs,) in answered
        ]

    def logits(self, jobs: Sequence[Job]) -> list[tuple[FloatArray, IntArray]]:
        """Compute models' outputs for each row, before the softmax.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.

        Returns
        -------
        For each job logits, shape (n, C) or (n, positions, C), and labels, shape (n,) or (n, positions).

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        answered = self._answers(jobs, lambda logits, labels, _: (logits, labels))
        return [(logits.numpy(), labels.numpy()) for logits, labels in answered]

    def losses(self, jobs: Sequence[Job]) -> list[FloatArray]:
        """Compute the loss of models on each row.

        Parameters
        ----------
        jobs
            Who evaluates what, on which rows.

        Returns
        -------
        For each job the losses of its rows in nats, shape (n,).

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        loss = self.training.loss
        answered = self._answers(jobs, lambda logits, labels, _: (example_losses(logits, labels, loss),))
        return [losses.numpy().astype(np.float64) for (losses,) in answered]

    def _answers(self, jobs: Sequence[Job], measure: Measure) -> list[tuple[torch.Tensor, ...]]:
        with self._working.settings():
            return answers(
                self._lanes, self._data, self._check(jobs), self.training.evaluation_batch_size, measure
            )

    def _check(self, jobs: Sequence[Job], misfits: dict[int, str] | None = None) -> list[Job]:
        """Check the states and move each to the device once; misfits are left out where they are listed."""
        moved: dict[int, State] = {}
        fitting = []
        for job in jobs:
            if id(job.state) not in moved:
                try:
                    self._working.check(job.state, f"client {job.client}")
                except ValueError as error:
                    if misfits is None:
                        raise
                    misfits[job.client] = str(error)
                    continue
                moved[id(job.state)] = {
                    name: tensor.detach().to(self._device) for name, tensor in job.state.items()
                }
            fitting.append(job)
        return [replace(job, state=moved[id(job.state)]) for job in fitting]

    def _next_pass(self, jobs: Sequence[Job], server_round: int, learning_rate: float, mu: float) -> Work:
        """Take as many clients as fit into memory, longest first, and draw their batches."""
        draw = partial(self._work, server_round=server_round, learning_rate=learning_rate, mu=mu)
        examples, steps = len(jobs[0].rows), jobs[0].steps
        width = min(self.training.batch_size, examples)
        if steps is None:
            steps = int(num_steps(np.array([examples]), self.training)[0])
        capacity = self._dispatcher.capacity(width, lambda: draw(jobs[:1]))
        # Clients with fewer steps are padded to the longest; the padding takes memory but no steps.
        return draw(jobs[: min(capacity, max(1, _BATCH_BYTES // (8 * steps * width)))])

    def _work(self, jobs: Sequence[Job], server_round: int, learning_rate: float, mu: float) -> Work:
        clients = [job.client for job in jobs]
        rows, own = [job.rows for job in jobs], [job.steps for job in jobs]
        batches = draw_batches(clients, rows, self.training, self._seed, server_round, own)
        ids, steps = torch.tensor(clients, device=self._device), batches.rows.shape[1]
        keys = step_keys(torch_seed(self._seed, "dropout", server_round), ids, steps)
        augmentation = None
        if self.training.augmentation != "none":
            augmentation = step_keys(torch_seed(self._seed, "augmentation", server_round), ids, steps)
        return Work(jobs, batches, keys, learning_rate, mu, augmentation)
