"""The functions that fit chains, with what they are fitted with as arguments."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Chains, Fitting, Outcome
from fedclust.clustering.fedgmcc import Parameters
from fedclust.typing import State


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
