"""A handful of sites: is each served as well as by the best rule, and is a turned one named? docs/SITES.md.

    python benchmarks/sites.py FOLDER [--seeds 20] [--write]

Makes the runs that FOLDER lacks: Fed-Heart-Disease as it is, with each hospital's labels in turn turned
round, and with its rows shuffled over the hospitals; and three sites of scikit-learn's breast-cancer table,
one turned. `auto` chooses; *everyone*, *everyone with the prior correction* and *alone* are the rules that it
must not fall behind.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import DATA, arguments, note_commit, show, table
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedclust import simulate
from fedclust.training import LocalTraining

ROUNDS, TEST = 20, 0.34
TRAINING = LocalTraining(learning_rate=0.3, epochs=1, batch_size=32)
HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Hungary",
    "switzerland": "Switzerland",
    "va": "Long Beach",
}
SHUFFLED, BREAST = "rows shuffled over the sites", "breast cancer, one of three sites turned"
CASES = ["as it is", *(f"{name} turned" for name in HOSPITALS.values()), SHUFFLED, BREAST]
RULES = ("everyone", "everyone, prior", "alone")
LARGE = 100  # rows from which on a turned site must be named

Rows = tuple[np.ndarray, np.ndarray]


def heart(case: str, draws: np.random.Generator) -> Iterator[Rows]:
    """Yield each hospital's rows, its labels turned or all rows shuffled as the case says."""
    rows = pd.read_csv(DATA / "heart_disease" / "heart_disease.csv")
    labels, center = rows.pop("disease").to_numpy(np.int64), rows.pop("center").to_numpy()
    inputs = pd.get_dummies(rows, columns=["cp", "restecg"]).to_numpy(np.float32)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    center = draws.permutation(center) if case == SHUFFLED else center
    for name, title in HOSPITALS.items():
        own = labels[center == name]
        yield inputs[center == name], 1 - own if case == f"{title} turned" else own


def breast(draws: np.random.Generator) -> Iterator[Rows]:
    """Yield three random thirds of the table, the first with its labels turned."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = ((inputs - inputs.mean(axis=0)) / inputs.std(axis=0)).astype(np.float32)
    for place, rows in enumerate(np.array_split(draws.permutation(len(labels)), 3)):
        yield inputs[rows], 1 - labels[rows] if place == 0 else labels[rows]


def run(case: str, seed: int) -> dict[str, Any]:
    """Run `auto` and one model for all; return each site's accuracies and Brier scores, and who was named."""
    draws, clients = np.random.default_rng(seed), []
    for inputs, labels in breast(draws) if case == BREAST else heart(case, draws):
        order = draws.permutation(len(labels))
        tested, trained = np.split(order, [round(TEST * len(order))])
        clients.append([(inputs[each], labels[each]) for each in (trained, order[:0], tested)])
    torch.manual_seed(seed)
    given: dict[str, Any] = {"rounds": ROUNDS, "training": TRAINING, "seed": seed, "num_classes": 2}
    model = nn.Linear(clients[0][0][0].shape[1], 2)
    auto = simulate("auto", model, clients, **given)
    common = simulate("fedavg", model, clients, personal="prior", **given).clients
    sites = auto.summary["sites"]
    return {
        "auto": [each["chosen"]["accuracy"] for each in sites],
        "everyone": common["accuracy"].tolist(),
        "everyone, prior": common["accuracy_prior"].tolist(),
        "alone": [each["alone"]["accuracy"] for each in sites],
        "brier": {arm: [each[arm]["brier"] for each in sites] for arm in ("chosen", "everyone", "alone")},
        "left": [len(each["train_with"]) < len(sites) - 1 for each in sites],
        "stays_out": [not each["train_with"] for each in sites],
        "named": [each["client"] for each in auto.summary["site_findings"] if each["kind"] == "turned"],
    }


def line(case: str, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Write a case's row, and what of it falls short of the bar."""
    means = {rule: np.array([np.mean(each[rule]) for each in runs]) for rule in ("auto", *RULES)}
    best = max(RULES, key=lambda rule: means[rule].mean())
    behind = means[best] - means["auto"]
    error = behind.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else 0.0
    left, out = (np.mean([each[key] for each in runs]) for key in ("left", "stays_out"))
    turned = (
        0
        if case == BREAST
        else next((i for i, each in enumerate(HOSPITALS.values()) if case.startswith(each)), -1)
    )
    named = sum(turned in each["named"] for each in runs)
    others = sum(len(set(each["named"]) - {turned}) for each in runs)
    cells = [
        case,
        *(f"{means[rule].mean():.3f}" for rule in ("auto", *RULES)),
        f"{-behind.mean():+.3f} ± {error:.3f}",
    ]
    cells += [
        f"{np.mean([each['brier'][arm] for each in runs]):.3f}" for arm in ("chosen", "everyone", "alone")
    ]
    cells += [f"{left:.0%}", f"{out:.0%}", f"{named} of {len(runs)}" if turned >= 0 else "–", f"{others}"]
    short = []
    if behind.mean() > error:
        short.append(
            f"{case}: {behind.mean():.3f} behind {best}, more than the standard error of {error:.3f}"
        )
    if turned >= 0 and case != "Switzerland turned" and named < 0.9 * len(runs):
        short.append(f"{case}: named in {named} of {len(runs)}, fewer than 18 of 20")
    if case == SHUFFLED and out > 0.05:
        short.append(f"{case}: {out:.0%} of sites stay out, more than 5 %")
    if case == BREAST and (least := min(np.mean([each["auto"] for each in runs], axis=0))) < 0.93:
        short.append(f"{case}: a site is served {least:.3f}, less than 0.93")
    return cells, short


def main() -> None:
    """Run what is missing, and write the page."""
    parser = arguments(__doc__, page="SITES", folder=True)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    folder: Path = given.folder
    torch.set_num_threads(1)
    note_commit(folder)
    found: dict[str, list[Any]] = {case: [] for case in CASES}
    for seed in range(given.seeds):
        for case in CASES:
            file = folder / f"{case}-{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(run(case, seed)), encoding="utf-8")
            found[case].append(json.loads(file.read_text(encoding="utf-8")))
    lines = [line(case, runs) for case, runs in found.items()]
    head = ["", "auto", *RULES, "auto − best rule", "Brier: auto", "everyone, as it stands", "alone"]
    head += ["leave", "stay out", "turned site named", "others named"]
    text = [table(head, [cells for cells, _ in lines]), ""]
    short = [f"- {each}" for _, some in lines for each in some]
    text += ["Short of the bar:", "", *short] if short else ["No case falls short of the bar."]
    text += ["", f"{given.seeds} seeds, {ROUNDS} rounds."]
    show("sites", "\n".join(text), given.write, folder)


if __name__ == "__main__":
    main()
