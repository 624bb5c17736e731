"""A client that changes its labelling in the middle of a run, as its labels really change."""

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.data.arrays import from_arrays
from fedclust.federation import Clusters, Federation
from fedclust.layers.drift import LEVEL, Drifted, level_of_look, look_for_drift, moved
from fedclust.messages.models import from_state
from fedclust.strategies import FMCL
from fedclust.training import LocalTraining

CENTRES = 3 * np.eye(3)


def _clients(conventions: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three classes that are easy to tell apart; convention c calls class y by the name (y + c) mod 3."""
    found = []
    for client, convention in enumerate(conventions):
        draws = np.random.default_rng(client)
        y = draws.integers(0, 3, 90)
        x = (CENTRES[y] + draws.normal(0, 0.5, (90, 3))).astype(np.float32)
        found.append((x, (y + convention) % 3))
    return found


@pytest.fixture(scope="module")
def drifting() -> dict[str, fedclust.Result]:
    """Runs of six clients in two conventions; after round 5 client 0 names classes as clients 3 to 5 do."""
    results = {}
    for name in ("moves", "stays"):
        data = from_arrays(_clients([0, 0, 0, 1, 1, 1]), seed=1, validation_fraction=0.4)
        mine = np.concatenate([data.train[0], data.validation[0], data.test[0]])

        def change(record, data=data, mine=mine, name=name) -> None:
            if record["round"] == 5 and name != "stays":
                data.labels[mine] = (data.labels[mine] + 1) % 3

        training = LocalTraining(learning_rate=0.5, batch_size=16, epochs=1)
        how = {"rounds": 9, "training": training, "on_round": change}
        results[name] = fedclust.simulate(FMCL(drift_every=3), nn.Linear(3, 3), data, **how)
    return results


def test_a_client_that_changes_its_labelling_is_named_and_moved(drifting) -> None:
    result = drifting["moves"]
    assert result.assignment.tolist() == [1, 0, 0, 1, 1, 1]
    drift = result.rounds.set_index("round")["drift"].dropna()
    # Looks are after rounds 3, 6 and 9; its labels change after round 5.
    assert list(drift.index) == [6]
    (found,) = drift[6]
    assert (found["client"], found["cluster"], found["better"], found["moved"]) == (0, 0, 1, True)
    assert found["p_value"] <= LEVEL / 6  # the second look has level/(2 · 3)
    assert result.saved.changes[-1]["reason"] == "client 0 drifted to cluster 1"


def test_nobody_is_named_where_nothing_changes(drifting) -> None:
    assert "drift" not in drifting["stays"].rounds
    assert drifting["stays"].assignment.tolist() == [0, 0, 0, 1, 1, 1]


def test_one_model_for_all_has_nothing_to_look_for(toy) -> None:
    clusters = Clusters(np.zeros(6, dtype=int), _models(0.0))
    assert look_for_drift(clusters, Federation(toy().grid()), 1) == []


def test_levels_of_all_looks_add_up() -> None:
    # 1/2 + 1/6 + 1/12 = 3/4, and 1 − 1/(n + 1) after n looks.
    assert sum(level_of_look(look, 1.0) for look in (1, 2, 3)) == pytest.approx(0.75)
    assert sum(level_of_look(look, 0.05) for look in range(1, 10_000)) < 0.05


def test_the_toys_differences_are_tested_and_corrected(toy) -> None:
    # Every toy client has differences of 0, 0.1 and 0.2: of three rows nobody wins much, 1.9 at most becomes
    # (1 + 1.9 · 0.1/4)(1 + 1.9 · 0.2/4) = 1.15, so p is above 0.87.
    federation = Federation(toy().grid())
    clusters = Clusters(np.array([0, 0, 0, 1, 1, 1]), _models(0.0, 1.0))
    assert look_for_drift(clusters, federation, 1) == []
    # For each of six clients: corrected 1, never below 2 · level.
    named = look_for_drift(clusters, federation, 1, level=2.0)
    assert [(each.client, each.better, each.p_value) for each in named[:2]] == [(0, 1, 1.0), (1, 1, 1.0)]


def test_of_several_other_clusters_the_one_of_least_loss_is_compared(toy) -> None:
    # The toy's loss is |client − weight|: client 0 of cluster 0 is nearest to 1, client 5 of cluster 2 to 9.
    federation = Federation(toy().grid())
    clusters = Clusters(np.array([0, 0, 1, 1, 2, 2]), _models(9.0, 1.0, 6.0))
    named = look_for_drift(clusters, federation, 1, level=2.0)
    assert {each.client: each.better for each in named} == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 0}


def test_moving_leaves_models_and_memory() -> None:
    clusters = Clusters(np.array([0, 0, 1]), _models(0.0, 1.0), memory="kept", reason="earlier")
    found = moved(clusters, [Drifted(1, 0, 1, 0.5, 0.001)])
    assert found.assignment.tolist() == [0, 1, 1]
    assert found.memory == "kept"
    assert found.reason == "earlier; client 1 drifted to cluster 1"


def _models(*values: float):
    return tuple(from_state({"w": torch.full((2,), value)}) for value in values)
