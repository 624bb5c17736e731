"""Start runs for faults.py, break them, and say what is left."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from deployment import Flower, Node, flower
from filelock import FileLock, Timeout

from fedclust.results import SavedRun, comparable
from fedclust.settings.composition import CONF

Row = dict[str, Any]
ROUNDS = 6
SECONDS = 1200  # a deployed run at most
BASE = ("strategy=fedavg", "compare=[]", "proof=false", f"rounds={ROUNDS}", "checkpoint_every=1")
BASE = (*BASE, "training.mode=sequential")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Place:
    """The folder of all runs."""

    root: Path

    def new(self, name: str) -> Path:
        """Return a new folder for a run; its parent exists."""
        parent = self.root / "runs"
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            folder = parent / f"{name}-{number}"
            if not folder.exists():
                return folder
        raise FileExistsError(parent)

    def environment(self, fault: dict | None = None, **more: str) -> dict[str, str]:
        """Return the environment of a run, with the fault that its clients have."""
        self.root.mkdir(parents=True, exist_ok=True)
        file = self.root / f"fault-{os.getpid()}.json"
        file.unlink(missing_ok=True)
        if fault is not None:
            file.write_text(json.dumps(fault))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_HERE), str(_HERE.parent)]),
            "FEDCLUST_FAULT": str(file),
            "FEDCLUST_CACHE": str(self.root / "cache"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "COLUMNS": "500",
            **more,
        }

    def start(self, folder: Path, *overrides: str, env: dict[str, str]) -> subprocess.Popen:
        """Start a run."""
        command = [sys.executable, "-m", "fedclust", *overrides, f"output_dir={folder}"]
        return subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=self.root,
        )

    def finish(self, process: subprocess.Popen, timeout: float = SECONDS) -> tuple[int, str]:
        """Wait for a run; return its exit code, and what it printed."""
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            return 124, printed
        return process.returncode, printed

    def run(self, folder: Path, *overrides: str, env: dict[str, str]) -> tuple[int, str]:
        """Run to the end."""
        return self.finish(self.start(folder, *overrides, env=env))

    def clean(self, *overrides: str) -> SavedRun:
        """Return the run without a fault; made once."""
        name = "clean" + re.sub(r"[^a-z0-9]+", "-", "".join(overrides))
        folder = self.root / name
        if not (folder / "summary.json").is_file():
            code, printed = self.run(folder, *BASE, *overrides, env=self.environment())
            if code:
                raise RuntimeError(printed)
        return SavedRun(folder)

    def broken(self, fault: dict | None, *overrides: str, **more: Any) -> Row:
        """Run with faulty clients, resume the run if it stopped, and say what was lost."""
        folder = self.new(more.pop("name", "run"))
        env = self.environment(fault, **more)
        code, printed = self.run(folder, *BASE, "client_app=faulty_clients.app", *overrides, env=env)
        return self.outcome(folder, code, printed, *overrides)

    def outcome(self, folder: Path, code: int, printed: str, *overrides: str) -> Row:
        """Say what the user saw and what was lost."""
        saw = said(printed)
        rescued = re.search(r"is now in (\S+);", printed)
        length = [text for text in overrides if text.startswith("rounds=")]
        engine = [text for text in overrides if text == "engine=local"]
        if (folder / "summary.json").is_file() and code == 0:
            what = lost(folder, self.clean(*length))
            if not (folder / "report.html").is_file():
                what += "; report.html, which `fedclust report` writes"
            return {"saw": saw or noted(folder), "exit": code, "lost": what}
        back = Path(rescued[1]) if rescued else folder
        rounds = len(SavedRun(back).rounds) if (back / "rounds.jsonl").is_file() else 0
        again, told = self.run(back, f"resume={back}", *engine, *length, env=self.environment())
        if again:
            return {"saw": saw, "exit": code, "lost": f"stopped after round {rounds}; {said(told)}"}
        what = lost(back, self.clean(*length))
        return {"saw": saw, "exit": code, "lost": f"{what} (resumed)"}


_WRONG = "Traceback|damaged|could not be written|Error"


def said(printed: str) -> str:
    """Find the line that says what went wrong, without paths that differ from run to run."""
    lines = [line for line in printed.splitlines() if line.startswith(("fedclust:", "Timeout ("))]
    lines = lines or [line for line in printed.splitlines() if re.search(_WRONG, line)][-1:]
    line = " ".join(lines[-1:])
    line = re.sub(r"/\S*?(fedclust-rescued-)\w+", r"/tmp/\1…", line)
    line = re.sub(r"/\S*/runs/([\w-]+?)-\d+", r"outputs/\1", line)
    line = re.sub(r"/\S*/cache/", "~/.cache/fedclust/", line)
    return line if len(line) < 420 else f"{line[:420]} …"


def noted(folder: Path) -> str:
    """Return the reason of a run's first failure, as its rounds.jsonl has it."""
    for line in SavedRun(folder).rounds:
        for failure in line["failures"]:
            return f"in rounds.jsonl: client {failure['client']}: {failure['reason']}"[:300]
    return ""


