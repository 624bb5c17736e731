"""What a client learns to predict: a class, an amount, or the time until an event.

A *target* says how wide a network's output is, what a row's loss is, and how well a row is predicted: a
*proper* score that is bounded, by which models are compared. A row's bin is its class, its tenth of all
amounts, or its time interval with or without the event. Label counts, prototypes per class and the partitions
use bins only, so that every method works for every kind of target.

- :mod:`~fedclust.targets.classes`, :mod:`~fedclust.targets.amounts`, :mod:`~fedclust.targets.times`: one kind
  each.

Arrays and tensors in, values out: nothing here uses messages, files or networks.
"""

import dataclasses
import json
from typing import Any

from fedclust.support.checks import read_as
from fedclust.targets.amounts import Amounts
from fedclust.targets.base import Target
from fedclust.targets.classes import CLASSES, Classes
from fedclust.targets.times import Times

__all__ = ["CLASSES", "KINDS", "Amounts", "Classes", "Target", "Times", "from_text", "kind_of", "to_text"]

KINDS: dict[str, type[Target]] = {each.kind: each for each in (Classes, Amounts, Times)}
"""Every kind of target by its name."""


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


def to_text(target: Target) -> str:
    """Write a target as JSON; empty for classes.

    Examples
    --------
    >>> to_text(Amounts(0.0, 10.0, (5.0,), unit="days"))
    '{"kind": "amounts", "low": 0.0, "high": 10.0, "edges": [5.0], "unit": "days", "error": "squared"}'
    """
    values: Any = target
    return "" if target == CLASSES else json.dumps({"kind": target.kind, **dataclasses.asdict(values)})


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
    if not text:
        return CLASSES
    values = json.loads(text)
    kind = values.pop("kind", None) if isinstance(values, dict) else None
    if kind not in KINDS:
        raise ValueError(f"target.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    made: Target = read_as(KINDS[kind], values)
    return made
