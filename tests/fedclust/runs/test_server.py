"""A run's plan: what strategies, privacy and clients must fit; which rows train; what is said at the end."""

import io
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from rich.console import Console
from torch import nn

from fedclust.grids.client_grid import WrappedGrid
from fedclust.grids.superlink import PromptGrid
from fedclust.messages.codec import Question
from fedclust.personal.layers import NoLayer
from fedclust.privacy import ClientDP, NoPrivacy
from fedclust.results import Progress
from fedclust.runs.server import (
    Plan,
    app,
    check_delta,
    check_network,
    check_strategy,
    federate,
    left_clients,
    make_engine,
)
from fedclust.settings.checks import run_settings
from fedclust.settings.composition import ConfigError, compose
from fedclust.strategies import ClusteredStrategy
from tests.conftest import Outcome


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "batch statistics, 1 is a BatchNorm1d"),
        (nn.Flatten(), "must have a network with parameters to train"),
    ],
)
def test_networks_that_cannot_hold_it(network: nn.Module, said: str) -> None:
    check_network(NoPrivacy(), network)
    with pytest.raises(ValueError, match=said):
        check_network(ClientDP(), network)


def test_shared_parameters_are_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="whose layers share parameters$"):
        check_network(ClientDP(), nn.Sequential(layer, layer))


def test_what_left_is_said_in_words() -> None:
    asked = {kind.kind for kind in Question.__subclasses__() if kind.__module__.startswith("fedclust.")}
    left = left_clients(asked, NoPrivacy())
    # The encoder is asked of sites, which log what they sent.
    assert [kind for kind, what in left.items() if kind == what] == ["query.encoder"]
    assert left["query.predictions"] == "predictions of test rows, in a deployment only their number"
    assert list(left_clients((), NoPrivacy())) == ["query.description", "train", "evaluate"]
    private = left_clients(["mine.query"], ClientDP())
    assert private["query.description"] == "that they take part, with names and known groups"
    assert private["train"].startswith("updates clipped on their node")
    assert private["mine.query"] == "mine.query"


def test_delta_must_be_small_for_so_many_clients() -> None:
    with pytest.raises(ValueError, match=r"^privacy.delta must be below one over .* 0.001, got 0.001$"):
        check_delta(ClientDP(delta=1e-3), 1000)
    check_delta(ClientDP(delta=1e-3), 999)
    check_delta(NoPrivacy(), 10**9)


def test_noise_for_the_mean_over_all_clients_is_not_for_a_sample() -> None:
    with pytest.raises(ValueError, match="evaluate_clients must be null with privacy=client_dp"):
        check_strategy(ClientDP(), "fedavg", ClusteredStrategy(evaluate_clients=5), NoLayer())


def test_every_strategy_has_its_own_rule_who_serves() -> None:
    names = ("fedgmcc", "fedsoft", "known_groups", "local", "fedgwc", "auto", "fmcl")
    plan = _plan("strategy=fedavg", f"compare=[{','.join(names)}]")
    assert [plan.serves(name) for name in names] == ["cluster"] * 5 + ["best", "cluster"]
    plan = _plan("strategy=fedavg", "compare=[local,auto]", "serve=best")
    assert [plan.serves(name) for name in ("local", "auto")] == ["best"] * 2


def _plan(*overrides: str) -> Plan:
    config = compose(list(overrides))
    return Plan.of(config, run_settings(config))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("strategy=ifca", "strategy.parameters.num_clusters=4"),
            "^strategy.parameters.num_clusters must be <= 3, the number of clients, got 4 for ifca$",
        ),
        (("strategy=centralised", "min_clients=2"), "^min_clients must be null with centralised training"),
        (
            ("strategy=fedavg", "compare=[]", "proof=false", "privacy=client_dp", "privacy.delta=0.5"),
            "^privacy.delta must be below one over the number of clients, 0.333, got 0.5$",
        ),
    ],
)
def test_what_three_clients_do_not_allow(asked: tuple[str, ...], said: str) -> None:
    three: Any = SimpleNamespace(num_clients=3)
    with pytest.raises(ConfigError, match=said):
        _plan(*asked).federation(three, nn.functional.cross_entropy)


def test_as_many_clusters_as_clients_are_allowed() -> None:
    three: Any = SimpleNamespace(num_clients=3)
    made = _plan("strategy=ifca", "rounds=7", "strategy.parameters.num_clusters=3").federation(three, "own")
    assert (made.num_clients, made.num_rounds, made.disclosed) == (3, 7, "labels")


