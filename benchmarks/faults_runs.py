"""Start runs for faults.py, break them, and say what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclust.results import SavedRun, comparable

__all__ = ["BASE", "Fault", "Place", "Row"]

Row = dict[str, Any]
ROUNDS = 6
BASE = (
    "strategy=fedavg",
    "compare=[]",
    "proof=false",
    f"rounds={ROUNDS}",
    "checkpoint_every=1",
    "training.mode=sequential",
)
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """A fault: its engine, its name, and what runs it and returns what was seen."""

    engine: str
    name: str
    run: Callable[["Place"], Row]

    @property
    def key(self) -> str:
        """Engine and name."""
        return f"{self.engine}: {self.name}"


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

    def finish(self, process: subprocess.Popen, timeout: float = 1200) -> tuple[int, str]:
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
            return {"saw": saw or noted(folder), "exit": code, "lost": lost(folder, self.clean(*length))}
        back = Path(rescued[1]) if rescued else folder
        rounds = len(SavedRun(back).rounds) if (back / "rounds.jsonl").is_file() else 0
        again, told = self.run(back, f"resume={back}", *engine, *length, env=self.environment())
        if again:
            return {"saw": saw, "exit": code, "lost": f"stopped after round {rounds}; {said(told)}"}
        what = lost(back, self.clean(*length))
        return {"saw": saw, "exit": code, "lost": f"{what} (resumed)"}


def said(printed: str) -> str:
    """Find the line that says what went wrong, without paths that differ from run to run."""
    lines = [line for line in printed.splitlines() if line.startswith(("fedclust:", "Timeout ("))]
    lines = (
        lines or [line for line in printed.splitlines() if re.search("Traceback|damaged|Error", line)][-1:]
    )
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
