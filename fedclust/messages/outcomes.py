"""Convert the counts of an evaluation to a Flower record and back."""

import numpy as np
from flwr.app import ArrayRecord

from fedclust.messages.bounds import MOST_EXAMPLES
from fedclust.metrics import Outcomes
from fedclust.metrics.pooled import NUM_BINS
from fedclust.support.array_bytes import from_numpy, parse
from fedclust.typing import IntArray

__all__ = ["read_outcomes", "write_outcomes"]

_COUNTS, _GAPS, _POSITIVES, _NEGATIVES = "class-counts", "score-gaps", "score-positives", "score-negatives"
_CONFUSION = "confusion"
_KNOWN = frozenset({_COUNTS, _GAPS, _POSITIVES, _NEGATIVES, _CONFUSION})


def write_outcomes(outcomes: Outcomes) -> ArrayRecord:
    """Write counts, each array in the narrowest type that holds it.

    Most counts of a bin take one byte; most gaps between bins that are not empty, one or two.
    """
    arrays = {_COUNTS: np.stack([outcomes.there, outcomes.predicted, outcomes.hits])}
    if outcomes.bins is not None:
        gaps = np.diff(outcomes.bins, prepend=-1)
        arrays |= {_GAPS: gaps, _POSITIVES: outcomes.positives, _NEGATIVES: outcomes.negatives}
    if outcomes.confusion is not None:
        arrays[_CONFUSION] = outcomes.confusion
    record = ArrayRecord()
    for name, values in arrays.items():
        record[name] = from_numpy(values.astype(np.min_scalar_type(values.max(initial=0))))
    return record


def read_outcomes(record: ArrayRecord, num_classes: int | None = None, most: int = MOST_EXAMPLES) -> Outcomes:
    """Read counts.

    Parameters
    ----------
    record
        What :func:`write_outcomes` made.
    num_classes
        Number of classes C; None for any.
    most
        Most rows that may have been counted.

    Raises
    ------
    ValueError
        If they are missing or do not fit together.
    """
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = parse(array)
        except ValueError as error:
            raise ValueError(f"{name[:50]} {error}") from error
    if _COUNTS not in arrays:
        raise ValueError(f"no {_COUNTS!r} in reply, keys are {list(arrays)}")
    for name, values in arrays.items():
        if name not in _KNOWN or values.dtype.kind != "u":
            raise ValueError(f"{name[:50]} must be counts, got {values.dtype}")
        if (values > most).any() and name != _GAPS:
            raise ValueError(f"{name} must be counts of at most {most} rows, they are of more")
    counts = arrays[_COUNTS].astype(np.int64)
    if counts.ndim != 2 or len(counts) != 3 or (counts[2] > counts[:2]).any():
        raise ValueError(
            f"{_COUNTS} must be rows, predictions and hits, at most as many, of each class, "
            f"got shape {counts.shape}"
        )
    there, predicted, hits = counts
    if num_classes not in (None, len(there)) or there.sum() > most or predicted.sum() != there.sum():
        raise ValueError(
            f"{_COUNTS} must be of {num_classes} classes and of at most {most} rows, each predicted once, "
            f"got {len(there)} classes, {there.sum()} rows and {predicted.sum()} predictions"
        )
    confusion = arrays[_CONFUSION].astype(np.int64) if _CONFUSION in arrays else None
    if confusion is not None and not _agree(confusion, there, predicted, hits):
        raise ValueError(f"{_CONFUSION} must add up to {_COUNTS}, got shape {confusion.shape}")
    none = np.zeros(0, dtype=np.int64)
    if _GAPS not in arrays:
        return Outcomes(there, predicted, hits, None, none, none, confusion)
    gaps, positives, negatives = (
        arrays.get(name, none).astype(np.int64) for name in (_GAPS, _POSITIVES, _NEGATIVES)
    )
    bins = NUM_BINS * len(there)
    fits = gaps.ndim == 1 and (gaps > 0).all() and (gaps <= bins).all() and gaps.sum() <= bins
    if not (fits and gaps.shape == positives.shape == negatives.shape):
        raise ValueError(
            f"{_GAPS} must be > 0, add up to at most {NUM_BINS * len(there)} and each have its counts, "
            f"got shapes {gaps.shape}, {positives.shape}, {negatives.shape}"
        )
    return Outcomes(there, predicted, hits, np.cumsum(gaps) - 1, positives, negatives, confusion)


def _agree(confusion: IntArray, there: IntArray, predicted: IntArray, hits: IntArray) -> bool:
    return confusion.shape == (len(there), len(there)) and all(
        np.array_equal(sums, counts)
        for sums, counts in (
            (confusion.sum(axis=1), there),
            (confusion.sum(axis=0), predicted),
            (confusion.diagonal(), hits),
        )
    )
