import copy
import gc
import weakref
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Fitting, chain, chain_mean, draw_inputs, fit_pairs
from fedclust.clustering.fedgmcc import Parameters
from fedclust.typing import State
from tests.fedclust.clustering.chains import literal_fit, mlp, one, seeded

numbers = st.floats(-10, 10)


@given(numbers, numbers, numbers)
def test_chain_mean_is_the_integral_over_u(start: float, end: float, bend: float) -> None:
    # The midpoint rule is exact on straight pieces when a cell border lies on the bend.
    cells = (np.arange(200) + 0.5) / 200
    integral = np.mean([chain(start, end, bend, float(u)) for u in cells])
    assert chain_mean(start, end, bend) == pytest.approx((start + 2 * bend + end) / 4)
    assert chain_mean(start, end, bend) == pytest.approx(integral, abs=1e-9)


def test_inputs_are_uniform() -> None:
    images = draw_inputs(2000, (1, 2, 2), seeded())
    assert images.shape == (2000, 1, 2, 2)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < 0.01
    assert 0.99 < images.max() < 1
    tokens = draw_inputs(2000, (3,), seeded(), vocabulary_size=4)
    assert tokens.dtype == torch.int64
    # 6,000 draws of probability 1/4: 1,500, standard deviation 34.
    assert torch.bincount(tokens.flatten(), minlength=4).sub(1500).abs().max() < 170


def test_inputs_are_normalised_like_the_images() -> None:
    plain = draw_inputs(5, (2, 3, 3), seeded())
    normalised = draw_inputs(5, (2, 3, 3), seeded(), mean=(0.5, 0.25), std=(0.5, 2.0))
    torch.testing.assert_close(normalised[:, 0], (plain[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(normalised[:, 1], (plain[:, 1] - 0.25) / 2)


@pytest.fixture(autouse=True)
def _repeatable():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
    torch.set_num_threads(before)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)
    )


class Made(nn.Module):
    """A network of named parts, and how inputs go through them."""

    def __init__(self, through: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self._through = through
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: Tensor) -> Tensor:
        return self._through(self, inputs)


def tagger() -> nn.Module:
    """Make an LSTM over tokens with logits at every position."""
    parts = {"embed": nn.Embedding(5, 4), "lstm": nn.LSTM(4, 3, batch_first=True), "head": nn.Linear(3, 2)}
    return Made(lambda own, tokens: own.head(own.lstm(own.embed(tokens))[0]), **parts)


def attention() -> nn.Module:
    """Make one transformer layer over positions."""
    parts = {"layer": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), "head": nn.Linear(4, 2)}
    return Made(lambda own, inputs: own.head(own.layer(inputs).mean(dim=1)), **parts)


def tied() -> nn.Module:
    """Make a decoder that shares the encoder's weights, and has one number as a parameter."""
    parts = {"encode": nn.Linear(4, 4), "decode": nn.Linear(4, 4), "scale": nn.Parameter(torch.ones(()))}
    parts["decode"].weight = parts["encode"].weight
    return Made(lambda own, inputs: own.scale * own.decode(own.encode(inputs).tanh()), **parts)


def frozen() -> nn.Module:
    """Make a network whose first layer and one bias do not train."""
    made = mlp()
    made[0].requires_grad_(False)
    made[-1].bias.requires_grad_(False)
    return made


def random_models(network: nn.Module, n: int, seed: int = 0, spread: float = 0.5) -> State:
    draws = seeded(seed)
    stacks = {}
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            noise = spread * torch.randn((n, *tensor.shape), generator=draws, dtype=tensor.dtype)
            stacks[name] = tensor + (noise.abs() if name.endswith("running_var") else noise)
        else:
            stacks[name] = (
                (2 * torch.arange(n)).reshape(n, *[1] * tensor.ndim).expand(n, *tensor.shape).clone()
            )
    if "decode.weight" in stacks:  # tied
        stacks["decode.weight"] = stacks["encode.weight"]
    return stacks


NETWORKS = {
    "mlp": (mlp, (4,), None),
    "conv": (conv_net, (1, 4, 4), None),
    "lstm": (tagger, (6,), 5),
    "attention": (attention, (3, 4), None),
    "tied": (tied, (4,), None),
    "frozen": (frozen, (4,), None),
}


