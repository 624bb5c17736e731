"""Who left and what they measured last, in a run's tables."""

import numpy as np
import pandas as pd

from fedclust.federation import Clusters, Federation
from fedclust.federation.run import Run
from fedclust.layers.standard import Attendance, Seen
from fedclust.results.summary import attended_summary


def _run(toy, num_clients: int) -> Run:
    toys = toy(num_clients=num_clients)
    clusters = Clusters.of(np.zeros(num_clients, dtype=int), toy.model())
    return Run(Federation(toys.grid()), clusters, lambda: None, toy.model(), server_round=4)  # type: ignore[arg-type, return-value]


def test_who_left_is_told_even_if_it_was_never_asked_to_measure(toy) -> None:
    # Client 0 is there; 1 measured 0.5 in round 2 and left; 2 left before a sample had it; 3 is there and was
    # in no sample yet.
    layer, run = Attendance(), _run(toy, 4)
    online, accuracy = np.array([True, False, False, True]), np.array([0.75, 0.5, np.nan, np.nan])
    layer.restore(run, Seen(online, np.array([4, 2, 0, 0]), accuracy))
    columns = layer.columns(run)
    assert columns["left"].tolist() == [False, True, True, False]
    assert attended_summary(pd.DataFrame({"client": range(4), **columns}))["left"] == [
        {"client": 1, "last_round": 2, "last_accuracy": 0.5},
        {"client": 2, "last_round": 0, "last_accuracy": None},
    ]


def test_nobody_left_and_nobody_joined(toy) -> None:
    layer, run = Attendance(), _run(toy, 2)
    layer.begin(run)
    assert layer.columns(run) == {}
