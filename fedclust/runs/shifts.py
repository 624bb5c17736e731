"""Detect the kinds of shift between clients: of labels, numbers of examples, inputs, and meaning.

The words are the field's (Kairouz et al., "Advances and open problems in federated learning", 2021, Section
3.1): *label* shift, clients have the classes in different proportions; *quantity* skew, they have very
different numbers of examples; *feature* shift, the same class looks different; *concept* shift, the same
input has a different label. Prototypes tell the last two apart: where renaming the classes explains most of
the distance between two groups' prototypes, the groups differ in the classes' names, not in their looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, compress

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from fedclust import metrics
from fedclust.clustering import prototype_groups
from fedclust.clustering.label_groups import homogeneity
from fedclust.clustering.prototype_groups import Prototypes
from fedclust.clustering.shared import wording
from fedclust.metrics import label_shares
from fedclust.support.checks import few
from fedclust.typing import FloatArray, IntArray

LEAST_LABELS = 0.05
"""Share of a client's examples that would have to change class, beyond chance, for label shift to count."""

LEAST_QUANTITY = 0.2
"""Least Gini coefficient of the numbers of examples for quantity skew to count."""

LEAST_RENAMED = 0.5
"""Share of two groups' distance that renaming the classes must explain for concept shift to count."""


@dataclass(frozen=True)
class Shift:
    """Whether a kind of shift was seen.

    Attributes
    ----------
    kind
        ``label``, ``quantity``, ``feature`` or ``concept``.
    seen
        Whether it was; None where it could not be measured.
    size
        How large it is, in the unit that `text` names; None where it could not be measured.
    p_value
        Probability of a shift this large by chance; None where nothing was tested.
    text
        The evidence, in one sentence.
    """

    kind: str
    seen: bool | None
    size: float | None
    p_value: float | None
    text: str


@dataclass(frozen=True)
class Renaming:
    """How well renaming the classes explains the distance between two groups' prototypes.

    Attributes
    ----------
    first, second
        The groups.
    explained
        Share of their squared distance that goes away when the second group's classes are renamed, in [0, 1].
    pairs
        The renamed classes: what the first group calls a, the second calls b.
    """

    first: int
    second: int
    explained: float
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Looks:
    """What the clients' class prototypes show.

    Attributes
    ----------
    feature, concept
        The two kinds of shift that they can show.
    groups
        Group of each client by prototypes alone, shape (K,).
    """

    feature: Shift
    concept: Shift
    groups: IntArray


def label_shift(counts: IntArray, level: float = 0.05) -> Shift:
    """Test whether clients have the classes in different proportions.

    Its size is the mean over clients of the total variation distance between a client's class shares and
    everybody's, ½ Σ_c |p_ic − q_c|, less what it would be by chance if the client drew its n_i examples from
    q: E|p_ic − q_c| ≈ √(2 q_c (1 − q_c) / (π n_i)), the mean deviation of a normal variable.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (K, C).
    level
        Significance level of :func:`~fedclust.clustering.label_groups.homogeneity`.
    """
    shares, table = label_shares(counts), np.asarray(counts, dtype=np.float64)
    whole = table.sum(axis=0) / table.sum()
    apart = np.abs(shares - whole).sum(axis=1) / 2
    by_chance = np.sqrt(2 * whole * (1 - whole) / np.pi / table.sum(axis=1, keepdims=True)).sum(axis=1) / 2
    size = max(float((apart - by_chance).mean()), 0.0)
    p_value = homogeneity(counts).p_value
    seen = p_value < level and size >= LEAST_LABELS
    text = (
        f"{100 * size:.0f} % of a client's examples would have to change class, beyond chance, to match "
        f"everybody's shares (WPSI {metrics.weighted_psi(counts):.2f}, {wording.chance(p_value)})"
    )
    return Shift("label", seen, size, p_value, text)


def gini(numbers: IntArray) -> float:
    """Compute the Gini coefficient, half the mean difference of two numbers over their mean.

    Parameters
    ----------
    numbers
        Numbers >= 0 of which one is above 0, shape (K,).

    Returns
    -------
    0 where all are equal, up to 1 − 1/K where one has everything.
    """
    ordered = np.sort(np.asarray(numbers, dtype=np.float64))
    ranks = np.arange(1, len(ordered) + 1)
    return float((2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * ordered.sum()))


def quantity_skew(sizes: IntArray) -> Shift:
    """Measure how unequal the clients' numbers of examples are; the size is their Gini coefficient.

    Parameters
    ----------
    sizes
        Training examples of each client, shape (K,).
    """
    size = gini(sizes)
    text = (
        f"clients have {int(np.min(sizes)):,} to {int(np.max(sizes)):,} training examples, the median "
        f"{np.median(sizes):,.0f} (Gini coefficient {size:.2f})"
    )
    return Shift("quantity", size >= LEAST_QUANTITY, size, None, text)


def renaming(groups: Prototypes, first: int, second: int) -> Renaming:
    """Find the renaming of the second group's classes that makes it look most like the first.

    The unbiased squared distance of two prototypes is D = ‖μ_c − μ'_c'‖² − σ²_c/n_c − σ²_c'/n'_c'. Over the
    classes that both groups have, the names with the least Σ D solve an assignment problem; they explain
    1 − Σ D(best)/Σ D(as named).

    Parameters
    ----------
    groups
        Prototypes of groups of clients pooled.
    first, second
        Indices of the two groups.
    """
    counts, variances = groups.counts, groups.variances
    shared = np.flatnonzero((counts[first] > 0) & (counts[second] > 0))
    one, other = (groups.means[group, shared].astype(np.float64) for group in (first, second))
    by_chance = [variances[shared] / counts[group, shared] for group in (first, second)]
    squares = np.square(one[:, None] - other[None]).sum(axis=2)
    excess = squares - by_chance[0][:, None] - by_chance[1][None]
    rows, columns = linear_sum_assignment(excess)
    named = float(np.trace(excess))
    explained = 1 - float(excess[rows, columns].sum()) / named if named > 0 else 0.0
    differ = rows != columns
    pairs = tuple(zip(shared[rows[differ]].tolist(), shared[columns[differ]].tolist(), strict=True))
    return Renaming(first, second, float(np.clip(explained, 0, 1)), pairs)


