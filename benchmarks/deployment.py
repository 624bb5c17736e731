"""Where a round's seconds go on real SuperNodes: a SuperLink and idle SuperNodes on this machine.

    python benchmarks/deployment.py [--rounds 5] [--nodes 3] [--app FOLDER] [--write]

Starts what docs/DEPLOYMENT.md starts, in processes of its own and with ports of its own, runs FedAvg on the
digits, and prints a line per part of a message's way: as Flower is, and with executors that look for work
every 0.1 s (FLWR_SUPEREXEC_TASK_POLL_INTERVAL). The processes' log lines are timed as they arrive.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from common import arguments, free_ports, machine, show, table

_SCRIPTS = Path(sysconfig.get_path("scripts"))
_TICKS = os.sysconf("SC_CLK_TCK")
CLIENTS = 30


class Node:
    """A process of Flower that runs, and when it wrote which line."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str], folder: Path) -> None:
        self._given = command, environment, folder
        self._process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """Start it, anew after it was killed."""
        command, environment, folder = self._given
        self.lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.perf_counter(), line))

    def app_cpu_seconds(self) -> float:
        """CPU seconds of the app's processes that have ended and been waited for, which the last has not."""
        (executor,) = _children(self._process.pid)
        fields = Path(f"/proc/{executor}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / _TICKS

    def kill_app(self, name: str) -> None:
        """Kill the processes of an app that it has started, by their command's name."""
        started, found = [self._process.pid], list[int]()
        while started:
            pid = started.pop()
            started += _children(pid)
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        if not found:
            raise RuntimeError(f"no process {name} below {self._process.pid}")
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def messages(self) -> list[dict[str, float]]:
        """When each message came, its process said its first word, and its reply was sent."""
        found: list[dict[str, float]] = []
        marks = {"Receiving:": "came", "Start `flwr-clientapp`": "started", "Sending:": "done"}
        for seconds, line in self.lines:
            for mark, key in marks.items():
                if mark in line:
                    if key == "came":
                        kind = re.search(r"Receiving: (\S+)", line)
                        found.append({"train": float("train" in (kind[1] if kind else ""))})
                    found[-1][key] = seconds
        return [message for message in found if {"came", "started", "done"} <= message.keys()]

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill it, and collect it: the ServerApp of a SuperLink that is a zombie goes on."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it and what it started."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self.signal(signal.SIGKILL)


@dataclass(frozen=True)
class Flower:
    """A SuperLink and its SuperNodes.

    Attributes
    ----------
    env
        Environment of what is to find them.
    superlink, nodes
        The processes.
    connection
        Name of the connection in ``$FLWR_HOME/config.toml``.
    """

    env: dict[str, str]
    superlink: Node
    nodes: list[Node]
    connection: str


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def flower(home: Path, nodes: int, environment: Mapping[str, str]) -> Iterator[Flower]:
    """Start a SuperLink, for Flower's simulation where there are no nodes, and stop all of it at the end."""
    port, control, *own = free_ports(2 + nodes)
    env = {
        **environment,
        "PATH": os.pathsep.join([str(_SCRIPTS), environment.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    address = f"127.0.0.1:{port}"
    asked = [_SCRIPTS / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    if nodes:
        asked += ["--disable-runtime-dependency-installation"]
        text = f'[superlink]\ndefault = "dep"\n[superlink.dep]\naddress = "{address}"\ninsecure = true\n'
        (home / "config.toml").write_text(text)
    else:
        asked += ["--simulation", "--isolation", "subprocess", "--database", str(home / "state.db")]
        asked += ["--control-api-address", f"127.0.0.1:{control}"]
    with ExitStack() as stack:
        superlink = Node(asked, env, home)
        stack.callback(superlink.stop)
        _wait_for(f"http://{address}/health")
        started = []
        for number, its_port in enumerate(own):
            clients = f"{number * CLIENTS // nodes}-{(number + 1) * CLIENTS // nodes - 1}"
            command = [_SCRIPTS / "flower-supernode", "--insecure", "--superlink", address]
            command += ["--port", str(its_port), "--node-config", f"clients='{clients}'"]
            started.append(Node(command, env, home))
            stack.callback(started[-1].stop)
        yield Flower(env, superlink, started, "dep" if nodes else "local")


def _wait_for(address: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no SuperLink at {address}")


def measure(app: Path, rounds: int, nodes: int, poll: str | None) -> dict[str, float]:
    """Run a federation, and time the parts of its messages' ways."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = {**os.environ}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # sites compile the app once, not for every message
        if poll:
            environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = poll
        with flower(folder, nodes, environment) as started:
            sent = f"rounds={rounds} strategy=fedavg compare=[]"
            began = time.perf_counter()
            subprocess.run(
                [
                    *(_SCRIPTS / "flwr", "run", app, "dep", "--stream", "--run-config"),
                    f'overrides="{sent}" output-dir="{folder / "run"}"',
                ],
                env=started.env,
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
            )
            whole = time.perf_counter() - began
            messages = [node.messages() for node in started.nodes]
            cpu = sum(node.app_cpu_seconds() for node in started.nodes)
    gaps = [later["came"] - earlier["done"] for each in messages for earlier, later in pairwise(each)]
    every = [message for each in messages for message in each]
    first = min(message["came"] for message in every if message["train"])
    return {
        "seconds_per_round": (max(message["done"] for message in every) - first) / rounds,
        "seconds_of_the_run": whole,
        "messages_per_node": len(messages[0]),
        "between_reply_and_next_message": statistics.mean(gaps),
        "until_the_process_speaks": statistics.mean(m["started"] - m["came"] for m in every),
        "from_there_to_the_reply": statistics.mean(m["done"] - m["started"] for m in every),
        "cpu_seconds_per_message": cpu / (len(every) - nodes),  # Flower's part of the process included
    }


def main() -> None:
    """Run, and print the table."""
    parser = arguments(__doc__, page="DEPLOYMENT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--app", type=Path, default=Path(__file__).resolve().parent.parent)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped, too
    ways = {"as Flower is": None, "executors look every 0.1 s": "0.1"}
    found = [measure(asked.app, asked.rounds, asked.nodes, poll) for poll in ways.values()]
    rows = [[f"`{part}`", *(f"{each[part]:.1f}" for each in found)] for part in found[0]]
    about = f"{machine()}, {asked.nodes} SuperNodes, {asked.rounds} rounds of FedAvg, {CLIENTS} clients"
    show("seconds", f"{about}.\n\n{table(['', *ways], rows)}", asked.write)


if __name__ == "__main__":
    main()
