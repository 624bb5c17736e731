"""Which models are MLPs."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.training.parameters import LocalTraining
from fedclust.training.vectorised import Linear, LocalUpdate, add_proximal_term, clip_norm, find_mlp
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


ROUND: Any = SimpleNamespace(learning_rate=0.1, proximal_mu=0.0)
SHAPES = [(3, 4), (4,), ()]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.05},
    {"momentum": 0.8, "weight_decay": 0.05},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.1, "betas": (0.7, 0.9), "adam_epsilon": 1e-4},
]


def training(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"learning_rate": 0.1, "batch_size": 1, "steps": 1, **changes})


def torch_optimiser(parameters: list[torch.Tensor], options: dict[str, Any]) -> torch.optim.Optimizer:
    decay = options.get("weight_decay", 0.0)
    if options.get("optimizer") == "adam":
        betas, epsilon = options.get("betas", (0.9, 0.999)), options.get("adam_epsilon", 1e-8)
        return torch.optim.Adam(parameters, lr=0.1, betas=betas, eps=epsilon, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=0.1, momentum=options.get("momentum", 0.0), weight_decay=decay)


def draw(seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in SHAPES]


def trajectory(client: int, steps: int, options: dict[str, Any]) -> list[torch.Tensor]:
    """Where torch.optim takes one client's parameters."""
    parameters = [tensor.requires_grad_() for tensor in draw(client)]
    optimiser = torch_optimiser(parameters, options)
    for step in range(steps):
        for parameter, gradient in zip(parameters, draw(1000 + 10 * step + client), strict=True):
            parameter.grad = gradient
        optimiser.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_client_follows_torch(options: dict[str, Any]) -> None:
    parameters = draw(0)
    optimiser = LocalUpdate(parameters, training(**options), ROUND, stacked=False)
    for step in range(5):
        optimiser.step(parameters, draw(1000 + 10 * step))
    for ours, theirs in zip(parameters, trajectory(0, 5, options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_stacked_clients_follow_torch_each_for_its_own_number_of_steps(options: dict[str, Any]) -> None:
    steps = [5, 4, 2]
    everything = [torch.stack(some) for some in zip(*map(draw, range(3)), strict=True)]
    optimiser = LocalUpdate(everything, training(**options), ROUND, stacked=True)
    for step in range(5):
        active = sum(step < count for count in steps)
        optimiser.narrow(active)
        gradients = [
            torch.stack(some)
            for some in zip(*(draw(1000 + 10 * step + client) for client in range(active)), strict=True)
        ]
        optimiser.step([tensor[:active] for tensor in everything], gradients)
    for client, count in enumerate(steps):
        for ours, theirs in zip(everything, trajectory(client, count, options), strict=True):
            torch.testing.assert_close(ours[client], theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("largest", [0.5, 100.0])
def test_clipping_follows_torch(largest: float) -> None:
    expected = []
    for client in range(3):
        parameters = draw(client)
        for parameter, gradient in zip(parameters, draw(50 + client), strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, largest)
        expected.append([parameter.grad for parameter in parameters])
        alone = draw(50 + client)
        clip_norm(alone, largest, stacked=False)
        torch.testing.assert_close(alone, expected[-1], rtol=1e-6, atol=1e-7)
    stacked = [torch.stack(some) for some in zip(*(draw(50 + client) for client in range(3)), strict=True)]
    clip_norm(stacked, largest, stacked=True)
    for client in range(3):
        torch.testing.assert_close([some[client] for some in stacked], expected[client], rtol=1e-6, atol=1e-7)


def test_proximal_term_is_the_gradient_of_its_formula() -> None:
    # mu/2 (w - w0)^2 at w = 3, w0 = 1, mu = 0.5 has gradient 0.5 * 2 = 1, on top of 10.
    gradients = [torch.tensor([10.0])]
    add_proximal_term(gradients, [torch.tensor([3.0])], [torch.tensor([1.0])], 0.5)
    assert gradients[0].item() == 11.0
