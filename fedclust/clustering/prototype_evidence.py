"""Measure how much class prototypes differ, beyond what is due to chance with few examples.

The statistics of :mod:`fedclust.clustering.prototype_groups`. A prototype is the mean embedding of a class's
examples on a client (Ali and Brattain, "FMCL", arXiv:2604.27510). If one example's embedding has total
variance σ², the mean of n has σ²/n: two prototypes of the same class have a mean squared distance of
σ²(1/n + 1/n') when clients do not differ. Every difference here is compared with that.

Everything is computed class by class in double precision. Embeddings are used only in sums over their
dimensions: rotating or translating the embedding changes nothing, and scaling it scales variances and
separation by the same factor.
"""

from dataclasses import dataclass

import numpy as np

from fedclust.clustering.shared.limits import LARGEST_SHARE, limit_values
from fedclust.typing import FloatArray, IntArray

_FEW_COLUMNS = 64
_FEWEST = 5  # clients: of fewer, one moves the quartiles
_BLOCK_ENTRIES = 2**22  # of one float64 block of prototypes, 32 MB


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Class prototypes of clients, or of groups of clients pooled.

    Attributes
    ----------
    means
        Mean embedding of each class, any floating type, shape (K, C, d). Without examples it may have any
        value, also NaN.
    counts
        Examples behind each mean, shape (K, C).
    variances
        σ²_c > 0, total variance of one example around its client's prototype, in squared units of the
        embedding, shape (C,).
    """

    means: FloatArray
    counts: FloatArray
    variances: FloatArray

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def within(self) -> int:
        """Degrees of freedom of the variances if rows are single clients: Σ max(n_ic − 1, 0)."""
        return int(np.maximum(self.counts - 1, 0).sum())

    def rows(self, chosen: IntArray) -> "Prototypes":
        """Return some rows, shape (n, C, d)."""
        return Prototypes(self.means[chosen], self.counts[chosen], self.variances)

    def of_class(self, index: int) -> tuple[IntArray, FloatArray]:
        """Return the rows that have a class, shape (m,), and a copy of their prototypes, float64, (m, d)."""
        mine = np.flatnonzero(self.counts[:, index])
        return mine, self.means[mine, index].astype(np.float64)

    def pooled(self, labels: IntArray) -> "Prototypes":
        """Average each group's prototypes, weighted by examples.

        Parameters
        ----------
        labels
            Group of each row, 0…G−1, shape (K,).

        Returns
        -------
        One row per group, shape (G, C, d); mean 0 if no member of the group has the class.
        """
        from scipy.sparse import csr_array

        shape = int(labels.max()) + 1, len(labels)
        member = csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=shape)
        sums = member @ self.counts
        means = np.zeros((shape[0], *self.means.shape[1:]))
        for index in range(self.counts.shape[1]):
            mine, rows = self.of_class(index)
            weighted = member[:, mine] @ (rows * self.counts[mine, index, None])
            means[:, index] = weighted / np.maximum(sums[:, index, None], 1)
        return Prototypes(means, sums, self.variances)


@dataclass(frozen=True)
class FTest:
    """Outcome of the test that all clients have the same prototypes.

    Attributes
    ----------
    statistic
        F: variance between clients' prototypes divided by that due to the scatter of examples; about 1 for
        alike clients, NaN if no class is on two clients.
    between, within
        Degrees of freedom.
    p_value
        Probability of an F at least as large when clients are alike, in [0, 1]; 1 if nothing can be tested.
    """

    statistic: float
    between: int
    within: int
    p_value: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every row of one set of prototypes against every row of another, summed over the classes both have.

    Attributes
    ----------
    excess
        Σ h·D: squared distance beyond that due to chance, in units of that due to chance; 0 on average
        when rows do not differ. Shape (A, B).
    weight
        Σ h, with h = 1/(σ²(1/n + 1/n')): certainty of the distances; 0 if no class is shared. Shape
        (A, B).
    shared
        Number of classes that both have, shape (A, B).
    """

    excess: FloatArray
    weight: FloatArray
    shared: IntArray

    def evidence(self, threshold: float) -> FloatArray:
        """Return S = Σ h(D − threshold): negative for alike rows, positive for others, shape (A, B)."""
        return self.excess - threshold * self.weight

    def distance(self, missing: float) -> FloatArray:
        """Return e = Σ hD / Σ h, the unbiased squared distance; `missing` where no class is shared."""
        empty = np.full_like(self.excess, missing)
        return np.divide(self.excess, self.weight, out=empty, where=self.shared > 0)

    def p_values(self, within: int) -> FloatArray:
        """Return each pair's p-value of the F-test, if the variances have `within` degrees of freedom.

        1 if no class is shared.
        """
        from scipy.special import fdtrc

        shared = np.maximum(self.shared, 1)
        tails = fdtrc(shared, max(within, 1), np.maximum(self.excess + self.shared, 0.0) / shared)
        return np.where(self.shared > 0, tails, 1.0)


