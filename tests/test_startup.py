"""Check what each way into the package imports: the large libraries only where they are needed."""

import importlib
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from fedclust import data
from fedclust.settings import CONF, compose, plain
from fedclust.settings.defaults import defaults_of
from fedclust.settings.option_types import hints_of, in_words

HEAVY = (
    *(
        "datasets",
        "flwr",
        "flwr_datasets",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "ray",
        "scipy",
        "sklearn",
    ),
    *("sympy", "torch", "torch._dynamo", "transformers"),
)
DATACLASSES = sorted(
    {name for path in CONF.rglob("*.yaml") for name in re.findall(r"/defaults_of/([\w.]+)", path.read_text())}
)
TARGETS = sorted(
    {
        *DATACLASSES,
        *(
            name
            for path in CONF.rglob("*.yaml")
            for name in re.findall(r"^ *_target_: ([\w.]+)", path.read_text(), re.MULTILINE)
        ),
    }
)
CLIENTS = (
    "partition.num_clients=3",
    "partition.groups=[2,1]",
    "training.steps=1",
    "training.mode=sequential",
)

# Refused by the classes' own checks, in modules that import PyTorch, SciPy or scikit-learn.
REFUSED = {
    ("training.learning_rate=-1",): "training.learning_rate must be > 0 and finite, got -1",
    ("training.epochs=2", "training.steps=2"): "exactly one of epochs and steps must be given, got epochs 2",
    ("strategy=fedgwc_paper", "strategy.parameters.kernel_width=-1"): "parameters.kernel_width must be > 0",
    ("strategy=ifca", "strategy.parameters.num_clusters=0"): "parameters.num_clusters must be >= 1, got 0",
    ("strategy=fedgmcc", "strategy.parameters.steps=-3"): "strategy.parameters.steps must be >= 0, got -3",
    ("personal=finetune", "personal.epochs=-1"): "personal.epochs must be a whole number >= 1, got -1",
}

# By the partitioners' own, in modules that import Flower Datasets; these checks use NumPy.
REFUSED_PARTITIONS = {
    ("partition=dirichlet", "partition.alpha=-1"): "partition.alpha must be > 0 and finite, got -1",
    ("partition.num_clients=9",): "partition.groups must be >= 1 each and add up to num_clients, 9",
}

# Each way is tried after the ones before it, in one process, so the lighter ones come first.
SCRIPT = f"""
import contextlib, io, json, sys

loaded = {{}}

def note(way):
    loaded[way] = sorted(name for name in {HEAVY!r} if name in sys.modules)

def command_line(*arguments):
    from fedclust.runs.command_line import main
    said = io.StringIO()
    sys.argv = ["fedclust", *arguments]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main()
    return said.getvalue()

import fedclust
note("import fedclust")
import fedclust.clustering, fedclust.strategies, fedclust.metrics
note("import fedclust.strategies")
from fedclust.settings.defaults import defaults_of
listed = {{name: defaults_of(name) for name in {DATACLASSES!r}}}
note("defaults")
from fedclust.settings.declared import declared_types
from fedclust.settings.option_types import in_words
types = {{name: in_words(declared_types(name)) for name in {TARGETS!r}}}
note("types")
assert "Powered by Hydra" in command_line("--help")
note("--help")
assert "did you mean 'strategy'" in command_line("stratgy=fmcl")
note("an unknown key")
assert "must be one of" in command_line("strategy=fmlc")
note("an unknown choice")
assert "rounds must be >= 1, got -1" in command_line("rounds=-1")
note("a number out of range")
for wrong in ("rounds=abc", "training.batch_size=x", "strategy.parameters.max_clusters=x", "model.hidden=x"):
    assert " must be " in command_line(wrong), wrong
assert "aggregator.eta must be a number, got 'a'" in command_line("aggregator=fedyogi", "aggregator.eta=a")
note("a value of the wrong type")
for wrong, told in {REFUSED!r}.items():
    assert told in command_line(*wrong), (wrong, command_line(*wrong))
note("a value that a constructor refuses")
for wrong, told in {REFUSED_PARTITIONS!r}.items():
    assert told in command_line(*wrong), (wrong, command_line(*wrong))
note("a value that a partition refuses")
assert "device must be auto or a device of this machine, got 'cuda:99'" in command_line("device=cuda:99")
note("a device that is not there")
from fedclust.clients.app import app
from fedclust.clients import app
note("fedclust.clients.app")
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fedclust import messages, models
from fedclust.federation import pack, unpack
from fedclust.grids.local_grid import assume_identity
from fedclust.settings import compose, plain, to_run_config
config = compose({CLIENTS!r})
assume_identity()

def ask(kind, content):
    context = Context(1, 2, {{"clients": "0-2"}}, RecordDict(), to_run_config(config))
    contents, errors = unpack(app(Message(pack({{0: content, 2: content}}), 2, kind), context).content)
    assert sorted(contents) == [0, 2], errors
    note(kind)

ask("query.description", RecordDict())
model = messages.from_state(models.build(plain(config.model), config.seed).state_dict())
told = RecordDict({{messages.ARRAYS: model, messages.CONFIG: ConfigRecord({{"server-round": 1}})}})
ask("train", told)
ask("evaluate", told)
from fedclust.strategies import ClusteredStrategy
note("one model for all")
print(json.dumps([loaded, listed, types]))
"""


