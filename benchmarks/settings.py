"""Settings for comparing ways of training, on random data: only the shapes matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from fedclust import data
from fedclust.data import Dataset, FederatedData
from fedclust.federation.federation import Federation
from fedclust.federation.run import Round
from fedclust.messages.models import from_state
from fedclust.models import construction
from fedclust.runs.server import connect, make_engine
from fedclust.settings.checks import run_settings
from fedclust.settings.composition import compose
from fedclust.strategies import ClusteredStrategy

_TEST_FRACTION = 0.1  # held out and not used


@dataclass(frozen=True)
class RandomImages:
    """A dataset builder of random images of one shape, or of rows of so many numbers."""

    examples: int
    input_shape: Sequence[int]
    num_classes: int

    def load(self, cache_dir: Path | None = None) -> Dataset:  # noqa: ARG002
        """Draw the examples, the same in every process."""
        draws = np.random.default_rng(0)
        shape = (self.examples, *self.input_shape)
        if images := len(shape) > 2:
            inputs = torch.from_numpy(draws.integers(0, 256, shape, dtype=np.uint8))
        else:
            inputs = torch.from_numpy(draws.standard_normal(shape, dtype=np.float32))
        name = "random-" + "x".join(map(str, shape))
        return Dataset(
            name=name,
            inputs=inputs,
            labels=torch.from_numpy(draws.integers(0, self.num_classes, self.examples)),
            num_classes=self.num_classes,
            mean=(0.5,) * self.input_shape[0] * images,
            std=(0.25,) * self.input_shape[0] * images,
            class_names=tuple(map(str, range(self.num_classes))),
            num_train=self.examples,
            natural=None,
            fingerprint=name,
        )


def random_images(config: DictConfig, examples: int, shape: Sequence[int], num_classes: int = 10) -> None:
    """Put random images of one shape, or rows of so many numbers, in place of a configuration's dataset."""
    OmegaConf.set_struct(config, False)
    config.dataset = {
        "_target_": "settings.RandomImages",
        "examples": examples,
        "input_shape": list(shape),
        "num_classes": num_classes,
    }


class Training(ClusteredStrategy):
    """One model for all, never evaluated."""

    def _evaluation(self, now: Round) -> Round:
        """Ask nobody."""
        return now


@dataclass(frozen=True)
class Setting:
    """A training setting.

    Attributes
    ----------
    title
        Description in words.
    clients
        Number of clients K.
    examples
        Training examples of each.
    side
        Width and height of an image.
    model
        Function that makes the model, with its module.
    training
        Hyperparameters.
    channels
        Channels of an image.
    cohort
        Clients a round; None for all.
    report
        What others published of it, and on what hardware.
    ways
        The ways that are compared in it (``rounds.py``); all of them if empty.
    """

    title: str
    clients: int
    examples: int
    side: int
    model: str
    training: Mapping[str, Any]
    channels: int = 1
    cohort: int | None = None
    report: str = ""
    ways: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of the clients that train in a round."""
        return 1.0 if self.cohort is None else self.cohort / self.clients

    def config(self, *overrides: str) -> DictConfig:
        """Compose fedclust's configuration."""
        shape = f"partition.num_clients={self.clients}", f"participation={self.share}"
        # Not auto, which holds out a part of the rows.
        config = compose(["partition=iid", *shape, "strategy=fedavg", *overrides])
        examples = round(self.clients * self.examples / (1 - _TEST_FRACTION))
        random_images(config, examples, (self.channels, self.side, self.side))
        config.partition.test_fraction = _TEST_FRACTION
        config.model = {"_target_": self.model}
        config.device = "cpu"
        config.training = {**config.training, "epochs": None, "steps": None, **self.training}
        return config

    def federation(self) -> FederatedData:
        """Prepare the data."""
        config = OmegaConf.to_container(self.config(), resolve=True)
        assert isinstance(config, dict)
        return data.load(config["dataset"], config["partition"], 0)

    def network(self) -> torch.nn.Module:
        """Build the model."""
        return construction.build({"_target_": self.model}, 0)

    def rounds(
        self, config: DictConfig, grid: Any = None, strategy: Callable[..., ClusteredStrategy] = Training
    ) -> Callable[[int], None]:
        """Return a function that runs so many rounds, its clients connected as a run connects them."""
        grid = make_engine(config) if grid is None else grid
        clients = connect(config, grid, run_settings(config), lambda _: None)
        arrays = from_state(self.network().state_dict())

        def run(number: int) -> None:
            federation = Federation(clients)
            strategy(participation=self.share).start(grid, arrays, num_rounds=number, federation=federation)

        return run


SETTINGS = {
    "digits": Setting(
        "Digits: 64-64-10 network, 100 clients a round, 18 samples each, 5 epochs, batch 16",
        clients=100,
        examples=18,
        side=8,
        model="training_speed.digits_model",
        training={"learning_rate": 0.1, "batch_size": 16, "epochs": 5},
    ),
    "cnn": Setting(
        "CNN: 28×28, 3×3 convolutions 8-16-32 with pooling, dense 2048, 20 clients a round, "
        "480 samples each, 1 epoch, batch 32",
        clients=20,
        examples=480,
        side=28,
        model="training_speed.cnn_model",
        training={"learning_rate": 0.05, "batch_size": 32, "epochs": 1},
    ),
}
