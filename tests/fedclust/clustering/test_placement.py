"""Chains from clusters' models to what a newcomer makes of them.

Class prototypes of a client that comes later.

Label counts of a client that comes later.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.clustering import fmcl
from fedclust.clustering.clust_psi_pfl import Parameters
from fedclust.clustering.curve_fitting import Fitting, chain_scores
from fedclust.clustering.fedgmcc import Parameters as ChainParameters
from fedclust.clustering.placement import DistanceRule, EvidenceRule, LabelRule, place
from fedclust.clustering.prototype_groups import Prototypes

# Clients 0 and 1 have classes 0 and 1, clients 2 and 3 classes 2 and 3.
COUNTS = np.array([[30, 10, 0, 0], [10, 30, 0, 0], [0, 0, 30, 10], [0, 0, 10, 30]])
OURS = LabelRule(COUNTS, np.array([0, 0, 1, 1]))


def test_the_features_of_a_newcomer_and_the_centres_by_hand() -> None:
    # q = 1/4 for every class. P of the newcomer [0, 0, 7, 0]: (0 + 1/4)/8 = 1/32 and (7 + 1/4)/8 = 29/32.
    few, many = 1 / 32, 29 / 32

    def feature(share: float) -> float:
        return np.sign(share - 0.25) * np.sqrt((share - 0.25) * np.log(share / 0.25))

    newcomer = np.array([feature(few), feature(few), feature(many), feature(few)])
    # A client of 40 rows with 30, 10, 0, 0 of the classes: 30.25/41, 10.25/41, 0.25/41.
    high, low, none = (feature((number + 0.25) / 41) for number in (30, 10, 0))
    centres = np.array([[(high + low) / 2] * 2 + [none] * 2, [none] * 2 + [(high + low) / 2] * 2])
    found = OURS.place(np.array([0, 0, 7, 0]))
    assert found.cluster == 1
    by_hand = np.sqrt(((newcomer - centres) ** 2).sum(axis=1))
    np.testing.assert_allclose([found.evidence["distances"][each] for each in ("0", "1")], by_hand)


def test_larger_clients_weigh_more_in_our_centres_only() -> None:
    counts = np.array([[90, 0, 0], [0, 10, 0], [0, 0, 50]])
    ours = LabelRule(counts, np.array([0, 0, 1]))
    papers = dataclasses.replace(ours, paper=Parameters())
    rows = ours._features(counts)
    np.testing.assert_allclose(ours.centres()[1][0], 0.9 * rows[0] + 0.1 * rows[1])
    rows = papers._features(counts)
    np.testing.assert_allclose(papers.centres()[1][0], (rows[0] + rows[1]) / 2)


def test_a_client_like_neither_is_in_none() -> None:
    # Three clusters of two classes each lie close together; a client of a seventh class alone is far off.
    counts = np.full((6, 7), 20)
    counts[np.arange(6), np.arange(6) // 2] = 40
    counts[:, 6] = 1
    found = LabelRule(counts, np.repeat([0, 1, 2], 2)).place(np.array([0, 0, 0, 0, 0, 0, 50]))
    assert found.cluster is None
    assert "farther than another cluster's is" in found.reason


def test_without_rows_or_with_one_cluster() -> None:
    assert OURS.place(np.zeros(4, dtype=int)).cluster is None
    assert LabelRule(COUNTS, np.zeros(4, dtype=int)).place(np.zeros(4, dtype=int)).cluster == 0


@pytest.mark.parametrize("paper", [None, Parameters()])
@pytest.mark.parametrize("client", range(4))
def test_a_client_that_was_there_goes_where_it_was(paper, client) -> None:
    # The paper's index has no sign: a surplus of classes 0 and 1 still differs from one of 2 and 3 by column.
    rule = LabelRule(COUNTS, np.array([0, 0, 1, 1]), paper)
    expected = client // 2
    assert rule.place(COUNTS[client]).cluster == expected


# Two groups of two classes in two dimensions; group 1 has the classes swapped. 100 examples of each.
MEANS = np.array([[[0.0, 0.0], [10.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]])
EQUAL = np.array([[20, 20], [20, 20], [20, 20], [20, 20]])
LABELS = LabelRule(EQUAL, np.array([0, 0, 1, 1]))
PROTOTYPES = Prototypes(MEANS, np.full((2, 2), 100.0), np.array([4.0, 4.0]))
RULE = EvidenceRule(PROTOTYPES, np.array([True, True]), 25.0, np.array([0, 0, 1, 1]), LABELS)


def test_the_nearest_group_beyond_chance_by_hand() -> None:
    # Chance adds 4 · (1/25 + 1/100) = 0.2 to the squared distance of each class. From group 0 the classes
    # are 1 and 4 away: D = 0.8 and 3.8, e = 2.3 (equal certainties 1/0.2 = 5). From group 1: (9)² = 81 and
    # (8)² = 64: e = 72.3. S = 2 · 5 · (e − 25).
    found = RULE.place(np.array([[1.0, 0.0], [8.0, 0.0]]), np.array([25, 25]))
    assert found.cluster == 0
    assert found.evidence["distances"]["0"] == pytest.approx(2.3)
    assert found.evidence["distances"]["1"] == pytest.approx(72.3)
    assert found.evidence["evidence"]["0"] == pytest.approx(10 * (2.3 - 25))


def test_a_third_convention_is_in_none() -> None:
    # (0, 10) is √(100) and √(200) away from the prototypes: e > 25 from both groups.
    found = RULE.place(np.array([[0.0, 10.0], [10.0, 10.0]]), np.array([25, 25]))
    assert found.cluster is None
    assert found.evidence["distances"]["0"] == pytest.approx(99.8)


def test_without_a_shared_class_nothing_speaks_for_a_group() -> None:
    assert RULE.place(np.zeros((2, 2)), np.array([0, 0])).cluster is None


def test_label_counts_choose_within_a_group() -> None:
    counts = np.array([[40, 0], [38, 2], [0, 40], [2, 38], [20, 20]])
    labels = LabelRule(counts, np.array([0, 0, 1, 1, 2]))
    rule = EvidenceRule(PROTOTYPES, np.array([True, True]), 25.0, np.array([0, 0, 0, 0, 1]), labels)
    found = rule.place(np.array([[0.5, 0.0], [10.0, 0.0]]), np.array([1, 30]))
    assert found.cluster == 1
    assert "label counts are nearest" in found.reason
    swapped = rule.place(np.array([[10.0, 0.0], [0.0, 0.0]]), np.array([1, 30]))
    assert swapped.cluster == 2


def test_rows_without_classes_find_groups_of_images_but_not_of_names() -> None:
    draws = np.random.default_rng(0)
    rows = np.concatenate([draws.normal(centre, 1, (30, 2)) for centre in MEANS[0]])
    # The two groups have the same prototypes under other names.
    assert RULE.place_unlabelled(rows).cluster is None
    moved = Prototypes(
        np.stack([MEANS[0], MEANS[0] + [0.0, 5.0]]), np.full((2, 2), 100.0), np.array([4.0, 4.0])
    )
    rule = EvidenceRule(moved, np.array([True, True]), 10.0, np.array([0, 0, 1, 1]), LABELS)
    assert rule.place_unlabelled(rows).cluster == 0
    assert rule.place_unlabelled(rows + np.array([0.0, 5.0])).cluster == 1
    assert rule.place_unlabelled(rows + np.array([0.0, 2.5])).cluster is None  # halfway
    assert rule.place_unlabelled(rows[:1]).cluster is None


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


def test_a_class_with_too_few_examples_does_not_count() -> None:
    """Its prototype was not sent, and is not at the origin."""
    means, counts = np.array([[10.2, 0.0], [0.0, 0.0]]), np.array([10, 2])
    rule = dataclasses.replace(RULE, min_examples=5)
    alone = rule.place(means, np.array([10, 0]))
    assert rule.place(means, counts).evidence["distances"] == alone.evidence["distances"]
    assert RULE.place(means, counts).evidence["distances"] != alone.evidence["distances"]


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