def sent_counts(counts: IntArray, min_examples: int) -> IntArray:
    """Return the counts of the classes whose prototypes clients send: 0 for one with too few examples.

    Parameters
    ----------
    counts
        Training examples of each class on each client, any shape.
    min_examples
        Examples that a class must have on a client.
    """
    return np.where(np.asarray(counts) < min_examples, 0, counts)


def check_prototypes(prototypes: FloatArray, weights: FloatArray | IntArray, name: str) -> None:
    """Check what clients report of their classes.

    Parameters
    ----------
    prototypes
        Mean embedding of each class on each client, shape (K, C, d).
    weights
        Share or number of the client's examples in each class, shape (K, C); 0 for a class that it lacks.
    name
        Name of the weights in the error message.

    Raises
    ------
    ValueError
        If shapes do not fit, a weight is negative or not finite, or the prototype of a class that a client
        has is not finite.
    """
    if weights.ndim != 2 or not weights.size:
        raise ValueError(f"{name} must have shape (clients, classes), got shape {weights.shape}")
    if prototypes.ndim != 3 or prototypes.shape[:2] != weights.shape:
        expected = (*weights.shape, "width")
        raise ValueError(f"prototypes must have shape {expected}, got shape {prototypes.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise ValueError(f"{name} must be finite and >= 0, got {weights[wrong][0]}")
    # Client by client: a mask of all prototypes at once would need another quarter of their memory.
    for client, (means, present) in enumerate(zip(prototypes, weights > 0, strict=True)):
        broken = np.flatnonzero(present & ~np.isfinite(means).all(axis=1))
        if broken.size:
            raise ValueError(f"prototypes must be finite, got client {client}, class {broken[0]}")


def class_variances(counts: IntArray, scatter: FloatArray) -> FloatArray:
    """Pool the clients' scatter: σ²_c = Σ_i (n_ic − 1) s_ic / Σ_i (n_ic − 1).

    A client's scatter counts as at least a tenth and at most ten times the median client's, so that no client
    alone decides which differences are due to chance.

    Parameters
    ----------
    counts
        Examples of each class on each client, shape (K, C).
    scatter
        s_ic = Σ‖x − μ_ic‖²/(n_ic − 1), the embeddings' total variance, shape (K, C). Ignored where a client
        has fewer than two examples of the class.

    Returns
    -------
    Total variance of an example around its client's prototype, in squared units of the embedding, shape (C,);
    NaN for a class of which no client has two examples.
    """
    freedom = np.maximum(np.asarray(counts, dtype=np.float64) - 1, 0)
    total = freedom.sum(axis=0)
    spread = np.where(freedom > 0, scatter, 0.0)
    for column, counted in zip(spread.T, freedom.T > 0, strict=True):
        column[counted] = limit_values(column[counted], 1 / LARGEST_SHARE)
    return np.divide((freedom * spread).sum(axis=0), total, out=np.full(total.shape, np.nan), where=total > 0)


def f_ratio(prototypes: Prototypes, labels: IntArray) -> tuple[float, int]:
    """Compare the distances of prototypes from their group's with those due to the scatter of examples.

    F = [Σ_c Σ_i n_ic‖μ_ic − μ̄_gc‖²/σ²_c] / Σ_c Σ_g (m_gc − 1), with m_gc the clients of group g that have the
    class and μ̄_gc their weighted mean.

    Parameters
    ----------
    prototypes
        Of the K clients.
    labels
        Group of each client, 0…G−1, shape (K,); zeros for the federation as a whole.

    Returns
    -------
    ratio
        F, about 1 where the clients of a group are alike; NaN without degrees of freedom.
    freedom
        The denominator, Σ (m_gc − 1).
    """
    groups = prototypes.pooled(labels)
    total, freedom = 0.0, 0
    for index, variance in enumerate(prototypes.variances):
        mine, rows = prototypes.of_class(index)
        rows -= groups.means[labels[mine], index]
        total += float(prototypes.counts[mine, index] @ (rows**2).sum(axis=1) / variance)
        freedom += mine.size - np.unique(labels[mine]).size
    return (total / freedom if freedom else np.nan), freedom


def f_test(prototypes: Prototypes) -> FTest:
    """Test whether all clients have the same prototypes.

    F is compared with F(Σ(m_c − 1), Σ(n_ic − 1)), as if an embedding had one dimension: with more, F varies
    less when clients are alike, so the test favours one cluster.

    Parameters
    ----------
    prototypes
        Of the K clients.

    Returns
    -------
    The outcome.
    """
    from scipy.special import fdtrc

    ratio, between = f_ratio(prototypes, np.zeros(len(prototypes), dtype=np.int64))
    within = prototypes.within
    tested = between > 0 and within > 0
    return FTest(ratio, between, within, float(fdtrc(between, within, ratio)) if tested else 1.0)


def class_separation(prototypes: Prototypes) -> float:
    """Measure the mean squared distance between two classes, to which those between clients are compared.

    b is the mean over clients and their pairs of classes of ‖μ_ic − μ_ic'‖² − σ²_c/n_ic − σ²_c'/n_ic', which
    is unbiased, weighted by 1/(1/n_ic + 1/n_ic'). A client's own mean counts as at most ten times the median
    client's, or ten times the distance of the clients' quartiles above them if that is more, so that no
    client alone can make all differences look small. Of fewer than five clients each counts in full.

    Parameters
    ----------
    prototypes
        Of the K clients.

    Returns
    -------
    b >= 0, a squared distance: from the pooled prototypes if no client has two classes; 0 if there is only
    one class, or classes are not found to differ.
    """
    if ((prototypes.counts > 0).sum(axis=1) < 2).all():
        prototypes = prototypes.pooled(np.zeros(len(prototypes), dtype=np.int64))
    totals, weights_of = np.zeros(len(prototypes)), np.zeros(len(prototypes))
    height = max(1, _BLOCK_ENTRIES // max(1, prototypes.means[0].size))
    for start in range(0, len(prototypes), height):
        own = prototypes.counts[start : start + height]
        held = own > 0
        rows = np.where(held[:, :, None], prototypes.means[start : start + height], 0.0).astype(np.float64)
        # Centred per client, so that the differences of squares below lose little precision.
        middle = rows.sum(axis=1, keepdims=True) / np.maximum(held.sum(axis=1), 1)[:, None, None]
        rows = np.where(held[:, :, None], rows - middle, 0.0)
        products = rows @ rows.transpose(0, 2, 1)
        norms = np.diagonal(products, axis1=1, axis2=2)
        inverse = np.divide(1.0, own, out=np.zeros_like(own), where=held)
        chance = np.where(held, prototypes.variances * inverse, 0.0)
        apart = norms[:, :, None] + norms[:, None] - 2 * products - chance[:, :, None] - chance[:, None]
        pairs = np.triu(np.ones(apart.shape[1:], dtype=bool), k=1) & held[:, :, None] & held[:, None]
        sums = inverse[:, :, None] + inverse[:, None]
        weights = np.divide(1.0, sums, out=np.zeros_like(sums), where=pairs)
        totals[start : start + height] = (weights * apart).sum(axis=(1, 2))
        weights_of[start : start + height] = weights.sum(axis=(1, 2))
    some = weights_of > 0
    own_means = _limited(totals[some] / weights_of[some])
    weight = float(weights_of.sum())
    return max(float(weights_of[some] @ own_means) / weight, 0.0) if weight else 0.0


def _limited(values: FloatArray) -> FloatArray:
    """Limit values, whose median may be 0 by chance, by their quartiles."""
    if len(values) < _FEWEST:
        return values
    low, middle, high = np.percentile(values, [25, 50, 75])
    return np.minimum(values, max(LARGEST_SHARE * middle, high + LARGEST_SHARE * (high - low)))


def compare(prototypes: Prototypes, others: Prototypes) -> Comparison:
    """Compare every row of one set of prototypes with every row of another.

    Per shared class h = 1/(σ²_c(1/n + 1/n')) and D = ‖μ − μ'‖² − σ²_c(1/n + 1/n'), whose mean is the squared
    distance of the true prototypes. hD = h‖μ − μ'‖² − 1.

    Parameters
    ----------
    prototypes
        One set, A rows.
    others
        The other, B rows, with the same variances.

    Returns
    -------
    Sums over classes, each shape (A, B).
    """
    from scipy.spatial.distance import cdist

    shape = len(prototypes), len(others)
    excess, weight, shared = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    for index, variance in enumerate(prototypes.variances):
        mine, rows = prototypes.of_class(index)
        theirs, columns = others.of_class(index)
        if not mine.size or not theirs.size:
            continue
        if len(columns) <= _FEW_COLUMNS:
            apart = cdist(rows, columns, "sqeuclidean")
        else:
            # Faster. Centred, so that the differences of squares lose little precision; not around the mean,
            # which one row can take far away from all others.
            middle = np.median(columns, axis=0)
            rows -= middle
            columns -= middle
            apart = (rows**2).sum(axis=1)[:, None] + (columns**2).sum(axis=1) - 2 * (rows @ columns.T)
        chance = 1 / prototypes.counts[mine, index, None] + 1 / others.counts[theirs, index]
        certainty = 1 / (variance * chance)
        pairs = np.ix_(mine, theirs)
        excess[pairs] += certainty * np.maximum(apart, 0.0) - 1
        weight[pairs] += certainty
        shared[pairs] += 1
    return Comparison(excess, weight, shared)
