"""Are clients that come later placed in their group without labels, and strangers in none? docs/NEWCOMERS.md.

    python benchmarks/newcomers.py FOLDER [--write]

Makes the runs that FOLDER lacks: `fmcl`, told the number of groups, on the digits, 30 clients, of which nine
are left out. Strangers are the same clients' rows turned by 180° and, where no group has that, inverted.
"""

from collections import Counter

import numpy as np
from common import arguments, finished, note_commit, show, table
from federations import PARTITIONS

import fedclust
from fedclust import data
from fedclust.data.dataset import newcomers_last
from fedclust.data.shifts import Invert, Rotate
from fedclust.settings.composition import compose, plain

SEEDS = range(911, 916)  # nothing was chosen on them
CELLS = ("rotation", "inversion", "noise-blur", "conventions-15-15")


def counts(
    result: fedclust.Result, overrides: list[str], seed: int, inverts: bool
) -> dict[str, Counter[str]]:
    """Count where the clients that were left out are placed, by the models alone and with the inputs."""
    config = compose(overrides)
    rows = newcomers_last(data.load(plain(config.dataset), plain(config.partition), seed), 0.3, seed)
    known, groups, draws = len(result.assignment), np.asarray(rows.groups), np.random.default_rng(seed)
    strange = [Rotate(180), *([] if inverts else [Invert()])]
    found: dict[str, Counter[str]] = {name: Counter() for name in ("models", "both")}
    for client in range(known, rows.num_clients):
        own = rows.inputs[rows.train[client]]
        others = [each.apply(own, rows.labels[rows.train[client]], draws)[0] for each in strange]
        for name, given in (("", own), *(("stranger ", other) for other in others)):
            vars(result)["_mean_embeddings"] = None  # as if clients' means were not known
            alone = result.place(given)
            del vars(result)["_mean_embeddings"]
            for way, placed in (("models", alone), ("both", result.place(given))):
                if placed.cluster is None:
                    found[way][f"{name}none"] += 1
                    continue
                group = np.bincount(groups[:known][result.assignment == placed.cluster]).argmax()
                found[way][f"{name}right" if group == groups[client] else f"{name}wrong"] += 1
    return found


def main() -> None:
    """Run what is missing, and write the page."""
    given = arguments(__doc__, page="NEWCOMERS", folder=True).parse_args()
    note_commit(given.folder)
    lines = []
    for cell in CELLS:
        total: dict[str, Counter[str]] = {"models": Counter(), "both": Counter()}
        for seed in SEEDS:
            folder = given.folder / f"{cell}-{seed}"
            overrides = [*PARTITIONS[cell].overrides, "holdout_clients=0.3", f"seed={seed}"]
            told = f"strategy.parameters.num_clusters={PARTITIONS[cell].num_groups}"
            if not finished(folder):
                fedclust.run([*overrides, "strategy=fmcl", told, "rounds=20", f"output_dir={folder}"])
            for way, some in counts(fedclust.load(folder), overrides, seed, cell == "inversion").items():
                total[way] += some
        for way, title in (("models", "models alone"), ("both", "and inputs")):
            cells = [f"{total[way][each]}" for each in ("right", "wrong", "none")]
            strangers = total[way]["stranger right"] + total[way]["stranger wrong"]
            cells += [f"{strangers}", f"{total[way]['stranger none']}"]
            lines.append([f"{PARTITIONS[cell].title}: {title}", *cells])
    head = ["", "right", "wrong", "none", "strangers placed", "strangers in none"]
    text = f"{table(head, lines)}\n\nSeeds 911 to 915."
    show("placed", text, given.write, given.folder)


if __name__ == "__main__":
    main()
