from typing import Any

import pytest

from fedclust.federation import RunFailed
from fedclust.federation.run import check_answered, check_round, count_reasons


def a_round(
    train: dict[int, str] | None = None, evaluate: dict[int, str] | None = None, **changes: Any
) -> dict[str, Any]:
    """Make the record of a round of clients 0, 1 and 2."""
    failures = [
        {"client": client, "phase": phase, "reason": reason}
        for phase, reasons in (("train", train or {}), ("evaluate", evaluate or {}))
        for client, reason in reasons.items()
    ]
    return {"round": 2, "cohort": [0, 1, 2], "failures": failures, "global_accuracy": 0.5, **changes}


def without_accuracy(**arguments: Any) -> dict[str, Any]:
    record = a_round(**arguments)
    del record["global_accuracy"]
    return record


def test_a_round_goes_on_while_one_client_is_left() -> None:
    check_round(a_round(), 4)
    check_round(a_round(train={0: "lost", 1: "lost"}, evaluate={0: "lost", 1: "lost"}), 4)


def test_a_round_that_is_not_evaluated_goes_on_unless_it_is_the_last() -> None:
    check_round(without_accuracy(), 4)
    with pytest.raises(RunFailed, match="^the run failed in round 2 of 2, no client has an accuracy: "):
        check_round(without_accuracy(), 2)


def test_nobody_trained() -> None:
    with pytest.raises(RunFailed) as error:
        check_round(a_round(train={0: "disk full", 1: "no reply", 2: "disk full"}), 4)
    assert str(error.value) == (
        "the run failed in round 2 of 4, no client was trained: "
        "2 of 3 clients: disk full; 1 of 3 clients: no reply"
    )


def test_nobody_was_evaluated() -> None:
    with pytest.raises(RunFailed, match=r"round 2 of 4, no client was evaluated: 3 of 3 clients: disk full$"):
        check_round(without_accuracy(evaluate=dict.fromkeys(range(3), "disk full")), 4)


def test_a_few_sampled_clients_that_fail_do_not_end_a_run() -> None:
    # `evaluate_clients=1` comes upon each client that fails sooner or later; ten that all fail are no chance.
    for asked, ends in ((1, False), (9, False), (10, True)):
        record = without_accuracy(evaluate=dict.fromkeys(range(asked), "disk full"), evaluated_clients=0)
        if not ends:
            check_round(record, 4)
            with pytest.raises(RunFailed, match="no client was evaluated"):  # the last round counts
                check_round(record, 2)
        else:
            with pytest.raises(RunFailed, match="no client was evaluated: 10 of 10 clients: disk full"):
                check_round(record, 4)


def test_a_round_without_a_cohort_has_nobody_to_fail() -> None:
    check_round(a_round(cohort=[]), 4)


def stuck(cluster: int, clients: int, in_a_row: int = 3) -> dict[str, Any]:
    reason = "the loss of its new model is not finite"
    return {"cluster": cluster, "clients": clients, "reason": reason, "in_a_row": in_a_row}


def test_clusters_of_more_than_half_of_the_clients_end_a_run_by_going_back() -> None:
    sizes = {"num_clusters": 3, "cluster_sizes": [5, 3, 2]}
    # Of 10 clients: 5 are no more than half, nor are 3 + 2; 5 + 2 are.
    check_round(a_round(went_back=[stuck(0, 5)], **sizes), 4)
    several = [stuck(1, 3), stuck(2, 2), stuck(2, 2), stuck(0, 5, in_a_row=2)]
    check_round(a_round(went_back=several, **sizes), 4)
    with pytest.raises(RunFailed, match=r"round 2 of 4, cluster 0 went back .* for the 3rd time in a row: "):
        check_round(a_round(went_back=[stuck(0, 5), stuck(2, 2)], **sizes), 4)


def test_a_cluster_that_went_back_may_be_gone_when_the_round_ends() -> None:
    # Three clusters were merged to two after cluster 2 went back: 4 of 10 clients are no more than half.
    merged = {"num_clusters": 2, "cluster_sizes": [1, 9]}
    check_round(a_round(went_back=[stuck(2, 4)], **merged), 4)
    with pytest.raises(RunFailed, match="cluster 2 went back"):
        check_round(a_round(went_back=[stuck(2, 6)], **merged), 4)
    # Nor is it the cluster that has its number now: 1 of 10 clients went back.
    check_round(a_round(went_back=[stuck(1, 1)], **merged), 4)


def test_a_cluster_that_goes_back_twice_in_the_last_round_is_one_cluster() -> None:
    # Its aggregate is not finite, nor is the loss of the model that it went back to; the other one is fine.
    two = {"num_clusters": 2, "cluster_sizes": [3, 7]}
    check_round(a_round(round=4, went_back=[stuck(0, 3, in_a_row=1)] * 2, **two), 4)
    with pytest.raises(RunFailed, match="no cluster made a model that is of use"):
        check_round(a_round(round=4, went_back=[stuck(0, 3, 1), stuck(1, 7, 1)], **two), 4)


def test_reasons_are_counted_without_their_client() -> None:
    reasons = [f"client {client}, round 3: model must be finite, it is not" for client in range(12)]
    assert count_reasons(reasons, 30) == "12 of 30 clients: model must be finite, it is not"
    assert count_reasons(["client 7: no label\n  counts"], 30) == "1 of 30 clients: no label counts"


def test_many_reasons_are_cut_short() -> None:
    reasons = [*"aabcdefg"]
    assert count_reasons(reasons, 8).split("; ") == [
        "2 of 8 clients: a",
        *(f"1 of 8 clients: {reason}" for reason in "bcde"),
        "2 more reasons of 2 clients",
    ]


def a_large_round(failed: int) -> dict[str, Any]:
    """Make the record of a round of ten clients."""
    return a_round(train=dict.fromkeys(range(failed), "lost"), cohort=list(range(10)))


def test_too_few_were_trained() -> None:
    # A share of 0.25 of 10 clients is 2.5, so three must be trained.
    check_round(a_large_round(7), 4, min_replies=0.25)
    with pytest.raises(RunFailed) as error:
        check_round(a_large_round(8), 4, min_replies=0.25)
    assert str(error.value) == (
        "the run failed in round 2 of 4, 2 of 10 clients were trained, min_replies=0.25 needs 3: "
        "8 of 10 clients: lost"
    )


def test_a_round_without_replies_is_passed_over_where_none_is_asked_for() -> None:
    nobody = without_accuracy(train=dict.fromkeys(range(3), "lost"), evaluate=dict.fromkeys(range(3), "lost"))
    check_round(nobody, 4, min_replies=0)
    with pytest.raises(RunFailed, match="round 2 of 2, no client was evaluated"):  # it has no figures
        check_round(nobody, 2, min_replies=0)


def test_figures_of_too_few_clients_are_none() -> None:
    # Half of five is 2.5: three must have an accuracy. Of the two that lack one here, one failed.
    failures = [{"client": 1, "phase": "evaluate", "reason": "lost"}]
    check_answered(failures, 3, 5, "4 of 4", min_replies=0.5)
    with pytest.raises(RunFailed) as error:
        check_answered(failures, 2, 5, "4 of 4", min_replies=0.5)
    assert str(error.value) == (
        "the run failed in round 4 of 4, 2 of 5 clients were evaluated, min_replies=0.5 needs 3: "
        "2 of 5 clients: offline; 1 of 5 clients: lost"
    )
