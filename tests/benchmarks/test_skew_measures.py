"""What benchmarks/skew_measures.py reads from partitions: by hand, on partitions that are known."""

from types import ModuleType

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

SCRIPT = "skew_measures"


def test_counts_of_a_partition_by_hand(script: ModuleType) -> None:
    _, similar = script.PROTOCOLS["S"]
    # Sorted by class and dealt in ten blocks: each client has all 2,000 rows of one class.
    np.testing.assert_array_equal(script.counts_of(similar(10, 0.0), seed=0), 2000 * np.eye(10))


@pytest.mark.parametrize("column", [0, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_measure_that_is_the_level_has_all_the_importance(
    script: ModuleType, column: int, seed: int
) -> None:
    measures = np.random.default_rng(0).random((60, 4))
    shares = script.importance(DecisionTreeRegressor(max_depth=2), measures, measures[:, column], seed)
    np.testing.assert_array_equal(shares, np.eye(4)[column])


def test_correlation_with_the_level_within_each_number_of_clients(script: ModuleType) -> None:
    levels, clients = np.tile([1.0, 2.0, 3.0], 3), np.repeat(script.CLIENTS, 3)
    # The first falls with the level, but is larger for more clients; the second falls for 10 and 50 only.
    falls = np.array([3.0, 2.0, 1.0, 30.0, 20.0, 10.0, 300.0, 200.0, 100.0])
    mixed = np.array([3.0, 2.0, 1.0, 3.0, 2.0, 1.0, 1.0, 2.0, 3.0])
    found = script.along(script.monotone, np.stack([falls, mixed], axis=1), levels, clients)
    np.testing.assert_allclose(found, [-1.0, -1 / 3])
