"""FLUX's four shifts: who is served how well, and which newcomers find their group? docs/NEWCOMERS.md.

    python benchmarks/flux.py FOLDER [--write]

Fenoglio et al., "FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution
Shifts", NeurIPS 2025 (arXiv 2511.22305), as its released code (dariofenoglio98/FLUX) has it: FedAvg until a
round gains less than 0.05; descriptors under that model, and clusters of :mod:`fedclust.clustering.flux`;
FedAvg in each cluster. Ours: the latent layer is an MLP's last hidden one.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from common import arguments, note_commit, over_seeds, records, show
from federations import rows_of

import fedclust
from fedclust import data as datasets
from fedclust.clustering import flux
from fedclust.data.arrays import from_arrays
from fedclust.data.shifts import Relabel, Rotate
from fedclust.models.dense import MLP
from fedclust.settings.composition import compose, plain
from fedclust.training.device_data import normalised

SEEDS = (821, 822, 823)  # nothing was chosen on them
GROUPS, CLIENTS, LATE, ROWS, ROUNDS, CLASSES = 3, 30, 9, 150, 20, 10
SETS = (range(5), range(5, 10), range(0, 10, 2))
SHIFTS = {
    "P(X)": "all images turned by 0°, 90° or 180°",
    "P(Y)": "five of ten classes",
    "P(Y given X)": "seven labels exchanged among themselves",
    "P(X given Y)": "the images of three classes turned",
}
METHODS = ("fedavg", "known_groups", "fmcl")
RULE = "auto, FLUX's rule"
TRAINING = fedclust.LocalTraining(learning_rate=0.1, batch_size=16, epochs=2)
Clients = Sequence[tuple[torch.Tensor, torch.Tensor]]


def federation(images: torch.Tensor, labels: torch.Tensor, shift: str, seed: int) -> Clients:
    """Draw each client's rows; client k is of group k modulo GROUPS."""
    draws, clients = np.random.default_rng(seed), []
    names = [np.r_[draws.permutation(7) if group else range(7), 7:CLASSES] for group in range(GROUPS)]
    free = draws.permutation(len(labels))
    for client in range(CLIENTS):
        group = client % GROUPS
        fits = np.flatnonzero(np.isin(labels[free], SETS[group]) | (shift != "P(Y)"))[:ROWS]
        own, free = free[fits], np.delete(free, fits)
        x, y = images[own].clone(), labels[own]
        turned = {"P(X)": y >= 0, "P(X given Y)": y < 3}.get(shift, y < 0)
        x[turned] = Rotate(90 * group).apply(x[turned], y, draws)[0]
        clients.append((x, Relabel(names[group]).apply(x, y, draws)[1] if shift == "P(Y given X)" else y))
    return clients


def descriptors(model: torch.nn.Module, clients: Clients, known: int) -> np.ndarray:
    """Return moments of clients' latent features, P(X) first, of shape (clients, 2 + 2·CLASSES, CLASSES)."""
    latent = []
    last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, given: latent.append(given[0].detach().numpy()))
    for x, _ in clients:
        model(x)
    hook.remove()
    most, width = max(float(each.max()) for each in latent[:known]), latent[0].shape[1]
    pairs = zip(latent, (y.numpy() for _, y in clients), strict=True)
    found = np.stack([flux.moments(each.astype(np.float64), y, CLASSES) for each, y in pairs])
    found = flux.centred(found, most, width)
    return flux.scaled(found, *flux.ranges(found[:known]))


