import sys
from pathlib import Path

import pytest

from fedclust.settings.allowed import node_settings
from fedclust.settings.checks import check, check_built, run_settings
from fedclust.settings.composition import (
    ConfigError,
    build_strategy,
    compose,
    options,
    to_run_config,
    with_strategy,
)
from fedclust.settings.run_options import RunOptions
from fedclust.strategies import ClusteredStrategy

FRACTION = "partition.validation_fraction"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("rounds=0", "rounds must be >= 1, got 0"),
        ("rounds=1.5", "rounds must be a whole number, got 1.5"),
        ("rounds=1e1", "rounds must be a whole number, got 10.0"),
        ("seed=-1", "seed must be >= 0, got -1"),
        ("rounds=??? wait=???", "^rounds, wait must be given$"),
        ("rounds=null", "rounds must be a whole number, got null"),
        ("participation=null", "participation must be a number, got null"),
        ("participation=0", r"participation must be in \(0, 1\], got 0"),
        ("participation=1.1", r"participation must be in \(0, 1\], got 1.1"),
        ("evaluate_every=0", "evaluate_every must be >= 1"),
        ("evaluate_clients=1.5", "evaluate_clients must be a whole number >= 1 or a share"),
        ("drift_every=-1", "drift_every must be >= 0, got -1"),
        ("update_norm_cap=1", "update_norm_cap must be > 1"),
        ("update_pull_cap=true", "update_pull_cap must be a number or null, got true"),
        ("checkpoint_every=-1", "checkpoint_every must be rounds >= 0, or a time"),
        ("keep_matrices=yes", "keep_matrices must be true or false or auto, got 'yes'"),
        ("save_predictions=1", "save_predictions must be true or false, got 1"),
        ("min_clients=0", "min_clients must be >= 1 or null, got 0"),
        ("min_clients=31", "min_clients must be <= partition.num_clients=30, got 31"),
        ("timeout=0", "timeout must be > 0"),
        ("hosts=/none task=partition", "hosts must be null with task=partition, which asks no node, got"),
        ("task=think", "task must be train or inspect or partition, got 'think'"),
        ("proof=yes", "proof must be true, false or auto, got 'yes'$"),
        ("serve=all", "serve must be one of cluster, best, auto, got 'all'$"),
        (f"{FRACTION}=1", rf"{FRACTION} must be in \[0, 1\), got 1$"),
        (f"{FRACTION}=0", f"{FRACTION} must be > 0 for strategy=auto, which tests groups on held-out rows"),
        (f"strategy=fmcl serve=best {FRACTION}=0", f"{FRACTION} must be > 0 for serve=best, which chooses"),
        (f"strategy=fmcl personal=auto {FRACTION}=0", f"{FRACTION} must be > 0 for personal=auto, which ch"),
        ("strategy=fmcl serve=best proof=false", "serve=best must have proof=true"),
        ("strategy=auto proof=false", "strategy=auto must have proof=true: it tests groups on held-out"),
        ("serve=best compare=[fmcl]", r"serve=best must have compare=\[fedavg\]"),
        (
            "features=encoder encoder=random partition=own dataset=csv",
            "features must be inputs with tables and partition=own, got encoder",
        ),
        ("features=encoder", "encoder must be other than pixels with features=encoder, such as eff"),
        (
            "features=encoder encoder=random training.augmentation=crop_flip",
            "training.augmentation must be none with features=encoder: rows are encoded once, bef",
        ),
        (
            "compare=[fedabg]",
            r"compare must name strategies, of .*fedavg.*, got 'fedabg' \(did you mean 'fed",
        ),
    ],
)
def test_what_cannot_be(overrides: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        check(compose(overrides.split()))


@pytest.mark.parametrize(
    ("text", "names"),
    [("fedavg", ("fedavg",)), ("[fmcl,fedavg]", ("fmcl", "fedavg")), ("[]", ()), ("null", ())],
)
def test_what_to_compare_with(text: str, names: tuple[str, ...]) -> None:
    assert run_settings(compose([f"compare={text}"])).compare == names


def test_a_strategy_is_given_in_their_ranges_what_the_run_tells_it() -> None:
    with pytest.raises(ValueError, match=r"participation must be in \(0, 1\], got 0.0"):
        ClusteredStrategy(participation=0.0)
    with pytest.raises(ValueError, match="participation must be given once"):
        ClusteredStrategy(options=RunOptions(), participation=0.5)
    assert build_strategy(compose(["strategy=fedavg"]).strategy, RunOptions(seed=3)).seed == 3


def test_a_value_is_given_once(tmp_path: Path) -> None:
    said = r"^strategy.participation must not be given, it belongs to the run: participation=0.1$"
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "mine.yaml").write_text("defaults: [fedavg, _self_]\nparticipation: 0.1\n")
    for overrides in ("strategy=fedavg +strategy.participation=0.1", "strategy=mine", "compare=[mine]"):
        config = compose(overrides.split(), searchpath=[str(tmp_path)])
        with pytest.raises(ConfigError, match=said):
            check(config)
    with pytest.raises(ConfigError, match=said):
        build_strategy(compose(["strategy=mine"], searchpath=[str(tmp_path)]).strategy, RunOptions())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("+aggregator.no_such=1", "no_such"),
        ("model._target_=none.such", "none"),
        ("dataset=csv dataset.path=x.csv dataset.num_classes=???", "dataset.num_classes must be given"),
    ],
)
def test_what_a_server_builds(overrides: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_built(compose(overrides.split()))


@pytest.mark.parametrize("name", options("strategy"))
def test_a_server_builds_any_strategy_before_sites_have_said_how_large_their_rows_are(name: str) -> None:
    own = [f"strategy={name}", "compare=[]", "dataset=csv", "dataset.label=y", "partition=own"]
    check_built(compose(own))
    if name == "ifca":
        check_built(compose([*own, "~strategy.parameters"]))
        with pytest.raises(ConfigError, match="num_clusters must be >= 1 or null, got 0"):
            check_built(compose([*own, "strategy.parameters.num_clusters=0"]))


@pytest.mark.parametrize(
    ("overrides", "proof", "fraction"),
    [
        ("strategy=auto", True, 0.1),
        ("compare=[]", True, 0.1),
        (f"{FRACTION}=0.25", True, 0.25),
        ("strategy=auto experiment=fedgwc_cifar100", True, 0.1),  # it needs them
        # A method by its name trains on all its rows; its verdict is measured on test rows.
        ("strategy=fmcl", True, 0.0),
        ("strategy=fedgwc_released", True, 0.0),
        ("strategy=fedgwc compare=[]", False, 0.0),
        ("strategy=fedgwc compare=[fmcl] proof=true", True, 0.0),
        ("strategy=fmcl privacy.label_counts=false", False, 0.0),
        ("experiment=fedgwc_cifar100", False, 0.0),
        (f"strategy=fmcl {FRACTION}=0.25", True, 0.25),
        # … unless something decides on them.
        ("strategy=fedgwc compare=[fedavg,auto]", True, 0.1),
        ("strategy=fedgwc compare=[fedavg,private_groups]", True, 0.1),
        ("strategy=fedgwc serve=best", True, 0.1),
        ("strategy=fedgwc drift_every=5", True, 0.1),
        ("strategy=fedgwc personal=auto", True, 0.1),
        ("strategy=fedgwc personal=finetune proof=false", False, 0.0),
    ],
)
def test_what_auto_stands_for(overrides: str, proof: bool, fraction: float) -> None:
    config = compose(overrides.split())
    assert run_settings(config).proof is proof
    assert config.partition.validation_fraction == fraction
    assert node_settings(to_run_config(config))["partition"]["validation_fraction"] == fraction


OWN = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Parameters:
    held_out_rows: ClassVar[str] = "looks"
"""


def test_a_users_own_strategy_holds_out_rows_if_its_parameters_say_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "looking.yaml").write_text(
        "defaults: [/defaults_of/looking.Parameters@parameters, _self_]\n_target_: looking.Looking\n"
    )
    (tmp_path / "looking.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for overrides in (["strategy=looking"], ["strategy=fmcl", "compare=[looking]"]):
        found = compose(overrides, searchpath=[str(tmp_path)]).partition.validation_fraction
        assert found == 0.1, overrides
    without = compose(["strategy=looking", f"{FRACTION}=0"], searchpath=[str(tmp_path)])
    with pytest.raises(ConfigError, match=f"{FRACTION} must be > 0 for strategy=looking, which looks on"):
        check(without)


def test_composing_imports_nothing_that_an_override_names(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "unwanted.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(["strategy=fedavg", "+strategy.parameters={_target_: unwanted.Parameters}"])
    assert config.partition.validation_fraction == 0
    assert "unwanted" not in sys.modules


def test_compared_strategies_have_the_same_rows() -> None:
    assert with_strategy(compose([]), "fedgwc").partition.validation_fraction == 0.1
    assert with_strategy(compose(["strategy=fedgwc"]), "fmcl").partition.validation_fraction == 0.0
