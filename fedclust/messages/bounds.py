"""What the fields of a client's reply may hold, and the checks that every message shares.

A reply comes from a process that the server does not control. What is read from it is checked for its kind
and its range before anything else looks at it, so that a reply that makes no sense costs its client the round
and nobody else anything.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.messages.keys import BadReply
from fedclust.support.array_bytes import parse
from fedclust.typing import IntArray

__all__ = [
    "LARGEST_LOSS",
    "LARGEST_NUMBER",
    "MOST_EXAMPLES",
    "Bounds",
    "Record",
    "array_in",
    "check_keys",
    "finite_list",
    "only_records",
    "record_of",
    "whole",
]

LARGEST_LOSS = 2.0**24
"""Nats. Above, neighbouring float32 numbers are 2 nats apart: a client whose loss is larger has diverged."""

LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""What models and losses are computed in holds no larger one; squares are then finite in float64."""

MOST_EXAMPLES = 2**48
"""No client has more; sums over clients then stay exact."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """What is known of a federation that its clients' replies must agree with.

    Attributes
    ----------
    num_train, num_test, num_validation
        Rows of each client's parts, as it described them, shape (K,); None where nobody asked.
    num_classes
        Number of classes C; None where nobody asked.
    own_metrics
        Names of the user's own metrics, which clients may report besides the usual figures.
    least_loss
        Least value of the loss: 0 for cross-entropy; minus infinity where unknown.
    """

    num_train: IntArray | None = None
    num_test: IntArray | None = None
    num_validation: IntArray | None = None
    num_classes: int | None = None
    own_metrics: Collection[str] = ()
    least_loss: float = -math.inf

    def most_train(self, client: int) -> int:
        """Return the most rows that a client may say it trained on."""
        return _most(self.num_train, client)

    def most_train_in_all(self) -> int:
        """Return the most rows that a node may say it trained on for all clients."""
        rows = self.num_train
        return MOST_EXAMPLES if rows is None or not len(rows) else int(rows.sum())

    def most_test(self, client: int) -> int:
        """Return the most rows that a client may say it evaluated on."""
        return _most(self.num_test, client)

    def most_validation(self, client: int) -> int:
        """Return the most rows that a client may say it held out."""
        return _most(self.num_validation, client)


def _most(rows: IntArray | None, client: int) -> int:
    # Of a client that came later there is no row.
    return MOST_EXAMPLES if rows is None or client >= len(rows) else int(rows[client])


Record = ArrayRecord | ConfigRecord | MetricRecord


def record_of(content: RecordDict, key: str, kind: type, where: str) -> Any:
    """Return one record of a reply.

    Raises
    ------
    BadReply
        If it is missing or of another kind.
    """
    record = content.get(key)
    if not isinstance(record, kind):
        raise BadReply(f"{where}: no {key!r} in reply, keys are {short(list(content))}")
    return record


def only_records(content: RecordDict, known: Collection[str], where: str) -> None:
    """Check that a reply has no records but the known ones; raise BadReply if it does."""
    check_keys(content, known, where, "records")


def check_keys(found: Mapping[str, Any], known: Collection[str], where: str, what: str) -> None:
    """Check that a record has no keys but the known ones; raise BadReply if it does."""
    if unknown := found.keys() - known:
        raise BadReply(f"{where}: {what} must be among {sorted(known)}, got {short(sorted(unknown))}")


def whole(value: Any, least: int, most: int, where: str, name: str) -> int:
    """Read a whole number, which may be written as a float.

    Raises
    ------
    BadReply
        If it is none, or is not in [least, most].
    """
    if type(value) is not int and (type(value) is not float or not value.is_integer()):
        raise BadReply(f"{where}: {name} must be a whole number, got {short(value)}")
    if not least <= value <= most:
        raise BadReply(f"{where}: {name} must be in [{least}, {most}], got {value}")
    return int(value)


def finite_list(values: Any, least: float, most: float, where: str, name: str) -> list[float]:
    """Read a list of numbers.

    Raises
    ------
    BadReply
        If it is no list of numbers, or one is not finite or not in [least, most].
    """
    if not isinstance(values, list | tuple) or not set(map(type, values)) <= {float, int}:
        raise BadReply(f"{where}: {name} must be a list of finite numbers, got {short(values)}")
    # Compared in Python: a number that is not finite fails one of the two comparisons, NaN both.
    if values and not (least <= min(values) and max(values) <= most and math.isfinite(math.fsum(values))):
        raise BadReply(
            f"{where}: {name} must be finite numbers in [{least:g}, {most:g}], got {short(list(values))}"
        )
    return list(values)


def array_in(record: ArrayRecord, key: str, kinds: str, where: str) -> np.ndarray:
    """Read an array of a reply, of which the bytes count and not what is declared.

    Parameters
    ----------
    kinds
        NumPy's letters of the kinds of numbers it may hold, such as ``"iu"`` for whole numbers.

    Raises
    ------
    BadReply
        If it is missing or unreadable, or holds something else.
    """
    if key not in record:
        raise BadReply(f"{where}: no {key!r} in reply, keys are {short(list(record))}")
    try:
        values = parse(record[key])
    except ValueError as error:
        raise BadReply(f"{where}: {key} {error}") from error
    if values.dtype.kind not in kinds:
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise BadReply(f"{where}: {key} must be {wanted}, got dtype {values.dtype}")
    return values


def short(value: object) -> str:
    """Show a value of a reply in one line that is not long."""
    shown = " ".join(repr(value[:20] if isinstance(value, list | tuple | str | bytes) else value).split())
    return shown if len(shown) <= 200 else f"{shown[:200]} …"
