"""Digests of short runs, to compare them over processes, threads and engines.

python benchmarks/digests.py --engine local ray --strategy fedavg ifca    a line per engine and strategy
python benchmarks/digests.py --all outputs/digests [--write]    every strategy, into docs/RELIABILITY.md

A digest covers every round's record but its times and bytes, every assignment, and every cluster's model to
the last bit.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from common import arguments, show, table

_SMALL = (
    "compare=[]",
    "proof=false",
    "personal=none",
    "rounds=3",
    "participation=1",
    "partition.num_clients=8",
    "partition.groups=[4,4]",
    "training.mode=sequential",
    "model=mlp",
)
_OWN = {  # so that groups train within three rounds, or are looked for
    "auto": ("rounds=12",),
    "feddrift": ("strategy.parameters.interval=1",),
    "flux": ("strategy.parameters.min_rounds=2", "strategy.parameters.min_gain=1"),
    "private_groups": ("strategy.parameters.warmup=1", "privacy=client_dp", "privacy.noise_multiplier=0.01"),
}
_LENGTH = 16  # of a digest
_ENGINES = {
    "local": ("engine=local",),
    "ray": ("engine=ray", "engine.num_nodes=3", "engine.num_cpus=0.5", "engine.num_gpus=0"),
}
_WAYS = {  # hash seed, threads, engine
    "one process, hash seed 1, 1 thread": ("1", "1", "local"),
    "one process, hash seed 2, 2 threads": ("2", "2", "local"),
    "Ray, 3 nodes, hash seed 2": ("2", "2", "ray"),
}


def digest(strategy: str, engine: str) -> str:
    """Run a strategy and return its digest."""
    import fedclust
    from fedclust.results import Checkpoints, SavedRun, comparable
    from fedclust.support.array_bytes import to_numpy

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        small = [text for text in _SMALL if strategy != "auto" or not text.startswith(("proof", "compare"))]
        own = _OWN.get(strategy, ())
        asked = [f"strategy={strategy}", *small, *own, *_ENGINES[engine], f"output_dir={folder}"]
        fedclust.run(asked)
        run = SavedRun(folder)
        sums = hashlib.sha256(json.dumps([comparable(run.rounds), run.changes], sort_keys=True).encode())
        state = Checkpoints(folder / "checkpoints", len(run.rounds)).newest()
        if state is None:
            raise RuntimeError(f"{strategy} has left no checkpoint")
        for model in state.models:
            for name, array in model.items():
                sums.update(name.encode() + to_numpy(array).tobytes())
        return sums.hexdigest()[:_LENGTH]


def in_a_process(strategies: Sequence[str], hash_seed: str, threads: str, *engines: str) -> subprocess.Popen:
    """Start a process that prints the digests."""
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    command = [sys.executable, __file__, "--engine", *engines, "--strategy", *strategies]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def _digests(strategies: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Run every strategy in every way; what is in the folder already is not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: [folder / "-".join([name, *way]) for way in _WAYS.values()] for name in strategies}
    for place, way in enumerate(_WAYS.values()):
        left = [name for name in strategies if not files[name][place].is_file()]
        process = in_a_process(left, *way)
        for line in process.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            _, name, found = line.split()
            if len(found) == _LENGTH:  # an error, such as of a busy machine, is tried again next time
                files[name][place].write_text(found)
        if process.wait():
            raise RuntimeError(f"the process of {', '.join(left)} ended with {process.returncode}")
    return {
        name: [file.read_text() if file.is_file() else "failed" for file in own]
        for name, own in files.items()
    }


def _summary(digests: Mapping[str, Sequence[str]]) -> str:
    """Write which strategies gave one digest in all ways, and a table of those that did not."""
    same = [name for name, found in digests.items() if {*found} == {found[0]} != {"failed"}]
    common = [name for name in same if name != "fedavg" and digests[name] == digests.get("fedavg")]
    lines = [
        "The same in all of "
        f"{len(_WAYS)} ways ({'; '.join(_WAYS)}) for {len(same)} of {len(digests)} strategies: "
        f"{_listed(same)}."
    ]
    if common:
        lines.append(f"Of these, {_listed(common)} kept one cluster, and did what FedAvg does.")
    text = fill(" ".join(lines), 116, break_on_hyphens=False)
    others = [name for name in digests if name not in same]
    if others:
        rows = [[f"`{name}`", *digests[name]] for name in others]
        text += "\n\n" + table(["strategy", *_WAYS], rows)
    return text


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__, page="RELIABILITY")
    parser.add_argument("--engine", nargs="+", choices=_ENGINES, default=["local"])
    parser.add_argument("--strategy", nargs="*", default=["fedavg"])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every strategy; keeps digests in FOLDER")
    options = parser.parse_args()
    if options.all:
        from fedclust.settings.composition import options as choices

        found = _digests(choices("strategy"), options.all)
        show("digests", _summary(found), options.write)
        return
    for engine in options.engine:
        for name in options.strategy:
            try:
                print(engine, name, digest(name, engine), flush=True)
            except Exception as error:  # such as a strategy that refuses these settings
                print(engine, name, f"{type(error).__name__}", flush=True)
                print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
