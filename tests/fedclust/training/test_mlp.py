"""Which models are MLPs."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.training.vectorised import Linear, find_mlp
from fedclust.training.working_model import ClientDropout, WorkingModel


def mlp_of(model: nn.Module, example_dims: int = 1) -> Any:
    return find_mlp(WorkingModel(model, torch.device("cpu"), "float32"), example_dims)


class Written(nn.Module):
    """A network whose forward pass is written out with functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.middle = nn.Linear(3, 3, bias=False)
        self.last = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(functional.relu(self.first(torch.flatten(inputs, start_dim=1)))))
        return self.last(hidden.relu())


def test_a_sequential_network() -> None:
    mlp = mlp_of(
        nn.Sequential(
            nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Identity(), nn.Linear(3, 2)
        ),
        example_dims=3,
    )
    first, activation, dropout, last = mlp
    assert first == Linear("1.weight", "1.bias")
    assert activation == "relu"
    assert isinstance(dropout, ClientDropout)
    assert last == Linear("5.weight", "5.bias")


def test_a_written_network() -> None:
    assert mlp_of(Written(), example_dims=3) == [
        Linear("first.weight", "first.bias"),
        "relu",
        Linear("middle.weight", None),
        "tanh",
        "relu",
        Linear("last.weight", "last.bias"),
    ]


def test_without_flattening() -> None:
    assert mlp_of(nn.Sequential(nn.Linear(4, 2)))
    assert mlp_of(nn.Sequential(nn.Linear(4, 2)), example_dims=2) is None


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.layer(inputs)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(inputs))


class Unused(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


class Branching(Twice):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) if inputs.sum() > 0 else inputs


class Scaled(Twice):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2.0 * self.layer(inputs)


@pytest.mark.parametrize(
    "model",
    [
        Residual(),
        Twice(),
        Unused(),
        Branching(),
        Scaled(),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten()),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.1)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)),
        nn.Sequential(nn.Flatten()),
    ],
    ids=lambda model: type(model).__name__ + str(len(list(model.children()))),
)
def test_what_is_no_mlp(model: nn.Module) -> None:
    assert mlp_of(model) is None
