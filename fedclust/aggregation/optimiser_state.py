"""The state of a Flower strategy between rounds.

A server optimiser keeps its momentum in attributes. The attributes in which a strategy differs from a newly
made one are its state; it must consist of what a checkpoint holds, see :mod:`fedclust.messages.packer`.
"""

import copy
from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedclust.messages.packer import pack


def pack_state(strategy: Strategy, fresh: Strategy) -> dict[str, Any]:
    """List the state of a strategy.

    Parameters
    ----------
    strategy
        A strategy after some rounds.
    fresh
        One made in the same way that has not run.

    Returns
    -------
    Each attribute that changed, by name; of a strategy inside this one, its state.

    Raises
    ------
    TypeError
        If an attribute holds anything but arrays, numbers, text, records, and containers of them, naming it.
    """
    packed: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        other = vars(fresh).get(name)
        if isinstance(value, Strategy) and isinstance(other, Strategy):  # such as the one in a wrapper
            packed[name] = pack_state(value, other)
        elif value is not other and not _same_scalar(value, other):
            try:
                pack(value, Any)
            except TypeError as error:
                raise TypeError(
                    f"aggregator {type(strategy).__name__} cannot be resumed: attribute {name!r} must hold "
                    f"arrays, numbers or records, got {type(value).__name__}"
                ) from error
            packed[name] = value
    return packed


def restored(strategy: Strategy, packed: Mapping[str, Any]) -> Strategy:
    """Set a newly made strategy to a state, of which it gets values of its own, and return it."""
    for name, value in packed.items():
        inner = getattr(strategy, name, None)
        setattr(
            strategy, name, restored(inner, value) if isinstance(inner, Strategy) else copy.deepcopy(value)
        )
    return strategy


def _same_scalar(one: object, other: object) -> bool:
    plain = str | int | float | bool | None
    return isinstance(one, plain) and isinstance(other, plain) and one == other
