"""Groupings of a cluster's clients that may be worth a trial, from the data of four witnesses.

Each witness proposes groupings into two and three parts, and into as many as its own evidence shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedclust.clustering import label_groups, loss_traces, prototype_groups
from fedclust.clustering.label_groups import homogeneity
from fedclust.clustering.loss_traces import Trace
from fedclust.clustering.shared import grouping
from fedclust.clustering.shared.grouping import cosine_distances, in_order_of_appearance
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.metrics import silhouette
from fedclust.typing import BoolArray, FloatArray, IntArray

_NUMBERS = (2, 3)  # numbers of parts that every witness proposes
_MOST_PARTS = 10
_UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Proposal:
    """A grouping of a cluster's clients.

    Attributes
    ----------
    source
        Name of its source, one of :data:`fedclust.clustering.auto.SOURCES`.
    labels
        Part of each member, numbered in order of first appearance, shape (n,); −1 if not known yet.

    Examples
    --------
    >>> Proposal("updates", np.array([0, 0, 1])).num_parts
    2
    """

    source: str
    labels: IntArray

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return int(self.labels.max()) + 1


def cuts(distances: FloatArray, numbers: Iterable[int], min_size: int) -> dict[int, IntArray]:
    """Cut an average-linkage tree into parts that are large enough, once for each number of parts.

    A few odd clients are merged last, so a plain cut in two often splits off one of them. Here the tree is
    cut into 2, 3, … groups until enough of them have `min_size` clients; each client of a smaller one then
    joins the large one that is nearest on average.

    Parameters
    ----------
    distances
        Symmetric distances with diagonal 0, shape (n, n).
    numbers
        Numbers of parts wanted, each >= 2.
    min_size
        Fewest clients of a part, >= 1.

    Returns
    -------
    Part of each client, numbered in order of first appearance, shape (n,), by number of parts; numbers that
    no cut gives are left out.

    Examples
    --------
    >>> points = np.array([0.0, 1.0, 10.0, 11.0, 30.0])
    >>> cuts(abs(np.subtract.outer(points, points)), numbers=[2], min_size=2)
    {2: array([0, 0, 1, 1, 1])}
    """
    by_number = dict[int, IntArray]()
    missing = {each for each in numbers if each * min_size <= len(distances)}
    if not missing:
        return by_number
    pairs, _ = grouping.merges(distances, "average")
    for number in range(2, len(distances) + 1):  # each adds one large part at most
        groups = grouping.cut(pairs, number)
        large = np.flatnonzero(np.bincount(groups) >= min_size)
        if len(large) in missing:
            to_part = np.stack([distances[:, groups == part].mean(axis=1) for part in large], axis=1)
            labels = np.where(np.isin(groups, large), groups, large[to_part.argmin(axis=1)])
            by_number[len(large)] = in_order_of_appearance(labels)
            missing.remove(len(large))
        if not missing:
            break
    return by_number


def by_updates(updates: FloatArray, min_size: int) -> list[Proposal]:
    """Group clients by the directions of their updates from one model.

    Parameters
    ----------
    updates
        Each client's update or a projection of it, shape (n, d); a row of zeros counts as orthogonal to all
        others.
    min_size
        Fewest clients of a part.

    Returns
    -------
    Groupings into 2 and 3 parts, and into the number, up to 10, with the largest mean silhouette, if any.

    Examples
    --------
    >>> updates = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> [proposal.labels for proposal in by_updates(updates, min_size=2)]
    [array([0, 0, 1, 1])]
    """
    distances = cosine_distances(updates)
    most = min(_MOST_PARTS, len(updates) - 1)
    groupings = cuts(distances, {*_NUMBERS, *range(2, most + 1)}, min_size)
    scores = {number: silhouette(distances, labels) for number, labels in groupings.items()}
    best = max(scores, key=lambda number: (scores[number], -number), default=0)
    return [Proposal("updates", groupings[number]) for number in sorted({*_NUMBERS, best} & {*groupings})]


def by_losses(trace: Trace, min_size: int, seed: int) -> list[Proposal]:
    """Group clients by their loss traces (:mod:`fedclust.clustering.loss_traces`).

    Parameters
    ----------
    trace
        The cluster's losses so far.
    min_size
        Fewest clients of a part.
    seed
        Seed >= 0 of the fits' starts.

    Returns
    -------
    For 2 and for 3 parts, and for the largest number of parts that are far enough apart, the fit whose parts
    are furthest apart, over the trace's members; the parts of members that never took part are unknown.
    """
    parameters = loss_traces.Parameters(min_cluster_size=max(2, min_size))
    best: dict[int, loss_traces.Grouping] = {}
    for each in loss_traces.groupings(trace, parameters, seed):
        if each.num_parts not in best or each.separation > best[each.num_parts].separation:
            best[each.num_parts] = each
    own = max((number for number, each in best.items() if each.separation >= 1), default=0)
    _, observed = trace.entries()
    return [
        Proposal("losses", spread(best[number].labels[observed], observed, len(trace.members)))
        for number in sorted({*_NUMBERS, own} & {*best})
    ]


def by_labels(counts: IntArray, seed: int) -> tuple[list[Proposal], IntArray]:
    """Group clients by their label counts, if these differ by more than chance.

    Parameters
    ----------
    counts
        Training examples of each class on each client, shape (n, C).
    seed
        Seed of K-means++, in [0, 2³²).

    Returns
    -------
    proposals
        Groupings into 2 and 3 parts, and into the number with the least predicted error
        (:mod:`fedclust.clustering.label_groups`). The parts of clients without examples are unknown.
    alone
        Positions of the clients whose counts are unlike all others', see
        :func:`~fedclust.clustering.label_groups.alone`.
    """
    reported, counts = counts, limit_sizes(counts)
    known = np.flatnonzero(np.sum(counts, axis=1) > 0)
    parameters = label_groups.Parameters()
    if len(known) < 3:
        return [], known[:0]
    rows, sizes = label_groups.features(counts[known]), counts[known].sum(axis=1)
    alone = known[label_groups.alone(reported[known], rows)]
    if homogeneity(counts[known]).p_value >= parameters.level:
        return [], alone
    groupings = label_groups.candidates(rows, sizes, max(_NUMBERS), seed, parameters.num_starts)
    own, _ = label_groups.assign(counts[known], parameters, seed)
    return [
        Proposal("labels", spread(labels, known, len(counts)))
        for labels in (*groupings.values(), own)
        if labels.max() > 0
    ], alone


def by_prototypes(
    prototypes: FloatArray, counts: IntArray, scatter: FloatArray, min_size: int
) -> tuple[list[Proposal], IntArray]:
    """Group clients by their class prototypes, if these differ by more than chance.

    Parameters
    ----------
    prototypes, counts, scatter
        As for :func:`fedclust.clustering.prototype_groups.assign`.
    min_size
        Fewest clients of a part.

    Returns
    -------
    proposals
        The groups that prototypes form, with those that are too small joined to the nearest, and groupings
        into 2 and 3 parts by average linkage of the distances between groups.
    alone
        Positions of the clients that form groups of one, if they are few.
    """
    groups, report = prototype_groups.assign(prototypes, counts, scatter, prototype_groups.Parameters())
    if groups.max() == 0:
        return [], report.alone
    apart = np.where(np.isnan(report.distances), np.nanmax(report.distances), report.distances)
    apart = np.maximum((apart + apart.T) / 2, 0.0)
    np.fill_diagonal(apart, 0.0)
    between = apart[np.ix_(groups, groups)]
    numbers = {*_NUMBERS, int(np.count_nonzero(np.bincount(groups) >= min_size))} - {0, 1}
    groupings = cuts(between, numbers, min_size)
    return [Proposal("prototypes", groupings[number]) for number in sorted(groupings)], report.alone


def distinct(
    proposals: Iterable[Proposal], min_size: int, most: int, votes: BoolArray | None = None
) -> list[Proposal]:
    """Drop proposals with parts that are too small, and all but the first of equal ones.

    Two are equal if they agree on the clients whose part both know, and these clients cover all parts of
    both. A part needs clients with held-out rows: otherwise the grouping could pass because the other parts
    gain, and the part's clients would get a model that was never compared.

    Parameters
    ----------
    proposals
        Proposals for the same clients, in any order.
    min_size
        Fewest clients of a part that vote.
    most
        Largest number to keep; the first ones are kept.
    votes
        Which clients have enough held-out rows to vote, shape (n,); None for all.

    Examples
    --------
    >>> labels = [[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]  # the second repeats, the third has a part of one
    >>> proposals = [Proposal("updates", np.array(each)) for each in labels]
    >>> [proposal.labels for proposal in distinct(proposals, min_size=2, most=5)]
    [array([0, 0, 1, 1])]
    """
    kept: list[Proposal] = []
    for each in proposals:
        voting = each.labels if votes is None else np.where(votes, each.labels, _UNKNOWN)
        sizes = np.bincount(voting[voting >= 0], minlength=each.num_parts)
        if each.num_parts < 2 or sizes.min() < min_size:
            continue
        if not any(_same(each, other) for other in kept):
            kept.append(each)
    return kept[:most]


def place(labels: IntArray, best: Mapping[int, int]) -> IntArray:
    """Assign clients whose part is unknown to the part whose model fits them best.

    Parameters
    ----------
    labels
        Part of each client, −1 where it is not known, shape (n,).
    best
        By client's position, the part whose model fits its training data best; others join the largest part.

    Returns
    -------
    Part of each client, shape (n,).

    Examples
    --------
    >>> place(np.array([0, 0, 1, -1, -1]), best={3: 1})
    array([0, 0, 1, 1, 0])
    """
    placed = np.asarray(labels).copy()
    largest = int(np.bincount(placed[placed >= 0]).argmax())
    for position in np.flatnonzero(placed < 0).tolist():
        placed[position] = best.get(position, largest)
    return placed


def moved(
    before: IntArray, wanted: Mapping[int, int], votes: BoolArray | None = None, min_size: int = 0
) -> IntArray:
    """Move clients to other clusters, unless the cluster that they leave becomes too small.

    Moves are undone repeatedly, because one that is undone may have kept another cluster large enough.

    Parameters
    ----------
    before
        Cluster of each client, shape (n,).
    wanted
        By position of a client, the cluster to move it to.
    votes
        Which clients have held-out rows, shape (n,); None for all.
    min_size
        Fewest voting clients that must be left in a cluster.

    Returns
    -------
    Cluster of each client, shape (n,).

    Examples
    --------
    >>> moved(np.array([0, 0, 1, 1]), wanted={0: 1})
    array([1, 0, 1, 1])
    >>> moved(np.array([0, 0, 1, 1]), wanted={0: 1}, min_size=2)  # one client would be left
    array([0, 0, 1, 1])
    """
    after = np.array(before)
    after[[*wanted]] = [*wanted.values()]
    most = int(max(before.max(), after.max())) + 1
    while True:
        sizes = np.bincount(after if votes is None else after[votes], minlength=most)
        undone = (after != before) & (sizes[before] < min_size)
        if not undone.any():
            return after
        after[undone] = before[undone]


def _same(one: Proposal, other: Proposal) -> bool:
    both = (one.labels >= 0) & (other.labels >= 0)
    first, second = one.labels[both], other.labels[both]
    if len(np.unique(first)) < one.num_parts or len(np.unique(second)) < other.num_parts:
        return False
    return np.array_equal(in_order_of_appearance(first), in_order_of_appearance(second))


def spread(labels: IntArray, known: IntArray, number: int) -> IntArray:
    """Extend the labels of the clients at positions `known` to all `number` clients; −1 for the others.

    Examples
    --------
    >>> spread(np.array([0, 1]), known=np.array([0, 2]), number=3)
    array([ 0, -1,  1])
    """
    whole = np.full(number, _UNKNOWN)
    whole[known] = labels
    return whole
