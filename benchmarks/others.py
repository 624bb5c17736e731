"""Clients trained per second by other packages of clustered federated learning, CFLA and fed-clma.

    pip install --target FOLDER --no-deps cfla==1.0.4 fed-clma==0.1.1
    PYTHONPATH=FOLDER python benchmarks/others.py [cfla fed-clma] [--turns 7] [--write]

Both and fedclust train in turns on the same clients, with the same network and hyperparameters
(others_ways.py).
Starting is not counted, and evaluation only where a row says so. CFLA's function of its command runs as it is
but for the data, which it would download, and for the evaluation.
"""

import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path

from common import answer_of, rates, show_parts, table
from rounds import EQUAL
from turns import Group, interleave

SCRIPT = str(Path(__file__).with_name("others_ways.py"))
ROUNDS = 50  # before the accuracy: the default of CFLA's command
# By package: its module, clients a round, and ways with their names, ours first.
PARTS: dict[str, tuple[str, int, dict[str, str]]] = {
    "cfla": (
        "cfla",
        10,
        {
            "fedclust-ifca": "fedclust, IFCA",
            "cfla": "CFLA, IFCA",
            "fedclust-ifca-evaluated": "fedclust, IFCA, all clients evaluated in every round",
            "cfla-evaluated": "CFLA, IFCA, evaluating as its command does",
        },
    ),
    "fed-clma": (
        "clma",
        50,
        {
            "fedclust-fedavg": "fedclust, FedAvg, engine=local",
            "fedclust-flower": "fedclust, FedAvg in Flower's simulation (flwr run)",
            "fed-clma": "fed-clma in Flower's simulation, one SuperNode per client",
        },
    ),
}


def compared(part: str, turns: int) -> str:
    """Let a package and fedclust take turns; then compare how well their clients' models predict."""
    module, cohort, ways = PARTS[part]
    if importlib.util.find_spec(module) is None:
        print(f"{part} is skipped: it is not installed, see --help", file=sys.stderr)
        ways = {way: name for way, name in ways.items() if way.startswith("fedclust")}
    logs, groups = Path(tempfile.mkdtemp(prefix="fedclust-benchmark-")), dict[str, Group]()
    print(f"logs: {logs}", file=sys.stderr)
    try:
        for way in ways:
            groups[way] = Group([sys.executable, SCRIPT, "--one", way], 1, EQUAL, logs / f"{way}.log")
        seconds = interleave(groups, turns)
    finally:
        for group in groups.values():
            group.close()
    base, *_ = ways.values()
    found = {ways[way]: [cohort / took for took in values] for way, values in seconds.items()}
    ends = [way for way in (next(iter(ways)), part) if way in seconds]
    accuracy = [[ways[way], f"{answer_of(SCRIPT, way, 'accuracy', ROUNDS, **EQUAL):.3f}"] for way in ends]
    head = [f"after {ROUNDS} rounds", "mean accuracy of the clients"]
    return f"{rates('clients per second', found, base)}\n\n{table(head, accuracy)}"


def main() -> None:
    """Print the tables."""
    show_parts({part: partial(compared, part) for part in PARTS}, __doc__, "others-")


if __name__ == "__main__":
    main()
