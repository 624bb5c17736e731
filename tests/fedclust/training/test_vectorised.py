"""Which models are MLPs, and passes in parts."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.support.devices import torch_threads
from fedclust.training import vectorised
from fedclust.training.device_data import DeviceData
from fedclust.training.vectorised import Linear, VectorisedTraining, cuts, find_mlp
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


@pytest.mark.parametrize(
    ("steps", "parts", "expected"),
    [
        ([7] * 4, 1, []),
        ([7] * 3, 2, []),  # a part would have one client
        ([7] * 5, 2, [2]),  # 14 of 35 steps before it, as near to 17.5 as the 21 before the fourth
        ([7] * 9, 3, [3, 6]),
        ([7] * 5, 3, [2]),  # a third part would have one client
        ([8, 8, 4, 4, 4, 4], 2, [2]),  # 16 of 32
        ([9, 5, 5, 3, 2, 1], 2, []),  # what begins in the third place has one that ends alone
        ([9, 5, 4, 4, 1, 1], 2, [2]),  # the part of 9 and 5 ends as the whole pass does
    ],
)
def test_clients_are_divided_where_none_trains_alone(steps, parts, expected) -> None:
    assert cuts(np.array(steps), parts) == expected


@pytest.mark.parametrize("kind", ["linear", "dropout", "tanh"])
@pytest.mark.parametrize(
    "options", [{"weight_decay": 0.01}, {"momentum": 0.9, "clip_norm": 0.5, "proximal_mu": 0.1}]
)
def test_parts_of_a_pass_get_its_bits(small, monkeypatch, kind: str, options: dict) -> None:
    monkeypatch.setattr(vectorised, "_PRODUCTS_PER_THREAD", 1)
    taken = Counter[int]()
    pool = vectorised.thread_pool
    monkeypatch.setattr(
        vectorised, "thread_pool", lambda parts, inside: taken.update([parts]) or pool(parts, inside)
    )
    data = small.federation(kind, sizes=(3, 40, 13, 20, 20, 10, 12, 9))
    with torch_threads(1):
        made = [small.set_up(kind, data, threads=threads, mode="vectorised", **options) for threads in (1, 4)]
        whole, parts = (small.by_client(list(each.trainer.train(each.jobs, 3))) for each in made)
    assert taken == {3: 1}  # of 10, 6, 6; 4, 4; 4, 4 and 2 steps
    assert len(parts) == 8
    for client, (state, losses) in parts.items():
        np.testing.assert_array_equal(losses, whole[client][1])
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, whole[client][0][name], rtol=0, atol=0)


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
