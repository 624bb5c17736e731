"""A handful of sites: is each served as well as by the best rule, and is a turned one named? docs/SITES.md.

    python benchmarks/sites.py FOLDER [--seeds 20] [--write]

Makes the runs that FOLDER lacks, with the rounds, model and local training that a run has by default:
Fed-Heart-Disease as it is, with each hospital's labels in turn turned round, with 30 % of one's labels
at random, and with its rows shuffled over the hospitals; three sites of scikit-learn's breast-cancer table,
one turned; and three to six sites of 100 rows whose labels are at random. `auto` chooses; *everyone*,
*everyone with the prior correction* and *alone* are the rules that it must not fall behind.
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

from fedclust import simulate
from fedclust.models.dense import MLP
from fedclust.training import LocalTraining

ROUNDS, TEST = 60, 0.34
TRAINING = LocalTraining(learning_rate=0.1, steps=3, batch_size=8)  # as conf/training/default.yaml
HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Hungary",
    "switzerland": "Switzerland",
    "va": "Long Beach",
}
SHUFFLED, BREAST = "rows shuffled over the sites", "breast cancer, one of three sites turned"
NOISE = "30 % of Hungary's labels at random"
TURNED = [f"{name} turned" for name in HOSPITALS.values()]
CASES = ["as it is", *TURNED, NOISE, SHUFFLED, BREAST]
RANDOM = {f"{number} sites, labels at random": number for number in (3, 4, 5, 6)}
RULES = ("everyone", "everyone, prior", "alone")
ARMS, FIGURES = ("chosen", "everyone", "alone"), ("accuracy", "balanced_accuracy", "auc", "brier")

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
        if case == NOISE and title == "Hungary":
            own = np.where(draws.random(len(own)) < 0.3, draws.integers(0, 2, len(own)), own)
        yield inputs[center == name], 1 - own if case == f"{title} turned" else own


def breast(draws: np.random.Generator) -> Iterator[Rows]:
    """Yield three random thirds of the table, the first with its labels turned."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = ((inputs - inputs.mean(axis=0)) / inputs.std(axis=0)).astype(np.float32)
    for place, rows in enumerate(np.array_split(draws.permutation(len(labels)), 3)):
        yield inputs[rows], 1 - labels[rows] if place == 0 else labels[rows]


def at_random(number: int, draws: np.random.Generator) -> Iterator[Rows]:
    """Yield sites of 100 training rows in eight columns, whose labels have nothing to do with them."""
    for _ in range(number):
        yield draws.normal(size=(152, 8)).astype(np.float32), draws.integers(0, 2, 152)


def run(case: str, seed: int) -> dict[str, Any]:
    """Run `auto` and one model for all; return each site's figures of each arm, and who was named."""
    draws, clients = np.random.default_rng(seed), []
    sites = at_random(RANDOM[case], draws) if case in RANDOM else heart(case, draws)
    for inputs, labels in breast(draws) if case == BREAST else sites:
        order = draws.permutation(len(labels))
        tested, trained = np.split(order, [round(TEST * len(order))])
        clients.append([(inputs[each], labels[each]) for each in (trained, order[:0], tested)])
    torch.manual_seed(seed)
    given: dict[str, Any] = {"rounds": ROUNDS, "training": TRAINING, "seed": seed, "num_classes": 2}
    model = MLP([clients[0][0][0].shape[1]], 2, [64])
    auto = simulate("auto", model, clients, **given)
    common = simulate("fedavg", model, clients, personal="prior", **given).clients
    named = [each["client"] for each in auto.summary["site_findings"] if each["kind"] == "turned"]
    sites = auto.summary["sites"]
    return {
        "figures": {arm: {key: [each[arm][key] for each in sites] for key in FIGURES} for arm in ARMS},
        "common": {
            "everyone": common["accuracy_none"].tolist(),
            "everyone, prior": common["accuracy"].tolist(),
        },
        "left": [each["leaves"] and each["client"] not in named for each in sites],
        "stays_out": [not each["train_with"] for each in sites],
        "named": named,
        "advice": [each["text"] for each in sites],
        "decision": auto.summary["decision"],
    }


def turned_in(case: str) -> int:
    """Return the site that is turned in a case; -1 for none."""
    places = (place for place, name in enumerate(HOSPITALS.values()) if case == f"{name} turned")
    return 0 if case == BREAST else next(places, -1)


