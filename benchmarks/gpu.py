"""What is to be seen on a GPU: one command per item, each unattended and under ten minutes.

    python benchmarks/gpu.py runs --write        the default run and every strategy, GPU against CPU; waits
    python benchmarks/gpu.py cifar100 --write    FedGWC's setting: modes and precisions, and a profile
    python benchmarks/gpu.py peers --write       against a plain loop, a bare vmapped one and pfl-research
    python benchmarks/gpu.py papers --write      Clust-PSI-PFL, Tables III and IV
    … --table cifar10, fedgwc or fmcl            the same on CIFAR-10; FedGWC, Table 1; FMCL, Table 1
    python benchmarks/gpu.py two_nodes --write   engine=ray with two nodes on the GPU
    … --device cpu --small                       the same logic without a GPU, much smaller
    … --out FOLDER                               the text also as FOLDER/gpu-ITEM.md
    python benchmarks/gpu.py paste FOLDER        put the texts of such a folder into docs/PERFORMANCE.md

In a checkout that is not installed: PYTHONPATH=. python benchmarks/gpu.py …
Every row runs in a process of its own; with --small one process does them all. In cifar100 and peers a row
is ended after three times its share of the time that was left, so that a compiler that hangs does not cost
the rows after it; what it has measured by then counts. A row that would start too late, raises, dies, or has
not ended when the time is over is named below the table with the reason.
"""

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cifar100
import torch
from experiments import ROOT
from federations import DATA
from gpu_clock import in_time
from gpu_papers import TABLES, paper
from gpu_rows import clients_per_second, nodes_speed, on_both, waits
from tables import machine, show, table

from fedclust.settings import options as choices

TOLERANCE = 0.01  # of accuracy in any round; one of the default run's 360 test rows is 0.003
MODES = {  # those that may be the fastest come first
    "vectorised": ("training.mode=vectorised",),
    "vectorised graphs": ("training.mode=vectorised_graphs",),
    "CUDA graphs, 4 streams": ("training.mode=cuda_graphs", "training.streams=4"),
    "vectorised, compiled": ("training.mode=vectorised", "training.compile=true"),
    "sequential": ("training.mode=sequential",),
    "vectorised graphs, compiled": ("training.mode=vectorised_graphs", "training.compile=true"),
    "CUDA graphs": ("training.mode=cuda_graphs",),
    "auto": (),
}
FIRST = 3  # modes that are measured in every precision before the others, which compile or are slow
PRECISIONS = ("float32", "tf32", "bf16")
PEERS = (  # those that may be the fastest come first, after what they are compared with
    "plain loop, torch.optim",
    "fedclust, vectorised",
    "fedclust, vectorised_graphs",
    "fedclust, cuda_graphs, 4 streams",
    "bare vmapped loop",
    "pfl-research",
    "plain loop, AMP",
    "fedclust, sequential",
    "fedclust, cuda_graphs",
    "fedclust, auto",
    "fedclust, auto, bf16",
)
NODES = {
    "engine=local": (1, 1.0, "local"),
    "engine=ray, one node": (1, 1.0, "ray"),
    "engine=ray, two nodes": (2, 0.5, "ray"),
}


# runs


def runs(options: Namespace, ends: float) -> str:
    """Compare all strategies, then look for waits."""
    with tempfile.TemporaryDirectory() as folder:
        plain = ("compare=[]", "proof=false", f"rounds={2 if options.small else 10}")
        rows: dict[str, tuple[Any, ...]] = {} if options.small else {"default run": ((),)}
        for name in ["fedavg", "fedgwc"] if options.small else choices("strategy"):
            # auto makes the proof itself.
            rows[name] = ((f"strategy={name}", *(plain[2:] if name == "auto" else plain)),)
        rows = {name: (name, *row, options.device, Path(folder)) for name, row in rows.items()}
        # The rows below need a minute; strategies are the larger part.
        both = in_time(
            rows, on_both, ends - (0 if options.small else 60), options.workers, apart=not options.small
        )
    lines = [
        [
            name,
            "yes" if each["same"] else "no",
            f"{each['apart']:.4f}",
            "yes" if each["same"] and each["apart"] <= TOLERANCE else "no",
            *(f"{value:.1f}" for value in each["seconds"]),
        ]
        for name, each in both.values.items()
    ]
    head = ["", "same clusters", "accuracy apart", "agree", "s, CPU", f"s, {options.device}"]
    looks = {
        f"{kind}, {mode}": (kind, mode, options.device, options.small)
        for kind in (["digits"] if options.small else ["digits", "cnn", "resnet18"])
        for mode in ("sequential", "vectorised", "cuda_graphs", "vectorised_graphs")
    }
    waited = in_time(looks, waits, ends, options.workers, late=15, apart=not options.small)
    said = [[name, "; ".join(sorted(set(each))) or "never"] for name, each in waited.values.items()]
    agree = sum(line[3] == "yes" for line in lines)
    return (
        f"{agree} of {len(lines)} agree: the same clusters after every change, and accuracy within "
        f"{TOLERANCE:g} in every round. float32, tf32 off.\n\n{table(head, lines)}\n{both.notes()}\n\n"
        f"{table(['local training waits for the GPU', ''], said)}\n{waited.notes()}"
    )


# cifar100


