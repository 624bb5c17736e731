"""Time of whole commands, as their user waits for them; the commands take turns.

    python benchmarks/commands.py [--turns 3] [--write]

The SuperLink of Flower's simulation is there before: it stays from one command to the next.
From the command line to the first finished round, to the end, and how much of it the strategies' own rounds
take (``seconds`` in summary.json).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

from common import ROOT, arguments, in_turns, machine, show, spread, table
from deployment import flower

FEDAVG = ("strategy=fedavg", "compare=[]")
COMMANDS: dict[str, tuple[str, ...]] = {
    "default run: `auto`, then FedAvg": (),
    "FedAvg alone, 1 round, no proof": (*FEDAVG, "proof=false", "rounds=1"),
    "FedAvg alone, 300 rounds, no proof": (*FEDAVG, "proof=false", "rounds=300"),
    "default run, `engine=ray`": ("engine=ray",),
    "default run, Flower's simulation": ("engine=superlink", "engine.connection=local"),
}

PARTS = ("to round 1", "whole", "first method's rounds", "FedAvg's rounds", "the rest")


def timed(overrides: tuple[str, ...], environment: Mapping[str, str], _: int) -> dict[str, float]:
    """Run a command; return its times in seconds, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "fedclust", *overrides, f"hydra.run.dir={run}"]
        began = time.perf_counter()
        with (Path(scratch) / "log").open("w") as log:
            process = subprocess.Popen(command, env=environment, cwd=scratch, stdout=log, stderr=log)
        rounds, found = run / "rounds.jsonl", dict[str, float]()
        while process.poll() is None:
            if not found and rounds.is_file() and rounds.stat().st_size:
                found["to round 1"] = time.perf_counter() - began
            time.sleep(0.01)
        found["whole"] = time.perf_counter() - began
        if process.returncode not in (0, 3):  # 3: models that predict no better than class shares
            raise RuntimeError((Path(scratch) / "log").read_text())
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    found["first method's rounds"] = summary["seconds"]
    others = sum(each["seconds"] for each in summary["compare"].values())
    return found | {"FedAvg's rounds": others, "the rest": found["whole"] - summary["seconds"] - others}


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as home, flower(Path(home), 0, os.environ) as started:
        environment = started.env | {"PYTHONPATH": str(ROOT)}
        ways = {name: partial(timed, overrides, environment) for name, overrides in COMMANDS.items()}
        times = in_turns(ways, asked.turns)
    for name, found in times.items():
        columns = {key: [each[key] for each in found] for key in PARTS}
        middle = [f"{median(values):.1f}" if any(values) else "–" for values in columns.values()]
        rows.append([name, *middle, *spread(columns["whole"], 1)[1:]])
    head = ["seconds, median", *PARTS, "whole, minimum", "maximum"]
    show("commands", f"{machine()}, {asked.turns} turns.\n\n{table(head, rows)}", asked.write)


if __name__ == "__main__":
    main()