def lost(folder: Path, clean: SavedRun) -> str:
    """Say what a finished run lost against the one without a fault."""
    run = SavedRun(folder)
    figures = ("assignment", "global_accuracy", "mean_client_accuracy", "figures_of_round")
    same = all(run.summary[key] == clean.summary[key] for key in figures)
    failed = run.summary["failed_replies"]
    if same and comparable(run.rounds) == comparable(clean.rounds):
        return "nothing: every round and figure as without the fault"
    asked = sum(len(line["cohort"]) for line in run.rounds) + len(run.rounds) * run.summary["num_clients"]
    now, was = (each.summary["mean_client_accuracy"] for each in (run, clean))
    return f"{failed} of {asked} replies; accuracy {now:.3f}, without the fault {was:.3f}"


def wait_for_round(folder: Path, number: int, process: subprocess.Popen | None, seconds: float) -> bool:
    """Wait until a run has finished a round; False if it ended or took too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        path = folder / "rounds.jsonl"
        if path.is_file() and path.read_text().count("\n") >= number:
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(0.3)
    return False


# -- Clients, signals and disks, in one process or under Ray -------------------------------------------------


def clients(
    kind: str, *overrides: str, rounds: tuple[int, ...] = (3,), **more: Any
) -> Callable[[Place], Row]:
    """Return a run whose clients do something, in some rounds or (with none) in all."""
    fault = {"kind": kind, **({"rounds": rounds} if rounds else {}), **more}
    return lambda place: place.broken(fault, *overrides)


@contextmanager
def _mounted(disk: Path, *options: str) -> Iterator[None]:
    """Mount a small file system."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def on_a_disk(
    command: str, kind: str = "run", repair: str = "true", *, mount: bool = True, temporary: bool = True
) -> Callable[[Place], Row]:
    """Return a run on a small disk on which a client does something in round 3; repair it; resume.

    The temporary folder is elsewhere, or on the disk as well.
    """

    def run(place: Place) -> Row:
        disk = place.new("disk") / "mount"
        disk.mkdir(parents=True)
        with _mounted(disk, "size=4m") if mount else nullcontext():
            (disk / "tmp").mkdir()
            here = disk / "run"
            fault = {"kind": kind, "rounds": [3], "command": command.format(disk=disk, run=here)}
            env = place.environment(fault, **({} if temporary else {"TMPDIR": str(disk / "tmp")}))
            code, printed = place.run(here, *BASE, "client_app=faulty_clients.app", env=env)
            subprocess.run(["bash", "-c", repair.format(disk=disk, run=here)], check=False)
            return place.outcome(here, code, printed)

    return run


