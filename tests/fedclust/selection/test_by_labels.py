"""FedCLS and HACCS."""

import numpy as np
import pytest

from fedclust.federation import Federation, FederationError
from fedclust.federation.federation import Roster
from fedclust.selection import HACCS, Candidates, FedCLS


def test_nobody_is_asked_for_a_loss(candidates) -> None:
    found = candidates([0, 1, 2], failing=(0, 1, 2))
    assert FedCLS().select(found, 3, np.random.default_rng(0)).tolist() == [0, 1, 2]
    assert found.federation.take_failures() == []


@pytest.mark.parametrize("threshold", [0, 1.1])
def test_refuses(threshold: float) -> None:
    with pytest.raises(ValueError, match=rf"threshold must be in \(0, 1\], got {threshold}"):
        FedCLS(threshold)


def _two_groups(client: int) -> list[int]:
    return [9, 1, 0] if client < 3 else [0, 0, 10]


def test_who_does_not_answer_is_not_chosen(candidates) -> None:
    found = candidates([0, 1, 2, 3, 4, 5], num_clients=6, counts=_two_groups, failing=(2, 3, 4, 5))
    assert HACCS().select(found, 4, np.random.default_rng(0)).tolist() == [0, 1]
    assert {failure["client"] for failure in found.federation.take_failures()} == {2, 3, 4, 5}


def test_only_candidates_are_grouped_and_chosen(candidates) -> None:
    found = candidates([1, 4], num_clients=6, counts=_two_groups)
    assert HACCS(latencies=[1] * 6).select(found, 2, np.random.default_rng(0)).tolist() == [1, 4]


def test_latencies_are_one_per_client(candidates) -> None:
    with pytest.raises(FederationError, match=r"one number for each of the 6 clients, got 2"):
        HACCS(latencies=[1, 2]).select(candidates([0, 1], num_clients=6), 1, np.random.default_rng(0))


def test_a_client_that_joins_later_counts_as_fast_as_the_mean(toy) -> None:
    federation = Federation(toy(num_clients=3, counts=lambda _: [9, 1]).grid(), roster=Roster([0, 0, 3]))
    found = Candidates(np.arange(3), toy.model(), 3, federation)
    # One group, with 1, 4 and 2.5 seconds.
    assert HACCS(latencies=[1, 4]).select(found, 2, np.random.default_rng(0)).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rho": 1.5}, r"rho must be in \[0, 1\], got 1.5"),
        ({"max_distance": 0}, r"max_distance must be in \(0, 1\], got 0"),
        ({"latencies": [1, 0]}, r"latencies must be numbers > 0 and finite or None, got \[1, 0\]"),
        ({"latencies": [1, float("nan")]}, "latencies must be numbers > 0"),
    ],
)
def test_haccs_refuses(options, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        HACCS(**options)
