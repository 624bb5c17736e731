"""What is made of a round: figures of the clients' answers, by hand, and whether the run goes on."""

import dataclasses

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.federation import Clusters, Federation, Measured, RunFailed, run
from fedclust.messages.evaluation import Evaluation
from fedclust.metrics import outcomes


def answer(client: int, num_examples: int, loss: float, accuracy: float) -> Evaluation:
    figures = {"num-examples": num_examples, "loss": loss, "accuracy": accuracy}
    return Evaluation(client, {**figures, "balanced-accuracy": accuracy / 2})


def test_figures_by_hand() -> None:
    measured = Measured.of([answer(0, 1, 2.0, 1.0), answer(2, 3, 1.0, 0.5)], 3)
    np.testing.assert_array_equal(measured.figures["accuracy"], [1.0, np.nan, 0.5])
    # One example of loss 2 and three of loss 1: (2 + 3·1) / 4 nats. Accuracy (1·1 + 3·0.5) / 4.
    of_clients = {"mean_client_accuracy": 0.75, "balanced_accuracy": 0.375}
    assert run.round_figures(measured) == pytest.approx(
        {"global_accuracy": 0.625, "test_loss": 1.25, **of_clients}
    )


def test_test_rows_count_for_at_most_three_times_the_median_clients() -> None:
    # Three clients of 4 rows and an accuracy of 1/2; one that is always right and says a million: 12 count.
    # (3 · 4/2 + 12) / (3 · 4 + 12) = 0.75, and the loss (12 · 2 + 12 · 1) / 24 = 1.5.
    told = [answer(client, 4, 2.0, 0.5) for client in range(3)] + [answer(3, 10**6, 1.0, 1.0)]
    figures = run.round_figures(Measured.of(told, 4), row_cap=3.0)
    assert (figures["global_accuracy"], figures["test_loss"]) == (0.75, 1.5)
    assert run.round_figures(Measured.of(told, 4))["global_accuracy"] > 0.9999


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_the_mean_shows_one_clients_overflow(loss: float) -> None:
    figures = run.round_figures(Measured.of([answer(0, 1, loss, 1.0), answer(1, 1, 1.0, 1.0)], 2))
    assert np.isnan(figures["test_loss"])
    assert figures["mean_client_accuracy"] == 1.0


def test_a_client_without_test_rows_has_no_part() -> None:
    figures = run.round_figures(Measured.of([answer(0, 0, np.nan, np.nan), answer(1, 1, 1.5, 1.0)], 2))
    assert figures["test_loss"] == 1.5
    assert figures["global_accuracy"] == 1.0


def test_nobody_answered() -> None:
    assert run.round_figures(Measured.of([], 2)) == {}
    assert run.round_figures(Measured.of([answer(0, 0, np.nan, np.nan)], 2)) == {}


def test_counts_are_kept_by_client() -> None:
    counted = outcomes(np.array([0]), np.array([0]), np.array([[0.9, 0.1]]))
    measured = Measured.of([Evaluation(1, {"accuracy": 1.0}, counted), Evaluation(0, {"accuracy": 1.0})], 2)
    assert measured.outcomes == {1: counted}


def test_each_client_has_the_measurements_of_the_model_that_serves_it() -> None:
    first, second = (outcomes(np.array([0]), np.array([k]), np.array([[0.9, 0.1]])) for k in (0, 1))
    own = Measured({"accuracy": np.array([0.1, 0.2]), "b": np.ones(2), "a": np.ones(2)}, {0: first, 1: first})
    other = Measured({"accuracy": np.array([0.3, 0.4])}, {0: second, 1: second})
    served = own.served(other, np.array([True, False]))
    assert served.figures["accuracy"].tolist() == [0.3, 0.2]
    np.testing.assert_array_equal(served.figures["a"], [np.nan, 1.0])
    assert served.outcomes == {0: second, 1: first}
    assert own.own_metrics == ("a", "b")


def test_figures_of_a_sample_say_of_how_many_clients() -> None:
    # Client 1 was asked and has no test rows: the figures are of two clients.
    measured = Measured.of([answer(0, 1, 2.0, 1.0), answer(1, 0, np.nan, np.nan), answer(2, 3, 1.0, 0.5)], 9)
    assert run.round_figures(measured, sampled=True)["evaluated_clients"] == 2
    assert "evaluated_clients" not in run.round_figures(measured)


ALL = range(20)


@pytest.mark.parametrize("asked", [None, 20, 21, 1.0])
def test_all_clients_are_no_sample(asked: int | float | None) -> None:
    assert run.evaluation_sample(asked, 20, 0, 1, range(20)) is None


