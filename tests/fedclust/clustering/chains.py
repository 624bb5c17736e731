"""The functions that fit chains, with what they are fitted with as arguments; a model to fit them to."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Chains, Fitting, Outcome
from fedclust.clustering.fedgmcc import Parameters
from fedclust.typing import State


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def one(models: State, position: int) -> State:
    return {name: tensor[position] for name, tensor in models.items()}


def fit_pairs(
    network: nn.Module, models: State, inputs: Tensor, parameters: Parameters, draws: torch.Generator
) -> Chains:
    return curve_fitting.fit_pairs(Fitting(network, inputs, parameters, draws), models)


def profile(
    network: nn.Module, models: State, inputs: Tensor, chains: Chains, which: Sequence[int], fit: Parameters
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return curve_fitting.profile(Fitting(network, inputs, fit, torch.Generator()), models, chains, which)


def step(
    percentile: float,
    network: nn.Module,
    models: State,
    inputs: Tensor,
    fit: Parameters,
    draws: torch.Generator,
) -> tuple[float, Outcome]:
    return curve_fitting.step(percentile, Fitting(network, inputs, fit, draws), models)
