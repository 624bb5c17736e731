"""Federations that nobody made: hospitals, districts, education authorities, countries. docs/NATURAL.md.

    python benchmarks/natural.py FOLDER [--data DIRECTORY] [--write]

Makes the runs that FOLDER lacks. Fed-Heart-Disease has FLamby's rows to train and to test on and its scaling
by hospital, with its own training and with that of docs/SITES.md, which all other federations have, too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from common import DATA, arguments, finished, note_commit, over_seeds, show, table
from sklearn.model_selection import train_test_split

import fedclust

SEEDS = range(901, 906)  # nothing was chosen on them
METHODS = ("fedavg", "local", "auto", "fedgwc", "clust_psi_pfl", "fmcl")
PAIRS = ("fedgmcc",)  # tried only on the hospitals: 60 districts are 1,770 pairs of models in every round
TITLES = {"fedavg": "one model", "local": "each alone"}
FIGURES = ("accuracy", "balanced_accuracy", "auc", "brier", "accuracy_none")
OURS = ("rounds=20", "training.steps=null", "training.epochs=1", "training.batch_size=32")
OURS += ("training.learning_rate=0.3", "training.schedule=constant")
# 15 rounds: its get_nb_max_rounds(100); the learning rate is the one that its FedAvg was given.
FLAMBY = ("rounds=15", "training.steps=100", "training.batch_size=4", "training.learning_rate=0.001")
FLAMBY += ("training.schedule=constant", "participation=1.0")
PUBLISHED = (
    "Mean of its seeds 42 to 46: FedAvg 0.685, FedAdagrad, its best strategy, 0.731, each alone 0.730."
)


def heart(data: Path, folder: Path) -> list[str]:
    """Write Fed-Heart-Disease as FLamby has it, and its rows to train and to test on; return the settings."""
    rows = pd.read_csv(data / "heart_disease" / "heart_disease.csv")
    inputs = pd.get_dummies(rows.drop(columns=["disease", "center"]), columns=["cp", "restecg"], dtype=float)
    inputs = inputs.drop(columns=["cp_cp1", "restecg_ecg0"])  # 13 columns, as with drop_first
    lines = []
    for client, center in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        own = np.flatnonzero(rows["center"] == center)
        labels = rows["disease"].to_numpy()[own]
        stratify = labels if np.bincount(labels).min() > 2 else None
        given = {"train_size": 0.66, "test_size": 1 - 0.66, "random_state": 43, "stratify": stratify}
        train, test = train_test_split(own, **given)
        scale = inputs.loc[train].std() + 1e-9
        inputs.loc[own] = (inputs.loc[own] - inputs.loc[train].mean()) / scale
        lines += [(client, part, row) for part, some in (("train", train), ("test", test)) for row in some]
    inputs.add_prefix("x_").assign(disease=rows["disease"], center=rows["center"]).to_csv(
        folder / "heart.csv", index=False
    )
    columns = ["client", "part", "row"]
    pd.DataFrame(lines, columns=columns).to_parquet(folder / "flamby.parquet", index=False)
    source = [f"dataset.path={folder / 'heart.csv'}", "dataset.label=disease", "dataset.natural=center"]
    return ["dataset=csv", *source, f"partition.file={folder / 'flamby.parquet'}", "model=linear"]


def federations(data: Path, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of each federation, its title and its settings."""
    hospitals = heart(data, folder)
    yield "flamby", "Fed-Heart-Disease, FLamby's training", [*hospitals, *FLAMBY]
    yield "heart", "Fed-Heart-Disease, trained to the end", [*hospitals, *OURS]
    for name, title in (("contraception", "60 districts"), ("chem97", "131 authorities")):
        source = [f"dataset={name}", f"dataset.path={data / name / f'{name}.csv'}"]
        yield name, f"{name}, {title}", [*source, *OURS]
    source = ["dataset=csv", f"dataset.path={data / 'adult'}", "dataset.label=label"]
    yield "adult", "Adult, 41 countries of birth", [*source, "dataset.natural=native_country", *OURS]


def figures(folder: Path) -> dict[str, float]:
    """Read the means over a run's clients, of a handful of sites with what each chose; and its clusters."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    clients = pd.read_parquet(folder / "clients.parquet")
    if summary.get("sites"):
        clients = clients.assign(**pd.DataFrame([site["chosen"] for site in summary["sites"]]))
    if "accuracy_none" not in clients:  # no layer, or what sites chose has it
        clients["accuracy_none"] = clients["accuracy"]
    means = {name: float(clients[name].mean()) for name in FIGURES}
    return {**means, "clusters": float(summary["num_clusters"])}


def row(method: str, runs: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]]) -> list[str]:
    """Write a method's line: its figures, and its accuracy less one model's, with the standard error."""
    more = [each["accuracy"] - one["accuracy"] for each, one in zip(runs, base, strict=True)]
    gain = f"{np.mean(more):+.3f} ± {np.std(more, ddof=1) / np.sqrt(len(more)):.3f}"
    cells = [over_seeds([each[name] for each in runs]) for name in FIGURES]
    clusters = over_seeds([each["clusters"] for each in runs], 1)
    return [TITLES.get(method, f"`{method}`"), *cells, clusters, "" if method == "fedavg" else gain]


def main() -> None:
    """Run what is missing, and write the page."""
    parser = arguments(__doc__, page="NATURAL", folder=True)
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    note_commit(folder)
    head = ["", "accuracy", "balanced", "AUC", "Brier", "without its layer", "clusters", "− one model"]
    text = []
    for name, title, settings in federations(given.data, folder):
        found: dict[str, list[dict[str, float]]] = {}
        for method in METHODS + (PAIRS if "Heart" in title else ()):
            for seed in SEEDS:
                where = folder / name / f"{method}-{seed}"
                own = [f"strategy={method}", f"seed={seed}", f"output_dir={where}"]
                if method != "auto":  # it is proved beside FedAvg, and has its own rule for personal layers
                    own += ["personal=prior", "compare=[]", "proof=false"]
                if not finished(where):
                    fedclust.run(["partition=natural", *settings, *own])
                found.setdefault(method, []).append(figures(where))
        text += [
            f"**{title}.**",
            table(head, [row(each, runs, found["fedavg"]) for each, runs in found.items()]),
        ]
        text += [f"FLamby's own results: {PUBLISHED}"] if "FLamby" in title else []
    show("natural", "\n\n".join([*text, "Seeds 901 to 905."]), given.write, folder)


if __name__ == "__main__":
    main()