def looks_shift(
    prototypes: FloatArray,
    counts: IntArray,
    scatter: FloatArray,
    parameters: prototype_groups.Parameters,
    class_names: Sequence[str] = (),
    client_names: Sequence[str] = (),
) -> Looks:
    """Test whether the same class looks different on different clients, or has another name.

    Parameters
    ----------
    prototypes, counts, scatter
        As for :func:`fedclust.clustering.prototype_groups.assign`.
    parameters
        When clients form groups.
    class_names
        Names of the classes, shape (C,); empty for their numbers.
    client_names
        Names of the clients, shape (K,); empty if they have none.
    """
    groups, report = prototype_groups.assign(prototypes, counts, scatter, parameters)
    p_value, number = report.test.p_value, int(groups.max()) + 1
    clients, _ = prototype_groups.measured(prototypes, counts, scatter)
    pooled = clients.pooled(groups)
    renamings = [renaming(pooled, *pair) for pair in combinations(range(number), 2)]
    renamed = [each for each in renamings if each.explained >= LEAST_RENAMED]
    others, chance = len(renamed) < len(renamings), wording.chance(p_value)
    size: float | None = 0.0
    why = "differ, but form no groups" if p_value < parameters.level else "differ no more than by chance"
    if number > 1:
        apart = report.distances[np.triu_indices(number, 1)]
        size = float(np.sqrt(np.nanmean(np.maximum(apart, 0)))) if np.isfinite(apart).any() else None
        more = f", {size or 0:.1f} times as far apart as two classes are"
        same = ", which renaming the classes explains: the same things look alike"
        why = f"form {number} groups ({chance}){more if others else same}"
    else:
        why += f" ({chance})"
    feature = Shift("feature", others, size, p_value, f"the clients' class prototypes {why}")
    if not renamed:
        why = "no two groups differ by the names of their classes" if renamings else "there is one group"
        return Looks(feature, Shift("concept", False, 0.0, None, why), groups)
    most = max(renamed, key=lambda each: each.explained)
    names = [str(name) for name in class_names] or list(map(str, range(np.shape(counts)[1])))
    (one, other), *rest = most.pairs
    more = f", and {len(rest)} more {'classes' if len(rest) > 1 else 'class'}" if rest else ""
    members = [list(compress(client_names, groups == each)) for each in (most.first, most.second)]
    first, second = (f" ({few(each)})" if each else "" for each in members)
    who = f"group {most.first}{first} and group {most.second}{second}"
    text = (
        f"renaming the classes explains {100 * most.explained:.0f} % of the distance between {who}: what "
        f"group {most.first} calls {names[one]}, group {most.second} calls {names[other]}{more}"
    )
    return Looks(feature, Shift("concept", True, most.explained, p_value, text), groups)


@dataclass(frozen=True, eq=False)
class Agreement:
    """How clients' updates from one model agree.

    Attributes
    ----------
    ratio
        Similarity of two clients' updates, relative to that of one client's two updates from different
        batches: 1 for clients of one kind, 0 for unrelated ones, below 0 for opposed ones. NaN where a
        client's own two updates are unrelated, so that nothing can be concluded.
    own
        Mean cosine of a client's two updates, in [−1, 1].
    others
        Mean cosine of updates of two clients from different batches, in [−1, 1].
    cosines
        Of each client's first update and each client's second, made symmetric, shape (K, K).
    """

    ratio: float
    own: float
    others: float
    cosines: FloatArray


def agreement(first: ArrayLike, second: ArrayLike) -> Agreement:
    """Compare clients' updates from one model, each made twice from different batches.

    Two clients' updates differ because of their data and because of the batches they drew. A client's second
    update shows the part of the batches alone: the ratio of cos(Δ_i, Δ'_j) to cos(Δ_i, Δ'_i), both averaged,
    is free of it. Both updates are from the same examples, though: the fewer a client has, the more its own
    two updates share, so that IID clients of 40 digits reach 0.5, and 1 only with many examples.

    Parameters
    ----------
    first, second
        Projections of each client's two updates, shape (K, m), K >= 2. A client without an update (all 0)
        is ignored.

    Raises
    ------
    ValueError
        If the shapes differ or there are fewer than two clients with updates.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.ndim != 2 or one.shape != other.shape:
        raise ValueError(f"first and second must have one shape (K, m), got {one.shape} and {other.shape}")
    lengths = [np.linalg.norm(values, axis=1, keepdims=True) for values in (one, other)]
    moved = ((lengths[0] > 0) & (lengths[1] > 0)).ravel()
    if moved.sum() < 2:
        raise ValueError(f"at least two clients must have updates, got {int(moved.sum())}")
    first_units, second_units = (
        values / np.where(length > 0, length, 1) for values, length in zip((one, other), lengths, strict=True)
    )
    cosines = first_units @ second_units.T
    cosines = (cosines + cosines.T) / 2
    compared = cosines[np.ix_(moved, moved)]
    own = float(np.diag(compared).mean())
    others = float(compared[~np.eye(len(compared), dtype=bool)].mean())
    return Agreement(others / own if own > 0.05 else float("nan"), own, others, cosines)
