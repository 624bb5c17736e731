"""Choose the rows that each client is tested on, and those that are held out for the proof.

Three protocols, as `partition.test` names them:

- ``holdout``: the dataset's official training and test parts are pooled and partitioned; a share of each
  client's rows is held out, stratified by class. Clust-PSI-PFL holds out 20 % of datasets without an official
  test part (Section IV-A (d)).
- ``matched``: the official training part is partitioned; the official test part is dealt so that each client
  is tested on its own classes in the proportions that it trains on. FedGWC ("500 training and 100 test
  images" per client, Appendix F) does so in its released partitions. Clust-PSI-PFL uses "official test sets
  when available" but does not specify how it deals them; its clients of one class (S = 0) have accuracies
  within 0.01 of 1 on average (Table IV), so they cannot have been tested on all classes.
- ``uniform``: the official training part is partitioned; every client gets an equal share of the official
  test part, with the same class mix. So one model's accuracy, averaged over the clients, is its accuracy on
  the official test part, as papers with one global model publish it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from fedclust.data.partitioners.base import NOBODY, deal
from fedclust.support.checks import check_choice, check_fraction
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, FloatArray, IntArray

Test = Literal["holdout", "matched", "uniform"]

_FEWEST = 2  # with one row there is no variance, and a client with one does not vote


@dataclass(frozen=True)
class Protocol:
    """The keys that every ``partition`` node has; all other keys are settings of its partitioner.

    Attributes
    ----------
    test
        How test rows are chosen; see the module.
    test_fraction
        Share of a client's rows that ``holdout`` holds out, in (0, 1).
    validation_fraction
        Share of a client's training rows that :func:`hold_out` holds out for the proof, in [0, 1).
        ``"auto"``, for which a run's settings put a number, is none.
    file
        A saved partition to use instead of all other keys, or None.
    seed
        Seed of the partition; None uses the run's.

    Raises
    ------
    ValueError
        If `test` is no protocol, or a share is out of range.
    """

    test: Test = "holdout"
    test_fraction: float = 0.2
    validation_fraction: float | Literal["auto"] = 0.0
    file: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_choice("partition.test", self.test, get_args(Test))
        fraction_of(self.validation_fraction)

    @classmethod
    def of(cls, partition: Mapping[str, Any]) -> "Protocol":
        """Take its keys from a resolved ``partition`` node."""
        own = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in partition.items() if key in own})


def fraction_of(validation_fraction: float | Literal["auto"]) -> float:
    """Return the share of rows to hold out that a ``partition`` node asks for; 0 for ``"auto"``.

    Raises
    ------
    ValueError
        If it is not in [0, 1).
    """
    fraction = 0.0 if validation_fraction == "auto" else validation_fraction
    try:
        check_fraction(fraction)
    except ValueError as error:
        raise ValueError(f"partition.{error}") from error
    return fraction


def holdout(clients: IntArray, labels: IntArray, fraction: float, draws: np.random.Generator) -> BoolArray:
    """Hold out a share of each client's rows, stratified by class as closely as whole rows allow.

    Parameters
    ----------
    clients
        Client of each row, shape (N,); -1 for a row that no client holds.
    labels
        Class of each row, shape (N,).
    fraction
        Share to hold out, in (0, 1). Of a client's n rows, round(fraction·n) are held out, but at least 1 and
        at most n − 1; class quotas are rounded by largest remainders.
    draws
        Random generator for rows and for ties between classes.

    Returns
    -------
    Whether each row is held out, shape (N,).

    Raises
    ------
    ValueError
        If `fraction` is not in (0, 1) or a client has a single row.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction must be in (0, 1), got {fraction}")
    rows = np.flatnonzero(clients != NOBODY)
    sizes = np.bincount(clients[rows])
    if (single := np.flatnonzero(sizes == 1)).size:
        raise ValueError(
            f"every client must have at least 2 rows, one to train on and one to be tested on, got 1 for "
            f"{single.size} of {len(sizes)} clients, the first is client {single[0]}"
        )
    order = rows[np.lexsort((draws.random(len(rows)), labels[rows], clients[rows]))]
    # A cell is the rows of one class on one client; rows are now sorted by cell, at random within.
    starts = np.flatnonzero(_changes(clients[order]) | _changes(labels[order]))
    cell_sizes = np.diff(starts, append=len(order))
    owner = clients[order[starts]]

    quotas = fraction * cell_sizes
    taken = np.floor(quotas + 1e-9).astype(np.int64)  # guards whole quotas against rounding error
    wanted = np.clip(np.round(fraction * sizes), 1, sizes - 1)
    missing = wanted - _sum(taken, owner, len(sizes))
    # Owners stay in ascending order, so a rank in this order is the rank among the owner's cells.
    by_remainder = np.lexsort((draws.random(len(owner)), taken - quotas, owner))
    taken[by_remainder] += _rank(_changes(owner)) < missing[owner]

    held_out = np.zeros(len(clients), dtype=bool)
    held_out[order[_rank_within(starts, len(order)) < np.repeat(taken, cell_sizes)]] = True
    return held_out


