import numpy as np
import pytest

from fedclust.clustering.flux import (
    Parameters,
    centred,
    clusters,
    levelled,
    moments,
    noise_axes,
    ranges,
    scaled,
)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([], False),
        ([0.1, 0.11], False),  # two rounds
        ([0.1, 0.11, 0.5], True),  # the second gained 0.01
        ([0.1, 0.2, 0.3], False),
        ([0.1, np.nan, 0.3], False),  # 0.2 in two rounds
        ([0.3, 0.5, np.nan, 0.2], True),
    ],
)
def test_it_is_time_once_a_round_gained_little(accuracies: list[float], expected: bool) -> None:
    assert levelled(np.array(accuracies), Parameters()) == expected


def test_axes_are_those_of_the_noise_s_covariance() -> None:
    axes, centre = noise_axes(4, 3)
    points = np.random.default_rng(1).uniform(0, 1, (200, 4))
    values, vectors = np.linalg.eigh(np.cov(points.T))
    for axis, vector in zip(axes, vectors.T[::-1], strict=False):  # of the largest variance first
        assert abs(axis @ vector) == pytest.approx(1)
    assert values[0] > 0
    np.testing.assert_allclose(centre, axes @ points.mean(axis=0))
    assert noise_axes(2, 5)[0].shape == (2, 2)


def test_moments_of_classes_with_fewer_than_two_rows_are_minus_one() -> None:
    latent = np.array([[1.0], [3.0], [8.0]])
    sign = noise_axes(1, 1)[0][0, 0]  # ±1
    found = moments(latent, np.array([0, 0, 1]), 3) * [[sign], [1], [sign], [1], [1], [1], [1], [1]]
    # All: 12/3; squares 9, 1 and 16, so √(26/3). Class 0: 2 and 1.
    np.testing.assert_allclose(found.ravel(), [4, np.sqrt(26 / 3), 2, 1, -1, -1, -1, -1])


def test_means_are_moved_and_what_is_absent_is_not_and_all_scaled_by_moment() -> None:
    found = np.array([[[2.0], [1.0], [-1.0], [-1.0]], [[4.0], [3.0], [6.0], [0.0]]])
    shift = 1.02 * 5.0 * noise_axes(1, 1)[1][0]
    moved = centred(found, 5.0, 1)
    expected = [[2 - shift, 1, -1, -1], [4 - shift, 3, 6 - shift, 0]]
    np.testing.assert_allclose(moved[..., 0], expected)
    np.testing.assert_allclose(scaled(found, *ranges(found))[..., 0], [[0, 0, 0, 0], [1, 1, 1, 1]])


def test_the_radius_is_at_the_knee_of_nearest_distances() -> None:
    # Nearest distances: 0.1 six times, then 3 and 5 of points far from all: the radius is 0.1.
    points = np.array([0.0, 0.1, 0.2, 10.0, 10.1, 10.2, 13.2, 30.0])[:, np.newaxis]
    assert clusters(points).tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    assert clusters(np.zeros((3, 2))).tolist() == [0, 0, 0]
