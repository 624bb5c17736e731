"""The trainer: jobs in, updates and scores out.

Passes are trained as `mode` specifies, if model and memory allow it. Before clients of a model train together
for the first time, the two ways are compared.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedclust.data.targets.base import Scores
from fedclust.personal.layers import Finetune
from fedclust.support.devices import keep_freed_memory
from fedclust.support.reasons import RAISED, reason_of
from fedclust.support.rng import torch_seed
from fedclust.training import evaluation
from fedclust.training.cohort import (
    Batches,
    CohortUpdate,
    Job,
    Pairs,
    Work,
    draw_batches,
    num_steps,
    untrained,
)
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import WeightedCrossEntropy, cross_entropy, example_losses
from fedclust.training.parameters import LocalTraining
from fedclust.training.patients import PatientSteps, PatientTraining, patient_steps
from fedclust.training.sequential import train_sequentially
from fedclust.training.vectorised import VectorisedTraining, first_loss
from fedclust.training.working_model import Lanes, WorkingModel, only_last_layer, step_keys
from fedclust.typing import FloatArray, IntArray, State

if TYPE_CHECKING:
    from fedclust.data.dataset import FederatedData

_logger = logging.getLogger(__name__)

_NO_ROWS = np.zeros(0, dtype=np.int64)
# Most memory for the rows of a pass's batches.
_BATCH_BYTES = 256 << 20
# Largest number of models' outputs kept until they are reduced: 256 MiB.
_MOST_VALUES = 1 << 26
# Relative size of a layer's rounding error. In float32 it is a few units in the last place, 2^-23, as sums
# are rounded as well; the other two round the factors of products, to 2^-10 and 2^-7.
_ROUNDING = {"float32": 2.0**-20, "tf32": 2.0**-10, "bf16": 2.0**-7}
# Fixed amounts rather than what is free at the moment: a run must be divided the same way every time.
_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.4
# Clients that are tried, one after another, until one shows whether the two ways of training agree.
_TRIED = 3
# Largest difference, in rounding errors, that the padding of a short batch may make.
_FILLING = 32.0
# Rounding errors may grow in training by up to this share of a loss's change since the first step.
_GROWN = 0.05
# Rounding errors of a layer that a model's change may be apart by, as each step's gradient has some.
_GRADIENTS = 16
# Share of a model's change that counts as the change of each of its tensors.
_LEAST = 0.02
_ROWS = "an nn.Embedding with padding_idx, max_norm or scale_grad_by_freq cannot be trained together"

Measure = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""Function from a batch's logits and labels to tensors with a row per example."""

Train = Callable[[Work], CohortUpdate]

_Batch = tuple[State, Tensor, Tensor]
"""A model, rows, and the position of each row's job."""


