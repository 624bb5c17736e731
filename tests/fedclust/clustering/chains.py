"""A model to fit chains to, and FedGMCC's Algorithm 1 as slow loops over pairs."""

import copy

import torch
from torch import Tensor, nn

from fedclust.clustering.curve_fitting import Fitting
from fedclust.typing import State


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def one(models: State, position: int) -> State:
    return {name: tensor[position] for name, tensor in models.items()}


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


def literal_fit(fitting: Fitting, start: State, end: State, generator: torch.Generator) -> tuple[State, list]:
    """Algorithm 1, lines 12 to 16, for one pair: the bend, and L on the grid."""
    network, inputs, parameters = fitting.network, fitting.inputs, fitting.parameters
    last = copy.deepcopy(network).eval()
    last.load_state_dict(end)
    bend = {
        name: (tensor + end[name]) / 2 if tensor.is_floating_point() else (tensor + end[name]) // 2
        for name, tensor in start.items()
    }
    for _ in range(parameters.steps):
        u = float(torch.rand((), generator=generator))
        rows = torch.randperm(len(inputs), generator=generator)[: parameters.batch_size]
        model = literal_chain(network, start, end, bend, u)
        literal_loss(model, last, inputs[rows]).backward()
        weight = 2 * u if u < 0.5 else 2 - 2 * u  # of the bend in the model at u
        for name, parameter in model.named_parameters():
            if not dict(network.named_parameters())[name].requires_grad:
                continue
            bend[name] = bend[name] - parameters.learning_rate * weight * parameter.grad
        if "decode.weight" in bend:  # tied
            bend["decode.weight"] = bend["encode.weight"]
    grid = [i / (parameters.num_points - 1) for i in range(parameters.num_points)]
    models = [literal_chain(network, start, end, bend, u) for u in grid]
    return bend, [float(literal_loss(model, last, inputs).detach()) for model in models]


def literal_mean(losses: list[float]) -> float:
    """E_u L(u) by the trapezoidal rule: the ends count half."""
    return (losses[0] / 2 + sum(losses[1:-1]) + losses[-1] / 2) / (len(losses) - 1)


def literal_slopes(losses: list[float]) -> list[float]:
    """∂L/∂u by central differences, at the points strictly inside either half of the chain."""
    points, half = len(losses), (len(losses) - 1) // 2
    inner = [*range(1, half), *range(half + 1, points - 1)]
    return [(losses[i + 1] - losses[i - 1]) / (2 / (points - 1)) for i in inner]


def literal_percentile(values: list[float], percentile: float) -> float:
    """The percentile that lies on straight lines between the sorted values."""
    ordered, place = sorted(values), percentile / 100 * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def literal_round(
    fitting: Fitting, models: State, percentile: float, seed: int
) -> tuple[list[set[int]], list[State], float, float]:
    """Algorithm 1 with Section V-A's ε: the clusters, their models, ε and the next round's percentile."""
    n, parameters = len(next(iter(models.values()))), fitting.parameters
    pairs = [(k, m) for k in range(n) for m in range(k + 1, n)]
    fits = {(k, m): literal_fit(fitting, one(models, k), one(models, m), seeded(seed)) for k, m in pairs}
    epsilon = literal_percentile([literal_mean(fits[pair][1]) for pair in pairs], percentile)
    clusters = [{k} for k in range(n)]
    connected = []
    for k, m in pairs:
        losses = fits[k, m][1]
        compared = {
            "budget": literal_mean(losses),
            "slope": max(literal_slopes(losses)),
            "absolute_slope": max(abs(slope) for slope in literal_slopes(losses)),
        }[parameters.connect]
        if compared <= epsilon:
            connected.append((k, m))
            merged = set.union(*(each for each in clusters if k in each or m in each))
            clusters = [each for each in clusters if not each & merged] + [merged]
    clusters.sort(key=min)
    averaged = []
    for members in clusters:
        inside = [pair for pair in connected if pair[0] in members]
        model = one(models, min(members))  # alone
        if inside:
            model = {
                name: sum(stack[k] + 2 * fits[k, m][0][name] + stack[m] for k, m in inside) / 4 / len(inside)
                for name, stack in models.items()
            }
        averaged.append(model)
    moved = percentile + (1 if len(clusters) > 1 else -1) * parameters.percentile_step
    return clusters, averaged, epsilon, min(95.0, max(5.0, moved))
