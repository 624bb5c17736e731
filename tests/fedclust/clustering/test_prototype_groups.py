import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import f as f_distribution
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering import prototype_groups
from fedclust.clustering.prototype_groups import Parameters, Prototypes, assign, class_separation, grow, merge


def on_a_line(positions: list[float], examples: float = 100.0, variance: float = 1.0) -> Prototypes:
    """Clients with one class of one dimension."""
    means = np.array(positions).reshape(-1, 1, 1)
    return Prototypes(means, np.full((len(means), 1), examples), np.array([variance]))


def literal_agglomeration(evidence: np.ndarray) -> set[frozenset[int]]:
    groups = [frozenset([i]) for i in range(len(evidence))]
    while len(groups) > 1:
        sums = {
            (a, b): sum(evidence[i, j] for i in a for j in b) for a, b in itertools.combinations(groups, 2)
        }
        pair = min(sums, key=sums.__getitem__)
        if sums[pair] >= 0:
            break
        groups = [group for group in groups if group not in pair] + [pair[0] | pair[1]]
    return set(groups)


def as_sets(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_agglomeration_is_the_literal_loop(seed: int, clients: int) -> None:
    draws = np.random.default_rng(seed)
    evidence = np.triu(draws.normal(size=(clients, clients)), 1)
    evidence += evidence.T
    assert as_sets(prototype_groups.agglomerate(evidence)) == literal_agglomeration(evidence)


def test_zero_evidence_merges_no_clients() -> None:
    np.testing.assert_array_equal(prototype_groups.agglomerate(np.zeros((3, 3))), [0, 1, 2])


def test_refinement_leaves_the_client_itself_out() -> None:
    # Groups {0, 3} and {−2, −2}. Client 0 (at 0) is 1.5² = 2.25 from the mean of its group, itself included,
    # and 2² = 4 from the other; but 3² = 9 from client 1, so it moves. Client 1 (at 3) is 9 from client 0, 25
    # from the other group, and stays.
    clients = on_a_line([0.0, 3.0, -2.0, -2.0], examples=1e6)
    labels = prototype_groups.refine(clients, np.array([0, 0, 1, 1]), 50.0, passes=1)
    np.testing.assert_array_equal(labels, [0, 1, 0, 0])


def test_the_distance_of_a_single_client_to_its_group_is_the_threshold() -> None:
    # Client 2 is 1.5² = 2.25 from the others: it joins them where that is nearer than the threshold.
    clients = on_a_line([0.0, 0.0, 1.5], examples=1e6)
    np.testing.assert_array_equal(prototype_groups.refine(clients, np.array([0, 0, 1]), 2.3), [0, 0, 0])
    np.testing.assert_array_equal(prototype_groups.refine(clients, np.array([0, 0, 1]), 2.2), [0, 0, 1])


def test_ties_stay() -> None:
    # Nobody shares a class with anybody: everything is `threshold` away.
    means = np.where(np.eye(3)[:, :, None] > 0, 0.0, np.nan)
    clients = Prototypes(means, np.eye(3) * 9, np.ones(3))
    np.testing.assert_array_equal(prototype_groups.refine(clients, np.array([0, 1, 0]), 1.0), [0, 1, 0])


def test_groups_nearer_than_the_threshold_merge() -> None:
    # At 0, 1 and 9, of 100 examples each: e(0, 1) = 1 − 2/100, e(1, 9) = 64 − 2/100.
    clients = on_a_line([0.0, 1.0, 9.0])
    np.testing.assert_array_equal(merge(clients, np.arange(3), 0.99), [0, 0, 1])
    np.testing.assert_array_equal(merge(clients, np.arange(3), 0.97), [0, 1, 2])


def test_more_pairs_ask_for_more_evidence() -> None:
    # F of the nearest pair: 2²/(1·2/3) = 6 with (1, 2K) degrees. Two groups: F(1, 4), p = 0.0705: they merge
    # at level 0.05, not at 0.1. Three groups: F(1, 6), p = 0.0498 > 0.1/3: they merge.
    np.testing.assert_array_equal(merge(on_a_line([0.0, 2.0], 3), np.arange(2), 0.1, 0.1), [0, 1])
    np.testing.assert_array_equal(merge(on_a_line([0.0, 2.0], 3), np.arange(2), 0.1, 0.05), [0, 0])
    np.testing.assert_array_equal(merge(on_a_line([0.0, 2.0, 99.0], 3), np.arange(3), 0.1, 0.1), [0, 0, 1])


def test_the_nearest_pair_merges_first() -> None:
    # 0, 1, 2.5 and threshold 2.3: {0, 1} first, at 0.5 of 200; to 2.5 it is 4 − 3/200: stays. Were 1 and 2.5
    # merged first, 0 would be 1.75² away.
    np.testing.assert_array_equal(merge(on_a_line([0.0, 1.0, 2.5]), np.arange(3), 2.3), [0, 0, 1])


def test_groups_without_a_common_class_merge_last_and_the_largest_first() -> None:
    # Groups 0 (class 0 at 0) and 1 (class 0 at 9) differ. Group 2 has class 1 alone and joins the larger, 1.
    means = np.array([[[0.0], [np.nan]], [[9.0], [np.nan]], [[np.nan], [4.0]]])
    counts = np.array([[50.0, 0], [80, 0], [0, 60]])
    clients = Prototypes(means, counts, np.ones(2))
    np.testing.assert_array_equal(merge(clients, np.arange(3), 1.0), [0, 1, 1])


def test_explained_share() -> None:
    # F inside {0, 2} and {9, 9} with n = 4, σ² = 2 is 2 (see test_f_inside_groups); of 11: 1 − 1/10.
    clients = on_a_line([0.0, 2, 9, 9], 4, 2.0)
    assert prototype_groups.explained_share(clients, np.array([0, 0, 1, 1]), 11.0) == pytest.approx(0.9)
    assert prototype_groups.explained_share(clients, np.arange(4), 11.0) == 1.0  # nothing is left inside
    assert prototype_groups.explained_share(clients, np.zeros(4, dtype=int), 1.5) == 0.0
    assert prototype_groups.explained_share(clients, np.zeros(4, dtype=int), 0.9) == 1.0  # nothing to explain


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 40), st.integers(0, 1000))
def test_chunks_find_what_all_at_once_find(chunk: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    kinds = draws.integers(0, 2, 41)
    clients = on_a_line((kinds * 10 + draws.normal(size=41) * 0.1).tolist())
    labels = grow(clients, 5.0, chunk)
    np.testing.assert_array_equal(labels[:, None] == labels, kinds[:, None] == kinds)
    np.testing.assert_array_equal(labels, grow(clients, 5.0, 41))


def test_more_kinds_of_clients_than_a_chunk_are_no_groups() -> None:
    clients = on_a_line(np.arange(30.0) * 10)
    np.testing.assert_array_equal(grow(clients, 5.0, 30), np.arange(30))
    np.testing.assert_array_equal(grow(clients, 5.0, 10), 0)


def simulated(draws, counts, groups, conventions=None, shift=0.0) -> tuple[np.ndarray, np.ndarray]:
    """Prototypes and scatter of Gaussian embeddings with total variance 1, classes 1 apart (squared).

    `conventions` names, for each group, which class's examples carry a label; `shift` moves each class of
    each group by this much (squared, between two groups).
    """
    (num_clients, num_classes), width = counts.shape, 16
    truth = draws.normal(size=(num_classes, width)) * np.sqrt(0.5 / width)
    num_groups = groups.max() + 1
    names = np.tile(np.arange(num_classes), (num_groups, 1)) if conventions is None else conventions
    by_group = truth[names] + draws.normal(size=(num_groups, num_classes, width)) * np.sqrt(shift / 2 / width)
    noise = draws.normal(size=(num_clients, num_classes, width)) / np.sqrt(width)
    means = by_group[groups] + noise / np.sqrt(np.maximum(counts, 1))[:, :, None]
    freedom = np.maximum(counts - 1, 0)
    squares = draws.chisquare(np.maximum(freedom * width, 1)) / width
    scatter = np.where(freedom > 0, squares / np.maximum(freedom, 1), 0.0)
    return np.where(counts[:, :, None] > 0, means, np.nan).astype(np.float32), scatter


def found_by(parameters: Parameters, draws: np.random.Generator, counts: np.ndarray, *how, **more):
    """Assign simulated clients to clusters."""
    means, scatter = simulated(draws, counts, *how, **more)
    return assign(means, counts, scatter, parameters)


def label_counts(draws: np.random.Generator, clients: int, examples: int, alpha: float | None) -> np.ndarray:
    shares = (
        np.full((clients, 10), 0.1) if alpha is None else draws.dirichlet(np.full(10, alpha), size=clients)
    )
    return draws.multinomial(examples, shares)


def rolled(num_groups: int) -> np.ndarray:
    return np.stack([np.roll(np.arange(10), 3 * group) for group in range(num_groups)])


@pytest.mark.parametrize("num_groups", [2, 3])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_labelling_conventions_are_found(num_groups: int, alpha: float | None) -> None:
    draws = np.random.default_rng(1)
    for _ in range(5):
        groups = draws.permutation(np.arange(30) % num_groups)
        counts = label_counts(draws, 30, 50, alpha)
        labels, details = found_by(Parameters(), draws, counts, groups, rolled(num_groups))
        assert adjusted_rand_score(groups, labels) == 1.0
        assert details.test.p_value < 1e-6
        assert max(details.explained.values()) > 0.9


def test_refinement_repairs_what_agglomeration_joined_too_early() -> None:
    # Twelve examples a client, of few classes: the first merges are guesses.
    draws = np.random.default_rng(5)
    groups = draws.permutation(np.arange(30) % 3)
    counts = label_counts(draws, 30, 12, 0.1)
    means, scatter = simulated(draws, counts, groups, rolled(3))
    every = dataclasses.replace(Parameters(), min_examples=1)
    unrefined = assign(means, counts, scatter, dataclasses.replace(every, passes=0))[0]
    refined = assign(means, counts, scatter, every)[0]
    assert adjusted_rand_score(groups, unrefined) < 0.9
    assert adjusted_rand_score(groups, refined) == 1.0


def test_clients_that_each_differ_a_little_are_no_groups() -> None:
    # Every client has a shift of its own, a fifth of the distance of two classes: refuted, but not split.
    draws = np.random.default_rng(4)
    for _ in range(5):
        counts = label_counts(draws, 30, 200, None)
        labels, details = found_by(Parameters(), draws, counts, np.arange(30), shift=0.2)
        assert details.test.p_value < 1e-6
        np.testing.assert_array_equal(labels, 0)


def test_a_larger_separation_is_tried_where_groups_explain_little() -> None:
    # Every client has a shift of its own, 0.45/1.45 = 0.31 of the distance of two classes: some pairs are
    # above 0.25, and no few groups hold clients that are alike.
    draws = np.random.default_rng(5)
    counts = label_counts(draws, 20, 200, None)
    _, details = found_by(Parameters(), draws, counts, np.arange(20), shift=0.45)
    assert list(details.explained) == [0.25, 0.6]
    assert details.explained[0.25] < 0.9


def test_a_client_with_one_class_goes_with_its_convention() -> None:
    draws = np.random.default_rng(9)
    groups = np.arange(12) % 2
    counts = np.full((12, 10), 20)
    counts[5] = 0
    counts[5, 7] = 40
    np.testing.assert_array_equal(found_by(Parameters(), draws, counts, groups, rolled(2))[0], groups)


def test_clients_without_examples_or_known_scatter_join_the_largest_group() -> None:
    draws = np.random.default_rng(10)
    groups = np.array([0, 1, 0, 1, 0, 0, 0, 0])
    counts = np.full((8, 10), 30)
    counts[6] = 0  # nothing at all
    counts[7] = 0
    counts[7, 9] = 1  # one example of a class of which nobody has two
    counts[:7, 9] = 0
    counts[:, 3] = 0  # nobody has this class
    np.testing.assert_array_equal(found_by(Parameters(), draws, counts, groups, rolled(2))[0], groups)


def test_clients_whose_examples_are_all_the_same_are_still_separated() -> None:
    # No scatter anywhere: what differs by more than single precision's rounding differs.
    draws = np.random.default_rng(13)
    means = draws.normal(size=(10, 8)).astype(np.float32)[rolled(2)[np.arange(6) % 2]]
    labels, _ = assign(means, np.full((6, 10), 5), np.zeros((6, 10)), Parameters())
    np.testing.assert_array_equal(labels, np.arange(6) % 2)


def test_level_is_that_of_the_test_before_the_groups_and_of_each_pair_of_them() -> None:
    # 1000 examples a client and class, σ² = 1; class 1 at −1 everywhere. Client 4's class 0 is a from that of
    # the four at 0, or x = 1000 a²/(1 + 1/4) = 800 a² by chance. For two groups p = P(χ²(2) > x) = exp(−x/2),
    # for five clients P(χ²(8) > x) = exp(−y)(1 + y + y²/2 + y³/6) with y = x/2.
    def found(x: float, level: float, *more: float) -> list[int]:
        at = np.array([0, 0, 0, 0, np.sqrt(x / 800), *more])
        means, shape = np.stack([at, np.full(len(at), -1.0)], axis=1)[:, :, None], (len(at), 2)
        parameters = Parameters(level=level, separations=(1e-4,))
        return assign(means, np.full(shape, 1000), np.ones(shape), parameters)[0].tolist()

    # x = 13: p of the pair is 0.0015, of the clients 0.112.
    assert (found(13, 0.05), found(13, 0.2)) == ([0] * 5, [0, 0, 0, 0, 1])
    # x = 6 and a client far away: 0.0498 for the pair, one of three.
    assert found(6, 0.05, 9.0) == [0, 0, 0, 0, 0, 1]
    assert found(6, 0.2, 9.0) == [0, 0, 0, 0, 1, 2]


def test_one_class_has_no_yardstick() -> None:
    draws = np.random.default_rng(0)
    means = draws.normal(size=(6, 1, 3)) * 100
    labels, details = assign(means, np.full((6, 1), 9), np.ones((6, 1)), Parameters())
    assert details.test.p_value < 1e-6
    np.testing.assert_array_equal(labels, 0)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(14)), st.permutations(range(10)), st.integers(0, 50), st.floats(0.01, 100))