def cell(images: torch.Tensor, labels: torch.Tensor, shift: str, seed: int) -> dict[str, float]:
    """Train every method on one federation, and place those that come late."""
    clients, known = federation(images, labels, shift, seed), CLIENTS - LATE
    groups = np.arange(CLIENTS) % GROUPS
    rows = from_arrays(clients[:known], num_classes=CLASSES, seed=seed, validation_fraction=0.1)
    torch.manual_seed(seed)
    network = MLP(images.shape[1:], CLASSES, [64])

    def run(
        name: str, split: np.ndarray = groups, model: torch.nn.Module = network, rounds: int = ROUNDS
    ) -> fedclust.Result:
        fixed = {"training": TRAINING, "seed": seed, "personal": "none"}
        return fedclust.simulate(name, model, replace(rows, groups=split[:known]), rounds=rounds, **fixed)

    runs = {name: run(name) for name in (*METHODS, "auto")}
    gains = np.diff(runs["fedavg"].rounds["mean_client_accuracy"])
    begin = next(each for each in range(3, ROUNDS) if (gains[: each - 1] < 0.05).any())
    start = run("fedavg", rounds=begin).model_of(0)
    half = [(x[: ROWS // 2], y[: ROWS // 2]) for x, y in clients[known:]]
    parts = [*((rows.inputs[each], rows.labels[each]) for each in rows.train), *half]
    described = descriptors(start, [(normalised(x, rows.mean, rows.std), y) for x, y in parts], known)
    split = flux.clusters(described[:known])
    runs["FLUX"] = run("known_groups", split, start, ROUNDS - begin)
    found = {f"{name} accuracy": each.summary["mean_client_accuracy"] for name, each in runs.items()}
    found |= {f"{name} clusters": each.num_clusters for name, each in runs.items()}

    def nearest(name: str, late: int, parts: slice) -> int:
        chosen = runs[name].assignment
        centres = {each: described[:known][chosen == each].mean(0)[parts] for each in np.unique(chosen)}
        return int(
            min(centres, key=lambda each: np.linalg.norm(described[known + late][parts] - centres[each]))
        )

    for late, (x, y) in enumerate(half):
        truth = tuple(each[ROWS // 2 :] for each in clients[known + late])
        own = runs["known_groups"].assignment[groups[known + late]]
        placed = {"fedavg": ("fedavg", 0), "known_groups": ("known_groups", own)}
        for what, given, columns in (("without", (x,), slice(2)), ("with", (x, y), slice(None))):
            placed[f"FLUX {what}"] = ("FLUX", nearest("FLUX", late, columns))
            placed[f"{RULE} {what}"] = ("auto", nearest("auto", late, columns))
            for name in (*METHODS[2:], "auto"):
                placed[f"{name} {what}"] = (name, runs[name].place(*given).cluster)
        for way, (name, cluster) in placed.items():
            model = runs["fedavg"].model_of(0) if cluster is None else runs[name].model_of(int(cluster))
            right = model(normalised(truth[0], rows.mean, rows.std)).argmax(1) == truth[1]
            found[f"late {way}"] = found.get(f"late {way}", 0.0) + float(right.float().mean()) / LATE
            found[f"none {way}"] = found.get(f"none {way}", 0) + (cluster is None)
    return found


def main() -> None:
    """Make the cells that FOLDER lacks, and write the page."""
    parser = arguments(__doc__, page="NEWCOMERS", folder=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given = parser.parse_args()
    note_commit(given.folder)
    path = f"dataset.path={rows_of('fashion_mnist', given.folder)}"
    config = compose(["dataset=fashion_mnist", path, "partition=iid"])
    data = datasets.load(plain(config.dataset), plain(config.partition), 0)
    files = {(shift, seed): given.folder / f"{shift}-{seed}.json" for seed in given.seeds for shift in SHIFTS}
    for each, file in files.items():
        if not file.is_file():
            file.write_text(json.dumps(cell(data.inputs, data.labels, *each)))
    served, late = [], []
    for shift, title in SHIFTS.items():
        found = [json.loads(files[shift, seed].read_text()) for seed in given.seeds]
        over = {key: over_seeds([each[key] for each in found]) for key in found[0]}
        mean = {key: np.mean([each[key] for each in found]) for key in found[0]}
        row = {
            name: f"{over[f'{name} accuracy']} ({mean[f'{name} clusters']:.1f})"
            for name in (*METHODS, "FLUX", "auto")
        }
        served.append({"": f"{shift}: {title}", **row})
        for what in ("without", "with"):
            ways = (*METHODS[:2], *(f"{name} {what}" for name in (*METHODS[2:], "FLUX", "auto", RULE)))
            cells = {way.removesuffix(f" {what}"): over[f"late {way}"] for way in ways}
            none = f"{mean[f'none auto {what}'] / LATE:.0%}"
            late.append({"": f"{shift}, {what} labels", **cells, "in none": none})
    seeds = f"Seeds {', '.join(map(str, given.seeds))}."
    show("flux", f"{records(served)}\n\n{records(late)}\n\n{seeds}", given.write, given.folder)


if __name__ == "__main__":
    main()
