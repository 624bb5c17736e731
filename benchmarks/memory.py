"""How much memory a run takes: over many rounds, where it must not grow; and on a node with many clients.

    python benchmarks/memory.py [rounds node] [--strategies fedgwc ...] [--rounds 2000] [--write]

``rounds``: resident memory of a run of the command line, read from outside about every 100 rounds; the digits
over 20 clients, engine=local, evaluated every round and everything written that a run writes. ``node``: 1,000
clients of a network of 999,342 parameters on one node, server and node in processes of their own, by
``training.chunk``: the most resident memory of each while all clients train.
"""

import argparse
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from common import answer_of, arguments, machine, show, table
from flwr.app import Context, Message, RecordDict
from settings import Setting, Training
from torch import nn

from fedclust.grids.client_grid import ClientGrid
from fedclust.grids.local_grid import DirectGrid, answer
from fedclust.messages.models import from_state
from fedclust.settings.composition import to_run_config
from fedclust.support.flower import assume_identity

STRATEGIES = ("fedavg", "fedgwc", "clust_psi_pfl", "fmcl", "fedgmcc")
SETTING = ("partition.num_clients=20", "partition.groups=[12,8]", "training.steps=1")
SETTING = (*SETTING, "compare=[]", "proof=false")
LIGHT = {"fedgmcc": ("strategy.parameters.num_inputs=32", "strategy.parameters.steps=2", "participation=0.2")}
EVERY = 100
CLIENTS = 1000
CHUNKS = ("1", "10", "30", "100", "300", "auto")
RUN, NODE = 1, 2  # ids
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(process: int) -> float:
    """Read a process's resident memory, in MiB."""
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 2**20


