"""Accuracy with each personal layer, on FedAvg's model: the tables of docs/PERSONAL.md.

python benchmarks/personal.py FOLDER [--seeds 21 22 23] [--write]
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common import DATA, arguments, over_seeds, show, table
from federations import PARTITIONS, Cell, run, summaries

LAYERS = ("none", "prior", "finetune", "auto")
STAYING = ("fedper", "fedrep", "ditto", "apfl")
FEDERATIONS = {
    "digits": ("dirichlet-0.1", "dirichlet-0.5", "iid", "conventions-20-10", "rotation", "inversion"),
    "fashion_mnist": ("dirichlet-0.1", "dirichlet-0.5"),
}
SAME_ROWS = "partition.validation_fraction=0.1"  # as personal=auto holds out
# FedBN's layers are those of a network of two blocks of convolutions with batch normalisation.
NORMED = ("model=cnn_cifar10", "model.channels=[8,16]", "model.dropout=[0,0]", "model.hidden=32")
NORMED += ("model.hidden_dropout=0", "rounds=20", "compare=[]", SAME_ROWS)


@dataclass(frozen=True)
class Hospitals(Cell):
    """The four hospitals of Heart Disease."""

    def overrides(self, name: str, data: Path | None) -> list[str]:
        """List the settings of a run."""
        own = ["dataset=heart_disease", f"dataset.path={DATA / 'heart_disease' / 'heart_disease.csv'}"]
        own += ["partition=natural", "model=mlp", "rounds=60"]
        made = Cell.overrides(replace(self, dataset="digits"), name, data)
        replaced = ("dataset", "partition=", "partition.num_clients", "model", "rounds")
        return own + [each for each in made if not each.startswith(replaced)]


def title(cell: Cell) -> str:
    """Name a cell's federation."""
    if isinstance(cell, Hospitals):
        return "Heart Disease: four hospitals"
    return f"{cell.dataset}: {PARTITIONS[cell.partition].title}"


def tabled(cells: Iterable[Cell], first: str) -> str:
    """Tabulate the accuracies of runs; one with several layers has a column for each."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell, name, summary in summaries(cells):
        row = found.setdefault(title(cell), {})
        tried = (summary.get("personal") or {}).get("figures") or {name: summary}
        for layer in tried if name != "fedavg" else LAYERS:
            row.setdefault(layer, []).append(tried[layer]["mean_client_accuracy"])
    head = [first, *(f"`{layer}`" for layer in next(iter(found.values())))]
    return table(head, [[name, *map(over_seeds, row.values())] for name, row in found.items()])


def main() -> int:
    """Run what is missing, and write the tables; return 1 if a run failed."""
    parser = arguments(__doc__, page="PERSONAL", folder=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23])
    given = parser.parse_args()
    folder = given.folder.resolve()
    methods = {"fedavg": ("strategy=fedavg", "personal=auto")}
    methods |= {each: ("strategy=fedavg", f"personal={each}", "compare=[]", SAME_ROWS) for each in STAYING}

    def cell(kind: type[Cell], dataset: str, name: str, seed: int, of: Mapping[str, tuple[str, ...]]) -> Cell:
        return kind(dataset, name, seed, of, folder / dataset / name / f"seed-{seed}")

    cells = [
        cell(Cell, dataset, name, seed, methods)
        for dataset, names in FEDERATIONS.items()
        for name in names
        for seed in given.seeds
    ]
    cells += [cell(Hospitals, "hospitals", "iid", seed, methods) for seed in given.seeds]
    both = {each: ("strategy=fedavg", f"personal={each}", *NORMED) for each in ("none", "fedbn")}
    kinds = ("rotation", "inversion")
    normed = [
        Cell("digits", kind, seed, both, folder / "normed" / kind / f"seed-{seed}")
        for kind in kinds
        for seed in given.seeds
    ]
    whole = run([*cells, *normed], folder, 1)
    seeds = f"Seeds {', '.join(map(str, given.seeds))}."
    first, second = tabled(cells, "FedAvg"), tabled(normed, "FedAvg, batch normalisation")
    show("layers", f"{first}\n\n{second}\n\n{seeds}", given.write, folder)
    return int(not whole)


if __name__ == "__main__":
    raise SystemExit(main())
