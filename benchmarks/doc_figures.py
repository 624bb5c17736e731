"""Draw the figures of the documentation's pages on the methods, from runs on the digits.

    python benchmarks/doc_figures.py FOLDER

Makes the runs that FOLDER lacks, a minute in all, and writes docs/images/method_*.png and concepts.png.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import fedclust
from fedclust.federation import hosted_clients
from fedclust.results.plots.style import COLOURS, GREY, new_figure, tidy

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SMALL = ("partition.num_clients=12", "partition.groups=[7,5]", "training.steps=10", "rounds=12")
RUNS = {
    # strategy: (its overrides, its plot)
    "fedgwc": (("rounds=60",), "loss_trace_cluster_*"),
    "clust_psi_pfl": (("rounds=60", "partition=dirichlet"), "error_ratios"),
    "fmcl": (("rounds=60",), "evidence"),
    "fedgmcc": (SMALL, "outputs_along_chains"),
    "auto": (("rounds=60",), "accuracy_per_round"),
}
NODES, ROUNDS = 3, 24
WIDTH = 880


def save(image: Image.Image, name: str) -> None:
    """Save a picture as a small PNG, with as many colours as fit into 60 kB."""
    size = WIDTH, round(image.height * WIDTH / image.width)
    small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    path = IMAGES / f"{name}.png"
    for colours in (256, 128, 64, 32, 16):
        small.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < 60_000:
            return


def concepts(result: fedclust.Result) -> Figure:
    """Draw who owns how much, which node computes whom, who takes part, and who shares a model."""
    clients, num = result.clients, len(result.clients)
    figure = new_figure(9, 5.2)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2.6])
    sizes = clients["num_train"].to_numpy()
    for node in range(NODES):
        of = list(hosted_clients({"partition-id": node, "num-partitions": NODES}, num))
        left.barh(of, sizes[of], color=COLOURS[node + 2], label=f"node {node}")
    tidy(left, "Rows, and who computes", "training rows", "client")
    left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=3, fontsize=8, frameon=False)
    left.invert_yaxis()
    changes = [(change["round"], change["assignment"]) for change in result.saved.changes]
    for record in result.saved.rounds[:ROUNDS]:
        now = record["round"]
        # A change after round r holds from round r + 1 on; that of round 0 from the start.
        assignment = np.array([given for since, given in changes if since < now][-1])
        right.plot([now] * num, range(num), "s", color="#E8E8E8", markersize=6.5)
        for cluster in np.unique(assignment):
            of = [client for client in record["cohort"] if assignment[client] == cluster]
            right.plot([now] * len(of), of, "s", color=COLOURS[cluster], markersize=6.5)
    for since, _ in changes[1:]:
        right.axvline(since + 0.5, color=GREY, linewidth=1.2, linestyle="--")
        right.text(since + 0.5, -1.1, "split", ha="center", fontsize=9)
    tidy(right, "Each round's cohort, coloured by cluster", "round")
    right.grid(visible=False)
    return figure


def main() -> None:
    """Make the runs, draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for strategy, (overrides, plot) in RUNS.items():
        where = folder / strategy
        if not (where / "summary.json").is_file():
            fedclust.run([f"strategy={strategy}", *overrides, f"output_dir={where}"])
        result = fedclust.load(where)
        (drawn, *_) = sorted((where / "plots").glob(f"{plot}.png"))
        with Image.open(drawn) as image:
            save(image, f"method_{strategy}")
        if strategy == "fedgwc":
            figure = concepts(result)
            figure.savefig(where / "concepts.png")
            with Image.open(where / "concepts.png") as image:
                save(image, "concepts")
        print(strategy, result.num_clusters, "clusters, accuracy", result.summary["mean_client_accuracy"])


if __name__ == "__main__":
    main()