def test_numbering_rotation_and_scale_do_not_matter(clients, classes, seed, scale) -> None:
    draws = np.random.default_rng(seed)
    counts = label_counts(draws, 14, 40, 0.5)
    means, scatter = simulated(draws, counts, np.arange(14) % 3, rolled(3), shift=0.1)
    labels, details = assign(means, counts, scatter, Parameters())
    rotation = np.linalg.qr(draws.normal(size=(16, 16)))[0]
    moved = (means.astype(np.float64) @ rotation * scale)[clients][:, classes]
    others = counts[clients][:, classes], (scatter * scale**2)[clients][:, classes]
    again, changed = assign(moved, *others, Parameters())
    expected = labels[clients]
    np.testing.assert_array_equal(again[:, None] == again, expected[:, None] == expected)
    assert changed.test.statistic == pytest.approx(details.test.statistic)
    assert changed.class_separation == pytest.approx(details.class_separation * scale**2)
    assert changed.explained == pytest.approx(details.explained)


def drawn(seed: int, clients: int = 5, classes: int = 3, width: int = 4) -> Prototypes:
    """Prototypes without structure; a client lacks a class now and then."""
    draws = np.random.default_rng(seed)
    counts = draws.integers(0, 6, (clients, classes)).astype(np.float64)
    counts[:, 0] += 1
    means = np.where(counts[:, :, None] > 0, draws.normal(size=(clients, classes, width)), np.nan)
    return Prototypes(means, counts, draws.uniform(0.5, 2, classes))


