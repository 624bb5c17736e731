"""Time of a round under engine=local, by size of cohort, and without training.

    python benchmarks/scaling.py [cohort overhead evaluation methods] [--turns 7] [--write]

The digits setting of settings.py, one thread. ``cohort``: 10 to 1,000 of 1,000 clients a round; ``overhead``:
FedGWC, 10 of 100 clients a round, three steps each, with all files that a run writes; ``evaluation``: its
share of a round in which all clients also evaluate; ``methods``: FedAvg, a model per client, and FedSoft, all
clients a round.
"""

import dataclasses
import io
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import in_turns, show_parts, spread, table
from flwr.serverapp import Grid
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from settings import SETTINGS, Training

from fedclust.runs.server import federate, make_engine
from fedclust.settings.composition import build
from fedclust.strategies import ClusteredStrategy
from fedclust.support.rng import cohort_size
from fedclust.training.trainer import Dispatcher

DIGITS = SETTINGS["digits"]
STEPS = "forward, backward, update"


def rounds(
    clients: int, cohort: int, strategy: Callable[..., ClusteredStrategy] = Training
) -> Callable[[int], None]:
    """Return a function that runs a given number of rounds."""
    setting = dataclasses.replace(DIGITS, clients=clients, cohort=cohort)
    if cohort_size(clients, setting.share) != cohort:
        raise ValueError(f"cohort must be a share of {clients} clients, got {cohort}")
    return setting.rounds(setting.config(), strategy=strategy)


def per_round(run: Callable[[int], None], number: int) -> float:
    """Run so many rounds; return milliseconds per round."""
    began = time.perf_counter()
    run(number)
    return 1000 * (time.perf_counter() - began) / number


def evaluation(turns: int) -> str:
    """Compare rounds of training with rounds in which all clients evaluate, too."""
    rows = []
    for size in (30, 100, 1000):
        ways = {"training": rounds(size, size), "both": rounds(size, size, ClusteredStrategy)}
        took = in_turns({name: lambda _, run=run: per_round(run, 3) for name, run in ways.items()}, turns)
        pairs = [*zip(took["training"], took["both"], strict=True)]
        share = statistics.median(1 - one / other for one, other in pairs)
        train, whole = (statistics.median(values) for values in took.values())
        rows.append([f"{size:,}", f"{train:.1f}", f"{whole:.1f}", f"{share:.0%}"])
    head = ["clients, all train and evaluate", "ms per round, training", "and evaluation"]
    return table([*head, "evaluation's share"], rows)


def methods(turns: int) -> str:
    """Compare methods with a model per client with FedAvg."""
    rows = []
    for size in (30, 100):
        ways = {"fedavg": rounds(size, size)}
        for name in ("local", "fedsoft"):
            config = dataclasses.replace(DIGITS, clients=size).config(f"strategy={name}")
            ways[name] = rounds(size, size, partial(_built, config))
        # So many rounds that beginning with a model for each client is a small part of them.
        took = in_turns({name: lambda _, run=run: per_round(run, 20) for name, run in ways.items()}, turns)
        for name, values in took.items():
            pairs = zip(values, took["fedavg"], strict=True)
            ratio = statistics.median(one / other for one, other in pairs)
            rows.append([f"{name}, {size} clients", *spread(values, 1), f"{ratio:.2f}"])
    head = ["ms per round, all clients, no evaluation", "median", "minimum", "maximum"]
    return table([*head, "× fedavg"], rows)


def _built(config: DictConfig, participation: float) -> ClusteredStrategy:
    aggregator = partial(deepcopy, instantiate(config.aggregator))  # as a run makes each cluster's
    strategy: ClusteredStrategy = build(config.strategy, participation=participation, aggregator=aggregator)
    strategy._evaluation = lambda now: now  # type: ignore[method-assign]
    return strategy


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Measure the seconds spent in forward, backward and update."""
    spent = [0.0]
    train = Dispatcher.train

    def timed(self: Dispatcher, work: Any) -> Iterator[Any]:
        began = time.perf_counter()
        updates = list(train(self, work))
        spent[0] += time.perf_counter() - began
        return iter(updates)

    Dispatcher.train = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Dispatcher.train = train  # type: ignore[method-assign]


def _and_steps(run: Callable[[int], None], _: int) -> tuple[float, float]:
    with stopwatch() as spent:
        took = per_round(run, 3)
    return took, 1000 * spent[0] / 3


def compare(head: str, ways: dict[str, Callable[[int], None]], turns: int) -> str:
    """Run each way in turns; return the table of milliseconds per round."""
    found = in_turns({name: partial(_and_steps, run) for name, run in ways.items()}, turns)
    rows = []
    for name, values in found.items():  # the first turn warms up, and the trainer makes its choice
        took, steps = zip(*values, strict=True)
        rows.append([name, *spread(took, 1), spread(steps, 1)[0]])
    return table([head, "ms per round, median", "minimum", "maximum", f"of which {STEPS}"], rows)


def cohorts(turns: int) -> str:
    """Compare sizes of the cohort."""
    sizes = (10, 30, 100, 300, 1000)
    ways = {f"{size:,}": rounds(1000, size) for size in sizes}
    return compare("clients a round, of 1,000", ways, turns)


def seconds_per_round(config: DictConfig, grid: Grid) -> list[float]:
    """Run a federation as a user does; return the time of each round but the last, which is evaluated.

    The report and the plots are also made only once per run.
    """
    with tempfile.TemporaryDirectory() as folder:
        federate(config, grid, Path(folder) / "run", Console(file=io.StringIO()))
        return seconds_of(Path(folder) / "run")[:-1]


def seconds_of(run: Path) -> list[float]:
    """Read the time of each round that a run has done so far."""
    file = run / "rounds.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line)["seconds"] for line in lines if line.endswith("\n")]


def overhead(turns: int) -> str:
    """Run FedGWC as a user does, results included."""
    setting = dataclasses.replace(DIGITS, training={"learning_rate": 0.1, "batch_size": 8, "steps": 3})
    number = 100
    options = ["strategy=fedgwc", "compare=[]", f"rounds={number}", f"evaluate_every={number}"]
    config = setting.config(*options)
    config.participation = 0.1
    grid = make_engine(config)
    took, steps = [], []
    for turn in range(turns + 1):
        with stopwatch() as spent:
            seconds = seconds_per_round(config, grid)
        if turn:
            took.append(1000 * sum(seconds) / len(seconds))
            steps.append(1000 * spent[0] / number)
    rest = [one - other for one, other in zip(took, steps, strict=True)]
    rows = [
        ["whole round", *spread(took, 1)],
        [STEPS, *spread(steps, 1)],
        ["everything else", *spread(rest, 1)],
    ]
    return table(["ms per round, FedGWC, 10 clients a round", "median", "minimum", "maximum"], rows)


PARTS = {"cohort": cohorts, "overhead": overhead, "evaluation": evaluation, "methods": methods}


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # as in a run of fedclust, Flower's lines per round are not written
    show_parts(PARTS, __doc__)


if __name__ == "__main__":
    main()