def resumed(damage: str) -> Callable[[Place], Row]:
    """Return a run that is killed in round 5, whose folder is damaged, and which is resumed."""

    def run(place: Place) -> Row:
        folder = place.new("resumed")
        env = place.environment({"kind": "kill", "rounds": [5]})
        place.run(folder, *BASE, "client_app=faulty_clients.app", env=env)
        subprocess.run(["bash", "-c", damage], cwd=folder, check=True)
        code, printed = place.run(folder, f"resume={folder}", env=place.environment())
        row = place.outcome(folder, code, printed)
        return row | ({"lost": "the resume; the files stay as they are"} if code else {})

    return run


def small_cache(place: Place) -> Row:
    """Prepare the data on a disk that is too small for it, then with enough room."""
    folder, disk = place.new("small-cache"), place.new("disk")
    disk.mkdir(parents=True)
    with _mounted(disk, "size=64k"):
        code, printed = place.run(folder, *BASE, env=place.environment(FEDCLUST_CACHE=str(disk)))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        again, told = place.run(folder, *BASE, env=place.environment(FEDCLUST_CACHE=str(disk)))
    what = said(told) if again else f"{lost(folder, place.clean())} (run again with room)"
    return {"saw": said(printed), "exit": code, "lost": what}


def read_only_from_the_start(place: Place) -> Row:
    """Run into a file system that cannot be written."""
    disk = place.new("disk")
    disk.mkdir(parents=True)
    with _mounted(disk, "ro"):
        code, printed = place.run(disk / "run", *BASE, env=place.environment())
    return {"saw": said(printed), "exit": code, "lost": "nothing: no round has begun"}


def without_temporary_folder(place: Place) -> Row:
    """The models are saved in the temporary folder if the disk is full: also here?"""
    folder = place.new("run")
    code, printed = place.run(folder, *BASE, env=place.environment(TMPDIR=str(place.root / "none")))
    return place.outcome(folder, code, printed)


def two_at_once(*, resumes: bool) -> Callable[[Place], Row]:
    """Return two runs in one folder, or of which both resume one, at the same time."""

    def run(place: Place) -> Row:
        folder = place.new("two")
        if resumes:
            env = place.environment({"kind": "kill", "rounds": [4]})
            place.run(folder, *BASE, "client_app=faulty_clients.app", env=env)
        asked = [f"resume={folder}"] if resumes else BASE
        both = [place.start(folder, *asked, env=place.environment()) for _ in range(2)]
        ended = sorted(place.finish(process) for process in both)
        row = place.outcome(folder, *ended[0])
        return row | {"saw": said(ended[1][1]), "exit": ended[1][0], "lost": f"{row['lost']} (the other run)"}

    return run


_NOTEBOOK = """
import os, sys, fedclust
try:
    fedclust.run(sys.argv[2:])
except KeyboardInterrupt:
    print("fedclust: KeyboardInterrupt, as any other cell")
os.remove(os.environ["FEDCLUST_FAULT"])
fedclust.run([f"resume={sys.argv[1]}"])
"""


def notebook(place: Place) -> Row:
    """Interrupt a run that was started from Python, and resume it in the same process."""
    folder = place.new("notebook")
    asked = [*BASE, "client_app=faulty_clients.app", f"output_dir={folder}"]
    command = [sys.executable, "-c", _NOTEBOOK, str(folder), *asked]
    env = place.environment({"kind": "signal", "rounds": [3], "number": int(signal.SIGINT)})
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    row = place.outcome(folder, done.returncode, done.stdout + done.stderr)
    return row | {"lost": f"{row['lost']} (resumed)"}


# -- Prepared data ------------------------------------------------------------------------------------------


def damaged(pattern: str, change: Callable[[Path], object]) -> Callable[[Place], Row]:
    """Return a run whose prepared data are changed: the only file that the pattern finds."""
    return lambda place: _run_damaged(pattern, change, place)


