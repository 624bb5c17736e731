"""Class prototypes of a client that comes later."""

import dataclasses

import numpy as np
import pytest

from fedclust.clustering.clust_psi_pfl.placement import LabelRule
from fedclust.clustering.fmcl.placement import DistanceRule, EvidenceRule
from fedclust.clustering.fmcl.prototype_evidence import Prototypes

# Two groups of two classes in two dimensions; group 1 has the classes swapped. 100 examples of each.
MEANS = np.array([[[0.0, 0.0], [10.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]])
COUNTS = np.array([[20, 20], [20, 20], [20, 20], [20, 20]])
LABELS = LabelRule(COUNTS, np.array([0, 0, 1, 1]))
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


def test_what_is_read_back_places_alike() -> None:
    again = EvidenceRule.unpack(RULE.pack())
    for means in (MEANS[0] + 1, MEANS[1] - 2, MEANS[0] + 50):
        assert again.place(means, np.array([9, 9])) == RULE.place(means, np.array([9, 9]))


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
    rule = DistanceRule(means, shares, 1.0, 100.0, 1e-3, True)
    found = rule.place(np.array([[2.0, 0.2], [0.1, 3.0]]), np.array([5, 5]))
    assert found.cluster == 0
    assert found.evidence["distances"]["1"] > 0.8
    away = rule.place(np.array([[-1.0, -1.0], [-1.0, -1.0]]), np.array([5, 5]))
    assert away.cluster is None  # 1.7 from both, which are 1 from each other
    assert DistanceRule.unpack(rule.pack()).place(means[1], np.array([5, 5])).cluster == 1


def test_a_class_with_too_few_examples_does_not_count() -> None:
    """Its prototype was not sent, and is not at the origin."""
    means, counts = np.array([[10.2, 0.0], [0.0, 0.0]]), np.array([10, 2])
    rule = dataclasses.replace(RULE, min_examples=5)
    alone = rule.place(means, np.array([10, 0]))
    assert rule.place(means, counts).evidence["distances"] == alone.evidence["distances"]
    assert RULE.place(means, counts).evidence["distances"] != alone.evidence["distances"]
    again = EvidenceRule.unpack(dataclasses.replace(rule, max_norm=2.5).pack())
    assert (again.min_examples, again.max_norm) == (5, 2.5)
    assert EvidenceRule.unpack(rule.pack()).max_norm is None
