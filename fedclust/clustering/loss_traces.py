"""Clusters from the course of clients' losses, their loss traces; the witness `losses`.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340, have every client report its loss before each local step. The
mathematics here is ours, based on two findings on recorded losses:

- The signal is in the first local steps, and depends on the clients in the last average: after an average
  with more clients of one kind, that kind's losses are lower than the other's. Rewards relative to the
  cohort's mean (the paper's Eq. 1) lose most of this signal.
- If all or most clients take part, the average hardly varies, and neither does the signal.

The differences of a client's losses from its cohort's over the rounds are its *trace* (:class:`Trace`).
Groups are fitted to the traces: all clients of a group share a course over the rounds, up to a constant per
client (:func:`fit`). A fit passes if its parts are further apart than the halves of a continuum would be
(:func:`separate`).

The model is x_kt = μ_{t,g(k)} + b_k + ε_kt with b_k ~ N(0, τ²) and ε_kt ~ N(0, σ²), of client k in group g(k)
and round t, for the existing entries. Groups are improved as in K-means: estimate the model, then move each
client to the group that explains it best, leaving out the client itself (:func:`fit`). The initial groups are
clients with similar traces, after missing entries were filled in (:func:`starts`).

A client may report any loss, by mistake or on purpose. A loss far from all others moves the cohort's mean,
the noise σ² and the constants' variance τ² so that no group is found. Clients of one group are near each
other in every round, wherever the group is; so an entry without neighbours carries no information about
groups. It is treated as missing, which the model allows for any entry (:func:`believable`).

:func:`separate` tests whether fitted groups are separate, or only pieces of a continuum.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedclust.clustering.shared.grouping import in_order_of_appearance
from fedclust.support.checks import Checked, check_entries, check_shapes
from fedclust.typing import BoolArray, FloatArray, IntArray

# -- The fit of groups --------------------------------------------------------------------------------------

_FILLINGS = 10
_SOFTNESS = 0.8
_KMEANS_STARTS, _KMEANS_PASSES = 4, 10
# Up to this many rounds or clients the whole matrix is decomposed; with more, only the needed vectors.
_SMALL = 128


@dataclass(frozen=True, eq=False)
class Entries:
    """The existing entries of a trace, as three parallel arrays of shape (N,).

    Attributes
    ----------
    rounds
        Round of each entry, 0 … num_rounds − 1; every round has at least one.
    clients
        Client of each entry, 0 … num_clients − 1; every client has at least one, and at most one per round.
    values
        The entries x.
    num_rounds, num_clients
        T and K.
    """

    rounds: IntArray
    clients: IntArray
    values: FloatArray
    num_rounds: int
    num_clients: int

    @cached_property
    def lengths(self) -> FloatArray:
        """Number of entries T_k of each client, shape (K,)."""
        return self.sum_by_client(np.ones(len(self.values)))

    @cached_property
    def powers(self) -> tuple[Any, Any, Any]:
        """Sparse tables, client by round, shape (K, T): 1, x and x² where there is an entry."""
        from scipy.sparse import csr_array

        shape = (self.num_clients, self.num_rounds)
        order = np.lexsort((self.rounds, self.clients))
        columns, values = self.rounds[order], self.values[order]
        ends = np.concatenate([[0], np.cumsum(np.bincount(self.clients, minlength=self.num_clients))])
        ones, plain, squares = (
            csr_array((each, columns, ends), shape=shape)
            for each in (np.ones(len(values)), values, np.square(values))
        )
        return ones, plain, squares

    def sum_by_client(self, values: FloatArray) -> FloatArray:
        """Sum one value per entry, shape (N,), over each client's entries, shape (K,)."""
        sums = np.bincount(self.clients, values, self.num_clients)
        return np.asarray(sums, dtype=np.float64)

    def of_clients(self, chosen: IntArray) -> "Entries":
        """Select clients, given by their numbers in ascending order; they are renumbered from 0."""
        kept = np.isin(self.clients, chosen)
        return entries(self.rounds[kept], np.searchsorted(chosen, self.clients[kept]), self.values[kept])


def entries(rounds: IntArray, clients: IntArray, values: FloatArray) -> Entries:
    """Create entries of clients that are numbered without gaps; rounds without an entry are removed."""
    present, numbers = np.unique(rounds, return_inverse=True)
    num_clients = int(clients.max()) + 1 if len(clients) else 0
    return Entries(numbers, clients, values, len(present), num_clients)


