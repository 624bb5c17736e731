"""The compared ways of training a round; each runs in separate processes, which take turns.

python benchmarks/ways.py SETTING WAY RANK    (started by rounds.py and published.py)
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache, partial

import published
import settings
import torch
from settings import Setting
from training_speed import bare_vmap, plain_loop
from turns import Turns

from fedclust.settings.composition import to_run_config
from fedclust.training.cohort import draw_batches
from fedclust.training.parameters import LocalTraining

NEVER = 1_000_000_000  # rounds
SETTINGS = {**settings.SETTINGS, **published.PUBLISHED}


def plain(setting: Setting, turns: Turns, rank: int, size: int) -> None:
    """Train client after client with torch.optim, as a tutorial does; batches are drawn beforehand."""
    _serve_loop(setting, turns, plain_loop, rank, size)


def vmapped(setting: Setting, turns: Turns, rank: int, size: int) -> None:
    """Train all clients at once under torch.func.vmap, without anything else."""
    _serve_loop(setting, turns, bare_vmap, rank, size)


def _serve_loop(setting: Setting, turns: Turns, train: Callable[..., None], rank: int, size: int) -> None:
    federation, model = setting.federation(), setting.network()
    training = LocalTraining(**setting.training)
    mine = list(range(rank, setting.clients, size))
    batches = draw_batches(mine, [federation.train[client] for client in mine], training, 0, 1)
    inputs = (federation.inputs / 255 - 0.5) / 0.25

    def rounds(number: int) -> None:
        for _ in range(number):
            train(model, inputs, federation.labels, batches, training.learning_rate)

    turns.serve(rounds)


def fedclust(setting: Setting, turns: Turns, _: int, engine: str) -> None:
    """Train end to end, as a run does."""
    turns.serve(setting.rounds(setting.config(f"engine={engine}")))


def in_flower(setting: Setting, turns: Turns, _: int, pause: float | None = None) -> None:
    """Run fedclust's apps in Flower's simulation with a node per core, as ``flwr run`` does.

    With a ``pause``, the simulation looks for messages that often, in seconds.
    """
    if pause is not None:
        from flower_issues import look_every

        look_every(pause)
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedclust.grids.superlink import PromptGrid

    config = setting.config()
    run_config = to_run_config(config)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        turns.serve(setting.rounds(config, PromptGrid(grid)))  # as fedclust.runs.server does

    class Configured(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            from fedclust.clients import app

            known = context.run_id, context.node_id, context.node_config, context.state
            return app(message, Context(*known, run_config=run_config))

    _simulate(server, Configured(), os.cpu_count() or 1)


def stock_flower(setting: Setting, turns: Turns, _: int) -> None:
    """Run Flower's FedAvg with a SuperNode per client."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=setting.share,
            fraction_evaluate=0.0,
            min_train_nodes=setting.cohort or setting.clients,
            min_available_nodes=setting.clients,
        )
        arrays = ArrayRecord(setting.network().state_dict())
        turns.serve(lambda number: strategy.start(grid, arrays, num_rounds=number))

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model, inputs, labels, parts = _prepared(setting.title)
        rows = torch.from_numpy(parts[int(context.node_config["partition-id"])])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=setting.training["learning_rate"])
        loss = torch.zeros(())
        for _ in range(setting.training["epochs"]):
            for batch in rows[torch.randperm(len(rows))].split(setting.training["batch_size"]):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
                loss.backward()
                optimiser.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(rows), "loss": loss.item()}),
        }
        return Message(RecordDict(content), reply_to=message)

    _simulate(server, client, setting.clients)


@lru_cache
def _prepared(title: str) -> tuple:
    """Load the data once per process, as a careful user does."""
    setting = next(setting for setting in SETTINGS.values() if setting.title == title)
    federation = setting.federation()
    inputs = (federation.inputs / 255 - 0.5) / 0.25
    return setting.network(), inputs, federation.labels, federation.train


def _simulate(server: object, client: object, nodes: int) -> None:
    from flwr.simulation import run_simulation

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    try:
        run_simulation(server, client, nodes, backend_config=backend)  # type: ignore[arg-type]
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)  # the server's thread would wait for its turn for ever


def pfl_research(setting: Setting, turns: Turns, _: int, device: str = "cpu") -> None:
    """Run pfl-research's federated averaging; with two processes it divides the cohort itself."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(0)  # noqa: NPY002  (the processes must draw the same cohorts)
    federation, network = setting.federation(), setting.network().to(device)
    inputs, labels = ((federation.inputs / 255 - 0.5) / 0.25).to(device), federation.labels.to(device)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def loss(self, x: torch.Tensor, y: torch.Tensor, **_: bool) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.network(x), y)

        def metrics(self, _: torch.Tensor, y: torch.Tensor, **__: bool) -> dict:
            return {"loss": Weighted(0.0, len(y))}

    class Turn(TrainingProcessCallback):
        left = 0

        def on_train_begin(self, **_: object) -> Metrics:
            self.left = turns.wait()
            return Metrics()

        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            self.left -= 1
            if self.left == 0:
                turns.done()
                self.left = turns.wait()
            return False, Metrics()

    def user(client: int) -> Dataset:
        rows = torch.from_numpy(federation.train[client])
        return Dataset([inputs[rows], labels[rows]], user_id=str(client))

    users = {client: user(client) for client in range(setting.clients)}
    dataset = FederatedDataset(
        users.__getitem__,
        get_user_sampler("minimize_reuse", list(users)),
        user_id_to_weight={client: len(users[client]) for client in users},
    )
    model = Network()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    rate, batch, epochs = (setting.training[key] for key in ("learning_rate", "batch_size", "epochs"))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=NEVER,
            evaluation_frequency=NEVER,
            train_cohort_size=setting.cohort or setting.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(dataset, dataset),
        PyTorchModel(model, torch.optim.SGD, optimiser),
        NNTrainHyperParams(local_num_epochs=epochs, local_learning_rate=rate, local_batch_size=batch),
        callbacks=[Turn()],
    )


WAYS: dict[str, Callable[..., None]] = {
    "fedclust-local": partial(fedclust, engine="local"),
    "fedclust-ray": partial(fedclust, engine="ray"),
    "fedclust-flower": in_flower,
    "fedclust-flower-1ms": partial(in_flower, pause=0.001),
    "stock-flower": stock_flower,
    "pfl": pfl_research,
    "pfl-2": pfl_research,
    "plain": partial(plain, size=1),
    "plain-2": partial(plain, size=2),
    "vmapped": partial(vmapped, size=1),
}


def main() -> None:
    """Run one way when it is its turn."""
    setting, way, rank = SETTINGS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    logging.disable(logging.INFO)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    WAYS[way](setting, Turns(), rank)


if __name__ == "__main__":
    import ways  # under its own name, by which Ray's processes find it

    ways.main()
