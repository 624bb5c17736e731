"""Draw the figures of the documentation's pages on the methods, from runs on the digits.

    python benchmarks/doc_figures.py FOLDER

Makes the runs that FOLDER lacks, a minute in all, and writes docs/images/method_*.png and concepts.png.
"""

import argparse
from pathlib import Path

import altair as alt
import numpy as np
from PIL import Image

import fedclust
from fedclust.grids.nodes import hosted_clients
from fedclust.results.charts import draw, save as save_chart
from fedclust.results.charts.chart import COLOURS, GREY, data_of

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SMALL = ("partition.num_clients=12", "partition.groups=[7,5]", "training.steps=10", "rounds=12")
RUNS = {
    # strategy: (its overrides, its plot)
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


def concepts(result: fedclust.Result) -> alt.HConcatChart:
    """Draw who owns how much, which node computes whom, who takes part, and who shares a model."""
    clients, num = result.clients, len(result.clients)
    sizes = clients["num_train"].tolist()
    nodes = {
        client: node
        for node in range(NODES)
        for client in hosted_clients({"partition-id": node, "num-partitions": NODES}, num)
    }
    owned = [{"client": each, "rows": sizes[each], "by": f"node {nodes[each]}"} for each in range(num)]
    changes = [(change["round"], change["assignment"]) for change in result.saved.changes]
    drawn = []
    for record in result.saved.rounds[:ROUNDS]:
        now = record["round"]
        # A change after round r holds from round r + 1 on; that of round 0 from the start.
        assignment = np.array([given for since, given in changes if since < now][-1])
        took = set(record["cohort"])
        drawn += [
            {
                "round": now,
                "client": each,
                "by": f"cluster {assignment[each]}" if each in took else "not asked",
            }
            for each in range(num)
        ]
    clusters = sorted({one["by"] for one in drawn} - {"not asked"})
    kinds = alt.Scale(
        domain=[*clusters, "not asked", *(f"node {node}" for node in range(NODES))],
        range=[*COLOURS[: len(clusters)], "#E8E8E8", *COLOURS[len(clusters) :][:NODES]],
    )
    colour = alt.Color("by:N", title=None, scale=kinds)
    y = alt.Y("client:O", title="client", axis=alt.Axis(values=list(range(0, num, 5))))
    left = alt.Chart(data_of(owned), title="Rows, and who computes").mark_bar()
    left = left.encode(alt.X("rows:Q", title="training rows"), y, colour).properties(width=170, height=360)
    right = alt.Chart(data_of(drawn), title="Each round's cohort, by cluster").mark_rect(stroke="white")
    right = right.encode(alt.X("round:O", axis=alt.Axis(labelAngle=0)), y, colour).properties(
        width=460, height=360
    )
    shown = [{"round": since + 1} for since, _ in changes[1:] if since < ROUNDS]
    split = alt.Chart(data_of(shown)).mark_rule(color=GREY, strokeDash=[4, 3])
    lines = split.encode(alt.X("round:O", bandPosition=0))
    return left | (right + lines)


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
        (drawn,) = [path for path in draw(where) if path.stem == plot]
        with Image.open(drawn) as image:
            save(image, f"method_{strategy}")
        if strategy == "auto":
            save_chart(concepts(result), where / "concepts.png")
            with Image.open(where / "concepts.png") as image:
                save(image, "concepts")
        print(strategy, result.num_clusters, "clusters, accuracy", result.summary["mean_client_accuracy"])


if __name__ == "__main__":
    main()
