"""Check what each way into the package imports: the large libraries only where they are needed."""

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from fedclust import data
from fedclust.runs.verbs import VERBS
from fedclust.settings.composition import compose, plain
from tests.fedclust.clustering.test_parameters import OUT_OF_RANGE

EXTRAS = ("altair", "datasets", "flwr_datasets", "ray", "transformers", "vl_convert")
HEAVY = (*EXTRAS, "flwr", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "sympy", "torch", "torch._dynamo")
CLIENTS = (
    "partition.num_clients=3",
    "partition.groups=[2,1]",
    "training.steps=1",
    "training.mode=sequential",
)

REFUSED = {
    ("training.learning_rate=-1",): "training.learning_rate must be > 0 and finite, got -1",
    ("training.epochs=2", "training.steps=2"): "exactly one of epochs and steps must be given, got epochs 2",
    ("strategy=fedgwc", "strategy.parameters.kernel_width=-1"): "parameters.kernel_width must be > 0",
    (
        "strategy=ifca",
        "strategy.parameters.num_clusters=0",
    ): "parameters.num_clusters must be >= 1 or null, got 0",
    ("strategy=fedgmcc", "strategy.parameters.steps=-3"): "strategy.parameters.steps must be >= 0, got -3",
    ("personal=finetune", "personal.epochs=-1"): "personal.epochs must be a whole number >= 1, got -1",
    ("partition=dirichlet", "partition.alpha=-1"): "partition.alpha must be > 0 and finite, got -1",
    ("partition.num_clients=9",): "partition.groups must be >= 1 each and add up to num_clients, 9",
    ("+strategy.participation=0.1",): "strategy.participation must not be given, it belongs to the run",
}

OF_HEAVY_CLASSES = {
    ("strategy=fedavg", "model.hidden=x"): "model.hidden must be a list, each entry a whole number, got 'x'",
    ("strategy=fedavg", "model.hidden=[0]"): "model.hidden must be numbers >= 1, got [0]",
    ("strategy=fedavg", "aggregator=fedyogi", "aggregator.eta=a"): "aggregator.eta must be a number",
    (
        "strategy=fedavg",
        "aggregator=fedyogi",
        "aggregator.eta=-1",
    ): "aggregator.eta must be > 0 and finite, got -1",
}

# Each way is tried after the ones before it, in one process, so the lighter ones come first.
SCRIPT = f"""
import contextlib, importlib, io, json, sys

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
import fedclust.clustering, fedclust.strategies
note("import fedclust.strategies")
for method in {list(OUT_OF_RANGE)!r}:
    importlib.import_module("fedclust.clustering." + method)
note("the parameters of every method")
for words in (["--help"], *([verb, "--help"] for verb in {list(VERBS)!r}), ["help", "stop"], ["--version"]):
    assert command_line(*words).strip()
note("--help")
assert "did you mean 'strategy'" in command_line("stratgy=fmcl")
note("an unknown key")
assert "must be one of" in command_line("strategy=fmlc")
note("an unknown choice")
assert "rounds must be >= 1, got -1" in command_line("rounds=-1")
note("a number out of range")
for wrong in ("rounds=abc", "training.batch_size=x", "strategy.parameters.warmup=x"):
    assert " must be " in command_line(wrong), wrong
note("a value of the wrong type")
for wrong, told in {REFUSED!r}.items():
    assert told in command_line(*wrong), (wrong, command_line(*wrong))
note("a value that a constructor refuses")
assert "device must be auto or a device of this machine, got 'cuda:99'" in command_line("device=cuda:99")
note("a device that is not there")
for wrong, told in {OF_HEAVY_CLASSES!r}.items():
    assert told in command_line(*wrong), (wrong, command_line(*wrong))
note("an option of a network or an aggregator")
from fedclust.clients.app import app
from fedclust.clients import app
note("fedclust.clients.app")
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fedclust.models import construction
from fedclust.grids.client_grid import pack, unpack
from fedclust.messages.codec import ARRAYS, CONFIG
from fedclust.messages.models import from_state
from fedclust.settings.composition import compose, plain, to_run_config
from fedclust.support.flower import assume_identity
config = compose({CLIENTS!r})
assume_identity()

def ask(kind, content):
    context = Context(1, 2, {{"clients": "0-2"}}, RecordDict(), to_run_config(config))
    contents, errors = unpack(app(Message(pack({{0: content, 2: content}}), 2, kind), context).content)
    assert sorted(contents) == [0, 2], errors
    note(kind)

ask("query.description", RecordDict())
model = from_state(construction.build(plain(config.model), config.seed).state_dict())
told = RecordDict({{ARRAYS: model, CONFIG: ConfigRecord({{"server-round": 1}})}})
ask("train", told)
ask("evaluate", told)
from fedclust.strategies import ClusteredStrategy
note("one model for all")

sys.modules |= dict.fromkeys({EXTRAS!r})  # no stage has needed them, and from here on they are missing
import fedclust.client_app, fedclust.models.encoders, numpy as np
from torch import nn
inputs = np.random.default_rng(0).normal(size=(3, 40, 2)).astype(np.float32)
clients = [(rows, (rows[:, 0] > 0).astype(int)) for rows in inputs]
how = fedclust.LocalTraining(epochs=1, learning_rate=0.1, batch_size=8)
found = fedclust.simulate("auto", nn.Linear(2, 2), clients, rounds=1, training=how)
loaded["rounds without the extras"] = found.summary["rounds"]
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """What was loaded after each way, its data prepared before, and the rounds of a run without extras."""
    config = compose(CLIENTS)
    data.load(plain(config.dataset), plain(config.partition), config.seed)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


NUMPY = ("numpy",)
FLOWER = ("flwr", "numpy", "torch")


@pytest.mark.parametrize(
    ("most", "ways"),
    [
        ((), ("import fedclust", "import fedclust.strategies")),
        (
            NUMPY,
            (
                "the parameters of every method",
                "--help",
                "an unknown key",
                "an unknown choice",
                "a number out of range",
            ),
        ),
        (NUMPY, ("a value of the wrong type", "a value that a constructor refuses")),
        (("numpy", "torch"), ("a device that is not there",)),
        (FLOWER, ("an option of a network or an aggregator",)),
        (FLOWER, ("fedclust.clients.app", "query.description", "train", "evaluate", "one model for all")),
    ],
)
def test_each_way_loads_what_it_needs(loaded, most: tuple[str, ...], ways: tuple[str, ...]) -> None:
    assert {name for way in ways for name in loaded[way]} == set(most)


@pytest.mark.parametrize(
    ("arguments", "lines"), [(["--help"], 0), (["compare", "--help"], 0), (["training.learning_rate=-1"], 1)]
)
def test_an_answer_takes_little_processor_time(arguments: list[str], lines: int) -> None:
    command = [sys.executable, "-m", "fedclust", *arguments]

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 2 * lines
        assert len(done.stderr.splitlines()) == lines, done.stderr  # no traceback
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # 1.5 s where nothing else runs; others' use of the caches can double one try.
    assert any(seconds() < 3 for _ in range(3))


def test_a_node_trains_without_the_extras(loaded) -> None:
    assert loaded["rounds without the extras"] == 1
