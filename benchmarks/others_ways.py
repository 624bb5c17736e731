"""CFLA, fed-clma and fedclust on the same clients; each runs in a process of its own, and they take turns.

python benchmarks/others_ways.py --one WAY RANK               (started by others.py)
python benchmarks/others_ways.py --one WAY accuracy ROUNDS    of its clients' models after so many rounds

Fashion-MNIST in the three groups of CFLA's script for MNIST, with that script's network and hyperparameters.
"""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from common import DATA
from omegaconf import DictConfig
from settings import Setting
from torch import nn
from torch.utils.data import TensorDataset
from turns import Turns
from ways import NEVER, _simulate, in_flower

from fedclust.data import Dataset
from fedclust.settings.composition import build, compose
from fedclust.strategies import ClusteredStrategy

GROUPS = ((0, 4, 18), (4, 7, 17), (7, 9, 15))  # first and last class, clients


def lenet() -> nn.Module:
    """Build LeNet-5 with tanh and average pooling: 61,706 parameters."""
    layers: list[nn.Module] = []
    for before, after, padding in ((1, 6, 2), (6, 16, 0)):
        layers += [nn.Conv2d(before, after, 5, padding=padding), nn.Tanh(), nn.AvgPool2d(2)]
    dense = [nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


@dataclass(frozen=True)
class Clothes:
    """Build Fashion-MNIST's training part in groups of classes; rows of two groups are there twice."""

    input_shape: tuple[int, ...] = (1, 28, 28)
    num_classes: int = 10

    def load(self, cache_dir: Path | None = None) -> Dataset:
        """Deal each group's rows to its clients."""
        node = compose(["dataset=fashion_mnist", f"dataset.path={DATA / 'fashion_mnist'}"]).dataset
        whole: Dataset = build(node, _convert_="all").load(cache_dir)
        labels, draws = whole.labels[: whole.num_train].numpy(), np.random.default_rng(0)
        rows, owners, before = [], [], 0
        for first, last, clients in GROUPS:
            rows.append(draws.permutation(np.flatnonzero((first <= labels) & (labels <= last))))
            owners.append(before + np.arange(len(rows[-1])) * clients // len(rows[-1]))
            before += clients
        of, owner = torch.from_numpy(np.concatenate(rows)), np.concatenate(owners)
        own = {"inputs": whole.inputs[of], "labels": whole.labels[of], "natural": owner, "num_train": len(of)}
        return replace(whole, **own, fingerprint=f"{whole.fingerprint}-in-groups")


class InGroups(Setting):
    """A setting whose clients hold clothes of one group, a fifth of them to train on, as in CFLA's script."""

    def config(self, *overrides: str) -> DictConfig:
        """Compose fedclust's configuration."""
        config = super().config(*overrides)
        config.partition = {
            **compose(["partition=natural"]).partition,
            "test_fraction": 0.8,
            "validation_fraction": 0.0,
        }
        config.dataset = {"_target_": "others_ways.Clothes", "input_shape": [1, 28, 28], "num_classes": 10}
        return config


TRAINING = {"learning_rate": 0.01, "batch_size": 32, "epochs": 3}
SETTING = InGroups("", clients=50, examples=287, side=28, model="others_ways.lenet", training=TRAINING)
COHORT = replace(SETTING, cohort=10)


class Pace:
    """Between two rounds of a run, end one turn and wait for the next; without turns do nothing."""

    def __init__(self, turns: Turns | None) -> None:
        self._turns, self._left, self._begun = turns, 0, False

    def __call__(self) -> None:
        """Begin a round."""
        if self._turns and not self._left:
            if self._begun:
                self._turns.done()
            self._left, self._begun = self._turns.wait(), True
        self._left -= 1


def ours(
    turns: Turns | None, rounds: int, setting: Setting, *overrides: str, evaluated: bool = False
) -> float:
    """Train end to end under engine=local; a cohort is drawn from all clients, as CFLA does."""
    config, made = setting.config(*overrides), list[ClusteredStrategy]()

    def make(participation: float) -> ClusteredStrategy:
        every = 1 if evaluated else rounds
        strategy = build(config.strategy, participation=participation, evaluate_every=every)
        strategy.cohort = lambda clusters, federation: np.sort(
            strategy.select(np.arange(clusters.num_clients), clusters.models[0], federation)
        )
        if turns and not evaluated:
            strategy._evaluation = lambda now: now
        made.append(strategy)
        return strategy

    run = setting.rounds(config, strategy=make)
    if turns:
        turns.serve(run)
    run(rounds)
    return float(np.mean(made[-1].measured.figures["accuracy"]))


@cache
def prepared() -> tuple[Any, torch.Tensor, nn.Module]:
    """Load the data and build the model once per process."""
    federation = SETTING.federation()
    inputs = (federation.inputs / 255 - federation.mean[0]) / federation.std[0]
    return federation, inputs, SETTING.network()


def cfla(turns: Turns | None, rounds: int, *, evaluated: bool = False) -> float:
    """Call the function that CFLA's command for IFCA calls."""
    from cfla.experiments.scripts import ifca

    pace, (federation, inputs, _) = Pace(turns), prepared()
    held = map(np.concatenate, zip(federation.train, federation.test, strict=True))
    clients = {
        client: TensorDataset(inputs[rows], federation.labels[rows]) for client, rows in enumerate(held)
    }
    loader = ModuleType("cfla.experiments.scripts.run_all_mnist")
    loader.build_client_datasets = lambda *_, **__: (clients, None, 10)  # type: ignore[attr-defined]
    sys.modules[loader.__name__] = loader

    class Server(ifca.ServerIFCA):
        def select_clients(self) -> list:
            pace()
            return super().select_clients()

        def _eval_and_log(self, number: int, chosen: set) -> None:
            nonlocal evaluated
            evaluated |= number + 1 == self.rounds
            if evaluated:
                super()._eval_and_log(number, chosen)

    class Client(ifca.ClientIFCA):
        def evaluate(self, *given: Any) -> tuple[float, int, float]:
            return super().evaluate(*given) if evaluated else (0.0, 0, 0.0)

    ifca.ServerIFCA, ifca.ClientIFCA = Server, Client
    with tempfile.TemporaryDirectory() as folder:
        ifca.run_ifca_experiment(nb_rounds=rounds, output_dir=folder)
        (results,) = Path(folder).glob("*/server_metrics.csv")
        return float(results.read_text().splitlines()[-1].split(",")[1])


def fed_clma(turns: Turns | None, rounds: int) -> float:
    """Run fed-clma's strategy in Flower's simulation, all clients a round; the client is as its page says."""
    from clma import CLMA
    from clma.client import DriftReporter
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    server, client, found = ServerApp(), ClientApp(), list[float]()
    pace = Pace(turns)

    class Paced(CLMA):
        def configure_train(self, *given: Any) -> Any:
            pace()
            return super().configure_train(*given)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        everybody = {"min_train_nodes": SETTING.clients, "min_available_nodes": SETTING.clients}
        strategy = Paced(**everybody, fraction_evaluate=0.0 if turns else 1.0)
        arrays = ArrayRecord(SETTING.network().state_dict())
        result = strategy.start(grid, arrays, num_rounds=rounds)
        found.append(float(result.evaluate_metrics_clientapp[rounds]["accuracy"]))

    @client.train()
    def train(message: Message, context: Context) -> Message:
        federation, inputs, model = prepared()
        rows = torch.from_numpy(federation.train[int(context.node_config["partition-id"])])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser, losses = torch.optim.SGD(model.parameters(), lr=TRAINING["learning_rate"]), []
        for _ in range(int(TRAINING["epochs"])):
            for batch in rows[torch.randperm(len(rows))].split(int(TRAINING["batch_size"])):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[batch]), federation.labels[batch])
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
        arrays, mean = ArrayRecord(model.state_dict()), float(np.mean(losses))
        return DriftReporter(context).build_reply(message, arrays, loss=mean, num_examples=len(rows))

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        federation, inputs, model = prepared()
        rows = torch.from_numpy(federation.test[int(context.node_config["partition-id"])])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        with torch.no_grad():
            right = (model(inputs[rows]).argmax(1) == federation.labels[rows]).double().mean().item()
        metrics = MetricRecord({"num-examples": 1, "accuracy": right})  # each client counts alike
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    _simulate(server, client, SETTING.clients)
    return found[0]


IFCA = "strategy=ifca", "strategy.parameters.num_clusters=3"
WAYS: dict[str, Callable[[Turns | None, int], Any]] = {
    "fedclust-ifca": lambda turns, rounds: ours(turns, rounds, COHORT, *IFCA),
    "cfla": cfla,
    "fedclust-ifca-evaluated": lambda turns, rounds: ours(turns, rounds, COHORT, *IFCA, evaluated=True),
    "cfla-evaluated": partial(cfla, evaluated=True),
    "fedclust-fedavg": lambda turns, rounds: ours(turns, rounds, SETTING),
    "fedclust-flower": lambda turns, _: in_flower(SETTING, turns, 0),
    "fed-clma": fed_clma,
}


def main() -> None:
    """Run one way when it is its turn; or print its accuracy."""
    logging.disable(logging.INFO)
    way = WAYS[sys.argv[2]]
    if sys.argv[3] == "accuracy":
        print(json.dumps(way(None, int(sys.argv[4]))), flush=True)
        os._exit(0)  # Flower's and Ray's threads would keep it alive
    way(Turns(), NEVER)


if __name__ == "__main__":
    import others_ways  # under its own name, by which Ray's processes find it

    others_ways.main()
