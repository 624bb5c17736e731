"""Faults of runs in one process and under Ray, for faults.py."""

import signal
import subprocess
import sys
from functools import partial

from faults_runs import BASE, Fault, Place, Row, lost, said

__all__ = ["LOCAL_FAULTS"]

_RAY = ("engine=ray", "engine.num_nodes=3", "engine.num_cpus=0.6", "engine.num_gpus=0")
_TEN = ("rounds=10",)
_KILL = {"kind": "kill", "rounds": [4]}


def _clients(fault: dict, *overrides: str) -> partial[Row]:
    return partial(Place.broken, fault=fault) if not overrides else partial(_with, fault, overrides)


def _with(fault: dict, overrides: tuple[str, ...], place: Place) -> Row:
    return place.broken(fault, *overrides)


def _signal(kind: str, number: int) -> dict:
    return {"kind": kind, "rounds": [3], "number": int(number)}


def _disk(
    command: str,
    place: Place,
    *,
    temporary: bool = True,
    mount: bool = True,
    repair: str = "true",
    kind: str = "run",
) -> Row:
    """Run on a small disk of its own, on which a client does something in round 3; repair it; resume."""
    folder = place.new("disk")
    folder.mkdir(parents=True)
    disk = folder / "mount"
    disk.mkdir()
    elsewhere = disk / "tmp"
    if mount:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        elsewhere.mkdir()
        here = disk / "run"
        fault = {"kind": kind, "rounds": [3], "command": command.format(disk=disk, run=here)}
        env = place.environment(fault, **({} if temporary else {"TMPDIR": str(elsewhere)}))
        code, printed = place.run(here, *BASE, "client_app=faulty_clients.app", env=env)
        subprocess.run(["bash", "-c", repair.format(disk=disk, run=here)], check=False)
        return place.outcome(here, code, printed)
    finally:
        if mount:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def _vanished(place: Place) -> Row:
    return _disk("rm -rf {run}", place, mount=False)


def _read_only(place: Place) -> Row:
    return _disk("chattr -R +i {run}", place, mount=False, repair="chattr -R -i {run}")


def _full_everywhere(place: Place) -> Row:
    fill = "cp /dev/zero {disk}/zeros"
    return _disk(fill, place, temporary=False, repair="rm {disk}/zeros")


def _resumed(damage: str, place: Place) -> Row:
    """Stop a run after round 4, damage its folder, and resume it."""
    folder = place.new("resumed")
    fault = {"kind": "kill", "rounds": [5]}
    place.run(folder, *BASE, "client_app=faulty_clients.app", env=place.environment(fault))
    subprocess.run(["bash", "-c", damage], cwd=folder, check=True)
    code, printed = place.run(folder, f"resume={folder}", env=place.environment())
    if code:
        return place.outcome(folder, code, printed) | {"lost": "the resume; the files stay as they are"}
    return place.outcome(folder, code, printed)


def _killed(place: Place) -> Row:
    """A run whose process is killed is resumed, and nothing else is done."""
    return place.broken(_KILL)


def _small_cache(place: Place) -> Row:
    """Prepare the data on a disk that is too small for it, then with enough room."""
    folder, disk = place.new("small-cache"), place.new("disk")
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        code, printed = place.run(folder, *BASE, env=place.environment(FEDCLUST_CACHE=str(disk)))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        again, told = place.run(folder, *BASE, env=place.environment(FEDCLUST_CACHE=str(disk)))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
    what = said(told) if again else f"{lost(folder, place.clean())} (run again with room)"
    return {"saw": said(printed), "exit": code, "lost": what}


def _read_only_from_the_start(place: Place) -> Row:
    disk = place.new("disk")
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], check=True)
    try:
        code, printed = place.run(disk / "run", *BASE, env=place.environment())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
    return {"saw": said(printed), "exit": code, "lost": "nothing: no round has begun"}