class Trainer:
    """Trains and evaluates clients on one device.

    Results do not depend on which clients share a call, up to float tolerance.

    Parameters
    ----------
    model
        Architecture; it is copied, and its own parameters are never used.
    data
        The federation.
    training
        Hyperparameters.
    seed
        The run's seed; batches, dropout masks, crops and flips derive from it, the round and the client.
    device
        Device to compute on.
    metrics
        The user's own metrics, by name; see :data:`fedclust.training.evaluation.Metric`.
    threads
        Largest number of clients to train at the same time on separate threads, if `device` is the CPU and
        that is faster; None for as many as PyTorch may use.

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
        metrics: Mapping[str, evaluation.Metric] | None = None,
    ) -> None:
        if isinstance(training.loss, WeightedCrossEntropy):
            # Every client uses the same class weights, from the label counts of all clients.
            training = replace(training, loss=training.loss.fitted(data.label_counts().sum(axis=0).tolist()))
        if training.loss is cross_entropy and data.target.loss is not None:
            training = replace(training, loss=data.target.loss)
        self._model = model
        self._parts: dict[tuple[str, ...], Trainer] = {}
        self._metrics = dict(metrics or {})
        evaluation.check_names(self._metrics)
        self._seed = seed
        # The device as tensors name it, with its number: "cuda" is not "cuda:0", and not all of torch.cuda
        # accepts both.
        self._device = torch.empty(0, device=device).device
        if self._device.type == "cpu":
            keep_freed_memory()
            if training.precision == "bf16" and torch.backends.cpu.get_cpu_capability() == "AVX2":
                slow = "may take several times as long as float32 on this processor, which has no AVX-512"
                _logger.warning("training.precision=bf16 %s", slow)
        if training.augmentation != "none" and data.inputs.dim() != 4:
            shape = f"examples of shape {list(data.input_shape)}, which are not images"
            raise ValueError(f"training.augmentation must be none for {shape}, got {training.augmentation}")
        self._data, self._persons = DeviceData(data, self._device), data.persons
        self._prepare(model, training, threads or torch.get_num_threads())

    def _prepare(self, model: nn.Module, training: LocalTraining, threads: int) -> None:
        self.training = training
        self._working = WorkingModel(model, self._device, training.precision)
        wide = self._working.convolves and self._device.type == "cpu"
        asked = training.evaluation_batch_size
        self._evaluation_rows = (128 if wide else 1024) if asked == "auto" else asked
        self._lanes = Lanes(self._working, threads)
        self._dispatcher = Dispatcher(self._lanes, self._data, training)

    def on(self, data: FederatedData) -> Trainer:
        """Return a trainer of the same model on other data."""
        return Trainer(self._model, data, self.training, self._seed, self._device, metrics=self._metrics)

    @property
    def trainable_names(self) -> tuple[str, ...]:
        """Names of the parameters that training changes, in the model's order."""
        return tuple(self._working.trainable_names)

    @cached_property
    def initial(self) -> State:
        """The model that was given, on the device."""
        state = self._model.state_dict()
        return {name: tensor.detach().to(self._device, copy=True) for name, tensor in state.items()}

    def only(self, names: Collection[str]) -> Trainer:
        """Return the trainer that trains only the parameters with some names, on the same data."""
        key = tuple(names)
        if key not in self._parts:
            model = copy.deepcopy(self._model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and name in key)
            self._parts[key] = other = copy.copy(self)
            other._prepare(model, self.training, self._lanes.most)
        return self._parts[key]

    def train(
        self,
        jobs: Sequence[Job],
        server_round: int,
        *,
        proximal_mu: float | None = None,
        patients: PatientSteps | None = None,
        pairs: Pairs | None = None,
    ) -> Iterator[CohortUpdate]:
        """Train clients on their rows.

        A client whose loss or model becomes non-finite, whose loss exceeds 2^24 nats, which has no rows,
        whose state does not fit the model, or on whose data the model raises, is listed in the update's
        `failed`; the others are not affected.

        Parameters
        ----------
        jobs
            One job per client.
        server_round
            The round, from 1.
        proximal_mu
            FedProx's weight for this call; None for that of the hyperparameters.
        patients
            How steps protect each patient, see :mod:`fedclust.training.patients`; None if they do not.
        pairs
            How each client's second model, :attr:`Job.own`, trains beside the shared one; None if the former
            is part of the latter.

        Yields
        ------
        Updates, each of some of the clients; every client is in exactly one. The order is arbitrary.

        Raises
        ------
        ValueError
            If the round or `proximal_mu` is out of range.
        """
        mu = self.training.proximal_mu if proximal_mu is None else proximal_mu
        if not 0 <= mu < float("inf"):
            raise ValueError(f"proximal_mu must be >= 0 and finite, got {mu}")
        misfits: dict[int, str] = {}
        jobs = self._check(jobs, misfits)
        yield from (untrained([Job(client, _NO_ROWS, {})], reason) for client, reason in misfits.items())
        empty = [job for job in jobs if len(job.rows) == 0]
        if empty:
            yield untrained(empty, "no training examples")
        full = sorted((job for job in jobs if len(job.rows)), key=lambda job: -len(job.rows))
        while full and patients is not None:
            with self._working.settings():
                update = self._private(full.pop(), server_round, mu, patients)
            yield update
        while full:
            # Not across a yield: the caller must find torch's global settings unchanged.
            with self._working.settings():
                work = self._next_pass(full, server_round, mu, pairs)
                updates = list(self._dispatcher.train(work))
            yield from updates
            full = full[len(work.jobs) // (2 if pairs else 1) :]

    def _private(self, job: Job, server_round: int, mu: float, patients: PatientSteps) -> CohortUpdate:
        steps = patient_steps(self.training, patients.sampling)
        blank = Batches(np.zeros((1, steps, 0), np.int64), np.zeros((1, steps), np.int64), np.array([steps]))
        training = PatientTraining(self._working, self._data, self.training, self._persons)
        try:
            return training.train(self._work([job], server_round, mu, blank), patients, server_round)
        # The model is the user's code: an error on one client's data must not stop the others.
        except RAISED as error:
            return untrained([job], reason_of(error))

    def finetuner(self, finetune: Finetune) -> Trainer:
        """Create the trainer of clients' personal models, which shares the data with this one.

        Parameters
        ----------
        finetune
            Settings that differ from training in a round.
        """
        rate = self.training.learning_rate if finetune.learning_rate is None else finetune.learning_rate
        training = replace(self.training, epochs=finetune.epochs, steps=None, learning_rate=rate)
        training = replace(training, schedule="constant", proximal_mu=0.0)
        model = self._model if finetune.layers == "all" else only_last_layer(self._model)
        other = copy.copy(self)
        other._prepare(model, training, self._lanes.most)
        return other

    def evaluate(self, jobs: Sequence[Job], *, full: bool = False) -> list[Scores]:
        """Evaluate models on clients' rows.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.
        full
            Whether to add ``macro-f1``, ``auc`` and the counts for metrics over all clients' rows.

        Returns
        -------
        The scores of each job, in order.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        metrics, data, loss = self._metrics, self._data, self.training.loss
        target = data.target

        def measure(outputs: Tensor, truth: Tensor) -> tuple[Tensor, ...]:
            kept = target.kept(outputs, data.num_outputs, full)
            return example_losses(outputs, truth, loss), truth, *kept, *([outputs] if metrics else [])

        width = data.positions * (data.num_outputs if full or metrics else 1)
        scores: list[Scores] = []
        for part in _parts(jobs, max(1, _MOST_VALUES // width)):
            results = self._answers(part, measure)
            losses, truths, *kept = (torch.cat(columns).numpy() for columns in zip(*results, strict=True))
            counts = np.array([len(job.rows) for job in part], dtype=np.int64)
            found = target.measured(counts, losses, truths, kept, data.num_classes, full)
            if metrics:
                for each, (_, truth, *_, outputs) in zip(found, results, strict=True):
                    each.figures.update(evaluation.measure_own(metrics, outputs, truth))
            scores += found
        return scores

    def confusions(self, jobs: Sequence[Job]) -> list[IntArray]:
        """Count models' predictions for the examples of each class.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.

        Returns
        -------
        For each job, how often each label (rows) was predicted as each class (columns), shape (C, C); if
        labels have positions, each of them counts.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        classes = self._data.num_classes

        def pairs_of(outputs: Tensor, labels: Tensor) -> tuple[Tensor]:
            return (labels * classes + outputs[..., :classes].argmax(-1),)

        answered = self._answers(jobs, pairs_of)
        counts = (np.bincount(pairs.numpy().ravel(), minlength=classes**2) for (pairs,) in answered)
        return [each.reshape(classes, classes) for each in counts]

    def logits(self, jobs: Sequence[Job]) -> list[tuple[FloatArray, IntArray]]:
        """Compute models' outputs for each row, before a softmax, with what each job adds to them.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.

        Returns
        -------
        For each job, outputs, shape (n, O) or (n, positions, O), and labels, shape (n,) or (n, positions), or
        other values.

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        width = self._data.num_outputs
        answered = self._answers(jobs, lambda outputs, truth: (outputs[..., :width], truth))
        return [(outputs.numpy(), truth.numpy()) for outputs, truth in answered]

    def losses(self, jobs: Sequence[Job]) -> list[FloatArray]:
        """Compute the loss of models on each row.

        Parameters
        ----------
        jobs
            One job per client: its rows and the model to evaluate.

        Returns
        -------
        For each job, the losses of its rows in nats, shape (n,).

        Raises
        ------
        ValueError
            If a state does not fit the model.
        """
        loss = self.training.loss
        answered = self._answers(jobs, lambda logits, labels: (example_losses(logits, labels, loss),))
        return [losses.numpy().astype(np.float64) for (losses,) in answered]

    def latent(self, job: Job) -> FloatArray:
        """Compute what a model's last linear layer is given for each row, shape (n, d).

        Raises
        ------
        ValueError
            If the state does not fit the model, or no layer is linear.
        """
        (job,), working, seen = self._check([job]), self._working, list[Tensor]()
        linear = [each for each in working.model.modules() if isinstance(each, nn.Linear)]
        if not linear:
            raise ValueError(f"model must have an nn.Linear, a {type(working.model).__name__} has none")
        kept = linear[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].float().cpu()))
        rows = torch.from_numpy(np.asarray(job.rows)).to(self._data.rows_device)
        try:
            with working.settings(), torch.inference_mode():
                working.load(job.state)
                working.model.eval()
                for part in rows.split(self._evaluation_rows):
                    working.forward(self._data.batch(part)[0])
        finally:
            kept.remove()
        return torch.cat(seen).numpy()

    def _answers(self, jobs: Sequence[Job], measure: Measure) -> list[tuple[Tensor, ...]]:
        """Evaluate models on their jobs' rows, those of one model together, unless it mixes rows.

        `measure` reduces the logits and labels of a batch to tensors with a row per example. The result holds
        each job's rows of these tensors, on the CPU, in the order of `jobs`.
        """
        jobs, data = self._check(jobs), self._data
        loaded: dict[int, int] = {}
        shifts: Tensor | None = None  # what is added to each job's logits, shape (n, C)
        if any(job.shift is not None for job in jobs):
            own = [np.zeros(data.num_outputs) if job.shift is None else job.shift for job in jobs]
            shifts = torch.from_numpy(np.stack(own)).to(data.device, torch.float32)

        @torch.inference_mode()
        def answer(working: WorkingModel, batch: _Batch) -> tuple[Tensor, ...]:
            state, rows, owners = batch
            if loaded.get(id(working)) != id(state):
                loaded[id(working)] = id(state)
                working.load(state)
                working.model.eval()
            inputs, labels = data.batch(rows)
            logits = working.forward(inputs).float()
            if shifts is not None:
                added = shifts[owners.to(shifts.device)]
                logits[..., : data.num_outputs] += added.view(len(added), *[1] * (logits.dim() - 2), -1)
            return measure(logits, labels)

        together: dict[Hashable, list[int]] = {}
        for place, job in enumerate(jobs):
            key = id(job.state), place if self._working.mixes_rows else 0
            together.setdefault(key, []).append(place)
        batches: list[_Batch] = []
        size = self._evaluation_rows
        for places in together.values():
            rows = np.concatenate([jobs[place].rows for place in places]).astype(np.int64)
            owners = np.repeat(places, [len(jobs[place].rows) for place in places])
            if len(rows):
                parts = torch.from_numpy(rows).to(data.rows_device).split(size)
                owned = torch.from_numpy(owners).split(size)
                batches += zip(repeat(jobs[places[0]].state), parts, owned, strict=False)
        with self._working.settings():
            if batches:
                answers = self._lanes.each("evaluate", answer, batches)
            else:
                answers = [measure(torch.zeros(0, data.num_outputs), data.no_rows)]
        order = [place for places in together.values() for place in places]
        sizes = [len(jobs[place].rows) for place in order]
        columns = [torch.cat(parts).cpu().split(sizes) for parts in zip(*answers, strict=True)]
        of_place = dict(zip(order, zip(*columns, strict=True), strict=True))
        return [of_place[place] for place in range(len(jobs))]

    def _check(self, jobs: Sequence[Job], misfits: dict[int, str] | None = None) -> list[Job]:
        """Check the states and move each to the device once; leave out misfits if they are collected."""
        moved: dict[int, State] = {}
        fitting = []
        for job in jobs:
            if id(job.state) not in moved:
                try:
                    self._working.check(job.whole, f"client {job.client}")
                except ValueError as error:
                    if misfits is None:
                        raise
                    misfits[job.client] = str(error)
                    continue
                moved[id(job.state)] = {
                    name: tensor.detach().to(self._device) for name, tensor in job.state.items()
                }
            fitting.append(job)
        return [
            replace(job, state=moved[id(job.state)], own={n: t.to(self._device) for n, t in job.own.items()})
            for job in fitting
        ]

    def _next_pass(
        self, jobs: Sequence[Job], server_round: int, mu: float, pairs: Pairs | None = None
    ) -> Work:
        """Take as many clients as fit into memory, longest first, and draw their batches."""
        examples, steps = len(jobs[0].rows), jobs[0].steps
        width = min(self.training.batch_size, examples)
        if steps is None:
            steps = int(num_steps(np.array([examples]), self.training)[0])
        steps += jobs[0].first
        capacity = self._dispatcher.capacity(width, lambda: self._work(jobs[:1], server_round, mu))
        # Clients with fewer steps are padded to the longest; the padding takes memory but no steps.
        number = min(capacity, max(1, _BATCH_BYTES // (8 * steps * width)))
        if pairs is None:
            return self._work(jobs[:number], server_round, mu)
        chosen = jobs[: max(1, number // 2)]
        rows = [row for job in chosen for row in (replace(job, own={}), replace(job, state=job.own, own={}))]
        shares = [pairs.shares[job.client] for job in chosen] if pairs.shares else None
        mixed = None if shares is None else torch.tensor(shares, dtype=torch.float32, device=self._device)
        return replace(self._work(rows, server_round, mu), pairs=pairs, shares=mixed)

    def _work(
        self, jobs: Sequence[Job], server_round: int, mu: float, batches: Batches | None = None
    ) -> Work:
        training, seed = self.training, self._seed
        clients = [job.client for job in jobs]
        rows, own = [job.rows for job in jobs], [job.steps for job in jobs]
        if batches is None:
            batches = draw_batches(clients, rows, training, seed, server_round, own, [j.first for j in jobs])
        ids = torch.tensor(clients, device=self._device)
        purposes = ("dropout",) if training.augmentation == "none" else ("dropout", "augmentation")
        keys = [
            step_keys(torch_seed(seed, each, server_round), ids, batches.rows.shape[1]) for each in purposes
        ]
        rate = training.learning_rate_at(server_round)
        return Work(jobs, batches, keys[0], rate, mu, augmentation=keys[1] if keys[1:] else None)


def _parts(jobs: Sequence[Job], most: int) -> Iterator[Sequence[Job]]:
    """Divide jobs into parts of at most `most` rows, or of one job with more."""
    first = rows = 0
    for place, job in enumerate(jobs):
        if place > first and rows + len(job.rows) > most:
            yield jobs[first:place]
            first, rows = place, 0
        rows += len(job.rows)
    if jobs:
        yield jobs[first:]


# -- Training together or one by one -------------------------------------------------------------------------


def has_rows_of_its_own(model: nn.Module) -> bool:
    """Return whether an embedding treats some rows in another way, as that of padding; vmap does not."""
    embeddings = (each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag))
    options = ((each.padding_idx, each.max_norm, each.scale_grad_by_freq or None) for each in embeddings)
    return any(option is not None for each in options for option in each)


def faster_together(model: nn.Module, device: torch.device) -> bool:
    """Return whether clients of a model train faster in one pass, judged by its layers.

    Dense layers do: most of a small step is overhead, not arithmetic. On a CPU, the grouped convolutions that
    vmap makes of many clients' convolutions are slower than one client at a time (measured:
    docs/PERFORMANCE.md); a GPU is used better. Recurrent and attention layers are slow under vmap.
    """
    kinds = [type(module) for module in model.modules()]
    if any(issubclass(kind, nn.RNNBase | nn.RNNCellBase) or "Attention" in kind.__name__ for kind in kinds):
        return False
    return device.type == "cuda" or not any(issubclass(kind, _ConvNd) for kind in kinds)


class Dispatcher:
    """Trains the clients of a pass together or one after another.

    If a model cannot be vectorised, its clients are trained one after another from then on, with a warning.

    Parameters
    ----------
    lanes
        The model, and the threads that may each train a client.
    data
        The dataset.
    training
        Hyperparameters.

    Attributes
    ----------
    together
        Whether clients may still train together.
    """

    def __init__(self, lanes: Lanes, data: DeviceData, training: LocalTraining) -> None:
        self.together = training.mode == "vectorised" or (
            training.mode == "auto" and faster_together(lanes.working.model, lanes.working.device)
        )
        self._lanes = lanes
        self._working = working = lanes.working
        self._data = data
        self._training = training
        self._vectorised = VectorisedTraining(working, data, training, lanes.most)
        self._agreed = False
        if self.together and has_rows_of_its_own(working.model):
            self.together = False
            if training.mode == "vectorised":
                _logger.warning("clients train one after another: %s", _ROWS)
        self._capacities: dict[tuple[int, bool], int] = {}

    def capacity(self, width: int, one: Callable[[], Work]) -> int:
        """Return how many clients with batches of `width` fit into a pass: `chunk`, or what memory allows.

        `one` creates the work of one such client; it is called only if there was none before.
        """
        if self._training.chunk != "auto":
            return self._training.chunk
        key = width, self.together
        if key not in self._capacities:
            self._capacities[key] = self._clients_per_pass(one())
        return self._capacities[key]

    def _clients_per_pass(self, work: Work) -> int:
        """Estimate how many clients like the first fit into 1 GiB, or 40 % of the GPU's memory; >= 1.

        If clients train one by one, only their results take memory.
        """
        training, device, needed = self._training, self._working.device, self._working.nbytes
        budget = float(_CPU_BYTES)
        if device.type == "cuda":
            ours = torch.cuda.get_per_process_memory_fraction(device)  # several nodes may share a GPU
            budget = _GPU_SHARE * ours * torch.cuda.get_device_properties(device).total_memory
        if self.together:
            # The model, its gradient, and one more for temporaries; the moments and Adam's denominator;
            # FedProx's start and difference.
            copies = 3 + bool(training.momentum) + 3 * (training.optimizer == "adam")
            copies += 2 * bool(training.proximal_mu)
            # The backward pass needs about the same again. If the model raises, training will report it.
            with contextlib.suppress(Exception):
                needed = copies * needed + 2 * self._saved_bytes(work)
        return max(1, int(budget / max(1, needed)))

    def _saved_bytes(self, work: Work) -> int:
        """Compute the bytes that the forward pass of a client's first batch keeps for the backward pass."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self._working.tensors.values()}
        saved: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        self._working.model.train()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            first_loss(self._working, self._data, self._training, work)
        return sum(saved.values())

    def train(self, work: Work) -> Iterator[CohortUpdate]:
        """Train a pass, in one or more parts; one by one where rows have weights."""
        if any(job.weights is not None for job in work.jobs):
            yield self._alone(work)
            return
        if self.together and self._vectorised.mlp is None and not self._agreed:
            try:
                self._agreed = self._agree(work)
            except torch.OutOfMemoryError:
                pass  # too much for one pass, but smaller ones may fit
            # A model may refuse to be vectorised with any exception at all.
            except Exception as error:
                self._give_up(error)
            else:
                if not self._agreed:  # all clients that were tried failed, and one by one is always correct
                    yield self._alone(work)
                    return
        yield from self._train_together(work)

    def _agree(self, work: Work) -> bool:
        """Compare the two ways of training once."""
        together = self._vectorised
        if self._training.compile:  # the comparison's batches have another shape, not worth compiling for
            plain = replace(self._training, compile=False)
            together = VectorisedTraining(self._working, self._data, plain)
        # The two ways differ by rounding, which is coarser in the reduced precisions.
        tolerance = 1e-3 if self._training.precision == "float32" else 5e-2
        return agree(
            self._alone, together.train, work.alone(), tolerance, _ROUNDING[self._training.precision]
        )

    def _train_together(self, work: Work) -> Iterator[CohortUpdate]:
        """Train a pass together, in halves if memory runs out, or one by one if that fails."""
        update, halve = None, False
        if self.together:
            try:
                update = self._in_one_pass(work)
            # The exception must not outlive this clause, or its memory would be missing in the next attempt.
            except torch.OutOfMemoryError:
                halve = len(work.jobs) > (2 if work.pairs else 1)
            except Exception as error:
                self._give_up(error)
        if halve:
            half = len(work.jobs) // 2
            half -= half % 2 if work.pairs else 0
            for part in (range(half), range(half, len(work.jobs))):
                yield from self._train_together(work.select(part))
        else:
            yield self._alone(work) if update is None else update

    def _in_one_pass(self, work: Work) -> CohortUpdate:
        if len(work.jobs) > 1:
            return self._vectorised.train(work)
        # A batched product of one matrix uses another kernel than that of several. Trained twice side by
        # side, a client gets the same bits as among others, so results do not depend on which clients share a
        # node.
        twice = self._vectorised.train(work.select([0, 0]))
        state = {name: stacked[:1] for name, stacked in twice.state.items()}
        return CohortUpdate.of(work.jobs, state, twice.losses[:1], twice.failed)

    def _alone(self, work: Work) -> CohortUpdate:
        return train_sequentially(self._lanes, self._data, self._training, work)

    def _give_up(self, error: Exception) -> None:
        self.together = False
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        _logger.warning("clients train one after another: training them together failed with %s", reason)


