"""A small federation and one small model per kind of layer, shared by the tests of this folder."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.data.dataset import FederatedData
from fedclust.training.cohort import Job
from fedclust.typing import State

SIZES = (1, 9, 20, 8, 13)  # with batches of 8: one sample, one batch + 1, several, exactly one, one + 5


class TokenModel(nn.Module):
    """Embedding and a recurrent layer; logits for the last position, or for each."""

    def __init__(
        self, recurrent: type[nn.RNNBase], num_classes: int = 3, every_position: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.lstm = recurrent(4, 5, batch_first=True)
        self.head = nn.Linear(5, num_classes)
        self.every_position = every_position

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs = self.lstm(self.embedding(tokens))[0]
        return self.head(outputs if self.every_position else outputs[:, -1])


def build(kind: str) -> nn.Module:
    """Build the model that exercises one kind of layer, always with the same initial values."""
    torch.manual_seed(11)
    images: dict[str, Callable[[], list[nn.Module]]] = {
        "linear": lambda: [nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 3)],
        "dropout": lambda: [nn.Flatten(), nn.Linear(32, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3)],
        "layer norm": lambda: [
            nn.Flatten(),
            nn.Linear(32, 6),
            nn.LayerNorm(6),
            nn.Dropout(0.3),
            nn.GELU(),
            nn.Linear(6, 3),
        ],
        "tanh": lambda: [nn.Flatten(), nn.Linear(32, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)],
        "convolution": lambda: [
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ],
        "batch norm": lambda: [
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 5),
            nn.BatchNorm1d(5),
            nn.Linear(5, 3),
        ],
        "averaging batch norm": lambda: [
            nn.Flatten(),
            nn.Linear(32, 5),
            nn.BatchNorm1d(5, momentum=None),
            nn.Linear(5, 3),
        ],
        "group norm": lambda: [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)],
        "channel dropout": lambda: [nn.Conv2d(2, 6, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(24, 3)],
    }
    if kind in images:
        return nn.Sequential(*images[kind]())
    return TokenModel(nn.GRU if kind == "gru" else nn.LSTM, every_position=kind == "positions")


def federation(kind: str = "linear", sizes: tuple[int, ...] = SIZES, classes: int = 3) -> FederatedData:
    """Make a federation of random examples that suits `build(kind)`; as many test as training rows."""
    draws = np.random.default_rng(5)
    total = 2 * sum(sizes)
    if kind in ("lstm", "gru", "positions"):
        inputs = torch.from_numpy(draws.integers(0, 7, (total, 6)))
    else:
        inputs = torch.from_numpy(draws.integers(0, 256, (total, 2, 4, 4), dtype=np.uint8))
    shape = (total, 6) if kind == "positions" else (total,)
    rows = np.split(draws.permutation(total), np.cumsum((*sizes, *sizes))[:-1])
    return FederatedData(
        name="random",
        inputs=inputs,
        labels=torch.from_numpy(draws.integers(0, classes, shape)),
        train=tuple(rows[: len(sizes)]),
        test=tuple(rows[len(sizes) :]),
        num_classes=classes,
        mean=(0.4, 0.5) if inputs.dtype == torch.uint8 else (),
        std=(0.2, 0.3) if inputs.dtype == torch.uint8 else (),
        groups=None,
        class_names=tuple("abc"[:classes]),
        fingerprint="random",
    )


def start_of(model: nn.Module) -> State:
    """Copy a model's state."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def training_jobs(data: FederatedData, state: State) -> list[Job]:
    """Make one job per client, all from one state."""
    return [Job(client, rows, state) for client, rows in enumerate(data.train)]


@pytest.fixture(name="small")
def small_fixture() -> type:
    """Return the helpers above to tests, which cannot import a conftest."""

    class Small:
        sizes = SIZES
        build = staticmethod(build)
        federation = staticmethod(federation)
        start_of = staticmethod(start_of)
        jobs = staticmethod(training_jobs)

    return Small
