import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.settings.run_options import RunOptions
from fedclust.support import rng


def test_same_arguments_same_draws() -> None:
    np.testing.assert_array_equal(
        rng.generator(1, "sample", 2, 3).random(5), rng.generator(1, "sample", 2, 3).random(5)
    )


@pytest.mark.parametrize(
    "other", [(2, "sample", 2, 3), (1, "batches", 2, 3), (1, "sample", 3, 2), (1, "sample", 2)]
)
def test_each_argument_changes_the_draws(other: tuple) -> None:
    assert not np.allclose(rng.generator(*other).random(5), rng.generator(1, "sample", 2, 3).random(5))


def test_a_trailing_zero_key_is_a_key() -> None:
    # numpy's SeedSequence takes (a,) and (a, 0) for the same entropy.
    assert rng.generator(1, "sample", 2).random() != rng.generator(1, "sample", 2, 0).random()


def test_torch_seed_fits_a_signed_integer() -> None:
    seeds = [rng.torch_seed(0, "dropout", key) for key in range(50)]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("arguments", [(-1, "sample"), (0, "sample", -1)])
def test_negative_keys_are_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match="must be >= 0"):
        rng.generator(*arguments)


@pytest.mark.parametrize(
    ("num_clients", "participation", "at_least", "expected"),
    [
        (30, 0.5, 1, 15),
        (30, 0.1, 1, 3),  # 0.1 * 30 is 3.0000000000000004 in floats
        (31, 0.1, 1, 4),  # ceil(3.1)
        (10, 0.1, 3, 3),
        (2, 0.1, 3, 2),  # a cluster smaller than the least takes part whole
        (7, 1.0, 1, 7),
        (1, 0.01, 1, 1),
    ],
)
def test_cohort_size(num_clients: int, participation: float, at_least: int, expected: int) -> None:
    assert rng.cohort_size(num_clients, participation, at_least) == expected


@pytest.mark.parametrize("participation", [0.0, -0.1, 1.1])
def test_participation_outside_its_range_is_refused(participation: float) -> None:
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\]"):
        rng.cohort_size(10, participation)
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\]"):
        rng.draw_replicas(np.arange(3), participation, np.random.default_rng(0))


@given(st.integers(1, 40), st.integers(0, 2**31), st.data())
def test_draws_are_distinct_members(num_clients: int, seed: int, data: st.DataObject) -> None:
    members = np.arange(100, 100 + num_clients)
    size = data.draw(st.integers(1, num_clients))
    counts = np.asarray(data.draw(st.lists(st.integers(0, 5000), min_size=num_clients, max_size=num_clients)))
    for drawn in (
        rng.draw(members, size, np.random.default_rng(seed)),
        rng.draw_least_sampled(members, counts, size, np.random.default_rng(seed)),
    ):
        assert len(drawn) == size == len(set(drawn.tolist()))
        assert set(drawn.tolist()) <= set(members.tolist())
        assert (np.diff(drawn) > 0).all()


def test_the_least_sampled_are_drawn_in_proportion_to_their_weight() -> None:
    # Two clients, counts 0 and 1, one place: weights 1 and exp(-1), so the first gets
    # 1 / (1 + exp(-1)) = 0.7311 of the draws; 4 standard deviations of 20,000 draws are 0.0125.
    generator = np.random.default_rng(0)
    members, counts = np.array([3, 8]), np.array([0, 1])
    first = np.mean([rng.draw_least_sampled(members, counts, 1, generator)[0] == 3 for _ in range(20_000)])
    assert abs(first - 0.7310586) < 0.0125


def test_a_weight_that_underflows_still_fills_the_cohort() -> None:
    drawn = rng.draw_least_sampled(np.arange(3), np.array([0, 5000, 5000]), 3, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, [0, 1, 2])


@pytest.mark.parametrize(
    ("num_clients", "participation", "expected"),
    [
        (1, 0.5, 2),  # half of 4 copies
        (2, 0.5, 4),  # half of 8 copies
        (2, 0.1, 2),  # floor(0.8), two at least
        (3, 0.5, 2),  # floor(1.5), two at least
        (7, 0.5, 3),
        (30, 0.1, 3),
        (10, 1.0, 10),
    ],
)
def test_cohorts_of_replicas(num_clients: int, participation: float, expected: int) -> None:
    members = np.arange(5, 5 + num_clients)
    drawn = rng.draw_replicas(members, participation, np.random.default_rng(0))
    assert len(drawn) == expected
    assert set(drawn.tolist()) <= set(members.tolist())
    assert np.bincount(drawn).max() <= (4 if num_clients <= 2 else 1)


def test_half_of_the_draws_of_a_pair_are_even() -> None:
    # C(4, 2)² / C(8, 4) = 36 / 70 = 0.5143; 4 standard deviations of 5,000 draws are 0.0283.
    generator = np.random.default_rng(0)
    even = np.mean([(rng.draw_replicas(np.arange(2), 0.5, generator) == 0).sum() == 2 for _ in range(5000)])
    assert abs(even - 36 / 70) < 0.0283


def test_an_order_is_drawn_in_proportion_to_weights() -> None:
    generator = np.random.default_rng(0)
    orders = np.array([rng.draw_order(np.array([1, 0, 2, 1]), generator) for _ in range(4000)])
    # First with probability 1/4, 0, 1/2, 1/4; after 2 each of the two others with 1/2. sd below 0.012.
    np.testing.assert_allclose(np.bincount(orders[:, 0], minlength=4) / 4000, [0.25, 0, 0.5, 0.25], atol=0.04)
    after = orders[orders[:, 0] == 2, 1]
    np.testing.assert_allclose(np.bincount(after, minlength=4) / len(after), [0.5, 0, 0, 0.5], atol=0.06)
    assert (orders[:, 3] == 1).all()
    assert (np.sort(orders, axis=1) == np.arange(4)).all()


def test_the_largest_values_and_of_equal_ones_the_first() -> None:
    assert rng.largest(np.array([2.0, 5.0, 2.0, 7.0, 2.0]), 3).tolist() == [0, 1, 3]
    assert rng.largest(np.array([2.0, 5.0]), 0).tolist() == []


@pytest.mark.parametrize(("asked", "number"), [(1, 1), (1.0, 10), (0.25, 3), (7, 7), (50, 10), (0.01, 1)])
def test_a_number_of_clients_or_a_share_of_ten(asked: int | float, number: int) -> None:
    RunOptions(evaluate_clients=asked)
    assert rng.number_of(asked, 10) == number  # 0.25 · 10 = 2.5 is rounded up


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, 2.0, True, "half", float("nan")])
def test_what_is_neither_a_number_nor_a_share_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="evaluate_clients must be a whole number >= 1 or a share in"):
        RunOptions(evaluate_clients=wrong)  # type: ignore[arg-type]
