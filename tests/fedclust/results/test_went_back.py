"""Clusters that went back to an earlier model, in words."""

from typing import Any

from fedclust.results.went_back import went_back_line


def back(cluster: int, clients: int, reason: str = "not finite") -> dict[str, Any]:
    return {"cluster": cluster, "clients": clients, "reason": reason, "in_a_row": 1}


def test_the_clusters_that_lost_most_rounds_come_first_with_their_last_reason() -> None:
    rounds = [
        {"round": 1, "went_back": [back(0, 1)]},
        {"round": 2, "went_back": [back(3, 5), back(3, 5)]},  # twice in one round: one round
        {"round": 3},
        {"round": 4, "went_back": [back(3, 4, "too large")]},
    ]
    assert went_back_line(rounds) == (
        "Went back to an earlier model: cluster 3 in 2 of 4 rounds (round 4 with 4 clients: too large); "
        "cluster 0 in 1 of 4 rounds (round 1: not finite)"
    )


def test_many_clusters_are_counted() -> None:
    line = went_back_line([{"round": 1, "went_back": [back(cluster, 1) for cluster in range(7)]}])
    assert line is not None
    assert line.count("cluster") == 5
    assert line.endswith("; and 2 more")


def test_without_any_there_is_no_line_and_runs_of_before_have_no_number_of_clients() -> None:
    assert went_back_line([{"round": 1}]) is None
    old = [{"round": 1, "went_back": [{"cluster": 2, "reason": "not finite", "in_a_row": 1}]}]
    assert went_back_line(old) == (
        "Went back to an earlier model: cluster 2 in 1 of 1 rounds (round 1: not finite)"
    )
