"""What goes into local training and what comes out of it: updates, their mean, their lengths, and clipping.

Clipping: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018, Algorithm 1 (FlatClip): Δ · min(1, C/‖Δ‖), over all trained parameters as one vector.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedclust.typing import BoolArray, FloatArray, IntArray, State

# Elements that are float64 at a time: 32 MB.
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
        Model to start from or to evaluate. Jobs that share a cluster model share this very object, which
        lets it be moved and stacked once.
    steps
        Steps to train for; None for those of the hyperparameters.
    shift
        Added to the logits in evaluation, shape (C,); None adds nothing.
    """

    client: int
    rows: IntArray
    state: State
    steps: int | None = None
    shift: FloatArray | None = None


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
    """

    clients: IntArray
    state: State
    losses: tuple[FloatArray, ...]
    num_examples: IntArray
    failed: dict[int, str]


class ModelMean:
    """Mean of client models over any number of passes, weighted by their training examples, or plain.

    Sums are in float64, so the result hardly depends on the passes and nodes that a cohort is divided over.
    Of whole numbers, such as BatchNorm's counter, the largest is taken instead: a mean of means would differ
    from the mean.

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
        self._sums: dict[str, torch.Tensor] = {}
        self._largest: dict[str, torch.Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, update: CohortUpdate, clients: Collection[int] | None = None) -> None:
        """Add the clients of a pass that did not fail; only `clients` of them if given."""
        chosen = np.array(
            [
                client not in update.failed and (clients is None or client in clients)
                for client in update.clients.tolist()
            ]
        )
        if not chosen.any():
            return
        counts = np.where(chosen, 1 if self._equal else update.num_examples, 0)
        self.weight += int(counts.sum())
        taken = None if chosen.all() else torch.from_numpy(chosen)
        weights = torch.from_numpy(counts[chosen].astype(np.float64))
        for name, stacked in update.state.items():
            self._dtypes[name] = stacked.dtype
            if not stacked.is_floating_point():
                # Through int64: PyTorch has no maximum of some types along an axis.
                largest = _rows(stacked, taken).to(torch.int64).amax(0).to(stacked.dtype)
                seen = self._largest.get(name)
                self._largest[name] = largest if seen is None else torch.maximum(seen, largest)
                continue
            total = _weighted_sum(stacked, taken, weights)
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def state(self, *, exact: bool = False) -> State:
        """Compute the mean.

        Parameters
        ----------
        exact
            Whether to keep the mean in float64: for a mean that becomes part of another mean, which then
            hardly depends on how the clients were divided.

        Returns
        -------
        One model, on the CPU, in the dtypes of what was added; floating-point ones in float64 if `exact`.

        Raises
        ------
        ValueError
            If no client was added.
        """
        if self.weight == 0:
            raise ValueError("a mean needs at least one client that trained, got none")
        mean = {}
        for name, dtype in self._dtypes.items():  # in the model's order
            if name in self._largest:
                mean[name] = self._largest[name].cpu()
            else:
                value = self._sums[name] / self.weight
                mean[name] = (value if exact else value.to(dtype)).cpu()
        return mean


def _rows(stacked: torch.Tensor, taken: torch.Tensor | None) -> torch.Tensor:
    return stacked if taken is None else stacked[taken.to(stacked.device)]


