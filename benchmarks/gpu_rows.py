"""What the rows of `benchmarks/gpu.py` do, each in a process of its own."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import cifar100
import numpy as np
import paper_table
import torch
from gpu_clock import so_far
from recording import only_recorded
from scaling import seconds_per_round
from settings import SETTINGS
from training_speed import fedclust_rounds, loop_rounds, problem
from ways import pfl_research

import fedclust
from fedclust.results import SavedRun
from fedclust.runs.plan import make_engine
from fedclust.training import Job, LocalTraining, Trainer
from fedclust.training.kernels import sequential
from fedclust.training.kernels.recorded import RecordedTraining
from fedclust.training.kernels.recorded_cohort import RecordedCohorts
from fedclust.training.kernels.vectorised import VectorisedTraining

__all__ = [
    "affordable",
    "again",
    "clients_per_second",
    "cost_of",
    "make_run",
    "nodes_speed",
    "on_both",
    "waits",
]


def on_both(name: str, overrides: Sequence[str], device: str, folder: Path) -> dict[str, Any]:
    """Run on the CPU and on the device; compare assignments and each round's accuracy."""
    done, seconds = [], []
    for number, place in enumerate(("cpu", device)):
        start = time.perf_counter()
        out = folder / f"{name.replace(' ', '-')}-{number}"
        fedclust.run([*overrides, f"device={place}", "training.precision=float32", f"output_dir={out}"])
        seconds.append(time.perf_counter() - start)
        done.append(SavedRun(out))
    one, other = done
    (_, ours), (_, theirs) = (run.series("mean_client_accuracy") for run in done)
    return {
        "same": np.array_equal(one.assignment, other.assignment)
        and [(each["round"], each["assignment"]) for each in one.changes]
        == [(each["round"], each["assignment"]) for each in other.changes],
        "apart": float(np.abs(ours - theirs).max()) if len(ours) == len(theirs) else float("inf"),
        "seconds": seconds,
    }


def waits(kind: str, mode: str, device: str, small: bool) -> list[str]:
    """Train two rounds with waiting for the GPU forbidden between a client's first and last step.

    Returns
    -------
    What CUDA said of each wait; one line that nothing was looked for on the CPU.
    """
    build, data, options = problem(kind, small)
    model, seen = build(), list[str]()
    jobs = [Job(client, rows, dict(model.state_dict())) for client, rows in enumerate(data.train)]
    training = LocalTraining(mode=mode, **options)  # type: ignore[arg-type]
    with only_recorded(small), forbidden(device, seen):
        trainer = Trainer(model, data, training, 0, device)
        for server_round in (1, 2):
            failed = {}
            for update in trainer.train(jobs, server_round):
                failed |= update.failed
            if failed and not seen:
                raise RuntimeError(next(iter(failed.values())))
    return ["not looked for on the CPU"] if device == "cpu" else seen


@contextlib.contextmanager
def forbidden(device: str, seen: list[str]) -> Iterator[None]:
    """Make CUDA raise where local training waits for it; list what it says."""

    def watched(train: Callable[..., None]) -> Callable[..., None]:
        def inside(*arguments: Any) -> None:
            torch.cuda.set_sync_debug_mode("error")
            try:
                train(*arguments)
            except RuntimeError as error:
                seen.append(str(error).partition("\n")[0])
                raise
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return train if device == "cpu" else inside

    places: tuple[tuple[Any, str], ...] = (
        (sequential, "_train_client"),
        (VectorisedTraining, "_run"),
        (RecordedTraining, "_run"),
        (RecordedCohorts, "_run"),
    )
    before = [getattr(place, name) for place, name in places]
    for (place, name), train in zip(places, before, strict=True):
        setattr(place, name, watched(train))
    try:
        yield
    finally:
        for (place, name), train in zip(places, before, strict=True):
            setattr(place, name, train)


class Enough(Exception):
    """As many rounds as were asked for."""


