"""The experiments of docs/RESULTS.md, each run in a folder that records the commit and the command."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from common import ROOT, note_commit


@dataclass(frozen=True)
class Experiment:
    """A table of docs/RESULTS.md: one command, run with several seeds.

    Attributes
    ----------
    title
        Heading of the table.
    overrides
        Arguments of ``python -m fedclust``, without the seed.
    seeds
        Its seeds, unless ``--seeds`` is given.
    """

    title: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...] = (6, 7, 8)  # FedGWC's settings for the digits were found on 0 to 5

    def command(self, seed: int) -> tuple[str, ...]:
        """Return the arguments of ``python -m fedclust``."""
        return (*self.overrides, f"seed={seed}")


def fashion_mnist(setting: str, *overrides: str) -> Experiment:
    """Set up Clust-PSI-PFL on Fashion-MNIST; scores every tenth round only, to save time."""
    common = ("experiment=clust_psi_pfl_fmnist", "dataset.path=../shared/data/fashion_mnist")
    return Experiment(f"Fashion-MNIST, {setting}", (*common, *overrides, "evaluate_every=10"), seeds=(0,))


ONE_SHOT = "compare=[fedgwc,clust_psi_pfl,fmcl,fedavg]"
EXPERIMENTS = {
    "fmnist-alpha-0.3": fashion_mnist("Dirichlet, α = 0.3", "partition.alpha=0.3"),
    "fmnist-alpha-0.05": fashion_mnist("Dirichlet, α = 0.05", "partition.alpha=0.05"),
    "fmnist-similarity-1": fashion_mnist(
        "similarity, S = 1", "partition=similarity", "partition.similarity=1"
    ),
    "fmnist-similarity-0": fashion_mnist(
        "similarity, S = 0", "partition=similarity", "partition.similarity=0"
    ),
    "digits-conventions": Experiment("Digits, two labelling conventions", (ONE_SHOT,)),
    "digits-dirichlet": Experiment(
        "Digits, Dirichlet, α = 0.1", ("partition=dirichlet", "partition.alpha=0.1", ONE_SHOT)
    ),
    "digits-domains": Experiment(
        "Digits, half of the clients' images inverted",
        (
            "partition=domains", "partition.num_clients=30", "partition.clean=0.5", "partition.noise=0",
            "partition.blur=0", "partition.invert=0.5", ONE_SHOT,
        ),
    ),
    "digits-fedgmcc": Experiment(
        "Digits, two labelling conventions, 10 clients, all of them in each of 10 rounds of 5 epochs",
        (
            "strategy=fedgmcc", "partition.num_clients=10", "partition.groups=[5,5]", "participation=1",
            "rounds=10", "training.epochs=5", "training.steps=null", "compare=[fmcl,fedavg]",
        ),
    ),
}  # fmt: skip


def make(overrides: tuple[str, ...], folder: Path, threads: int) -> int:
    """Run one command in the repository's root; return its exit status."""
    command = " ".join(("python -m fedclust", *overrides))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    note_commit(folder, command=command, threads=threads, device=device, **versions)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    print(command, flush=True)
    asked = [sys.executable, "-m", "fedclust", *overrides, f"output_dir={folder}"]
    return subprocess.run(asked, cwd=ROOT, env=environment, check=False).returncode
