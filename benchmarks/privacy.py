"""Accuracy against ε with ``privacy=client_dp``: FedAvg, known groups, groups that clients choose privately.

    python benchmarks/privacy.py FOLDER digits-30 [--seeds 0 1] [--epsilons 1 2 8] [--write]
    python benchmarks/privacy.py FOLDER fashion_mnist-1000 [--write]
    python benchmarks/privacy.py FOLDER clip [--write]      # a clip that is too short, fixed or adaptive
    python benchmarks/privacy.py FOLDER labels [--write]    # label counts with noise of the client's own

Every run is a folder FEDERATION/seed-S/METHOD-EPSILON; one that has finished is not made again. The noise
multiplier is the least at which all that is released of a client that takes part in every round costs ε;
what is not a model (sizes of groups, the vote, counts for the clip) gets a twentieth of the budget each.
Accuracies are exact, of simulated clients, and not covered by ε. A cell is the mean over seeds ± their
standard deviation.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import DATA, arguments, over_seeds, show, table
from dp_accounting import get_sigma_gaussian
from sklearn.cluster import KMeans

import fedclust
from fedclust.clustering.private_groups import Parameters
from fedclust.metrics import adjusted_rand_index

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
    "proof=false",
    "personal=none",
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
METHODS = ("fedavg", "known_groups", "private_groups")
OTHER = 0.05  # share of the budget of each release that is not a model
SHORT = 1.0  # a clip that is too short for Fashion-MNIST
GIVEN = Parameters()


def noise_settings(method: str, epsilon: float, adaptive: bool = False) -> list[str]:
    """Choose the noise by which a run spends exactly ε."""
    budget = get_sigma_gaussian(epsilon, DELTA) ** -2  # what all squares of sensitivity over noise add up to
    models, others, found = ROUNDS, 0, []
    if adaptive:
        others += 1  # counts of ±1/2
        found.append(("count_noise", math.sqrt(ROUNDS / 4 / (OTHER * budget))))
    if method == "private_groups":
        rounds = ROUNDS - GIVEN.warmup
        models, others = ROUNDS + rounds, others + 2
        sensitivity = 1 - 1 / GIVEN.num_groups
        found.append(("count_noise", math.sqrt(rounds * sensitivity / (OTHER * budget))))
        found.append(("evaluation_noise", math.sqrt(1 / (OTHER * budget))))
    found.append(("noise_multiplier", math.sqrt(models / ((1 - others * OTHER) * budget))))
    return [f"privacy.{name}={value}" for name, value in found]


def accuracy(
    folder: Path,
    federation: str,
    method: str,
    epsilon: float,
    seed: int,
    clip: float | None = None,
    adaptive: bool = False,
) -> float:
    """Make a run, unless it is there, and return its mean client accuracy."""
    changed = "" if clip is None else f"-clip-{clip:g}{'-adaptive' if adaptive else ''}"
    where = folder / federation / f"seed-{seed}" / f"{method}-{epsilon:g}{changed}"
    if (where / "summary.json").is_file():
        return float(fedclust.load(where).summary["mean_client_accuracy"])
    usual, own = FEDERATIONS[federation]
    overrides = [*COMMON, *own, f"strategy={method}", f"seed={seed}", f"rounds={ROUNDS}"]
    overrides += [f"evaluate_every={ROUNDS}", f"output_dir={where}"]
    if math.isfinite(epsilon):
        overrides += ["privacy=client_dp", f"privacy.delta={DELTA}", f"privacy.clip={clip or usual}"]
        overrides += [f"privacy.adaptive={adaptive}", *noise_settings(method, epsilon, adaptive)]
    summary = fedclust.run(overrides).summary
    print(where, summary["mean_client_accuracy"], summary.get("decision"), summary.get("epsilon"), flush=True)
    return float(summary["mean_client_accuracy"])


Ways = dict[str, tuple[str, float | None, bool]]  # method, clip, adaptive


def _against(
    given: argparse.Namespace, federation: str, ways: Ways, epsilons: Sequence[float]
) -> list[list[str]]:
    rows = []
    for name, (method, clip, adaptive) in ways.items():
        cells = []
        for epsilon in epsilons:
            of = given.folder, federation, method, epsilon
            cells.append(over_seeds([accuracy(*of, seed, clip, adaptive) for seed in given.seeds]))
        rows.append([name, *cells])
    return rows


def figures(given: argparse.Namespace) -> str:
    """Write accuracy against ε."""
    ways: Ways = {f"`{method}`": (method, None, False) for method in METHODS}
    rows = _against(given, given.part, ways, (*given.epsilons, math.inf))
    return table([given.part, *_heads(given.epsilons)], rows)


def clips(given: argparse.Namespace) -> str:
    """Write accuracy with a clip that is too short, fixed and adaptive."""
    federation, method = "fashion_mnist-1000", "known_groups"
    ways: Ways = {
        f"C = {FEDERATIONS[federation][0]:g}": (method, None, False),
        f"C = {SHORT:g}": (method, SHORT, False),
        f"C = {SHORT:g} in round 1, adaptive": (method, SHORT, True),
    }
    rows = _against(given, federation, ways, given.epsilons)
    return table(["clip", *_heads(given.epsilons)[:-1]], rows)


def labels(given: argparse.Namespace) -> str:
    """Write how well groups are found in label shares to which each client has added noise of its own."""
    rows = []
    for name, classes in (("two groups, of five classes each", 5), ("ten groups, of one class each", 1)):
        groups = 10 // classes
        cells = []
        for epsilon in (*given.epsilons, math.inf):
            scores = []
            for seed in given.seeds:
                draws = np.random.default_rng(seed)
                truth = np.arange(1000) % groups
                chances = np.repeat(np.eye(groups), classes, axis=1)[truth] / classes
                shares = draws.multinomial(50, chances) / 50  # of length 1 at most, so a client changes 1
                noise = get_sigma_gaussian(epsilon, DELTA) if math.isfinite(epsilon) else 0.0
                told = shares + noise * draws.standard_normal(shares.shape)
                found = KMeans(groups, n_init=10, random_state=seed).fit_predict(told)
                scores.append(adjusted_rand_index(truth, found))
            cells.append(over_seeds(scores))
        rows.append([name, *cells])
    return table(["1,000 clients, 50 rows each", *_heads(given.epsilons)], rows)


def _heads(epsilons: Sequence[float]) -> list[str]:
    return [*(f"ε = {epsilon:g}" for epsilon in epsilons), "no privacy"]


PARTS = {**dict.fromkeys(FEDERATIONS, figures), "clip": clips, "labels": labels}


def main() -> None:
    """Make the runs and print the table."""
    parser = arguments(__doc__, page="PRIVACY", folder=True)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 2, 8])
    given = parser.parse_args()
    seeds = f"Seeds {', '.join(map(str, given.seeds))}."
    show(given.part, f"{seeds}\n\n{PARTS[given.part](given)}", given.write)


if __name__ == "__main__":
    main()
