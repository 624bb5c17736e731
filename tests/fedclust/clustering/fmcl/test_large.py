"""FMCL's distances in single precision against those in double precision."""

import numpy as np
import pytest

from fedclust.clustering import fmcl
from fedclust.clustering.fmcl import large


def _federation(width: int = 16) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    groups = draws.integers(0, 3, 70)
    prototypes = draws.normal(size=(3, 6, width))[groups] + 0.3 * draws.normal(size=(70, 6, width))
    counts = draws.multinomial(20, draws.dirichlet(np.full(6, 0.3), size=70))
    prototypes[counts == 0] = np.nan
    return prototypes.astype(np.float32), counts / counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("overlap", [True, False])
def test_they_are_those_of_double_precision(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes, shares = _federation()
    shares[0], shares[1] = np.eye(6)[0], np.eye(6)[1]  # no class in common: a percentile's distance
    prototypes[:2] = 1
    expected = fmcl.distances(prototypes, shares, overlap=overlap)
    monkeypatch.setattr(large, "_SIDE", 32)  # three squares a side, the last one smaller
    monkeypatch.setattr(large, "MANY", 69)
    found = fmcl.distances(prototypes, shares, overlap=overlap)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, found.T)
    assert not np.diagonal(found).any()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_variation_is_that_of_different_clients() -> None:
    matrix = np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]], dtype=np.float32)
    # Distances 1, 2, 3, each twice: mean 2, variance 2/3.
    assert large.variation(matrix) == pytest.approx(np.sqrt(2 / 3) / 2)
    assert large.variation(np.zeros((3, 3), dtype=np.float32)) == 0


def test_both_precisions_end_in_one_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes, shares = _federation()
    expected, details = fmcl.assign(prototypes, shares, fmcl.Parameters())
    monkeypatch.setattr(large, "MANY", 69)
    found, single = fmcl.assign(prototypes, shares, fmcl.Parameters())
    np.testing.assert_array_equal(found, expected)
    assert single.variation == pytest.approx(details.variation, rel=1e-4)
