from collections.abc import Callable, Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedclust.clustering.loss_traces import Entries


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread for small matrices, which is faster on a busy machine, as the traces' tests do."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def of_table() -> Callable[[np.ndarray], Entries]:
    """Make entries from a table of rounds by clients, NaN where there is none."""

    def make(table: np.ndarray) -> Entries:
        rounds, clients = np.nonzero(~np.isnan(table))
        return Entries(rounds, clients, table[rounds, clients], *table.shape)

    return make


@pytest.fixture
def with_gaps() -> Callable[[int], np.ndarray]:
    """Make a table of 6 rounds by 9 clients, of which about a third is missing but no row or column."""

    def make(seed: int) -> np.ndarray:
        draws = np.random.default_rng(seed)
        table = draws.normal(size=(6, 9))
        table[draws.random(table.shape) < 0.35] = np.nan
        table[np.arange(6), np.arange(6)] = draws.normal(size=6)
        table[:3, 6:] = draws.normal(size=(3, 3))
        return table

    return make
