"""Groups of clients that share a course over the rounds, up to a constant per client.

The model is x_kt = μ_{t,g(k)} + b_k + ε_kt with b_k ~ N(0, τ²) and ε_kt ~ N(0, σ²), of client k in group g(k)
and round t, for the existing entries. Groups are improved as in K-means: estimate the model, then move each
client to the group that explains it best, without the client itself.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedclust.clustering.loss_traces.initial import starts
from fedclust.clustering.loss_traces.trace import Entries
from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.typing import FloatArray, IntArray

__all__ = ["Cells", "Estimate", "Fit", "cells", "costs", "estimate", "fit", "log_likelihood"]

SHRINKAGE = 1.0
"""λ: a group's value in a round is the mean of its clients and λ more of value 0, the cohort's mean."""

_MOST_ITERATIONS = 20
_PASSES = 3  # of estimating means and constants in turn
_LEAST_SHARE = 0.05  # least share of the degrees of freedom left after fitting the cells' means
_LEAST_NOISE = 1e-12  # least σ² relative to the entries' mean square: groups without noise would divide by 0


class Estimate(NamedTuple):
    """The model's parameters, given the groups.

    Attributes
    ----------
    constants
        b of each client, shape (K,).
    noise
        σ².
    constant_variance
        τ².
    """

    constants: FloatArray
    noise: float
    constant_variance: float


class Cells(NamedTuple):
    """For each entry and group, the group's entries in that round without the client itself.

    Attributes
    ----------
    means
        m = Σ (x_j − b_j) / (count + λ), shape (N, G).
    counts
        Number of such entries, shape (N, G).
    """

    means: FloatArray
    counts: FloatArray


@dataclass(frozen=True, eq=False)
class Fit:
    """The best groups found, for one number of groups.

    Attributes
    ----------
    labels
        Group of each client, numbered in order of first appearance, shape (K,).
    costs
        How badly each group explains each client, see :func:`costs`, shape (K, G).
    estimate
        The model's parameters for these groups.
    log_likelihood
        How well the groups explain all entries, see :func:`log_likelihood`.
    """

    labels: IntArray
    costs: FloatArray
    estimate: Estimate
    log_likelihood: float


def fit(entries: Entries, num_groups: int, seed: int) -> Fit | None:
    """Fit groups to a trace, from several starts.

    From each start, at most 20 times: estimate the model, move every client to the group of least cost. A
    start is abandoned if a group loses its last client.

    Parameters
    ----------
    entries
        The trace.
    num_groups
        G >= 2.
    seed
        Seed >= 0 of the starts.

    Returns
    -------
    The fit with the largest likelihood; None if no start gave one: too few clients or entries, or entries
    that are all the same.
    """
    repeated = len(entries.values) - entries.num_clients  # Σ (T_k − 1)
    if entries.num_clients < num_groups or repeated < 1 or not entries.values.any():
        return None
    best: Fit | None = None
    seen: set[bytes] = set()
    for labels in starts(entries, num_groups, seed):
        found = _improve(entries, labels, num_groups, seen)
        if found is not None and (best is None or found.log_likelihood > best.log_likelihood):
            best = found
    return best


def estimate(entries: Entries, labels: IntArray, num_groups: int) -> Estimate:
    """Estimate constants and variances, given the groups.

    From b = 0, three times: μ_tg is the mean of x − b over the group's entries in round t; d = x − μ, with
    mean d̄_k over client k's T_k entries; σ² = Σ(d − d̄_k)²/Σ(T_k − 1); τ² = max(0, ΣT_k d̄_k² − Kσ²)/N;
    σ² is divided by (N − filled cells − K)/Σ(T_k − 1), at least 0.05, as the means were fitted too;
    b_k = d̄_k · T_k τ²/(σ² + T_k τ²).

    Parameters
    ----------
    entries
        The trace, with Σ(T_k − 1) >= 1.
    labels
        Group of each client, shape (K,).
    num_groups
        G.
    """
    cell = entries.rounds * num_groups + labels[entries.clients]
    in_cell = np.bincount(cell, minlength=entries.num_rounds * num_groups)
    lengths, total = entries.lengths, len(entries.values)
    repeated = total - entries.num_clients
    left = max(_LEAST_SHARE, (repeated - np.count_nonzero(in_cell)) / repeated)
    smallest = _LEAST_NOISE * float(np.square(entries.values).mean())
    filled = np.maximum(in_cell, 1)
    sums = np.bincount(cell, entries.values, len(in_cell))
    ones, values, _ = entries.powers
    everyone = np.arange(entries.num_clients)
    of_client, squares = values.sum(axis=1), float(np.square(entries.values).sum())
    constants, noise, constant_variance = np.zeros(entries.num_clients), 0.0, 0.0
    for _ in range(_PASSES):
        # As in costs, sums over entries are made of sums over clients and over cells.
        mu = (sums - np.bincount(cell, constants[entries.clients], len(in_cell))) / filled
        means = (of_client - (ones @ mu.reshape(-1, num_groups))[everyone, labels]) / lengths
        between = float((lengths * np.square(means)).sum())
        around = squares + float((mu * (in_cell * mu - 2 * sums)).sum())  # Σd²
        noise = max(0.0, around - between) / repeated
        constant_variance = max(0.0, between - entries.num_clients * noise) / total
        noise = max(noise / left, smallest)
        constants = means * lengths * constant_variance / (noise + lengths * constant_variance)
    return Estimate(constants, noise, constant_variance)


def cells(entries: Entries, labels: IntArray, num_groups: int, constants: FloatArray) -> Cells:
    """Compute each group's value in the round of each entry, without the entry's client.

    Parameters
    ----------
    entries
        The trace.
    labels
        Group of each client, shape (K,).
    num_groups
        G.
    constants
        b of each client, shape (K,).
    """
    shape = (entries.num_rounds, num_groups)
    own = labels[entries.clients]
    cell = entries.rounds * num_groups + own
    without = entries.values - constants[entries.clients]
    size = shape[0] * shape[1]
    sums = _of_entries(np.bincount(cell, without, size), shape, entries.rounds)
    counts = _of_entries(np.bincount(cell, minlength=size), shape, entries.rounds)
    each = np.arange(len(own))
    sums[each, own] -= without
    counts[each, own] -= 1
    return Cells(sums / (counts + SHRINKAGE), counts)


def costs(entries: Entries, labels: IntArray, num_groups: int, of: Estimate) -> FloatArray:
    """Compute how badly each group, without the client itself, explains each client.

    With the group's value m and its uncertainty v = 1 + 1/(count + λ) in units of σ², and e = x − m: twice
    the negative log-density of client k's entries, without terms that all groups (nearly) share,
    Σe²/(vσ²) − (τ²/σ²)(Σe/v)²/(σ² + τ²Σ1/v) + Σ ln v. The middle term is what the client's own constant
    explains.

    Parameters
    ----------
    entries
        The trace.
    labels
        Group of each client, shape (K,).
    num_groups
        G.
    of
        The model's parameters.

    Returns
    -------
    Costs, shape (K, G).
    """
    shape = (entries.num_rounds, num_groups)
    own = labels[entries.clients]
    cell = entries.rounds * num_groups + own
    without = entries.values - of.constants[entries.clients]
    sums: FloatArray = np.bincount(cell, without, shape[0] * shape[1]).astype(np.float64)
    counts: FloatArray = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.float64)
    result = _costs_elsewhere(entries, sums.reshape(shape), counts.reshape(shape), of)
    # A client's own group is measured without it, so each of its entries has a value of its own.
    left = counts[cell] - 1 + SHRINKAGE
    v = 1 + 1 / left
    e = entries.values - (sums[cell] - without) / left
    plain = entries.sum_by_client(np.square(e) / (v * of.noise) + np.log(v))
    result[np.arange(len(labels)), labels] = _costs(
        plain, entries.sum_by_client(e / v), entries.sum_by_client(1 / v), of
    )
    return result


def _costs_elsewhere(entries: Entries, sums: FloatArray, counts: FloatArray, of: Estimate) -> FloatArray:
    """Compute the costs of groups that a client is not in, shape (K, G), from sums and counts, shape (T, G).

    All that a group's value m and precision w = 1/v add to a client's sums is in these tables, since
    Σ w(x − m)² = Σ wx² − 2 Σ wmx + Σ wm²: products with sparse matrices instead of a pass over all entries
    for each group.
    """
    left = counts + SHRINKAGE
    means, precision = sums / left, 1 / (1 + 1 / left)
    ones, values, squares = entries.powers
    groups = counts.shape[1]
    weighted = precision * means
    tables = np.hstack([precision, weighted, weighted * means, np.log(precision)])
    w, wm, wmm, log_w = np.split(ones @ tables, 4, axis=1)
    wx, wmx = np.split(values @ tables[:, : 2 * groups], 2, axis=1)
    plain = (squares @ precision - 2 * wmx + wmm) / of.noise - log_w
    return _costs(plain, wx - wm, w, of)


def _costs(plain: FloatArray, errors: FloatArray, precisions: FloatArray, of: Estimate) -> FloatArray:
    """Combine sums over a client's entries: (Σe²/(vσ²) + Σ ln v), Σe/v and Σ1/v."""
    spread = of.noise + of.constant_variance * precisions
    return plain - of.constant_variance / of.noise * np.square(errors) / spread