def starts(entries: Entries, num_groups: int, seed: int) -> Iterator[IntArray]:
    """Yield several groupings of the clients.

    K-means on the clients' :func:`coordinates`, of rank max(1, G − 1) and G, from the entries, and from the
    entries minus their client's mean; and K-means on the clients' means.

    Parameters
    ----------
    entries
        The trace.
    num_groups
        G >= 2, at most the number of clients.
    seed
        Seed >= 0 of K-means and of the decomposition's first vector.

    Yields
    ------
    Group of each client, 0 … G − 1, each with at least one client, shape (K,).
    """
    means = entries.sum_by_client(entries.values) / entries.lengths
    most = min(entries.num_rounds, entries.num_clients)
    for centred in (False, True):
        for rank in sorted({min(max(1, num_groups - 1), most), min(num_groups, most)}):
            yield from _kmeans(coordinates(entries, centred, rank, seed), num_groups, seed)
    yield from _kmeans(means[:, None], num_groups, seed)


@lru_cache(maxsize=16)  # the fits of 2, 3 … groups to the same entries share most ranks
def coordinates(entries: Entries, centred: bool, rank: int, seed: int) -> FloatArray:
    """Compute clients' coordinates: right singular vectors times singular values of the filled matrix.

    The matrix, rounds by clients, is filled in ten passes: missing entries, at first 0, become 0.8 times
    the approximation of the given rank to the matrix of the pass before ("soft imputation", as in Mazumder,
    Hastie and Tibshirani, "Spectral regularization algorithms for learning large incomplete matrices",
    Journal of Machine Learning Research 11, 2010, but with a fixed rank and factor).

    Parameters
    ----------
    entries
        The trace.
    centred
        Whether each client's mean is subtracted from its entries.
    rank
        r >= 1, at most the number of rounds and of clients.
    seed
        Seed >= 0 of the decomposition's first vector, used if the matrix is large.

    Returns
    -------
    Shape (K, r).
    """
    values = entries.values
    if centred:
        values = values - (entries.sum_by_client(values) / entries.lengths)[entries.clients]
    shape = (entries.num_rounds, entries.num_clients)
    complete = len(values) == shape[0] * shape[1]
    left: FloatArray = np.zeros((shape[0], rank))
    right: FloatArray = np.zeros((shape[1], rank))  # times singular values
    for _ in range(1 if complete else _FILLINGS):
        # Filled matrix = (known entries − their approximation), which is sparse, + the approximation.
        filled = _SOFTNESS * right
        known = np.einsum("nr,nr->n", left[entries.rounds], filled[entries.clients])
        left, right = _decomposed(entries, values - known, left, filled, seed)
    return right


