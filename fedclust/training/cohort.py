"""The clients of a pass: their batches, their trained models, and the mean and length of their updates.

Clipping: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018, Algorithm 1 (FlatClip): Δ · min(1, C/‖Δ‖), over all trained parameters as one vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedclust.support.rng import generator
from fedclust.training.parameters import LocalTraining
from fedclust.training.working_model import WorkingModel
from fedclust.typing import BoolArray, FloatArray, IntArray, State

# Nats. Above it, neighbouring float32 numbers are 2 nats apart: such a loss cannot judge a step.
_LARGEST_LOSS = 2.0**24

# Elements that are converted to float64 at a time: 32 MB.
_BLOCK = 1 << 22

# Elements that `update_norms` subtracts at a time: 512 kB, which stays in a core's cache.
_CACHED = 1 << 17


@dataclass(frozen=True, eq=False)
class Job:
    """One client's share of a cohort's work.

    Attributes
    ----------
    client
        Client id.
    rows
        Rows of the dataset to train on or to evaluate on, shape (N_k,).
    state
        Model to start from or to evaluate. Jobs with the same cluster model share this very object, so that
        it is moved and stacked only once.
    steps
        Number of steps to train; None for that of the hyperparameters.
    shift
        Added to the logits in evaluation, shape (C,); None adds nothing.
    weights
        Factor of the loss of each row in training, shape (N_k,); `rows` are then sorted. None for 1.
    own
        Tensors of the client's own in place of those of `state`, which may lack them; all jobs that train
        together have the same names.
    first
        Steps of the round's batches that are left out before the first.
    """

    client: int
    rows: IntArray
    state: State
    steps: int | None = None
    shift: FloatArray | None = None
    weights: FloatArray | None = None
    own: State = field(default_factory=dict)
    first: int = 0

    @property
    def whole(self) -> State:
        """The model with the client's own tensors."""
        return {**self.state, **self.own} if self.own else self.state


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of n clients for all their steps, padded to one shape.

    Attributes
    ----------
    rows
        Rows of the dataset, shape (n, S, B). A short batch is filled with its own first row, so padding never
        mixes one client's data into another's. Steps that a client does not take are 0.
    sizes
        Number of real rows of each batch, shape (n, S); 0 for steps that a client does not take.
    steps
        Number of steps of each client, shape (n,).
    """

    rows: IntArray
    sizes: IntArray
    steps: IntArray


def num_steps(examples: IntArray, training: LocalTraining) -> IntArray:
    """Count the steps of clients, given the number of examples of each (>= 1), shape (n,)."""
    if training.epochs is None:
        return np.full(len(examples), training.steps)
    return -(-np.asarray(examples) // training.batch_size) * training.epochs


def total_seen(examples: IntArray, training: LocalTraining) -> int:
    """Count the samples that all clients together see in a round, given the number of examples of each.

    A sample that is seen twice counts twice. Clients without examples see none.
    """
    held = np.asarray(examples)[np.asarray(examples) > 0]
    epochs, rest = np.divmod(num_steps(held, training), -(-held // training.batch_size))
    # Only an epoch's last batch may be short, which an epoch that is cut off does not reach.
    return int((epochs * held + np.minimum(rest * training.batch_size, held)).sum())


def steps_to_see(samples: int, examples: int, training: LocalTraining) -> int:
    """Count the steps after which a client with `examples` examples has seen `samples` samples.

    Parameters
    ----------
    samples
        Number of samples to see, >= 1; over several epochs if more than `examples`.
    examples
        Number of the client's examples, >= 1.
    training
        Determines the batch size.

    Returns
    -------
    The fewest steps that see at least as many; less than one batch more.
    """
    epochs, rest = divmod(samples, examples)
    return epochs * -(-examples // training.batch_size) + -(-rest // training.batch_size)


def draw_batches(
    clients: Sequence[int],
    rows: Sequence[IntArray],
    training: LocalTraining,
    seed: int,
    server_round: int,
    own_steps: Sequence[int | None] = (),
    first: Sequence[int] = (),
) -> Batches:
    """Draw the batches of a cohort's clients.

    Every epoch is a permutation of the client's rows cut into consecutive slices, the last one possibly
    shorter; if the number of steps is given, epochs continue until it is reached. The permutations of a
    client come one after another from ``generator(seed, "batches", server_round, client)``, so they do not
    depend on which other clients are in the cohort.

    Parameters
    ----------
    clients
        Client ids, shape (n,).
    rows
        Rows each of them trains on, at least one each.
    training
        Determines batch size and number of epochs or steps.
    seed
        The run's seed.
    server_round
        The round, from 1.
    own_steps
        For each client its own number of steps, or None; empty if none has its own.
    first
        For each client the number of batches that are left out before its steps; empty for none.

    Returns
    -------
    The batches, clients in the given order.
    """
    examples = np.array([len(each) for each in rows], dtype=np.int64)
    steps = num_steps(examples, training)
    for index, own in enumerate(own_steps):
        steps[index] = steps[index] if own is None else own
    if any(first):
        drawn_steps = [int(taken) + before for taken, before in zip(steps, first, strict=True)]
        whole = draw_batches(clients, rows, training, seed, server_round, drawn_steps)
        places = np.arange(int(steps.max()))[None] + np.asarray(first)[:, None]
        places = np.minimum(places, whole.sizes.shape[1] - 1)
        taken_rows = np.take_along_axis(whole.rows, places[:, :, None], axis=1)
        taking = np.arange(places.shape[1]) < steps[:, None]
        sizes = np.take_along_axis(whole.sizes, places, axis=1) * taking
        return Batches(taken_rows * taking[:, :, None], sizes, steps)
    width = min(training.batch_size, int(examples.max(initial=0)))
    padded = np.zeros((len(rows), int(steps.max(initial=0)), width), dtype=np.int64)
    sizes = np.zeros(padded.shape[:2], dtype=np.int64)
    # Clients with equally many examples and steps are batched together; only the draws are one by one.
    for count, taken in sorted(set(zip(examples.tolist(), steps.tolist(), strict=True))):
        same = np.flatnonzero((examples == count) & (steps == taken))
        per_epoch = -(-count // width)
        epochs = -(-taken // per_epoch)
        order = np.empty((len(same), epochs, per_epoch * width), dtype=np.int64)
        for drawn, index in zip(order, same.tolist(), strict=True):
            draws = generator(seed, "batches", server_round, clients[index])
            drawn[:, :count] = rows[index]
            draws.permuted(drawn[:, :count], axis=1, out=drawn[:, :count])
        last = (per_epoch - 1) * width
        order[:, :, count:] = order[:, :, last : last + 1]
        padded[same, :taken] = order.reshape(len(same), -1, width)[:, :taken]
        epoch_sizes = np.full(per_epoch, width)
        epoch_sizes[-1] = count - last
        sizes[same, :taken] = np.tile(epoch_sizes, epochs)[:taken]
    return Batches(padded, sizes, steps)


@dataclass(frozen=True, eq=False)
class CohortUpdate:
    """Results of training the clients of one pass, stacked on the first axis.

    Attributes
    ----------
    clients
        Client ids, shape (n,). Their order is the order of the rows below, not that of the jobs.
    state
        Trained models, name to tensor of shape (n, *shape), on the trainer's device. A client that failed
        has the model it started from.
    losses
        For each client, the loss in nats before each step, without the proximal term and without weight
        decay, shape (S_k,).
    num_examples
        Training examples of each client, shape (n,).
    failed
        Client id to reason, for the clients whose result must not be used.
    own
        Each client's second model, stacked like `state`; empty if they trained none.
    shares
        Share of each one's second model in what serves it; empty where it is the whole.
    """

    clients: IntArray
    state: State
    losses: tuple[FloatArray, ...]
    num_examples: IntArray
    failed: dict[int, str]
    own: State = field(default_factory=dict)
    shares: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, jobs: Sequence[Job], state: State, losses: tuple[FloatArray, ...], failed: dict[int, str]
    ) -> CohortUpdate:
        """Create the update of some jobs, in their order."""
        clients = np.array([job.client for job in jobs], dtype=np.int64)
        return cls(clients, state, losses, np.array([len(job.rows) for job in jobs], dtype=np.int64), failed)

    def rows(self) -> dict[int, int]:
        """Return the row of each client that has not failed, by client id."""
        return {client: row for row, client in enumerate(self.clients.tolist()) if client not in self.failed}

    def models(self) -> dict[int, State]:
        """Return the trained model of each client that has not failed, by client id."""
        return {
            client: {name: stacked[row] for name, stacked in self.state.items()}
            for client, row in self.rows().items()
        }


@dataclass(frozen=True, eq=False)
class Pairs:
    """How a second model of each client's own trains beside its copy of the shared one, on the same batches.

    The pass has two rows for each client, the shared model's first. The second one's is either pulled towards
    the start of the first (Ditto), or it follows the gradient of the mixture of both (APFL).

    Attributes
    ----------
    pull
        Weight of the pull, Ditto's λ; 0 for none.
    shares
        APFL's α by client id: the second model's share in the mixture; empty for no mixture.
    adapts
        Whether α follows its gradient in the first step.
    """

    pull: float = 0.0
    shares: Mapping[int, float] = field(default_factory=dict)
    adapts: bool = False


@dataclass(frozen=True, eq=False)
class Work:
    """The n clients of a pass, the one with the most steps first, and all that they need besides the dataset.

    Attributes
    ----------
    jobs
        One job per client, each with at least one row, states on the device, sorted by decreasing number of
        steps.
    batches
        Their batches, in the order of `jobs`.
    keys
        Dropout keys of their steps, shape (n, S), on the device.
    learning_rate
        Learning rate of this round.
    proximal_mu
        FedProx's weight, >= 0.
    augmentation
        Keys of their steps' random crops and flips, shape (n, S), on the device; None for no augmentation.
    pairs
        How each client's two rows train; None if it has one.
    shares
        APFL's α of each pair, shape (n / 2,), on the device, to which a pass writes the new ones; or None.
    """

    jobs: Sequence[Job]
    batches: Batches
    keys: Tensor
    learning_rate: float
    proximal_mu: float
    augmentation: Tensor | None = None
    pairs: Pairs | None = None
    shares: Tensor | None = None

    def alone(self) -> Work:
        """Return the work without second models."""
        first = self.select(range(0, len(self.jobs), 2)) if self.pairs else self
        return replace(first, pairs=None, shares=None)

    def select(self, indices: Sequence[int], steps: int | None = None) -> Work:
        """Select the clients at some positions in `jobs`, given in increasing order, and their first steps.

        `steps` is the largest number of steps of each client; None for all of them. Pairs stay together.
        """
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
            shares=None if self.shares is None else self.shares[chosen[::2] // 2],
        )


def start_state(working: WorkingModel, jobs: Sequence[Job]) -> State:
    """Stack the models that clients start from; tensors that training changes are copies.

    Returns
    -------
    Name to tensor of shape (n, *shape), on the device.
    """
    state = stacked_start(jobs, working.tensors)
    for name in working.changing:
        state[name] = state[name].clone(memory_format=torch.contiguous_format)
    return state | {name: state[first] for name, first in working.tied.items()}


def stacked_start(jobs: Sequence[Job], names: Collection[str]) -> State:
    """Stack tensors of the models that clients start from, as views if all start from the same model.

    Parameters
    ----------
    jobs
        The n clients.
    names
        Names of the tensors to stack.

    Returns
    -------
    Name to tensor of shape (n, *shape).
    """
    states = {id(job.state): job.state for job in jobs}
    if jobs and (own := jobs[0].own):
        mine = {name: torch.stack([job.own[name] for job in jobs]) for name in names if name in own}
        plain = [replace(job, own={}) for job in jobs]
        others = stacked_start(plain, [name for name in names if name not in own])
        return {name: mine[name] if name in own else others[name] for name in names}
    if len(states) == 1:
        (state,) = states.values()
        return {name: state[name].unsqueeze(0).expand(len(jobs), *state[name].shape) for name in names}
    positions = {key: position for position, key in enumerate(states)}
    device = next(iter(jobs[0].state.values())).device
    of_client = torch.tensor([positions[id(job.state)] for job in jobs], device=device)
    return {name: torch.stack([state[name] for state in states.values()])[of_client] for name in names}


def collect(
    working: WorkingModel, work: Work, state: State, losses: Tensor, failed: Mapping[int, str]
) -> CohortUpdate:
    """Assemble a pass's result; find clients that diverged, and reset those that failed to their start.

    A client diverged if a loss of its steps or a value of its model is not finite, or a loss exceeds 2^24
    nats.

    Parameters
    ----------
    working
        The model, which names the tensors that training changes.
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
    # Values are read for the first time here: on a GPU, everything before is only queued.
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
                    state[name][index].copy_(job.whole[name])
    traces = tuple(row[:steps] for row, steps in zip(values, work.batches.steps, strict=True))
    if work.pairs is None:
        return CohortUpdate.of(work.jobs, state, traces, reasons)
    own = {name: stacked[1::2] for name, stacked in state.items()}
    shared = {name: stacked[::2] for name, stacked in state.items()}
    shares = () if work.shares is None else tuple(work.shares.tolist())
    return replace(CohortUpdate.of(work.jobs[::2], shared, traces[::2], reasons), own=own, shares=shares)


