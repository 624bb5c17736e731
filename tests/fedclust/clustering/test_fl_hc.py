import numpy as np
import pytest

from fedclust.clustering.fl_hc import Parameters, assign, distances

# Δ of three clients: the second is the first times 10, the third turns by 90 degrees.
CHANGES = np.array([[1.0, 0], [10, 0], [0, 1]])


@pytest.mark.parametrize(
    ("metric", "expected", "labels"),
    [
        # |10 - 1| = 9; √(1 + 1); √(100 + 1)
        ("l2", [9, np.sqrt(2), np.sqrt(101)], [0, 1, 0]),
        ("l1", [9, 2, 11], [0, 1, 0]),
        ("cosine", [0, 1, 1], [0, 0, 1]),
    ],
)
def test_three_changes(metric, expected: list[float], labels: list[int]) -> None:
    found = distances(CHANGES, metric)
    np.testing.assert_allclose([found[0, 1], found[0, 2], found[1, 2]], expected, atol=1e-12)
    assert assign(CHANGES, Parameters(metric=metric, num_clusters=2))[0].tolist() == labels
    # The threshold reaches the closest pair and no further.
    alike = min(expected)
    assert assign(CHANGES, Parameters(metric=metric, threshold=alike + 0.1))[0].tolist() == labels
