"""Every method on every kind of heterogeneity: the runs and tables of docs/BENCH.md.

    python benchmarks/bench.py FOLDER [--datasets digits] [--seeds 51 52 53] [--workers 2]
    python benchmarks/bench.py FOLDER --datasets fashion_mnist --out docs/BENCH_FASHION_MNIST.md
    python benchmarks/bench.py FOLDER --further fedrc feddrift flux

Makes the runs that FOLDER lacks, then writes docs/BENCH.md, or --out, and its picture; --no-run writes only.
With --further only those of these methods and FedAvg, and their accuracies into docs/methods/baselines.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from common import DOCS, commit_of, grid_arguments, over_seeds, records, show, table
from federations import DATASETS, PARTITIONS, Cell, Method, clients_trained, run, summaries

from fedclust.clustering.shared import wording
from fedclust.metrics.ranks import critical_difference, friedman, mean_ranks
from fedclust.results.charts import save
from fedclust.results.charts.comparison import rank_diagram

TEXT = Path(__file__).with_name("bench_text.md")
_YARDSTICKS = ("known_groups", "centralised")  # no federated method can do what these do
_COMMON = "fedavg"
_TIMED = """\
  *time* is that of the fastest seed over FedAvg's fastest: other work on the machine only adds to a run's."""
_UNTIMED = "  times are left out, as other work went on beside the runs."


def methods(num_groups: int) -> dict[str, Method]:
    """List the methods, told the number of groups where they need one."""
    told = max(num_groups, 2)
    number, words = f"strategy.parameters.num_clusters={told}", f"number of groups, {told}"
    centres = {
        name: Method((f"strategy={name}", number, "serve=cluster"), words)
        for name in ("ifca", "clove", "fesem", "fedsoft", "fedrc")
    }
    alone = {
        name: Method((f"strategy={name}", "serve=cluster"))
        for name in ("cfl", "fl_hc", "fedclust_weights", "pacfl", "fecfl", "feddrift", "flux")
    }
    known = {"known_groups": Method(("strategy=known_groups", "serve=cluster"), "the groups")}
    return {
        _COMMON: Method(("strategy=fedavg",)),
        "fedavg + poc": Method(("strategy=fedavg", "selection=poc")),
        "fedavg + haccs": Method(("strategy=fedavg", "selection=haccs")),
        "fedavg + fedcls": Method(("strategy=fedavg", "selection=fedcls")),
        "fedavg + fairavg": Method(("strategy=fedavg", "aggregator=fairavg")),
        "local": Method(("strategy=local", "serve=cluster")),
        **centres,
        **alone,
        "fedgwc": Method(("strategy=fedgwc",)),
        "fedgwc + tolerance auto": Method(("strategy=fedgwc", "strategy.parameters.tolerance=auto")),
        "clust_psi_pfl": Method(("strategy=clust_psi_pfl",)),
        "fmcl": Method(("strategy=fmcl",)),
        "fmcl + efficientnet": Method(("strategy=fmcl", "encoder=efficientnet_lite0")),
        "auto": Method(("strategy=auto",)),
        **(known if num_groups > 1 else {}),
        "centralised": Method(("strategy=centralised", "serve=cluster"), "all rows"),
    }


def cells(folder: Path, datasets: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """List the grid."""
    return [
        Cell(
            dataset,
            name,
            seed,
            {
                method: (*given.overrides, "personal=auto")
                for method, given in methods(partition.num_groups).items()
            },
            folder / dataset / name / f"seed-{seed}",
        )
        for dataset in datasets
        for seed in seeds
        for name, partition in PARTITIONS.items()
    ]


_FEW = (
    "partition.num_clients=10",
    "participation=1",
    "rounds=20",
    "training.steps=null",
    "training.epochs=5",
)
_FEW_OF = {"iid": (), "conventions-20-10": ("partition.groups=[6,4]",), "rotation": ()}
_FEDGMCC = Method(("strategy=fedgmcc",))


def small_cells(folder: Path, seeds: Sequence[int]) -> list[Cell]:
    """List the federations of ten clients, for FedGMCC: it fits a curve between any two clients' models."""
    names = {name: (f"strategy={name}", "serve=cluster") for name in (_COMMON, "fedgmcc", "known_groups")}
    return [
        Cell(
            "digits",
            kind,
            seed,
            {
                name: (*chosen, *_FEW, *made)
                for name, chosen in names.items()
                if PARTITIONS[kind].num_groups > 1 or name != "known_groups"
            },
            folder / "ten" / kind / f"seed-{seed}",
        )
        for seed in seeds
        for kind, made in _FEW_OF.items()
    ]


@dataclass
class Figures:
    """What one method reached on one kind of federation, an entry per seed."""

    accuracy: list[float] = field(default_factory=list)
    personal: dict[str, list[float]] = field(default_factory=dict)
    rand: list[float] = field(default_factory=list)
    newcomers: list[float] = field(default_factory=list)
    placed: list[float] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def best_layer(self) -> tuple[str, list[float]]:
        """The personal layer with the highest mean."""
        layers = {name: values for name, values in self.personal.items() if name != "none"}
        if not layers:
            return "–", []
        name = max(layers, key=lambda layer: float(np.mean(layers[layer])))
        return name, layers[name]


