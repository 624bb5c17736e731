"""Building networks; their base class; the shapes they take."""

import contextlib
import random

import numpy as np
import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from torch import nn

from fedclust.models import construction

ONE = torch.zeros(1, dtype=torch.int64)
MLP = {"_target_": "fedclust.models.dense.MLP", "input_shape": [1, 2, 2], "num_classes": 3, "hidden": [5]}


def weights(seed: int) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in construction.build(MLP, seed).parameters()])


def test_the_seed_alone_decides_the_weights_and_nothing_else_changes() -> None:
    first = weights(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    torch.testing.assert_close(weights(1), first, rtol=0, atol=0)
    assert not torch.equal(weights(2), first)
    with pytest.raises(ValueError, match="hidden"):
        construction.build(MLP | {"hidden": [0]}, seed=1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


def test_takes_a_node_of_a_composed_configuration() -> None:
    node = OmegaConf.create(
        {"dataset": {"shape": [1, 2, 2]}, "model": MLP | {"input_shape": "${dataset.shape}"}}
    )
    logits = construction.build(node.model, seed=1)(torch.zeros(4, 1, 2, 2))
    assert logits.shape == (4, 3)
    assert construction.build(node.model, seed=1).training


@pytest.mark.parametrize(
    ("config", "seed", "error", "message"),
    [
        ({"_target_": "fractions.Fraction"}, 0, TypeError, "class Module, got Fraction from fractions.Frac"),
        (MLP, -1, ValueError, "seed"),
        (MLP | {"widths": [5]}, 0, InstantiationException, "widths"),
    ],
)
def test_refuses(config: dict, seed: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        construction.build(config, seed)


def test_nodes_inside_are_left_to_their_owner() -> None:
    made = construction.construct({"_target_": "builtins.dict", "model": MLP}, dict, "model", 0)
    assert made == {"model": MLP}


def test_a_network_must_have_an_output_for_every_class() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    example = torch.zeros((1, 2, 2), dtype=torch.uint8)
    construction.check_outputs(network, example, ONE, 3)
    construction.check_outputs(network, example[:0], ONE, 9)  # nothing to try it on
    assert network.training
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    said = r"^model must have >= 4 outputs \(model.num_classes\), an output per class, .*, got 3$"
    with pytest.raises(ValueError, match=said):
        construction.check_outputs(network, example, ONE, 4)


@pytest.mark.parametrize(
    ("returned", "positions", "got"),
    [
        (lambda y: (y, y), (), "got tuple"),
        (lambda y: {"logits": y}, (), "got dict"),
        (lambda y: y.flatten(), (), r"got \[6\]"),
        (lambda y: y[:, None], (), r"got \[2, 1, 3\]"),
        (lambda y: y, (5,), r"shape \[2, 5, 3\], .* with 5 class indices each, got \[2, 3\]"),
        (lambda y: y, (), None),
        (lambda y: y[:, None].expand(2, 5, 3), (5,), None),
    ],
)
def test_a_network_must_return_an_output_per_class(returned, positions: tuple, got: str | None) -> None:
    class Net(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return returned(super().forward(inputs.mul_(0.5)))

    example, labels = torch.ones(1, 4), torch.zeros(1, *positions, dtype=torch.int64)
    said = contextlib.nullcontext() if got is None else pytest.raises(ValueError, match=f"model must .*{got}")
    with said:
        construction.check_outputs(Net(4, 3), example, labels, 3)
    assert torch.equal(example, torch.ones(1, 4))  # the network changes a copy


def test_statistics_of_the_batch_need_two_rows() -> None:
    network = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    construction.check_outputs(network, torch.ones(1, 4), ONE, 3)


def test_a_network_must_take_the_data() -> None:
    with pytest.raises(ValueError, match=r"model must take examples of shape \(5,\), it raises RuntimeError"):
        construction.check_outputs(torch.nn.Linear(4, 3), torch.zeros(1, 5), ONE, 3)


def test_weights_drawn_anew_depend_on_the_seed_alone() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    before = [parameter.clone() for parameter in network.parameters()]
    one, again, other = (construction.reinitialised(network, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one[0].weight, other[0].weight)
    assert not torch.equal(one[0].weight, network[0].weight)


def test_what_is_frozen_is_not_drawn_anew() -> None:
    class Pretrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.arange(4.0), requires_grad=False)
            self.layer = nn.Linear(4, 4).requires_grad_(False)

        def reset_parameters(self) -> None:
            self.layer.reset_parameters()  # within it

    norm = nn.BatchNorm1d(4).requires_grad_(False)
    norm.running_mean.fill_(7.0)
    half = nn.Linear(4, 4)
    half.weight.requires_grad_(False)
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)).requires_grad_(False)
    body[1].running_mean.fill_(7.0)
    network = nn.Sequential(Pretrained(), norm, half, nn.BatchNorm1d(4), body)
    network[3].running_mean.fill_(7.0)
    drawn = construction.reinitialised(network, 1)
    before, after = network.state_dict(), drawn.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"2.bias", "3.running_mean"}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16])
def test_numbers_that_no_message_holds_are_refused(dtype) -> None:
    network = nn.Linear(4, 3)
    network.register_buffer("phase", torch.zeros(2, dtype=dtype))
    said = f"^model must hold float16, .*, got phase of {dtype}; model.float"
    with pytest.raises(ValueError, match=said):
        construction.check_outputs(network, torch.ones(1, 4), ONE, 3)


def test_a_network_without_a_start_is_refused() -> None:
    network = nn.Linear(4, 3)
    network.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    for kept, said in (
        (network, "'mask' is not"),
        (nn.Linear(4, 3).requires_grad_(False), "to train, got none"),
    ):
        with pytest.raises(ValueError, match=f"^model must (be finite|have a parameter).*{said}"):
            construction.check_outputs(kept, torch.ones(1, 4), ONE, 3)
    construction.check_outputs(nn.LazyLinear(3), torch.ones(1, 4), ONE, 3)  # the example makes its weights


def test_a_parameter_that_no_layer_draws_is_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(ValueError, match="module '1' must have reset_parameters, a Scaled has none"):
        construction.reinitialised(nn.Sequential(nn.Linear(1, 1), Scaled()), 0)


def test_the_head_scores_what_the_body_computes() -> None:
    model = construction.Classifier(nn.Flatten(), width=4, num_classes=2)
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    torch.testing.assert_close(model.features(images), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    torch.testing.assert_close(model(images), torch.tensor([[10.0, 10.0]]))
    assert model.width == 4


def test_it_is_the_last_module_with_parameters_of_its_own() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.ReLU())
    assert construction.last_layer(network) == {"2.weight", "2.bias"}
    assert construction.last_layer(nn.Linear(2, 2)) == {"weight", "bias"}
    assert construction.last_layer(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) == {
        f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="network must have parameters, a ReLU has none"):
        construction.last_layer(nn.ReLU())
