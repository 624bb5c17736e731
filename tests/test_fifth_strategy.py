"""The strategy that docs/A_FIFTH_STRATEGY.md shows works as it is written there."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fedclust.clustering

PAGE = Path(__file__).parent.parent / "docs" / "A_FIFTH_STRATEGY.md"


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    mathematics, strategy = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    pure = types.ModuleType("fedclust.clustering.by_size")
    exec(mathematics, pure.__dict__)
    monkeypatch.setitem(sys.modules, "fedclust.clustering.by_size", pure)
    monkeypatch.setattr(fedclust.clustering, "by_size", pure, raising=False)
    module = types.ModuleType("strategies.by_size")
    exec(strategy, module.__dict__)
    return module


def test_the_page_has_a_working_strategy(by_size: types.ModuleType, toy, watch) -> None:
    strategy = by_size.BySize(threshold=4)
    strategy.observer = watch
    strategy.start(toy(num_clients=6).grid(2), toy.model(), num_rounds=1)
    # Client k has k + 2 samples: clients 0 and 1 have fewer than 4.
    assert watch.assignments == [(0, [0, 0, 1, 1, 1, 1], "before round 1")]


def test_its_mathematics(by_size: types.ModuleType) -> None:
    assign = by_size.by_size.assign
    np.testing.assert_array_equal(assign(np.array([5, 100, 99]), 100), [0, 1, 0])
    np.testing.assert_array_equal(assign(np.array([5, 6]), 100), [0, 0])
    np.testing.assert_array_equal(assign(np.array([500, 600]), 100), [0, 0])
    with pytest.raises(ValueError, match="threshold must be >= 1, got 0"):
        assign(np.array([5]), 0)