def read(grid: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Figures]]:
    """Read all runs: by dataset and partition, by method."""
    found: dict[tuple[str, str], dict[str, Figures]] = {}
    for cell, name, summary in summaries(grid):
        each = found.setdefault((cell.dataset, cell.partition), {}).setdefault(name, Figures())
        each.accuracy.append(summary["mean_client_accuracy"])
        for layer, figures in (summary.get("personal") or {}).get("figures", {}).items():
            if figures.get("mean_client_accuracy") is not None:
                each.personal.setdefault(layer, []).append(figures["mean_client_accuracy"])
        if newcomers := summary.get("newcomers"):
            each.newcomers.append(newcomers["accuracy"])
            if newcomers["adjusted_rand"] is not None:
                each.placed.append(newcomers["adjusted_rand"])
        if summary.get("adjusted_rand_index") is not None:
            each.rand.append(summary["adjusted_rand_index"])
        each.clusters.append(summary["num_clusters"])
        travelled = summary["bytes_down_unbundled"] + summary["bytes_up_unbundled"]
        each.kilobytes.append(travelled / summary["num_clients"] / 1000)
        if (trained := clients_trained(cell.folder / name)) is not None:
            each.trained.append(trained)
        each.seconds.append(summary["seconds"])
    return found


def first_screen(found: Mapping[tuple[str, str], Mapping[str, Figures]]) -> str:
    """Write which method is best for which heterogeneity, and when none helps."""
    rows = []
    for (dataset, partition), by_method in found.items():
        common = by_method.get(_COMMON)
        if common is None:
            continue
        fair = {
            name: each
            for name, each in by_method.items()
            if name not in _YARDSTICKS and not methods(PARTITIONS[partition].num_groups)[name].told
        }
        best = max(fair, key=lambda name: float(np.mean(fair[name].accuracy)))
        layered = max(fair, key=lambda name: float(np.mean(fair[name].best_layer[1] or [0])))
        layer, values = fair[layered].best_layer
        gain = float(np.mean(fair[best].accuracy) - np.mean(common.accuracy))
        known = by_method.get("known_groups")
        winner = f"{best} {over_seeds(fair[best].accuracy)}"
        rows.append({
            "federation": f"{dataset}: {PARTITIONS[partition].title}",
            "FedAvg": over_seeds(common.accuracy),
            "known groups": over_seeds(known.accuracy) if known else "–",
            "best that is told nothing": winner if gain >= _LEAST else f"none beats FedAvg by {_LEAST:g}",
            "auto": over_seeds(by_method["auto"].accuracy) if "auto" in by_method else "–",
            "best with a layer": f"{layered} with {layer} {over_seeds(values)}" if values else "–",
        })  # fmt: skip
    return records(rows)


_LEAST = 0.01  # accuracy by which a method must beat FedAvg to be named


def method_table(partition: str, by_method: Mapping[str, Figures], *, times: bool) -> str:
    """Write one federation's table, with or without the column of times."""
    given = methods(PARTITIONS[partition].num_groups) | {"fedgmcc": _FEDGMCC}
    common = by_method.get(_COMMON)
    left_out = any(each.newcomers for each in by_method.values())
    rows = []
    for name in (name for name in given if name in by_method):
        each = by_method[name]
        layer, values = each.best_layer
        row = {
            "method": name,
            "accuracy": over_seeds(each.accuracy),
            "best personal layer": f"{over_seeds(values)} ({layer})" if values else "–",
            "adjusted Rand": over_seeds(each.rand, 2),
            "clusters": f"{np.mean(each.clusters):.1f}",
            "kB/client": f"{np.mean(each.kilobytes):,.0f}",
            "trained/round": f"{np.mean(each.trained):.1f}" if each.trained else "–",
        }
        if times:
            alike = common and len(common.seconds) == len(each.seconds)
            row["time"] = f"{min(each.seconds) / min(common.seconds):.1f} ×" if common and alike else "–"
        if left_out:
            row["newcomers"] = over_seeds(each.newcomers)
            row["newcomers, adjusted Rand"] = over_seeds(each.placed, 2)
        rows.append({**row, "told": given[name].told or "–"})
    return records(rows)


def scores(found: Mapping[tuple[str, str], Mapping[str, Figures]]) -> tuple[list[str], np.ndarray]:
    """List the methods that ran everywhere, and their mean accuracy on each kind of federation, shape (N, k).

    Seeds of one kind are no further evidence of which method suits which kind, so they are averaged first.
    """
    names = [name for name in methods(1) if name not in _YARDSTICKS]
    names = [name for name in names if all(name in by_method for by_method in found.values())]
    rows = [[float(np.mean(by_method[name].accuracy)) for name in names] for by_method in found.values()]
    return names, np.array(rows)


