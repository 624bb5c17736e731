"""FedGWC's CIFAR-100 setting in rounds per second, on a GPU if there is one.

    python benchmarks/cifar100.py [--rounds 30] [--ways sequential auto ...] [--write]

100 clients of 500 images, 10 a round, 7 steps of batch 64, the paper's network with 815,332 parameters, the
whole strategy with `rounds.jsonl`, on random images: only the shapes matter. *Head on 1,280 features* is a
linear layer on as many numbers as EfficientNet-Lite0 makes of an image before round 1. Ways run one after
another; the first rounds of each, in which the trainer makes its choice, records or compiles, are left out.
"""

import logging
from statistics import median
from unittest.mock import patch

import torch
from common import arguments, machine, show, spread, table
from omegaconf import DictConfig
from scaling import seconds_per_round
from settings import random_images

from fedclust.runs.server import make_engine
from fedclust.settings.composition import compose
from fedclust.training import vectorised
from fedclust.training.recorded import RecordedPasses

ROUNDS = 20_000  # the paper's
LEFT_OUT = 6
HEAD = "head on 1,280 features"

WAYS: dict[str, tuple[str, ...]] = {
    "sequential": ("training.mode=sequential",),
    "auto": (),
    "auto-tf32": ("training.precision=tf32",),
    "auto-bf16": ("training.precision=bf16",),
    "auto, not recorded": (),
    "auto-tf32, not recorded": ("training.precision=tf32",),
    "auto-bf16, not recorded": ("training.precision=bf16",),
    HEAD: ("model=linear", "training.augmentation=none"),
    "compiled": ("training.compile=true",),
    "compiled-bf16": ("training.compile=true", "training.precision=bf16"),
}
ON_CPUS = ("sequential", "auto", *["auto-bf16"] * (torch.backends.cpu.get_cpu_capability() != "AVX2"), HEAD)


def setting(overrides: tuple[str, ...], rounds: int) -> DictConfig:
    """Compose the experiment with random images of CIFAR-100's shape."""
    common = ("experiment=fedgwc_cifar100", "compare=[]", f"rounds={rounds}", f"evaluate_every={rounds}")
    config = compose([*common, *overrides])
    random_images(config, 60_000, (1280,) if overrides[:2] == WAYS[HEAD] else (3, 32, 32), 100)
    # 600 images each, of which a sixth is held out; labels mean nothing here.
    own = {"samples_per_client": 600, "test": "holdout", "test_fraction": 1 / 6, "alpha": 1000}
    config.partition = {**config.partition, **own}
    return config


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    asked = parser.parse_args()
    if asked.rounds < LEFT_OUT + 2:
        parser.error(f"--rounds must be >= {LEFT_OUT + 2}, got {asked.rounds}")
    logging.disable(logging.INFO)
    on_gpu = torch.cuda.is_available()
    rates: dict[str, list[float]] = {}
    for way in asked.ways or (WAYS if on_gpu else ON_CPUS):
        # With a seed of its own, no way finds the prepared node of another.
        config = setting((*WAYS[way], f"seed={len(rates)}"), asked.rounds)
        record = RecordedPasses if "not recorded" not in way else lambda _: RecordedPasses(None)
        with patch.object(vectorised, "RecordedPasses", record):
            rates[way] = [1 / took for took in seconds_per_round(config, make_engine(config))[LEFT_OUT:]]
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
    head = ["rounds per second", "median", "minimum", "maximum", "× sequential"]
    text = table([*head, f"hours for {ROUNDS:,} rounds"], rows)
    where = f"{torch.cuda.get_device_name()}, {machine()}" if on_gpu else machine()
    show("cifar100-gpu" if on_gpu else "cifar100", f"{where}, {asked.rounds} rounds.\n\n{text}", asked.write)


if __name__ == "__main__":
    main()