def line(case: str, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Write a case's row, and what of it falls short of the bar."""

    def mean(rule: str) -> np.ndarray:
        arm = {"auto": "chosen"}.get(rule, rule)
        of = [each["common"].get(rule) or each["figures"][arm]["accuracy"] for each in runs]
        return np.array(of).mean(axis=1)

    means = {rule: mean(rule) for rule in ("auto", *RULES)}
    best = max(RULES, key=lambda rule: means[rule].mean())
    behind, number = means[best] - means["auto"], len(runs)
    error = behind.std(ddof=1) / np.sqrt(number) if number > 1 else 0.0
    turned = turned_in(case)
    named = sum(turned in each["named"] for each in runs)
    others = sum(len(set(each["named"]) - {turned}) for each in runs)
    left = sum(any(each["left"]) for each in runs)
    cells = [case, *(f"{means[rule].mean():.3f}" for rule in ("auto", *RULES))]
    cells += [f"{-behind.mean():+.3f} ± {error:.3f}"]
    cells += [f"{np.mean([each['figures'][arm]['brier'] for each in runs]):.3f}" for arm in ARMS]
    cells += [f"{left} of {number}", f"{np.mean([each['stays_out'] for each in runs]):.0%}"]
    cells += [f"{named} of {number}" if turned >= 0 else "–", f"{others}"]
    short = []
    if behind.mean() > error:
        short.append(
            f"{case}: {behind.mean():.3f} behind {best}, more than the standard error of {error:.3f}"
        )
    if turned >= 0 and case != "Switzerland turned" and named < 0.9 * number:
        short.append(f"{case}: named in {named} of {number}, fewer than 18 of 20")
    if case == SHUFFLED and left > 0.05 * number:
        short.append(f"{case}: somebody leaves in {left} of {number}, more than 5 %")
    return cells, short


def over_alone(case: str, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Write how much better than alone each hospital is served, and what of it falls short of the bar."""
    cells, short = [case], []
    for title, figure in (("balanced accuracy", "balanced_accuracy"), ("AUC", "auc")):
        chosen, alone = (
            np.array([each["figures"][arm][figure] for each in runs], dtype=float)
            for arm in ("chosen", "alone")
        )
        for place, name in enumerate(HOSPITALS.values()):
            gains = (chosen - alone)[:, place]
            gains = gains[np.isfinite(gains)]
            error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
            cells.append(f"{gains.mean():+.3f} ± {error:.3f}" if len(gains) > 1 else "too few rows")
            if len(gains) > 1 and gains.mean() < -0.01:
                short.append(f"{case}: {title} at {name} {gains.mean():+.3f} against alone, below -0.01")
    return cells, short


def at_random_line(case: str, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Write in how many runs something is said of sites whose labels are at random."""
    number = len(runs)
    named, left = (sum(bool(np.any(each[key])) for each in runs) for key in ("accused", "left"))
    advised = sum("No advice" not in each["decision"] for each in runs)
    cells = [case, *(f"{each} of {number}" for each in (named, left, advised))]
    short = (
        [f"{case}: somebody is named in {named} of {number}, more than 5 %"] if named > 0.05 * number else []
    )
    return cells, short


def main() -> None:
    """Run what is missing, and write the page."""
    parser = arguments(__doc__, page="SITES", folder=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--no-run", action="store_true", help="write the tables of the seeds that are there")
    given = parser.parse_args()
    folder: Path = given.folder
    torch.set_num_threads(1)
    if not given.no_run:
        note_commit(folder)
    found: dict[str, list[Any]] = {case: [] for case in (*CASES, *RANDOM)}
    for seed in range(given.seeds):
        for case, runs in found.items():
            file = folder / f"{case}-{seed}.json"
            if not file.exists() and not given.no_run:
                file.write_text(json.dumps(run(case, seed)), encoding="utf-8")
            if file.exists():
                each = json.loads(file.read_text(encoding="utf-8"))
                runs.append(each | {"accused": [True] * len(each["named"])})
    head = ["", "auto", *RULES, "auto − best rule", "Brier: auto", "everyone", "alone"]
    head += ["runs where somebody leaves", "stay out", "turned site named", "others named"]
    names = list(HOSPITALS.values())
    parts = {
        "": (head, [line(case, found[case]) for case in CASES]),
        "Chosen − alone, by hospital: balanced accuracy, then AUC.": (
            ["", *names, *(f"AUC: {name}" for name in names)],
            [over_alone(case, found[case]) for case in CASES if case != BREAST],
        ),
        "Labels at random, 100 training rows a site:": (
            ["", "runs that name a site", "where somebody leaves", "with advice"],
            [at_random_line(case, found[case]) for case in RANDOM],
        ),
    }
    text, short = [], []
    for title, (titles, lines) in parts.items():
        text += [title, ""] * bool(title) + [table(titles, [cells for cells, _ in lines]), ""]
        short += [f"- {each}" for _, some in lines for each in some]
    text += ["Short of the bar:", "", *short] if short else ["No case falls short of the bar."]
    seeds = sorted({len(runs) for runs in found.values()})
    text += ["", f"{' to '.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} seeds, {ROUNDS} rounds."]
    show("sites", "\n".join(text), given.write, folder)


if __name__ == "__main__":
    main()