def told_apart(ranks: Mapping[str, float], difference: float) -> str:
    """Say which methods the critical difference tells apart, and what that leaves to say."""
    found = []
    for worse, rank in sorted(ranks.items(), key=lambda each: -each[1]):
        if better := [
            name for name in sorted(ranks, key=lambda name: ranks[name]) if rank - ranks[name] > difference
        ]:
            found.append(f"{worse} ({rank:.1f}) is worse than {', '.join(better)}")
    least, common = min(ranks, key=lambda name: ranks[name]), ranks[_COMMON]
    shown = "; ".join(found) or "no two methods differ by it"
    return (
        f"That leaves to say: {shown}. The least rank is {ranks[least]:.1f} ({least}), FedAvg's is "
        f"{common:.1f}: {'more' if common - ranks[least] > difference else 'less'} than that apart."
    )


def further(grid: Sequence[Cell]) -> str:
    """Write the accuracies of some methods beside FedAvg's, with the adjusted Rand index."""
    found = read(grid)
    names = list(dict.fromkeys(name for by_method in found.values() for name in by_method))

    def cell(each: Figures) -> str:
        return over_seeds(each.accuracy) + (f" ({np.mean(each.rand):.2f})" if each.rand else "")

    rows = [
        [f"{dataset}: {PARTITIONS[kind].title}", *(cell(by_method.get(name, Figures())) for name in names)]
        for (dataset, kind), by_method in found.items()
    ]
    return table(["federation", *names], rows)


def write(
    grid: Sequence[Cell], small: Sequence[Cell], out: Path, seeds: Sequence[int], commit: str, *, times: bool
) -> None:
    """Write the document and its picture, with or without times."""
    found = read(grid)
    listed = {f"{dataset}: {PARTITIONS[kind].title}": (kind, each) for (dataset, kind), each in found.items()}
    listed |= {
        f"digits, ten clients: {PARTITIONS[kind].title.replace('20 and 10', '6 and 4')}": (kind, each)
        for (_, kind), each in read(small).items()
    }
    names, table_of_scores = scores(found)
    ranks = mean_ranks(table_of_scores)
    difference = critical_difference(len(names), len(table_of_scores))
    picture = f"images/{out.stem.lower()}_ranks.png"
    save(rank_diagram(names, ranks, difference), out.parent / picture)
    chance = friedman(table_of_scores)
    noted = f"Commit {commit}; 30 clients; seeds {', '.join(map(str, seeds))}."
    ranked = (
        f"![Mean ranks of the methods, with bars over those that cannot be told apart]({picture})\n\n"
        f"{len(table_of_scores)} kinds of federations, {len(names)} methods, each by its mean over seeds. "
        f"Friedman's test that all are alike: {wording.chance(chance)}; critical difference "
        f"{difference:.2f}. {told_apart(dict(zip(names, ranks, strict=True)), difference)}"
    )
    parts = {
        "times": _TIMED if times else _UNTIMED,
        "datasets": ", ".join(dict.fromkeys(cell.dataset for cell in grid)),
        "first": f"{noted}\n\n{first_screen(found)}",
        "ranks": ranked,
        "tables": "\n\n".join(
            f"## {title}\n\n{method_table(kind, each, times=times)}" for title, (kind, each) in listed.items()
        ),
    }
    text = TEXT.read_text(encoding="utf-8")
    for place, part in parts.items():
        text = text.replace(f"<!-- {place} -->", part)
    out.write_text(text, encoding="utf-8")


def main() -> int:
    """Run the command line; return 1 if a run failed."""
    parser = grid_arguments(__doc__, [51, 52, 53], "BENCH")
    parser.add_argument("--datasets", nargs="+", choices=sorted(DATASETS), default=["digits"])
    parser.add_argument(
        "--holdout-clients", type=float, default=0.0, help="share of the clients left out, to be placed later"
    )
    parser.add_argument("--partitions", nargs="+", choices=sorted(PARTITIONS), default=list(PARTITIONS))
    parser.add_argument(
        "--no-times", action="store_true", help="leave out times, of runs beside which other work went on"
    )
    parser.add_argument("--further", nargs="+", choices=sorted(methods(2)), default=[])
    options = parser.parse_args()
    left_out = (f"holdout_clients={options.holdout_clients:g}",) if options.holdout_clients else ()
    grid = [
        replace(cell, methods={name: (*each, *left_out) for name, each in cell.methods.items()})
        for cell in cells(options.folder.resolve(), options.datasets, options.seeds)
        if cell.partition in options.partitions
    ]
    if options.further:
        only = {_COMMON, *options.further}
        grid = [replace(cell, methods={n: e for n, e in cell.methods.items() if n in only}) for cell in grid]
        whole = options.no_run or run(grid, options.folder, options.workers)
        seeds = ", ".join(map(str, options.seeds))
        about = f"Mean client accuracy without layers; in brackets the adjusted Rand index. Seed {seeds}."
        show("further", f"{further(grid)}\n\n{about}", DOCS / "methods" / "baselines.md", options.folder)
        return int(not whole)
    small = small_cells(options.folder.resolve(), options.seeds) if "digits" in options.datasets else []
    whole = options.no_run or run([*grid, *small], options.folder, options.workers)
    write(grid, small, options.out, options.seeds, commit_of(options.folder), times=not options.no_times)
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