def agree(alone: Train, together: Train, work: Work, tolerance: float, rounding: float = 2.0**-20) -> bool:
    """Compare two ways of training on a client and on the same client with half of each batch.

    The losses before each step must be close, and the models after the last one.

    If a model mixes the examples of a batch by means other than BatchNorm, the padding of short batches
    changes its results. So the half batches are padded in two ways, whose losses must be equal up to the
    rounding of one kernel, however much the two ways of training differ.

    Two correct ways differ by rounding, and a step may make that difference grow: after one step of a
    ResNet-18 at a large learning rate, losses of 15.7149 and 15.7493, from 3.1138, count as the same. A wrong
    way already differs before the first step, or by much of what the step changes.

    Parameters
    ----------
    alone, together
        The two ways of training.
    work
        The pass; the first of its first few clients whose losses are finite is used.
    tolerance
        Largest relative difference between the losses of the two ways if rounding does not grow.
    rounding
        Relative size of a layer's rounding error, a few units in the last place.

    Returns
    -------
    Whether there was such a client.

    Raises
    ------
    ArithmeticError
        If the two ways disagree.
    Exception
        The error of training together, if the model does not allow it.
    """
    for client in range(min(_TRIED, len(work.jobs))):
        three = _half_batches(work, client)
        expected = alone(three.select([0, 1]))
        if expected.failed:
            continue
        joined = together(three)
        filled = joined.losses
        if not _close(filled[1], filled[2], _FILLING * rounding):
            finding = f"losses are {filled[1].tolist()} or {filled[2].tolist()}"
            why = "depending on how short batches are padded: the model mixes the examples of a batch"
            raise ArithmeticError(f"{finding}, {why}")
        for joint, single in zip(filled, expected.losses, strict=False):
            if not _close(single, joint, tolerance):
                finding = f"losses are {joint.tolist()} together and {single.tolist()} alone"
                raise ArithmeticError(f"{finding}, apart by more than rounding explains")
        share = _apart(three.jobs[0].whole, expected.state, joined.state)
        if share > max(_GROWN, _GRADIENTS * rounding):
            finding = f"models differ by {share:.0%} of what the steps changed"
            raise ArithmeticError(f"{finding}, by more than rounding explains")
        return True
    return False


