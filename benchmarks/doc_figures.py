"""Show the default run and other verdicts on the pages, and draw pictures, from runs on the digits.

    python benchmarks/doc_figures.py FOLDER

Makes the runs that FOLDER lacks, two minutes in all.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import altair as alt
import numpy as np
from common import DOCS, ROOT, arguments, checked_out, show
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import fedclust
from fedclust.grids.nodes import hosted_clients
from fedclust.results.charts import draw, save as save_chart
from fedclust.results.charts.chart import COLOURS, GREY, data_of

SMALL = ("partition.num_clients=12", "partition.groups=[7,5]", "training.steps=10", "rounds=12")
RUNS = {
    # picture: (overrides, plot)
    "method_fedgmcc": (("strategy=fedgmcc", *SMALL), "outputs_along_chains"),
    "default_run": ((), "accuracy_per_round"),
}
SKEWED = ("partition=dirichlet", "partition.alpha=0.1")
VERDICTS = {"default_run": (), "no_groups": SKEWED, "by_name": ("strategy=fmcl", *SKEWED)}
NODES, ROUNDS = 3, 24
WIDTH = 880


def save(image: Image.Image, name: str) -> None:
    """Save a picture as a small PNG that names its commit, with as many colours as fit into 60 kB."""
    note = PngInfo()
    note.add_text("commit", checked_out())
    size = WIDTH, round(image.height * WIDTH / image.width)
    small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    path = DOCS / "images" / f"{name}.png"
    for colours in (256, 128, 64, 32, 16):
        small.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True, pnginfo=note)
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


def first_screen(printed: str) -> str:
    """Shorten what the default run printed to its last progress, the verdict and the clusters."""
    lines = [line.rstrip() for line in printed.splitlines()]
    last = {line.split(":")[0]: line for line in lines if re.match(r"\w+: round \d+/", line)}
    verdict = next(number for number, line in enumerate(lines) if line.startswith("Train "))
    clusters = next(number for number, line in enumerate(lines) if "groupings from" in line)
    page = next(line for line in lines if line.startswith("all figures:"))
    page = re.sub(r"report \S+,", "report outputs/<date>/<time>,", page)
    return "\n".join([*last.values(), *lines[verdict : clusters + 1], "  …", page])


def printed(folder: Path, name: str, overrides: tuple[str, ...]) -> str:
    """Make a run that the folder lacks; return what it printed."""
    where, kept = folder / name, folder / f"{name}.txt"
    if not (where / "summary.json").is_file():
        command = [sys.executable, "-m", "fedclust", *overrides, f"output_dir={where}"]
        folder.mkdir(parents=True, exist_ok=True)
        with kept.open("w", encoding="utf-8") as file:
            subprocess.run(command, cwd=ROOT, check=True, stdout=file, stderr=subprocess.STDOUT)
    return kept.read_text(encoding="utf-8")


def verdicts(folder: Path) -> str:
    """Quote the verdict of each run, below the command."""
    quoted = []
    for name, overrides in VERDICTS.items():
        printed(folder, name, overrides)
        text = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))["verdict"]["text"]
        quoted.append(f"`{' '.join(('fedclust', *overrides))}`\n\n> {text}")
    return "\n\n".join(quoted)


def main() -> None:
    """Make the runs, draw the figures."""
    folder = arguments(__doc__, folder=True).parse_args().folder.resolve()
    show("verdicts", verdicts(folder), DOCS / "PROOF.md")
    for name, (overrides, plot) in RUNS.items():
        where, said = folder / name, printed(folder, name, overrides)
        result = fedclust.load(where)
        (drawn,) = [path for path in draw(where) if path.stem == plot]
        with Image.open(drawn) as image:
            save(image, name)
        if not overrides:
            save_chart(concepts(result), where / "concepts.png")
            with Image.open(where / "concepts.png") as image:
                save(image, "concepts")
            screen = first_screen(said)
            verdict = next(line for line in screen.splitlines() if line.startswith("Train "))
            for page, shown in ((ROOT / "README.md", screen), (DOCS / "start.md", verdict)):
                show("default run", f"```text\n{shown}\n```", page)


if __name__ == "__main__":
    main()