def test_a_class_counts_from_the_least_number_of_examples_on() -> None:
    # Three examples are enough, two are not; of one client or of several.
    assert prototype_groups.sent_counts(np.array([[3, 2], [0, 7]]), 3).tolist() == [[3, 0], [0, 7]]
    np.testing.assert_array_equal(prototype_groups.sent_counts(np.array([2, 4]), 3), [0, 4])
    np.testing.assert_array_equal(prototype_groups.sent_counts(np.array([1, 0]), 1), [1, 0])


def test_variance_is_weighted_by_degrees_of_freedom() -> None:
    # Class 0: (2·3 + 4·6)/(2 + 4) = 5; of class 1 nobody has two examples; in class 2 client 1 has one only.
    counts = np.array([[3, 1, 2], [5, 0, 1]])
    scatter = np.array([[3.0, 0.0, 7.0], [6.0, 0.0, np.nan]])
    np.testing.assert_allclose(prototype_groups.class_variances(counts, scatter), [5.0, np.nan, 7.0])


def test_pooled_prototypes_weigh_examples() -> None:
    # Class 0 of group 0: (1·2 + 3·6)/4 = 5 from clients 0 and 2; group 1 has client 1 alone.
    means = np.array([[[2.0], [np.nan]], [[4.0], [8.0]], [[6.0], [np.nan]]])
    pooled = Prototypes(means, np.array([[1.0, 0], [2, 2], [3, 0]]), np.ones(2)).pooled(np.array([0, 1, 0]))
    np.testing.assert_allclose(pooled.counts, [[4, 0], [2, 2]])
    np.testing.assert_allclose(pooled.means[:, 0, 0], [5.0, 4.0])
    assert pooled.means[1, 1, 0] == 8.0


