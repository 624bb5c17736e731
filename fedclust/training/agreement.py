"""Check that training clients together gives what training them one by one gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from fedclust.training.batches import Batches
from fedclust.training.cohort import CohortUpdate
from fedclust.training.work import Work
from fedclust.typing import FloatArray

Train = Callable[[Work], CohortUpdate]

# Clients that are tried, one after another, until one can be trained.
_CLIENTS = 3
# Largest difference that what fills a short batch may make, in errors of rounding.
_FILLING = 32.0
# Training may make rounding grow: by this share of a loss's change since the first step.
_GROWN = 0.05


def agree(alone: Train, together: Train, work: Work, tolerance: float, rounding: float = 2.0**-20) -> bool:
    """Compare two ways of training on a client and on the same client with half of each batch.

    If a model mixes the examples of a batch by means other than BatchNorm, the padding of short batches
    changes its results. So the half batches are padded in two ways, whose losses must be equal up to the
    rounding of one kernel, however much the two ways of training differ.

    Two correct ways differ by rounding, and a step may make that difference grow: after one step of a
    ResNet-18 at a large learning rate, losses of 15.7149 and 15.7493, from 3.1138, count as the same. A wrong
    way differs already before the first step, or by a good part of what the step changes.

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
        if not _close(filled[1], filled[2], _FILLING * rounding):
            raise ArithmeticError(
                f"losses are {filled[1].tolist()} or {filled[2].tolist()}, depending on how short batches "
                "are padded: the model mixes the examples of a batch"
            )
        for joint, single in zip(other, one, strict=True):
            if not _close(single, joint, tolerance):
                raise ArithmeticError(
                    f"losses are {joint.tolist()} together and {single.tolist()} alone, "
                    "apart by more than rounding explains"
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


def _close(one: FloatArray, other: FloatArray, tolerance: float) -> bool:
    """Compare the losses of two steps, each shape (steps,)."""
    allowed = tolerance * (1 + np.abs(one)) + _GROWN * np.abs(one - one[0])
    return bool((np.abs(one - other) <= allowed).all())
