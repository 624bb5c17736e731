"""Run tables and figures of the papers that are of several runs, or a picture: ours beside the published.

    python benchmarks/papers.py FOLDER [NAME …] [--small] [--data ../shared/data] [--reads FOLDER]

Each NAME ends in FOLDER/NAME.md, and a figure in FOLDER/NAME.png and .svg, too. A finished run is not
repeated.
`--small` takes minutes on two cores: fewer rounds, clients or rows, so its figures are not comparable.
The datasets are folders of `--data`; reads come from `benchmarks/sensg.py`, with `--small` from an invented
genome.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import finished, run
from paper_charts import loss_per_round
from published_rows import published_for, row_of
from sensg import INDIVIDUALS, write
from tables import table

from fedclust.results import SavedRun
from fedclust.results.charts import pictures, save
from fedclust.settings import CONF

Runs = Mapping[str, SavedRun]


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes
    ----------
    title
        What it is.
    runs
        Arguments of ``python -m fedclust`` by name of the run.
    small
        Further arguments for ``--small``.
    data
        The dataset's folder; ``reads`` for genomic reads.
    claim
        What the paper prints with it.
    figure
        Draws it from the finished runs; None for a table.
    key
        The figure of ``summary.json`` in the table.
    extra
        Names of clusters that have rows of their own in the table.
    """

    title: str
    runs: Mapping[str, tuple[str, ...]]
    small: tuple[str, ...]
    data: str
    claim: str
    figure: Callable[[Runs], Any] | None = None
    key: str = "global_accuracy"
    extra: Mapping[str, str] = field(default_factory=dict)


def _chart(name: str) -> Callable[[Runs], Any]:
    """Return what draws a chart of the only run, or None if the run does not allow it."""

    def draw(runs: Runs) -> Any:
        (one,) = runs.values()
        return next((picture.chart for picture in pictures(one) if picture.name == name), None)

    return draw


def _losses(runs: Runs) -> Any:
    panels: dict[str, dict[str, SavedRun]] = {}
    for name, one in runs.items():
        panel, _, aggregator = name.partition(", ")
        for strategy, each in one.side_by_side:
            panels.setdefault(panel, {})[aggregator or strategy] = each
    return loss_per_round(panels)


def _table_8(experiment: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{strategy}-{number}": (
            f"experiment={experiment}", f"strategy={strategy}", f"strategy.parameters.num_clusters={number}",
            "compare=[]",
        )
        for strategy in ("ifca_paper", "fesem")
        for number in (2, 3, 4, 5)
    }  # fmt: skip


