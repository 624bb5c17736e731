"""Clients trained per second, with aggregation; several ways take turns in one run.

    python benchmarks/rounds.py digits [--turns 7] [--ways fedclust-local stock-flower ...] [--write]
    python benchmarks/rounds.py cnn
    python benchmarks/rounds.py published-pfllib    and others of benchmarks/published.py
    … --before COMMIT …  what was checked out then takes turns, too

pfl-research is included if it is installed: pip install 'fedclust[benchmark]'. --write puts the table into
docs/PERFORMANCE.md. Run it on an idle machine; on a busy one only ratios are meaningful.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, arguments, free_ports, git, machine, rates, show
from published import PUBLISHED
from settings import SETTINGS
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


def available(ways: Sequence[str]) -> list[str]:
    """List the ways that are installed; say what is missing."""
    missing = importlib.util.find_spec("pfl") is None and any(way.startswith("pfl") for way in ways)
    if missing:
        print("pfl-research is skipped: pip install 'fedclust[benchmark]'", file=sys.stderr)
    return [way for way in ways if not missing or not way.startswith("pfl")]


def start(setting: str, way: str, log: Path, checkout: Path = ROOT) -> Group:
    """Start the processes of a way."""
    _, size, environment = WAYS[way]
    environment = {**environment, "PYTHONPATH": str(checkout)}
    if "MASTER_ADDR" in environment:
        environment["MASTER_PORT"] = str(free_ports(1)[0])
    command = [sys.executable, str(checkout / "benchmarks" / "ways.py"), setting, way]
    return Group(command, size, environment, log)


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("setting", choices=[*SETTINGS, *PUBLISHED])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--before", metavar="COMMIT", nargs="+", default=[])
    asked = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="fedclust-benchmark-"))
    print(f"logs: {logs}", file=sys.stderr)
    setting, groups = (SETTINGS | PUBLISHED)[asked.setting], dict[str, Group]()
    names = {way: name for way, (name, _, _) in WAYS.items()}
    try:
        for commit in asked.before:
            git("worktree", "add", "--detach", str(logs / commit), commit)
            names[commit] = f"{names['fedclust-local']}, commit {commit}"
            groups[commit] = start(asked.setting, "fedclust-local", logs / f"{commit}.log", logs / commit)
        for way in available(asked.ways or setting.ways or list(WAYS)):
            groups[way] = start(asked.setting, way, logs / f"{way}.log")
        seconds = interleave(groups, asked.turns)
    finally:
        for group in groups.values():
            group.close()
        for commit in filter(lambda each: (logs / each).exists(), asked.before):
            git("worktree", "remove", "--force", str(logs / commit))
    cohort = setting.cohort or setting.clients
    found = {names[way]: [cohort / took for took in values] for way, values in seconds.items()}
    text = rates("clients per second", found, names["fedclust-local"])
    show(
        asked.setting,
        f"{setting.title}. {setting.report}\n\n{machine()}, {asked.turns} turns.\n\n{text}",
        asked.write,
    )


if __name__ == "__main__":
    main()
