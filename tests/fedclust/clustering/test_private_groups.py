"""Starts of groups, and the vote on them."""

import math

import numpy as np
import pytest

from fedclust.clustering.private_groups import apart, deserted, groups_help, vote


def test_starts_lie_around_the_model() -> None:
    values = np.arange(5.0)
    one, other = apart(values, 2, 0.1, np.random.default_rng(0))
    np.testing.assert_allclose((one + other) / 2, values, atol=1e-12)  # a step and the step back
    assert np.linalg.norm(one - values) == pytest.approx(0.1 * math.sqrt(30))  # √(0 + 1 + 4 + 9 + 16)
    starts = apart(np.zeros(4), 3, 0.5, np.random.default_rng(0))
    np.testing.assert_allclose(starts.sum(axis=0), 0, atol=1e-12)
    assert np.square(starts).sum() == pytest.approx(3 * 0.25)  # root mean square 0.5


def test_votes_are_clipped_and_tested_against_their_largest_variance() -> None:
    np.testing.assert_allclose(vote([0.1, -3.0, 0.5], 0.25), [0.4, -1.0, 1.0])
    # 1.6449 √(100 + 21²) = 1.6449 · 23.259 = 38.258
    assert groups_help(38.3, 100, 21.0, 0.05)[0]
    assert not groups_help(38.2, 100, 21.0, 0.05)[0]
    assert groups_help(0.0, 100, 0.0, 0.5) == (False, pytest.approx(0.0))


def test_groups_start_anew_where_one_is_deserted() -> None:
    # An eighth of an equal share of 1,000 in two groups is 62.5; noise of 10 must not explain it.
    assert deserted([52.0, 948.0], 1000, 10.0)
    assert not deserted([53.0, 947.0], 1000, 10.0)
    assert not deserted([200.0, 800.0], 1000, 0.0)
