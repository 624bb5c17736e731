"""Whether a model tells who was in its training, and accuracy against ε, with ``privacy=patient_dp``.

    python benchmarks/membership.py FOLDER membership [--runs 16] [--write]
    python benchmarks/membership.py FOLDER accuracy [--runs 10] [--write]

Four hospitals of Fed-Heart-Disease (46 to 303 patients) and breast cancer (scikit-learn's 569 patients, at
random over four sites). Each row is a patient.

Membership: every run trains on a half of each site's patients, drawn anew, and the other half are those who
were not there. The attacker has the model that serves at the end. By loss (Yeom et al., "Privacy Risk in
Machine Learning", CSF 2018), whoever has a small one was there. By shadow models (Carlini et al., "Membership
Inference Attacks From First Principles", S&P 2022, with one variance for all rows), the other runs say how a
row's score is distributed with and without it. Thresholds come from the other runs, too. The network is one
that overfits without privacy. Cells are means over runs with their 95 % intervals (t).

Accuracy: two thirds of each site's patients train, the others test; over all test patients, as simulated,
without noise. Every run is kept in FOLDER and not made again.
"""

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import DATA, arguments, note_commit, over_seeds, show, table
from scipy.special import log_softmax
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

import fedclust
from fedclust.privacy import NoPrivacy, PatientDP
from fedclust.strategies import ClusteredStrategy, Local

EPSILONS = (math.inf, 10.0, 3.0, 1.0)
QUIET = 1e9  # stands for a hundredth of the clip as noise, in the private runs' few clipped steps
DELTA = 1e-3  # below one over the patients of any site
Sites = list[tuple[np.ndarray, np.ndarray]]
Run = dict[str, np.ndarray]


def heart() -> Sites:
    """Read the four hospitals; numbers and indicators of categories, standardised."""
    rows = pd.read_csv(DATA / "heart_disease" / "heart_disease.csv")
    columns = rows.drop(columns=["disease", "center"])
    inputs = pd.get_dummies(columns, columns=["cp", "restecg"]).astype(float)
    inputs = (inputs - inputs.mean()) / inputs.std()
    hospitals = [(rows["center"] == each).to_numpy() for each in rows["center"].unique()]
    return [(inputs[of].to_numpy(np.float32), rows["disease"][of].to_numpy()) for of in hospitals]


def breast_cancer() -> Sites:
    """Divide the patients at random over four sites."""
    found = load_breast_cancer()
    inputs = ((found.data - found.data.mean(0)) / found.data.std(0)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(inputs))
    return [(inputs[rows], found.target[rows]) for rows in np.array_split(order, 4)]


FEDERATIONS = {"heart": heart, "breast cancer": breast_cancer}
NETWORKS = {
    "linear": lambda width: nn.Linear(width, 2),
    "64 hidden": lambda width: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2)),
}
STRATEGIES = {"fedavg": ClusteredStrategy, "each site alone": Local}


def run(folder: Path, name: str, network: str, strategy: str, epsilon: float, share: float, seed: int) -> Run:
    """Make a run, unless it is there; return its logits and labels of all patients, and who trained."""
    part = f"{name}-{network}-{strategy}-{epsilon:g}-{share:.2f}-{seed}".replace(" ", "_")
    file = folder / f"{part}.npz"
    if file.is_file():
        with np.load(file) as kept:
            return dict(kept)
    sites, draws = FEDERATIONS[name](), np.random.default_rng([seed, round(100 * share)])
    members = [
        np.isin(np.arange(len(y)), draws.permutation(len(y))[: round(share * len(y))]) for _, y in sites
    ]
    clients = []
    for (inputs, labels), there in zip(sites, members, strict=True):
        x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
        clients.append(((x[there], y[there]), None, (x[~there], y[~there])))
    torch.manual_seed(seed)
    model: Any = NETWORKS[network](sites[0][0].shape[1])
    private = math.isfinite(epsilon)
    # Few steps with everyone and a short clip, where noise is to be added; to the end, where it is not.
    steps = {"learning_rate": 0.5, "steps": 2} if private else {"learning_rate": 0.1, "epochs": 2}
    noise = {"epsilon": None, "noise_multiplier": 0.01} if epsilon == QUIET else {"epsilon": epsilon}
    result = fedclust.simulate(
        STRATEGIES[strategy](participation=1.0, evaluate_every=1000),
        model,
        clients,
        rounds=10 if private else 60,
        training=fedclust.LocalTraining(batch_size=16, **steps),
        seed=seed,
        privacy=PatientDP(**noise, clip=0.5, delta=DELTA, sampling=1.0) if private else NoPrivacy(),
    )
    logits = []
    with torch.no_grad():
        for client, (inputs, _) in enumerate(sites):
            logits.append(result.model_for(client).eval()(torch.from_numpy(inputs)).double().numpy())
    found = {"logits": np.concatenate(logits), "labels": np.concatenate([labels for _, labels in sites])}
    found["members"] = np.concatenate(members)
    if private and epsilon != QUIET and not math.isclose(result.summary["epsilon"], epsilon, rel_tol=2e-3):
        raise RuntimeError(f"a run must spend ε = {epsilon}, it spent {result.summary['epsilon']}")
    np.savez(file, **found)
    return found


