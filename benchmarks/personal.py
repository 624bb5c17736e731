"""Accuracy with each personal layer, on FedAvg's model: the table of docs/PERSONAL.md.

python benchmarks/personal.py FOLDER [--seeds 21 22 23] [--write]
"""

from common import arguments, over_seeds, show, table
from federations import PARTITIONS, Cell, run, summaries

LAYERS = ("none", "prior", "finetune", "auto")
STAYING = ("fedper", "fedrep", "ditto", "apfl")  # fedbn needs a network with normalisation layers
FEDERATIONS = {
    "digits": ("dirichlet-0.1", "dirichlet-0.5", "iid", "conventions-20-10", "rotation", "inversion"),
    "fashion_mnist": ("dirichlet-0.1", "dirichlet-0.5"),
}


def main() -> int:
    """Run what is missing, and write the table; return 1 if a run failed."""
    parser = arguments(__doc__, page="PERSONAL", folder=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23])
    given = parser.parse_args()
    folder = given.folder.resolve()
    methods = {"fedavg": ("strategy=fedavg", "personal=auto")}
    same_rows = "partition.validation_fraction=0.1"  # as personal=auto holds out
    methods |= {each: ("strategy=fedavg", f"personal={each}", "compare=[]", same_rows) for each in STAYING}
    cells = [
        Cell(dataset, name, seed, methods, folder / dataset / name / f"seed-{seed}")
        for dataset, names in FEDERATIONS.items()
        for name in names
        for seed in given.seeds
    ]
    whole = run(cells, folder, 1)
    found: dict[str, dict[str, list[float]]] = {}
    for cell, name, summary in summaries(cells):
        row = found.setdefault(f"{cell.dataset}: {PARTITIONS[cell.partition].title}", {})
        if name in STAYING:
            row.setdefault(name, []).append(summary["mean_client_accuracy"])
            continue
        for layer in LAYERS:
            figures = summary["personal"]["figures"][layer]
            row.setdefault(layer, []).append(figures["mean_client_accuracy"])
    head = ["FedAvg, 30 clients", *(f"`{layer}`" for layer in (*LAYERS, *STAYING))]
    text = table(head, [[title, *map(over_seeds, row.values())] for title, row in found.items()])
    show("layers", f"{text}\n\nSeeds {', '.join(map(str, given.seeds))}.", given.write, folder)
    return int(not whole)


if __name__ == "__main__":
    raise SystemExit(main())