def untrained(jobs: Sequence[Job], reason: str) -> CohortUpdate:
    """Return the result of clients that could not start, all for the same reason."""
    failed = {job.client: reason for job in jobs}
    return CohortUpdate.of(jobs, stacked_start(jobs, jobs[0].whole), (np.zeros(0),) * len(jobs), failed)


def _finite_models(tensors: Sequence[Tensor], clients: int) -> BoolArray:
    finite = np.ones(clients, dtype=bool)
    flat = [stacked.reshape(clients, -1) for stacked in tensors if stacked.is_floating_point()]
    if flat:
        # A finite sum has finite terms only; a non-finite sum may be a mere overflow, so check its terms.
        sums = torch.stack([rows.sum(1, dtype=torch.float32) for rows in flat])
        for client in np.flatnonzero(~sums.isfinite().all(dim=0).cpu().numpy()).tolist():
            finite[client] = all(bool(rows[client].isfinite().all()) for rows in flat)
    return finite


class ModelMean:
    """Mean of client models over any number of passes, weighted by their training examples, or plain.

    Sums are in float64, so the result hardly depends on how a cohort is divided over passes and nodes. For
    whole numbers, such as BatchNorm's counter, the maximum is used: a mean of means would differ from the
    mean.

    Parameters
    ----------
    equal
        Whether every client has the same weight.

    Attributes
    ----------
    weight
        Weight of the clients added so far, without those that failed: their training examples, or their
        number if `equal`.
    """

    def __init__(self, *, equal: bool = False) -> None:
        self.weight = 0
        self._equal = equal
        self._totals: State = {}

    def add(self, update: CohortUpdate, clients: Collection[int] | None = None) -> None:
        """Add the clients of a pass that did not fail; only `clients` of them if given."""
        wanted = set(update.clients.tolist() if clients is None else clients) - update.failed.keys()
        chosen = np.array([client in wanted for client in update.clients.tolist()])
        if not chosen.any():
            return
        counts = np.ones(chosen.sum()) if self._equal else update.num_examples[chosen].astype(np.float64)
        self.weight += int(counts.sum())
        taken = None if chosen.all() else torch.from_numpy(chosen)
        for name, stacked in update.state.items():
            # A failed client's model may be non-finite, and 0 * inf is not 0.
            counted = stacked if taken is None else stacked[taken.to(stacked.device)]
            before = self._totals.get(name)
            if counted.is_floating_point():
                total = _weighted_sum(counted, torch.from_numpy(counts).to(counted.device))
                self._totals[name] = total if before is None else before + total
            else:  # through int64: PyTorch has no maximum of some types along an axis
                largest = counted.to(torch.int64).amax(0).to(counted.dtype)
                self._totals[name] = largest if before is None else torch.maximum(before, largest)

    def state(self) -> State:
        """Compute the mean of the clients added so far, at least one.

        Returns
        -------
        One model, on the CPU; floating-point tensors in float64: the mean may become part of another mean,
        which then hardly depends on how the clients were divided.
        """
        return {
            name: (total / self.weight if total.is_floating_point() else total).cpu()
            for name, total in self._totals.items()
        }


