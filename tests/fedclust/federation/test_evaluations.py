"""Answers of clients put together, by hand."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedclust.federation import Clusters, Measured
from fedclust.federation.run import evaluation_messages, evaluation_sample, round_figures
from fedclust.grids.local_grid import assume_identity
from fedclust.messages.evaluation import Evaluation
from fedclust.metrics import outcomes


def answer(client: int, num_examples: int, loss: float, accuracy: float) -> Evaluation:
    figures = {"num-examples": num_examples, "loss": loss, "accuracy": accuracy}
    return Evaluation(client, {**figures, "balanced-accuracy": accuracy / 2})


def test_figures_by_hand() -> None:
    measured = Measured.of([answer(0, 1, 2.0, 1.0), answer(2, 3, 1.0, 0.5)], 3)
    np.testing.assert_array_equal(measured.figures["accuracy"], [1.0, np.nan, 0.5])
    # One example of loss 2 and three of loss 1: (2 + 3·1) / 4 nats. Accuracy (1·1 + 3·0.5) / 4.
    assert round_figures(measured) == {
        "global_accuracy": pytest.approx(0.625),
        "mean_client_accuracy": pytest.approx(0.75),
        "balanced_accuracy": pytest.approx(0.375),
        "test_loss": pytest.approx(1.25),
    }


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_the_mean_shows_one_clients_overflow(loss: float) -> None:
    figures = round_figures(Measured.of([answer(0, 1, loss, 1.0), answer(1, 1, 1.0, 1.0)], 2))
    assert np.isnan(figures["test_loss"])
    assert figures["mean_client_accuracy"] == 1.0


def test_a_client_without_test_rows_has_no_part() -> None:
    figures = round_figures(Measured.of([answer(0, 0, np.nan, np.nan), answer(1, 1, 1.5, 1.0)], 2))
    assert figures["test_loss"] == 1.5
    assert figures["global_accuracy"] == 1.0


def test_nobody_answered() -> None:
    assert round_figures(Measured.of([], 2)) == {}
    assert round_figures(Measured.of([answer(0, 0, np.nan, np.nan)], 2)) == {}


def test_counts_are_kept_by_client() -> None:
    counted = outcomes(np.array([0]), np.array([0]), np.array([[0.9, 0.1]]))
    measured = Measured.of([Evaluation(1, {"accuracy": 1.0}, counted), Evaluation(0, {"accuracy": 1.0})], 2)
    assert measured.outcomes == {1: counted}


def test_figures_of_a_sample_say_of_how_many_clients() -> None:
    # Client 1 was asked and has no test rows: the figures are of two clients.
    measured = Measured.of([answer(0, 1, 2.0, 1.0), answer(1, 0, np.nan, np.nan), answer(2, 3, 1.0, 0.5)], 9)
    assert round_figures(measured, sampled=True)["evaluated_clients"] == 2
    assert "evaluated_clients" not in round_figures(measured)


ALL = range(20)


@pytest.mark.parametrize("asked", [None, 20, 21, 1.0])
def test_all_clients_are_no_sample(asked: int | float | None) -> None:
    assert evaluation_sample(asked, 20, 0, 1, range(20)) is None


def test_a_sample_follows_from_seed_and_round_alone() -> None:
    drawn = [
        evaluation_sample(0.25, 20, seed, number, ALL) for seed, number in ((0, 1), (0, 1), (0, 2), (1, 1))
    ]
    assert all(len(set(each.tolist())) == 5 for each in drawn if each is not None)
    first, again, later, other = (None if each is None else each.tolist() for each in drawn)
    assert first == again == sorted(first or ())
    assert first not in (later, other)
    # Every client's turn comes: each is missed 40 times with probability 0.75⁴⁰ = 10⁻⁵.
    later_rounds = np.concatenate(
        [np.asarray(evaluation_sample(5, 20, 0, number, ALL)) for number in range(40)]
    )
    assert set(later_rounds.tolist()) == set(range(20))


def test_as_many_evaluate_as_were_asked_for_where_most_are_offline() -> None:
    online = [2, 3, 5, 11, 19, 20]  # 20 has just come, and is in no cluster yet
    drawn = evaluation_sample(4, 20, 0, 1, online)
    assert drawn is not None
    assert len(set(drawn.tolist())) == 4
    assert set(drawn.tolist()) <= {2, 3, 5, 11, 19}
    # A share is one of all: 0.25 · 20 = 5, and 0.5 · 20 = 10 are more than there are.
    for share in (0.25, 0.5):
        assert np.asarray(evaluation_sample(share, 20, 0, 1, online)).tolist() == [2, 3, 5, 11, 19]
    assert np.asarray(evaluation_sample(4, 20, 0, 1, [])).tolist() == []
    # While all are online it does not matter that they are.


def test_only_the_sampled_clients_that_can_be_reached_are_asked() -> None:
    assume_identity(1)
    model = ArrayRecord({"w": Array(np.zeros(1))})
    clusters = Clusters.of([0, 1, 0, 1, 0], model)
    asked = evaluation_messages(clusters, [0, 1, 2, 4], np.array([1, 2, 3]), ConfigRecord({"round": 1}))
    assert [message.metadata.dst_node_id for message in asked] == [2, 1]  # by cluster; 3 is offline
    # Client 9 has just come, and is in no cluster yet.
    everyone = evaluation_messages(clusters, [0, 1, 2, 4, 9], None, ConfigRecord({"round": 1}))
    assert [message.metadata.dst_node_id for message in everyone] == [0, 2, 4, 1]