def _decomposed(
    at: Entries, values: FloatArray, left: FloatArray, right: FloatArray, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Approximate values at entries plus ``left @ right.T`` by a matrix of the same rank, in the same form.

    A large matrix is not formed: it has 40 entries per client but any number of rounds.
    """
    rank, shape = left.shape[1], (at.num_rounds, at.num_clients)
    if min(shape) <= max(_SMALL, rank):
        filled = left @ right.T
        filled[at.rounds, at.clients] += values
        u, sizes, v = np.linalg.svd(filled, full_matrices=False)
        return u[:, :rank], v[:rank].T * sizes[:rank]
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator, svds

    sparse = csr_array((values, (at.rounds, at.clients)), shape=shape)
    transposed = sparse.T.tocsr()
    matrix = LinearOperator(
        sparse.shape,
        matvec=lambda x: sparse @ x.ravel() + left @ (right.T @ x.ravel()),
        rmatvec=lambda y: transposed @ y.ravel() + right @ (left.T @ y.ravel()),
        dtype=np.float64,
    )
    # Not a vector of ones: rounds have mean 0, so a matrix without gaps maps it to 0.
    first = np.random.default_rng(seed).standard_normal(min(sparse.shape))
    u, sizes, v = svds(matrix, k=rank, v0=first)
    return u, v.T * sizes


def _kmeans(points: FloatArray, num_groups: int, seed: int) -> Iterator[IntArray]:
    """Yield the tightest of a few groupings by K-means, unless one has an empty group."""
    # SciPy's, not scikit-learn's, whose import takes longer than all that `auto` computes in a run.
    from scipy.cluster.vq import ClusterError, kmeans2

    draws, tightest = np.random.default_rng(seed), np.inf
    best: IntArray | None = None
    for _ in range(_KMEANS_STARTS):
        with suppress(ClusterError), np.errstate(invalid="ignore", divide="ignore"):  # empty; equal points
            means, labels = kmeans2(
                points, num_groups, _KMEANS_PASSES, minit="++", missing="raise", seed=draws
            )
            within = float(np.square(points - means[labels]).sum())
            if within < tightest:
                tightest, best = within, labels.astype(np.int64)
    if best is not None and len(np.unique(best)) == num_groups:
        yield best


SHRINKAGE = 1.0
"""λ: a group's value in a round is the mean of its clients' and λ further values of 0, the cohort's mean."""

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

    From each start, up to 20 times, the model is estimated and every client is moved to the group of least
    cost. A start is abandoned if a group loses its last client.

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
        fitted = _improve(entries, labels, num_groups, seen)
        if fitted is not None and (best is None or fitted.log_likelihood > best.log_likelihood):
            best = fitted
    return best


def estimate(entries: Entries, labels: IntArray, num_groups: int) -> Estimate:
    """Estimate constants and variances, given the groups.

    Starting from b = 0, three times: μ_tg is the mean of x − b over the group's entries in round t; d = x −
    μ, with mean d̄_k over client k's T_k entries; σ² = Σ(d − d̄_k)²/Σ(T_k − 1); τ² = max(0, ΣT_k d̄_k² −
    Kσ²)/N; σ² is divided by (N − filled cells − K)/Σ(T_k − 1), at least 0.05, as the means were fitted too;
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


def cells(
    entries: Entries, labels: IntArray, num_groups: int, constants: FloatArray
) -> tuple[FloatArray, FloatArray]:
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

    Returns
    -------
    means
        m = Σ (x_j − b_j) / (count + λ) over the group's other entries, shape (N, G).
    counts
        Number of such entries, shape (N, G).
    """
    own, each = labels[entries.clients], np.arange(len(entries.values))
    without = entries.values - constants[entries.clients]
    sums, counts = (table[entries.rounds] for table in _tables(entries, labels, num_groups, constants))
    sums[each, own] -= without
    counts[each, own] -= 1
    return sums / (counts + SHRINKAGE), counts


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
    own, without = labels[entries.clients], entries.values - of.constants[entries.clients]
    sums, counts = _tables(entries, labels, num_groups, of.constants)
    result = _costs_elsewhere(entries, sums, counts, of)
    # A client's own group is measured without it, so each of its entries has a value of its own.
    cell = entries.rounds, own
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


def _tables(
    entries: Entries, labels: IntArray, num_groups: int, constants: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Sum the entries without their clients' constants, and count them, by round and group, (T, G)."""
    shape = (entries.num_rounds, num_groups)
    cell = entries.rounds * num_groups + labels[entries.clients]
    sums = np.bincount(cell, entries.values - constants[entries.clients], shape[0] * shape[1])
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    return sums.astype(np.float64).reshape(shape), counts.astype(np.float64).reshape(shape)


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


_FAR = 5.0  # times the range of the cohort's middle half: 6.7 standard deviations of normal entries
_FEWEST = 5  # with fewer entries, a single one moves the middle half
_NEIGHBOURS = 2


def unlike_others(of: Entries) -> BoolArray:
    """Find the entries whose second nearest other entry of the round is far away.

    "Far" means more than 5 times the distance between the round's quartiles. In rounds of fewer than five
    entries, or with equal quartiles, no entry is far.

    Parameters
    ----------
    of
        The trace, sorted by round.

    Returns
    -------
    Whether each entry is far from the others, shape (N,).
    """
    far = np.zeros(len(of.values), dtype=bool)
    sizes = np.bincount(of.rounds, minlength=of.num_rounds)
    firsts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes >= _FEWEST]):  # rounds with so many entries, all at once
        places = firsts[sizes == size, None] + np.arange(size)
        values = of.values[places]
        low, high = np.percentile(values, [25, 75], axis=1, keepdims=True)
        order = np.argsort(values, axis=1, kind="stable")
        ordered = np.take_along_axis(values, order, axis=1)
        padded = np.pad(ordered, ((0, 0), (_NEIGHBOURS, _NEIGHBOURS)), constant_values=np.inf)
        # In order of size, the two nearest are among the two before and the two after.
        apart = [
            np.abs(padded[:, _NEIGHBOURS + step : _NEIGHBOURS + step + size] - ordered)
            for step in (-2, -1, 1, 2)
        ]
        second = np.sort(apart, axis=0)[_NEIGHBOURS - 1]
        far[np.take_along_axis(places, order, axis=1)] = (second > _FAR * (high - low)) & (high > low)
    return far


