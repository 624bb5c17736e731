"""FedGWC's CIFAR-100 setting in rounds per second, on a GPU if there is one.

    python benchmarks/cifar100.py [--rounds 30] [--ways sequential auto ...] [--write]

100 clients of 500 images, 10 a round, 7 steps of batch 64, the paper's network with 815,332 parameters, the
whole strategy with `rounds.jsonl`, on random images: only the shapes matter. Ways run one after another; the
first rounds of each, in which the trainer makes its choice or compiles, are left out.
"""

import argparse
import io
import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from gpu_clock import so_far
from omegaconf import DictConfig, OmegaConf
from recording import only_recorded
from rich.console import Console
from scaling import seconds_of, seconds_per_round
from tables import machine, show, spread, table

from fedclust.runs.plan import make_engine
from fedclust.runs.server import federate
from fedclust.settings import compose
from fedclust.training.scheduling.dispatch import Dispatcher

ROUNDS = 20_000  # the paper's
LEFT_OUT = 6
ENOUGH = 5  # rounds that count, if there is no time for more

WAYS: dict[str, tuple[str, ...]] = {
    "sequential": ("training.mode=sequential",),
    "auto": (),
    "auto-bf16": ("training.precision=bf16",),
    "auto-tf32": ("training.precision=tf32",),
    "vectorised": ("training.mode=vectorised",),
    "vectorised-compiled": ("training.mode=vectorised", "training.compile=true"),
    "vectorised-compiled-bf16": (
        "training.mode=vectorised",
        "training.compile=true",
        "training.precision=bf16",
    ),
}
ON_CPUS = ("sequential", "auto", "auto-bf16")


def setting(overrides: tuple[str, ...], rounds: int) -> DictConfig:
    """Compose the experiment with random images of CIFAR-100's shape."""
    config = compose(
        [
            "experiment=fedgwc_cifar100",
            "compare=[]",
            f"rounds={rounds}",
            f"evaluate_every={rounds}",
            *overrides,
        ]
    )
    OmegaConf.set_struct(config, False)
    config.dataset = {
        "_target_": "settings.RandomImages",
        "examples": 60_000,
        "input_shape": [3, 32, 32],
        "num_classes": 100,
    }
    # 600 images each, of which a sixth is held out; labels mean nothing here.
    config.partition = {
        **config.partition,
        "samples_per_client": 600,
        "test": "holdout",
        "test_fraction": 1 / 6,
        "alpha": 1000,
    }
    return config


def fedgwc_setting(overrides: Sequence[str], rounds: int, device: str, small: bool) -> Any:
    """Compose FedGWC's setting on random images."""
    few = ("partition.num_clients=4", "participation=0.5", "training.steps=1", "training.batch_size=4")
    config = setting((*overrides, *(few if small else ()), f"device={device}"), rounds)
    if small:
        config.partition["samples_per_client"], config.dataset["examples"] = 24, 200
    return config


def rounds_per_second(overrides: Sequence[str], rounds: int, device: str, small: bool) -> dict[str, Any]:
    """Run the setting; measure rounds, the GPU's use while it trains, and the peak of its memory."""
    config = fedgwc_setting(overrides, rounds, device, small)
    with (
        tempfile.TemporaryDirectory() as place,
        only_recorded(small),
        watched_passes() as (calls, _),
        busy(device) as samples,
    ):
        run = Path(place) / "run"

        def measured(seconds: list[float]) -> dict[str, Any]:
            during = [value for at, value in samples if calls[0] <= at <= calls[-1]]
            memory = None if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
            return {"rate": 1 / median(seconds), "busy": mean(during) if during else None, "memory": memory}

        def say() -> None:
            seconds = seconds_of(run)[LEFT_OUT:]
            if len(seconds) >= ENOUGH:
                so_far(measured(seconds))

        with every_second(say):
            federate(config, make_engine(config), run, Console(file=io.StringIO()))
        return measured(seconds_of(run)[LEFT_OUT:-1])  # the last is evaluated


@contextmanager
def every_second(say: Callable[[], None]) -> Iterator[None]:
    """Call a function once a second, on another thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(1):
            say()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def watched_passes(profiled: int | None = None) -> Iterator[tuple[list[float], list[str]]]:
    """Collect when the trainer begins a pass, and the profile of one of them."""
    calls, profiles = list[float](), list[str]()
    train = Dispatcher.train

    def watched(self: Dispatcher, work: Any) -> Iterator[Any]:
        calls.append(time.time())
        if len(calls) != profiled:
            return iter(list(train(self, work)))
        with torch.profiler.profile() as profile:
            updates = list(train(self, work))
        key = "self_cpu_time_total" if self._working.device.type == "cpu" else "self_cuda_time_total"
        profiles.append(profile.key_averages().table(sort_by=key, row_limit=15, max_name_column_width=50))
        return iter(updates)

    Dispatcher.train = watched  # type: ignore[method-assign]
    try:
        yield calls, profiles
    finally:
        Dispatcher.train = train  # type: ignore[method-assign]


@contextmanager
def busy(device: str) -> Iterator[list[tuple[float, float]]]:
    """Ask twice a second how many percent of the time the GPU computes."""
    samples, over = list[tuple[float, float]](), threading.Event()

    def ask() -> None:
        while not over.wait(0.5):
            value = utilisation()
            if value is None:
                return
            samples.append((time.time(), value))

    thread = threading.Thread(target=ask, daemon=True)
    if device != "cpu":
        thread.start()
    try:
        yield samples
    finally:
        over.set()


def utilisation() -> float | None:
    """Read the GPU's utilisation in percent; None where neither NVML nor nvidia-smi can be asked."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return float(torch.cuda.utilization())
    except (ModuleNotFoundError, RuntimeError):
        try:
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None


def profile_of(overrides: Sequence[str], device: str, small: bool) -> str:
    """Profile local training in one round."""
    config = fedgwc_setting(overrides, LEFT_OUT + 2, device, small)
    with only_recorded(small), watched_passes(profiled=LEFT_OUT) as (_, profiles):
        seconds_per_round(config, make_engine(config))
    return "\n".join(line.rstrip() for line in profiles[0].splitlines()).rstrip()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--write", action="store_true", help="into docs/PERFORMANCE.md")
    arguments = parser.parse_args()
    if arguments.rounds < LEFT_OUT + 2:
        parser.error(f"--rounds must be >= {LEFT_OUT + 2}, got {arguments.rounds}")
    logging.disable(logging.INFO)
    on_gpu = torch.cuda.is_available()
    rates: dict[str, list[float]] = {}
    for way in arguments.ways or (WAYS if on_gpu else ON_CPUS):
        config = setting(WAYS[way], arguments.rounds)
        grid = make_engine(config)
        rates[way] = [1 / took for took in seconds_per_round(config, grid)[LEFT_OUT:]]
    base = median(rates["sequential"]) if "sequential" in rates else None
    rows = [
        [
            way,
            *spread(values, 2),
            f"{median(values) / base:.2f}" if base else "",
            f"{ROUNDS / median(values) / 3600:.1f}",
        ]
        for way, values in rates.items()
    ]
    head = [
        "rounds per second",
        "median",
        "minimum",
        "maximum",
        "× sequential",
        f"hours for {ROUNDS:,} rounds",
    ]
    text = table(head, rows)
    where = f"{torch.cuda.get_device_name()}, {machine()}" if on_gpu else machine()
    show("cifar100", f"{where}, {arguments.rounds} rounds.\n\n{text}", arguments.write)


if __name__ == "__main__":
    main()
