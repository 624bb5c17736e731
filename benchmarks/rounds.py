"""Clients trained per second, with aggregation; several ways take turns in one run.

    python benchmarks/rounds.py digits [--turns 7] [--ways fedclust-local stock-flower ...] [--write]
    python benchmarks/rounds.py cnn

pfl-research is included if it is installed: pip install 'fedclust[benchmark]'. --write puts the table into
docs/PERFORMANCE.md. Run it on an idle machine; on a busy one only ratios are meaningful.
"""

import argparse
import importlib.util
import socket
import sys
import tempfile
from pathlib import Path
from statistics import median

from settings import SETTINGS
from tables import machine, show, spread, table
from turns import Group, interleave

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PAIR = {
    **ONE_THREAD,
    "TORCHELASTIC_RUN_ID": "benchmark",
    "MASTER_ADDR": "127.0.0.1",
    "WORLD_SIZE": "2",
    "RANK": "{rank}",
    "LOCAL_RANK": "{rank}",
}

# As for fedclust's own nodes: at Ray's niceness of 15 other programs would slow these ways most.
EQUAL = {"RAY_worker_niceness": "0"}

# Name, in words, number of processes, their environment.
WAYS: dict[str, tuple[str, int, dict[str, str]]] = {
    "fedclust-local": ("fedclust, engine=local", 1, {}),
    "fedclust-ray": ("fedclust, engine=ray", 1, {}),
    "fedclust-flower": ("fedclust in Flower's simulation (flwr run)", 1, EQUAL),
    "fedclust-flower-1ms": ("the same, if Flower looked for messages every 1 ms", 1, EQUAL),
    "stock-flower": ("stock Flower, one SuperNode per client", 1, EQUAL),
    "pfl": ("pfl-research, one process", 1, ONE_THREAD),
    "pfl-2": ("pfl-research, two processes", 2, PAIR),
    "plain": ("plain PyTorch loop, one process", 1, ONE_THREAD),
    "plain-2": ("plain PyTorch loop, two processes", 2, ONE_THREAD),
    "vmapped": ("bare vmapped loop, one thread", 1, ONE_THREAD),
}


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--write", action="store_true", help="into docs/PERFORMANCE.md")
    arguments = parser.parse_args()
    ways = arguments.ways
    if importlib.util.find_spec("pfl") is None and any(way.startswith("pfl") for way in ways):
        print("pfl-research is skipped: pip install 'fedclust[benchmark]'", file=sys.stderr)
        ways = [way for way in ways if not way.startswith("pfl")]
    script = Path(__file__).with_name("ways.py")
    logs = Path(tempfile.mkdtemp(prefix="fedclust-benchmark-"))
    print(f"logs: {logs}", file=sys.stderr)
    groups = {}
    try:
        for way in ways:
            _, size, environment = WAYS[way]
            if "MASTER_ADDR" in environment:
                environment = {**environment, "MASTER_PORT": str(free_port())}
            command = [sys.executable, str(script), arguments.setting, way]
            groups[way] = Group(command, size, environment, logs / f"{way}.log")
        seconds = interleave(groups, arguments.turns)
    finally:
        for group in groups.values():
            group.close()
    setting = SETTINGS[arguments.setting]
    rates = {
        way: [(setting.cohort or setting.clients) / took for took in values]
        for way, values in seconds.items()
    }
    best = median(rates["fedclust-local"]) if "fedclust-local" in rates else None
    rows = [
        [
            WAYS[way][0],
            *spread(values, 1 if median(values) < 100 else 0),
            f"{median(values) / best:.2f}" if best else "",
        ]
        for way, values in rates.items()
    ]
    text = table(["clients per second", "median", "minimum", "maximum", "× engine=local"], rows)
    show(
        arguments.setting,
        f"{setting.title}; {machine()}, {arguments.turns} turns.\n\n{text}",
        arguments.write,
    )


if __name__ == "__main__":
    main()
