"""The matrices of a method, for the page: of pairs of clients, and of models across clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from fedclust.results.page.values import pack, short, shorts
from fedclust.results.saved_run import SavedRun
from fedclust.typing import FloatArray, IntArray

__all__ = ["Across", "Matrix", "averaged", "small_arrays", "view_across", "view_matrices"]

_MOST_CELLS = 150  # in a row; larger matrices are shrunk
_MOST_MATRICES = 10

_MEANING = {
    "interaction": ("Larger is more alike.", "sequential"),
    "affinity": ("Larger is more alike.", "sequential"),
    "distances": ("Smaller is more alike.", "reversed"),
    "evidence": ("Above 0: evidence that two clients differ; below 0, they look alike.", "diverging"),
    "cosines": ("Cosine of two clients' updates: larger is more alike.", "sequential"),
    "pair_scores": ("Smaller is more alike.", "reversed"),
}


@dataclass(frozen=True)
class Matrix:
    """A matrix of all pairs of clients, ordered by cluster.

    Attributes
    ----------
    name
        Its name in ``matrices.npz``.
    meaning
        Which end of its scale means alike.
    colours
        ``sequential``, ``reversed`` or ``diverging``.
    cells
        Number of rows n.
    members
        Clients of each row: one, or several that were averaged, n lists.
    clusters
        Cluster of each row's first client, n.
    low, high
        Ends of the codes of `values`.
    shown_low, shown_high
        Ends of the colour scale, which leave out the outermost hundredths.
    values
        The n · n entries, as :func:`fedclust.results.page.values.pack` writes them.
    within, between
        Mean over the known finite pairs of two clients of one cluster, and of two clusters.
    """

    name: str
    meaning: str
    colours: str
    cells: int
    members: list[list[int]]
    clusters: list[int]
    low: float
    high: float
    shown_low: float
    shown_high: float
    values: str
    within: float | int | None
    between: float | int | None


@dataclass(frozen=True)
class Across:
    """Each cluster's model on each cluster's clients.

    Attributes
    ----------
    clusters
        Indices of the m clusters.
    accuracy
        Share of right answers: clusters of the clients, then clusters of the models; m lists of m.
    """

    clusters: list[int]
    accuracy: list[list[float | int | None]]


def view_matrices(run: SavedRun) -> tuple[list[Matrix], list[str]]:
    """List the matrices of clients, and the names of those that the page leaves out."""
    if run.assignment is None:
        return [], []
    shape = 2 * run.assignment.shape
    names = [name for name, values in run.matrices() if values.shape == shape]
    # The matrices at the end come last in the file, those at earlier splits before them.
    plain = [name for name in names if "_round_" not in name]
    kept = {*plain[:_MOST_MATRICES], *names[-max(0, _MOST_MATRICES - len(plain)) :]}
    kept = set(list(kept)[:_MOST_MATRICES]) if len(kept) > _MOST_MATRICES else kept
    shown = [view_matrix(name, values, run.assignment) for name, values in run.matrices() if name in kept]
    return shown, [name for name in names if name not in kept]


def view_matrix(name: str, values: NDArray, assignment: IntArray) -> Matrix:
    """Prepare one matrix, shape (K, K): order it by cluster, and shrink it if it is large."""
    order = np.argsort(assignment, kind="stable")
    ordered = np.asarray(values, dtype=np.float64)[np.ix_(order, order)]
    known = np.isfinite(ordered) & ~np.eye(len(order), dtype=bool)
    same = assignment[order][:, None] == assignment[order][None, :]
    starts = np.arange(0, len(order), -(-len(order) // _MOST_CELLS))
    shrunk = ordered if len(starts) == len(order) else averaged(ordered, starts, starts)
    finite = shrunk[np.isfinite(shrunk)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    pairs = ordered[known]
    shown = np.percentile(pairs, [1, 99]) if pairs.size else (low, high)
    meaning, colours = next(
        (each for key, each in _MEANING.items() if name.startswith(key)), ("", "sequential")
    )
    return Matrix(
        name,
        meaning,
        colours,
        len(starts),
        [part.tolist() for part in np.split(order, starts[1:])],
        assignment[order][starts].tolist(),
        low,
        high,
        float(shown[0]),
        float(shown[1]),
        pack(shrunk, low, high),
        _mean(ordered, known & same),
        _mean(ordered, known & ~same),
    )


def view_across(small: Mapping[str, NDArray]) -> Across | None:
    """Compute how often each cluster's model is right on each cluster's clients; None if not measured."""
    if "confusion" not in small or "confusion_clusters" not in small:
        return None
    counts = small["confusion"]
    totals = counts.sum(axis=(2, 3))
    right = np.trace(counts, axis1=2, axis2=3)
    shares = np.divide(right, totals, out=np.full(totals.shape, np.nan), where=totals > 0)
    return Across(small["confusion_clusters"].tolist(), [shorts(row) for row in shares.tolist()])


def _mean(values: FloatArray, chosen: NDArray[np.bool_]) -> float | int | None:
    return short(values[chosen].mean()) if chosen.any() else None


def averaged(values: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Average blocks of a matrix over their finite entries; NaN where there is none.

    Parameters
    ----------
    values
        Shape (n, m).
    rows, columns
        First row and first column of each block, ascending from 0.
    """

    def blocks(entries: NDArray) -> NDArray:
        return np.add.reduceat(np.add.reduceat(entries, rows, axis=0), columns, axis=1)

    known = np.isfinite(values)
    sums, counts = blocks(np.where(known, values, 0.0)), blocks(known.astype(np.int64))
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def small_arrays(run: SavedRun, names: Sequence[str]) -> dict[str, NDArray]:
    """Read the named arrays of ``matrices.npz`` that it has; ``*`` in a name stands for any end."""
    path = run.folder / "matrices.npz"
    if not path.is_file():
        return {}
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files if any(fnmatchcase(name, each) for each in names)}