def test_a_sample_follows_from_seed_and_round_alone() -> None:
    drawn = [
        run.evaluation_sample(0.25, 20, seed, number, ALL)
        for seed, number in ((0, 1), (0, 1), (0, 2), (1, 1))
    ]
    assert all(len(set(each.tolist())) == 5 for each in drawn if each is not None)
    first, again, later, other = (None if each is None else each.tolist() for each in drawn)
    assert first == again == sorted(first or ())
    assert first not in (later, other)
    # Every client's turn comes: each is missed 40 times with probability 0.75⁴⁰ = 10⁻⁵.
    later_rounds = np.concatenate([np.asarray(run.evaluation_sample(5, 20, 0, n, ALL)) for n in range(40)])
    assert set(later_rounds.tolist()) == set(range(20))


def test_as_many_evaluate_as_were_asked_for_where_most_are_offline() -> None:
    online = [2, 3, 5, 11, 19, 20]  # 20 has just come, and is in no cluster yet
    drawn = run.evaluation_sample(4, 20, 0, 1, online)
    assert len(set(drawn.tolist())) == 4
    assert set(drawn.tolist()) <= {2, 3, 5, 11, 19}
    # A share is one of all: 0.25 · 20 = 5, and 0.5 · 20 = 10 are more than there are.
    for share in (0.25, 0.5):
        assert np.asarray(run.evaluation_sample(share, 20, 0, 1, online)).tolist() == [2, 3, 5, 11, 19]
    assert np.asarray(run.evaluation_sample(4, 20, 0, 1, [])).tolist() == []


def test_only_the_sampled_clients_that_can_be_reached_are_asked() -> None:
    model = ArrayRecord({"w": Array(np.zeros(1))})
    clusters = Clusters.of([0, 1, 0, 1, 0], model)
    asked = run.evaluation_questions(clusters, {0, 1, 2, 4}, np.array([1, 2, 3]), server_round=1)
    assert list(asked) == [1, 2]  # 3 is offline
    # Client 9 has just come, and is in no cluster yet.
    everyone = run.evaluation_questions(clusters, {0, 1, 2, 4, 9}, None, server_round=1)
    assert sorted(everyone) == [0, 1, 2, 4]
    assert everyone[0] is everyone[4] is not everyone[1]  # clients of a cluster share a question


def test_a_round_is_counted_when_it_ends(toy) -> None:
    clusters = Clusters(np.array([0, 2, 2]), (toy.model(),) * 3, report={"old": 1}, reason="old")
    made = run.Run(
        Federation(toy(num_clients=3).grid(), 2), lambda: None, toy.model(), run.Round(0, clusters)
    )  # type: ignore[arg-type, return-value]
    begun = made.next_round()
    assert (begun.number, made.federation.server_round, dict(begun.clusters.report)) == (1, 1, {})
    failures = [{"client": 1, "phase": "train", "reason": "lost"}]
    now = dataclasses.replace(begun.noting(failures=failures), evaluations=[answer(0, 1, 2.0, 1.0)])
    figures, record = made.finish(now, None)
    assert (made.number, made.over, made.failed_replies) == (2, False, 1)
    assert figures["mean_client_accuracy"] == record["mean_client_accuracy"] == 1.0
    assert (record["num_clusters"], record["cluster_sizes"]) == (2, [1, 0, 2])
    figures, record = made.finish(made.next_round(), None)  # without an evaluation
    assert (figures, record["failures"], made.failed_replies, made.over) == ({}, [], 1, True)
    assert made.measured.figures["accuracy"][0] == 1.0  # the last evaluation's


# -- Whether a run goes on ----------------------------------------------------------------------------------


def a_round(train: str = "", evaluate: str = "", without: bool = False, **changes) -> dict:
    """Make the record of a round of three clients; each letter is one that failed: f full, l lost."""
    failures = [
        {"client": client, "phase": phase, "reason": {"f": "disk full", "l": "lost"}[letter]}
        for phase, letters in (("train", train), ("evaluate", evaluate))
        for client, letter in enumerate(letters)
    ]
    accuracy = {} if without else {"global_accuracy": 0.5}
    return {"round": 2, "cohort": [0, 1, 2], "failures": failures, **accuracy, **changes}


def stuck(*clusters: tuple[int, int, int], number: int = 2, sizes: str = "532") -> dict:
    """Make the record of a round in which clusters went back: each one's number, clients, times in a row."""
    reason = "the loss of its new model is not finite"
    back = [{"cluster": c, "clients": k, "reason": reason, "in_a_row": n} for c, k, n in clusters]
    return a_round(round=number, went_back=back, num_clusters=len(sizes), cluster_sizes=[*map(int, sizes)])


MANY = {"cohort": list(range(10))}


