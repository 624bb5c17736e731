from dataclasses import MISSING, fields

import pytest

from fedclust.settings.composition import compose
from fedclust.settings.run_options import RunOptions, RunSettings, parse_interval


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
    for name in given.keys() & config.keys() - {"participation", "proof"}:
        assert config[name] == given[name], name
