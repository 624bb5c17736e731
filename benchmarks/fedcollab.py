"""FedCollab's three federations: how many of 20 clients are better off than alone. A table of docs/SITES.md.

    python benchmarks/fedcollab.py FOLDER [--data DIRECTORY] [--seeds 3] [--write]

Source: Bao, Wang, Wu and He, "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML
2023, and its released code: groups of five clients, of which the first ten clients have all of their training
rows and the others few. Of CIFAR's images a linear layer is trained on the embeddings of a frozen
EfficientNet-Lite0 at 64 pixels, in place of a network from nothing.
"""

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common import DATA, arguments, finished, note_commit, over_seeds, show, table
from PIL import Image
from torch import nn

import fedclust
from fedclust.data.shifts import Rotate
from fedclust.metrics import wilson
from fedclust.models.foundation import EfficientNetLite0
from fedclust.training import LocalTraining

CLIENTS, OF_GROUP = 20, 5
Client = tuple[tuple[torch.Tensor, torch.Tensor], ...]
# By group, the share of each class's rows that is its own; "cluster4_0.25" of the released code.
LABELS = np.zeros((4, 10))
LABELS[:2, 1:4] = LABELS[2:, 6:9] = 0.5
LABELS[0, 0] = LABELS[1, 4] = LABELS[2, 5] = LABELS[3, 9] = 0.25
ANGLES = (-25, 25, 155, 205)
SWAPPED = 6
TITLES = {
    "labels": "labels: Fashion-MNIST",
    "rotation": "inputs: CIFAR-10, rotated",
    "names": "names: CIFAR-100's 20 coarse classes, renamed",
}
SMALL = {"labels": np.exp(-5.0), "rotation": np.exp(-2.0), "names": np.exp(-3.0)}  # share of training rows
PUBLISHED = "FedCollab has 1.0 of clients better off than alone in each, with its networks and all rows."


def rows(data: Path, name: str, label: str) -> tuple[torch.Tensor, np.ndarray]:
    """Read all images of a dataset, with their labels."""
    parts = [pd.read_parquet(data / name / f"{part}.parquet") for part in ("train", "test")]
    both = pd.concat(parts, ignore_index=True)
    images = [np.asarray(Image.open(io.BytesIO(each["bytes"]))) for each in both["image"]]
    inputs = torch.from_numpy(np.stack(images))
    return (inputs[:, None] if inputs.dim() == 3 else inputs.permute(0, 3, 1, 2)), both[label].to_numpy()


def names(group: int, labels: np.ndarray) -> np.ndarray:
    """Rename classes as a group does: the first six turned round, all turned round, or both in turn."""
    turned = np.where(labels < SWAPPED, SWAPPED - 1 - labels, labels)
    every = 19 - labels
    both = np.where(labels < SWAPPED, 20 - SWAPPED + labels, 19 - labels)
    return (labels, turned, every, both)[group]


def embedded(images: torch.Tensor) -> torch.Tensor:
    """Embed images, shape (n, 1280)."""
    encoder = frozen()
    return torch.cat([encoder.encode(each) for each in images.split(256)])


@cache
def frozen() -> EfficientNetLite0:
    """Return the encoder."""
    return EfficientNetLite0(image_size=64)


