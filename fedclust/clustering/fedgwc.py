"""FedGWC: clusters from losses, split during training.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated
Learning", ICML 2025, arXiv:2502.03340. A client gets a reward if its losses are near its cohort's mean. An
interaction matrix records each client's rewards in rounds with each other client. Once that matrix settles,
clients with similar rows form a cluster, which continues as its own federation.

Choices where the paper is not specific, and differences from it:

- If all losses of a step are equal, where Eq. 1 divides 0 by 0, every client's reward is 1.
- The mean squared change is a running mean from 1 (Section 4.3: "in order to ensure stability in early
  updates, allowing a gradual decrease"), with the weight α of Eq. 3. With few clients per round, the last
  change alone is below ε at once: 823 similar clients, 10 a round, were split into 809 and 14 in round 4.
- The paper's rule splits even similar clients, down to single ones (:func:`cautions`). Three guards
  against that are parameters, which are off:
  `min_pair_coverage` requires that most pairs have met, `patience` that the matrix stays settled for some
  rounds, and `min_cluster_size` that no part is small: such a part joins the others before a division is
  scored. `max_davies_bouldin` below 1 requires well separated parts.
- With few local steps, chance alone keeps the matrix changing by far more than the paper's ε, so that no
  split comes. `tolerance="auto"`, ours, is a tenth of that change (:func:`change_by_chance`).
- After a test that did not end in a split, `patience` rounds must pass before the next.
- There is no split if the score is undefined: fewer than three clients, or all affinities equal.

The authors' released code differs from the paper, and `Parameters` can follow it. Two differences are left
out: mean and variance of Eq. 1 weighted by numbers of examples, and the variance divided by n, not n − 1.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import numpy as np

from fedclust.clustering.shared.grouping import in_order_of_appearance, kmeans, positions_of, thread_pools
from fedclust.metrics import davies_bouldin
from fedclust.support.checks import Checked, check_entries, check_shapes, plural
from fedclust.support.rng import cohort_size
from fedclust.typing import BoolArray, FloatArray, IntArray

SMALLEST = 1e-100
"""Lower limit of affinities in the embedding, which divides by their square root: a client with only smaller
ones would get coordinates whose squares overflow."""

_ITERATIONS = 30  # of LOBPCG: it finds groups in a few; without groups the vectors mean nothing
_TOLERANCE = 1e-4
_SPARE = 3  # additional vectors, with which the required ones converge sooner
_LINK = 1e-30  # added between any two clients, so that the graph is connected even if affinities are 0

# Off-diagonal affinities that differ by less count as equal: the difference is rounding error.
SAME = 1e-12

Number = TypeVar("Number", int, float)
Array = TypeVar("Array", FloatArray, BoolArray)

_SMALLEST_COHORT = 3  # Theorem A.5
_LARGEST_STEP = 0.5  # for the default; Theorem 5.2 requires less than 1
_LONELY = (
    "splits may go on to clusters of one or two clients: max_davies_bouldin seldom refuses to set one client "
    "apart; strategy.parameters.min_cluster_size=3 keeps three together (Theorem A.5)"
)
_STEPS = 10  # local steps that `cautions` assumes; with fewer, rewards vary more
_SETTLED = 0.1  # of the change by chance, with a tolerance of auto

MANY = 4096
"""Clusters of at least this many clients use single precision: in double, K = 10,000 would need 4 GiB."""

_ROWS = 1024  # of a strip of affinities, multiplied at once; a multiple of a tile
_BLOCK = 256  # rows and columns of a tile, which fits into a core's cache


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of FedGWC. The attributes from `limit_parts` on follow the released code.

    Attributes
    ----------
    kernel_width
        β > 0 of Eq. 4; the larger it is, the smaller the affinities.
    tolerance
        ε > 0: the matrix has settled when the running mean of its squared change is below ε. ``"auto"``, not
        in the paper: a tenth of the change by chance alone, see :func:`tolerance_of`.
    max_clusters
        n_max >= 2: largest number of parts of one split.
    step_size
        α in (0, 1): weight of a round. None uses the share of clients that takes part, at most ½, set by
        :meth:`resolve`. With 1 the matrix would follow every round and never converge.
    max_davies_bouldin
        Largest Davies–Bouldin score, > 0, of an acceptable split.
    patience
        Number of consecutive rounds, >= 1, in which the matrix must be settled; None uses
        round(K / `cohort_size`).
    min_pair_coverage
        Share in [0, 1] of a cluster's pairs that must have met in a cohort before its matrix can be settled.
    min_cluster_size
        Smallest number of clients in a part, >= 1: a smaller part joins the others before a division is
        scored. None uses 3/ρ rounded up (Theorem A.5), set by :meth:`resolve`.
    cohort_size
        Clients per round, >= 2, if all clusters draw the same number; a cluster of K then has
        α = `cohort_size`/K, at most ½, unless `step_size` is set. None if a cluster draws a share.
    limit_parts
        Whether a cluster of K is split into at most K // `cohort_size` parts.
    reward_shares
        Whether a round's rewards are divided by their sum before they enter the matrix.
    initial
        Initial entries of the matrix: ``"zero"``, or ``"uniform"`` for 1/K².
    change
        Squared change to average: over the whole ``"matrix"``, or over the pairs of the ``"cohort"``.
    compare
        Eq. 4 compares ``"rows"`` of the matrix, or ``"columns"`` of the matrix scaled to [0, 1].
    score_on
        Davies–Bouldin on the rows of ``"affinity"``, or on the spectral ``"embedding"`` in n dimensions
        (eigenvectors 2 to n + 1, as ``sklearn.manifold.SpectralEmbedding`` has it).
    assign_labels
        Method that assigns labels in the embedding, as in scikit-learn.
    reset_change
        Whether a test without a split resets the running mean to 1.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> resolved = Parameters(min_cluster_size=None).resolve(participation=0.1)
    >>> resolved.step_size, resolved.min_cluster_size  # α = ρ, and 3/ρ clients
    (0.1, 30)
    """

    kernel_width: Annotated[float, "> 0"] = 0.5
    tolerance: Annotated[float | Literal["auto"], "> 0 or auto"] = 1e-5
    max_clusters: Annotated[int, ">= 2"] = 5
    step_size: Annotated[float | None, "in (0, 1) or None"] = None
    max_davies_bouldin: Annotated[float, "> 0"] = 1.0
    patience: Annotated[int | None, ">= 1 or None"] = 1
    min_pair_coverage: Annotated[float, "in [0, 1]"] = 0.0
    min_cluster_size: Annotated[int | None, ">= 1 or None"] = 1
    cohort_size: Annotated[int | None, ">= 2 or None"] = None
    limit_parts: bool = False
    reward_shares: bool = False
    initial: Literal["zero", "uniform"] = "zero"
    change: Literal["matrix", "cohort"] = "matrix"
    compare: Literal["rows", "columns"] = "rows"
    score_on: Literal["affinity", "embedding"] = "affinity"
    assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans"
    reset_change: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort_size is None and (self.patience is None or self.limit_parts):
            rules = "patience must be set and limit_parts false"
            raise ValueError(f"{rules} without cohort_size, got {self.patience} and {self.limit_parts}")

    def resolve(self, participation: float) -> "Parameters":
        """Set the values that follow from the share of clients that takes part in a round.

        Parameters
        ----------
        participation
            Share ρ in (0, 1].

        Returns
        -------
        A copy with `min_cluster_size` set and, unless it follows from `cohort_size`, `step_size`.

        Raises
        ------
        ValueError
            If `participation` is outside its range.
        """
        check_entries("in (0, 1]", participation=participation)
        step_size, min_cluster_size = self.step_size, self.min_cluster_size
        if step_size is None and self.cohort_size is None:
            step_size = min(participation, _LARGEST_STEP)
        if min_cluster_size is None:
            min_cluster_size = math.ceil(round(3 / participation, 9))  # rounding error must not add one
        return dataclasses.replace(self, step_size=step_size, min_cluster_size=min_cluster_size)

    def step_size_of(self, num_members: int) -> float:
        """Return α for a cluster of `num_members` clients.

        Raises
        ------
        ValueError
            If neither `step_size` nor `cohort_size` is set.
        """
        if self.step_size is None and self.cohort_size is not None:
            return min(_LARGEST_STEP, self.cohort_size / num_members)
        return _resolved("step_size", self.step_size)

    def patience_of(self, num_members: int) -> int:
        """Return the number of consecutive settled rounds that a cluster of `num_members` clients needs."""
        if self.patience is not None:
            return self.patience
        return max(1, round(num_members / (self.cohort_size or num_members)))

    def cohort_size_of(self, num_members: int, participation: float) -> int:
        """Return the number of a cluster's clients that take part in a round.

        Parameters
        ----------
        num_members
            Number of clients in the cluster.
        participation
            Share ρ of them that takes part if `cohort_size` is None, in (0, 1].
        """
        if self.cohort_size is not None:
            return min(self.cohort_size, num_members)
        return cohort_size(num_members, participation, _SMALLEST_COHORT)

    @property
    def smallest_part(self) -> int:
        """Smallest part of a split.

        Raises
        ------
        ValueError
            If `min_cluster_size` is not set.
        """
        return _resolved("min_cluster_size", self.min_cluster_size)

    def max_clusters_of(self, num_members: int) -> int:
        """Return the largest number of parts of a cluster of `num_members` clients; 1 if it cannot be split.

        Raises
        ------
        ValueError
            If `min_cluster_size` is not set.
        """
        if num_members < max(3, 2 * self.smallest_part):
            return 1  # two parts would be too small, and two clients have no score
        if self.limit_parts and self.cohort_size is not None:
            return min(self.max_clusters, num_members // self.cohort_size)
        return self.max_clusters


def _resolved(name: str, value: Number | None) -> Number:
    if value is None:
        raise ValueError(f"{name} must be set before the first round, as by resolve, got None")
    return value


def cautions(parameters: Parameters, num_clients: int, participation: float, rounds: int) -> list[str]:
    """List reasons why no split can happen or none is likely, or why splits go on to single clients.

    The running mean of the squared change starts at 1 and falls by at most a share α per round, so it is at
    least (1 − α)^t after round t, which bounds the round of the first test.

    It also stays near d = 2α²/(2 − α) · v · n²/K² (n²/K² only if the whole matrix counts) while rewards
    vary with variance v from round to round: an entry changes by α(ω − P), and P, an exponential mean
    with weight α, varies by α/(2 − α) · v itself. For normally distributed losses Eq. 1 has E ω = 1/√2 and
    E ω² = 1/√3, so v = (1/√3 − 1/2)/S over S independent steps, S = 10 here. If the order
    of the clients' losses is stable, rewards vary less; so a split is called unlikely, not impossible.

    Where splits are expected, `max_davies_bouldin` alone does not end them, because a part of one client has
    no spread: of n equally distant clients, one apart from the others has the score √((n − 2)/n) < 1, and a
    settled cluster is tested in every round. Theorem A.5's three clients would, but Algorithm 1 does not
    require them.

    Parameters
    ----------
    parameters
        How to measure and split, with `min_cluster_size` and `step_size` (or `cohort_size`) set.
    num_clients
        Number of clients K of the federation, >= 1.
    participation
        Share ρ of clients that takes part in a round, in (0, 1].
    rounds
        Rounds of the run, >= 1.

    Returns
    -------
    Sentences with the numbers; empty if no reason is known.

    Raises
    ------
    ValueError
        If `parameters` lack a value that `resolve` sets, or `participation` is outside its range.

    Examples
    --------
    >>> cautions(Parameters().resolve(1.0), num_clients=2, participation=1.0, rounds=10)
    ['no split can come: 2 clients, fewer than 3']
    """
    if parameters.max_clusters_of(num_clients) < 2:
        fewest, smallest = f"two cohorts of cohort_size {parameters.cohort_size}", parameters.smallest_part
        if num_clients < 2 * smallest:
            fewest = f"two clusters of min_cluster_size {smallest}"
        if num_clients < 3:
            fewest = "3"
        return [f"no split can come: {plural(num_clients, 'client')}, fewer than {fewest}"]
    step_size = parameters.step_size_of(num_clients)
    cohort = parameters.cohort_size_of(num_clients, participation)
    tolerance = tolerance_of(parameters, cohort, num_clients)
    patience = parameters.patience_of(num_clients)
    # Rounds until the running mean, from 1, is below the tolerance if nothing changes.
    falls = max(1, math.floor(round(math.log(tolerance) / math.log1p(-step_size), 9)) + 1)
    meets = max(1, math.ceil(parameters.min_pair_coverage * math.comb(num_clients, 2) / math.comb(cohort, 2)))
    first = max(falls, meets) + patience - 1
    if first >= rounds:
        return [
            f"no split can come before the last round: the first test is in round {first} or later, of "
            f"{rounds} (tolerance is reached in round {falls}, min_pair_coverage in round {meets} or later)"
        ]
    change = change_by_chance(parameters, cohort, num_clients)
    if parameters.tolerance == "auto" or change <= tolerance:
        expected = fills(parameters, cohort, num_clients, tolerance, rounds) + patience - 1
        if expected < rounds:
            return [_LONELY] if parameters.smallest_part < 2 else []
        return [
            f"no split is likely before the last round, {rounds}: the matrix fills from zero, and its mean "
            f"squared change reaches tolerance {tolerance:.2g} in a later round"
        ]
    return [
        f"no split is likely: chance alone keeps the mean squared change near {change:.1g}, above "
        f"tolerance {tolerance:g}, with {_STEPS} local steps and more with fewer; "
        "strategy.parameters.tolerance=auto sets it to a tenth of that"
    ]


def fills(parameters: Parameters, cohort: int, num_clients: int, tolerance: float, most: int) -> int:
    """Estimate the round in which the mean squared change falls below a tolerance as the matrix fills.

    The matrix starts at zero, and a pair's entry moves by a share α towards its reward each time that the
    pair is in a cohort. With rewards that do not vary, each at its mean square of 1/2 for normally
    distributed losses (see :func:`cautions`), a change's expected square is α²/2 · (1 − p(2α − α²))^t after
    round t, with p the probability that a pair is in a cohort. Rewards that vary only add to it.

    Parameters
    ----------
    parameters
        As for :func:`cautions`.
    cohort, num_clients
        Number of the clients in a round, n, and in total, K.
    tolerance
        ε.
    most
        Where to stop counting.

    Returns
    -------
    The round, from 1; `most` if it comes no earlier.

    Examples
    --------
    >>> fills(Parameters(step_size=0.5), cohort=10, num_clients=10, tolerance=0.1, most=99)
    4
    """
    step, mean, reward = parameters.step_size_of(num_clients), 1.0, 1 / 2
    met = math.comb(cohort, 2) / math.comb(num_clients, 2)
    change = step**2 * reward / (cohort**2 if parameters.reward_shares else 1)
    # The diagonal settles long before: a client is in a cohort more often than a pair.
    change *= cohort * (cohort - 1) / (cohort if parameters.change == "cohort" else num_clients) ** 2
    for number in range(1, most):
        mean = (1 - step) * mean + step * change
        if mean < tolerance:
            return number
        change *= 1 - met * (2 * step - step**2)
    return most


def tolerance_of(parameters: Parameters, cohort: int, num_clients: int, steps: int = _STEPS) -> float:
    """Return ε for a cluster: as set, or with ``"auto"`` a tenth of :func:`change_by_chance`.

    If the order of the rewards is stable from round to round, the matrix changes less than by chance: on the
    digits the mean squared change fell to between a tenth and a half of that within 1,200 rounds.

    Parameters
    ----------
    parameters
        As for :func:`cautions`.
    cohort, num_clients
        Number of the cluster's clients in a round, and in total.
    steps
        Local steps that all of the cohort ran, >= 1.

    Examples
    --------
    >>> tolerance_of(Parameters(tolerance=1e-5), cohort=10, num_clients=100)
    1e-05
    >>> round(tolerance_of(Parameters(tolerance="auto", step_size=0.5), cohort=10, num_clients=10), 6)
    0.000258
    """
    if parameters.tolerance != "auto":
        return parameters.tolerance
    return _SETTLED * change_by_chance(parameters, cohort, num_clients, steps)


def change_by_chance(parameters: Parameters, cohort: int, num_clients: int, steps: int = _STEPS) -> float:
    """Compute the mean squared change that chance alone causes, see :func:`cautions`.

    Parameters
    ----------
    parameters
        As for :func:`cautions`.
    cohort, num_clients
        Number of clients in a round, and in total.
    steps
        Independent local steps S, >= 1.

    Examples
    --------
    >>> parameters = Parameters(step_size=0.5)  # 2·0.5²/1.5 · (1/√3 − 1/2)/10 = 0.333333 · 0.007735
    >>> round(change_by_chance(parameters, cohort=10, num_clients=10), 6)
    0.002578
    """
    step_size = parameters.step_size_of(num_clients)
    variance = (1 / math.sqrt(3) - 1 / 2) / steps
    if parameters.reward_shares:
        variance *= 2 / cohort**2  # divided by the square of the rewards' sum, about cohort/√2
    share = 1.0 if parameters.change == "cohort" else (cohort / num_clients) ** 2
    return 2 * step_size**2 / (2 - step_size) * variance * share


@dataclass(frozen=True, eq=False)
class Interaction:
    """FedGWC's state of one cluster.

    Attributes
    ----------
    members
        Client ids, sorted, shape (K,).
    rows
        Rows of the interaction matrix P, entries in [0, 1], shape (K,) each, rows and columns in `members`
        order; float32 from :data:`MANY` clients on. A round replaces its cohort's rows; states share the
        others.
    met
        Whether two clients (or one client and itself) were ever in one cohort: the rows of a matrix like P.
    weights
        Gaussian weight γ of each client (Eq. 2), in [0, 1], shape (K,); low for a client unlike its cohorts.
        Only for output.
    mse
        Running mean of the matrix's squared change; 1 before the first update.
    rounds_settled
        Number of consecutive rounds in which the matrix was settled; reset after each test for a split.
    pairs_met
        Number of ordered pairs of different clients that have met.
    """

    members: IntArray
    rows: tuple[FloatArray, ...] = field(repr=False)
    met: tuple[BoolArray, ...] = field(repr=False)
    weights: FloatArray = field(repr=False)
    mse: float = 1.0
    rounds_settled: int = 0
    pairs_met: int = 0

    @property
    def matrix(self) -> FloatArray:
        """A copy of the interaction matrix P, shape (K, K)."""
        return np.stack(self.rows)

    @property
    def pair_coverage(self) -> float:
        """Share of the pairs of different clients that have met, in [0, 1]; 1 for a single client."""
        pairs = len(self.members) * (len(self.members) - 1)
        return self.pairs_met / pairs if pairs else 1.0

    def joined(self, newcomers: IntArray) -> "Interaction":
        """Return the state with new clients, which have met nobody: their entries are 0.

        Parameters
        ----------
        newcomers
            Client ids larger than those of all members, sorted, shape (n,).
        """
        added = (0, len(newcomers))
        return dataclasses.replace(
            self,
            members=np.concatenate([self.members, newcomers]),
            rows=tuple(np.pad(self.matrix, added)),
            met=tuple(np.pad(np.stack(self.met), added)),
            weights=np.pad(self.weights, added),
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a round. `labels` requests a split; the rest is for logs.

    Attributes
    ----------
    rewards
        Reward ω of each client of the cohort in (0, 1], shape (n,); empty if fewer than two replied.
    mse
        Running mean of the matrix's squared change that this round's test used.
    pair_coverage
        Share of the cluster's pairs that have met.
    settled
        Whether the matrix was settled this round.
    tried
        Whether a split was tried.
    davies_bouldin
        Score of each number of clusters tried that gave at least two parts of an acceptable size.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,), for :func:`children`; None if the
        cluster is not split.
    """

    rewards: FloatArray
    mse: float
    pair_coverage: float
    settled: bool = False
    tried: bool = False
    davies_bouldin: dict[int, float] = field(default_factory=dict)
    labels: IntArray | None = None


def affinity(interaction: FloatArray, kernel_width: float) -> FloatArray:
    """Compute the clients' affinities: how similarly the other clients perceive them.

    Source: FedGWC, Eq. 4. v_k^j, row k of the matrix without entries k and j, is how client k is perceived
    by all but itself and j; W_kj = exp(−β ‖v_k^j − v_j^k‖²). With D the squared distances of whole rows,
    ‖v_k^j − v_j^k‖² = D_kj − (p_k − P_jk)² − (P_kj − p_j)², p the diagonal. Computed in tiles.

    Parameters
    ----------
    interaction
        Interaction matrix P, shape (K, K).
    kernel_width
        β > 0.

    Returns
    -------
    Affinity W in [0, 1], symmetric, 1 on the diagonal, shape (K, K); float32 if `interaction` is, where
    errors of β‖v_k^j − v_j^k‖² are about 10⁻⁷ times the rows' squared distances from their mean.

    Examples
    --------
    >>> interaction = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> affinity(interaction, kernel_width=1.0).round(3)  # clients 0 and 2 differ in column 1: exp(−1)
    array([[1.   , 1.   , 0.368],
           [1.   , 1.   , 1.   ],
           [0.368, 1.   , 1.   ]])
    """
    single = interaction.dtype == np.float32
    return _affinity_of_own(np.array(interaction, dtype=np.float32 if single else np.float64), kernel_width)


def _affinity_of_own(matrix: FloatArray, kernel_width: float) -> FloatArray:
    """Compute the affinities, and overwrite the matrix: copying that of 10,000 clients takes long."""
    matrix = np.ascontiguousarray(matrix)
    if matrix.dtype == np.float32:
        # Distances stay the same, and sums of squares lose fewer digits, if columns have mean 0.
        matrix -= matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
    diagonal, norms = matrix.diagonal(), np.einsum("kj,kj->k", matrix, matrix)
    result = np.empty_like(matrix)

    def strip(first: int) -> None:
        last = min(first + _ROWS, len(matrix))
        np.matmul(matrix[first:last], matrix[first:].T, out=result[first:last, first:])
        # New memory for every tile would take as long as the tile.
        memory = np.empty((2, _BLOCK, _BLOCK), dtype=matrix.dtype)
        for top in range(first, last, _BLOCK):
            for left in range(top, len(matrix), _BLOCK):
                rows, columns = slice(top, min(top + _BLOCK, last)), slice(left, left + _BLOCK)
                products = result[rows, columns]
                excluded, tile = memory[:, : products.shape[0], : products.shape[1]]
                np.square(np.subtract(matrix[rows, columns], diagonal[columns], out=tile), out=excluded)
                np.subtract(matrix[columns, rows].T, diagonal[rows, None], out=tile)
                excluded += np.square(tile, out=tile)  # (P_kj − p_j)² + (p_k − P_jk)² at k, j
                np.add.outer(norms[rows], norms[columns], out=tile)
                tile -= np.multiply(products, 2, out=products)
                tile -= excluded  # the distances
                np.maximum(tile, 0, out=tile)  # round-off leaves values below 0
                np.exp(np.multiply(tile, -kernel_width, out=tile), out=tile)
                result[rows, columns] = np.triu(tile) + np.triu(tile, k=1).T if left == top else tile
                result[columns, rows] = result[rows, columns].T

    # A strip always takes one thread, so the sums do not depend on the number of threads.
    pools = thread_pools()
    threads = max((pool["num_threads"] for pool in pools.info()), default=1)
    with pools.limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as workers:
        list(workers.map(strip, range(0, len(matrix), _ROWS)))  # the longest first
    np.fill_diagonal(result, 1)
    return result


def affinity_of(state: Interaction, parameters: Parameters) -> FloatArray:
    """Compute a cluster's affinities with the settings in `parameters`.

    Parameters
    ----------
    state
        The cluster.
    parameters
        The vectors to compare and the kernel's width.

    Returns
    -------
    Affinity as in :func:`affinity`, shape (K, K).

    Examples
    --------
    >>> affinity_of(start(np.arange(2), Parameters()), Parameters())  # before any two have met
    array([[1., 1.],
           [1., 1.]])
    """
    matrix = state.matrix
    if parameters.compare == "columns":  # as a whole, so that columns stay comparable
        lowest, highest = matrix.min(), matrix.max()
        matrix = (matrix.T - lowest) / (highest - lowest if highest > lowest else matrix.dtype.type(1))
    return _affinity_of_own(matrix, parameters.kernel_width)


def rewards(losses: FloatArray) -> FloatArray:
    """Compute each client's reward: how close its losses are to its cohort's mean.

    Source: FedGWC, Eq. 1, averaged over local steps (Section 4.1).

    Parameters
    ----------
    losses
        Training loss before each local step, in nats, of at least two clients, shape (cohort, steps).

    Returns
    -------
    Reward in (0, 1], shape (cohort,); 1 if the client's loss equals the cohort's mean at every step.

    Raises
    ------
    ValueError
        If no clients or no steps are given, or a loss is not finite.

    Examples
    --------
    >>> rewards(np.array([[1.0], [2.0], [3.0]])).round(4)  # mean 2, variance 1: exp(−1/2), 1, exp(−1/2)
    array([0.6065, 1.    , 0.6065])
    """
    losses = np.asarray(losses, dtype=np.float64)
    check_shapes(losses=(losses, "clients steps"))
    check_entries("finite", losses=losses)
    # Rewards do not depend on the losses' origin or unit. After scaling to [0, 1], equal losses have a
    # variance of exactly 0, and tiny or huge losses neither underflow nor overflow.
    lowest, highest = losses.min(axis=0), losses.max(axis=0)
    scaled = (losses - lowest) / np.where(highest > lowest, highest - lowest, 1.0)
    deviation = np.square(scaled - scaled.mean(axis=0))
    variance = scaled.var(axis=0, ddof=1)
    exponent = deviation / np.where(variance > 0, 2 * variance, 1.0)  # a variance of 0 has deviations of 0
    return np.exp(-exponent).mean(axis=1)


def update_weights(weights: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Update the Gaussian weights of a cohort with a round's rewards.

    Source: FedGWC, Eq. 2: γ_k ← (1 − α) γ_k + α ω_k; other clients keep theirs.

    Parameters
    ----------
    weights
        Gaussian weights γ of the cohort, shape (n,).
    rewards
        Their rewards ω, shape (n,).
    step_size
        Weight α of the round, in (0, 1).

    Examples
    --------
    >>> update_weights(np.array([0.0, 1.0]), np.array([1.0, 1.0]), step_size=0.25)
    array([0.25, 1.  ])
    """
    return (1 - step_size) * weights + step_size * rewards


def update_interaction(interaction: FloatArray, rewards: FloatArray, step_size: float) -> FloatArray:
    """Update the interaction matrix with a round's rewards.

    Source: FedGWC, Eq. 3: P_kj ← (1 − α) P_kj + α ω_k for every ordered pair of the cohort, k = j included.
    All other entries stay the same, so only the cohort's n² of the K² entries are passed.

    Parameters
    ----------
    interaction
        Entries P_kj of the interaction matrix between the clients of the round, shape (n, n).
    rewards
        Their rewards ω, in the same order, shape (n,).
    step_size
        Weight α of the round, in (0, 1).

    Returns
    -------
    The new entries, shape (n, n).

    Examples
    --------
    >>> update_interaction(np.zeros((2, 2)), np.array([1.0, 0.5]), step_size=0.5)
    array([[0.5 , 0.5 ],
           [0.25, 0.25]])
    """
    return (1 - step_size) * interaction + step_size * rewards[:, None]


def update_mse(
    mse: float, before: FloatArray, after: FloatArray, num_entries: int, step_size: float
) -> float:
    """Update the running mean of the interaction matrix's squared change, which decides convergence.

    Source: FedGWC, Sections 4.2 and 4.3: MSE ← (1 − α) MSE + α d, from 1, where d is the mean of
    (P_t − P_{t−1})². The matrix has converged when the result is below ε.

    Parameters
    ----------
    mse
        Running mean before the round.
    before, after
        Entries that the round changed, before and after it, shape (n, n).
    num_entries
        Number of entries that d averages, including unchanged ones.
    step_size
        Weight α of the round, in (0, 1).

    Examples
    --------
    >>> update_mse(1.0, np.zeros((1, 1)), np.ones((1, 1)), num_entries=4, step_size=0.5)  # (1 + 1/4)/2
    0.625
    """
    change = np.square(after - before).sum() / num_entries
    return float((1 - step_size) * mse + step_size * change)


def split(
    affinity: FloatArray, max_clusters: int, parameters: Parameters, seed: int
) -> tuple[IntArray | None, dict[int, float]]:
    """Split a cluster's clients if a good division exists.

    Source: FedGWC, Algorithm 1: spectral clustering into 2 … n_max parts; the number with the smallest
    Davies–Bouldin score on the rows of W wins, if that score is at most `max_davies_bouldin`.

    Parameters
    ----------
    affinity
        Affinity W, shape (K, K).
    max_clusters
        n_max >= 2, cut to K − 1.
    parameters
        Settings of the divisions, and which one is acceptable.
    seed
        Seed >= 0 of spectral clustering.

    Returns
    -------
    labels
        Part of each client, numbered in order of first appearance, shape (K,); None when no split is
        justified.
    scores
        Davies–Bouldin score by number of clusters tried.

    Examples
    --------
    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))  # two pairs of clients
    >>> split(blocks, 2, Parameters(), seed=0)
    (array([0, 0, 1, 1]), {2: 0.0})
    """
    divisions = candidates(affinity, max_clusters, parameters, seed)
    scores = {number: score for number, (_, score) in divisions.items()}
    best = min(scores, key=scores.__getitem__, default=None)  # the first of equal ones, so the fewest
    if best is None or scores[best] > parameters.max_davies_bouldin:
        return None, scores
    return divisions[best][0], scores


def candidates(
    affinity: FloatArray, max_clusters: int, parameters: Parameters, seed: int
) -> dict[int, tuple[IntArray, float]]:
    """Divide clients into 2, 3 … `max_clusters` clusters and score each division.

    The labels are those of ``sklearn.cluster.SpectralClustering(n, affinity="precomputed")`` on the matrix,
    after :func:`join_small`: one unusual client must not prevent a division of the others.
    The eigenvectors do not depend on n, so they are computed once and each n uses the first n of them.

    Affinities in single precision are those of many clients; a full decomposition would take time cubic in
    their number. The few eigenvectors needed are computed by products with the matrix, and are less exact.

    Parameters
    ----------
    affinity
        Symmetric affinities in [0, 1], shape (K, K). For float32 ones the eigenvectors are those of
        :func:`few_eigenvectors`.
    max_clusters
        Largest number tried; cut to K − 1, above which the score is undefined.
    parameters
        How divisions are made and scored, with `min_cluster_size` set.
    seed
        Seed >= 0 of the eigensolver's start and of K-means.

    Returns
    -------
    By requested number of clusters, the cluster of each client, numbered in order of first appearance, shape
    (K,), and the finite Davies–Bouldin score; smaller is better. Divisions with fewer distinct clusters than
    requested, only one part of `min_cluster_size`, or an undefined score are left out; empty if all
    affinities are equal.

    Examples
    --------
    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))  # two pairs of clients
    >>> candidates(blocks, 2, Parameters(), seed=0)
    {2: (array([0, 0, 1, 1]), 0.0)}
    """
    from sklearn.cluster import SpectralClustering
    from sklearn.manifold import spectral_embedding

    beyond = parameters.score_on == "embedding"  # one more eigenvector, since the first one is constant
    most = min(max_clusters, len(affinity) - 1 - beyond)
    if most < 2 or np.ptp(_off_diagonal(affinity)) <= SAME:
        return {}
    random_state = seed % 2**32  # the range scikit-learn accepts
    graph = affinity
    if affinity.dtype == np.float32:
        embedding = few_eigenvectors(affinity, most + beyond, random_state)
    else:
        graph = np.maximum(affinity, SMALLEST)
        embedding = spectral_embedding(
            graph, n_components=most + beyond, random_state=random_state, drop_first=False
        )
    divisions = {}
    for number in range(2, most + 1):
        if parameters.assign_labels == "kmeans":
            labels = kmeans(embedding[:, :number], number, random_state)
        else:
            # scikit-learn offers this labelling only together with its own embedding.
            options = {"affinity": "precomputed", "assign_labels": parameters.assign_labels}
            spectral = SpectralClustering(number, random_state=random_state, **options)
            labels = spectral.fit_predict(graph)
        if len(np.unique(labels)) < number:
            continue
        labels = join_small(affinity, labels, parameters.smallest_part)
        if labels.any():
            score = davies_bouldin(embedding[:, 1 : number + 1] if beyond else affinity, labels)
            if math.isfinite(score):
                divisions[number] = labels, score
    return divisions


def few_eigenvectors(affinity: FloatArray, size: int, seed: int) -> FloatArray:
    """Compute the first eigenvectors of the normalised Laplacian, as ``sklearn.manifold.spectral_embedding``.

    Only products with the matrix are needed (LOBPCG: Knyazev, "Toward the optimal preconditioned
    eigensolver", SIAM Journal on Scientific Computing 23(2), 2001). The iteration ends after a fixed number
    of steps: vectors that have not converged by then belong to nearly equal eigenvalues, which do not come
    from a division into groups. 10⁻³⁰ is added to affinities, so that clients unlike all others are one
    part, as they are in double precision, where no affinity is below 10⁻¹⁰⁰.

    Parameters
    ----------
    affinity
        Affinity W, float32, shape (K, K); the diagonal does not count.
    size
        Number of vectors.
    seed
        Seed >= 0 of the first vectors.

    Returns
    -------
    Shape (K, size); the first column has one sign and, for connected clients, is constant.

    Examples
    --------
    >>> first = few_eigenvectors(np.ones((20, 20), np.float32), 1, seed=0)  # of degrees 19
    >>> np.allclose(first, 1 / np.sqrt(20 * 19))
    True
    """
    from scipy.linalg import LinAlgWarning
    from scipy.sparse.linalg import LinearOperator, lobpcg

    clients = len(affinity)
    diagonal = affinity.diagonal().astype(np.float64)
    degrees = np.maximum(affinity.sum(axis=1, dtype=np.float64) - diagonal, 0) + (clients - 1) * _LINK
    scale = 1 / np.sqrt(degrees)

    def product(vectors: FloatArray) -> FloatArray:
        scaled = vectors * scale[:, None]
        single = scaled.astype(np.float32)  # used on the diagonal, too, where the products must cancel
        whole = (affinity @ single).astype(np.float64) - diagonal[:, None] * single
        return scale[:, None] * (whole + _LINK * (scaled.sum(axis=0) - scaled))

    operator = LinearOperator(
        (clients, clients), matvec=lambda x: product(x.reshape(-1, 1)).ravel(), matmat=product, dtype=float
    )
    first = np.random.default_rng(seed).standard_normal((clients, size + _SPARE))
    first[:, 0] = np.sqrt(degrees)  # the eigenvector of the largest eigenvalue, 1
    with warnings.catch_warnings():
        for kind in (UserWarning, LinAlgWarning):  # about vectors that have not converged, see above
            warnings.simplefilter("ignore", kind)
        values, vectors = lobpcg(operator, first, largest=True, tol=_TOLERANCE, maxiter=_ITERATIONS)
    chosen = np.argsort(-values, kind="stable")[:size]
    rows = vectors[:, chosen] * scale[:, None]
    return np.asarray(rows * np.sign(rows[np.abs(rows).argmax(axis=0), np.arange(size)]))


def join_small(affinity: FloatArray, labels: IntArray, min_cluster_size: int) -> IntArray:
    """Dissolve clusters that are too small, the smallest first.

    Each client of such a cluster joins the other cluster whose mean row of the matrix is nearest to its own
    row; then sizes and means are recomputed, until no cluster is too small or only one is left.

    Parameters
    ----------
    affinity
        Affinities, shape (K, K).
    labels
        Cluster of each client, shape (K,).
    min_cluster_size
        Smallest cluster that stays, >= 1.

    Returns
    -------
    Cluster of each client, numbered in order of first appearance, shape (K,).

    Examples
    --------
    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))  # two pairs of clients
    >>> join_small(blocks, np.array([0, 0, 1, 2]), min_cluster_size=2)
    array([0, 0, 1, 1])
    """
    from scipy.spatial.distance import cdist

    labels = in_order_of_appearance(labels)
    while (sizes := np.bincount(labels)).min() < min_cluster_size and len(sizes) > 1:
        smallest = int(sizes.argmin())
        clients = labels == smallest
        means = np.stack([affinity[labels == part].mean(axis=0) for part in range(len(sizes))])
        distances = cdist(affinity[clients], means)
        distances[:, smallest] = np.inf
        labels[clients] = distances.argmin(axis=1)
        labels = in_order_of_appearance(labels)
    return labels


def _off_diagonal(matrix: FloatArray) -> FloatArray:
    # Without its last entry a K × K matrix in memory is K − 1 rows that begin on the diagonal: no copy.
    size = len(matrix)
    return np.ascontiguousarray(matrix).ravel()[:-1].reshape(size - 1, size + 1)[:, 1:]


def start(members: IntArray, parameters: Parameters) -> Interaction:
    """Create the state of a cluster before its first round.

    Parameters
    ----------
    members
        Client ids in any order, shape (K,).
    parameters
        Determines the initial matrix.

    Returns
    -------
    State in which no clients have met.

    Examples
    --------
    >>> start(np.array([7, 3]), Parameters())
    Interaction(members=array([3, 7]), mse=1.0, rounds_settled=0, pairs_met=0)
    """
    size = len(members)
    row = np.full(size, 1 / size**2 if parameters.initial == "uniform" else 0.0, _precision(size))
    return Interaction(np.sort(members), (row,) * size, (np.zeros(size, np.bool_),) * size, np.zeros(size))


def step(
    state: Interaction,
    cohort: IntArray,
    losses: Sequence[FloatArray] | FloatArray,
    parameters: Parameters,
    seed: int,
) -> tuple[Interaction, Outcome]:
    """Update a cluster with a round's losses, and decide whether to split it.

    Source: FedGWC, Algorithm 2, lines 11 to 17. Fewer than two replies change nothing.

    Parameters
    ----------
    state
        The cluster before the round.
    cohort
        Ids of the clients that replied, in any order, shape (n,).
    losses
        Loss of each of them before each local step, in nats, n arrays; only the steps that all ran are used.
    parameters
        How to measure and split, with `step_size` (or `cohort_size`) and `min_cluster_size` set.
    seed
        Seed >= 0 of spectral clustering.

    Returns
    -------
    state
        The cluster after the round.
    outcome
        Result of the round. If it has labels, :func:`children` creates the parts' states.

    Raises
    ------
    ValueError
        If a client is not a member, a client has no losses, a loss is not finite, or `parameters` lack a
        value that `resolve` sets.

    Examples
    --------
    >>> parameters, clients = Parameters(step_size=0.5), np.arange(2)
    >>> losses = np.array([[1.0], [3.0]])  # mean 2, variance 2: rewards exp(−1/4)
    >>> state, outcome = step(start(clients, parameters), clients, losses, parameters, seed=0)
    >>> outcome.rewards.round(4), state.matrix.round(4).tolist()
    (array([0.7788, 0.7788]), [[0.3894, 0.3894], [0.3894, 0.3894]])
    """
    num_members = len(state.members)
    step_size, max_clusters = parameters.step_size_of(num_members), parameters.max_clusters_of(num_members)
    positions = positions_of(cohort, state.members)
    if len(positions) < 2:
        return state, Outcome(np.zeros(0), state.mse, state.pair_coverage)

    num_steps = min(len(series) for series in losses)
    omega = rewards(np.stack([series[:num_steps] for series in losses]))
    before, unmet = _block(state.rows, positions), ~_block(state.met, positions)
    after = update_interaction(before, omega / omega.sum() if parameters.reward_shares else omega, step_size)
    num_entries = before.size if parameters.change == "cohort" else num_members**2
    mse = update_mse(state.mse, before, after, num_entries, step_size)
    tolerance = tolerance_of(parameters, len(positions), num_members, num_steps)
    rows, met, weights = list(state.rows), list(state.met), state.weights.copy()
    for place, entries in zip(positions, after, strict=True):
        rows[place], met[place] = rows[place].copy(), met[place].copy()
        rows[place][positions], met[place][positions] = entries, True
    weights[positions] = update_weights(weights[positions], omega, step_size)
    pairs_met = state.pairs_met + int(unmet.sum() - unmet.trace())
    state = Interaction(state.members, tuple(rows), tuple(met), weights, mse, state.rounds_settled, pairs_met)
    settled = state.pair_coverage >= parameters.min_pair_coverage and mse < tolerance
    state = dataclasses.replace(state, rounds_settled=state.rounds_settled + 1 if settled else 0)
    outcome = Outcome(omega, mse, state.pair_coverage, settled)
    if max_clusters < 2 or state.rounds_settled < parameters.patience_of(num_members):
        return state, outcome

    labels, scores = split(affinity_of(state, parameters), max_clusters, parameters, seed)
    mse = 1.0 if labels is None and parameters.reset_change else mse
    state = dataclasses.replace(state, rounds_settled=0, mse=mse)
    return state, dataclasses.replace(outcome, tried=True, davies_bouldin=scores, labels=labels)


def children(state: Interaction, labels: IntArray) -> list[Interaction]:
    """Create the states of the parts of a split cluster.

    Source: FedGWC, Algorithm 2, lines 18 and 19: each part takes its rows and columns of the matrix, and a
    mean squared change of 1. The pairs that have met and the Gaussian weights are kept.

    Parameters
    ----------
    state
        The cluster.
    labels
        Part of each member, numbered from 0 without gaps, shape (K,).

    Returns
    -------
    One state per part, in the order of their numbers; every member is in exactly one.

    Examples
    --------
    >>> parts = children(start(np.arange(4), Parameters()), np.array([0, 1, 0, 1]))
    >>> [part.members for part in parts]
    [array([0, 2]), array([1, 3])]
    """
    parts = []
    for number in range(labels.max() + 1):
        positions = np.flatnonzero(labels == number)
        matrix = _block(state.rows, positions).astype(_precision(len(positions)))
        met, weights = _block(state.met, positions), state.weights[positions]
        pairs_met = int(met.sum() - met.trace())
        parts.append(
            Interaction(state.members[positions], tuple(matrix), tuple(met), weights, pairs_met=pairs_met)
        )
    return parts


def _block(rows: Sequence[Array], positions: IntArray) -> Array:
    """Copy the entries between some clients, shape (n, n), from rows of a matrix."""
    return np.stack([rows[place][positions] for place in positions])


def _precision(size: int) -> type[np.float32 | np.float64]:
    return np.float32 if size >= MANY else np.float64
