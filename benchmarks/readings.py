"""Readings of FedGMCC's budget and FMCL's maxima, and FedGWC with tolerance=auto: tables of docs/methods.

python benchmarks/readings.py FOLDER fedgmcc [--write]
python benchmarks/readings.py FOLDER fedgwc [--write]
python benchmarks/readings.py FOLDER fmcl [--write]
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from common import DOCS, arguments, finished, note_commit, over_seeds, show, table
from federations import PARTITIONS

import fedclust
from fedclust.metrics import adjusted_rand_index
from fedclust.results import SavedRun

ROUNDS = (
    "participation=1",
    "rounds=20",
    "training.epochs=5",
    "training.steps=null",
    "compare=[]",
    "proof=false",
)
TEN = {
    "two conventions, 6 and 4 clients": (*ROUNDS, "partition.num_clients=10", "partition.groups=[6,4]"),
    "half of the clients rotated": (*ROUNDS, *PARTITIONS["rotation"].overrides, "partition.num_clients=10"),
    "IID": (*ROUNDS, "partition=iid", "partition.num_clients=10"),
}
BUDGETS = {
    (title, f"`{reading}`"): ("strategy=fedgmcc", f"strategy.parameters.connect={reading}", *federation)
    for title, federation in TEN.items()
    for reading in ("budget", "slope", "absolute_slope")
}
LONG = ("rounds=1500", "evaluate_every=50", "compare=[]", "proof=false", *PARTITIONS["noise-blur"].overrides)
TOLERANCES = {
    (PARTITIONS["noise-blur"].title, "`tolerance=auto`"): (
        "strategy=fedgwc",
        "strategy.parameters.tolerance=auto",
        *LONG,
    ),
    (PARTITIONS["noise-blur"].title, "FedAvg"): ("strategy=fedavg", *LONG),
}
MAXIMA = {
    (PARTITIONS[name].title, f"`{reading}`"): (
        "strategy=fmcl",
        f"strategy.parameters.local_maximum={reading}",
        "participation=1",
        "rounds=20",
        "compare=[]",
        "proof=false",
        *PARTITIONS[name].overrides,
    )
    for name in ("conventions-20-10", "conventions-15-15", "conventions-three", "rotation", "iid")
    for reading in ("dominant", "any")
}
TABLES: dict[str, tuple[Mapping[tuple[str, str], tuple[str, ...]], tuple[int, ...]]] = {
    "fedgmcc": (BUDGETS, (4, 5, 6)),
    "fedgwc": (TOLERANCES, (301, 302, 303)),
    "fmcl": (MAXIMA, (4, 5, 6, 7, 8)),
}


def by_round(run: SavedRun) -> Iterator[np.ndarray]:
    """Yield the assignment at the end of every round."""
    changes = {change["round"]: change["assignment"] for change in run.changes}
    now = np.array(changes[0])
    for number in range(1, run.summary["rounds"] + 1):
        now = np.array(changes.get(number, now))
        yield now


def row(runs: list[SavedRun]) -> list[str]:
    """Write the clusters of all rounds, when they were the known groups, and the last round's accuracy."""
    counts, exact, last, first = Counter[int](), list[float](), list[float](), list[str]()
    for run in runs:
        groups = run.clients["group"].to_numpy()
        assignments = [*by_round(run)]
        counts.update(len(np.unique(each)) for each in assignments)
        split = next((at for at, each in enumerate(assignments, 1) if each.any()), None)
        first.append("–" if split is None else str(split))
        if len(np.unique(groups)) > 1:
            found = [adjusted_rand_index(each, groups) for each in assignments]
            exact.append(float(np.mean(np.array(found) == 1)))
            last.append(found[-1])
    shares = ", ".join(f"{number}: {counts[number] / counts.total():.0%}" for number in sorted(counts))
    accuracy = over_seeds([run.summary["mean_client_accuracy"] for run in runs])
    return [shares, ", ".join(first), over_seeds(exact, 2), over_seeds(last, 2), accuracy]


def main() -> None:
    """Run what is missing, and write the table."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("name", choices=TABLES)
    parser.add_argument("--write", action="store_true", help="into docs/methods/NAME.md")
    given = parser.parse_args()
    folder: Path = (given.folder / given.name).resolve()
    asked, seeds = TABLES[given.name]
    note_commit(folder)
    lines = []
    for number, ((title, name), overrides) in enumerate(asked.items()):
        places = [folder / f"{number}-{seed}" for seed in seeds]
        for place, seed in zip(places, seeds, strict=True):
            if not finished(place):
                fedclust.run([*overrides, f"seed={seed}", f"output_dir={place}"])
        lines.append([f"{title}: {name}", *row([SavedRun(place) for place in places])])
    head = [
        "",
        "clusters: share of rounds",
        "first round with more than one",
        "share of rounds with the known groups",
        "adjusted Rand, last round",
        "accuracy",
    ]
    text = f"{table(head, lines)}\n\nSeeds {', '.join(map(str, seeds))}."
    show("readings", text, DOCS / "methods" / f"{given.name}.md" if given.write else None, folder)


if __name__ == "__main__":
    main()