def clients(kind: str, inputs: torch.Tensor, labels: np.ndarray, seed: int) -> list[Client]:
    """Deal the rows: for each client those to train on, those held out, and those to test on."""
    draws, made = np.random.default_rng([7, seed]), []
    classes = [draws.permutation(np.flatnonzero(labels == each)) for each in range(labels.max() + 1)]
    shares = LABELS if kind == "labels" else np.full((4, len(classes)), 0.25)
    used = np.zeros(len(classes), dtype=int)
    tested = 1 / 7 if kind == "labels" else 1 / 6
    for client in range(CLIENTS):
        group, train, test = client // OF_GROUP, [], []
        for number, own in enumerate(classes):
            size = int(shares[group, number] / OF_GROUP * len(own))
            mine = own[used[number] : used[number] + size]
            used[number] += size
            cut = int(len(mine) * tested)
            keep = len(mine) - cut if client < CLIENTS // 2 else round((len(mine) - cut) * SMALL[kind])
            test.append(mine[:cut])
            train.append(mine[cut : cut + keep])
        chosen = draws.permutation(np.concatenate(train))
        held = max(1, len(chosen) // 10)
        parts = []
        for some in (chosen[held:], chosen[:held], np.concatenate(test)):
            images, names_of = inputs[some], labels[some]
            if kind == "rotation":
                images = Rotate(ANGLES[group]).apply(images, torch.zeros(len(some)), draws)[0]
            if kind == "names":
                names_of = names(group, names_of)
            seen = images.float() / 127.5 - 1 if kind == "labels" else embedded(images)
            parts.append((seen, torch.from_numpy(names_of.astype(np.int64))))
        made.append(tuple(parts))
    return made


def network(kind: str) -> nn.Module:
    """Make the network: FedCollab's of two hidden layers for Fashion-MNIST, else a linear layer."""
    torch.manual_seed(0)
    if kind == "labels":
        hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
        return nn.Sequential(nn.Flatten(), *hidden)
    return nn.Linear(1280, 10 if kind == "rotation" else 20)


def accuracies(kind: str, data: Path, folder: Path, seed: int, rounds: int) -> dict[str, list[float]]:
    """Run what is missing; return each client's accuracy by `auto` and alone."""
    found, dealt = {}, None
    for method in ("auto", "local"):
        place = folder / kind / f"seed-{seed}" / method
        if not finished(place):
            if dealt is None:
                name, label = {
                    "labels": ("fashion_mnist", "label"),
                    "rotation": ("cifar10", "label"),
                    "names": ("cifar100", "coarse_label"),
                }[kind]
                inputs, labels = rows(data, name, label)
                dealt = clients(kind, inputs, labels, seed)
            whole = method == "local"  # alone on all rows, those held out, too
            given = [
                ((torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])), (b[0][:0], b[1][:0]), c)
                if whole
                else (a, b, c)
                for a, b, c in dealt
            ]
            rate = 0.1 if kind == "labels" else 0.01  # of 1,280 large numbers
            training = LocalTraining(learning_rate=rate, batch_size=32, epochs=1)
            facts = {"rounds": rounds, "training": training, "seed": seed, "folder": place}
            fedclust.simulate(method, network(kind), given, proof=not whole, **facts)
        table_of = pd.read_parquet(place / "clients.parquet")
        found[method] = table_of["accuracy"].tolist()
    return found


def row(kind: str, by_seed: Sequence[dict[str, list[float]]]) -> list[str]:
    """Write a federation's row."""
    auto, alone = (np.array([each[name] for each in by_seed]) for name in ("auto", "local"))
    gained = auto - alone
    cells = [TITLES[kind], over_seeds(auto.mean(axis=1).tolist()), over_seeds(alone.mean(axis=1).tolist())]
    for some in (slice(None), slice(0, 10), slice(10, 20)):
        better, total = int((gained[:, some] > 0).sum()), gained[:, some].size
        low, high = wilson([better], [total])[0]
        cells.append(f"{better / total:.2f} ({low:.2f} to {high:.2f})")
    within = int((np.abs(gained[:, :10]) <= 0.01).sum())
    return [*cells, f"{within / gained[:, :10].size:.2f}"]


def main() -> None:
    """Run what is missing, and write the table."""
    parser = arguments(__doc__, page="SITES", folder=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    folder = given.folder.resolve()
    note_commit(folder)
    found = {}
    for kind in given.kinds:
        runs = []
        for seed in range(given.seeds):
            runs.append(accuracies(kind, given.data, folder, seed, given.rounds))
            print(json.dumps({"kind": kind, "seed": seed, "gain": np.subtract(*runs[-1].values()).tolist()}))
        found[kind] = runs
    head = [
        "",
        "auto",
        "alone",
        "better than alone",
        "of the ten large",
        "of the ten small",
        "large, within 0.01",
    ]
    text = table(head, [row(kind, runs) for kind, runs in found.items()])
    show(
        "fedcollab",
        f"{text}\n\nSeeds: {given.seeds}; {given.rounds} rounds. {PUBLISHED}",
        given.write,
        folder,
    )


if __name__ == "__main__":
    main()