@pytest.mark.parametrize(
    ("record", "rounds", "least", "line"),
    [
        (a_round(), 4, None, None),
        (a_round("ll", "ll"), 4, None, None),  # one client is left
        (a_round(cohort=[]), 4, None, None),  # nobody to fail
        # A round that is not evaluated goes on unless it is the last.
        (a_round(without=True), 4, None, None),
        (a_round(without=True), 2, None, "^the run failed in round 2 of 2, no client has an accuracy: "),
        (a_round("flf"), 4, None, "no client was trained: 2 of 3 clients: disk full; 1 of 3 clients: lost$"),
        (a_round("", "fff", True), 4, None, "2 of 4, no client was evaluated: 3 of 3 clients: disk full$"),
        # `evaluate_clients=1` comes upon each client that fails sooner or later; ten that all fail are no
        # chance. The last round counts.
        (a_round("", "f", True, evaluated_clients=0), 4, None, None),
        (a_round("", "f" * 9, True, evaluated_clients=0), 4, None, None),
        (a_round("", "f" * 9, True, evaluated_clients=0), 2, None, "no client was evaluated"),
        (a_round("", "f" * 10, True, evaluated_clients=0), 4, None, "evaluated: 10 of 10 clients: disk full"),
        # A share of 0.25 of 10 clients is 2.5, so three must be trained.
        (a_round("l" * 7, **MANY), 4, 0.25, None),
        (a_round("l" * 8, **MANY), 4, 0.25, "2 of 10 clients were trained, min_replies=0.25 needs 3: 8 "),
        (a_round("l" * 9, **MANY), 4, 0.25, "1 of 10 clients were trained, min_replies=0.25 needs 3: 9 "),
        # A round without replies is passed over where none is asked for, but for the last.
        (a_round("lll", "lll", True), 4, 0, None),
        (a_round("lll", "lll", True), 2, 0, "round 2 of 2, no client was evaluated"),
        # Of 10 clients in clusters that go back, 5 are no more than half, nor are 3 + 2; 5 + 2 are.
        (stuck((0, 5, 3)), 4, None, None),
        (stuck((1, 3, 3), (2, 2, 3), (2, 2, 3), (0, 5, 2)), 4, None, None),
        (stuck((0, 5, 3), (2, 2, 3)), 4, None, "2 of 4, cluster 0 went back .* for the 3rd time in a row: "),
        # Three clusters were merged to two after cluster 2 went back: 4 of 10 clients are no more than half.
        (stuck((2, 4, 3), sizes="19"), 4, None, None),
        (stuck((2, 6, 3), sizes="19"), 4, None, "cluster 2 went back"),
        # Nor is it the cluster that has its number now: 1 of 10 clients went back.
        (stuck((1, 1, 3), sizes="19"), 4, None, None),
        # A cluster that goes back twice in the last round is one cluster: its aggregate is not finite, nor is
        # the loss of the model that it went back to; the other one is fine.
        (stuck((0, 3, 1), (0, 3, 1), number=4, sizes="37"), 4, None, None),
        (stuck((0, 3, 1), (1, 7, 1), number=4, sizes="37"), 4, None, "no cluster made a model"),
    ],
)
def test_whether_a_run_goes_on(record, rounds: int, least: float | None, line: str | None) -> None:
    share = {} if least is None else {"min_replies": least}
    if line is None:
        run.check_round(record, rounds, **share)
    else:
        with pytest.raises(RunFailed, match=line):
            run.check_round(record, rounds, **share)


def test_reasons_are_counted_without_their_client_and_cut_short() -> None:
    reasons = [f"client {client}, round 3: model must be finite, it is not" for client in range(12)]
    assert run.count_reasons(reasons, 30) == "12 of 30 clients: model must be finite, it is not"
    assert run.count_reasons(["client 7: no label\n  counts"], 30) == "1 of 30 clients: no label counts"
    assert run.count_reasons([*"aabcdefg"], 8).split("; ") == [
        "2 of 8 clients: a",
        *(f"1 of 8 clients: {reason}" for reason in "bcde"),
        "2 more reasons of 2 clients",
    ]


def test_figures_of_too_few_clients_are_none() -> None:
    # Half of five is 2.5: three must have an accuracy. Of the two that lack one here, one failed.
    failures = [{"client": 1, "phase": "evaluate", "reason": "lost"}]
    run.check_answered(failures, 3, 5, "4 of 4", min_replies=0.5)
    run.check_answered([], 2, 4, "4 of 4", min_replies=0.5)  # half of four is two
    line = "2 of 5 clients were evaluated, min_replies=0.5 needs 3: 2 of 5 clients: offline; 1 of 5"
    with pytest.raises(RunFailed, match=f"^the run failed in round 4 of 4, {line} clients: lost$"):
        run.check_answered(failures, 2, 5, "4 of 4", min_replies=0.5)
