"""Chains from clusters' models to what a newcomer makes of them.

Class prototypes of a client that comes later.

Label counts of a client that comes later.
"""

import warnings

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


# Log-confidences of rows of a client, and of clients of clusters 1 and 4, by the models of 1 and 4. Of the
# first and the last the model of 4 is more certain, by 1, 2, 3 and 2; of those of 1's clients as much less.
CERTAIN, OTHER = np.array([-0.5, -0.5, -0.5, -0.5]), np.array([-1.5, -2.5, -3.5, -2.5])
ROWS, KNOWN = np.stack([OTHER, CERTAIN]), [np.stack([CERTAIN, OTHER]), np.stack([OTHER, CERTAIN])]
BOTH = np.array([1, 4])


def test_rows_without_labels_go_to_those_whose_rows_are_like_them_to_the_models() -> None:
    found = most_confident(ROWS, BOTH, ANY, {}, known=KNOWN)
    assert found.cluster == 4
    # Welch's t of 1, 2, 3, 2 and their negatives: 4 / √(2/3/4 + 2/3/4) = √48 with 6 degrees of freedom.
    # P(T > t) = (1 − s (1 + c²/2 + 3c⁴/8)) / 2 with t/√6 = √8 = tan θ, so that c² = 1/9 and s² = 8/9.
    upper = (1 - (8 / 9) ** 0.5 * (1 + 1 / 18 + 3 / 8 / 81)) / 2
    assert found.evidence["p_value"] == pytest.approx(upper)  # 0.0002
    assert found.evidence["confidences"] == {"1": -2.5, "4": -0.5}
    tested = most_confident(ROWS, BOTH, ANY, {}, level=0.0001, known=KNOWN)
    assert tested.cluster is None
    assert tested.reason.endswith("in which cluster the client is (p = 0.00022, above 0.0001)")
    assert most_confident(ROWS[:1], np.array([3]), ANY[:1], {}).cluster == 3
    assert most_confident(ROWS[:, :1], BOTH, ANY, {}, known=KNOWN).cluster is None  # one row has no variance
    # The shares of cluster 4's clients, 3/4 and 1/4, are at most 2 · 1/4 from its own, 1/2 and 1/2.
    for few, cluster in ((12, 4), (8, None)):  # 2 · (1/2 − 12/40) = 0.4; 2 · (1/2 − 8/40) = 0.6
        predicted = np.array([[0, 0, 20, 20], [40 - few, few, 0, 0]])
        assert most_confident(ROWS, BOTH, predicted, {4: COUNTS[:2]}, known=KNOWN).cluster == cluster


def test_a_model_that_is_more_certain_of_everybodys_rows_places_nobody() -> None:
    alike = [np.tile(ROWS, 50)] * 2  # as of clusters that name the same rows differently
    for rows in (np.tile(ROWS, 50), np.tile(ROWS, 50) - 0.1):
        assert most_confident(rows, BOTH, ANY, {}, known=alike).cluster is None
    unknown = most_confident(np.tile(ROWS, 50), BOTH, ANY, {})
    assert unknown.cluster is None
    assert unknown.reason.endswith("how certain they are of their own clients' rows is not known here")


def test_a_model_that_has_overflowed_is_certain_of_nothing() -> None:
    diverged = [np.vstack([each, np.full(4, np.nan)]) for each in (ROWS, *KNOWN, OTHER[None])[:3]]
    clusters, predicted = np.array([1, 4, 7]), np.zeros((3, 4), dtype=int)
    known = [*diverged[1:], diverged[1]]
    assert most_confident(diverged[0], clusters, predicted, {}, known=known).cluster == 4
    known[0] = np.vstack([np.full(4, np.nan), known[0][1:]])  # then there is nothing to compare with
    assert most_confident(diverged[0], clusters, predicted, {}, known=known).cluster is None


def test_rows_of_which_models_are_always_as_certain_give_no_warning() -> None:
    constant = np.array([[-1.0] * 4, [0.0] * 4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = most_confident(constant, BOTH, ANY, {}, known=[constant[::-1], constant])
    assert (found.cluster, found.evidence["p_value"]) == (4, 0.0)  # without any variance


def test_of_three_clusters_rows_must_be_told_from_both_others() -> None:
    # Each model is by 2 ± 1 more certain of its own clients' rows than both others are.
    known = [np.where(np.arange(3)[:, None] == own, CERTAIN, OTHER) for own in range(3)]
    clusters, predicted = np.arange(3), np.zeros((3, 4), dtype=int)
    for own in range(3):
        assert most_confident(known[own], clusters, predicted, {}, known=known).cluster == own
    known[2] = known[1]  # whom the models do not tell apart
    assert most_confident(known[1], clusters, predicted, {}, level=0.02, known=known).cluster is None
    # From 2's, of whose rows the models of 0 and 2 are as certain: √24 with 3 degrees of freedom, p = 0.0081.
    assert most_confident(known[0], clusters, predicted, {}, level=0.02, known=known).cluster == 0


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
    given = {"known": KNOWN if sure else None, "remote": np.array(remote)}
    assert most_confident(ROWS, BOTH, ANY, {}, **given).cluster == cluster


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