class Rounds:
    """Turns of `benchmarks/ways.py` in this process: so many rounds, one after another."""

    def __init__(self, number: int, device: str, clients: int) -> None:
        self.seconds: list[float] = []
        self._number, self._device, self._clients, self._began = number, device, clients, 0.0

    def rate(self) -> float:
        """Compute clients per second; the first round, in which everything warms up, does not count."""
        return self._clients / median(self.seconds[1:])

    def wait(self) -> int:
        """Begin the next round."""
        if len(self.seconds) == self._number:
            raise Enough
        self._began = time.perf_counter()
        return 1

    def done(self) -> None:
        """End a round."""
        if self._device != "cpu":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._began)
        if len(self.seconds) > 1:
            so_far(self.rate())


def clients_per_second(kind: str, way: str, device: str, rounds: int, small: bool) -> float:
    """Train rounds in one way; the first, in which it warms up, does not count."""
    build, data, options = problem(kind, small)
    model, turns = build(), Rounds(rounds + 1, device, len(data.train))
    if way == "pfl-research":
        peer = SimpleNamespace(
            federation=lambda: data, network=build, training=options, clients=len(data.train)
        )
        with contextlib.suppress(Enough):
            pfl_research(peer, turns, 0, device)  # type: ignore[arg-type]
    else:
        train = fedclust_rounds if way.startswith("fedclust") else loop_rounds
        with only_recorded(small):
            step = train(way, model, data, options, device)
            for number in range(rounds + 1):
                turns.wait()
                step(number + 1)
                turns.done()
    return turns.rate()


def affordable(start: float, per_round: float, seconds: float, runs: int, most: int) -> tuple[int, int]:
    """Divide time between runs and rounds.

    Parameters
    ----------
    start, per_round
        What a run costs in seconds besides its rounds, and each round.
    seconds
        The time there is, in seconds of one run after another.
    runs
        Runs that are wanted.
    most
        Rounds of the paper.

    Returns
    -------
    Rounds of each run, in [1, most], and how many runs there is time for: fewer than wanted only where each
    would have less than a quarter of the paper's rounds.
    """
    least = math.ceil(most / 4)
    rounds = int((seconds / runs - start) / per_round)
    if rounds >= least:
        return min(rounds, most), runs
    rounds = max(1, min(least, int((seconds - start) / per_round)))
    return rounds, int(seconds / (start + rounds * per_round))


def again(run: paper_table.Run, overrides: Sequence[str], folder: Path) -> paper_table.Run:
    """Return a run with another number of rounds, in a folder."""
    asked = [each for each in run.overrides if not each.startswith(("rounds=", "evaluate_every="))]
    return dataclasses.replace(run, overrides=(*asked, *overrides), folder=folder)


def make_run(run: paper_table.Run) -> None:
    """Make a run of a paper's table."""
    if wrong := paper_table._make(run):
        raise RuntimeError(wrong)


def cost_of(run: paper_table.Run) -> tuple[float, float]:
    """Make a run of few rounds; return what it costs besides its rounds, and the last of them."""
    began = time.perf_counter()
    make_run(run)
    whole = time.perf_counter() - began
    seconds = [json.loads(line)["seconds"] for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    return whole - sum(seconds), min(seconds)


def nodes_speed(setting: str, nodes: tuple[int, float, str], device: str, small: bool) -> float:
    """Measure rounds per second with an engine."""
    number, share, engine = nodes
    overrides = [f"engine={engine}"]
    if engine == "ray":
        overrides += [f"engine.num_nodes={number}", f"engine.num_gpus={0 if device == 'cpu' else share}"]
    rounds = cifar100.LEFT_OUT + (2 if small else 20)
    if setting == "cifar100":
        config = cifar100.fedgwc_setting(overrides, rounds, device, small)
    else:
        last = [
            "strategy=fedavg",
            "compare=[]",
            "proof=false",
            f"rounds={rounds}",
            f"evaluate_every={rounds}",
        ]
        config = SETTINGS[setting].config(*overrides, *last)
        config.device = device
    return 1 / median(seconds_per_round(config, make_engine(config))[cifar100.LEFT_OUT :])
