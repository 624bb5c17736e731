"""Accuracy against ε: FedAvg and known groups with ``privacy=client_dp``, and ``auto`` without.

    python benchmarks/privacy.py FOLDER [--federations digits-30 fashion_mnist-1000] [--epsilons 1 2 4 8]

Every run is a folder FEDERATION/seed-S/METHOD-EPSILON; one that has finished is not made again. The noise
multiplier is the least at which taking part in every round costs ε; accuracies are exact, of simulated
clients, and not covered by ε. ``auto`` cannot be had with it. The table is printed as in docs/PRIVACY.md.
"""

import argparse
import math
from pathlib import Path

import numpy as np

import fedclust
from fedclust.privacy.accountant import multiplier_for

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
DELTA = 1e-4
# A linear model: noise grows with the square root of the number of parameters. Everyone takes part in every
# round: with no amplification by sampling, a small cohort needs more noise for the same ε.
COMMON = (
    "partition=conventions",
    "model=mlp",
    "model.hidden=[]",
    "participation=1",
    "compare=[]",
    "serve=cluster",
)
# The clip, and what makes the federation.
FEDERATIONS: dict[str, tuple[float, tuple[str, ...]]] = {
    "digits-30": (1.0, ("dataset=digits", "partition.num_clients=30", "partition.groups=[20,10]")),
    "fashion_mnist-1000": (
        4.0,
        (
            "dataset=fashion_mnist",
            f"dataset.path={DATA / 'fashion_mnist'}",
            "partition.num_clients=1000",
            "partition.groups=[600,400]",
            "training.batch_size=20",
            "training.learning_rate=0.3",
        ),
    ),
}
ROUNDS = 10
METHODS = ("fedavg", "known_groups")


def accuracy(folder: Path, federation: str, method: str, epsilon: float, seed: int) -> float:
    """Make a run, unless it is there, and return its mean client accuracy."""
    where = folder / federation / f"seed-{seed}" / f"{method}-{epsilon:g}"
    if (where / "summary.json").is_file():
        return float(fedclust.load(where).summary["mean_client_accuracy"])
    clip, own = FEDERATIONS[federation]
    overrides = [*COMMON, *own, f"strategy={method}", f"seed={seed}", f"rounds={ROUNDS}"]
    overrides += [f"evaluate_every={ROUNDS}", f"output_dir={where}", "personal=none"]
    if method != "auto":  # which is made of the proof
        overrides.append("proof=false")
    if math.isfinite(epsilon):
        noise = multiplier_for(epsilon, DELTA, ROUNDS)
        overrides += ["privacy=client_dp", f"privacy.delta={DELTA}", f"privacy.clip={clip}"]
        overrides.append(f"privacy.noise_multiplier={noise}")
    return float(fedclust.run(overrides).summary["mean_client_accuracy"])


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--federations", nargs="+", default=list(FEDERATIONS), choices=list(FEDERATIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 2, 4, 8])
    parser.add_argument("--auto", action="store_true", help="also auto, without privacy")
    given = parser.parse_args()
    epsilons = [*given.epsilons, math.inf]
    print(
        "| federation | method |"
        + "".join(f" ε = {epsilon:g} |" for epsilon in given.epsilons)
        + " no privacy |"
    )
    print("| --- | --- |" + " --- |" * len(epsilons))
    for federation in given.federations:
        for method in METHODS:
            cells = [
                np.mean([accuracy(given.folder, federation, method, each, seed) for seed in given.seeds])
                for each in epsilons
            ]
            shown = "".join(f" {cell:.3f} |" for cell in cells)
            print(f"| {federation} | {method} |{shown}", flush=True)
        if given.auto:
            found = np.mean([accuracy(given.folder, federation, "auto", math.inf, s) for s in given.seeds])
            print(f"| {federation} | auto |{' refused |' * len(given.epsilons)} {found:.3f} |", flush=True)


if __name__ == "__main__":
    main()
