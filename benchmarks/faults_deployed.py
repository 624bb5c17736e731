"""Faults of Flower's simulation and of SuperNodes on this machine, for faults.py."""

import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deployment import free_ports
from faults_runs import Fault, Place, Row, lost, noted, said, wait_for_round

from fedclust.results import SavedRun
from fedclust.settings import CONF

__all__ = ["DEPLOYED_FAULTS"]

_SCRIPTS = Path(sysconfig.get_path("scripts"))
_SECONDS = 1200
_RUN = ("strategy=fedavg", "compare=[]", "proof=false", "checkpoint_every=1", "training.mode=sequential")


@dataclass
class _Flower:
    """A SuperLink and its SuperNodes."""

    env: dict[str, str]
    superlink: subprocess.Popen
    nodes: list[subprocess.Popen]
    connection: str
    start: Callable[[list[str]], subprocess.Popen]

    def restart(self, process: subprocess.Popen) -> None:
        """Run a process that was killed again."""
        self.start([*map(str, process.args)])


@contextmanager
def _flower(place: Place, fault: dict | None, nodes: int) -> Iterator[_Flower]:
    """Start a SuperLink, for simulation where there are no nodes, and stop all of it at the end."""
    port, control, *own = free_ports(2 + nodes)
    home = place.root / f"flower-{port}"
    home.mkdir(parents=True)
    env = place.environment(
        fault,
        PATH=os.pathsep.join([str(_SCRIPTS), os.environ.get("PATH", "")]),
        FLWR_HOME=str(home),
        FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(port),
        FLWR_LOCAL_CONTROL_API_PORT=str(control),
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
        FLWR_DISABLE_UPDATE_CHECK="1",
        OMP_NUM_THREADS="1",
    )
    asked = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    if nodes:
        asked += ["--disable-runtime-dependency-installation"]
        text = (
            f'[superlink]\ndefault = "dep"\n[superlink.dep]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(text)
    else:
        asked += ["--simulation", "--isolation", "subprocess", "--database", str(home / "state.db")]
        asked += ["--control-api-address", f"127.0.0.1:{control}"]
    started: list[subprocess.Popen] = []

    def start(command: list[str]) -> subprocess.Popen:
        with (home / f"{len(started)}.log").open("w") as log:
            started.append(
                subprocess.Popen(command, env=env, cwd=home, stdout=log, stderr=log, start_new_session=True)
            )
        return started[-1]

    try:
        superlink = start(asked)
        _wait_for(f"http://127.0.0.1:{port}/health")
        hosts = []
        for node, its_port in enumerate(own):
            clients = f"{node * 30 // nodes}-{(node + 1) * 30 // nodes - 1}"
            command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
            hosts.append(start([*command, "--port", str(its_port), "--node-config", f"clients='{clients}'"]))
        yield _Flower(env, superlink, hosts, "dep" if nodes else "local", start)
    finally:
        for process in reversed(started):
            _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen, number: int) -> None:
    """Send a signal to a process that was started here, and to its children."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _wait_for(address: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.3)
    raise TimeoutError(f"no SuperLink at {address}")


def _app(place: Place) -> Path:
    """Copy the app, with clients that have the fault; Flower sends it to the nodes."""
    app = place.root / "faulty-app"
    if not app.exists():
        for part in ("fedclust", "strategies", "clients", "conf"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CONF.parent / part, app / part, symlinks=True, ignore=ignored)
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(CONF.parent / file, app / file)
        shutil.copy(Path(__file__).parent / "faulty_clients.py", app / "fedclust" / "client_app.py")
    return app


def _submit(place: Place, flower: _Flower, folder: Path, overrides: tuple[str, ...]) -> subprocess.Popen:
    """Submit the app by ``fedclust engine=superlink``, from its copy with faulty clients."""
    env = {**flower.env, "PYTHONPATH": str(_app(place))}
    asked = (*_RUN, *overrides, "engine=superlink", f"engine.connection={flower.connection}")
    return place.start(folder, *asked, env=env)


def _outcome(place: Place, folder: Path, code: int, printed: str, rounds: str) -> Row:
    """Say what was seen and lost; a run that stopped is resumed in one process first."""
    if code:
        return place.outcome(folder, code, printed, rounds, "engine=local")
    waited = re.findall("waiting for clients: .* must answer.*", printed)
    what = lost(folder, place.clean(rounds))
    for name, other in SavedRun(folder).compared.items():
        what += f"; {name}: {other.summary['failed_replies']} replies, K = {other.summary['num_clients']}"
    return {"saw": waited[0] if waited else noted(folder), "exit": code, "lost": what}


def _simulated(fault: dict, overrides: tuple[str, ...], place: Place) -> Row:
    with _flower(place, fault, 0) as flower:
        folder = place.new("simulated")
        process = _submit(place, flower, folder, ("rounds=4", *overrides))
        return _outcome(place, folder, *place.finish(process, _SECONDS), "rounds=4")


def _deployed(
    act: Callable[[_Flower], None], place: Place, *overrides: str, rounds: int = 3, below: str = "."
) -> Row:
    with _flower(place, None, 3) as flower:
        folder = place.new("deployed")
        process = _submit(place, flower, folder, (f"rounds={rounds}", *overrides))
        if not wait_for_round(folder / below, 1, process, _SECONDS):
            return {"saw": said(place.finish(process, 1)[1]), "exit": process.returncode, "lost": "?"}
        act(flower)
        return _outcome(place, folder, *place.finish(process, _SECONDS), f"rounds={rounds}")


def _kill_a_node(flower: _Flower) -> None:
    _signal(flower.nodes[2], signal.SIGKILL)


def _kill_two_nodes(flower: _Flower) -> None:
    for node in flower.nodes[1:]:
        _signal(node, signal.SIGKILL)


def _kill_all_nodes_for_a_minute(flower: _Flower) -> None:
    for node in flower.nodes:
        _signal(node, signal.SIGKILL)
    time.sleep(60)
    for node in flower.nodes:
        flower.restart(node)


def _restart_a_node(flower: _Flower) -> None:
    _kill_a_node(flower)
    flower.restart(flower.nodes[2])


def _restart_the_superlink(flower: _Flower) -> None:
    _kill_the_superlink(flower)
    flower.restart(flower.superlink)


def _stop_a_node(flower: _Flower) -> None:
    _signal(flower.nodes[2], signal.SIGSTOP)


def _kill_the_superlink(flower: _Flower) -> None:
    _signal(flower.superlink, signal.SIGKILL)


def _between(place: Place) -> Row:
    """Kill a node when the method has ended and what it is compared with has begun."""
    return _deployed(_kill_a_node, place, "compare=[local]", rounds=2, below="compare/local")


_SIMULATION, _DEPLOYED = "Flower's simulation", "three SuperNodes and a SuperLink"

DEPLOYED_FAULTS = (
    Fault(_SIMULATION, "a node raises in round 2", partial(_simulated, {"kind": "raise", "rounds": [2]}, ())),
    Fault(
        _SIMULATION,
        "a Ray actor is killed (kill -9) in round 2",
        partial(_simulated, {"kind": "kill", "rounds": [2]}, ()),
    ),
    Fault(
        _SIMULATION,
        "a node hangs in round 2, timeout=30",
        partial(_simulated, {"kind": "hang", "rounds": [2]}, ("timeout=30",)),
    ),
    Fault(
        _SIMULATION,
        "the raylet is killed in round 2",
        partial(_simulated, {"kind": "kill parent", "rounds": [2]}, ("timeout=60",)),
    ),
    Fault(_DEPLOYED, "a SuperNode is killed after round 1 of 3", partial(_deployed, _kill_a_node)),
    Fault(_DEPLOYED, "a SuperNode is killed between the method and its comparison", _between),
    Fault(_DEPLOYED, "the SuperLink is killed after round 1 of 3", partial(_deployed, _kill_the_superlink)),
    Fault(
        _DEPLOYED,
        "a SuperNode is stopped (kill -STOP) after round 1 of 3, timeout=60",
        lambda place: _deployed(_stop_a_node, place, "timeout=60"),
    ),
    Fault(
        _DEPLOYED,
        "two of three SuperNodes are killed after round 1 of 3, min_replies=0.5, max_outage=60",
        lambda place: _deployed(_kill_two_nodes, place, "min_replies=0.5", "max_outage=60"),
    ),
    Fault(
        _DEPLOYED,
        "all SuperNodes are killed after round 1 of 3, and started again a minute later",
        partial(_deployed, _kill_all_nodes_for_a_minute),
    ),
    Fault(
        _DEPLOYED,
        "a SuperNode is killed in round 2 of 3 and started again at once",
        partial(_deployed, _restart_a_node),
    ),
    Fault(
        _DEPLOYED,
        "the SuperLink is killed after round 1 of 3 and started again at once",
        partial(_deployed, _restart_the_superlink),
    ),
)