class Held:
    """Four clients of 90 rows for training, as many more held out as said, and some for tests."""

    def __init__(self, held_out: int = 10, tests: int = 5) -> None:
        self.all_rows = False
        self._rows = {"num_validation": np.full(4, held_out), "num_test": np.full(4, tests)}

    def describe(self) -> Any:
        return SimpleNamespace(rows=90 + self._rows["num_validation"], **self._rows)

    def train_on_all_rows(self) -> None:
        self.all_rows = True


def _settled(held: Held, *overrides: str, begun: int | None = None) -> bool:
    """Settle the rows of a run, or of one that began with so many held-out rows of each client."""
    saved: Any = None
    if begun is not None:
        roster = SimpleNamespace(described=Held(begun).describe(), joined=[0] * 4)
        saved = SimpleNamespace(roster=roster)
    given: Any = held
    _plan(*overrides).settle_rows(given, nn.Linear(2, 2), saved)
    return held.all_rows


def test_a_handful_of_sites_trains_on_all_rows_unless_something_decides_on_held_out_ones() -> None:
    assert _settled(Held(), "strategy=auto")
    assert not _settled(Held(), "strategy=auto", "drift_every=5")
    assert not _settled(Held(), "strategy=auto", "strategy.parameters.coalitions=none")
    assert not _settled(Held(), "strategy=fedavg")


def test_a_resumed_run_goes_on_with_the_rows_that_it_began_with() -> None:
    assert _settled(Held(), "strategy=auto", begun=0)
    assert not _settled(Held(), "strategy=auto", begun=10)
    with pytest.raises(ConfigError, match=r"^resume must not ask for held-out rows \(auto\)"):
        _settled(Held(), "strategy=auto", "drift_every=5", begun=0)


def test_rows_that_a_run_needs() -> None:
    with pytest.raises(ConfigError, match="^clients must have test rows"):
        _settled(Held(tests=0), "strategy=fedavg")
    with pytest.raises(ConfigError, match="^clients must have validation rows for private_groups to vote on"):
        _settled(Held(0), "strategy=private_groups", "compare=[]", "proof=false")
    with pytest.raises(ConfigError, match="^fedavg: personal=auto must have validation rows"):
        _settled(Held(0), "strategy=fedavg", "compare=[local]", "personal=auto")


def test_rounds_of_compared_strategies_count_by_what_they_train(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sites").mkdir()
    for site in "abc":
        rows = [f"{row % 7},{'ill' if row % 2 else 'well'}" for row in range(40)]
        Path(f"sites/{site}.csv").write_text("\n".join(["age,y", *rows, ""]))
    then: dict[str, float] = {}

    def shown(rounds: int, name: str, *given: Any, **options: Any) -> Progress:
        then[name] = options["then"]
        return Progress(rounds, name, *given, **options)

    monkeypatch.setattr("fedclust.runs.server.Progress", shown)
    few = "dataset=csv", "dataset.label=y", "partition=own", "partition.sites=sites", "rounds=2"
    assert run(
        *few, "compare=[fedavg,ifca]", "output_dir=out", "strategy.parameters.coalitions=all"
    ).code in (0, 3)
    # Four coalitions of three sites have a given one, each trained on all rows and without each of 5 folds:
    # 24 models. IFCA counts as two of FedAvg.
    assert then == pytest.approx({"auto": (2 + 4) / 24**0.5, "fedavg": 4.0, "ifca": 0.0})
    assert run("resume=out", "rounds=3").code in (0, 3)
    assert then == pytest.approx({"auto": (1 + 2) / 24**0.5, "fedavg": 2.0, "ifca": 0.0})


def test_a_superlinks_run_names_its_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answered(PromptGrid):
        send_and_receive = WrappedGrid.send_and_receive  # nodes here answer at once

    monkeypatch.chdir(tmp_path)  # as the SuperLink; who reads the line works elsewhere
    small = ["partition.num_clients=3", "partition.groups=[2,1]", "training.steps=1", "engine.num_nodes=2"]
    config = compose([*small, "strategy=fedavg", "compare=[]", "rounds=1"])
    (tmp_path / "run").mkdir()
    out = io.StringIO()
    federate(config, Answered(make_engine(config)), tmp_path / "run", Console(file=out))
    assert f"all figures: fedclust report {tmp_path / 'run'}" in out.getvalue()


def test_flwr_run_ends_with_one_line_for_a_wrong_override(toy) -> None:
    with pytest.raises(ConfigError, match="^unknown key 'stratgy': did you mean 'strategy'?") as caught:
        app(toy().nodes(1), Context(1, 2, {}, RecordDict(), {"overrides": "stratgy=fedavg"}))
    # Flower prints its traceback, which has nothing of what led to it.
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("unknown key") == 1
    assert "hydra" not in printed