def _without_temporary_folder(place: Place) -> Row:
    """The models are saved in the temporary folder if the disk is full: also here?"""
    folder = place.new("run")
    code, printed = place.run(folder, *BASE, env=place.environment(TMPDIR=str(place.root / "none")))
    return place.outcome(folder, code, printed)


def _two_at_once(place: Place, *, resumed: bool) -> Row:
    """Start two runs in one folder, or resume one twice, at the same time."""
    folder = place.new("two")
    if resumed:
        place.run(folder, *BASE, "client_app=faulty_clients.app", env=place.environment(_KILL))
    asked = [f"resume={folder}"] if resumed else BASE
    both = [place.start(folder, *asked, env=place.environment()) for _ in range(2)]
    ended = sorted(place.finish(process) for process in both)
    row = place.outcome(folder, *ended[0])
    return row | {"saw": said(ended[1][1]), "exit": ended[1][0], "lost": f"{row['lost']} (the other run)"}


_NOTEBOOK = """
import os, sys, fedclust
try:
    fedclust.run(sys.argv[2:])
except KeyboardInterrupt:
    print("fedclust: KeyboardInterrupt, as any other cell")
os.remove(os.environ["FEDCLUST_FAULT"])
fedclust.run([f"resume={sys.argv[1]}"])
"""


def _notebook(place: Place) -> Row:
    """Interrupt a run that was started from Python, and resume it in the same process."""
    folder = place.new("notebook")
    asked = [*BASE, "client_app=faulty_clients.app", f"output_dir={folder}"]
    command = [sys.executable, "-c", _NOTEBOOK, str(folder), *asked]
    env = place.environment(_signal("signal", signal.SIGINT))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    row = place.outcome(folder, done.returncode, done.stdout + done.stderr)
    return row | {"lost": f"{row['lost']} (resumed)"}


def _newest(folder: str) -> str:
    return f"$(ls checkpoints/*.safetensors | {folder} -n 1)"