def _half_batches(work: Work, client: int) -> Work:
    """Return two steps of a client, and the same with half of each batch, padded in two ways."""
    three = work.select([client] * 3, steps=2)
    rows, whole = three.batches.rows.copy(), three.batches.sizes
    sizes = whole.copy()
    sizes[1:] = (sizes[1:] + 1) // 2
    for step, (size, full) in enumerate(zip(sizes[1], whole[1], strict=True)):
        rows[1, step, size:] = rows[1, step, 0]
        rows[2, step, full:] = rows[2, step, full - 1]
    return replace(three, batches=Batches(rows, sizes, three.batches.steps))


def _apart(start: State, alone: State, together: State) -> float:
    """Return how far two ways' models are apart, as a share of what one way has changed.

    It is the share of the tensor in which they differ most. A part of the whole model's change counts as that
    of each tensor: the gradient of some is rounding alone, such as a bias before BatchNorm.
    """
    names = [name for name, stacked in alone.items() if stacked.is_floating_point()]
    moved = {name: _length(alone[name] - start[name]) for name in names}
    least = _LEAST * math.hypot(*moved.values())
    rounding = {name: _ROUNDING["float32"] * _length(alone[name]) for name in names}
    apart = {name: _length(together[name][: len(alone[name])] - alone[name]) for name in names}
    return max(
        (apart[each] / (moved[each] + least + rounding[each]) for each in names if apart[each]), default=0
    )


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))


def _close(one: FloatArray, other: FloatArray, tolerance: float) -> bool:
    """Compare the losses of two steps, each shape (steps,)."""
    allowed = tolerance * (1 + np.abs(one)) + _GROWN * np.abs(one - one[0])
    return bool((np.abs(one - other) <= allowed).all())
