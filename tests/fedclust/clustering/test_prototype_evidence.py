import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import f as f_distribution

from fedclust.clustering.prototype_groups import (
    Prototypes,
    class_separation,
    class_variances,
    compare,
    f_ratio,
    f_test,
    sent_counts,
)


def drawn(seed: int, clients: int = 5, classes: int = 3, width: int = 4) -> Prototypes:
    """Prototypes without structure; a client lacks a class now and then."""
    draws = np.random.default_rng(seed)
    counts = draws.integers(0, 6, (clients, classes)).astype(np.float64)
    counts[:, 0] += 1
    means = np.where(counts[:, :, None] > 0, draws.normal(size=(clients, classes, width)), np.nan)
    return Prototypes(means, counts, draws.uniform(0.5, 2, classes))


def test_a_class_counts_from_the_least_number_of_examples_on() -> None:
    # Three examples are enough, two are not; of one client or of several.
    np.testing.assert_array_equal(sent_counts(np.array([[3, 2], [0, 7]]), 3), [[3, 0], [0, 7]])
    np.testing.assert_array_equal(sent_counts(np.array([2, 4]), 3), [0, 4])
    np.testing.assert_array_equal(sent_counts(np.array([1, 0]), 1), [1, 0])


def test_variance_is_weighted_by_degrees_of_freedom() -> None:
    # Class 0: (2·3 + 4·6)/(2 + 4) = 5; of class 1 nobody has two examples; in class 2 client 1 has one only.
    counts = np.array([[3, 1, 2], [5, 0, 1]])
    scatter = np.array([[3.0, 0.0, 7.0], [6.0, 0.0, np.nan]])
    np.testing.assert_allclose(class_variances(counts, scatter), [5.0, np.nan, 7.0])


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
    tested = f_test(two)
    assert (tested.statistic, tested.between, tested.within) == (4.0, 1, 6)
    assert tested.p_value == pytest.approx(f_distribution.sf(4.0, 1, 6))


def test_f_inside_groups() -> None:
    # Clients 0, 1 at 0 and 2 (as above: 8/2 over one degree), clients 2, 3 both at 9: 0 over one. F_w = 4/2.
    four = Prototypes(np.array([0.0, 2, 9, 9]).reshape(4, 1, 1), np.full((4, 1), 4.0), np.array([2.0]))
    assert f_ratio(four, np.array([0, 0, 1, 1])) == (2.0, 2)
    ratio, freedom = f_ratio(four, np.arange(4))
    assert math.isnan(ratio)
    assert freedom == 0


def test_f_adds_up_over_classes_without_clients_that_lack_one() -> None:
    # Class 0 as above with σ² = 2: 4 over one. Class 1: one client only, nothing over 0.
    means = np.array([[[0.0], [5.0]], [[2.0], [np.nan]]])
    assert f_ratio(Prototypes(means, np.array([[4.0, 3], [4, 0]]), np.array([2.0, 1])), np.zeros(2, int)) == (
        4.0,
        1,
    )


def test_no_class_on_two_clients_cannot_be_tested() -> None:
    means = np.array([[[0.0], [np.nan]], [[np.nan], [5.0]]])
    tested = f_test(Prototypes(means, np.array([[4.0, 0], [0, 4]]), np.ones(2)))
    assert tested.p_value == 1.0


def test_f_keeps_its_level_in_one_dimension() -> None:
    # In one dimension F has exactly the F distribution: 5 % of 2,000, three standard errors are 1.5 points.
    draws = np.random.default_rng(0)
    counts = np.array([[2, 5], [9, 3], [4, 1]])
    below = 0
    for _ in range(2000):
        means = draws.normal(size=(3, 2, 1)) / np.sqrt(counts)[:, :, None]
        freedom = np.maximum(counts - 1, 0)
        scatter = np.where(freedom > 0, draws.chisquare(np.maximum(freedom, 1)) / np.maximum(freedom, 1), 0)
        variances = class_variances(counts, scatter)
        # Both classes share one variance here, so that the pooled estimates have one distribution.
        together = (variances * freedom.sum(axis=0)).sum() / freedom.sum()
        below += f_test(Prototypes(means, counts.astype(float), np.full(2, together))).p_value < 0.05
    assert 0.035 < below / 2000 < 0.065