def _run_damaged(pattern: str, change: Callable[[Path], object], place: Place) -> Row:
    clean = place.clean()
    cache = place.root / "damaged-cache"
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(place.root / "cache", cache)
    (found,) = cache.glob(pattern)
    change(found)
    folder = place.new("cache")
    code, printed = place.run(folder, *BASE, env=place.environment(FEDCLUST_CACHE=str(cache)))
    lines = [line for line in printed.splitlines() if "damaged" in line or line.startswith("fedclust:")]
    lines = lines or printed.strip().splitlines()[-1:] if code else lines
    line = " ".join(lines).replace(str(cache), "~/.cache/fedclust")
    return {"saw": line, "exit": code, "lost": "the run" if code else lost(folder, clean)}


def cut(path: Path) -> None:
    """Leave the first half."""
    os.truncate(path, path.stat().st_size // 2)


def zero_half(path: Path) -> None:
    """Set the first half of an array to 0."""
    data = np.load(path)
    data[: len(data) // 2] = 0
    np.save(path, data)


def move_a_row(path: Path) -> None:
    """Put the last row of an array before the first."""
    np.save(path, np.roll(np.load(path), 1, axis=0))


def flip_a_bit(path: Path) -> None:
    """Change one bit in the middle, and set the time of the change back."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# -- Flower's simulation, and SuperNodes --------------------------------------------------------------------


@contextmanager
def deployment(place: Place, fault: dict | None, nodes: int) -> Iterator[Flower]:
    """Start a SuperLink and SuperNodes for the clients of a place; no node for Flower's simulation."""
    home = place.new("flower")
    home.mkdir(parents=True)
    with flower(home, nodes, place.environment(fault, OMP_NUM_THREADS="1")) as started:
        yield started


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


def _submit(place: Place, started: Flower, folder: Path, overrides: tuple[str, ...]) -> subprocess.Popen:
    """Submit the app by ``fedclust engine=superlink``, from its copy with faulty clients."""
    env = {**started.env, "PYTHONPATH": str(_app(place))}
    asked = (*BASE, *overrides, "engine=superlink", f"engine.connection={started.connection}")
    return place.start(folder, *asked, env=env)


def _outcome(place: Place, folder: Path, code: int, printed: str, rounds: str) -> Row:
    """Say what was seen and lost; a run that stopped is resumed in one process first."""
    if code:
        # A ServerApp holds its folder until 20 s after its SuperLink was killed.
        with suppress(Timeout), FileLock(folder / ".lock", timeout=60):
            pass
        return place.outcome(folder, code, printed, rounds, "engine=local")
    waited = re.findall("waiting for clients: .* must answer.*", printed)
    what = lost(folder, place.clean(rounds))
    for name, other in SavedRun(folder).compared.items():
        what += f"; {name}: {other.summary['failed_replies']} replies, K = {other.summary['num_clients']}"
    return {"saw": waited[0] if waited else noted(folder), "exit": code, "lost": what}


def simulated(kind: str, *overrides: str) -> Callable[[Place], Row]:
    """Return a run in Flower's simulation whose clients do something in round 2."""

    def run(place: Place) -> Row:
        with deployment(place, {"kind": kind, "rounds": [2]}, 0) as started:
            folder = place.new("simulated")
            process = _submit(place, started, folder, ("rounds=4", *overrides))
            return _outcome(place, folder, *place.finish(process), "rounds=4")

    return run


def deployed(
    act: Callable[[Flower], object], *overrides: str, rounds: int = 3, below: str = "."
) -> Callable[[Place], Row]:
    """Return a run on three SuperNodes to which something is done after round 1."""

    def run(place: Place) -> Row:
        with deployment(place, None, 3) as started:
            folder = place.new("deployed")
            process = _submit(place, started, folder, (f"rounds={rounds}", *overrides))
            if not wait_for_round(folder / below, 1, process, SECONDS):
                return {"saw": said(place.finish(process, 1)[1]), "exit": process.returncode, "lost": "?"}
            act(started)
            return _outcome(place, folder, *place.finish(process), f"rounds={rounds}")

    return run


def kill(*nodes: Node, restart_after: float | None = None) -> None:
    """Kill some processes, and start them again after some seconds."""
    for node in nodes:
        node.kill()
    if restart_after is not None:
        time.sleep(restart_after)
        for node in nodes:
            node.start()