def believable(of: Entries) -> tuple[Entries, IntArray, IntArray]:
    """Leave out the entries that are unlike all others, and centre every round on the rest.

    A client that has more entries left out than kept is left out altogether.

    Parameters
    ----------
    of
        The trace.

    Returns
    -------
    left
        The remaining entries; the trace itself if that is all of them.
    kept
        Numbers in `of` of the clients that remain, ascending, in the order of their numbers in `left`.
    alone
        Numbers of the clients that were left out, ascending.
    """
    odd = unlike_others(of)
    everyone = np.arange(of.num_clients)
    if not odd.any():
        return of, everyone, everyone[:0]
    without = of.sum_by_client(odd.astype(np.float64))
    alone = np.flatnonzero(2 * without > of.lengths)
    odd |= np.isin(of.clients, alone)
    kept = np.setdiff1d(everyone, alone)
    rounds, clients, values = of.rounds[~odd], of.clients[~odd], of.values[~odd]
    numbers = np.bincount(rounds, minlength=of.num_rounds)
    means = np.bincount(rounds, values, of.num_rounds) / np.maximum(numbers, 1)
    return entries(rounds, np.searchsorted(kept, clients), values - means[rounds]), kept, alone


@dataclass(frozen=True, eq=False)
class Parts:
    """A fit's groups, after small ones were dissolved.

    Attributes
    ----------
    labels
        Part of each client, numbered in order of first appearance, shape (K,).
    core
        Whether each client was in a group that was large enough, shape (K,).
    """

    labels: IntArray
    core: BoolArray

    @property
    def number(self) -> int:
        """Number of parts."""
        return int(self.labels.max()) + 1


def parts_of(fit: Fit, min_cluster_size: int) -> Parts | None:
    """Move each client of a group that is too small to the large group of least cost.

    Parameters
    ----------
    fit
        The groups.
    min_cluster_size
        Fewest clients of a part.

    Returns
    -------
    The parts; None if no group is large enough.
    """
    sizes = np.bincount(fit.labels, minlength=fit.costs.shape[1])
    large = np.flatnonzero(sizes >= min_cluster_size)
    if not len(large):
        return None
    core = np.isin(fit.labels, large)
    nearest = large[fit.costs[:, large].argmin(axis=1)]
    return Parts(in_order_of_appearance(np.where(core, fit.labels, nearest)), core)


def separate(entries: Entries, parts: Parts, of: Estimate, significance: float) -> float:
    """Compute the distance of the nearest two parts, relative to the required distance.

    For parts g and h, D_gh = (mean of :func:`slopes` over h − mean over g) / pooled standard deviation, with
    ν = n_g + n_h − 2 degrees of freedom, must be at least :func:`required`. Clients that are not in `core`
    are ignored.

    Parameters
    ----------
    entries
        The trace.
    parts
        At least two parts.
    of
        The model's parameters.
    significance
        α.

    Returns
    -------
    The least ratio of D to the required distance, over all pairs of parts; the parts are separate if it is at
    least 1. −∞ if a pair has too few clients.
    """
    chosen = np.flatnonzero(parts.core)
    core, labels = entries.of_clients(chosen), parts.labels[chosen]
    of_cells = cells(core, labels, parts.number, of.constants[chosen])
    least = np.inf
    for g in range(parts.number):
        for h in range(g + 1, parts.number):
            placed = slopes(core, labels, of_cells, of, g, h)
            least = min(least, _distance(placed[labels == g], placed[labels == h], significance))
    return float(least)


