"""Settings that other frameworks published times for, run by fedclust and by stock Flower on this machine.

    python benchmarks/published.py [--only blazefl flute pfl pfllib] [--turns N] [--write]

Data are random: only their shapes matter here. Each way runs in a process of its own that starts, trains one
round, then the others, and ends; the ways take turns. pfl-research runs its own setting if installed:
pip install 'fedclust[benchmark]'. --write puts the tables into docs/PERFORMANCE.md.
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import arguments, machine, show, table
from rounds import WAYS, available, start
from settings import Setting
from torch import nn

__all__ = ["PUBLISHED", "Published", "lenet", "logistic_regression", "pfl_cnn", "pfllib_cnn"]


def lenet() -> nn.Module:
    """Build the CNN of PyTorch's CIFAR-10 tutorial: 62,006 parameters."""
    layers: list[nn.Module] = []
    for before, after in ((3, 6), (6, 16)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def logistic_regression() -> nn.Module:
    """Build FedML's model for MNIST: 7,850 parameters, with its sigmoid."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())


def pfl_cnn() -> nn.Module:
    """Build the `simple_cnn` of pfl-research's benchmarks for CIFAR-10: 1,626,442 parameters."""
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*convolutions, *dense, nn.Linear(128, 10))


def pfllib_cnn() -> nn.Module:
    """Build PFLlib's `FedAvgCNN` for MNIST: 582,026 parameters."""
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


@dataclass(frozen=True)
class Published:
    """A setting that somebody published a time for.

    Attributes
    ----------
    setting
        The setting.
    rounds
        Rounds of theirs.
    report
        What they report, where, and on what hardware.
    measured
        Rounds measured here by each way, the first included; fewer than theirs where all would take too long.
    turns
        Turns of each way.
    """

    setting: Setting
    rounds: int
    report: str
    measured: Mapping[str, int]
    turns: int = 2


PUBLISHED = {
    "blazefl": Published(
        Setting(
            "BlazeFL's CIFAR-10: 32×32×3, 100 clients, all in each of 5 rounds, 500 samples each, 5 "
            "epochs, batch 50, CNN of 62,006 parameters",
            clients=100,
            examples=500,
            side=32,
            channels=3,
            model="published.lenet",
            training={"learning_rate": 0.1, "batch_size": 50, "epochs": 5},
        ),
        rounds=5,
        report=(
            "BlazeFL's authors draw about 30 s for itself and 92 s for Flower (read off a figure); their "
            "[README](https://github.com/blazefl/blazefl) names an AMD EPYC 7542 with 32 cores and four "
            "Quadro RTX 6000. Their benchmark times the five rounds alone, without starting."
        ),
        measured={"fedclust-local": 5, "fedclust-flower": 5, "stock-flower": 5},
        turns=1,
    ),
    "flute": Published(
        Setting(
            "FLUTE's LR-MNIST: 28×28, 1,000 clients, 10 of them in each of 100 rounds, 60 samples each, 1 "
            "epoch, batch 10, logistic regression of 7,850 parameters",
            clients=1000,
            cohort=10,
            examples=60,
            side=28,
            model="published.logistic_regression",
            training={"learning_rate": 0.03, "batch_size": 10, "epochs": 1},
        ),
        rounds=100,
        report=(
            "FLUTE's [README](https://github.com/microsoft/msrflute) reports 3:20 min for itself and 30:14 "
            "min for Flower 1.0.0 on CPUs (1:26 and 56:45 on four GPUs) and does not say which. Its "
            "clients' sizes differ, and it tests the model every 20 rounds."
        ),
        measured={"fedclust-local": 100, "fedclust-flower": 100, "stock-flower": 100},
    ),
    "pfl": Published(
        Setting(
            "pfl-research's CIFAR-10 baseline: 32×32×3, 1,000 users of 50 samples, 50 of them in each of "
            "1,500 rounds, 1 epoch, batch 10, CNN of 1,626,442 parameters",
            clients=1000,
            cohort=50,
            examples=50,
            side=32,
            channels=3,
            model="published.pfl_cnn",
            training={"learning_rate": 0.1, "batch_size": 10, "epochs": 1},
        ),
        rounds=1500,
        report=(
            "The setting is `benchmarks/image_classification/configs/baseline.yaml` of "
            "[pfl-research](https://github.com/apple/pfl-research). Its paper (arXiv 2404.06430) times "
            "frameworks on CIFAR-10 with an A100 and 10 CPUs; here `pfl` itself runs beside us."
        ),
        measured={"fedclust-local": 3, "fedclust-flower": 3, "pfl": 3, "pfl-2": 3, "stock-flower": 3},
    ),
    "pfllib": Published(
        Setting(
            "PFLlib's MNIST: 28×28, 20 clients, all in each of 2,000 rounds, 2,625 samples each, 1 epoch, "
            "batch 10, CNN of 582,026 parameters",
            clients=20,
            examples=2625,
            side=28,
            model="published.pfllib_cnn",
            training={"learning_rate": 0.005, "batch_size": 10, "epochs": 1},
        ),
        rounds=2000,
        report=(
            "[PFLlib's issue 253](https://github.com/TsingZ0/PFLlib/issues/253) reports 17.2 s for round 0 "
            "and about 18 s for each, on an RTX 5090 that is used by 7 %. Its rounds also evaluate all "
            "clients, and its clients' sizes differ."
        ),
        measured={"fedclust-local": 2, "fedclust-flower": 2, "stock-flower": 2},
    ),
}


