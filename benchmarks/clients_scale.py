"""Time and memory of a run by its number of clients: 100 to 100,000, of which 100 take part in a round.

    python benchmarks/clients_scale.py [--clients 100 1000] [--strategies fedavg fedgwc] [--write]

A user's whole run, results included, under engine=local on one thread, each in its own process: 4 rows of 64
inputs per client, of which one is for tests, and the network 64-64-10. Every fifth round 100 clients evaluate
(``evaluate_clients=100``), after the last round all. Server and nodes are one process here, so the peak
memory is that of both. Times are CPU time of that process, which other load on the machine changes less.
"""

import argparse
import io
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import answer_of, arguments, machine, records, show

CLIENTS = (100, 1000, 10_000, 100_000)
STRATEGIES = ("fedavg", "fedgwc")
COHORT = 100
_EVERY = 5  # rounds between evaluations of a sample


def measure(strategy: str, clients: int, rounds: int) -> dict[str, float]:
    """Run a federation in this process.

    Parameters
    ----------
    strategy
        Name of the strategy.
    clients
        Number of clients K.
    rounds
        Rounds of the run.

    Returns
    -------
    Seconds of each part, the peak memory in GiB and megabytes of files.
    """
    import torch
    from rich.console import Console
    from settings import random_images

    from fedclust.federation.run import Round, Run
    from fedclust.results import Recorder
    from fedclust.runs.server import federate, make_engine
    from fedclust.settings.composition import compose

    begun: list[float] = []
    ended: dict[int, float] = {}
    begin, record_round = Run.next_round, Recorder.round

    def begins(self: Run) -> Round:
        begun.append(time.process_time())
        return begin(self)

    def recorded(self: Recorder, record: Mapping[str, object]) -> None:
        record_round(self, record)
        ended[len(begun)] = time.process_time()

    Run.next_round = begins  # type: ignore[method-assign]
    Recorder.round = recorded  # type: ignore[method-assign]
    torch.set_num_threads(1)
    config = compose(
        [
            f"strategy={strategy}", "compare=[]", "proof=false", "partition=iid",
            f"partition.num_clients={clients}", f"participation={COHORT / clients}", f"rounds={rounds}",
            f"evaluate_every={_EVERY}", f"evaluate_clients={COHORT}", "device=cpu",
        ]
    )  # fmt: skip
    random_images(config, 4 * clients, (1, 8, 8))
    config.partition.test_fraction = 0.25
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        began = time.process_time()
        federate(config, make_engine(config), folder, Console(file=io.StringIO()))
        after = time.process_time() - ended[rounds]
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    took = {number: ended[number] - begun[number - 1] for number in ended}
    evaluated = {line["round"] for line in lines if "mean_client_accuracy" in line}
    plain = statistics.median(took[number] for number in took if number > 1 and number not in evaluated)
    sampled = [took[number] - plain for number in sorted(evaluated - {rounds})]
    saved = sum(size for path, size in files.items() if path.parent.name == "checkpoints")
    return {
        "start": begun[0] - began,
        "round": plain,
        "sample": statistics.median(sampled),
        "all": took[rounds] - plain,
        "after": after,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "checkpoint": saved / 1e6,
        "files": (sum(files.values()) - saved) / 1e6,
    }


def compare(strategy: str, sizes: Sequence[int], rounds: int) -> str:
    """Run all numbers of clients, each in its own process; return the table."""
    found: dict[int, dict[str, float]] = {}
    for clients in sizes:
        found[clients] = answer_of(__file__, strategy, clients, rounds)
        print(f"{strategy}, {clients:,} clients: {found[clients]}", file=sys.stderr)
    rows = [
        {
            "clients": f"{clients:,}",
            "start, s": f"{one['start']:.1f}",
            "ms per round": f"{1000 * one['round']:.0f}",
            "100 evaluate, ms": f"{1000 * one['sample']:.0f}",
            "all evaluate, s": f"{one['all']:.2f}",
            "µs per client": f"{1e6 * one['all'] / clients:,.0f}",
            "results, s": f"{one['after']:.1f}",
            "peak, GiB": f"{one['peak']:.2f}",
            "checkpoint, MB": f"{one['checkpoint']:.1f}",
            "other files, MB": f"{one['files']:.1f}",
        }
        for clients, one in found.items()
    ]
    return records(rows)


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        strategy, clients, rounds = asked.one
        print(json.dumps(measure(strategy, int(clients), int(rounds))))
        return
    if min(asked.clients) < COHORT:
        parser.error(f"clients must be >= {COHORT}, got {min(asked.clients)}")
    if asked.rounds <= _EVERY:
        parser.error(f"rounds must be > {_EVERY}, got {asked.rounds}")
    parts = []
    for strategy in asked.strategies:
        parts.append(f"{strategy}:\n\n{compare(strategy, asked.clients, asked.rounds)}")
    show("scale", f"{machine()}.\n\n" + "\n\n".join(parts), asked.write)


if __name__ == "__main__":
    main()
