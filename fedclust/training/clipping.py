"""Clip what training changed in each client's model, for all clients of a pass together.

Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018, Algorithm 1 (FlatClip): Δ · min(1, C/‖Δ‖), over all trained parameters as one vector.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import torch

from fedclust.training.cohort import CohortUpdate
from fedclust.typing import BoolArray, State

__all__ = ["clip_updates"]

_BLOCK = 1 << 22  # elements that are float64 at a time: 32 MB


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
