"""Groupings of a cluster's clients that may be worth a trial, by the directions of their updates."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedclust.clustering.shared import grouping
from fedclust.clustering.shared.grouping import cosine_distances, in_order_of_appearance
from fedclust.metrics import silhouette
from fedclust.typing import BoolArray, FloatArray, IntArray

_NUMBERS = (2, 3)  # numbers of parts that are always proposed
_MOST_PARTS = 10
_UNKNOWN = -1
_FEWEST_ROWS = 30
MOST_PROPOSALS = len(_NUMBERS) + 2
"""Largest number of groupings that are proposed for a cluster, with that of a client alone."""


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


def by_updates(updates: FloatArray, min_size: int) -> list[IntArray]:
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
    Part of each client, numbered in order of first appearance, shape (n,): first in the number, up to 10,
    with the largest mean silhouette, then in 2 and in 3 parts, if there are such.

    Examples
    --------
    >>> updates = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> by_updates(updates, min_size=2)
    [array([0, 0, 1, 1])]
    """
    distances = cosine_distances(updates)
    most = min(_MOST_PARTS, len(updates) - 1)
    groupings = cuts(distances, {*_NUMBERS, *range(2, most + 1)}, min_size)
    scores = {number: silhouette(distances, labels) for number, labels in groupings.items()}
    best = max(scores, key=lambda number: (scores[number], -number), default=0)
    return [groupings[number] for number in dict.fromkeys((best, *_NUMBERS)) if number in groupings]


def lone(updates: FloatArray, rows: IntArray) -> int | None:
    """Find a client that is unlike all others, and has held-out rows enough to show it by itself.

    In the test of a grouping a client's rows count up to three times the median client's, and the most
    favourable votes are set aside; so a single client that gains decides nothing there.

    Parameters
    ----------
    updates
        As for :func:`by_updates`.
    rows
        Held-out rows of each client, shape (n,).

    Returns
    -------
    The position of the client that average linkage merges last, when all others are one; None if there is no
    such client, or it has fewer than 30 held-out rows.

    Examples
    --------
    >>> updates = np.array([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.2]])
    >>> lone(updates, rows=np.array([40, 40, 40, 40]))
    2
    """
    if len(updates) < 3:
        return None
    pairs, _ = grouping.merges(cosine_distances(updates), "average")
    single = pairs[-1].min()  # groups of several have higher numbers
    return int(single) if single < len(updates) and rows[single] >= _FEWEST_ROWS else None


def by_names(groups: Sequence[str], votes: BoolArray, min_size: int) -> IntArray | None:
    """Group clients as people have.

    Parameters
    ----------
    groups
        Name of each client's group, shape (n,).
    votes
        Which clients have held-out rows, shape (n,).
    min_size
        Fewest clients of a part that vote.

    Returns
    -------
    Part of each client, numbered in order of first appearance, shape (n,), −1 in groups that are too small;
    None if fewer than two are large enough.

    Examples
    --------
    >>> by_names(["b", "a", "b", "a", "c"], votes=np.ones(5, dtype=bool), min_size=2)
    array([ 0,  1,  0,  1, -1])
    """
    labels = in_order_of_appearance(np.unique(groups, return_inverse=True)[1])
    large = np.flatnonzero(np.bincount(labels[votes], minlength=int(labels.max()) + 1) >= min_size)
    if len(large) < 2:
        return None
    known = np.isin(labels, large)
    return np.where(known, np.searchsorted(large, labels), _UNKNOWN)


def is_large_enough(labels: IntArray, min_size: int, votes: BoolArray | None = None) -> bool:
    """Return whether every part has enough clients that vote.

    Otherwise a grouping could pass because other parts gain, and a part's clients would get a model that was
    never compared.

    Parameters
    ----------
    labels
        Part of each client, −1 where it is not known, shape (n,).
    min_size
        Fewest clients of a part that vote.
    votes
        Which clients have held-out rows, shape (n,); None for all.

    Examples
    --------
    >>> labels = np.array([0, 0, 1, 1])
    >>> is_large_enough(labels, 2), is_large_enough(labels, 2, votes=np.array([True, True, True, False]))
    (True, False)
    """
    voting = labels >= 0 if votes is None else votes & (labels >= 0)
    sizes = np.bincount(labels[voting], minlength=int(labels.max()) + 1)
    return bool(sizes.min() >= min_size)


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
