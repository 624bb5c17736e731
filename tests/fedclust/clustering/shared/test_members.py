import numpy as np
import pytest

from fedclust.clustering.shared.members import check_parts, member_ids, positions_of

MEMBERS = np.array([10, 20, 40])


def test_positions_in_the_order_asked_for() -> None:
    np.testing.assert_array_equal(positions_of(np.array([40, 10]), MEMBERS), [2, 0])
    assert positions_of(np.array([], dtype=int), MEMBERS).shape == (0,)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([5], "clients must be members of the cluster, got client 5"),
        ([20, 99], "clients must be members of the cluster, got client 99"),  # beyond the last
        ([20, 10, 20], r"clients must be named once each, got \[20, 10, 20\]"),
    ],
)
def test_a_client_that_is_no_member_or_listed_twice_is_refused(clients: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        positions_of(np.array(clients), MEMBERS)


def test_members_are_sorted() -> None:
    np.testing.assert_array_equal(member_ids(np.array([40, 10, 20])), MEMBERS)


@pytest.mark.parametrize("members", [[], [1, 2, 1]])
def test_members_are_different_clients(members: list[int]) -> None:
    with pytest.raises(ValueError, match="members must be different clients, at least one"):
        member_ids(np.array(members, dtype=int))


def test_parts_are_listed_in_the_order_of_their_numbers() -> None:
    assert [part.tolist() for part in check_parts(np.array([1, 0, 1]), 3)] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("labels", "message"), [([0, 1], r"shape \(3,\), got \(2,\)"), ([0, 2, 2], r"without gaps, got \[0, 2\]")]
)
def test_parts_of_others_and_gaps_are_refused(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_parts(np.array(labels), 3)
