"""What a client learns to predict: a class, an amount, or the time until an event.

A *target* says how wide a network's output is, what a row's loss is, and how well a row is predicted: a
*proper* score that is bounded, by which models are compared. A row's bin is its class, its tenth of all
amounts, or its time interval with or without the event. Label counts, prototypes per class and the partitions
use bins only, so that every method works for every kind of target.

- :mod:`~fedclust.targets.classes`, :mod:`~fedclust.targets.amounts`, :mod:`~fedclust.targets.times`: one kind
  each.

Arrays and tensors in, values out: nothing here uses messages, files or networks.
"""

from fedclust.targets.amounts import Amounts
from fedclust.targets.base import Target
from fedclust.targets.classes import CLASSES, Classes
from fedclust.targets.times import Times

__all__ = ["CLASSES", "KINDS", "Amounts", "Classes", "Target", "Times"]

KINDS: dict[str, type[Target]] = {each.kind: each for each in (Classes, Amounts, Times)}
"""Every kind of target by its name."""