@pytest.fixture(scope="module")
def tried() -> list[dict[str, Any]]:
    """What was loaded after each way, its data prepared before; the defaults and types read."""
    config = compose(CLIENTS)
    data.load(plain(config.dataset), plain(config.partition), config.seed)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def loaded(tried) -> dict[str, list[str]]:
    """What was loaded after each way."""
    return tried[0]


@pytest.mark.parametrize("way", ["import fedclust", "import fedclust.strategies"])
def test_importing_the_package_loads_nothing_large(loaded, way) -> None:
    assert loaded[way] == []


@pytest.mark.parametrize(
    "way",
    ["--help", "an unknown key", "an unknown choice", "a number out of range", "a value of the wrong type"],
)
def test_help_and_a_wrong_option_are_answered_with_hydra_alone(loaded, way) -> None:
    assert loaded[way] == []


def test_a_value_that_a_constructor_refuses_needs_no_large_library(loaded) -> None:
    assert loaded["a value that a constructor refuses"] == []


def test_a_value_that_a_partition_refuses_needs_numpy_alone(loaded) -> None:
    assert loaded["a value that a partition refuses"] == ["numpy"]


def test_a_device_that_is_not_there_needs_pytorch_alone(loaded) -> None:
    assert loaded["a device that is not there"] == ["numpy", "torch"]


@pytest.mark.parametrize("way", ["fedclust.clients.app", "query.description", "train", "evaluate"])
def test_a_message_to_clients_needs_pytorch_and_flower_alone(loaded, way) -> None:
    assert loaded[way] == ["flwr", "numpy", "torch"]


def test_one_model_for_all_needs_no_clustering(loaded) -> None:
    assert loaded["one model for all"] == ["flwr", "numpy", "torch"]


def test_defaults_read_from_the_source_are_those_of_the_dataclass(tried) -> None:
    loaded, listed, _ = tried
    assert loaded["defaults"] == []
    assert len(DATACLASSES) > 20
    for name in DATACLASSES:
        importlib.import_module(name.rpartition(".")[0])  # from here on the dataclass itself is asked
        assert list(listed[name].items()) == list(defaults_of(name).items()), name


def test_types_read_from_the_source_are_those_of_the_constructor(tried) -> None:
    loaded, _, types = tried
    assert loaded["types"] == []
    assert len(TARGETS) > 90
    for name in TARGETS:
        if name.startswith("fedclust."):  # another library's may be out of reach, and is imported then
            assert types[name] == in_words(hints_of(name)), name
