"""Chains from clusters' models to what a newcomer makes of them."""

import numpy as np
import torch
from torch import nn

from fedclust.clustering.fedgmcc import Parameters
from fedclust.clustering.fedgmcc.placement import chain_scores, place

FEW = Parameters(num_inputs=16, steps=2, batch_size=8, num_points=5)


def test_the_flattest_chain_tells_the_cluster() -> None:
    apart = np.array([[0.0, 0.5], [0.5, 0.0]])
    assert place(np.array([0.2, 0.1]), apart, np.array([3, 7])).cluster == 7
    assert place(np.array([0.6, 0.8]), apart, np.array([3, 7])).cluster is None  # steeper than between them
    assert place(np.array([np.inf, np.inf]), np.full((2, 2), np.inf), np.array([3, 7])).cluster is None
    found = place(np.array([0.2, np.inf]), apart, np.array([3, 7]))
    assert found.evidence == {"slopes": {"3": 0.2, "7": None}}


def test_a_model_that_training_left_alone_is_joined_by_a_flat_chain() -> None:
    network = nn.Linear(3, 2)
    draws = torch.Generator().manual_seed(0)
    clusters = {"weight": torch.randn(2, 2, 3, generator=draws), "bias": torch.randn(2, 2, generator=draws)}
    trained = {"weight": clusters["weight"].clone(), "bias": clusters["bias"].clone()}
    trained["weight"][1] += 2 * torch.randn(2, 3, generator=draws)
    inputs = torch.rand(16, 3, generator=draws)
    own, apart = chain_scores(network, clusters, trained, inputs, FEW, draws)
    assert own[0] < 1e-6 < own[1]
    assert apart.shape == (2, 2)
    assert apart[0, 1] == apart[1, 0] > 0