def _advantage(scores: np.ndarray, members: np.ndarray, threshold: float) -> float:
    taken = scores > threshold
    return float(taken[members].mean() - taken[~members].mean())


def _best_threshold(scores: np.ndarray, members: np.ndarray) -> float:
    false, true, thresholds = roc_curve(members, scores)
    return float(thresholds[np.argmax(true - false)])


def attacks(runs: Sequence[Run]) -> dict[str, list[tuple[float, float]]]:
    """Attack each run with what the others tell; return AUC and advantage of each, by attack."""
    chances = [log_softmax(each["logits"], axis=1) for each in runs]
    labels, rows = runs[0]["labels"], np.arange(len(runs[0]["labels"]))
    right = np.stack([each[rows, labels] for each in chances])  # minus the loss, (runs, patients)
    odds = np.stack([each[rows, labels] - each[rows, 1 - labels] for each in chances])
    there = np.stack([each["members"] for each in runs])
    found: dict[str, list[tuple[float, float]]] = {"loss": [], "shadow models": []}
    for target in range(len(runs)):
        others = np.arange(len(runs)) != target
        threshold = _best_threshold(right[others].ravel(), there[others].ravel())
        members = there[target]
        scores = right[target]
        auc = float(roc_auc_score(members, scores))
        found["loss"].append((auc, _advantage(scores, members, threshold)))
        inside, outside = (np.ma.masked_array(odds[others], mask) for mask in (~there[others], there[others]))
        spreads = [max(float(np.ma.std(each - each.mean(axis=0))), 1e-6) for each in (inside, outside)]
        far = [
            ((odds[target] - each.mean(axis=0)) / spread) ** 2
            for each, spread in zip((inside, outside), spreads, strict=True)
        ]
        ratio = np.ma.filled((far[1] - far[0]) / 2 + math.log(spreads[1] / spreads[0]), 0.0)
        auc = float(roc_auc_score(members, ratio))
        found["shadow models"].append((auc, _advantage(ratio, members, 0.0)))
    return found


def _interval(values: Sequence[float]) -> str:
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def _name(epsilon: float) -> str:
    kinds = {QUIET: "as private, without noise", math.inf: "no privacy"}
    return kinds.get(epsilon, f"ε = {epsilon:g}")


def membership(given: argparse.Namespace) -> str:
    """Write how well both attacks tell who was there."""
    rows = []
    for name in FEDERATIONS:
        for epsilon in (EPSILONS[0], QUIET, *EPSILONS[1:]):
            made = partial(run, given.folder, name, "64 hidden", "fedavg", epsilon, 0.5)
            found = attacks([made(seed) for seed in range(given.runs)])
            cells = [
                _interval([each[place] for each in by_run]) for by_run in found.values() for place in (0, 1)
            ]
            rows.append([f"{name}, {_name(epsilon)}", *cells])
    heads = [f"{attack}: {figure}" for attack in ("loss", "shadow models") for figure in ("AUC", "advantage")]
    return table(["64 hidden", *heads], rows)


def accuracy(given: argparse.Namespace) -> str:
    """Write accuracy against ε."""
    rows = []
    for name in FEDERATIONS:
        for network, strategy in (
            ("linear", "fedavg"),
            ("64 hidden", "fedavg"),
            ("linear", "each site alone"),
        ):
            cells = []
            for epsilon in EPSILONS[::-1]:
                values = []
                for seed in range(given.runs):
                    made = run(given.folder, name, network, strategy, epsilon, 2 / 3, seed)
                    hits = made["logits"].argmax(axis=1) == made["labels"]
                    values.append(float(hits[~made["members"]].mean()))
                cells.append(over_seeds(values))
            rows.append([f"{name}, {network}, {strategy}", *cells])
    return table(["", *map(_name, EPSILONS[::-1])], rows)


PARTS = {"membership": membership, "accuracy": accuracy}


def main() -> None:
    """Make the runs and print the table."""
    parser = arguments(__doc__, page="PRIVACY", folder=True)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--runs", type=int, default=16)
    given = parser.parse_args()
    note_commit(given.folder)
    show(given.part, f"{given.runs} runs.\n\n{PARTS[given.part](given)}", given.write, given.folder)


if __name__ == "__main__":
    main()
