from dataclasses import MISSING, fields

import pytest

from fedclust.settings.composition import compose
from fedclust.settings.run_options import DEFAULT_ROW_CAP, RunOptions, RunSettings, parse_interval
from fedclust.strategies import Auto, ClusteredStrategy


@pytest.mark.parametrize(
    ("every", "read"),
    [(0, (0, 0.0)), (5, (5, 0.0)), ("30s", (0, 30.0)), ("1min", (0, 60.0)), ("1.5 h", (0, 5400.0))],
)
def test_intervals(every, read) -> None:
    assert parse_interval(every) == read


@pytest.mark.parametrize("every", [-1, True, "soon", "0s", "5", 1.5])
def test_what_is_no_interval(every) -> None:
    with pytest.raises(ValueError, match="checkpoint_every must be rounds >= 0, or a time"):
        parse_interval(every)


def test_a_runs_settings_become_every_strategys_options() -> None:
    given = {"participation": 0.5, "seed": 3, "drift_every": 2, "row_cap": None, "evaluate_clients": 4}
    run = {"task": "train", "rounds": 5, "checkpoint_every": 0, "compare": (), "wait": 1.0, "timeout": 2.0}
    selection = object()
    options = RunSettings(**run, **given).options(list, selection)
    assert options == RunOptions(**given, aggregator=list, selection=selection)


@pytest.mark.parametrize(
    ("given", "compares"),
    [({}, False), ({"patience": 3}, True), ({"serve_round": "best"}, True), ({"drift_every": 1}, False)],
)
def test_who_compares_rounds(given: dict, compares: bool) -> None:
    assert RunOptions(**given).compares_rounds is compares


def test_what_the_code_takes_for_granted_is_the_configurations_default() -> None:
    config = compose([])
    given = {each.name: each.default for each in fields(RunSettings) if each.default is not MISSING}
    for name in given.keys() & config.keys() - {"participation", "proof", "row_cap"}:
        assert config[name] == given[name], name
    # Caps are ours: a method by its name weights as its paper does.
    assert (config.row_cap, Auto().options.row_cap) == (DEFAULT_ROW_CAP,) * 2
    assert (
        compose(["strategy=fedavg"]).row_cap
        is given["row_cap"]
        is ClusteredStrategy().options.row_cap
        is None
    )
    assert compose(["strategy=fmcl", "row_cap=4"]).row_cap == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"timeout": 0.0}, "timeout must be > 0, got 0.0"),
        ({"wait": -1.0}, "wait must be > 0"),
        ({"max_outage": -1.0}, "max_outage must be >= 0"),
        ({"min_replies": 1.1}, r"min_replies must be in \[0, 1\]"),
        ({"min_clients": 0}, "min_clients must be >= 1 or None"),
        ({"holdout_clients": 1.5}, "holdout_clients must be a share in"),
        ({"keep_matrices": "never"}, "keep_matrices must be True or False or auto"),
        ({"checkpoint_every": "soon"}, "checkpoint_every must be rounds"),
        ({"task": "advise"}, "task must be one of train, inspect, partition"),
        ({"participation": 0.0}, r"participation must be in \(0, 1\]"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"evaluate_every": 0}, "evaluate_every must be >= 1"),
        ({"evaluate_clients": 1.5}, "evaluate_clients must be a whole number >= 1 or a share in"),
        ({"update_norm_cap": 1.0}, "update_norm_cap must be > 1 and finite or None"),
        ({"update_pull_cap": 1.0}, "update_pull_cap must be > 1"),
        ({"row_cap": float("inf")}, "row_cap must be > 1 and finite or None"),
        ({"drift_every": -1}, "drift_every must be >= 0"),
        # Rounds 7, 14 and 21 have evaluations: 3 would mean every 21 rounds.
        ({"drift_every": 3, "evaluate_every": 7}, "drift_every must be a multiple of evaluate_every"),
        ({"patience": 0}, "stop.patience must be >= 1 or None"),
        ({"serve_round": "first"}, "serve_round must be one of best, last"),
    ],
)
def test_a_setting_outside_its_range_is_named(given: dict, message: str) -> None:
    run = {"task": "train", "rounds": 5, "checkpoint_every": 0, "compare": (), "wait": 1.0, "timeout": 2.0}
    RunSettings(**run)
    with pytest.raises(ValueError, match=message):
        RunSettings(**(run | given))
