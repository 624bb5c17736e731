"""Who is to blame for a loss that is not finite, going back, and who left, in a run's tables."""

import numpy as np
import pandas as pd
import pytest
from flwr.serverapp.strategy import FedAvgM

from fedclust.federation import Clusters, Federation
from fedclust.federation.run import Round, Run
from fedclust.layers.standard import START_NOT_FINITE, Attendance, Seen, at_fault, blamed, put_back
from fedclust.messages.evaluation import Evaluation
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