def test_f_of_two_clients() -> None:
    # One class: means 0 and 2 of 4 examples each, around 1: (4·1 + 4·1)/σ² = 8/2 = 4, one degree of freedom;
    # within 3 + 3 = 6.
    two = Prototypes(np.array([[[0.0]], [[2.0]]]), np.array([[4.0], [4.0]]), np.array([2.0]))
    tested = prototype_groups.f_test(two)
    assert (tested.statistic, tested.between, tested.within) == (4.0, 1, 6)
    assert tested.p_value == pytest.approx(f_distribution.sf(4.0, 1, 6))


def test_f_inside_groups() -> None:
    # Clients 0, 1 at 0 and 2 (as above: 8/2 over one degree), clients 2, 3 both at 9: 0 over one. F_w = 4/2.
    four = Prototypes(np.array([0.0, 2, 9, 9]).reshape(4, 1, 1), np.full((4, 1), 4.0), np.array([2.0]))
    assert prototype_groups.f_ratio(four, np.array([0, 0, 1, 1])) == (2.0, 2)
    ratio, freedom = prototype_groups.f_ratio(four, np.arange(4))
    assert math.isnan(ratio)
    assert freedom == 0


def test_f_adds_up_over_classes_without_clients_that_lack_one() -> None:
    # Class 0 as above with σ² = 2: 4 over one. Class 1: one client only, nothing over 0.
    means = np.array([[[0.0], [5.0]], [[2.0], [np.nan]]])
    two = Prototypes(means, np.array([[4.0, 3], [4, 0]]), np.array([2.0, 1]))
    assert prototype_groups.f_ratio(two, np.zeros(2, int)) == (4.0, 1)