def _weighted_sum(stacked: Tensor, weights: Tensor) -> Tensor:
    if stacked.stride(0) == 0:  # a frozen parameter that all clients share
        return weights.sum() * stacked[0].double()
    flat = stacked.reshape(len(stacked), -1)
    total = torch.zeros(flat.shape[1], dtype=torch.float64, device=flat.device)
    block = max(1, _BLOCK // max(1, flat.shape[1]))
    for part, part_weights in zip(flat.split(block), weights.split(block), strict=True):
        total += part_weights @ part.double()
    return total.reshape(stacked.shape[1:])


def update_norms(state: State, start: State, positions: Sequence[int]) -> list[float]:
    """Compute the length of the updates of clients of a pass, over all floating-point tensors.

    Parameters
    ----------
    state
        Trained models, stacked, name to tensor of shape (n, *shape).
    start
        The model that they started from, on any device.
    positions
        Rows of the clients, at least one.

    Returns
    -------
    Euclidean length of each update, in the order of `positions`; infinite where float32 cannot hold its
    square.
    """
    # A frozen parameter that all clients share does not change.
    moving = {name: t for name, t in state.items() if t.is_floating_point() and t.stride(0)}
    if not moving:
        return [0.0] * len(positions)
    first, end = positions[0], positions[0] + len(positions)
    # Consecutive rows are a view; others are copied.
    rows = slice(first, end) if list(positions) == [*range(first, end)] else list(positions)
    squares = torch.zeros(())
    for name, stacked in moving.items():
        flat, before = stacked.reshape(len(stacked), -1)[rows], start[name].to(stacked.device).reshape(-1)
        block = max(1, (_BLOCK if stacked.is_cuda else _CACHED) // max(1, flat.shape[1]))
        changes = (part - before for part in flat.split(block))
        squares = squares + torch.cat([torch.linalg.vecdot(change, change) for change in changes])
    lengths: list[float] = squares.sqrt().cpu().tolist()
    return lengths


def clip_updates(
    update: CohortUpdate, starts: Mapping[int, State], trained: Collection[str], clip: float
) -> tuple[CohortUpdate, BoolArray]:
    """Shorten each client's update to at most `clip`; remove all other information about the client.

    A client whose training failed has an update of zero and is no longer listed as failed, so that a failure
    reveals nothing. Buffers, and all else that training does not change, are reset to what the client was
    sent.

    Parameters
    ----------
    update
        A pass of n clients.
    starts
        The model that each client started from, by client id; the same object if it is the same one.
    trained
        Names of the parameters that training changes; their update is one vector.
    clip
        Largest length of an update, > 0.

    Returns
    -------
    clipped
        The pass with clipped models, losses of 0 and one example each. Rounded to the model's types, no
        update is longer than `clip`.
    within
        Whether each client's update was within the limit before, shape (n,).

    Raises
    ------
    ValueError
        If `clip` is so small that rounding the model could change as much.
    """
    state = {name: torch.empty_like(tensor) for name, tensor in update.state.items()}
    within = np.ones(len(update.clients), dtype=bool)
    misfits = {
        client: reason for client, reason in update.failed.items() if starts[client].keys() != state.keys()
    }
    groups: dict[int, list[int]] = {}
    for position, client in enumerate(update.clients.tolist()):
        if client not in misfits:
            groups.setdefault(id(starts[client]), []).append(position)
    for positions in groups.values():
        start = starts[int(update.clients[positions[0]])]
        limit = clip - _rounding(start, trained, clip)
        if limit <= 0:
            raise ValueError(f"clip must be larger than the rounding of the model, got {clip}")
        rows = torch.tensor(positions)
        squares = torch.zeros(len(positions), dtype=torch.float64)
        for name in trained:
            for part, change, at in _changes(update.state[name], rows, start[name]):
                squares[at] += change.reshape(len(part), -1).square().sum(1).cpu()
        lengths = squares.sqrt()
        factors = limit / lengths.clamp(min=limit)
        within[positions] = (lengths <= limit).numpy()
        for name, clipped in state.items():
            sent = start[name].to(clipped.device)
            clipped[rows.to(clipped.device)] = sent
            if name in trained:
                for part, change, at in _changes(update.state[name], rows, start[name]):
                    factor = factors[at].to(part.device).view(-1, *[1] * (part.dim() - 1))
                    ended = (sent.double() + change * factor).to(part.dtype)
                    # A short update stays the same, to the bit.
                    clipped[rows[at].to(part.device)] = torch.where(factor == 1, part, ended)
    losses, ones = (np.zeros(1),) * len(update.clients), np.ones_like(update.num_examples)
    return CohortUpdate(update.clients, state, losses, ones, misfits), within


def _rounding(start: State, trained: Collection[str], clip: float) -> float:
    """Compute an upper bound of the length that rounding to the model's types can add to an update."""
    tensors = [start[name] for name in trained]
    return sum(0.5 * torch.finfo(t.dtype).eps * (float(t.double().norm()) + clip) for t in tensors)


def _changes(stacked: Tensor, rows: Tensor, start: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield clients' values, changes in float64 and positions in `rows`, in parts that fit into memory."""
    size = max(1, _BLOCK // max(1, stacked[0].numel()))
    for at in torch.arange(len(rows)).split(size):
        part = stacked[rows[at].to(stacked.device)]
        yield part, part.double() - start.to(part.device, torch.float64), at
