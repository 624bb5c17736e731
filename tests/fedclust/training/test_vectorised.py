"""Which models are MLPs."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.training.device_data import DeviceData
from fedclust.training.vectorised import Linear, VectorisedTraining, find_mlp
from fedclust.training.working_model import ClientDropout, WorkingModel

from .conftest import Written, federation, hyperparameters


def mlp_of(model: nn.Module, example_dims: int = 1):
    return find_mlp(WorkingModel(model, torch.device("cpu"), "float32"), example_dims)


def test_a_sequential_network() -> None:
    layers = [nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Identity(), nn.Linear(3, 2)]
    mlp = mlp_of(nn.Sequential(*layers), example_dims=3)
    first, activation, dropout, last = mlp
    assert (first, activation, last) == (Linear("1.weight", "1.bias"), "relu", Linear("5.weight", "5.bias"))
    assert isinstance(dropout, ClientDropout)


def test_a_written_network() -> None:
    def forward(model, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(model.middle(functional.relu(model.first(torch.flatten(inputs, start_dim=1)))))
        return model.last(hidden.relu())

    layers = {"first": nn.Linear(4, 3), "middle": nn.Linear(3, 3, bias=False), "last": nn.Linear(3, 2)}
    first, last = (Linear(f"{name}.weight", f"{name}.bias") for name in ("first", "last"))
    expected = [first, "relu", Linear("middle.weight", None), "tanh", "relu", last]
    assert mlp_of(Written(forward, **layers), example_dims=3) == expected


def test_without_flattening() -> None:
    assert mlp_of(nn.Sequential(nn.Linear(4, 2)))
    assert mlp_of(nn.Sequential(nn.Linear(4, 2)), example_dims=2) is None


def residual(model, inputs: torch.Tensor) -> torch.Tensor:
    return inputs + model.layer(inputs)


def twice(model, inputs: torch.Tensor) -> torch.Tensor:
    return model.layer(model.layer(inputs))


def once(model, inputs: torch.Tensor) -> torch.Tensor:
    return model.layer(inputs)


def branching(model, inputs: torch.Tensor) -> torch.Tensor:
    return model.layer(inputs) if inputs.sum() > 0 else inputs


def scaled(model, inputs: torch.Tensor) -> torch.Tensor:
    return 2.0 * model.layer(inputs)


def test_a_written_layer() -> None:
    assert mlp_of(Written(once, layer=nn.Linear(4, 4)))


@pytest.mark.parametrize(
    "model",
    [
        *(Written(each, layer=nn.Linear(4, 4)) for each in (residual, twice, branching, scaled)),
        Written(once, layer=nn.Linear(4, 4), unused=nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten()),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.1)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Flatten()),
    ],
    ids=lambda model: type(model).__name__ + str(len(list(model.children()))),
)
def test_what_is_no_mlp(model: nn.Module) -> None:
    assert mlp_of(model) is None


@pytest.mark.parametrize("options", [{"weight_decay": 0.1}, {"momentum": 0.5, "clip_norm": 0.3}], ids=str)
@pytest.mark.parametrize("held", ["1.weight 1.bias", "3.weight 3.bias", "1.bias 3.weight"])
def test_what_is_not_trained_is_held(small, held: str, options: dict[str, float]) -> None:
    model = small.build("linear")
    for name in held.split():
        model.get_parameter(name).requires_grad_(False)
    assert mlp_of(model, example_dims=3)
    made = small.set_up(model, mode="vectorised", **options)
    small.assert_as_literal(made)
    for state, _ in small.by_client(list(made.trainer.train(made.jobs, 3))).values():
        assert {name for name in state if torch.equal(state[name], made.start[name])} == {*held.split()}


def test_the_data_is_freed_at_once() -> None:
    cpu = torch.device("cpu")
    working = WorkingModel(nn.Linear(4, 3), cpu, "float32")
    gc.disable()  # what holds itself would stay until it runs
    try:
        data = DeviceData(federation(), cpu)
        freed = weakref.ref(data)
        training = VectorisedTraining(working, data, hyperparameters())
        del training, data
        assert freed() is None
    finally:
        gc.enable()
