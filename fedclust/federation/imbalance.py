"""Say before round 1 how uneven the classes are."""

from collections.abc import Sequence

import numpy as np

from fedclust.typing import IntArray

__all__ = ["imbalance_line"]

_SHOWN = 3


def imbalance_line(
    train_counts: IntArray, class_names: Sequence[str] = (), client_names: Sequence[str] | None = None
) -> str:
    """Name the largest and smallest class, and the clients that lack one, in one line.

    Parameters
    ----------
    train_counts
        Training rows of each client and class, shape (K, C).
    class_names
        Names of the classes, shape (C,); their numbers if empty.
    client_names
        Names of the clients, shape (K,); their ids if None.
    """
    counts = np.asarray(train_counts)
    clients, classes = counts.shape
    names = list(class_names if len(class_names) == classes else map(str, range(classes)))
    who = list(map(str, range(clients)) if client_names is None else client_names)
    rows = counts.sum(axis=0)
    most, least = int(rows.argmax()), int(rows.argmin())
    largest, smallest = (f"{names[label]} {rows[label] / max(1, rows.sum()):.1%}" for label in (most, least))
    line = f"classes: largest {largest}, smallest {smallest} of {int(rows.sum()):,} training rows"
    lacking = np.flatnonzero((counts == 0).any(axis=1))
    if not len(lacking):
        return f"{line}; every client has every class"
    some = [
        f"{who[client]} {_few([names[label] for label in np.flatnonzero(counts[client] == 0)])}"
        for client in lacking
    ]
    return f"{line}; {len(lacking)} of {clients} clients lack a class: {_few(some, '; ')}"


def _few(texts: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return separator.join(texts[:_SHOWN]) + more
