"""Options of aggregators, which Flower's own do not check; imports the standard library alone."""

from dataclasses import dataclass
from typing import Annotated

from fedclust.support.checks import Checked

_Positive = Annotated[float | None, "> 0 and finite or None"]
_NotNegative = Annotated[float | None, ">= 0 and finite or None"]
_Decay = Annotated[float | None, "in [0, 1) or None"]


@dataclass(frozen=True)
class Aggregator(Checked):
    """Options of an aggregator, those of Flower's by the same name; None for those that it does not have.

    Raises
    ------
    ValueError
        If a value is outside its range.
    """

    min_train_nodes: int | None = None
    min_evaluate_nodes: int | None = None
    min_available_nodes: int | None = None
    proximal_mu: _NotNegative = None
    server_learning_rate: _Positive = None
    server_momentum: _Decay = None
    eta: _Positive = None
    tau: _Positive = None
    beta_1: _Decay = None
    beta_2: _Decay = None
    beta: float | None = None
    num_malicious_nodes: Annotated[int | None, ">= 0 and finite or None"] = None
