"""Options of aggregators, which Flower does not check; imports only the standard library."""

from dataclasses import dataclass

from fedclust.support.checks import check_value

_RULES = {
    "proximal_mu": ">= 0 and finite",
    "server_learning_rate": "> 0 and finite",
    "server_momentum": "in [0, 1)",
    "eta": "> 0 and finite",
    "tau": "> 0 and finite",
    "beta_1": "in [0, 1)",
    "beta_2": "in [0, 1)",
    "num_malicious_nodes": ">= 0 and finite",
}


@dataclass(frozen=True)
class Aggregator:
    """Options of an aggregator, named as in Flower; None for options that it does not have.

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
        for name, rule in _RULES.items():
            if (value := getattr(self, name)) is not None:
                check_value(name, value, rule)
