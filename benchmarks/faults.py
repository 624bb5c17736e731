"""Break runs in every way that this machine allows, and write docs/RELIABILITY.md of what happened.

    python benchmarks/faults.py FOLDER [--only TEXT] [--write]    the faults, and their tables

Each fault is a small real run in processes of its own: 30 clients on the digits. What was done is kept in
``faults.jsonl`` below the folder; delete a line to do it again. Faults of full and read-only disks need the
right to mount a tmpfs. Figures are compared with those of the same run without a fault.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import faults_runs as do
from common import arguments, note_commit, show, table
from faults_runs import Place, Row, clients, damaged, deployed, on_a_disk, resumed, simulated

_RAY = ("engine=ray", "engine.num_nodes=3", "engine.num_cpus=0.6", "engine.num_gpus=0")
_TEN = (3, 4, 5, 6, 7)  # rounds of ten in which nobody answers
_FILL = "cp /dev/zero {disk}/zeros"
_NEWEST = "$(ls checkpoints/*.safetensors | tail -n 1)"
_DATA, _OWN = "datasets/digits-*/", "federations/digits-*/"


def _signal(number: int, kind: str = "signal") -> Callable[[Place], Row]:
    return clients(kind, number=int(number))


FAULTS: dict[str, dict[str, Callable[[Place], Row]]] = {
    "engine=local": {
        "a node raises in round 3": clients("raise"),
        "one of three nodes raises in round 3": clients("raise", "engine.num_nodes=3"),
        "30 % of the clients do not answer, in every round": clients("missing", rounds=(), share=0.3),
        "90 % of the clients do not answer in round 3": clients("missing", share=0.9),
        "nobody answers from round 3 to round 7 of 10": clients("raise", "rounds=10", rounds=_TEN),
        "the same with min_replies=0": clients("raise", "rounds=10", "min_replies=0", rounds=_TEN),
        "two of three nodes do not answer the last evaluation, min_replies=0.5": clients(
            "missing", "min_replies=0.5", rounds=(6,), share=0.7, phase="evaluate"
        ),
        "a client calls sys.exit(0) in round 3": clients("sys.exit", "engine.num_nodes=3"),
        "a client calls os._exit(7) in round 3": clients("os._exit"),
        "the process is killed (kill -9) in round 4": clients("kill", rounds=(4,)),
        "a client hangs in round 3, timeout=5": clients("hang", "timeout=5"),
        "a client hangs in C code, timeout=5": clients("hang in C", "timeout=5"),
        "a client hangs in C code and holds Python's lock, timeout=5": clients(
            "hang in C with the GIL", "timeout=5"
        ),
        "Ctrl+C (SIGINT) in round 3": _signal(signal.SIGINT),
        "a notebook's run is interrupted in round 3": do.notebook,
        "SIGTERM in round 3": _signal(signal.SIGTERM),
        "Ctrl+C while a checkpoint is written": _signal(signal.SIGINT, "signal in a checkpoint"),
        "SIGTERM while a checkpoint is written": _signal(signal.SIGTERM, "signal in a checkpoint"),
        "kill -9 while a checkpoint is written": _signal(signal.SIGKILL, "signal in a checkpoint"),
        "the clock goes back by a day in round 3, as Python sees it": clients("clock", seconds=-86400),
        "two runs are started in one folder at once": do.two_at_once(resumes=False),
        "a run is resumed twice at once": do.two_at_once(resumes=True),
    },
    "disks and files": {
        "the results' file system is read-only": do.read_only_from_the_start,
        "the temporary folder does not exist": do.without_temporary_folder,
        "the disk is full when data are prepared": do.small_cache,
        "the disk is full when report.html is written": on_a_disk(_FILL, "run before the last page"),
        "the disk is full from round 3": on_a_disk(_FILL),
        "the same, and the temporary folder is on it": on_a_disk(
            _FILL, repair="rm {disk}/zeros", temporary=False
        ),
        "the results' folder is removed in round 3": on_a_disk("rm -rf {run}", mount=False),
        "the folder becomes read-only (chattr +i) in round 3": on_a_disk(
            "chattr -R +i {run}", repair="chattr -R -i {run}", mount=False
        ),
        "the newest checkpoint is cut off before a resume": resumed(f"truncate -s 1000 {_NEWEST}"),
        "both checkpoints are cut off before a resume": resumed("truncate -s 1000 checkpoints/*.safetensors"),
        "the last line of rounds.jsonl is cut off before a resume": resumed("truncate -s -40 rounds.jsonl"),
        "rounds.jsonl ends in zero bytes before a resume": resumed("truncate -s +300 rounds.jsonl"),
        "clusters.json is cut off before a resume": resumed("truncate -s -20 clusters.json"),
        "config.yaml is damaged before a resume": resumed("printf 'a: [1' > config.yaml"),
    },
    "engine=ray": {
        "a node raises in round 3": clients("raise", *_RAY),
        "a node calls os._exit(7) in round 3": clients("os._exit", *_RAY),
        "an actor is killed (kill -9) in round 3": clients("kill", *_RAY),
        "a node hangs in round 3, timeout=20": clients("hang", *_RAY, "timeout=20"),
        "the raylet is killed in round 3": clients("kill parent", *_RAY, "timeout=60"),
    },
    "prepared data": {
        "inputs.npy is cut off": damaged(f"{_DATA}inputs.npy", do.cut),
        "inputs.npy is deleted": damaged(f"{_DATA}inputs.npy", Path.unlink),
        "half of inputs.npy is zero": damaged(f"{_DATA}inputs.npy", do.zero_half),
        "one bit of inputs.npy is flipped, the file's time is as before": damaged(
            f"{_DATA}inputs.npy", do.flip_a_bit
        ),
        "labels.npy is empty": damaged(f"{_DATA}labels.npy", lambda path: os.truncate(path, 0)),
        "labels.npy is moved by one row": damaged(f"{_DATA}labels.npy", do.move_a_row),
        "labels.npy is deleted": damaged(f"{_DATA}labels.npy", Path.unlink),
        "dataset.json is cut off": damaged(f"{_DATA}dataset.json", do.cut),
        "dataset.json has another mean": damaged(
            f"{_DATA}dataset.json", lambda path: path.write_text(path.read_text().replace("0.", "7.", 1))
        ),
        "checksums.json is cut off": damaged(f"{_DATA}checksums.json", do.cut),
        "the clients' rows (clients.npz) are cut off": damaged(f"{_OWN}clients.npz", do.cut),
        "one bit of the clients' rows is flipped": damaged(f"{_OWN}clients.npz", do.flip_a_bit),
        "the clients' own labels.npy is moved by one row": damaged(f"{_OWN}labels.npy", do.move_a_row),
    },
    "Flower's simulation": {
        "a node raises in round 2": simulated("raise"),
        "a Ray actor is killed (kill -9) in round 2": simulated("kill"),
        "a node hangs in round 2, timeout=30": simulated("hang", "timeout=30"),
        "the raylet is killed in round 2": simulated("kill parent", "timeout=60"),
    },
    "three SuperNodes and a SuperLink": {
        "a SuperNode is killed after round 1 of 3": deployed(lambda its: do.kill(its.nodes[2])),
        "a SuperNode is killed between the method and its comparison": deployed(
            lambda its: do.kill(its.nodes[2]), "compare=[local]", rounds=2, below="compare/local"
        ),
        "the SuperLink is killed after round 1 of 3": deployed(lambda its: do.kill(its.superlink)),
        "a SuperNode is stopped (kill -STOP) after round 1 of 3, timeout=60": deployed(
            lambda its: its.nodes[2].signal(signal.SIGSTOP), "timeout=60"
        ),
        "two of three SuperNodes are killed after round 1 of 3, min_replies=0.5, max_outage=60": deployed(
            lambda its: do.kill(*its.nodes[1:]), "min_replies=0.5", "max_outage=60"
        ),
        "all SuperNodes are killed after round 1 of 3, and started again a minute later": deployed(
            lambda its: do.kill(*its.nodes, restart_after=60)
        ),
        "a SuperNode is killed in round 2 of 3 and started again at once": deployed(
            lambda its: do.kill(its.nodes[2], restart_after=0)
        ),
        "the ServerApp's process is killed after round 1 of 3": deployed(
            lambda its: its.superlink.kill_app("flwr-serverapp")
        ),
        "the SuperLink is killed after round 1 of 3 and started again at once": deployed(
            lambda its: do.kill(its.superlink, restart_after=0)
        ),
    },
}


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = arguments(__doc__, page="RELIABILITY", folder=True)
    parser.add_argument("--only", default="", help="only faults whose engine and name contain this")
    options = parser.parse_args(given)
    # So that the runs do not ignore Ctrl+C as a job in a shell's background does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results, place = options.folder / "faults.jsonl", Place(options.folder.resolve())
    done = read(results)
    note_commit(options.folder)
    for engine, name in ((engine, name) for engine, named in FAULTS.items() for name in named):
        if (key := f"{engine}: {name}") in done or options.only not in key:
            continue
        began = time.monotonic()
        row = {"key": key, "engine": engine, "fault": name, **FAULTS[engine][name](place)}
        row["seconds"] = round(time.monotonic() - began)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(json.dumps(row, ensure_ascii=False), flush=True)
    write(read(results), options.write, options.folder)
    return 0


def read(results: Path) -> dict[str, dict]:
    """Read what was done, by key; the last line of a key counts."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def write(done: dict[str, dict], page: Path | None, folder: Path) -> None:
    """Write each engine's table of which something was done."""
    for engine, named in FAULTS.items():
        rows = [
            [name, _code(row["saw"]), str(_status(row["exit"])), row["lost"]]
            for name in named
            if (row := done.get(f"{engine}: {name}"))
        ]
        if rows:
            head = ["fault", "what the user saw", "exit code", "what was lost"]
            show(engine, table(head, rows), page, folder)


def _status(code: int) -> int:
    """Return an exit code as a shell shows it: 137 for a process that was killed."""
    return 128 - code if code < 0 else code


def _code(line: str) -> str:
    return "`" + line.replace("|", "/").replace("`", "'") + "`" if line else "nothing"


if __name__ == "__main__":
    sys.exit(main())