def matched(clients: IntArray, labels: IntArray, draws: np.random.Generator) -> IntArray:
    """Deal the official test part so that each client's test classes match its training classes.

    A client's quota of class c is its share of the training rows of class c, times the test rows of class c.
    Quotas are rounded up or down so that each client's total is its rounded total quota, as far as the rows
    of its classes suffice. Test rows that belong to no client's quota are left out.

    Parameters
    ----------
    clients
        Client of each row of the official training part, shape (T,); -1 for a row that no client holds.
    labels
        Class of each row of the dataset, shape (N,); rows T … N−1 are the official test part.
    draws
        Random generator for rows and for ties between cells.

    Returns
    -------
    Client of each row of the official test part, shape (N − T,); -1 for a row that no client holds.

    Raises
    ------
    ValueError
        If a client would get no test row.
    """
    size = len(clients)
    num_classes = int(labels.max()) + 1
    train_sizes = np.bincount(labels[:size], minlength=num_classes)
    stock = np.bincount(labels[size:], minlength=num_classes)

    rows = np.flatnonzero(clients != NOBODY)
    num_clients = int(clients.max()) + 1
    cells, held = np.unique(clients[rows] * num_classes + labels[rows], return_counts=True)
    owner, label = np.divmod(cells, num_classes)
    quotas = held * stock[label] / train_sizes[label]
    taken = np.floor(quotas + 1e-9).astype(np.int64)  # guards whole quotas against rounding error
    due = np.round(np.bincount(owner, weights=quotas, minlength=num_clients)).astype(np.int64)
    for at_most in (np.ones_like(due), due):  # clients that would get no row come first
        missing = np.maximum(at_most - _sum(taken, owner, num_clients), 0)
        left = stock - _sum(taken, label, num_classes)
        broken = np.flatnonzero(quotas - taken > 1e-9)
        # Ties are broken at random; with ties, the linear program takes several times as long.
        gain = 1 + quotas[broken] - taken[broken] + 1e-3 * draws.random(len(broken))
        taken[broken] += _round_up(owner[broken], label[broken], gain, missing, left)
    got = _sum(taken, owner, num_clients)
    if (got == 0).any():
        client = int(np.argmin(got))
        raise ValueError(
            f"every client must get a row of the official test part, which has {len(labels) - size}, got "
            f"none for {int((got == 0).sum())} of {num_clients} clients, the first is client {client} with "
            f"{int(held[owner == client].sum())} training rows; ask for fewer clients or test=holdout"
        )
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    counts[owner, label] = taken
    return deal(labels[size:], counts, draws)


