"""Chains from clusters' models to what a newcomer makes of them.

Class prototypes of a client that comes later.

Label counts of a client that comes later.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.clustering import fmcl
from fedclust.clustering.clust_psi_pfl import Parameters, features
from fedclust.clustering.curve_fitting import Fitting, chain_scores
from fedclust.clustering.fedgmcc import Parameters as ChainParameters
from fedclust.clustering.placement import DistanceRule, LabelRule, most_confident, place, remoteness

# Clients 0 and 1 have classes 0 and 1, clients 2 and 3 classes 2 and 3.
COUNTS = np.array([[30, 10, 0, 0], [10, 30, 0, 0], [0, 0, 30, 10], [0, 0, 10, 30]])
BY_LABELS = LabelRule(COUNTS, np.array([0, 0, 1, 1]), Parameters())


def test_the_features_of_a_newcomer_and_the_centres_by_hand() -> None:
    # q = 1/2 for both classes. The clients' terms of PSI are (3/4 − 1/2) ln(3/2) and (1/4 − 1/2) ln(1/2), in
    # one order and the other: standardised, −1 and 1. Both have the same sum, whose column is 0.
    high, low = 0.25 * np.log(1.5), 0.25 * np.log(2)
    middle, spread = (high + low) / 2, (low - high) / 2
    found = LabelRule(np.array([[3, 1], [1, 3]]), np.array([0, 1]), Parameters()).place(np.array([7, 2]))
    # The newcomer's terms are (7/9 − 1/2) ln(14/9) and (2/9 − 1/2) ln(4/9).
    first, second = ((share - 0.5) * np.log(2 * share) for share in (7 / 9, 2 / 9))
    own = np.array([(first - middle) / spread, (second - middle) / spread])
    by_hand = [np.hypot(*(own - centre)) for centre in ([-1, 1], [1, -1])]
    assert found.cluster == 0
    np.testing.assert_allclose([found.evidence["distances"][each] for each in ("0", "1")], by_hand)


def test_a_centre_is_the_mean_of_its_clients_whatever_their_sizes() -> None:
    rule = LabelRule(np.array([[90, 0, 0], [0, 10, 0], [0, 0, 50]]), np.array([0, 0, 1]), Parameters())
    rows = features(rule.counts)
    np.testing.assert_allclose(rule.centres()[1], [(rows[0] + rows[1]) / 2, rows[2]])


def test_a_client_like_neither_is_in_none() -> None:
    # Three clusters of two classes each lie close together; a client of a seventh class alone is far off.
    counts = np.full((6, 7), 20)
    counts[np.arange(6), np.arange(6) // 2] = 40
    counts[:, 6] = 1
    found = LabelRule(counts, np.repeat([0, 1, 2], 2), Parameters()).place(np.array([0, 0, 0, 0, 0, 0, 50]))
    assert found.cluster is None
    assert "farther than another cluster's is" in found.reason


def test_without_rows_or_with_one_cluster() -> None:
    nothing = np.zeros(4, dtype=int)
    assert BY_LABELS.place(nothing).cluster is None
    assert LabelRule(COUNTS, nothing, Parameters()).place(nothing).cluster == 0


@pytest.mark.parametrize("client", range(4))
def test_a_client_that_was_there_goes_where_it_was(client) -> None:
    # The paper's index has no sign: a surplus of classes 0 and 1 still differs from one of 2 and 3 by column.
    assert BY_LABELS.place(COUNTS[client]).cluster == client // 2


ANY = np.zeros((2, 4), dtype=int)


def test_rows_without_labels_go_where_a_model_is_more_certain() -> None:
    # Differences 1, 2, 3 and 2 in favour of cluster 4: mean 2, sample variance 2/3, t = 2/√(2/3/4) = √24.
    certain, other = np.array([-0.5, -0.5, -0.5, -0.5]), np.array([-1.5, -2.5, -3.5, -2.5])
    found = most_confident(np.stack([other, certain]), np.array([1, 4]), ANY, {}, level=0.01)
    assert found.cluster == 4
    # Student's t with 3 degrees of freedom: P(T > t) = 1/2 − (arctan u + u/(1 + u²))/π with u = t/√3 = √8.
    u = 8**0.5
    assert found.evidence["p_value"] == pytest.approx(0.5 - (np.arctan(u) + u / 9) / np.pi)
    assert found.evidence["confidences"] == {"1": -2.5, "4": -0.5}
    assert (
        most_confident(np.stack([other, certain]), np.array([1, 4]), ANY, {}).cluster is None
    )  # 0.0081 > 0.001
    assert most_confident(np.stack([certain, certain]), np.array([1, 4]), ANY, {}).cluster is None
    assert most_confident(certain[None], np.array([3]), ANY[:1], {}).cluster == 3
    # Gains 1 and 3: t = 2 with one degree of freedom, p = 1/2 − arctan(2)/π = 0.148.
    near = most_confident(np.array([[-1.0, -1], [-2, -4]]), np.array([0, 1]), ANY, {})
    assert near.reason.endswith(
        "no cluster's model is clearly the most certain of the rows (p = 0.15, above 0.001)"
    )
    assert most_confident(np.array([[-1.0], [-2.0]]), np.array([0, 1]), ANY, {}).cluster is None
    # The shares of cluster 0's clients, 3/4 and 1/4, are at most 2 · 1/4 from its own, 1/2 and 1/2.
    sure, counts = np.stack([certain, other]), {0: COUNTS[:2]}
    for few, cluster in ((12, 0), (8, None)):  # 2 · (1/2 − 12/40) = 0.4; 2 · (1/2 − 8/40) = 0.6
        predicted = np.array([[40 - few, few, 0, 0], [0, 0, 20, 20]])
        assert most_confident(sure, np.array([0, 1]), predicted, counts, level=0.01).cluster == cluster


def test_how_far_inputs_are_is_measured_by_the_farthest_client() -> None:
    # Cluster 3 has clients at 0, 2 and 4: mean 2; 4 is 3 from the mean 1 of the others. Cluster 5 has one.
    rows, labels = np.array([[0.0], [2.0], [4.0], [20.0], [np.nan]]), np.array([3, 3, 3, 5, 5])
    far = remoteness(np.array([5.0]), rows, labels, np.array([3, 5]))
    np.testing.assert_allclose(far, [(5 - 2) / 3, (20 - 5) / 3])
    assert np.isnan(
        remoteness(np.array([5.0]), rows[2:], labels[2:], np.array([3, 5]))
    ).all()  # one client each
    assert np.isnan(remoteness(np.array([5.0]), rows, labels, np.array([3, 4, 5]))).all()  # nobody in 4


@pytest.mark.parametrize(
    ("remote", "sure", "cluster"),
    [
        ((2.1, 0.9), False, 4),  # 1 is out of the question
        ((1.9, 0.9), False, None),  # it is not
        ((2.1, 1.3), False, None),  # unlike those of both
        ((1.9, 0.9), True, 4),
        ((0.9, 1.2), True, 4),
        ((0.9, 1.3), True, None),  # the model of 4 is the most certain, but its clients are unlike
        ((np.nan, np.nan), True, 4),
        ((np.nan, np.nan), False, None),
    ],
)
def test_inputs_and_models_must_not_contradict_each_other(remote, sure, cluster) -> None:
    certain, other = np.full(4, -0.5), np.array([-1.5, -2.5, -3.5, -2.5])  # p = 0.0081, see above
    level = 0.01 if sure else 0.001
    given = np.stack([other, certain]), np.array([1, 4]), ANY, {}
    assert most_confident(*given, level=level, remote=np.array(remote)).cluster == cluster


def test_the_papers_distance_to_pooled_clusters() -> None:
    # Cosine distances: cluster 0 has classes along x and y, cluster 1 along y and x. The same direction is
    # 0 away, the other one 1 (up to the paper's ε).
    means, shares = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]), np.full((2, 2), 0.5)
    rule = DistanceRule(means, shares, fmcl.Parameters())
    found = rule.place(np.array([[2.0, 0.2], [0.1, 3.0]]), np.array([5, 5]))
    assert found.cluster == 0
    assert found.evidence["distances"]["1"] > 0.8
    away = rule.place(np.array([[-1.0, -1.0], [-1.0, -1.0]]), np.array([5, 5]))
    assert away.cluster is None  # 1.7 from both, which are 1 from each other
    assert rule.place(means[1], np.array([5, 5])).cluster == 1


FEW = ChainParameters(num_inputs=16, steps=2, batch_size=8, num_points=5)


def test_the_chain_of_least_loss_tells_the_cluster() -> None:
    apart = np.array([[0.0, 0.5], [0.5, 0.0]])
    assert place(np.array([0.2, 0.1]), apart, np.array([3, 7])).cluster == 7
    assert place(np.array([0.6, 0.8]), apart, np.array([3, 7])).cluster is None  # more than between them
    assert place(np.array([np.inf, np.inf]), np.full((2, 2), np.inf), np.array([3, 7])).cluster is None
    found = place(np.array([0.2, np.inf]), apart, np.array([3, 7]))
    assert found.evidence == {"losses": {"3": 0.2, "7": None}}


def test_a_model_that_training_left_alone_is_joined_by_a_chain_without_loss() -> None:
    network = nn.Linear(3, 2)
    draws = torch.Generator().manual_seed(0)
    clusters = {"weight": torch.randn(2, 2, 3, generator=draws), "bias": torch.randn(2, 2, generator=draws)}
    trained = {"weight": clusters["weight"].clone(), "bias": clusters["bias"].clone()}
    trained["weight"][1] += 2 * torch.randn(2, 3, generator=draws)
    inputs = torch.rand(16, 3, generator=draws)
    own, apart = chain_scores(Fitting(network, inputs, FEW, draws), clusters, trained)
    assert own[0] < 1e-6 < own[1]
    assert apart.shape == (2, 2)
    assert apart[0, 1] == apart[1, 0] > 0
