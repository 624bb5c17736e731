"""Does clustering help where it should, and cost nothing elsewhere? The grid of docs/PROOF.md.

    python benchmarks/proof.py FOLDER [--datasets digits fashion_mnist] [--seeds 11 12 13 14 15] [--workers 2]

Makes the runs that FOLDER lacks and writes each dataset's table into docs/PROOF.md, between its two marks;
--no-run writes only.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import grid_arguments, over_seeds, show, table
from federations import DATASETS, PARTITIONS, Cell, run, summaries

METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("strategy=fedavg",),
    "known_groups": ("strategy=known_groups", "serve=cluster"),
    "auto": ("strategy=auto",),
    "fedgwc": ("strategy=fedgwc",),
    "clust_psi_pfl": ("strategy=clust_psi_pfl",),
    "fmcl": ("strategy=fmcl",),
}
JUDGED = ("auto",)  # the methods by name are their papers', whatever they do
_LARGE_GAIN, _SHARE, _RAND = 0.03, 0.95, 0.95


def cells(folder: Path, datasets: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """List the grid."""
    return [
        Cell(dataset, name, seed, _methods(partition.num_groups), folder / dataset / name / f"seed-{seed}")
        for dataset in datasets
        for seed in seeds
        for name, partition in PARTITIONS.items()
    ]


def _methods(num_groups: int) -> dict[str, tuple[str, ...]]:
    return {name: given for name, given in METHODS.items() if num_groups > 1 or name != "known_groups"}


def page(grid: Sequence[Cell]) -> list[str]:
    """Write the tables and what falls short."""
    accuracy: dict[tuple[str, str, str], list[float]] = {}
    rand: dict[tuple[str, str, str], list[float]] = {}
    clusters: dict[tuple[str, str, str], list[int]] = {}
    for cell, name, summary in summaries(grid):
        key = cell.dataset, cell.partition, name
        accuracy.setdefault(key, []).append(summary["mean_client_accuracy"])
        clusters.setdefault(key, []).append(summary["num_clusters"])
        if summary.get("adjusted_rand_index") is not None:
            rand.setdefault(key, []).append(summary["adjusted_rand_index"])
    lines: list[str] = []
    for dataset in dict.fromkeys(cell.dataset for cell in grid):
        lines += [f"### {dataset}, mean client accuracy (clusters found, adjusted Rand index)", ""]
        rows = []
        for name, partition in PARTITIONS.items():
            row = [partition.title]
            for method in METHODS:
                key = dataset, name, method
                text = over_seeds(accuracy.get(key, []))
                if method not in ("fedavg", "known_groups") and key in clusters:
                    found = f"{np.mean(clusters[key]):.3g}"
                    text += f" ({found}, {np.mean(rand[key]):.2f})" if key in rand else f" ({found})"
                row.append(text)
            rows.append(row)
        lines += [table(["partition", *METHODS], rows), ""]
        short = list(shortfalls(dataset, accuracy, rand))
        lines += ["Short of the bar:" if short else "No cell falls short of the bar.", ""]
        lines += [*(f"- {line}" for line in short), ""] if short else []
    return lines


def shortfalls(
    dataset: str,
    accuracy: dict[tuple[str, str, str], list[float]],
    rand: dict[tuple[str, str, str], list[float]],
) -> list[str]:
    """Name every cell that is more than one standard error below FedAvg, or misses groups that pay."""
    short = []
    for name, partition in PARTITIONS.items():
        common = accuracy.get((dataset, name, "fedavg"), [])
        known = accuracy.get((dataset, name, "known_groups"), [])
        for method in JUDGED:
            own = accuracy.get((dataset, name, method), [])
            if not own or len(own) != len(common):
                continue
            # One standard error of the difference over the seeds, which both share.
            apart = np.subtract(own, common)
            error = float(apart.std(ddof=1) / np.sqrt(len(apart))) if len(apart) > 1 else 0.0
            if apart.mean() < -max(error, 1e-12):
                below = f"{-apart.mean():.3f} below FedAvg (standard error {error:.3f})"
                short.append(f"{method}, {partition.title}: {below}")
            if method != "auto" or not known or np.mean(known) - np.mean(common) <= _LARGE_GAIN:
                continue
            share = apart.mean() / (np.mean(known) - np.mean(common))
            if share < _SHARE:
                short.append(f"auto, {partition.title}: {100 * share:.0f} % of the known groups' gain")
            if (found := float(np.mean(rand.get((dataset, name, method), [0])))) < _RAND:
                short.append(f"auto, {partition.title}: adjusted Rand index {found:.2f}")
    return short


def main() -> int:
    """Run the command line; return 1 if a run failed."""
    parser = grid_arguments(__doc__, [11, 12, 13, 14, 15], "PROOF")
    parser.add_argument("--datasets", nargs="+", choices=sorted(DATASETS), default=["digits"])
    options = parser.parse_args()
    grid = cells(options.folder.resolve(), options.datasets, options.seeds)
    whole = options.no_run or run(grid, options.folder, options.workers)
    seeds = ", ".join(map(str, options.seeds))
    note = f"30 clients, seeds {seeds}, mean ± sample standard deviation."
    for dataset in options.datasets:
        title, *tables = page([cell for cell in grid if cell.dataset == dataset])
        text = "\n".join([title, "", note, *tables]).rstrip()
        show(f"grid of {dataset}", text, options.out, options.folder)
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