def uniform(labels: IntArray, num_clients: int, draws: np.random.Generator) -> IntArray:
    """Deal the official test part evenly, class by class.

    Parameters
    ----------
    labels
        Class of each row of the official test part, shape (M,).
    num_clients
        Number of clients K.
    draws
        Random generator for the rows and the first client.

    Returns
    -------
    Client of each row, shape (M,); clients' totals differ by at most one row, and so do their classes'.

    Raises
    ------
    ValueError
        If there are more clients than rows.
    """
    if num_clients > len(labels):
        raise ValueError(
            f"num_clients must be at most the {len(labels)} rows of the official test part, got {num_clients}"
        )
    clients = np.empty(len(labels), dtype=np.int64)
    by_class = np.lexsort((draws.random(len(labels)), labels))
    clients[by_class] = draws.permutation(num_clients)[np.arange(len(labels)) % num_clients]
    return clients


def hold_out_client(num_rows: int, fraction: float, seed: int, client: int) -> IntArray:
    """Draw which of one client's training rows are held out.

    Parameters
    ----------
    num_rows
        Its training rows n.
    fraction
        Share to hold out, in [0, 1). The client gives round(fraction·n) rows, at most n − 1; a client that
        would give fewer than two gives none, for one row alone can prove nothing.
    seed, client
        What the draw comes from, and nothing else: not the other clients, not the test rows.

    Returns
    -------
    Positions in 0…n − 1, sorted.

    Raises
    ------
    ValueError
        If `fraction` is outside its range.
    """
    check_fraction(fraction)
    count = min(round(fraction * num_rows), num_rows - 1)
    if count < _FEWEST:
        return np.zeros(0, dtype=np.int64)
    return np.sort(generator(seed, "validation", client).permutation(num_rows)[:count])


def hold_out(
    train: Sequence[IntArray], fraction: float, seed: int
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Divide each client's training rows into those that train and those that are held out.

    Parameters
    ----------
    train
        Each client's training rows.
    fraction, seed
        As for :func:`hold_out_client`.

    Returns
    -------
    Rows to train on and rows held out, of each client, in the order they were given in.
    """
    kept, held = [], []
    for client, rows in enumerate(train):
        chosen = hold_out_client(len(rows), fraction, seed, client)
        kept.append(np.delete(rows, chosen))
        held.append(np.asarray(rows)[chosen])
    return tuple(kept), tuple(held)


def _round_up(
    clients: IntArray, labels: IntArray, gain: FloatArray, missing: IntArray, left: IntArray
) -> BoolArray:
    """Choose the cells (n,) that get one more row so that their total gain (n,) is largest.

    No client may get more rows than it lacks (K,), and no class may supply more than it has left (C,). The
    linear program has whole-number solutions because its matrix is that of a bipartite graph.
    """
    if not missing.any() or not len(clients):
        return np.zeros(len(clients), dtype=bool)
    from scipy import sparse
    from scipy.optimize import linprog

    one, cells = np.ones(len(clients)), np.arange(len(clients))
    sums = sparse.vstack(
        [
            sparse.csr_array((one, (clients, cells)), shape=(len(missing), len(cells))),
            sparse.csr_array((one, (labels, cells)), shape=(len(left), len(cells))),
        ]
    )
    limits = np.concatenate([missing, left]).astype(float)
    # The type stubs accept dense matrices only.
    solution = linprog(-gain, A_ub=sums, b_ub=limits, bounds=(0, 1))  # type: ignore[call-overload]
    return np.asarray(solution.x > 0.5)


def _sum(values: IntArray, keys: IntArray, size: int) -> IntArray:
    """Sum whole numbers by key."""
    return np.bincount(keys, weights=values, minlength=size).astype(np.int64)


def _changes(values: IntArray) -> BoolArray:
    """Mark where each run of equal values starts."""
    return np.diff(values, prepend=NOBODY - 1) != 0


def _rank(starts_run: BoolArray) -> IntArray:
    """Count from 0 within each run."""
    return _rank_within(np.flatnonzero(starts_run), len(starts_run))


def _rank_within(starts: IntArray, size: int) -> IntArray:
    """Count from 0 within each run, given the runs' starts."""
    return np.arange(size) - np.repeat(starts, np.diff(starts, append=size))
