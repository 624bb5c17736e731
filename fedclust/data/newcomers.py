"""Clients that are left out of training, to be placed after it."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from fedclust.data.federated import FederatedData
from fedclust.settings.options import check_held_out
from fedclust.support.rng import generator
from fedclust.typing import IntArray

__all__ = ["newcomers_last", "num_held_out", "training_first"]

_Part = TypeVar("_Part")


def num_held_out(num_clients: int, held_out: float) -> int:
    """Compute how many of a federation's clients are left out.

    Parameters
    ----------
    num_clients
        Number of clients, those left out included.
    held_out
        A share in (0, 1), of which the nearest number is taken but at least one; or a number.

    Raises
    ------
    ValueError
        As for :func:`check_held_out`, or if no client would be left to train.
    """
    check_held_out(held_out)
    number = max(1, round(held_out * num_clients)) if 0 < held_out < 1 else int(held_out)
    if number >= num_clients:
        raise ValueError(
            f"holdout_clients must leave a client to train, got {held_out!r} for {num_clients} clients"
        )
    return number


def training_first(num_clients: int, held_out: float, seed: int) -> IntArray:
    """Draw who is left out, and number clients so that those come last.

    Parameters
    ----------
    num_clients, held_out
        As for :func:`num_held_out`.
    seed
        The run's seed.

    Returns
    -------
    The partition's number of each client: first those that train, then those that are left out, both in the
    partition's order; shape (K,).
    """
    number = num_held_out(num_clients, held_out)
    drawn = generator(seed, "newcomers").permutation(num_clients)[:number]
    return np.concatenate([np.setdiff1d(np.arange(num_clients), drawn), np.sort(drawn)])


def newcomers_last(data: FederatedData, held_out: float, seed: int) -> FederatedData:
    """Renumber clients so that those that are left out come last; without any, nothing changes.

    The numbers of the inputs' mean and standard deviation stay those of all clients' training rows.

    Parameters
    ----------
    data
        The clients.
    held_out, seed
        As for :func:`training_first`.
    """
    if not held_out:
        return data
    order = training_first(data.num_clients, held_out, seed)

    def renumbered(parts: Sequence[_Part]) -> tuple[_Part, ...]:
        return tuple(parts[client] for client in order.tolist())

    return dataclasses.replace(
        data,
        train=renumbered(data.train),
        test=renumbered(data.test),
        validation=renumbered(data.validation) if data.validation else (),
        groups=None if data.groups is None else data.groups[order],
        client_names=None if data.client_names is None else renumbered(data.client_names),
        fingerprint=f"{data.fingerprint}-{held_out!r}-{seed}",
    )