def ways_in_order(modes: Sequence[str], precisions: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """List the overrides of modes and precisions, the first modes in every precision before the others."""
    first = [(mode, precision) for precision in precisions for mode in modes[:FIRST]]
    rest = [(mode, precision) for mode in modes[FIRST:] for precision in precisions]
    return {
        f"{mode}, {precision}": (*MODES[mode], f"training.precision={precision}")
        for mode, precision in (*first, *rest)
    }


def fedgwc_speed(options: Namespace, ends: float) -> str:
    """Measure modes and precisions, then profile the fastest."""
    rounds = cifar100.LEFT_OUT + (2 if options.small else 40)
    few = ("sequential", "vectorised graphs", "CUDA graphs, 4 streams", "auto")
    ways = ways_in_order(few if options.small else tuple(MODES), PRECISIONS[: 1 if options.small else None])
    rows = {name: (each, rounds, options.device, options.small) for name, each in ways.items()}
    # The profile needs the last minute.
    found = in_time(rows, cifar100.rounds_per_second, ends - 60, late=15, apart=not options.small, fair=True)
    lines = [
        [
            name,
            f"{each['rate']:.2f}",
            f"{cifar100.ROUNDS / each['rate'] / 60:,.0f}",
            "–" if each["busy"] is None else f"{each['busy']:.0f} %",
            "–" if each["memory"] is None else f"{each['memory']:.2f}",
        ]
        for name, each in found.values.items()
    ]
    head = ["", "rounds per second", f"minutes for {cifar100.ROUNDS:,}", "GPU busy", "peak, GiB"]
    text = f"{table(head, lines)}\n{found.notes()}"
    if not found.values:
        return text
    best = max(found.values, key=lambda name: found.values[name]["rate"])
    profiles = in_time(
        {"profile": (ways[best], options.device, options.small)}, cifar100.profile_of, ends, late=15
    )
    profile = profiles.values.get("profile", profiles.notes().strip())
    return f"{text}\n\nLocal training of one round, {best}:\n\n```text\n{profile}\n```"


# peers


def peers(options: Namespace, ends: float) -> str:
    """Compare ways of training the same clients on the same device."""
    rounds, kinds = (1 if options.small else 5), ("digits", "cnn", "resnet18")
    rows = {
        f"{kind}, {way}": (kind, way, options.device, rounds, options.small)
        for way in PEERS
        for kind in kinds
        if way != "pfl-research" or importlib.util.find_spec("pfl")
    }
    found = in_time(rows, clients_per_second, ends, late=15, apart=not options.small, fair=True)
    if not importlib.util.find_spec("pfl"):
        found.missing["pfl-research"] = "pfl is not installed here"
    lines = []
    for way in PEERS:
        cells = [_beside(found.values, kind, way) for kind in kinds]
        lines += [[way, *cells]] if any(cell != "–" for cell in cells) else []
    head = ["clients per second (× plain loop)", "digits", "CNN", "ResNet-18, 20 clients × 500"]
    return f"Median of {rounds} rounds.\n\n{table(head, lines)}\n{found.notes()}"


def _beside(values: Mapping[str, float], kind: str, way: str) -> str:
    rate, plain = values.get(f"{kind}, {way}"), values.get(f"{kind}, {PEERS[0]}")
    if rate is None:
        return "–"
    return f"{rate:,.1f}" + (f" ({rate / plain:.2f})" if plain else "")


# two_nodes


def two_nodes(options: Namespace, ends: float) -> str:
    """Compare one node with two that share the GPU."""
    if importlib.util.find_spec("ray") is None:
        return "Not measured: Ray is not installed here."
    settings = ("digits", "cnn", "cifar100")
    rows = {
        f"{setting}, {name}": (setting, nodes, options.device, options.small)
        for setting in (settings[::2] if options.small else settings)
        for name, nodes in NODES.items()
    }
    found = in_time(rows, nodes_speed, ends, apart=not options.small)
    lines = [
        [name, *(f"{found.values.get(f'{setting}, {name}', math.nan):.2f}" for setting in settings)]
        for name in NODES
    ]
    head = ["rounds per second", "digits", "CNN", "FedGWC on CIFAR-100"]
    return f"{table(head, lines)}\n{found.notes()}".replace("nan", "  –")


ITEMS: dict[str, Callable[[Namespace, float], str]] = {
    "runs": runs,
    "cifar100": fedgwc_speed,
    "peers": peers,
    "papers": paper,
    "two_nodes": two_nodes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if there is no such device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("item", choices=[*ITEMS, "paste"])
    parser.add_argument("folder", type=Path, nargs="?", help="of paste")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="much smaller: the figures mean nothing")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    parser.add_argument("--table", choices=TABLES, default="fmnist")
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--columns", nargs="+", default=["alpha=0.05", "similarity=0"])
    parser.add_argument("--seeds", nargs="+", type=int, help="0 unless given; 0 1 2 for --table fmcl")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the datasets' folders")
    parser.add_argument("--out", type=Path, help="folder to write the text to as well")
    parser.add_argument("--write", action="store_true", help="into docs/PERFORMANCE.md")
    options = parser.parse_args(arguments)
    if options.item == "paste":
        if options.folder is None:
            parser.error("paste needs FOLDER")
        for path in sorted(options.folder.glob("gpu-*.md")):
            show(path.stem, path.read_text(encoding="utf-8").rstrip(), True)
        return 0
    if options.device != "cpu" and not torch.cuda.is_available():
        print(f"gpu: --device must be cpu where torch finds no GPU, got {options.device}", file=sys.stderr)
        return 2
    # Ray's processes import the settings' data and models by name, and this checkout need not be installed.
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    text = ITEMS[options.item](options, time.time() + 60 * options.minutes)
    where = "CPU" if options.device == "cpu" else torch.cuda.get_device_name()
    size = ", small: no measurement" if options.small else ""
    name = f"gpu-{options.item}" + (f"-{options.table}" if options.item == "papers" else "")
    text = f"{where}{size}, torch {torch.__version__}, {machine()}.\n\n{text.rstrip()}"
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    show(name, text, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