def measure(strategy: str, rounds: int) -> tuple[dict[int, float], float]:
    """Run a strategy.

    Returns
    -------
    Resident memory by round, about every 100 rounds before the last one, after which the run's results are
    written, and the peak, in MiB.
    """
    seen: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        overrides = [f"strategy={strategy}", *SETTING, *LIGHT.get(strategy, ()), f"rounds={rounds}"]
        command = [sys.executable, "-m", "fedclust", *overrides, f"output_dir={folder}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        lines = folder / "rounds.jsonl"
        while True:
            done = lines.read_bytes().count(b"\n") if lines.is_file() else 0
            if 0 < done < rounds and done - max(seen, default=-EVERY) >= EVERY:
                seen[done] = resident(process.pid)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
    if status:
        raise RuntimeError(f"{strategy} must end with 0, got {os.waitstatus_to_exitcode(status)}")
    return seen, usage.ru_maxrss / 1024


def over_rounds(strategies: list[str], rounds: int) -> str:
    """Measure runs of so many rounds."""
    points = [max(1, round(share * rounds)) for share in (0.05, 0.1, 0.25, 0.5, 0.95)]
    rows = []
    for strategy in strategies:
        seen, peak = measure(strategy, rounds)
        print(
            f"{strategy}: {', '.join(f'{number} {mib:.1f}' for number, mib in seen.items())}", file=sys.stderr
        )
        near = [seen[min(seen, key=lambda number, point=point: abs(number - point))] for point in points]
        rows.append([strategy, *(f"{mib:.0f}" for mib in near), f"{peak:.0f}"])
    near_points = (f"near round {point:,}" for point in points)
    return table(["resident memory, MiB", *near_points, "peak, results included"], rows)


def large_model() -> nn.Module:
    """Build a network of 999,342 parameters: 785,000 + 212,212 + 2,130."""
    layers = [nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 212), nn.ReLU(), nn.Linear(212, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


class _Peaks:
    """The most resident memory of this process since the last look."""

    def __init__(self) -> None:
        self.before = resident(os.getpid())
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far

    def read(self) -> tuple[float, float]:
        """Return what was resident at the start, and the most since, in MiB."""
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
        return self.before, int(peak) / 1024


class Elsewhere(DirectGrid):
    """One node with all clients, in a process of its own.

    Attributes
    ----------
    peaks
        By each round of training, what was resident on the node before it, and the most during it, in MiB.
    """

    def __init__(self, run_config: Mapping[str, str | int | float | bool]) -> None:
        super().__init__()
        spawned = multiprocessing.get_context("spawn")
        self._node, other = spawned.Pipe()
        spawned.Process(target=serve, args=(other, dict(run_config)), daemon=True).start()
        self.peaks: list[tuple[float, float]] = []

    def get_node_ids(self) -> list[int]:
        """Return the node's id."""
        return [NODE]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002
        """Let the node answer; return its replies."""
        replies = []
        for message in messages:
            self.label(message)
            self._node.send(message)
            reply, peaks = self._node.recv()
            replies.append(reply)
            if message.metadata.message_type == "train":
                self.peaks.append(peaks)
        return replies


def serve(connection: Connection, run_config: dict[str, str | int | float | bool]) -> None:
    """Answer messages, and say how much memory each took."""
    from fedclust.clients import app

    assume_identity(RUN)
    place: dict[str, str | int | float | bool] = {"partition-id": 0, "num-partitions": 1, "allow": "*"}
    context = Context(RUN, NODE, place, RecordDict(), run_config)
    while True:
        message = connection.recv()
        peaks = _Peaks()
        connection.send((answer(app, message, context), peaks.read()))


def on_a_node(chunk: str) -> dict[str, float]:
    """Train all clients once, then again; return the most memory of both processes, and the time."""
    training = {"learning_rate": 0.05, "batch_size": 16, "steps": 1}
    config = Setting("", CLIENTS, 16, 28, "digits_model", training).config()
    config.model = {"_target_": "memory.large_model"}
    config.training.chunk = chunk if chunk == "auto" else int(chunk)
    node = Elsewhere(to_run_config(config))
    grid = ClientGrid(node)
    grid.connect()
    arrays = from_state(large_model().state_dict())
    Training().start(grid, arrays, num_rounds=1)
    peaks, began = _Peaks(), time.perf_counter()
    Training().start(grid, arrays, num_rounds=1)
    seconds = time.perf_counter() - began
    server_before, server = peaks.read()
    return {
        "node_before": node.peaks[0][0],
        "node": max(peak for _, peak in node.peaks),
        "server_before": server_before,
        "server": server,
        "seconds": seconds,
    }


def by_chunk(chunks: list[str]) -> str:
    """Measure each chunk in processes of its own."""
    rows = []
    for chunk in chunks:
        found = answer_of(__file__, chunk, OMP_NUM_THREADS="1")
        print(chunk, found, file=sys.stderr)
        added = found["node"] - found["node_before"]
        rows.append(
            [
                chunk,
                *(f"{value:,.0f}" for value in (found["node_before"], found["node"], added)),
                f"{found['server_before']:,.0f}",
                f"{found['server']:,.0f}",
                f"{found['seconds']:.1f}",
            ]
        )
    head = ["training.chunk", "node before, MiB", "node's peak", "added by the round"]
    return table([*head, "server before", "server's peak", "s per round"], rows)


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("parts", nargs="*", metavar="part", help="rounds, node; both by default")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--chunks", nargs="+", default=CHUNKS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.parts) - {"rounds", "node"}:
        parser.error(f"parts must be among rounds, node, got {', '.join(sorted(unknown))}")
    if asked.one:
        logging.disable(logging.INFO)
        print(json.dumps(on_a_node(asked.one)))
        return
    for part in asked.parts or ("rounds", "node"):
        if part == "rounds":
            text = over_rounds(list(asked.strategies), asked.rounds)
        else:
            text = by_chunk(list(asked.chunks))
        show(f"memory-{part}", f"{machine()}.\n\n{text}", asked.write)


if __name__ == "__main__":
    import memory  # under its own name, by which the node's process finds it

    memory.main()