def _weighted_sum(stacked: torch.Tensor, taken: torch.Tensor | None, weights: torch.Tensor) -> torch.Tensor:
    stacked = _rows(stacked, taken)  # a failed client's model may be non-finite, and 0 * inf is not 0
    weights = weights.to(stacked.device)
    if stacked.stride(0) == 0:  # a frozen parameter that all clients share
        return weights.sum() * stacked[0].double()
    flat = stacked.reshape(len(stacked), -1)
    total = torch.zeros(flat.shape[1], dtype=torch.float64, device=flat.device)
    block = max(1, _BLOCK // max(1, flat.shape[1]))
    for some, some_weights in zip(flat.split(block), weights.split(block), strict=True):
        total += some_weights @ some.double()
    return total.reshape(stacked.shape[1:])


def update_norms(state: State, start: State, positions: Sequence[int] | None = None) -> list[float]:
    """Compute how far clients of a pass have moved, over all floating-point tensors.

    Parameters
    ----------
    state
        Trained models, stacked, name to tensor of shape (n, *shape).
    start
        The model that they started from, on any device.
    positions
        Rows of the clients; all by default.

    Returns
    -------
    Euclidean length of each update, in the order of `positions`; infinite where float32 cannot hold its
    square.
    """
    # A frozen parameter that all clients share moves nobody.
    moving = {name: t for name, t in state.items() if t.is_floating_point() and t.stride(0)}
    number = len(next(iter(state.values()))) if state and positions is None else len(positions or ())
    chosen = list(range(number)) if positions is None else list(positions)
    if not moving or not number:
        return [0.0] * number
    in_a_row = chosen == list(range(chosen[0], chosen[0] + number))  # a view; others are copied
    rows: slice | list[int] = slice(chosen[0], chosen[0] + number) if in_a_row else chosen
    squares = torch.zeros(())
    for name, stacked in moving.items():
        flat, before = stacked.reshape(len(stacked), -1)[rows], start[name].to(stacked.device).reshape(-1)
        block = max(1, (_BLOCK if stacked.is_cuda else _CACHED) // max(1, flat.shape[1]))
        changes = (some - before for some in flat.split(block))
        lengths = [torch.linalg.vecdot(change, change) for change in changes]
        square: torch.Tensor = lengths[0] if len(lengths) == 1 else torch.cat(lengths)
        squares = squares + square
    found: list[float] = squares.sqrt().cpu().tolist()
    return found


def clip_updates(
    update: CohortUpdate, starts: Mapping[int, State], trained: Collection[str], clip: float
) -> tuple[CohortUpdate, BoolArray]:
    """Shorten each client's update to at most `clip`; remove everything else that says something of it.

    A client whose training failed has an update of zero and is no longer listed as failed, so that a failure
    says nothing. Buffers, and all that training does not change, become what the client was sent.

    Parameters
    ----------
    update
        A pass of n clients.
    starts
        The model that each client started from, by client id; the same object if it is the same one.
    trained
        Names of the parameters that training changes; their update is one vector.
    clip
        The most that an update may be long, > 0.

    Returns
    -------
    clipped
        The pass with clipped models, losses of 0 and one example each. Rounded to the model's types, no
        update is longer than `clip`.
    within
        Whether each client's update was short enough before, shape (n,).

    Raises
    ------
    ValueError
        If `clip` is so small that rounding the model could change as much.
    """
    state = {name: torch.empty_like(tensor) for name, tensor in update.state.items()}
    within = np.ones(len(update.clients), dtype=bool)
    groups: dict[int, list[int]] = {}
    misfits = {
        client: reason for client, reason in update.failed.items() if starts[client].keys() != state.keys()
    }
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
            for some, at in _blocks(update.state[name], rows):
                squares[at] += _change(some, start[name]).reshape(len(some), -1).square().sum(1).cpu()
        lengths = squares.sqrt()
        factors = (limit / lengths.clamp(min=limit)).double()
        within[positions] = (lengths <= limit).numpy()
        for name, clipped in state.items():
            if name not in trained:
                clipped[rows.to(clipped.device)] = start[name].to(clipped.device)
                continue
            for some, at in _blocks(update.state[name], rows):
                shape = (-1, *[1] * (some.dim() - 1))
                shorter = _change(some, start[name]) * factors[at].to(some.device).view(shape)
                ended = (start[name].to(some.device, torch.float64) + shorter).to(some.dtype)
                whole = (
                    (factors[at] == 1).to(some.device).view(shape)
                )  # a short one stays as it is, to the bit
                clipped[rows[at].to(some.device)] = torch.where(whole, some, ended)
    return replace(
        update,
        state=state,
        losses=(np.zeros(1),) * len(update.clients),
        num_examples=np.ones_like(update.num_examples),
        failed=misfits,
    ), within


def _rounding(start: State, trained: Collection[str], clip: float) -> float:
    """Bound by how much rounding to the model's types can lengthen an update."""
    return sum(
        0.5 * torch.finfo(start[name].dtype).eps * (float(start[name].double().norm()) + clip)
        for name in trained
    )


def _blocks(stacked: torch.Tensor, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Split the clients in parts whose float64 fits into memory: their values and places in `rows`."""
    size = max(1, _BLOCK // max(1, stacked[0].numel()))
    places = torch.arange(len(rows)).split(size)
    return [(stacked[rows[some].to(stacked.device)], some) for some in places]


def _change(some: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return some.double() - start.to(some.device, torch.float64)
