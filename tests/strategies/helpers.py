"""Building strategies of the command line on small digits, and comparing runs that were interrupted."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Error, Message
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig
from torch import nn

from fedclust.federation import Federation
from fedclust.grids.client_grid import ClientGrid, WrappedGrid
from fedclust.messages.models import from_state
from fedclust.messages.training import UpdateQuestion
from fedclust.models import construction
from fedclust.results import Checkpoints
from fedclust.settings.composition import plain, to_run_config
from fedclust.strategies import ClusteredStrategy


class Weights(nn.Module):
    """Two weights at 0, which are drawn between two numbers when they are drawn anew."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.w, self._between = nn.Parameter(torch.zeros(2)), (low, high)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.uniform_(self.w, *self._between)


class Lossy(WrappedGrid):
    """A grid that counts trainings, and loses replies by client, kind, and number of its kind."""

    def __init__(self, grid: ClientGrid, lost: Callable[[int, str, int], bool] = lambda *_: False) -> None:
        super().__init__(grid)
        self.trained, self._lost, self._sent = 0, lost, Counter[tuple[int, str]]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        messages = list(messages)
        kinds = [(each.metadata.dst_node_id, each.metadata.message_type) for each in messages]
        self._sent.update(kinds)
        self.trained += sum(kind in ("train", UpdateQuestion.kind) for _, kind in kinds)
        for reply in super().send_and_receive(messages, timeout=timeout):
            client, kind = reply.metadata.src_node_id, reply.metadata.message_type
            if self._lost(client, kind, self._sent[client, kind]):
                reply = Message(Error(5, "gone"), reply_to=Message(reply.content, client, kind))
            yield reply


def agglomerations(
    apart: Callable[[int, int], float], parts: set[tuple[int, ...]], linkage: str, stop: Callable[..., bool]
) -> list[set[tuple[int, ...]]]:
    """Merge the two closest parts until told to stop, literally: every grouping that ties may lead to."""
    link = {"single": min, "complete": max, "average": lambda values: sum(values) / len(values)}[linkage]
    far = {pair: link([apart(i, j) for i in pair[0] for j in pair[1]]) for pair in combinations(parts, 2)}
    if not far or stop(len(parts), min(far.values())):
        return [parts]
    closest = [pair for pair, value in far.items() if value <= min(far.values()) + 1e-9]
    merged = [parts - {*pair} | {tuple(sorted(sum(pair, ())))} for pair in closest]
    return [each for some in merged for each in agglomerations(apart, some, linkage, stop)]


def weight_of(model: ArrayRecord) -> float:
    """Return the first weight of a toy's model."""
    return float(model["w"].numpy()[0])


def weights_of(strategy: ClusteredStrategy) -> list[float]:
    """Return the first weight of each cluster's model."""
    return [weight_of(model) for model in strategy.clusters.models]


def nodes_of(config: DictConfig) -> Any:
    """Make the nodes of a configuration's engine."""
    return instantiate(config.engine, app=get_object(config.client_app), run_config=to_run_config(config))


def built(config: DictConfig, made: Any = None) -> tuple[Any, ClientGrid, ArrayRecord]:
    """Make the strategy of a configuration, or `made`; its clients; and the model that they start from."""
    grid = ClientGrid(nodes_of(config))
    grid.connect()
    options = {"participation": config.participation, "seed": config.seed}
    options |= {"selection": instantiate(config.selection)} if config.selection else {}
    options["aggregator"] = partial(instantiate, config.aggregator)
    # As the command line does: Hydra would make a configuration of a dataclass among the arguments.
    strategy = (made or instantiate(config.strategy, _partial_=True, _convert_="all"))(**options)
    return strategy, grid, initial_model(config)


def initial_model(config: DictConfig) -> ArrayRecord:
    """Make the model that all clients start from."""
    return from_state(construction.build(plain(config.model), config.seed).state_dict())


class Keeping:
    """An observer that keeps every round and assignment, and the state of the run after some of them."""

    def __init__(self, strategy: ClusteredStrategy, folder: Path, *after: int) -> None:
        self.rounds: list[dict] = []
        self.assignments: list[tuple] = []
        self._strategy, self._folder, self._after = strategy, folder, after
        strategy.observer = self

    def assignment(self, server_round: int, assignment: np.ndarray, reason: str) -> None:
        self.assignments.append((server_round, assignment.tolist(), reason))

    def round(self, record: dict) -> None:
        self.rounds.append({**record, "seconds": 0})
        if record["round"] in self._after:
            Checkpoints(self._folder / str(record["round"]), rounds=99).save(self._strategy.run_state())


def kept(folder: Path, after: int) -> Any:
    """Return the state that :class:`Keeping` kept after a round."""
    return Checkpoints(folder / str(after), rounds=99).newest()


def at(server_round: int, federation: Federation) -> Federation:
    """Set the round that a federation is in."""
    federation.server_round = server_round
    return federation


def assert_same_models(one: ClusteredStrategy, other: ClusteredStrategy) -> None:
    """Check that two runs ended with the same models, to the bit."""
    for model, twin in zip(one.clusters.models, other.clusters.models, strict=True):
        for name in model:
            np.testing.assert_array_equal(model[name].numpy(), twin[name].numpy())
