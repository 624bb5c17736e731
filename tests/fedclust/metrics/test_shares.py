import numpy as np
import pytest

from fedclust.metrics.shares import label_shares


def test_shares_add_up_to_one_on_every_client() -> None:
    np.testing.assert_array_equal(label_shares(np.array([[1, 3], [0, 5]])), [[0.25, 0.75], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones(3), r"counts must have shape \(clients, classes\), got shape \(3,\)"),
        (np.ones((0, 3)), r"counts must have shape \(clients, classes\), got shape \(0, 3\)"),
        (np.array([[1, -2]]), r"counts must be finite and >= 0, got -2\.0"),
        (np.array([[1, np.nan]]), "counts must be finite and >= 0, got nan"),
        (np.array([[1, 2], [0, 0]]), "counts must have an example on every client, got none on client 1"),
    ],
)
def test_counts_that_are_none_are_refused(counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_shares(counts)
