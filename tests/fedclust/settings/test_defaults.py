"""Defaults exist once, in a dataclass; YAML has only what it changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fedclust.clustering import fmcl
from fedclust.settings import CONF, ConfigError, build, compose, with_strategy
from fedclust.settings.defaults import GROUP, defaults_of
from fedclust.training import LocalTraining

# What conf/ composed to when every YAML file still listed every value, training as changes of its default.
# Presets whose rules have changed since are left out.
BEFORE: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "composed_values.json").read_text(encoding="utf-8")
)
ADDED: dict[str, Any] = {"streams": 1}  # to training since, with what every choice has
EXPERIMENT_NEEDS = {"experiment=clust_psi_pfl_serengeti": ["dataset.input_shape=[3]"]}


@pytest.mark.parametrize("choice", BEFORE)
def test_every_choice_has_the_values_it_had(choice: str) -> None:
    config = compose([choice, *EXPERIMENT_NEEDS.get(choice, [])])
    found = OmegaConf.to_container(config, resolve=False)
    assert isinstance(found, dict)
    if choice.startswith(("strategy=", "experiment=")):  # others leave the strategy to the user
        assert found["strategy"].get("parameters") == BEFORE[choice].get("parameters")
    training = BEFORE["training=default"]["training"] | ADDED | BEFORE[choice]["training"]
    assert {**found["training"], "loss": None} == {**training, "loss": None}


def repeated(path: Path) -> list[str]:
    """List the keys to which a file gives the default of the dataclass that it takes defaults from."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    found = []
    for entry in content.get("defaults", []):
        if not isinstance(entry, str) or not entry.startswith(f"/{GROUP}/"):
            continue
        target, _, place = entry.removeprefix(f"/{GROUP}/").partition("@")
        own = content if place == "_here_" else content.get(place, {})
        defaults = defaults_of(target)
        found += [key for key in own if key in defaults and own[key] == defaults[key]]
    return found


def unchanged(path: Path) -> list[str]:
    """List the parameters to which a strategy gives the value that the strategy it starts from has."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    found = []
    for base in content.get("defaults", []):
        if isinstance(base, str) and base in {file.stem for file in path.parent.glob("*.yaml")}:
            before = compose([f"strategy={base}", "dataset=mnist"]).strategy.get("parameters", {})
            own = content.get("parameters", {})
            found += [key for key in own if before.get(key) == own[key]]
    return found


FILES = sorted(CONF.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(CONF).as_posix() for path in FILES])
def test_no_file_repeats_a_default(path: Path) -> None:
    assert repeated(path) == []
    if path.parent.name == "strategy":
        assert unchanged(path) == []


def test_a_repeated_default_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"defaults: [/{GROUP}/fedclust.clustering.fmcl.Parameters@parameters, _self_]\n"
        "parameters: {alpha: 1.0, beta: 3}\n"  # FMCL's alpha is 1, its beta 100
    )
    assert repeated(path) == ["alpha"]


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(CONF).as_posix() for path in FILES])
def test_parameters_come_from_their_dataclass(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    # A file that wrote `_target_` itself would have to repeat every default for overrides to name it.
    assert "_target_" not in (content.get("parameters") or {})


def test_every_argument_is_there_and_what_must_be_given_is_marked() -> None:
    node = defaults_of("fedclust.training.LocalTraining")
    assert node["learning_rate"] == node["batch_size"] == "???"
    assert node["betas"] == [0.9, 0.999]
    assert "loss" not in node  # a function has no place in a configuration
    assert build(defaults_of("fedclust.clustering.fmcl.Parameters")) == fmcl.Parameters()


@pytest.mark.parametrize("target", ["fedclust.none.Such", "fedclust.training.Trainer", "math.sqrt"])
def test_only_a_dataclass_has_defaults(target: str, tmp_path: Path) -> None:
    with pytest.raises((ImportError, TypeError)):
        defaults_of(target)
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "mine.yaml").write_text(f"defaults: [/{GROUP}/{target}@parameters, _self_]\n")
    with pytest.raises(ConfigError, match=target) as error:
        compose(["strategy=mine"], searchpath=[str(tmp_path)])
    assert "\n" not in str(error.value)


def test_a_users_own_file_has_them_too(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text(
        f"defaults: [/{GROUP}/fedclust.training.LocalTraining@_here_, _self_]\n"
        "learning_rate: 0.5\nbatch_size: 4\nepochs: 2\n"
    )
    config = compose(["training=mine", "training.momentum=0.5"], searchpath=[str(tmp_path)])
    assert build(config.training) == LocalTraining(learning_rate=0.5, batch_size=4, epochs=2, momentum=0.5)
    with pytest.raises(ConfigError, match="did you mean 'momentum'"):
        compose(["training=mine", "training.momentom=0.5"], searchpath=[str(tmp_path)])


def test_they_are_no_choices_of_the_run() -> None:
    config = compose(["strategy=fedgwc"])
    assert not any(GROUP in str(group) for group in config.choices)
    assert with_strategy(config, "fmcl_paper").strategy.parameters.max_clusters == 10
