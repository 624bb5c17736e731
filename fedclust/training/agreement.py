"""Check that training clients together gives what training them one by one gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from fedclust.training.batches import Batches
from fedclust.training.cohort import CohortUpdate
from fedclust.training.work import Work
from fedclust.typing import FloatArray

__all__ = ["agree"]

Train = Callable[[Work], CohortUpdate]

# Clients that are tried, one after another, until one can be trained.
_CLIENTS = 3
# How often the growth of rounding is measured, by how many times the largest of these two ways may differ,
# and in which steps coarser rounding is tried. The growth has a long tail: it depends on whether a ReLU's
# input near 0 changes its sign.
_PERTURBATIONS = 5
_FURTHER = 10.0
_COARSER = 8.0


def agree(alone: Train, together: Train, work: Work, tolerance: float, rounding: float = 2.0**-20) -> bool:
    """Compare two ways of training on a client and on the same client with half of each batch.

    If a model mixes the examples of a batch by means other than BatchNorm, the padding of short batches
    changes its results. So the half batches are padded in two ways, whose losses must be equal up to the
    rounding of one kernel, however much the two ways of training differ.

    Two correct ways differ by rounding, and training may make that difference grow: after one step of a
    ResNet-18 at a large learning rate, losses of 15.7149 and 15.7493 count as the same. So where losses
    differ by more than `tolerance`, the client is also trained alone from weights changed by as much as
    rounding, and the two ways may differ by a multiple of the effect, step by step. A wrong way differs
    already at steps where nothing has grown.

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
    for client in range(min(_CLIENTS, len(work.jobs))):
        three = _half_batches(work, client)
        pair = three.part(0, 2)
        expected = alone(pair)
        if expected.failed:
            continue
        one, filled = np.stack(expected.losses), np.stack(together(three).losses)
        other = filled[:2]
        if not np.array_equal(filled[1], filled[2]):
            _check_filling(filled[1], filled[2], _growth(alone, pair, one, 0.0, rounding, rounding), rounding)
        if np.allclose(one, other, rtol=tolerance, atol=tolerance):
            return True
        allowed = tolerance * (1 + np.abs(other)) + _FURTHER * _growth(
            alone, pair, one, np.abs(one - other)[:, 0].max(), rounding, tolerance
        )
        for row in np.flatnonzero(~(np.abs(one - other) <= allowed).all(axis=1)):
            raise ArithmeticError(
                f"losses are {other[row].tolist()} together and {one[row].tolist()} alone, "
                f"apart by more than rounding explains, {allowed[row].max():.2g}"
            )
        return True
    return False


def _half_batches(work: Work, client: int) -> Work:
    """Return two steps of a client, and the same with half of each batch, padded in two ways."""
    three = work.select([client] * 3).part(0, 3, steps=2)
    rows, whole = three.batches.rows.copy(), three.batches.sizes
    sizes = whole.copy()
    sizes[1:] = (sizes[1:] + 1) // 2
    for step, (size, full) in enumerate(zip(sizes[1], whole[1], strict=True)):
        rows[1, step, size:] = rows[1, step, 0]
        rows[2, step, full:] = rows[2, step, full - 1]
    return dataclasses.replace(three, batches=Batches(rows, sizes, three.batches.steps))


def _check_filling(one: FloatArray, other: FloatArray, growth: FloatArray, rounding: float) -> None:
    """Refuse losses, of shape (steps,), that depend on what short batches are padded with."""
    allowed = _FURTHER * (rounding * (1 + np.abs(one)) + growth)
    if not (np.abs(one - other) <= allowed).all():
        raise ArithmeticError(
            f"losses are {one.tolist()} or {other.tolist()}, depending on how short batches are padded: "
            "the model mixes the examples of a batch"
        )


def _growth(
    alone: Train, pair: Work, losses: FloatArray, first: float, rounding: float, most: float
) -> FloatArray:
    """Measure how much rounding changes the losses of training alone.

    Parameters
    ----------
    alone
        Trains clients one by one.
    pair
        The clients it trains.
    losses
        Their losses, shape (clients, steps).
    first
        Difference of the other way's losses before the first step. That way may round more coarsely, as
        BatchNorm over a padded batch does: the change to the weights is made larger until it changes the
        first losses as much.
    rounding, most
        Relative size of the first and of the largest change to the weights.

    Returns
    -------
    Largest change in nats before each step, shape (steps,); that of the first step at `rounding`.
    """
    draws = torch.Generator().manual_seed(0)
    scale, grown = rounding, _changes(alone, pair, losses, rounding, draws)
    before = grown[0]
    while grown[0] < first and scale * _COARSER <= most:
        scale *= _COARSER
        grown = np.maximum(grown, _changes(alone, pair, losses, scale, draws))
    return np.append(before, grown[1:])


def _changes(
    alone: Train, pair: Work, losses: FloatArray, scale: float, draws: torch.Generator
) -> FloatArray:
    changes = np.zeros(losses.shape[1])
    for _ in range(_PERTURBATIONS):
        state = {
            name: tensor * (1 + scale * torch.randn(tensor.shape, generator=draws).to(tensor))
            if tensor.is_floating_point()
            else tensor
            for name, tensor in pair.jobs[0].state.items()
        }
        jobs = [dataclasses.replace(job, state=state) for job in pair.jobs]
        change = np.abs(np.stack(alone(dataclasses.replace(pair, jobs=jobs)).losses) - losses)
        # After an overflow the loss may be anything.
        changes = np.maximum(changes, np.where(np.isfinite(change), change, np.inf).max(axis=0))
    return changes