@pytest.mark.parametrize("at_once", [None, 1, 2])
@pytest.mark.parametrize("kind", list(NETWORKS))
def test_fit_is_the_literal_loop_over_pairs(kind: str, at_once: int | None, monkeypatch) -> None:
    make, shape, vocabulary_size = NETWORKS[kind]
    if at_once == 1 or (at_once and kind not in ("lstm", "attention")):  # which cannot be vectorised
        monkeypatch.setattr(curve_fitting, "_pairs_at_once", lambda *_: at_once)
    network = make().double()
    models = random_models(network, 3)
    inputs = draw_inputs(40, shape, seeded(1), vocabulary_size=vocabulary_size)
    inputs = inputs.double() if vocabulary_size is None else inputs
    parameters = Parameters(steps=4, learning_rate=0.5, batch_size=16, num_points=9)
    fitting = Fitting(network, inputs, parameters, seeded(2))
    chains = fit_pairs(fitting, models)
    np.testing.assert_array_equal(chains.pairs, [[0, 1], [0, 2], [1, 2]])
    for row, (k, m) in enumerate(chains.pairs):
        bend, losses = literal_fit(fitting, one(models, k), one(models, m), seeded(2))
        for name, tensor in one(chains.bends, row).items():
            torch.testing.assert_close(tensor, bend[name], atol=1e-12, rtol=1e-9)
        np.testing.assert_allclose(chains.distances[row], losses, atol=1e-12)


def test_a_pair_is_fitted_alike_whatever_the_others() -> None:
    models, some = random_models(mlp(), 4), np.array([[1, 2], [0, 3]])
    whole, part = fit_chains(models, steps=3), fit_chains(models, some, steps=3)
    for row, pair in enumerate(some.tolist()):
        expected = whole.distances[whole.pairs.tolist().index(pair)]
        np.testing.assert_allclose(part.distances[row], expected, rtol=1e-5, atol=1e-8)


def test_many_inputs_are_evaluated_in_parts() -> None:
    models = random_models(mlp(), 2)
    inputs = draw_inputs(curve_fitting._ROWS_AT_ONCE + 7, (4,), seeded())
    parameters = Parameters(steps=0, num_points=5)
    chains = fit_pairs(Fitting(mlp(), inputs, parameters, seeded()), models)
    fitting = Fitting(mlp(), inputs, parameters, seeded())
    _, losses = literal_fit(fitting, one(models, 0), one(models, 1), seeded())
    np.testing.assert_allclose(chains.distances[0], losses, rtol=1e-5, atol=1e-7)


def test_same_seed_same_chains_and_nothing_is_changed() -> None:
    network = conv_net()
    models, inputs = random_models(network, 3), draw_inputs(20, (1, 4, 4), seeded())
    before = copy.deepcopy((network.state_dict(), models))
    drawn = torch.random.get_rng_state()
    first, again = (
        fit_pairs(Fitting(network, inputs, Parameters(steps=3), seeded(4)), models) for _ in range(2)
    )
    torch.testing.assert_close(first.bends, again.bends, rtol=0, atol=0)
    np.testing.assert_array_equal(first.distances, again.distances)
    torch.testing.assert_close((network.state_dict(), models), before, rtol=0, atol=0)
    assert network.training
    assert torch.equal(torch.random.get_rng_state(), drawn)


def fit_chains(models: State, pairs=None, **parameters) -> curve_fitting.Chains:
    """Fit chains between models of the small network, with thirty inputs."""
    fitting = Fitting(mlp(), draw_inputs(30, (4,), seeded()), Parameters(**parameters), seeded())
    return fit_pairs(fitting, models, pairs)


def test_identical_models_have_loss_zero_and_do_not_bend() -> None:
    network = mlp()
    models = {name: torch.stack([tensor] * 3) for name, tensor in network.state_dict().items()}
    chains = fit_chains(models, steps=5)
    np.testing.assert_allclose(chains.distances, 0, atol=1e-12)
    torch.testing.assert_close(chains.bends, models)


def test_a_bend_out_of_range_is_put_back_halfway() -> None:
    models = random_models(mlp(), 3)
    wild = fit_chains(models, steps=2, learning_rate=float("inf"))
    none = fit_chains(models, steps=0)
    torch.testing.assert_close(wild.bends, none.bends)
    np.testing.assert_array_equal(wild.distances, none.distances)


