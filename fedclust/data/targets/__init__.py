"""What a client learns to predict: a class, an amount, or the time until an event.

A *target* says how wide a network's output is, what a row's loss is, and how well a row is predicted: a
*proper* score that is bounded, by which models are compared. A row's bin is its class, its tenth of all
amounts, or its time interval with or without the event. Label counts, prototypes per class and the partitions
use bins only, so that every method works for every kind of target.

- :mod:`~fedclust.data.targets.classes`, :mod:`~fedclust.data.targets.amounts` and
  :mod:`~fedclust.data.targets.times`: one kind each.

Arrays and tensors in, values out: nothing here uses messages, files or networks.
"""

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fedclust.data.targets.amounts import Amounts
from fedclust.data.targets.base import Block, Calibration, Numbers, Target
from fedclust.data.targets.classes import CLASSES, Classes
from fedclust.data.targets.times import Times
from fedclust.support.checks import read_as

__all__ = [
    "CLASSES",
    "KINDS",
    "LOWER",
    "Amounts",
    "Block",
    "Calibration",
    "Classes",
    "Numbers",
    "Target",
    "Times",
    "from_text",
    "from_values",
    "kind_of",
    "to_text",
    "to_values",
]

KINDS: dict[str, type[Target]] = {each.kind: each for each in (Classes, Amounts, Times)}
"""Every kind of target by its name."""

LOWER = ("rmse", "mae", "integrated_brier")
"""Figures of targets of which the lowest value is the best."""


def to_values(target: Target) -> dict[str, Any]:
    """Return a target as plain values; empty for classes.

    Examples
    --------
    >>> to_values(Times((10.0,), 90.0))
    {'kind': 'times', 'cuts': (10.0,), 'last': 90.0, 'base': (), 'unit': ''}
    """
    values: Any = target
    return {} if target == CLASSES else {"kind": target.kind, **dataclasses.asdict(values)}


def from_values(values: Mapping[str, Any] | None) -> Target:
    """Make a target of the result of :func:`to_values`, which may come from elsewhere.

    Raises
    ------
    ValueError
        If they are no target's.

    Examples
    --------
    >>> from_values({"kind": "times", "cuts": [10.0], "last": 90.0})
    Times(cuts=(10.0,), last=90.0, base=(), unit='')
    >>> from_values(None)
    Classes()
    """
    if not values:
        return CLASSES
    given = dict(values) if isinstance(values, Mapping) else {}
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"target.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    made: Target = read_as(KINDS[kind], given)
    return made


def kind_of(name: str | None, event: str | None) -> type[Target]:
    """Return the kind of target that a dataset's settings name.

    Parameters
    ----------
    name
        ``dataset.target``; None for classes, or for times if there is a column of events.
    event
        ``dataset.event``, the column of events.

    Raises
    ------
    ValueError
        If there is no such kind, or the column of events is missing or not needed.

    Examples
    --------
    >>> kind_of(None, "died").kind
    'times'
    """
    chosen = name or (Times if event else Classes).kind
    if chosen not in KINDS:
        raise ValueError(f"dataset.target must be one of {', '.join(KINDS)}, got {chosen}")
    kind = KINDS[chosen]
    if kind.turns_events and not event:
        rule = "dataset.event must name the column of events, 1, or 0 for a row that is censored"
        raise ValueError(f"{rule}, with dataset.target={chosen}, got None")
    if event and not kind.turns_events:
        raise ValueError(f"dataset.event must be None with dataset.target={chosen}, got {event}")
    return kind


@lru_cache(maxsize=256)  # all clients of a federation have the same
def to_text(target: Target) -> str:
    """Write a target as JSON; empty for classes.

    Examples
    --------
    >>> to_text(Amounts(0.0, 10.0, (5.0,), unit="days"))
    '{"kind": "amounts", "low": 0.0, "high": 10.0, "edges": [5.0], "unit": "days", "error": "squared"}'
    """
    values = to_values(target)
    return json.dumps(values) if values else ""


def from_text(text: str) -> Target:
    """Read what :func:`to_text` wrote, which may come from elsewhere.

    Raises
    ------
    ValueError
        If it is no target.

    Examples
    --------
    >>> from_text(to_text(Times((10.0,), 90.0)))
    Times(cuts=(10.0,), last=90.0, base=(), unit='')
    """
    return from_values(json.loads(text) if text else None)
