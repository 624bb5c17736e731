"""What several methods' rules for clients that come later share."""

import numpy as np
import pytest

from fedclust.clustering.shared.placement import NONE, least_loss, nearest


@pytest.mark.parametrize(
    ("losses", "chance", "expected"),
    [
        ([0.9, 0.4, 0.7], np.log(10), 1),
        ([0.4, 0.4], np.log(10), 0),  # the first on a tie
        ([2.31, 5.0], np.log(10), NONE),  # ln 10 = 2.303 nats: both are worse than guessing
        ([2.30, 5.0], np.log(10), 0),
        ([np.nan, 3.0], np.inf, 1),  # a diverged model never wins
        ([np.nan, np.inf], np.inf, NONE),
        ([7.0, 3.0], np.inf, 1),  # nothing is known of a loss of the user's own
    ],
)
def test_the_least_loss_wins_unless_guessing_is_as_good(losses, chance, expected) -> None:
    assert least_loss(losses, chance) == expected


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([1.0, 3.0, 9.0], 0),
        ([2.0, 2.5, 9.0], 0),  # as far as cluster 1 is from cluster 0
        ([2.1, 2.5, 9.0], NONE),
        ([9.0, 9.0, 4.9], 2),  # cluster 2 is 5 from the nearest other one
        ([9.0, 9.0, 5.1], NONE),
    ],
)
def test_a_client_farther_than_the_next_cluster_is_in_none(distances, expected) -> None:
    apart = np.array([[0.0, 2.0, 6.0], [2.0, 0.0, 5.0], [6.0, 5.0, 0.0]])
    assert nearest(distances, apart) == expected


def test_with_one_cluster_there_is_no_other() -> None:
    assert nearest([100.0], np.zeros((1, 1))) == 0
