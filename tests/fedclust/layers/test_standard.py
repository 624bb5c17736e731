"""Who is to blame for a loss that is not finite, going back, and who left, in a run's tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.serverapp.strategy import FedAvg, FedAvgM

from fedclust.federation import Clusters, Federation
from fedclust.federation.run import Round, Run
from fedclust.layers.standard import (
    START_LOST,
    START_NOT_FINITE,
    Attendance,
    Seen,
    UpdateBounds,
    at_fault,
    blamed,
    put_back,
    within,
)
from fedclust.messages.evaluation import Evaluation
from fedclust.messages.models import from_state
from fedclust.messages.replies import Caps, Reply
from fedclust.results.summary import attended_summary


@pytest.mark.parametrize(("odd", "faulty"), [(2, False), (3, True)])
def test_a_model_is_to_blame_if_more_than_half_of_its_clients_say_so(odd: int, faulty: bool) -> None:
    # Four clients have a test row in cluster 1, two of which are just half; client 9 of cluster 0 is fine.
    assignment = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    reason = f"client 0, round 3: {START_NOT_FINITE}"
    failures = [{"client": client, "phase": "train", "reason": reason} for client in range(odd)]
    assert at_fault(failures, {client: int(assignment[client]) for client in (0, 1, 2, 3, 9)}) == [1] * faulty
    losses = dict.fromkeys(range(odd), float("inf")) | dict.fromkeys([*range(odd, 4), 9], 1.0)
    measured = [Evaluation(client, {"num-examples": 1, "loss": loss}) for client, loss in losses.items()]
    measured.append(Evaluation(4, {"num-examples": 0, "loss": float("nan")}))
    kept, failed, broken = blamed(measured, 3, assignment, sampled=False)
    assert broken == [1] * faulty
    assert sorted(each.client for each in kept) == ([9] if faulty else [2, 3, 4, 9])
    assert [each["client"] for each in failed] == ([] if faulty else [0, 1])


@pytest.mark.parametrize(("sizes", "sampled", "broken"), [(2, True, []), (1, True, [0]), (2, False, [0])])
def test_one_client_of_a_sample_does_not_decide_for_others(sizes: int, sampled: bool, broken: list) -> None:
    measured = [Evaluation(0, {"num-examples": 5, "loss": float("nan")})]
    assert blamed(measured, 1, np.zeros(sizes, dtype=int), sampled)[2] == broken


def test_two_clients_of_a_sample_decide_for_three() -> None:
    measured = [Evaluation(client, {"num-examples": 5, "loss": float("nan")}) for client in (0, 1)]
    assert blamed(measured, 1, np.zeros(3, dtype=int), True)[2] == [0]


def test_an_update_many_times_as_long_as_the_median_is_left_out_and_named() -> None:
    start, *models = (from_state({"w": torch.tensor([length])}) for length in (0.0, 1.0, 1.0, 1.0, 50.0))
    replies = [Reply(k, 0, start, model, 5, 0.5, np.zeros(1)) for k, model in enumerate(models)]
    left, (failure,) = within(replies, 7, Caps(norm=10.0))  # the median is 1
    assert [reply.client for reply in left] == [0, 1, 2]
    assert (
        failure["reason"]
        == "client 3, round 7: update must be at most 10 times as long as the median of 1, got length 50"
    )
    # From a model of length 500, a tenth of which it changes, the same length is not too long.
    start, *models = (from_state({"w": torch.tensor([500 + x])}) for x in (0.0, 1.0, 1.0, 1.0, 50.0))
    replies = [Reply(k, 0, start, model, 5, 0.5, np.zeros(1)) for k, model in enumerate(models)]
    assert within(replies, 7, Caps(norm=10.0)) == (replies, [])


def test_rows_count_up_to_a_multiple_of_the_median_clients() -> None:
    start = from_state({"w": torch.tensor([0.0])})
    replies = [Reply(k, 0, start, start, claimed, 0.5, np.zeros(1)) for k, claimed in enumerate((4, 12, 500))]
    # The median of 4, 12 and 12 … 500 rows is 12, so at most 36 count; who pools rows may say more.
    left, failures = within(replies, 1, Caps(rows=3.0), np.array([4, 12, 500]))
    assert ([reply.num_examples for reply in left], failures) == ([4, 12, 36], [])
    pooled = [Reply(0, 0, start, start, 900, 0.5, np.zeros(1), pooled=3)]
    assert within(pooled, 1, Caps(rows=3.0), np.array([36, 12, 500]))[0][0].num_examples == 900


def test_a_lost_clusters_replies_are_not_averaged_and_others_are(toy) -> None:
    bounds, run = UpdateBounds(), _run(toy, 4)
    run.now = Round(5, Clusters(np.array([0, 0, 1, 1]), (toy.model(), toy.model())))
    now = _round(6, run, failed=2)
    start = from_state({"w": torch.tensor([0.0])})
    replies = [
        Reply(k, cluster, start, start, 5, 0.5, np.zeros(1)) for k, cluster in ((1, 0), (2, 1), (3, 1))
    ]
    now = replace(now, replies=replies, cohort={0: 0, 1: 0, 2: 1, 3: 1})
    for _ in range(2):  # there is nothing to go back to in the first round
        screened = bounds.screen(run, bounds.instruct(run, now))
    assert [reply.client for reply in screened.replies] == [2, 3]
    assert screened.unusable == {0: START_LOST}


def _round(number: int, run: Run, failed: int = 0) -> Round:
    """A round of four clients, so many of which find an infinite loss of the model that they were sent."""
    clusters = run.clusters
    reasons = [f"client {client}, round {number}: {START_NOT_FINITE}" for client in range(failed)]
    failures = [{"client": k, "phase": "train", "reason": reason} for k, reason in enumerate(reasons)]
    return Round(number, clusters, clusters, cohort=dict.fromkeys(range(4), 0), failures=failures)


@pytest.mark.parametrize(("failed", "blames", "back"), [(2, True, False), (3, True, True), (3, False, False)])
def test_a_model_that_most_cannot_train_goes_back_to_the_one_before_it(
    toy, failed: int, blames: bool, back: bool
) -> None:
    bounds, run = UpdateBounds(blames=blames), _run(toy, 4)
    first, second = (
        Clusters(np.zeros(4, dtype=int), (toy.model(),), aggregators=(FedAvg(),)) for _ in range(2)
    )
    for number, clusters in ((5, first), (6, second)):
        run.now = Round(number, clusters)
        now = bounds.screen(run, bounds.instruct(run, _round(number, run, failed if number == 6 else 0)))
        assert now.unusable == ({0: START_LOST} if back and number == 6 else {})
        now = bounds.take_back(now)
    assert now.clusters.models[0] is (first if back else second).models[0]
    entry = {"cluster": 0, "clients": 4, "reason": START_LOST, "in_a_row": 1}
    assert now.record.get("went_back") == ([entry] if back else None)
    assert len(now.failures) == (0 if back else failed)  # nobody is blamed for what a model did


def test_parts_of_a_cluster_that_go_back_share_its_model_and_not_its_aggregator(toy) -> None:
    # Clients 0 to 3 were in cluster 0, client 4 in cluster 1; then 0 was cut in 0 and 2, and 5 joined alone.
    models, momentum = [toy.model() for _ in range(6)], [FedAvgM(server_momentum=0.5) for _ in range(2)]
    momentum[0].momentum_vector = [np.ones(2)]
    earlier = Clusters(np.array([0, 0, 0, 0, 1]), tuple(models[:2]), aggregators=tuple(momentum))
    now = tuple(FedAvgM() for _ in range(4))
    clusters = Clusters(np.array([0, 0, 2, 2, 1, 3]), tuple(models[2:]), aggregators=now)
    found = put_back(clusters, earlier, [0, 2, 3])
    assert [*map(id, found.models)] == [*map(id, (models[0], models[3], models[0], models[5]))]
    assert found.aggregators[1::2] == now[1::2]
    first, second = found.aggregators[0], found.aggregators[2]
    assert len({id(first.momentum_vector), id(second.momentum_vector), id(momentum[0].momentum_vector)}) == 3
    assert [each.momentum_vector[0].tolist() for each in (first, second)] == [[1.0, 1.0]] * 2


def test_a_cluster_of_clients_that_just_joined_goes_back_to_its_own_model(toy) -> None:
    models = [toy.model() for _ in range(4)]
    earlier = Clusters(np.array([0, 0]), tuple(models[:2]), aggregators=(FedAvg(), FedAvg()))
    clusters = Clusters(np.array([0, 0, 1]), tuple(models[2:]), aggregators=(FedAvg(), FedAvg()))
    assert put_back(clusters, earlier, [1]).models == (models[2], models[1])


def _run(toy, num_clients: int) -> Run:
    toys = toy(num_clients=num_clients)
    clusters = Clusters.of(np.zeros(num_clients, dtype=int), toy.model())
    return Run(Federation(toys.grid()), lambda: None, toy.model(), Round(4, clusters), server_round=4)  # type: ignore[arg-type, return-value]


def test_who_left_is_told_even_if_it_was_never_asked_to_measure(toy) -> None:
    # Client 0 is there; 1 measured 0.5 in round 2 and left; 2 left before a sample had it; 3 is there and was
    # in no sample yet.
    layer, run = Attendance(), _run(toy, 4)
    online, accuracy = np.array([True, False, False, True]), np.array([0.75, 0.5, np.nan, np.nan])
    layer.begin(run, Seen(online, np.array([4, 2, 0, 0]), accuracy))
    columns = layer.findings(run).clients
    assert columns["left"].tolist() == [False, True, True, False]
    assert attended_summary(pd.DataFrame({"client": range(4), **columns}))["left"] == [
        {"client": 1, "last_round": 2, "last_accuracy": 0.5},
        {"client": 2, "last_round": 0, "last_accuracy": None},
    ]


def test_nobody_left_and_nobody_joined(toy) -> None:
    layer, run = Attendance(), _run(toy, 2)
    layer.begin(run, None)
    assert layer.findings(run).clients == {}


def test_who_leaves_and_comes_back_is_in_the_record(toy) -> None:
    layer, run = Attendance(), _run(toy, 3)
    layer.begin(run, None)
    clusters = run.clusters
    for number, online, record in ((5, {0, 1}, {"left": [2]}), (6, {0, 2}, {"left": [1], "back": [2]})):
        right = [Evaluation(client, {"accuracy": client / 4}) for client in sorted(online)]
        assert layer.after_evaluation(
            run, Round(number, clusters, online=online, evaluations=right)
        ).record == (record)
    unchanged = Round(7, clusters)
    assert layer.after_evaluation(run, unchanged) is unchanged  # in a round without an evaluation
    seen = layer.state(run)
    assert (seen.online.tolist(), seen.last_round.tolist()) == ([True, False, True], [6, 5, 6])
    assert seen.last_accuracy.tolist() == [0.0, 0.25, 0.5]
