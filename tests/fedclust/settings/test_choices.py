"""The dataclasses of choices: defaults exist once; types and rules are checked without PyTorch."""

import json
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

from fedclust.clustering import fmcl
from fedclust.settings.choices import GROUP, arguments_of, defaults_of, wrong_option
from fedclust.settings.composition import CONF, ConfigError, build, compose, with_strategy
from fedclust.training import LocalTraining


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
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    # A file that wrote `_target_` itself would have to repeat every default for overrides to name it.
    assert "_target_" not in (content.get("parameters") or {})


def test_every_argument_is_there_and_what_must_be_given_is_marked() -> None:
    node = defaults_of("fedclust.training.LocalTraining")
    assert node["learning_rate"] == node["batch_size"] == "???"
    assert node["betas"] == [0.9, 0.999]
    assert "loss" not in node  # a function has no place in a configuration
    assert build(defaults_of("fedclust.clustering.fmcl.Parameters")) == fmcl.Parameters()


@pytest.mark.parametrize("target", ["fedclust.none.Such", "fedclust.training.trainer.Trainer", "math.sqrt"])
def test_only_a_dataclass_has_defaults(target: str, tmp_path: Path) -> None:
    with pytest.raises((ImportError, AttributeError, TypeError)):
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
    assert with_strategy(config, "fmcl").strategy.parameters.max_clusters == 10


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        # types
        ("partition=dirichlet partition.alpha=abc", "a number, got 'abc'"),
        ("partition=dirichlet partition.num_clients=2.5", "a whole number, got 2.5"),
        ("partition=dirichlet partition.num_clients=true", "a whole number, got True"),
        ("partition.groups=[1,x]", "a list, each entry a whole number, got [1, 'x']"),
        ("partition.groups=3", "a list, each entry a whole number, got 3"),
        ("training.optimizer=fast", "sgd or adam, got 'fast'"),
        ("strategy=fedgwc strategy.parameters.kernel_width=wide", "a number, got 'wide'"),
        ("aggregator=fedavgm aggregator.server_momentum=x", "a number"),
        ("dataset.path=3", "a text or null, got 3"),
        ("strategy=clust_psi_pfl strategy.cohorts=x", "share or released, got 'x'"),
        # rules
        ("training.learning_rate=-1", "> 0 and finite, got -1"),
        ("strategy=ifca strategy.parameters.num_clusters=0", ">= 1"),
        ("privacy=client_dp privacy.clip=0", "> 0 and finite, got 0"),
        ("loss=weighted_cross_entropy loss.class_weights=[0]", "balanced or numbers > 0 and finite"),
        ("model.hidden=[0]", "numbers >= 1, got [0]"),
        ("selection=poc selection.candidates=0", "a whole number >= 1 or None, got 0"),
        ("engine=ray engine.num_cpus=-1", "> 0, got -1"),
        ("engine.num_nodes=0", ">= 1, got 0"),
        ("aggregator=fedyogi aggregator.eta=-1", "> 0 and finite, got -1"),
        ("aggregator=multikrum aggregator.num_malicious_nodes=-1", ">= 0"),
        ("model=resnet18 model.stem=small", "imagenet or cifar, got 'small'"),
        ("encoder=random encoder.dimension=3", ">= 4, got 3"),
        ("partition=dirichlet partition.alpha=-1", "> 0 and finite, got -1"),
        ("partition@partition.base=iid partition.base.num_clients=0", ">= 1"),
    ],
)
def test_key_rule_and_value(overrides: str, rule: str) -> None:
    key = overrides.split()[-1].partition("=")[0]
    assert str(wrong_option(compose(overrides.split()))).startswith(f"{key} must be {rule}")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("training.epochs=2", "exactly one of epochs and steps must be given, got epochs 2"),
        ("partition.num_clients=9", "partition.groups must be >= 1 each and add up to num_clients, 9"),
        ("+strategy.no_such=1", "unknown key 'strategy.no_such': strategy has parameters, selection"),
        ("strategy=fedgmcc +strategy.no_such=1", "unknown key 'strategy.no_such': strategy has device, "),
        ("+model.no_such=1", "unknown key 'model.no_such': model has hidden, input_shape, num_classes"),
        ("+engine.no_such=1", "unknown key 'engine.no_such': engine has num_nodes"),
        ("+aggregator.no_such=1", "unknown key 'aggregator.no_such': aggregator has arrayrecord_key, "),
        ("+training.no_such=1", "unknown key 'training.no_such': training has adam_epsilon, "),
    ],
)
def test_options_that_do_not_go_together(overrides: str, said: str) -> None:
    assert str(wrong_option(compose(overrides.split()))).startswith(said)