def slopes(
    entries: Entries, labels: IntArray, of_cells: tuple[FloatArray, FloatArray], of: Estimate, g: int, h: int
) -> FloatArray:
    """Compute where clients of two groups lie on the line between them: about −½ in group g, ½ in group h.

    Over the rounds in which both groups have a value without the client, with u = m_th − m_tg,
    z = x − (m_tg + m_th)/2 and κ = τ²/(σ² + N_k τ²): a_k = (Σuz − κΣuΣz)/(Σu² − κ(Σu)²), the generalised
    least-squares slope of z on u if the client has a constant of variance τ².

    Parameters
    ----------
    entries
        The trace.
    labels
        Group of each client, shape (K,).
    of_cells
        Result of :func:`cells`: the groups' values, without each entry's client.
    of
        The model's parameters.
    g, h
        The two groups.

    Returns
    -------
    Position of each client, shape (K,); NaN for clients of other groups and those that cannot be placed.
    """
    own, (means, counts) = labels[entries.clients], of_cells
    counted = ((own == g) | (own == h)) & (counts[:, g] > 0) & (counts[:, h] > 0)
    low, high = means[:, g], means[:, h]
    u = np.where(counted, high - low, 0.0)
    z = np.where(counted, entries.values - (low + high) / 2, 0.0)
    number, sum_u, sum_z, sum_uu, sum_uz = (
        entries.sum_by_client(values) for values in (counted.astype(float), u, z, u * u, u * z)
    )
    kappa = of.constant_variance / (of.noise + number * of.constant_variance)
    below = sum_uu - kappa * sum_u**2
    # If the groups do not differ, only round-off is left.
    placed = below > 1e-12 * sum_uu
    return np.divide(sum_uz - kappa * sum_u * sum_z, below, out=np.full(len(below), np.nan), where=placed)


def required(degrees: int, significance: float) -> float:
    """Compute the required distance of two parts, 2√3 · √(ν/χ²_{α,ν}).

    The halves of a uniform continuum are 2√3 of their standard deviations apart. The second factor allows
    for a standard deviation that is too small by chance: a χ² variable of ν degrees of freedom is below
    χ²_{α,ν} with probability α.

    Parameters
    ----------
    degrees
        ν >= 1.
    significance
        α in (0, 1).
    """
    from scipy.special import chdtri

    return float(2 * np.sqrt(3 * degrees / chdtri(degrees, 1 - significance)))


def _distance(low: FloatArray, high: FloatArray, significance: float) -> float:
    low, high = low[np.isfinite(low)], high[np.isfinite(high)]
    degrees = len(low) + len(high) - 2
    if degrees < 1 or not len(low) or not len(high):
        return -np.inf
    gap = high.mean() - low.mean()
    variance = (np.square(low - low.mean()).sum() + np.square(high - high.mean()).sum()) / degrees
    if variance == 0:
        return np.inf if gap > 0 else -np.inf
    return float(gap / np.sqrt(variance) / required(degrees, significance))


# -- The rule -----------------------------------------------------------------------------------------------

