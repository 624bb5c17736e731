"""The random projection of a model's change."""

import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.messages.training import Projection
from fedclust.support.rng import generator


def literal(changes: dict[str, np.ndarray], size: int, seed: int) -> np.ndarray:
    """Add every entry, with its sign, to its sum, one at a time."""
    number = len(next(iter(changes.values())))
    projected = np.zeros((number, size))
    for name, array in changes.items():
        draws = generator(seed, "projection", zlib.crc32(name.encode()))
        places = draws.integers(0, 2 * size, array[0].size)
        for client in range(number):
            for place, value in zip(places, array[client].ravel(), strict=True):
                projected[client, place % size] += value if place < size else -value
    return projected


@given(
    size=st.integers(1, 9),
    seed=st.integers(0, 2**62),
    numbers=st.lists(st.floats(-10, 10), min_size=12, max_size=12),
)
def test_every_entry_is_added_to_its_sum(size: int, seed: int, numbers: list[float]) -> None:
    values = np.array(numbers)
    changes = {"weight": values[:8].reshape(2, 2, 2), "bias": values[8:].reshape(2, 2)}
    np.testing.assert_allclose(
        Projection(size, seed).of(changes), literal(changes, size, seed), rtol=1e-12, atol=1e-12
    )


@given(st.integers(0, 2**62), st.floats(-3, 3))
def test_it_is_linear_and_does_not_mix_clients(seed: int, factor: float) -> None:
    draws = np.random.default_rng(seed % 1000)
    one, other = draws.normal(size=(2, 3, 40))
    projection = Projection(7, seed)
    together = projection.of({"w": one + factor * other})
    apart = projection.of({"w": one}) + factor * projection.of({"w": other})
    np.testing.assert_allclose(together, apart, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(projection.of({"w": one})[1], projection.of({"w": one[1:2]})[0])


def test_inner_products_are_kept_on_average() -> None:
    # x = (1, …, 1) and y = (1, …, 1, 0, …, 0) with 100 and 25 ones: xᵀy = 25, ‖x‖² = 100, ‖y‖² = 25.
    x, y, sums, seeds = np.ones(100), np.repeat([1.0, 0.0], [25, 75]), 16, 4000
    products = []
    for seed in range(seeds):
        first, second = Projection(sums, seed).of({"w": np.stack([x, y])})
        products.append(first @ second)
    # Variance of one product: (‖x‖²‖y‖² + (xᵀy)² − 2 Σ x²y²) / m = (2500 + 625 − 50) / 16 = 192.2,
    # at most the (2500 + 625) / 16 = 195.3 of the docstring.
    assert np.mean(products) == pytest.approx(25, abs=4 * np.sqrt(192.2 / seeds))
    assert np.var(products) == pytest.approx(192.2, rel=0.15)


@pytest.mark.parametrize(("size", "seed"), [(0, 1), (-3, 1), (4, -1)])
def test_sizes_and_seeds_out_of_range_are_refused(size: int, seed: int) -> None:
    with pytest.raises(ValueError, match=f"size >= 1 and seed >= 0, got {size} and {seed}"):
        Projection(size, seed)


def test_arrays_of_different_clients_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one first axis, the clients, got lengths \[2, 3\]"):
        Projection(4, 0).of({"a": np.zeros((2, 5)), "b": np.zeros((3, 5))})
