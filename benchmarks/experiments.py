"""Run experiments one after another, each in a folder that says from which commit and by which command.

    python benchmarks/experiments.py FOLDER [NAME …] [--threads 1] [--list]

What a finished folder holds is not run again. ``benchmarks/results.py FOLDER`` makes docs/RESULTS.md of it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FASHION_MNIST = ("experiment=clust_psi_pfl_fmnist", "dataset.path=../shared/data/fashion_mnist")
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "clust_psi_pfl_fmnist-alpha0.05": (*FASHION_MNIST, "partition.alpha=0.05", "evaluate_every=10"),
    "clust_psi_pfl_fmnist-S0": (
        *FASHION_MNIST, "partition=similarity", "partition.similarity=0", "evaluate_every=10",
    ),
    "clust_psi_pfl_fmnist-alpha0.3": (*FASHION_MNIST, "partition.alpha=0.3", "evaluate_every=10"),
    "clust_psi_pfl_fmnist-S1": (
        *FASHION_MNIST, "partition=similarity", "partition.similarity=1", "evaluate_every=10",
    ),
}  # fmt: skip


def git(*arguments: str) -> str:
    """Ask git about the repository."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def run(name: str, overrides: tuple[str, ...], folder: Path, threads: int) -> int:
    """Run one experiment from the repository's root; return its exit status."""
    folder.mkdir(parents=True)
    provenance = {
        "command": " ".join(("python -m fedclust.run", *overrides)),
        "commit": git("rev-parse", "HEAD"),
        "clean": not git("status", "--porcelain", "--untracked-files=no"),
        "threads": threads,
        "processor": platform.machine(),
        "python": platform.python_version(),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "fedclust.run", *overrides, f"output_dir={folder}"]
    print(f"{name}: {provenance['command']}", flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    for name in options.names or EXPERIMENTS:
        folder = (options.folder / name).resolve()
        if not (folder / "summary.json").is_file():
            failed += run(name, EXPERIMENTS[name], folder, options.threads) != 0
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
