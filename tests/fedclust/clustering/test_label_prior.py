import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.label_prior import (
    assign,
    chi_square,
    correction,
    gamma_tail,
    homogeneity,
    intraclass_correlation,
    permutation_moments,
    pseudo_examples,
)


@pytest.mark.parametrize(
    ("sizes", "labels"),
    [
        ([1, 2, 3], [0, 0, 0, 1, 1, 2]),
        ([4, 3], [0, 0, 1, 1, 1, 1, 2]),
        ([2, 2, 2, 1], [0, 0, 0, 0, 0, 1, 1]),
        ([3, 3], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_moments_are_those_of_every_deal(sizes: list[int], labels: list[int]) -> None:
    # All n! ways to deal the labels out to places on clients.
    values = []
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for dealt in itertools.permutations(labels):
        table = np.zeros((len(sizes), max(labels) + 1), dtype=np.int64)
        np.add.at(table, (owner, np.array(dealt)), 1)
        values.append(chi_square(table))
    mean, variance = permutation_moments(np.array(sizes), np.bincount(labels))
    assert mean == pytest.approx(np.mean(values))
    assert variance == pytest.approx(np.var(values), abs=1e-9)


def test_tails_of_gamma_variables() -> None:
    # Mean 3, variance 9: shape 1, scale 3; P(X >= 6) = e^−2. Mean 4, variance 8: shape 2, scale 2;
    # P(X >= x) = e^{−x/2}(1 + x/2) = 4 e^−3 at x = 6.
    assert gamma_tail(6.0, 3.0, 9.0) == pytest.approx(math.exp(-2))
    assert gamma_tail(6.0, 4.0, 8.0) == pytest.approx(4 * math.exp(-3))
    assert gamma_tail(0.0, 4.0, 8.0) == 1.0


def test_outcome_of_a_small_table() -> None:
    # N = 8, K = C = 2: E = 8/7; w_r = w_c = (8·(1/4 + 1/4) − 4)/6 = 0; v = 6/7;
    # V = (16/5)(6/7)² = 2.35102041; X² = 2.
    tested = homogeneity(np.array([[3, 1], [1, 3]]))
    assert (tested.statistic, tested.mean) == pytest.approx((2.0, 8 / 7))
    assert tested.variance == pytest.approx(16 / 5 * 36 / 49)
    assert tested.p_value == pytest.approx(gamma_tail(2.0, 8 / 7, 16 / 5 * 36 / 49))


@pytest.mark.parametrize(
    "counts",
    [
        [[5, 3]],  # one client
        [[5, 0], [3, 0], [9, 0]],  # one class
        [[1, 0], [0, 1], [1, 0]],  # three examples
        [[1, 0], [0, 1], [1, 0], [0, 1], [0, 1]],  # one example each
        [[1, 0], [9, 10]],  # every deal has the same X²
    ],
)
def test_where_nothing_can_be_tested_clients_are_alike(counts: list[list[int]]) -> None:
    assert homogeneity(np.array(counts)).p_value == 1.0


def test_correlation_of_a_small_table() -> None:
    # Each cell expects 10 examples: X² = 4·5²/10 = 10.
    # ρ̂ = (10/1 − 1)/(40 − 800/40 − 1) = 9/19; m̂ = (10/19)/(9/19) = 10/9.
    counts = np.array([[15, 5], [5, 15]])
    assert intraclass_correlation(counts, chi_square(counts)) == pytest.approx(9 / 19)
    assert pseudo_examples(counts) == pytest.approx(10 / 9)


def test_few_clients_with_one_class_each_are_not_ruled_out_of_the_rest() -> None:
    # X² = 20, ρ̂ = (20 − 1)/(20 − 10 − 1) = 19/9 > 1: m̂ = 1/K = 1/2.
    counts = np.array([[10, 0], [0, 10]])
    assert intraclass_correlation(counts, chi_square(counts)) == pytest.approx(19 / 9)
    assert pseudo_examples(counts) == 0.5
    # P̂_01 = (0 + 1/4)/(10.5) = 1/42: ln(1/21).
    corrections = assign(counts, np.zeros(2, dtype=np.int64))
    assert corrections[0, 1] == pytest.approx(math.log(1 / 21))


@pytest.mark.parametrize("concentration", [0.5, 3.0, 20.0])
def test_the_clients_concentration_is_recovered(concentration: float) -> None:
    # Shares drawn from Dirichlet(m·q): ρ = 1/(1 + m). 2,000 clients, so that 10 % is many standard errors.
    draws = np.random.default_rng(0)
    shares = draws.dirichlet(concentration * np.array([0.4, 0.3, 0.2, 0.1]), size=2000)
    assert pseudo_examples(draws.multinomial(50, shares)) == pytest.approx(concentration, rel=0.1)


def test_no_correction_where_clients_may_be_alike() -> None:
    counts = np.tile([5, 3, 2], (6, 1))
    np.testing.assert_array_equal(assign(counts, np.zeros(6, dtype=np.int64)), 0.0)
    assert math.isinf(pseudo_examples(counts))
    assert pseudo_examples(np.array([[15, 5], [5, 15]]), level=1e-9) == math.inf


def test_one_example_on_every_client_tells_nothing() -> None:
    counts = np.eye(3, dtype=np.int64)[[0, 1, 2, 0, 1]]
    assert intraclass_correlation(counts, chi_square(counts)) == 0.0
    assert math.isinf(pseudo_examples(counts))


def test_each_cluster_is_a_federation_of_its_own() -> None:
    # Clients 0 and 2 differ, 1 and 3 are alike: only the first cluster is corrected, by what it holds itself:
    # q = (1/2, 1/2), m̂ = 10/9: P̂_0 = (15 + 5/9)/(20 + 10/9) = 140/190 = 14/19 and 5/19; ln(28/19), ln(10/19).
    counts = np.array([[15, 5], [36, 4], [5, 15], [36, 4]])
    corrections = assign(counts, np.array([0, 1, 0, 1]))
    np.testing.assert_array_equal(corrections[[1, 3]], 0.0)
    up, down = math.log(28 / 19), math.log(10 / 19)
    np.testing.assert_allclose(corrections[[0, 2]], [[up, down], [down, up]])


def test_a_cluster_of_one_client_is_not_corrected() -> None:
    np.testing.assert_array_equal(assign(np.array([[9, 1], [1, 9]]), np.array([0, 1])), 0.0)


def test_a_class_that_the_model_never_saw_is_left_alone() -> None:
    summands = correction(np.array([[3, 1, 4]]), np.array([5, 5, 0]), 2.0)
    assert summands[0, 2] == 0.0
    # P̂_0 = (3 + 2/2)/(8 + 2) = 0.4; ln(0.4/0.5).
    assert summands[0, 0] == pytest.approx(math.log(0.8))


def test_a_client_without_examples_gets_nothing() -> None:
    np.testing.assert_allclose(correction(np.array([[0, 0]]), np.array([7, 3]), 1.5), 0.0, atol=1e-12)


@given(
    arrays(np.int64, (4, 3), elements=st.integers(0, 50)),
    arrays(np.int64, 3, elements=st.integers(1, 50)),
    st.floats(0.01, 100),
)
def test_corrected_shares_add_up_to_one(counts: np.ndarray, seen: np.ndarray, pseudo: float) -> None:
    shares = np.exp(correction(counts, seen, pseudo)) * (seen / seen.sum())
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert shares.min() > 0