def test_separation_from_pooled_prototypes_where_clients_have_one_class() -> None:
    # Class 0 pooled: (0·1 + 1·1)/2 = 1/2 of 2; class 1: 3 of 4. 2.5² − 1/2 − 2/4 = 5.25.
    means = np.array([[[0.0], [np.nan]], [[1.0], [np.nan]], [[np.nan], [3.0]]])
    three = Prototypes(means, np.array([[1.0, 0], [1, 0], [0, 4]]), np.array([1.0, 2]))
    assert class_separation(three) == pytest.approx(5.25)


def test_separation_is_zero_where_there_is_none() -> None:
    assert class_separation(Prototypes(np.zeros((2, 1, 3)), np.ones((2, 1)), np.ones(1))) == 0.0
    assert class_separation(Prototypes(np.zeros((2, 2, 3)), np.ones((2, 2)), np.ones(2))) == 0.0


def test_evidence_of_one_pair() -> None:
    # ‖(0,0) − (3,4)‖² = 25, σ² = 2, n = 1 and 2: chance 2·(3/2) = 3, h = 1/3, D = 22.
    # Excess 22/3, e = 22, S at threshold 10: (22 − 10)/3 = 4.
    one = Prototypes(np.zeros((1, 1, 2)), np.array([[1.0]]), np.array([2.0]))
    other = Prototypes(np.array([[[3.0, 4]]]), np.array([[2.0]]), np.array([2.0]))
    pair = prototype_groups.compare(one, other)
    np.testing.assert_allclose(pair.excess, [[22 / 3]])
    np.testing.assert_allclose(pair.weight, [[1 / 3]])
    np.testing.assert_allclose(pair.distance(0.0), [[22.0]])
    np.testing.assert_allclose(pair.evidence(10.0), [[4.0]])
    # The two as a federation: F = ‖·‖²/chance = 25/3 with one degree of freedom.
    assert pair.p_values(7)[0, 0] == pytest.approx(f_distribution.sf(25 / 3, 1, 7))


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_comparison_matches_a_literal_loop(seed: int) -> None:
    some = drawn(seed)
    pairs = prototype_groups.compare(some, some)
    for i in range(5):
        for j in range(5):
            excess = weight = shared = 0.0
            for c in np.flatnonzero(some.counts[i] * some.counts[j]):
                chance = some.variances[c] * (1 / some.counts[i, c] + 1 / some.counts[j, c])
                apart = np.square(some.means[i, c] - some.means[j, c]).sum()
                excess += (apart - chance) / chance
                weight += 1 / chance
                shared += 1
            found = pairs.excess[i, j], pairs.weight[i, j], pairs.shared[i, j]
            assert found == pytest.approx((excess, weight, shared), abs=1e-9)


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_separation_matches_a_literal_loop(seed: int) -> None:
    some = drawn(seed)
    totals, weights = [0.0] * 5, [0.0] * 5
    for i in range(5):
        for c, other in itertools.combinations(np.flatnonzero(some.counts[i]), 2):
            n, m = some.counts[i, c], some.counts[i, other]
            apart = np.square(some.means[i, c] - some.means[i, other]).sum()
            totals[i] += (apart - some.variances[c] / n - some.variances[other] / m) / (1 / n + 1 / m)
            weights[i] += 1 / (1 / n + 1 / m)
    own = [total / weight for total, weight in zip(totals, weights, strict=True) if weight]
    if len(own) == 5:  # the second, third and fourth of five are the quartiles
        low, middle, high = sorted(own)[1:4]
        own = [min(value, max(10 * middle, high + 10 * (high - low))) for value in own]
    if own:
        mean = np.average(own, weights=[weight for weight in weights if weight])
        assert class_separation(some) == pytest.approx(max(mean, 0.0), abs=1e-9)


