"""FedGMCC, Figure 2: the loss along chains between ten clients' models, by what it depends on.

    python benchmarks/chains.py FOLDER [--write]              EMNIST62
    python benchmarks/chains.py FOLDER --reads …              and SENSG-A, of reads by benchmarks/sensg.py
    python benchmarks/chains.py FOLDER --images               only draws the images

Each run is the first round of FedGMCC. The loss is that of Eq. 4, on Monte Carlo inputs, as in the paper's
"average training loss for our curve-fitting approach"; its mean is over the 45 pairs of clients. Bends are
fitted by three passes over the inputs, 50 steps of 64 for 1,024. The images are 20,000 of the dataset's, a
fortieth of the paper's, so clients train with Adam at 0.001, not SGD.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from claims import READS, interval, word
from common import DATA, arguments, finished, note_commit, over_seeds, show, table
from sklearn.model_selection import train_test_split

import fedclust

SEEDS = (0, 1, 2)
EMD = {"17.1": 0.35, "27.1": 0.55, "37.9": 0.775, "48.9": 1.0}
"""The paper's distances of images, and `partition.target`."""
IMAGES = {
    "straight line": ("strategy.parameters.steps=0",),
    "chain": (),
    "chain, 1 epoch": ("training.epochs=1",),
    "chain, 10 epochs": ("training.epochs=10",),
    **{f"chain, EMD {each}": (f"partition.target={at}",) for each, at in EMD.items() if each != "37.9"},
}
INPUTS = (64, 256, 1024)
CLAIMS = (
    ("the loss is lower on the chain than on the straight line", "straight line", "chain"),
    ("higher with more local epochs, 10 and 1", "chain, 10 epochs", "chain, 1 epoch"),
    ("higher with more distant clients, EMD 48.9 and 17.1", "chain, EMD 48.9", "chain, EMD 17.1"),
    ("lower with more Monte Carlo inputs, 64 and 1,024", "chain, 64 inputs", "chain"),
)


def with_inputs(number: int) -> tuple[str, ...]:
    """Return the settings of some Monte Carlo inputs, gone through three times in steps of 64."""
    return f"strategy.parameters.num_inputs={number}", f"strategy.parameters.steps={50 * number // 1024}"


def images(folder: Path) -> Path:
    """Draw 20,000 of EMNIST62's images, each class by its share."""
    if not (folder / "train.parquet").exists():
        parts = [pq.read_table(DATA / f"emnist62/{part}.parquet") for part in ("train", "test")]
        rows = pa.concat_tables(parts)
        labels = rows["label"].to_numpy()
        drawn, _ = train_test_split(
            np.arange(len(labels)), train_size=20_000, stratify=labels, random_state=0
        )
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.take(drawn), folder / "train.parquet")
    return folder


def reads(folder: Path) -> Path:
    """Make the reads of Table I's rows."""
    if not folder.is_dir():
        script = Path(__file__).with_name("sensg.py")
        subprocess.run([sys.executable, script, folder, "S", *READS], check=True)
    return folder


def settings(given: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the dataset, the name and the settings of each row of the table."""
    base = ("rounds=1", "compare=[]", "proof=false", "training.epochs=5")
    emnist = f"dataset.path={images(given.folder.resolve() / 'images')}"
    at = (*base, "experiment=fedgmcc_emnist62", emnist, "partition.target=0.775", "training.optimizer=adam")
    for name, own in IMAGES.items():
        yield "EMNIST62", name, (*at, *own)
    for number in (each for each in INPUTS if each != 1024):
        yield "EMNIST62", f"chain, {number} inputs", (*at, *with_inputs(number))
    if given.reads:
        path = f"dataset.path={reads(given.folder.resolve() / 'reads')}"
        own = ("training.optimizer=adam", "training.learning_rate=0.01", path)
        for number in (64, 1024):
            yield (
                "SENSG-A",
                f"chain, {number} inputs",
                (*base, "experiment=fedgmcc_sensg_a", *own, *with_inputs(number)),
            )


def loss(place: Path) -> tuple[float, float]:
    """Read the mean loss of a run's pairs, and their standard deviation."""
    line = json.loads((place / "rounds.jsonl").read_text(encoding="utf-8"))
    losses = line["strategy"]["curve_finding_losses"]
    return float(np.mean(losses)), float(np.std(losses, ddof=1))


def claim(text: str, higher: Sequence[float], lower: Sequence[float]) -> str:
    """Say by how much one setting's losses are above another's, and whether the interval is above 0."""
    differences = np.subtract(higher, lower)
    low, high = interval(differences)
    return f"- {text}: {differences.mean():+.4f} ({low:+.4f} to {high:+.4f}): **{word(differences, 0)}**."


def main() -> None:
    """Run what is missing, and write the table."""
    parser = arguments(__doc__, page="CLAIMS", folder=True)
    parser.add_argument("--reads", action="store_true", help="reads of a random genome, too")
    parser.add_argument("--images", action="store_true", help="only draw the images, into FOLDER")
    given = parser.parse_args()
    if given.images:
        images(given.folder)
        return
    folder = given.folder.resolve() / "chains"
    note_commit(folder)
    found, lines = {}, []
    for data, name, overrides in settings(given):
        places = [folder / f"{data}-{name.replace(', ', '-').replace(' ', '-')}-{seed}" for seed in SEEDS]
        for place, seed in zip(places, SEEDS, strict=True):
            if not finished(place):
                fedclust.run([*overrides, f"seed={seed}", f"output_dir={place}"])
        means, spreads = np.transpose([loss(place) for place in places])
        found[data, name] = means
        lines.append([data, name, over_seeds(means, 4), f"{spreads.mean():.4f}"])
    said = [claim(text, found["EMNIST62", high], found["EMNIST62", low]) for text, high, low in CLAIMS]
    if given.reads:
        many, few = (found["SENSG-A", f"chain, {number} inputs"] for number in (1024, 64))
        said.append(claim("of reads with a concept shift, no lower with more, 1,024 and 64", many, few))
    head = ["data", "", "loss", "standard deviation over pairs"]
    text = "\n".join(said) + f"\n\n{table(head, lines)}\n\nSeeds {', '.join(map(str, SEEDS))}."
    show("chains", text, given.write, folder)


if __name__ == "__main__":
    main()
