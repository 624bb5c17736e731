"""Runs that stop early, and serve their best round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.data.arrays import from_arrays
from fedclust.federation import FederationError
from fedclust.settings.composition import ConfigError, compose
from fedclust.settings.run_options import RunSettings
from fedclust.strategies import ClusteredStrategy, PrivateGroups
from fedclust.training import LocalTraining

SPOILT = 3  # the round after which training labels are wrong, so that held-out rows are predicted worse


class Killed(Exception):
    """Ends a run in the middle."""


def _run(rounds: int, kill=0, done=0, data: Any = None, strategy: Any = None, **options: Any) -> Any:
    rows = [np.random.default_rng(client).normal(size=(90, 2)).astype(np.float32) for client in range(4)]
    data = data or from_arrays([(x, (x[:, 0] > 0).astype(int)) for x in rows], validation_fraction=0.3)
    trained, truth = np.concatenate(data.train), data.labels.clone()

    def spoil(record: dict[str, Any]) -> None:
        if kill and record["round"] == kill:
            raise Killed
        data.labels[trained] = 1 - truth[trained] if record["round"] >= SPOILT else truth[trained]

    spoil({"round": done})
    folder = {key: options.pop(key) for key in ("folder", "resume", "checkpoint_every") if key in options}
    training = LocalTraining(learning_rate=0.3, batch_size=16, epochs=1)
    given = strategy or ClusteredStrategy(participation=0.5, **options)
    torch.manual_seed(0)
    return fedclust.simulate(
        given, nn.Linear(2, 2), data, rounds=rounds, training=training, on_round=spoil, **folder
    )


def _weights(result: fedclust.Result) -> list[float]:
    return result.model_of(0).weight.detach().ravel().tolist()


def test_a_run_stops_when_rounds_get_no_better_and_serves_the_best(tmp_path: Path) -> None:
    watched = {"patience": 2, "serve_round": "best", "checkpoint_every": 1}
    stopped = _run(9, folder=tmp_path / "whole", **watched)
    summary = stopped.summary
    # Rounds 1 to 3 learn the labels, 4 and 5 unlearn them.
    assert [summary[key] for key in ("rounds", "best_round", "stopped_early")] == [5, 3, True]
    assert len(stopped.rounds) == 5
    assert summary["mean_client_accuracy"] > 0.8
    assert _weights(stopped) == _weights(_run(3))
    assert _weights(_run(9, patience=2)) == _weights(_run(5))  # the last round's serve
    kept = _run(5, serve_round="best").summary
    assert [kept[key] for key in ("rounds", "best_round", "stopped_early")] == [5, 3, False]
    with pytest.raises(Killed):
        _run(9, kill=5, folder=tmp_path / "killed", **watched)
    resumed = _run(9, folder=tmp_path / "killed", done=4, resume=True, **watched)
    assert (resumed.summary["best_round"], _weights(resumed)) == (3, _weights(stopped))
    again = _run(9, folder=tmp_path / "whole", resume=True, **watched)  # a stopped run stays so
    assert (len(again.rounds), _weights(again)) == (5, _weights(stopped))


def test_nothing_to_compare_on_is_refused_before_round_1() -> None:
    with pytest.raises(FederationError, match="must have clients with held-out rows, none has"):
        _run(3, data=from_arrays([(np.eye(2, dtype=np.float32), [0, 1])] * 2), patience=1)
    with pytest.raises(ValueError, match=r"stop.patience must be >= 1 or None, got 0"):
        ClusteredStrategy(patience=0)
    with pytest.raises(ValueError, match="stop must be none with privategroups, which does something"):
        _run(3, strategy=PrivateGroups(patience=2, network=nn.Linear(2, 2)))


def test_rows_are_held_out_for_it_on_the_command_line() -> None:
    config = compose(["strategy=fedavg", "compare=[]", "stop=patience"])
    assert (config.stop.patience, config.partition.validation_fraction) == (10, 0.1)
    from fedclust.settings.checks import check, run_settings

    assert isinstance(settings := run_settings(config), RunSettings)
    assert (settings.patience, settings.serve_round) == (10, "last")
    without = compose(["strategy=fedavg", "serve_round=best", "partition.validation_fraction=0"])
    with pytest.raises(ConfigError, match="must be > 0 for serve_round=best, which compares on held-out"):
        check(without)