def log_likelihood(entries: Entries, labels: IntArray, costs: FloatArray, of: Estimate) -> float:
    """Compute −½[Σ_k cost of k in its group + N ln σ² + Σ_k ln(1 + T_k τ²/σ²)].

    Parameters
    ----------
    entries
        The trace.
    labels
        Group of each client, shape (K,).
    costs
        Cost of each client in each group, shape (K, G).
    of
        The model's parameters.
    """
    own = float(costs[np.arange(len(labels)), labels].sum())
    constants = float(np.log1p(entries.lengths * of.constant_variance / of.noise).sum())
    return -0.5 * (own + len(entries.values) * float(np.log(of.noise)) + constants)


def _improve(entries: Entries, labels: IntArray, num_groups: int, seen: set[bytes]) -> Fit | None:
    """Iterate from one start; None if a group becomes empty or an earlier start had the same grouping."""
    path: set[bytes] = set()
    for _ in range(_MOST_ITERATIONS + 1):
        labels = in_order_of_appearance(labels)
        key = labels.tobytes()
        if key not in path and key in seen:
            return None
        of = estimate(entries, labels, num_groups)
        cost = costs(entries, labels, num_groups, of)
        if key in path or len(path) == _MOST_ITERATIONS:  # groupings repeat, or too many iterations
            break
        path.add(key)
        seen.add(key)
        moved = cost.argmin(axis=1)
        if len(np.unique(moved)) < num_groups:
            return None
        if np.array_equal(moved, labels):
            break
        labels = moved
    return Fit(labels, cost, of, log_likelihood(entries, labels, cost, of))


def _of_entries(values: NDArray[Any], shape: tuple[int, int], rounds: IntArray) -> NDArray[np.float64]:
    """Arrange the cells' values by round and group, and return those of each entry's round, shape (N, G)."""
    return values.reshape(shape).astype(np.float64)[rounds]
