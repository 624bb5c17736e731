"""What clients say of their data before round 1: label counts, known groups and names, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedclust.federation.asking import check_alike
from fedclust.grids.client_grid import FederationError
from fedclust.messages.description import Description
from fedclust.privacy import Tells
from fedclust.typing import IntArray

_SHOWN = 10
_NAMED = 3


@dataclass(frozen=True, eq=False)
class Descriptions:
    """All clients' label counts, known groups and names.

    Attributes
    ----------
    counts
        Number of samples of each client and class in its own training and test part, each of shape (K, C);
        None where clients were not asked for them.
    num_train, num_test
        Number of samples of each client in its training and test part, shape (K,); 0 where not asked for.
    num_classes
        Number of classes C.
    groups
        The known grouping, shape (K,), or None if a client has none.
    mean, std
        The numbers that the first client subtracts from and divides each channel of its images by.
    class_names
        Names of the classes in label order, shape (C,); empty if clients have none.
    client_names
        Name of each client in the data (a hospital, a writer, a user), shape (K,); None if one has none.
    left_out
        Names of those with too few examples to be a client, and their numbers of examples, from client 0.
    num_validation
        Number of each client's training rows that are held out for the proof, shape (K,); empty if unknown.
    """

    counts: tuple[IntArray, IntArray] | None
    num_train: IntArray
    num_test: IntArray
    num_classes: int
    groups: IntArray | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_validation: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def train_counts(self) -> IntArray:
        """Number of training samples of each client and class, shape (K, C).

        Raises
        ------
        FederationError
            If clients were not asked for them.
        """
        return self._counts()[0]

    @property
    def test_counts(self) -> IntArray:
        """Number of test samples of each client and class, shape (K, C); raises as :attr:`train_counts`."""
        return self._counts()[1]

    def _counts(self) -> tuple[IntArray, IntArray]:
        if self.counts is None:
            raise FederationError(
                "label counts were not asked for, by privacy.label_counts=false or client_dp"
            )
        return self.counts


def combine(answers: Sequence[Description], tells: Tells) -> Descriptions:
    """Combine the descriptions of all clients.

    Parameters
    ----------
    answers
        The description of each client, shape (K,).
    tells
        What clients were asked to say of their rows, see :class:`fedclust.federation.Federation`.

    Raises
    ------
    FederationError
        If a client has another number of classes or other names for them than the others.
    """
    check_alike("number of classes", [len(answer.train_counts) for answer in answers])
    first = answers[0]
    for client, answer in enumerate(answers):
        # If label 3 is another class on one node, training goes wrong without any error.
        if answer.names.classes != first.names.classes:
            raise FederationError(
                f"all clients must have the same class names, client 0 has {_shortened(first.names.classes)} "
                f"and client {client} {_shortened(answer.names.classes)}"
            )
    groups = [answer.group for answer in answers if answer.group is not None]
    names = [answer.name for answer in answers if answer.name is not None]
    train = np.stack([answer.train_counts for answer in answers])
    test = np.stack([answer.test_counts for answer in answers])
    return Descriptions(
        counts=(train, test) if tells == "labels" else None,
        num_train=train.sum(axis=1),
        num_test=test.sum(axis=1),
        num_classes=train.shape[1],
        groups=np.asarray(groups, dtype=np.int64) if len(groups) == len(answers) else None,
        mean=first.mean,
        std=first.std,
        class_names=first.names.classes,
        client_names=tuple(names) if len(names) == len(answers) else None,
        left_out=first.names.left_out,
        num_validation=np.array([answer.num_validation for answer in answers]),
    )


def misfit(answer: Description, described: Descriptions) -> str:
    """Return why a client that comes later does not have the classes of the others; empty if it has."""
    number = described.num_classes
    if len(answer.train_counts) != number:
        return f"classes must be as many as the others have, {number}, got {len(answer.train_counts)}"
    if answer.names.classes != described.class_names:
        theirs, own = _shortened(described.class_names), _shortened(answer.names.classes)
        return f"class names must be those of the others, {theirs}, got {own}"
    return ""


def left_out_line(left_out: Mapping[str, int]) -> str | None:
    """List those with too few examples to be a client, for the user; None if there are none."""
    if not left_out:
        return None
    shown = [f"{name} ({rows})" for name, rows in list(left_out.items())[:_SHOWN]]
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    return f"left out, too few examples to be a client: {len(left_out)}, {', '.join(shown)}{more}"


def _shortened(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''} ({len(names)})"


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
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return separator.join(texts[:_NAMED]) + more