@pytest.mark.parametrize("make", [mlp, conv_net])
def test_one_model_has_no_pairs(make) -> None:
    network = make()
    inputs = torch.rand(8, *((4,) if make is mlp else (1, 4, 4)))
    chains = fit_pairs(Fitting(network, inputs, Parameters(), seeded()), random_models(network, 1))
    assert chains.pairs.shape == (0, 2)
    assert chains.distances.shape == (0, Parameters().num_points)
    for name, tensor in network.state_dict().items():
        assert chains.bends[name].shape == (0, *tensor.shape)


def overflowing(models: State, position: int, kind: str) -> State:
    """Spoil one model: a weight that is no number, or weights whose outputs overflow float32."""
    models = {name: tensor.clone() for name, tensor in models.items()}
    if kind == "weights":
        models["2.bias"][position, 0] = torch.nan
    else:  # hidden values near 1e30 times weights of 1e30: the logits are infinite
        for name in ("0.weight", "0.bias", "2.weight"):
            models[name][position] *= 1e30
    return models


@pytest.mark.parametrize("kind", ["weights", "outputs"])
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("at_once", [1, 16])
def test_a_model_that_overflows_is_far_from_everyone(kind, position, at_once, monkeypatch) -> None:
    monkeypatch.setattr(curve_fitting, "_pairs_at_once", lambda *_: at_once)
    healthy = random_models(mlp(), 3)
    spoilt = fit_chains(overflowing(healthy, position, kind), steps=3)
    expected = fit_chains(healthy, steps=3)
    for pair, row, before in zip(spoilt.pairs, spoilt.distances, expected.distances, strict=True):
        # The pair of the other two is fitted as without it.
        np.testing.assert_array_equal(row, np.full(11, np.inf) if position in pair else before)


def test_a_chain_that_overflows_between_sound_models_is_no_match() -> None:
    # The sum of two weights of 3e38 is beyond float32, and with it the middle of the chain.
    models = random_models(mlp(), 3)
    models["2.bias"][:2] = torch.tensor([3e38, 0.0, 0.0])
    distances = fit_chains(models, steps=0).distances
    assert np.isinf(distances[0]).all()
    assert np.isfinite(distances[1:]).all()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("make", "shape"), [(conv_net, (1, 4, 4)), (mlp, (4,))])
def test_the_number_of_threads_changes_nothing(make, shape: tuple[int, ...], threads: int) -> None:
    network = make()
    models, inputs = random_models(network, 8), torch.rand(32, *shape, generator=seeded(1))  # 28 pairs
    parameters = Parameters(steps=5, batch_size=8)
    alone = fit_pairs(Fitting(network, inputs, parameters, seeded()), models)
    torch.set_num_threads(threads)
    together = fit_pairs(Fitting(network, inputs, parameters, seeded()), models)
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(together.distances, alone.distances)
    for name, bends in alone.bends.items():
        assert torch.equal(together.bends[name], bends), name


class Counted(nn.Linear):
    """A layer whose living copies are counted."""

    living: ClassVar["weakref.WeakSet[Counted]"] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict) -> "Counted":
        copied = Counted(self.in_features, self.out_features)
        copied.load_state_dict(self.state_dict())
        Counted.living.add(copied)
        return copied


@pytest.mark.parametrize(("threads", "at_once"), [(1, 16), (1, 1), (2, 1)])
def test_nothing_stays_in_memory_afterwards(threads: int, at_once: int, monkeypatch) -> None:
    """Without a collection of circles, which may come many rounds later, or when the GPU's memory is full."""
    monkeypatch.setattr(curve_fitting, "_pairs_at_once", lambda *_: at_once)
    network = nn.Sequential(Counted(4, 3))
    models, inputs = random_models(network, 4), draw_inputs(20, (4,), seeded())
    torch.set_num_threads(threads)
    gc.disable()
    try:
        fit_pairs(Fitting(network, inputs, Parameters(steps=2, batch_size=8), seeded()), models)
        assert len(Counted.living) == 0
    finally:
        gc.enable()


def test_pairs_that_are_fitted_together() -> None:
    layers = nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.LSTM(2, 2), nn.GRU(2, 2), nn.MultiheadAttention(2, 1)
    for device, expected in (("cpu", [24, 1, 1, 24, 1]), ("cuda", [64, 64, 1, 1, 1])):
        on = torch.device(device)
        found = [curve_fitting._pairs_at_once(nn.Sequential(layer), on) for layer in layers]
        assert found == expected
