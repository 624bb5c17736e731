"""Which examples each client sees at each step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.support.rng import generator
from fedclust.training.parameters import LocalTraining
from fedclust.typing import IntArray


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of n clients for all their steps, padded to one shape.

    Attributes
    ----------
    rows
        Rows of the dataset, shape (n, S, B). A short batch is filled with its own first row, so padding
        never mixes one client's data into another's. Steps a client does not take are 0.
    sizes
        Real rows of each batch, shape (n, S); 0 for steps a client does not take.
    steps
        Steps of each client, shape (n,).
    """

    rows: IntArray
    sizes: IntArray
    steps: IntArray


def num_steps(examples: IntArray, training: LocalTraining) -> IntArray:
    """Count the steps of clients that have `examples` examples each (>= 1), shape (n,)."""
    if training.epochs is None:
        return np.full(len(examples), training.steps)
    return -(-np.asarray(examples) // training.batch_size) * training.epochs


def total_seen(examples: IntArray, training: LocalTraining) -> int:
    """Count the samples that clients with so many examples see in a round, all together.

    A sample that is seen twice counts twice. Clients without examples see none.
    """
    held = np.asarray(examples)[np.asarray(examples) > 0]
    epochs, rest = np.divmod(num_steps(held, training), -(-held // training.batch_size))
    # An epoch's last batch may be short; those of an epoch that is cut off are whole but for that one.
    return int((epochs * held + np.minimum(rest * training.batch_size, held)).sum())


def steps_to_see(samples: int, examples: int, training: LocalTraining) -> int:
    """Count the steps after which one client with so many examples has seen so many samples.

    Parameters
    ----------
    samples
        Samples to see, >= 1, over several epochs where there are more than `examples`.
    examples
        The client's examples, >= 1.
    training
        Gives the batch size.

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
) -> Batches:
    """Draw the batches of a cohort's clients.

    Every epoch is a permutation of the client's rows cut into consecutive slices, the last one possibly
    shorter; where the number of steps is given, epochs go on until it is reached. The permutations of a
    client come one after another from ``generator(seed, "batches", server_round, client)``, so they do not
    depend on which other clients are in the cohort.

    Parameters
    ----------
    clients
        Client ids, shape (n,).
    rows
        Rows each of them trains on, at least one each.
    training
        Gives batch size and number of epochs or steps.
    seed
        The run's seed.
    server_round
        The round, from 1.
    own_steps
        Steps of each client that has a number of its own, None for each other one; empty where none has.

    Returns
    -------
    The batches, clients in the given order.

    Raises
    ------
    ValueError
        If a client has no rows.
    """
    examples = np.array([len(some) for some in rows], dtype=np.int64)
    if not examples.all():
        raise ValueError(f"rows must not be empty, got none for client {clients[int(examples.argmin())]}")
    steps = num_steps(examples, training)
    for index, own in enumerate(own_steps):
        steps[index] = steps[index] if own is None else own
    width = min(training.batch_size, int(examples.max(initial=0)))
    padded = np.zeros((len(rows), int(steps.max(initial=0)), width), dtype=np.int64)
    sizes = np.zeros(padded.shape[:2], dtype=np.int64)
    # Clients with equally many examples and steps are cut up together; only the draws are one by one.
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
