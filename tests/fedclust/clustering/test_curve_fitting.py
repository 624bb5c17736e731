import copy
import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Fitting, chain, chain_mean, draw_inputs, fit_pairs, profile
from fedclust.clustering.fedgmcc import Parameters
from fedclust.typing import State
from tests.fedclust.clustering.chains import mlp, one, seeded

numbers = st.floats(-10, 10)


def test_chain_goes_from_start_over_bend_to_end() -> None:
    # First half: 2 (u θ + (1/2 - u) w_k); second half: 2 ((u - 1/2) w_l + (1 - u) θ).
    start, bend, end = 1.0, 5.0, -3.0
    at = {0.0: 1.0, 0.25: 3.0, 0.5: 5.0, 0.75: 1.0, 1.0: -3.0}
    assert {u: chain(start, end, bend, u) for u in at} == at


def test_u_may_be_an_array_or_a_tensor() -> None:
    along = chain(0.0, 4.0, 8.0, np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    np.testing.assert_array_equal(along, [0, 4, 8, 6, 4])
    u = torch.tensor([[0.25], [0.75]])
    torch.testing.assert_close(
        chain(torch.zeros(2), torch.ones(2), torch.tensor([2.0, 4.0]), u),
        torch.tensor([[1.0, 2.0], [1.5, 2.5]]),
    )


@given(numbers, numbers, numbers)
def test_chain_mean_is_the_integral_over_u(start: float, end: float, bend: float) -> None:
    # The midpoint rule is exact on straight pieces when a cell border lies on the bend.
    cells = (np.arange(200) + 0.5) / 200
    integral = np.mean([chain(start, end, bend, float(u)) for u in cells])
    assert chain_mean(start, end, bend) == pytest.approx((start + 2 * bend + end) / 4)
    assert chain_mean(start, end, bend) == pytest.approx(integral, abs=1e-9)


def test_output_distance_is_a_mean_over_inputs_of_squared_distances() -> None:
    # (1, 0) and (0, 1) are √2 apart, (0.5, 0.5) and (1, 0) √0.5: (2 + 0.5) / 2.
    first, second = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert curve_fitting.output_distance(first, second) == 1.25
    # Two positions of one input count as two inputs.
    assert curve_fitting.output_distance(first[None], second[None]) == 1.25


def test_curve_finding_loss_is_the_mean_over_u() -> None:
    # Trapezoids over four intervals of 1/4: (1/2 + 3 + 2 + 1 + 4/2) / 4; a constant is its own mean.
    np.testing.assert_allclose(
        curve_fitting.curve_finding_loss(np.array([[1.0, 3, 2, 1, 4], [0.5] * 5])), [2.125, 0.5]
    )


def test_steepest_slope_is_central_and_never_across_the_bend() -> None:
    # Points 0, 1/4, 1/2, 3/4, 1. Slopes at 1/4 and 3/4: (0.2 - 0) * 2 and (0.5 - 0.2) * 2. At the bend it
    # would be (1.3 - 0.1) * 2, and between neighbours up to (1.3 - 0.2) * 4.
    np.testing.assert_allclose(curve_fitting.steepest(np.array([[0.0, 0.1, 0.2, 1.3, 0.5]])), [0.6])
    np.testing.assert_allclose(
        curve_fitting.steepest(np.array([[1.0, 0.1, 0.2, 1.3, 0.5], [0.0] * 5])), [1.6, 0.0]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", range(5))
def test_a_chain_that_overflows_anywhere_has_an_infinite_score(value: float, place: int) -> None:
    distances = np.zeros((2, 5))
    distances[0, place] = value
    np.testing.assert_array_equal(curve_fitting.steepest(distances), [np.inf, 0.0])
    np.testing.assert_array_equal(curve_fitting.curve_finding_loss(distances), [np.inf, 0.0])
    np.testing.assert_array_equal(curve_fitting.steepest(np.full((1, 5), value)), [np.inf])


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
def _repeatable() -> Any:
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


def literal_chain(network: nn.Module, start: State, end: State, bend: State, u: float) -> nn.Module:
    """The model at u, Eq. 3 as printed but for the bracket, loaded into a copy of the network."""
    state = {}
    for name, tensor in start.items():
        if not tensor.is_floating_point():
            state[name] = bend[name]
        elif u < 0.5:
            state[name] = 2 * (u * bend[name] + (0.5 - u) * tensor)
        else:
            state[name] = 2 * ((u - 0.5) * end[name] + (1 - u) * bend[name])
    model = copy.deepcopy(network).eval()
    model.load_state_dict(state)
    return model


def literal_loss(model: nn.Module, last: nn.Module, inputs: Tensor) -> Tensor:
    difference = last(inputs).softmax(-1).detach() - model(inputs).softmax(-1)
    return (difference**2).sum(-1).mean()


def literal_fit(fitting: Fitting, start: State, end: State) -> tuple[State, np.ndarray, float]:
    """Algorithm 1, lines 12 to 17, for one pair: the bend, L to each target on the grid, the score."""
    network, inputs, parameters = fitting.network, fitting.inputs, fitting.parameters
    first, last = copy.deepcopy(network).eval(), copy.deepcopy(network).eval()
    first.load_state_dict(start)
    last.load_state_dict(end)
    targets = [last] if parameters.targets == "later" else [first, last]
    bend = {
        name: (tensor + end[name]) / 2 if tensor.is_floating_point() else (tensor + end[name]) // 2
        for name, tensor in start.items()
    }
    bend = {name: tensor.clone() for name, tensor in bend.items()}
    for _ in range(parameters.steps):
        u = float(torch.rand((), generator=fitting.generator))
        rows = torch.randperm(len(inputs), generator=fitting.generator)[: parameters.batch_size]
        looks = [(u, rows)]
        if parameters.targets == "both":
            looks = [(u, rows[: len(rows) // 2]), (1 - u, rows[: len(rows) // 2])]
        gradient = {name: torch.zeros_like(tensor) for name, tensor in network.named_parameters()}
        for point, some in looks:
            for target in targets:
                model = literal_chain(network, start, end, bend, point)
                literal_loss(model, target, inputs[some]).backward()
                weight = 2 * point if point < 0.5 else 2 - 2 * point
                for name, parameter in model.named_parameters():
                    gradient[name] += weight * parameter.grad / len(looks) / len(targets)
        for name, slope in gradient.items():
            bend[name] = bend[name] - parameters.learning_rate * slope
        if "decode.weight" in bend:  # tied
            bend["decode.weight"] = bend["encode.weight"]
    points = parameters.num_points
    half, spacing = (points - 1) // 2, 1 / (points - 1)
    inner = [*range(1, half), *range(half + 1, points - 1)]
    models = [literal_chain(network, start, end, bend, i / (points - 1)) for i in range(points)]
    losses = np.array(
        [[float(literal_loss(model, target, inputs).detach()) for model in models] for target in targets]
    )
    score = max(abs(row[i + 1] - row[i - 1]) / (2 * spacing) for row in losses for i in inner)
    return bend, losses, score


NETWORKS = {
    "mlp": (mlp, (4,), None),
    "conv": (conv_net, (1, 4, 4), None),
    "lstm": (tagger, (6,), 5),
    "attention": (attention, (3, 4), None),
    "tied": (tied, (4,), None),
}


@pytest.mark.parametrize("pairs_per_batch", ["auto", 1, 2, 3])
@pytest.mark.parametrize("kind", list(NETWORKS))
@pytest.mark.parametrize("targets", ["both", "later"])
def test_fit_is_the_literal_loop_over_pairs(targets: Any, kind: str, pairs_per_batch: Any) -> None:
    make, shape, vocabulary_size = NETWORKS[kind]
    network = make().double()
    models = random_models(network, 3)
    inputs = draw_inputs(40, shape, seeded(1), vocabulary_size=vocabulary_size)
    inputs = inputs.double() if vocabulary_size is None else inputs
    fit = {"steps": 4, "learning_rate": 0.5, "batch_size": 16, "num_points": 9}
    parameters = Parameters(targets=targets, pairs_per_batch=pairs_per_batch, **fit)
    fitting = Fitting(network, inputs, parameters, seeded(2))
    chains = fit_pairs(fitting, models)
    np.testing.assert_array_equal(chains.pairs, [[0, 1], [0, 2], [1, 2]])
    np.testing.assert_array_equal(chains.scores, chains.scores.T)
    np.testing.assert_array_equal(np.diagonal(chains.scores), 0)
    _, curves, _ = profile(fitting, models, chains, [0, 1, 2])
    for row, (k, m) in enumerate(chains.pairs):
        again = dataclasses.replace(fitting, generator=seeded(2))
        bend, losses, score = literal_fit(again, one(models, k), one(models, m))
        for name, tensor in one(chains.bends, row).items():
            torch.testing.assert_close(tensor, bend[name], atol=1e-12, rtol=1e-9)
        np.testing.assert_allclose(curves[row], losses[-1], atol=1e-12)  # to model m in either case
        assert chains.scores[k, m] == pytest.approx(score, abs=1e-10)
        # E_u L by the trapezoidal rule over 8 intervals of 1/8: the ends count half.
        means = [(row[0] / 2 + row[1:-1].sum() + row[-1] / 2) / 8 for row in losses]
        assert chains.losses[row] == pytest.approx(np.mean(means), abs=1e-12)


def test_profile_compares_with_the_straight_line() -> None:
    network, inputs, parameters = mlp(), draw_inputs(50, (4,), seeded()), Parameters(steps=3, num_points=5)
    models, fitting = random_models(network, 3), Fitting(network, inputs, parameters, seeded())
    chains = fit_pairs(fitting, models)
    u, curve, line = profile(fitting, models, chains, [2, 0])  # pairs (1, 2), (0, 1)
    np.testing.assert_array_equal(u, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(curve[:, [0, 4]], line[:, [0, 4]])
    np.testing.assert_allclose(line[:, 4], 0, atol=1e-12)
    last, quarter = copy.deepcopy(network), copy.deepcopy(network)
    last.load_state_dict(one(models, 2))
    quarter.load_state_dict({name: 0.75 * tensor[1] + 0.25 * tensor[2] for name, tensor in models.items()})
    assert line[0, 1] == pytest.approx(float(literal_loss(quarter, last, inputs).detach()))
    assert profile(fitting, models, chains, [])[1].shape == (0, 5)


def test_same_seed_same_chains_and_nothing_is_changed() -> None:
    network = conv_net()
    models, inputs = random_models(network, 3), draw_inputs(20, (1, 4, 4), seeded())
    before = copy.deepcopy((network.state_dict(), models))
    drawn = torch.random.get_rng_state()
    first, again = (
        fit_pairs(Fitting(network, inputs, Parameters(steps=3), seeded(4)), models) for _ in range(2)
    )
    torch.testing.assert_close(first.bends, again.bends, rtol=0, atol=0)
    np.testing.assert_array_equal(first.scores, again.scores)
    torch.testing.assert_close((network.state_dict(), models), before, rtol=0, atol=0)
    assert network.training
    assert torch.equal(torch.random.get_rng_state(), drawn)


def fit_chains(models: State, **parameters: Any) -> curve_fitting.Chains:
    """Fit chains between models of the small network, with thirty inputs."""
    return fit_pairs(
        Fitting(mlp(), draw_inputs(30, (4,), seeded()), Parameters(**parameters), seeded()), models
    )


def test_identical_models_have_score_zero_and_do_not_bend() -> None:
    network = mlp()
    models = {name: torch.stack([tensor] * 3) for name, tensor in network.state_dict().items()}
    chains = fit_chains(models, steps=5)
    np.testing.assert_allclose(chains.scores, 0, atol=1e-9)
    torch.testing.assert_close(chains.bends, models)


def test_a_bend_out_of_range_is_put_back_halfway() -> None:
    models = random_models(mlp(), 3)
    wild = fit_chains(models, steps=2, learning_rate=float("inf"))
    none = fit_chains(models, steps=0)
    torch.testing.assert_close(wild.bends, none.bends)
    np.testing.assert_array_equal(wild.scores, none.scores)


@pytest.mark.parametrize("pairs_per_batch", ["auto", 1])
def test_one_model_has_no_pairs(pairs_per_batch: Any) -> None:
    chains = fit_chains(random_models(mlp(), 1), pairs_per_batch=pairs_per_batch)
    assert chains.pairs.shape == (0, 2)
    assert chains.bends["0.weight"].shape == (0, 16, 4)
    np.testing.assert_array_equal(chains.scores, [[0.0]])


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
@pytest.mark.parametrize("targets", ["both", "later"])
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("pairs_per_batch", [1, 16])
def test_a_model_that_overflows_is_far_from_everyone(
    kind: str, targets: Any, position: int, pairs_per_batch: int
) -> None:
    healthy, how = random_models(mlp(), 3), {"steps": 3, "pairs_per_batch": pairs_per_batch}
    spoilt = fit_chains(overflowing(healthy, position, kind), targets=targets, **how)
    scores, expected = spoilt.scores, fit_chains(healthy, targets=targets, **how)
    others = [client for client in range(3) if client != position]
    assert np.isinf(scores[position, others]).all()
    np.testing.assert_array_equal(scores, scores.T)
    np.testing.assert_array_equal(np.diagonal(scores), 0)
    # The pair of the other two is fitted as without it.
    assert scores[others[0], others[1]] == expected.scores[others[0], others[1]]
    np.testing.assert_array_equal(np.isinf(spoilt.losses), np.isinf(scores[np.triu_indices(3, 1)]))


def test_a_chain_that_overflows_between_sound_models_is_no_match() -> None:
    # The sum of two weights of 3e38 is beyond float32, and with it the middle of the chain.
    models = random_models(mlp(), 3)
    models["2.bias"][:2] = torch.tensor([3e38, 0.0, 0.0])
    scores = fit_chains(models, steps=0).scores
    assert np.isinf(scores[0, 1])
    assert np.isfinite(scores[2, :2]).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    network = conv_net()
    models, inputs = random_models(network, 5), torch.rand(32, 1, 4, 4, generator=seeded(1))
    parameters = Parameters(steps=5, batch_size=8, pairs_per_batch=1)
    alone = fit_pairs(Fitting(network, inputs, parameters, seeded()), models)
    torch.set_num_threads(threads)
    together = fit_pairs(Fitting(network, inputs, parameters, seeded()), models)
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(together.scores, alone.scores)
    for name, bends in alone.bends.items():
        assert torch.equal(together.bends[name], bends), name


class Counted(nn.Linear):
    """A layer whose living copies are counted."""

    living: ClassVar["weakref.WeakSet[Counted]"] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Counted":
        copied = Counted(self.in_features, self.out_features)
        copied.load_state_dict(self.state_dict())
        Counted.living.add(copied)
        return copied


@pytest.mark.parametrize(("threads", "pairs_per_batch"), [(1, 16), (1, 1), (2, 1)])
def test_nothing_stays_in_memory_afterwards(threads: int, pairs_per_batch: int) -> None:
    """Without a collection of circles, which may come many rounds later, or when the GPU's memory is full."""
    network = nn.Sequential(Counted(4, 3))
    models, inputs = random_models(network, 4), draw_inputs(20, (4,), seeded())
    torch.set_num_threads(threads)
    gc.collect()
    gc.disable()
    try:
        parameters = Parameters(steps=2, batch_size=8, pairs_per_batch=pairs_per_batch)
        fitting = Fitting(network, inputs, parameters, seeded())
        profile(fitting, models, fit_pairs(fitting, models), [0])
        assert len(Counted.living) == 0
    finally:
        gc.enable()


def test_pairs_that_are_fitted_together() -> None:
    layers = nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.LSTM(2, 2), nn.GRU(2, 2), nn.MultiheadAttention(2, 1)
    for device, expected in (("cpu", [16, 1, 1, 16, 1]), ("cuda", [64, 64, 1, 1, 1])):
        on = torch.device(device)
        found = [curve_fitting._pairs_per_batch(nn.Sequential(layer), on, Parameters()) for layer in layers]
        assert found == expected
