"""Options of aggregators, which Flower's own do not check; imports the standard library alone."""

import math
from dataclasses import dataclass

_POSITIVE = ("must be > 0", lambda value: value > 0)
_NOT_NEGATIVE = ("must be >= 0", lambda value: value >= 0)
_DECAY = ("must be in [0, 1)", lambda value: 0 <= value < 1)
_RULES = {
    "proximal_mu": _NOT_NEGATIVE,
    "server_learning_rate": _POSITIVE,
    "server_momentum": _DECAY,
    "eta": _POSITIVE,
    "tau": _POSITIVE,
    "beta_1": _DECAY,
    "beta_2": _DECAY,
    "num_malicious_nodes": _NOT_NEGATIVE,
}


@dataclass(frozen=True)
class Aggregator:
    """Options of an aggregator, those of Flower's by the same name; None for those that it does not have.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    min_train_nodes: int | None = None
    min_evaluate_nodes: int | None = None
    min_available_nodes: int | None = None
    proximal_mu: float | None = None
    server_learning_rate: float | None = None
    server_momentum: float | None = None
    eta: float | None = None
    tau: float | None = None
    beta_1: float | None = None
    beta_2: float | None = None
    beta: float | None = None
    num_malicious_nodes: int | None = None

    def __post_init__(self) -> None:
        for name, (rule, holds) in _RULES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and holds(value)):
                raise ValueError(f"{name} {rule} and finite, got {value}")