def _figure_3(experiment: str, key: str, targets: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    # CFL joins as soon as there is such a strategy.
    beside = ",".join(["fedavg", *(["cfl"] if (CONF / "strategy" / "cfl.yaml").is_file() else [])])
    runs = {}
    for emd, target in targets.items():
        common = (f"experiment={experiment}", f"{key}={target}")
        runs[f"EMD {emd}"] = (*common, f"compare=[{beside}]")
        runs[f"EMD {emd}, fedprox"] = (*common, "strategy=fedavg", "aggregator=fedprox", "compare=[]")
    return runs


LOSS_CLAIM = (
    "Figure 3 has no numbers in print. The text: FedAvg ends highest on both datasets, FedProx copes with a "
    "high EMD on EMNIST62 but not below the clustering methods; FedGMCC's convergence is 36 % faster than "
    "FedAvg's and 8 % faster than FedProx's on EMNIST62 at high EMD. The published accuracies are Table I's."
)
FEW_CLIENTS = ("partition.num_clients=20", "participation=0.5", "partition.samples_per_client=100")
LIGHT_CURVES = tuple(
    f"strategy.parameters.{name}={value}"
    for name, value in (("num_inputs", 32), ("steps", 3), ("num_points", 5))
)
SMALL_READS = (
    "rounds=3",
    "training.epochs=1",
    "training.learning_rate=0.5",
    "model.hidden=8",
    "model.embedding=4",
)

ITEMS = {
    "fedgwc-table-8": Item(
        "FedGWC, Table 8: IFCA and FeSEM by number of clusters, CIFAR-100",
        _table_8("fedgwc_cifar100"),
        ("rounds=2", "evaluate_every=2", *FEW_CLIENTS),
        "cifar100",
        "Published: 20,000 rounds, three seeds.",
        key="share_weighted_accuracy",
    ),
    "fedgwc-table-8-femnist": Item(
        "FedGWC, Table 8: IFCA and FeSEM by number of clusters, Femnist",
        _table_8("fedgwc_femnist"),
        ("rounds=2", "evaluate_every=2"),
        "emnist_balanced",
        "Published: 3,000 rounds, three seeds.",
        key="share_weighted_accuracy",
    ),
    "fedgwc-figure-1": Item(
        "FedGWC, Figure 1: the Gaussian reward mechanism, CIFAR-100",
        {
            "fedgwc_paper": (
                "experiment=fedgwc_cifar100", "partition.alpha=0.05", "training.steps=8", "rounds=200",
                "compare=[]",
            )
        },
        ("rounds=5",),
        "cifar100",
        "The paper's picture has no numbers: a client inside mean ± deviation has a high reward, one outside "
        "a low one. It does not say which round it shows; ours is the last before a split, of at most 200.",
        _chart("rewards"),
    ),
    "fedgwc-figure-3": Item(
        "FedGWC, Figure 3: clusters as they are split, in the spectral embedding, CIFAR-100",
        {"fedgwc_paper": ("experiment=fedgwc_cifar100", "compare=[]")},
        (
            "rounds=16", "evaluate_every=16", *FEW_CLIENTS, "training.steps=2",
            "strategy.parameters.tolerance=0.02",
        ),
        "cifar100",
        "The paper's picture has no numbers: splits follow each other until the clusters are homogeneous; "
        "Table 1 has 4 clusters.",
        _chart("splits_in_embedding"),
        key="num_clusters",
    ),
    "fedgwc-figure-4": Item(
        "FedGWC, Figure 4: convergence of the interaction matrix, CIFAR-10, α = 0.05",
        {
            "fedgwc_paper": (
                "experiment=fedgwc_cifar100", "dataset=cifar10", "partition.alpha=0.05", "rounds=10000",
                "compare=[]",
            )
        },
        ("rounds=30", "evaluate_every=30", *FEW_CLIENTS, "training.steps=2"),
        "cifar10",
        "The paper's picture has no numbers in print: the MSE falls to a small value as the rounds increase.",
        _chart("interaction_convergence"),
    ),
    "fedgmcc-figure-3-emnist62": Item(
        "FedGMCC, Figure 3: validation loss per round, EMNIST62",
        _figure_3("fedgmcc_emnist62", "partition.target", {"17.1": 0.35, "27.1": 0.55, "48.9": 1.0}),
        ("rounds=3", "training.epochs=null", "training.steps=3", "training.learning_rate=0.05"),
        "emnist62",
        LOSS_CLAIM,
        _losses,
    ),
    "fedgmcc-figure-3-genomic": Item(
        "FedGMCC, Figure 3: validation loss per round, genomic reads (SENSG-A)",
        _figure_3("fedgmcc_sensg_a", "partition.base.target", {"10.5": 0.4, "20.6": 0.78, "26.3": 1.0}),
        SMALL_READS,
        "reads",
        LOSS_CLAIM,
        _losses,
    ),
    "fedgmcc-csgd": Item(
        "FedGMCC, Section V-B: cSGD0 and cSGD1, a central model for each way of labelling (SENSG-A)",
        {"centralised_groups": ("experiment=fedgmcc_sensg_a", "strategy=centralised_groups", "compare=[]")},
        SMALL_READS,
        "reads",
        "Published: both models 0.88.",
        extra={"cluster 0": "cSGD0", "cluster 1": "cSGD1"},
    ),
    "fedgmcc-central-emnist62": Item(
        "FedGMCC, Section V-B: the centralised setting, EMNIST62",
        {"centralised": ("experiment=fedgmcc_emnist62", "strategy=centralised", "compare=[]")},
        ("rounds=2", "training.epochs=null", "training.steps=3", "training.learning_rate=0.05"),
        "emnist62",
        "Published: 0.85.",
    ),
}  # fmt: skip


def report(item: Item, runs: Runs, small: bool) -> str:
    """Write the item's title, its table of ours beside the published, and what the paper says."""
    rows = []
    for name, one in runs.items():
        figures = published_for(one.config).get("figures", {})
        for strategy, each in one.side_by_side:
            row = row_of(strategy, figures)
            losses = each.series("test_loss")[1]
            rows.append(
                [
                    name if strategy in name else f"{name}, {strategy}",
                    str(each.summary.get("num_clusters", "–")),
                    _written(each.summary.get(item.key)),
                    _written(figures[row].get(item.key) if row else None),
                    _written(float(losses[-1]) if losses.size else None),
                ]
            )
            if item.extra and each.clients is not None:
                for cluster, of in each.clients.groupby("cluster"):
                    rate = float((of["accuracy"] * of["num_test"]).sum() / of["num_test"].sum())
                    named = item.extra.get(f"cluster {cluster}", f"cluster {cluster}")
                    rows.append(
                        [
                            named,
                            "1",
                            _written(rate),
                            _written(figures[row].get(item.key) if row else None),
                            "–",
                        ]
                    )
    head = ["run", "clusters", f"{item.key}, ours", "published", "last test loss, ours"]
    note = (
        ["With --small: other settings than the paper's, so the figures are not comparable.\n"]
        if small
        else []
    )
    return "\n".join([f"# {item.title}\n", table(head, rows), "", *note, item.claim, ""])


def _written(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return str(value)
    return " ± ".join(f"{part:.3f}" for part in (value if isinstance(value, list) else [value]))


def location(item: Item, options: argparse.Namespace) -> Path | None:
    """Find the item's data; None, with one line on standard error, if there is none."""
    if item.data != "reads":
        path = options.data / item.data
    elif options.small:
        path = options.folder / "reads"
        if not (path / "reads.parquet").is_file():
            write(path, INDIVIDUALS, reads=400, seed=options.seed, invented=3000)
    else:
        path = options.reads or options.data / "sensg_s"
    if path.is_dir():
        return path.resolve()
    made = "; python benchmarks/sensg.py makes it" if item.data == "reads" else ""
    print(f"{item.title}: needs the data in {path}, there is none{made}", file=sys.stderr)
    return None


def make(name: str, item: Item, options: argparse.Namespace) -> bool:
    """Make an item's runs, table and figure; return whether all of them were made."""
    data = location(item, options)
    if data is None:
        return False
    runs: dict[str, SavedRun] = {}
    for label, overrides in item.runs.items():
        plain = re.sub(r"[^\w.]+", "-", label)  # a comma would be a list to Hydra
        folder = options.folder / ("small" if options.small else "full") / name / plain
        chosen = [*overrides, f"dataset.path={data}", f"seed={options.seed}"]
        if options.small:
            light = (
                LIGHT_CURVES if "fedgmcc" in name and not any("strategy=" in one for one in overrides) else ()
            )
            chosen += [*item.small, *light]
        if folder.is_dir() and not finished(folder):
            print(f"{folder}: has not finished; remove it to run it again", file=sys.stderr)
            return False
        if not folder.is_dir() and run(tuple(chosen), folder.resolve(), options.threads) != 0:
            return False
        runs[label] = SavedRun(folder)
    text = report(item, runs, options.small)
    print(text)
    (options.folder / f"{name}.md").write_text(text, encoding="utf-8")
    if item.figure is None:
        return True
    figure = item.figure(runs)
    if figure is None:
        print(f"{name}: nothing to draw, no cluster was split", file=sys.stderr)
        return True
    for kind in ("png", "svg"):
        print(save(figure, options.folder / f"{name}.{kind}"))
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if something could not be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ITEMS)}")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--reads", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(ITEMS)):
        parser.error(f"NAME must be among {', '.join(ITEMS)}, got {', '.join(unknown)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    made = {name: make(name, ITEMS[name], options) for name in options.names or ITEMS}
    return int(not all(made.values()))


if __name__ == "__main__":
    sys.exit(main())
