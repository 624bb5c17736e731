"""Prepare the objects that :func:`fedclust.simulate` is given."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedclust.aggregation.flower import check_aggregator
from fedclust.data.federated import FederatedData
from fedclust.personal.layers import Personal
from fedclust.runs.runner import Schedule
from fedclust.settings import build, compose
from fedclust.support.strict_json import plain
from fedclust.training import LocalTraining
from fedclust.training.losses import cross_entropy
from fedclust.training.own_metrics import Metric

if TYPE_CHECKING:  # strategies import fedclust, so fedclust may name their types but not import them
    from fedclust.models import Encoder
    from fedclust.strategies import ClusteredStrategy

__all__ = ["describe_run", "one_for_all", "strategy_of"]


def strategy_of(
    strategy: "ClusteredStrategy | str", model: nn.Module, data: FederatedData, seed: int
) -> tuple[str, "ClusteredStrategy"]:
    """Return the name that a strategy has in results, and the strategy; build a named one at its defaults."""
    from fedclust.strategies import ClusteredStrategy

    if not isinstance(strategy, str):
        if not isinstance(strategy, ClusteredStrategy):
            raise ValueError(
                "strategy must be one of fedclust.strategies, such as FedGWC(participation=0.5), or a name, "
                f"got {strategy!r}"
            )
        made = copy.copy(strategy)  # the caller's is not changed
        made.seed = seed
        made.selection = copy.deepcopy(strategy.selection)
        check_aggregator(made._make_aggregator())
        _check_num_clusters(made, data.num_clients)
        return type(strategy).__name__.lower(), made
    node = compose([f"strategy={strategy}"]).strategy
    own: dict[str, Any] = {}
    if "network" in node:
        own = {"network": model, "input_shape": data.input_shape}
        own = {key: value for key, value in own.items() if key in node}
    if "vocabulary_size" in node:
        tokens = data.inputs.dtype == torch.int64
        own["vocabulary_size"] = int(data.inputs.max()) + 1 if tokens else None
    rest = {key: value for key, value in node.items() if key not in own}
    built = build(rest, seed=seed, **own)
    _check_num_clusters(built, data.num_clients)
    return strategy, built


def _check_num_clusters(strategy: "ClusteredStrategy", num_clients: int) -> None:
    asked = getattr(getattr(strategy, "parameters", None), "num_clusters", None)
    if isinstance(asked, int) and asked > num_clients:
        raise ValueError(f"num_clusters must be <= {num_clients}, the number of clients, got {asked}")


def one_for_all(strategy: "ClusteredStrategy") -> "ClusteredStrategy":
    """Make the strategy that trains one model for all with the same settings as another strategy."""
    from fedclust.strategies import ClusteredStrategy  # which imports fedclust

    return ClusteredStrategy(
        participation=strategy.participation,
        seed=strategy.seed,
        aggregator=strategy._make_aggregator,
        evaluate_every=strategy.evaluate_every,
        evaluate_clients=strategy.evaluate_clients,
        # A policy that is the method's own stays with the method, as on the command line.
        selection=None if isinstance(strategy.selection, strategy.own_selection) else strategy.selection,
    )


def describe_run(
    name: str,
    strategy: "ClusteredStrategy",
    data: FederatedData,
    training: LocalTraining,
    schedule: Schedule,
    encoder: "Encoder | None",
    metrics: Mapping[str, Metric],
    personal: Personal,
) -> dict[str, Any]:
    """Describe a run of objects, for ``config.yaml``; different runs have different descriptions."""
    described: dict[str, Any] = plain(
        {
            "choices": {"strategy": name, "dataset": data.name},
            "personal": {"choice": personal.choice, **dataclasses.asdict(personal)},
            "seed": schedule.seed,
            "rounds": schedule.rounds,
            "training": dataclasses.asdict(dataclasses.replace(training, loss=cross_entropy))
            | {"loss": _name(training.loss)},
            "metrics": {name: _name(metric) for name, metric in metrics.items()},
            "clients": data.num_clients,
            "data": data.fingerprint,
            "encoder": None if encoder is None else encoder.fingerprint,
            "settings": _settings(strategy),
            "selection": _settings(strategy.selection),
            "aggregator": _settings(strategy._make_aggregator()),
        }
    )
    return described


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _settings(thing: object) -> dict[str, Any]:
    """List an object's settings that are numbers, words or parameters."""
    found: dict[str, Any] = {"of": type(thing).__name__}
    for key, value in vars(thing).items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[key] = dataclasses.asdict(value)
        elif key.startswith("_") or key == "device":
            continue
        elif isinstance(value, tuple) and all(isinstance(each, int | float) for each in value):
            found[key] = list(value)
        elif isinstance(value, bool | int | float | str):
            found[key] = value
    return found