def test_separation_of_one_client() -> None:
    # Classes at 0 and 3, σ² = (1, 2), n = (2, 4): 9 − 1/2 − 2/4 = 8.
    one = Prototypes(np.array([[[0.0], [3.0]]]), np.array([[2.0, 4]]), np.array([1.0, 2]))
    assert class_separation(one) == pytest.approx(8.0)


def test_separation_weighs_pairs_by_their_examples() -> None:
    # Client 0: 8 as above, weight 1/(1/2 + 1/4) = 4/3. Client 1: 4² − 1/1 − 2/1 = 13, weight 1/2.
    # (4/3·8 + 1/2·13)/(4/3 + 1/2) = 103/11.
    means = np.array([[[0.0], [3.0]], [[1.0], [5.0]]])
    two = Prototypes(means, np.array([[2.0, 4], [1, 1]]), np.array([1.0, 2]))
    assert class_separation(two) == pytest.approx(103 / 11)


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
    pair = compare(one, other)
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
    pairs = compare(some, some)
    for i in range(5):
        for j in range(5):
            excess = weight = shared = 0.0
            for c in range(3):
                if some.counts[i, c] and some.counts[j, c]:
                    chance = some.variances[c] * (1 / some.counts[i, c] + 1 / some.counts[j, c])
                    apart = sum((a - b) ** 2 for a, b in zip(some.means[i, c], some.means[j, c], strict=True))
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
        for c in range(3):
            for other in range(c):
                if some.counts[i, c] and some.counts[i, other]:
                    n, m = some.counts[i, c], some.counts[i, other]
                    apart = sum(
                        (a - b) ** 2 for a, b in zip(some.means[i, c], some.means[i, other], strict=True)
                    )
                    totals[i] += (apart - some.variances[c] / n - some.variances[other] / m) / (1 / n + 1 / m)
                    weights[i] += 1 / (1 / n + 1 / m)
    own = [total / weight for total, weight in zip(totals, weights, strict=True) if weight]
    if len(own) == 5:  # the second, third and fourth of five are the quartiles
        low, middle, high = sorted(own)[1:4]
        own = [min(value, max(10 * middle, high + 10 * (high - low))) for value in own]
    if own:
        mean = np.average(own, weights=[weight for weight in weights if weight])
        assert class_separation(some) == pytest.approx(max(mean, 0.0), abs=1e-9)


def test_clients_that_share_no_class_have_no_evidence() -> None:
    means = np.array([[[0.0], [np.nan]], [[np.nan], [5.0]]])
    two = Prototypes(means, np.array([[4.0, 0], [0, 4]]), np.ones(2))
    pairs = compare(two, two)
    assert pairs.evidence(1.0)[0, 1] == 0.0
    assert pairs.distance(7.0)[0, 1] == 7.0
    assert pairs.p_values(5)[0, 1] == 1.0


def test_distances_are_unbiased() -> None:
    # True prototypes 3 apart (squared 9) in one class, 0 in the other: mean D over 4,000 draws within four
    # standard errors, and e of alike clients 0.
    draws = np.random.default_rng(0)
    truth = np.array([[[0.0, 0, 0], [1, 1, 1]], [[3.0, 0, 0], [1, 1, 1]]])
    counts, width = np.array([[2.0, 5], [4, 1]]), 3
    variances = np.array([6.0, 3])  # total over three dimensions
    spread = np.sqrt(variances[:, None] / width / counts[:, :, None])
    found = []
    for _ in range(4000):
        means = truth + draws.normal(size=truth.shape) * spread
        both = [Prototypes(means[:, [c]], counts[:, [c]], variances[[c]]) for c in range(2)]
        found.append([compare(one, one).distance(np.nan)[0, 1] for one in both])
    error = np.std(found, axis=0) / math.sqrt(4000)
    assert (np.abs(np.mean(found, axis=0) - [9, 0]) < 4 * error).all()