def run(name: str, way: str, rounds: int, log: Path) -> tuple[float, float] | None:
    """Run a setting by one way, in processes of its own.

    Returns
    -------
    Seconds of the whole command, and of a round after the first; None if it failed.
    """
    began = time.perf_counter()
    group = start(name, way, log)
    try:
        first = group.turn()
        group.rounds = rounds - 1
        each = group.turn() if first is not None else None
        took = time.perf_counter() - began
    finally:
        group.close()
    return None if each is None else (took, each)


def measure(
    name: str, ways: list[str], turns: int, rounds: int, logs: Path
) -> dict[str, list[tuple[float, float]]]:
    """Run a setting by several ways, which take turns; those that failed are left out."""
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(turns):
        for way in list(times):
            found = run(
                name, way, min(rounds, PUBLISHED[name].measured[way]), logs / f"{name}-{way}-{turn}.log"
            )
            if found is None:
                print(f"{name}, {way}: failed, see its log", file=sys.stderr)
                del times[way]
            else:
                print(f"{name}, {way}: {found[0]:.1f} s, {found[1]:.3f} s a round", file=sys.stderr)
                times[way].append(found)
    return times


def text(name: str, most: int, times: Mapping[str, list[tuple[float, float]]]) -> str:
    """Write what was published and what was measured."""
    published = PUBLISHED[name]
    rows = []
    for way, values in times.items():
        rounds = min(most, published.measured[way])
        each = [seconds for _, seconds in values]
        whole = f"{median(seconds for seconds, _ in values):,.1f}"
        digits = 3 if median(each) < 1 else 1
        rows.append(
            [
                WAYS[way][0],
                str(rounds) if rounds == published.rounds else f"{rounds} of {published.rounds:,}",
                whole,
                *(f"{value:,.{digits}f}" for value in (median(each), min(each), max(each))),
            ]
        )
    head = ["measured here", "rounds", "whole command, s", "s per round, median", "minimum", "maximum"]
    turns = max((len(values) for values in times.values()), default=0)
    many = "1 turn" if turns == 1 else f"{turns} turns"
    return (
        f"{published.setting.title}. {published.report}\n\nHere: {machine()}, {many}.\n\n{table(head, rows)}"
    )


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--only", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--turns", type=int, help="of each way; by default as many as the setting says")
    parser.add_argument("--rounds", type=int, default=10**9, help="at most, >= 2, to try the script")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="fedclust-published-"))
    print(f"logs: {logs}", file=sys.stderr)
    for name in asked.only:
        ways = available([way for way in PUBLISHED[name].measured if way in asked.ways])
        times = measure(name, ways, asked.turns or PUBLISHED[name].turns, asked.rounds, logs)
        show(f"published-{name}", text(name, asked.rounds, times), asked.write)


if __name__ == "__main__":
    main()