class Base:
    def __init__(self, *, options: object = None, size: int = 1) -> None:
        """Take no further arguments."""


class Derived(Base):
    def __init__(self, size: Annotated[int, ">= 1"], *, rate: "float" = 0.5, **rest: Any) -> None:
        super().__init__(**rest)


class Open:
    def __init__(self, size: int, **rest: Any) -> None:
        """Take any further arguments."""


@pytest.mark.parametrize(
    ("target", "arguments", "closed"),
    [
        (Derived, {"size": Annotated[int, ">= 1"], "rate": float, "options": object}, True),
        (Open, {"size": int}, False),
        (fmcl.assign, fmcl.assign.__annotations__.keys() - {"return"}, True),
        (sum, {"start": None}, True),
        (max, {}, False),  # Python knows no signature of it
    ],
)
def test_the_arguments_of_a_class_are_its_own_and_those_it_hands_on(target, arguments, closed) -> None:
    found, all_of_them = arguments_of(target)
    assert (found if isinstance(arguments, dict) else found.keys()) == arguments
    assert all_of_them == closed


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "+partition.own=x",  # the constructor refuses unknown arguments
        "partition=dirichlet partition.alpha=1",  # a whole number is a number
        "partition=dirichlet partition.alpha=-1 partition.file=rows.parquet",  # then nothing is drawn
        "training.epochs=2 training.steps=null",
        "dataset=csv dataset.path=x.csv",  # what is missing has no type yet
        "dataset=text dataset.path=none.csv model=embedding_dense",  # counts classes in the data
        "strategy=fedgmcc",  # its network is the model's node, which is checked there
        "aggregator._target_=none.such",  # said where it is built
        "dataset=csv dataset.label=a partition=own partition.sites=[north,south]",
        "dataset=csv dataset.label=a partition=own partition.sites={north:a.csv}",
        "dataset=csv dataset.label=a partition=own partition.sites=folder",
    ],
)
def test_what_is_allowed(overrides: str) -> None:
    assert wrong_option(compose(overrides.split())) is None


SCRIPT = """
import json, sys
from fedclust.settings.composition import compose
from fedclust.settings.choices import wrong_option

configs = [compose(overrides) for overrides in json.loads(sys.argv[1])]
assert not any(wrong_option(config, light=True) for config in configs)
loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
told = {" ".join(config.overrides): wrong_option(config) for config in configs}
print(json.dumps([told, loaded]))
"""


def test_no_choice_is_refused_by_mistake_or_needs_a_large_library() -> None:
    # Not every network is for every dataset; tests/fedclust/models tries each.
    left_out = ("encoder", "experiment", "model", "tracker")
    groups = [path for path in CONF.iterdir() if path.is_dir() and path.name not in left_out]
    choices = [[f"{group.name}={p.stem}" for p in sorted(group.glob("[a-z]*.yaml"))] for group in groups]
    assert sum(map(len, choices)) > 80
    # One choice of each group at a time, which no group's checks notice, as composing takes the longest.
    together = [[choice for choice in each if choice] for each in zip_longest(*choices)]
    large = ("torch", "flwr", "ray", "scipy", "sklearn", "pandas", "datasets")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(together), json.dumps(large)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, loaded = json.loads(done.stdout)
    assert {choice: said for choice, said in told.items() if said is not None} == {}
    assert loaded == []
