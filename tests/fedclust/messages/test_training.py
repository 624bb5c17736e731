"""The random projection of a model's change."""

import zlib

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, strategies as st

from fedclust.messages.training import Instruction, Projection
from fedclust.support.rng import generator


def literal(changes: dict[str, np.ndarray], size: int, seed: int) -> np.ndarray:
    """Add every entry, with its sign, to its sum, one at a time."""
    number = len(next(iter(changes.values())))
    projected = np.zeros((number, size))
    for name, array in changes.items():
        draws = generator(seed, "projection", zlib.crc32(name.encode()))
        places = draws.integers(0, 2 * size, array[0].size)
        for place, values in zip(places, array.reshape(number, -1).T, strict=True):
            projected[:, place % size] += values if place < size else -values
    return projected


@given(st.integers(1, 9), st.integers(0, 2**62), st.lists(st.floats(-10, 10), min_size=12, max_size=12))
def test_every_entry_is_added_to_its_sum(size: int, seed: int, numbers: list[float]) -> None:
    values = np.array(numbers)
    changes = {"weight": values[:8].reshape(2, 2, 2), "bias": values[8:].reshape(2, 2)}
    np.testing.assert_allclose(Projection(size, seed).of(changes), literal(changes, size, seed), 1e-12, 1e-12)


@pytest.mark.parametrize(("size", "seed"), [(0, 1), (-3, 1), (4, -1)])
def test_sizes_and_seeds_out_of_range_are_refused(size: int, seed: int) -> None:
    with pytest.raises(ValueError, match=f"size >= 1 and seed >= 0, got {size} and {seed}"):
        Projection(size, seed)


@pytest.mark.parametrize("key", ["pooled", "pooled_rows"])
def test_no_clients_rows_are_joined_twice(key: str) -> None:
    # Noise for a patient's rows once would hide nothing of them a hundred times.
    with pytest.raises(ValueError, match=f"^{key} must name each client once, got "):
        Instruction(ArrayRecord(), **{"pooled": (0,), key: (0, 1, 0)})


def test_arrays_of_different_clients_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one first axis, the clients, got lengths \[2, 3\]"):
        Projection(4, 0).of({"a": np.zeros((2, 5)), "b": np.zeros((3, 5))})