_SMALLEST_COHORT = 3  # FedGWC, Theorem A.5


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of loss traces.

    Attributes
    ----------
    first_steps
        Number of a round's first local steps that are used, >= 1.
    max_clusters
        Largest number of parts of one split, >= 2.
    min_cluster_size
        Smallest part of a split, >= 2; clients of smaller ones join another.
    significance
        α in (0, 0.5): probability of underestimating the spread within two parts.

    Raises
    ------
    ValueError
        If an attribute is outside its range.
    """

    first_steps: Annotated[int, ">= 1"] = 3
    max_clusters: Annotated[int, ">= 2"] = 4
    min_cluster_size: Annotated[int, ">= 2"] = 3
    significance: Annotated[float, "in (0, 0.5)"] = 0.001


@dataclass(frozen=True, eq=False)
class Trace:
    """The loss traces of one cluster.

    A round adds two small arrays and shares all others with the previous state. An entry takes 8 bytes: 100
    rounds of 10,000 clients take 8 MB.

    Attributes
    ----------
    members
        Client ids, sorted, shape (K,).
    rounds
        Rounds of this cluster with at least two valid replies.
    positions
        For each recorded round, the positions of its clients in `members`, int32, shape (n,).
    values
        For each recorded round, their entries x, float32, shape (n,).
    """

    members: IntArray
    rounds: int = 0
    positions: tuple[IntArray, ...] = field(default=(), repr=False)
    values: tuple[FloatArray, ...] = field(default=(), repr=False)

    def joined(self, newcomers: IntArray) -> "Trace":
        """Return the state with new clients, ids larger than those of all members, sorted, shape (n,)."""
        return dataclasses.replace(self, members=np.concatenate([self.members, newcomers]))

    def recorded(self, positions: IntArray, values: FloatArray) -> "Trace":
        """Return the state with a round's entries.

        Parameters
        ----------
        positions
            Positions of its clients in `members`, shape (n,).
        values
            Their entries, shape (n,).
        """
        order = np.argsort(positions)
        return dataclasses.replace(
            self,
            positions=(*self.positions, positions[order].astype(np.int32)),
            values=(*self.values, values[order].astype(np.float32)),
        )

    def entries(self) -> tuple[Entries, IntArray]:
        """Arrange the trace for a fit.

        Clients are numbered by the mean of their entries, so that later random draws and sums do not depend
        on the federation's numbering.

        Returns
        -------
        entries
            The entries of the clients that have any, sorted by round and client.
        observed
            Positions of these clients in `members`, in the order of their numbers.
        """
        clients = np.concatenate(self.positions).astype(np.int64) if self.positions else np.zeros(0, np.int64)
        values = np.concatenate(self.values).astype(np.float64) if self.values else np.zeros(0)
        rounds = np.repeat(np.arange(len(self.positions)), [len(row) for row in self.positions])
        observed, numbers, times = np.unique(clients, return_inverse=True, return_counts=True)
        order = np.argsort(np.bincount(numbers, values, len(observed)) / times, kind="stable")
        numbers = np.argsort(order)[numbers]
        by_round = np.lexsort((numbers, rounds))
        return entries(rounds, numbers[by_round], values[by_round]), observed[order]


def deviations(losses: Sequence[FloatArray] | FloatArray, first_steps: int) -> FloatArray:
    """Compute a round's entries: the differences of clients' losses from their cohort's.

    y_k = √(mean of the first min(`first_steps`, S) losses), x_k = y_k − mean of y over the cohort. The root
    makes the spread of losses depend less on their size.

    Parameters
    ----------
    losses
        Loss of each client before each local step, in nats, >= 0, n >= 1 arrays; S is the least of their
        lengths.
    first_steps
        Number of steps to use, >= 1.

    Returns
    -------
    Entries x in √nats, with mean 0, shape (n,).

    Raises
    ------
    ValueError
        If a client reports no loss, or one that is negative or not finite.
    """
    num_steps = min(first_steps, *(len(series) for series in losses))
    first = np.array([np.asarray(series, dtype=np.float64)[:num_steps] for series in losses])
    check_shapes(losses=(first, "clients steps"))
    check_entries("finite and >= 0", losses=first)
    roots = np.sqrt(first.mean(axis=1))
    return roots - np.sort(roots).mean()  # sorted: the order of replies must not decide the last bit


@dataclass(frozen=True, eq=False)
class Grouping:
    """The result of a test for one number of groups.

    Attributes
    ----------
    num_groups
        Number of groups fitted.
    labels
        Part of each member after small groups joined others, numbered in order of first appearance, shape
        (K,).
    separation
        Distance of the nearest parts, relative to the required distance; they pass if it is at least 1. −∞
        if it could not be measured.
    """

    num_groups: int
    labels: IntArray
    separation: float

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return int(self.labels.max()) + 1


def groupings(state: Trace, parameters: Parameters, seed: int) -> list[Grouping]:
    """Fit 2 … `max_clusters` + 1 groups to a cluster's traces, and measure how far apart they are.

    One group more than the allowed parts is fitted, for a group of unusual clients. Members that never took
    part join the largest part, and so do those of :func:`alone`.

    Returns
    -------
    One per number of groups, ascending, that could be fitted and left 2 … `max_clusters` parts.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    entries, observed = state.entries()
    entries, kept, _ = believable(entries)
    observed = observed[kept]
    fits = []
    # With one thread, sums have the same order on every machine; so few columns need no more.
    with threadpool_limits(1):
        for num_groups in range(2, parameters.max_clusters + 2):
            fitted = fit(entries, num_groups, seed)
            parts = None if fitted is None else parts_of(fitted, parameters.min_cluster_size)
            if fitted is None or parts is None or not 2 <= parts.number <= parameters.max_clusters:
                continue
            labels = np.full(len(state.members), np.bincount(parts.labels).argmax())
            labels[observed] = parts.labels
            separation = separate(entries, parts, fitted.estimate, parameters.significance)
            fits.append(Grouping(num_groups, in_order_of_appearance(labels), separation))
    return fits


def alone(states: Sequence[Trace]) -> list[int]:
    """List the clients whose losses are unlike all others' in most of their rounds.

    Groups are found without them, see :func:`believable`.

    Parameters
    ----------
    states
        The clusters.

    Returns
    -------
    Client ids, sorted.
    """
    clients: set[int] = set()
    for state in states:
        entries, observed = state.entries()
        clients |= set(state.members[observed[believable(entries)[2]]].tolist())
    return sorted(clients)
