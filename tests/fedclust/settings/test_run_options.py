"""The options of a run that strategies are given: once, and in their ranges."""

import pytest

from fedclust.settings import ConfigError, build_strategy, compose
from fedclust.settings.run_options import RunOptions
from fedclust.strategies import ClusteredStrategy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"participation": 0.0}, r"participation must be in \(0, 1\], got 0.0"),
        ({"evaluate_every": 0}, "evaluate_every must be >= 1, got 0"),
        ({"drift_every": -1}, "drift_every must be >= 0, got -1"),
        ({"evaluate_clients": 1.5}, "evaluate_clients must be a number of clients"),
        ({"update_norm_cap": 1}, "update_norm_cap must be > 1"),
        ({"update_pull_cap": True}, "update_pull_cap must be > 1"),
    ],
)
def test_ranges(given, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusteredStrategy(**given)


def test_a_value_is_given_once() -> None:
    with pytest.raises(ValueError, match="participation must be given once"):
        ClusteredStrategy(options=RunOptions(), participation=0.5)
    node = compose(["strategy=fedavg", "+strategy.participation=0.1"]).strategy
    with pytest.raises(ConfigError, match=r"strategy.participation must not be given, .* participation="):
        build_strategy(node, RunOptions())
    assert build_strategy(compose(["strategy=fedavg"]).strategy, RunOptions(seed=3)).seed == 3