def test_clients_that_share_no_class_cannot_be_compared() -> None:
    means = np.array([[[0.0], [np.nan]], [[np.nan], [5.0]]])
    two = Prototypes(means, np.array([[4.0, 0], [0, 4]]), np.ones(2))
    assert prototype_groups.f_test(two).p_value == 1.0
    pairs = prototype_groups.compare(two, two)
    assert (pairs.evidence(1.0)[0, 1], pairs.distance(7.0)[0, 1], pairs.p_values(5)[0, 1]) == (0.0, 7.0, 1.0)


def test_where_nothing_tells_clients_apart_they_are_one_cluster() -> None:
    alike = np.tile(np.random.default_rng(0).normal(size=(1, 4, 8)).astype(np.float32), (6, 1, 1))
    for means, scatter in ((alike, 0.0), (alike, 1.0), (alike[:1], 1.0), (np.zeros((3, 2, 4)), 0.0)):
        shape = means.shape[:2]
        labels, details = assign(means, np.full(shape, 5), np.full(shape, scatter), Parameters())
        np.testing.assert_array_equal(labels, 0)
        assert details.explained == {}


def test_shifts_of_prototypes_are_found() -> None:
    draws = np.random.default_rng(2)
    groups = draws.permutation(np.arange(30) % 2)
    counts = label_counts(draws, 30, 100, None)
    labels, details = found_by(Parameters(), draws, counts, groups, shift=3.0)
    assert adjusted_rand_score(groups, labels) == 1.0
    # Two classes are 1 + shift apart now, each class of the two groups shift. 160 squares of normal
    # deviates vary by √(2/160) = 11 %, and those of the classes likewise.
    assert details.distances[0, 1] == pytest.approx(3 / 4, rel=0.35)
