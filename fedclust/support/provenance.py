"""Record with what a run was made: versions, commit, machine and time."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedclust import __version__

_PACKAGE = Path(__file__).resolve().parents[1]


def made_with() -> dict[str, Any]:
    """List what a run's results may depend on besides its settings; no names of hosts, users or folders.

    Returns
    -------
    ``versions`` of fedclust, flwr, torch and python; ``commit`` of fedclust's checkout, with a plus if files
    differ from it, None for an installed package; ``cpu``, its model; ``cores`` that this process may use;
    and ``time``, now in UTC.

    Examples
    --------
    >>> sorted(made_with())
    ['commit', 'cores', 'cpu', 'time', 'versions']
    """
    versions = {"fedclust": __version__} | {name: version(name) for name in ("flwr", "torch")}
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return {
        "versions": versions | {"python": platform.python_version()},
        "commit": _own_commit(),
        "cpu": _cpu(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


@cache  # what a process has imported stays as it was, and Git takes as long as a small run
def _own_commit() -> str | None:
    return commit_of(_PACKAGE.parent)


def commit_of(folder: Path) -> str | None:
    """Return the commit that a folder has checked out, with a plus if files differ; None if it is none.

    Parameters
    ----------
    folder
        The top of a Git checkout; a folder inside one is not looked at.
    """
    if not (folder / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        run = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip() or None
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