LOCAL_FAULTS = (
    Fault("engine=local", "a node raises in round 3", _clients({"kind": "raise", "rounds": [3]})),
    Fault(
        "engine=local",
        "one of three nodes raises in round 3",
        _clients({"kind": "raise", "rounds": [3]}, "engine.num_nodes=3"),
    ),
    Fault(
        "engine=local",
        "30 % of the clients do not answer, in every round",
        _clients({"kind": "missing", "share": 0.3}),
    ),
    Fault(
        "engine=local",
        "90 % of the clients do not answer in round 3",
        _clients({"kind": "missing", "share": 0.9, "rounds": [3]}),
    ),
    Fault(
        "engine=local",
        "nobody answers from round 3 to round 7 of 10",
        _clients({"kind": "raise", "rounds": [3, 4, 5, 6, 7]}, *_TEN),
    ),
    Fault(
        "engine=local",
        "the same with min_replies=0",
        _clients({"kind": "raise", "rounds": [3, 4, 5, 6, 7]}, *_TEN, "min_replies=0"),
    ),
    Fault(
        "engine=local",
        "two of three nodes do not answer the last evaluation, min_replies=0.5",
        _clients({"kind": "missing", "share": 0.7, "rounds": [6], "phase": "evaluate"}, "min_replies=0.5"),
    ),
    Fault(
        "engine=local",
        "a client calls sys.exit(0) in round 3",
        _clients({"kind": "sys.exit", "rounds": [3]}, "engine.num_nodes=3"),
    ),
    Fault(
        "engine=local", "a client calls os._exit(7) in round 3", _clients({"kind": "os._exit", "rounds": [3]})
    ),
    Fault("engine=local", "the process is killed (kill -9) in round 4", _killed),
    Fault(
        "engine=local",
        "a client hangs in round 3, timeout=5",
        _clients({"kind": "hang", "rounds": [3]}, "timeout=5"),
    ),
    Fault(
        "engine=local",
        "a client hangs in C code, timeout=5",
        _clients({"kind": "hang in C", "rounds": [3]}, "timeout=5"),
    ),
    Fault(
        "engine=local",
        "a client hangs in C code and holds Python's lock, timeout=5",
        _clients({"kind": "hang in C with the GIL", "rounds": [3]}, "timeout=5"),
    ),
    Fault("engine=local", "Ctrl+C (SIGINT) in round 3", _clients(_signal("signal", signal.SIGINT))),
    Fault("engine=local", "a notebook's run is interrupted in round 3", _notebook),
    Fault("engine=local", "SIGTERM in round 3", _clients(_signal("signal", signal.SIGTERM))),
    Fault(
        "engine=local",
        "Ctrl+C while a checkpoint is written",
        _clients(_signal("signal in a checkpoint", signal.SIGINT)),
    ),
    Fault(
        "engine=local",
        "SIGTERM while a checkpoint is written",
        _clients(_signal("signal in a checkpoint", signal.SIGTERM)),
    ),
    Fault(
        "engine=local",
        "kill -9 while a checkpoint is written",
        _clients(_signal("signal in a checkpoint", signal.SIGKILL)),
    ),
    Fault(
        "engine=local",
        "the clock goes back by a day in round 3, as Python sees it",
        _clients({"kind": "clock", "rounds": [3], "seconds": -86400}),
    ),
    Fault("engine=local", "two runs are started in one folder at once", partial(_two_at_once, resumed=False)),
    Fault("engine=local", "a run is resumed twice at once", partial(_two_at_once, resumed=True)),
    Fault("disks and files", "the results' file system is read-only", _read_only_from_the_start),
    Fault("disks and files", "the temporary folder does not exist", _without_temporary_folder),
    Fault("disks and files", "the disk is full when data are prepared", _small_cache),
    Fault(
        "disks and files",
        "the disk is full when report.html is written",
        lambda place: _disk("cp /dev/zero {disk}/zeros", place, kind="run before the last page"),
    ),
    Fault("disks and files", "the disk is full from round 3", partial(_disk, "cp /dev/zero {disk}/zeros")),
    Fault("disks and files", "the same, and the temporary folder is on it", _full_everywhere),
    Fault("disks and files", "the results' folder is removed in round 3", _vanished),
    Fault("disks and files", "the folder becomes read-only (chattr +i) in round 3", _read_only),
    Fault(
        "disks and files",
        "the newest checkpoint is cut off before a resume",
        partial(_resumed, f"truncate -s 1000 {_newest('tail')}"),
    ),
    Fault(
        "disks and files",
        "both checkpoints are cut off before a resume",
        partial(_resumed, "truncate -s 1000 checkpoints/*.safetensors"),
    ),
    Fault(
        "disks and files",
        "the last line of rounds.jsonl is cut off before a resume",
        partial(_resumed, "truncate -s -40 rounds.jsonl"),
    ),
    Fault(
        "disks and files",
        "rounds.jsonl ends in zero bytes before a resume",
        partial(_resumed, "truncate -s +300 rounds.jsonl"),
    ),
    Fault(
        "disks and files",
        "clusters.json is cut off before a resume",
        partial(_resumed, "truncate -s -20 clusters.json"),
    ),
    Fault(
        "disks and files",
        "config.yaml is damaged before a resume",
        partial(_resumed, "printf 'a: [1' > config.yaml"),
    ),
    Fault("engine=ray", "a node raises in round 3", _clients({"kind": "raise", "rounds": [3]}, *_RAY)),
    Fault(
        "engine=ray",
        "a node calls os._exit(7) in round 3",
        _clients({"kind": "os._exit", "rounds": [3]}, *_RAY),
    ),
    Fault(
        "engine=ray",
        "an actor is killed (kill -9) in round 3",
        _clients({"kind": "kill", "rounds": [3]}, *_RAY),
    ),
    Fault(
        "engine=ray",
        "a node hangs in round 3, timeout=20",
        _clients({"kind": "hang", "rounds": [3]}, *_RAY, "timeout=20"),
    ),
    Fault(
        "engine=ray",
        "the raylet is killed in round 3",
        _clients({"kind": "kill parent", "rounds": [3]}, *_RAY, "timeout=60"),
    ),
)
