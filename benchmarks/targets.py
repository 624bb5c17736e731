"""Amounts and times: federations whose groups are known, and breast cancer in six regions.

    python benchmarks/targets.py FOLDER [--seeds 20] [--first 4001] [--workers 2] [--write]

Makes the runs that FOLDER lacks. *Groups*: 20 clients of 100 rows; in half of them amounts are mirrored, or
events follow the opposite risk; where nothing differs, each split is a false one. scikit-learn's diabetes
table (442 patients, an amount) is dealt to ten clients, five of which have it mirrored. *Regions*: FLamby's
Fed-TCGA-BRCA by its static split (du Terrail et al. 2022): regions as they are, each with its event column
coded the other way in turn if ten rows of it had the event, and patients dealt to regions at random.
*Units*: the diabetes table over three sites, of which one has it in another unit.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import DATA, arguments, note_commit, over_seeds, show, side_by_side, table
from sklearn.datasets import load_diabetes
from sklearn.metrics import adjusted_rand_score
from torch import nn

from fedclust import simulate
from fedclust.training import LocalTraining

CLIENTS, ROWS, COLUMNS, ROUNDS = 20, 100, 6, 60
TRAINING = LocalTraining(learning_rate=0.1, steps=3, batch_size=8)  # as conf/training/default.yaml
EPOCH = LocalTraining(learning_rate=0.1, epochs=1, batch_size=32, weight_decay=0.01)
TCGA = DATA / "tcga_brca" / "tcga_brca.csv"
_FEWEST, _RUNS = 10, 5  # events of a region whose column is turned round, and seeds of such runs
FACTOR = 18.0182  # mg/dl of glucose in one mmol/l
_SHUFFLES = 100  # seeds of runs of patients dealt at random
FLAMBY = {"FedAvg": "0.732 ± 0.181", "best federated": "0.815 ± 0.026", "each alone": "0.689 ± 0.009"}

Rows = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int], Rows]


def amounts(draws: np.random.Generator, sign: int, noise: float = 20.0) -> Rows:
    """Draw a client's inputs and amounts."""
    inputs = draws.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    seen = sign * (inputs[:, 0] + inputs[:, 1] - inputs[:, 2] / 2)
    return inputs, (100 + 20 * seen + noise * draws.normal(size=ROWS)).astype(np.float32)


def times(draws: np.random.Generator, sign: int, limit: float, rows: int = ROWS) -> Rows:
    """Draw a client's inputs, and Weibull times that are censored at exponential ones of a given mean."""
    inputs = draws.normal(size=(rows, COLUMNS)).astype(np.float32)
    until = 100 * draws.weibull(1.5, rows) * np.exp(-sign * (inputs[:, 0] + inputs[:, 1]) / 1.5)
    observed = draws.exponential(limit, rows)
    found = np.stack([np.minimum(until, observed) + 1e-3, until <= observed], axis=1)
    return inputs, found.astype(np.float32)


CASES: dict[str, Draw] = {
    "amounts": amounts,
    "times, about 20 % censored": partial(times, limit=500.0),
    "times, about 60 % censored": partial(times, limit=65.0),
    "times, about 60 % censored, 400 rows": partial(times, limit=65.0, rows=400),
    "times, about 90 % censored": partial(times, limit=13.0),
    "times, about 90 % censored, 400 rows": partial(times, limit=13.0, rows=400),
}


def diabetes(draws: np.random.Generator, mirrored: Sequence[int]) -> list[Rows]:
    """Deal the diabetes table to ten clients, of which some have its amounts mirrored."""
    rows = load_diabetes()
    inputs = (rows.data / rows.data.std(axis=0)).astype(np.float32)
    parts = np.array_split(draws.permutation(len(inputs)), 10)
    lowest, highest = rows.target.min(), rows.target.max()
    values = [rows.target[part].astype(np.float32) for part in parts]
    return [
        (inputs[part], np.float32(lowest + highest) - own if client in mirrored else own)
        for client, (part, own) in enumerate(zip(parts, values, strict=True))
    ]


def grouped(case: str, contrary: bool, seed: int) -> dict[str, Any]:
    """Run `auto` on a case; return what it says last."""
    draws = np.random.default_rng(seed)
    if case == "diabetes":
        clients = diabetes(draws, range(5) if contrary else ())
    else:
        signs = [-1 if contrary and 2 * client < CLIENTS else 1 for client in range(CLIENTS)]
        clients = [CASES[case](draws, sign) for sign in signs]
    outputs = 8 if clients[0][1].ndim > 1 else 1
    summary = simulate(
        "auto",
        nn.Linear(clients[0][0].shape[1], outputs),
        clients,
        rounds=ROUNDS,
        training=TRAINING,
        seed=seed,
        proof=True,
    ).summary
    return {"assignment": summary["assignment"], "grouped": summary["verdict"]["grouped"]}


def regions(turned: str, shuffled: bool, seed: int) -> dict[str, Any]:
    """Run `auto` on the regions of Fed-TCGA-BRCA; return the sites' findings and figures."""
    rows = pd.read_csv(TCGA)
    draws = np.random.default_rng(seed)
    if shuffled:
        rows["region"] = draws.permutation(rows["region"].to_numpy())
    names = sorted(set(rows["region"]))
    values = np.stack([rows["days"].clip(lower=1), rows["event"]], axis=1).astype(np.float32)
    values[:, 1] = np.where(rows["region"] == turned, 1 - values[:, 1], values[:, 1])
    inputs = rows.drop(columns=["days", "event", "fold", "region", "patient"]).to_numpy(np.float32)
    # Of 0 and 1 but for the age.
    inputs[:, 0] = (inputs[:, 0] - inputs[:, 0].mean()) / inputs[:, 0].std()
    clients = []
    for name in names:
        train, test = (
            np.flatnonzero((rows["region"] == name) & (rows["fold"] == part)) for part in ("train", "test")
        )
        clients.append(((inputs[train], values[train]), None, (inputs[test], values[test])))
    result = simulate(
        "auto", nn.Linear(inputs.shape[1], 8), clients, rounds=ROUNDS, training=EPOCH, seed=seed, proof=True
    )
    summary = result.summary
    return {
        "names": names,
        "concordance": result.clients["concordance"].tolist(),
        "leaves": [names[each["client"]] for each in summary["sites"] if each["leaves"]],
        "turned": [names[each["client"]] for each in summary["site_findings"] if each["kind"] == "turned"],
    }


def units(seed: int) -> dict[str, Any]:
    """Deal the diabetes table to three sites, one of which has it in another unit, and again converted."""
    draws, rows = np.random.default_rng(seed), load_diabetes()
    inputs = (rows.data / rows.data.std(axis=0)).astype(np.float32)
    parts, odd = np.array_split(draws.permutation(len(inputs)), 3), int(draws.integers(3))
    split = [(part[len(part) // 5 :], part[: len(part) // 5]) for part in parts]
    train, test = (np.concatenate(each) for each in zip(*split, strict=True))
    with_one = np.column_stack([inputs, np.ones(len(inputs))])
    pooled = with_one[test] @ np.linalg.lstsq(with_one[train], rows.target[train])[0]
    found: dict[str, Any] = {"odd": odd, "pooled": float(np.sqrt(np.mean((pooled - rows.target[test]) ** 2)))}
    for name, factor in (("other unit", FACTOR), ("converted", 1.0)):
        clients = []
        for site, own in enumerate(split):
            values = (rows.target / (factor if site == odd else 1.0)).astype(np.float32)
            fitted, tested = ((inputs[each], values[each]) for each in own)
            clients.append((fitted, None, tested))
        result = simulate("auto", nn.Linear(10, 1), clients, rounds=ROUNDS, training=EPOCH, seed=seed)
        found[name] = [
            each["client"] for each in result.summary["site_findings"] if each["kind"] in ("unit", "turned")
        ]
    predicted = [result.predict(site, inputs[own]).numpy().ravel() for site, (_, own) in enumerate(split)]
    found["auto"] = float(np.sqrt(np.mean((np.concatenate(predicted) - rows.target[test]) ** 2)))
    return found


def run(*item: Any) -> dict[str, Any]:
    """Make one run."""
    torch.set_num_threads(1)
    what, *given = item
    torch.manual_seed(given[-1])
    if what == "units":
        return units(given[-1])
    return grouped(*given) if what == "groups" else regions(*given)


def groups_lines(read: Mapping[tuple[Any, ...], Mapping[str, Any]], seeds: Sequence[int]) -> str:
    """Write the table of groups."""
    lines = []
    for case in (*CASES, "diabetes"):
        alike, contrary = ([read["groups", case, turned, seed] for seed in seeds] for turned in (False, True))
        split = sum(len(set(each["assignment"])) > 1 or each["grouped"] for each in alike)
        number = len(contrary[0]["assignment"])
        truth = [int(2 * client < number) for client in range(number)]
        found = [adjusted_rand_score(truth, each["assignment"]) for each in contrary]
        told = sum(each["grouped"] for each in contrary)
        of = len(seeds)
        lines.append([case, f"{split} of {of}", over_seeds(found), f"{told} of {of}"])
    return table(["", "alike: split", "contrary: adjusted Rand index", "and told to train in groups"], lines)


def regions_lines(
    read: Mapping[tuple[Any, ...], Mapping[str, Any]], seeds: Sequence[int], turned: Sequence[str]
) -> str:
    """Write what came of the regions."""
    honest = [read["regions", "", False, seed] for seed in seeds[:_RUNS]]
    means = over_seeds([float(np.nanmean(each["concordance"])) for each in honest])
    by_region = np.nanmean([each["concordance"] for each in honest], axis=0)
    head = ["", *honest[0]["names"], "mean"]
    lines = [["concordance", *(f"{each:.2f}" for each in by_region), means]]
    text = [table(head, lines), ""]
    published = ", ".join(f"{name} {figure}" for name, figure in FLAMBY.items())
    text += [f"Mean over regions of {len(honest)} seeds; FLamby's own: {published}.", ""]
    for region in turned:
        runs = [read["regions", region, False, seed] for seed in seeds[:_RUNS]]
        named = sum(each["turned"] == [region] for each in runs)
        text.append(f"- {region}, events coded the other way: it alone is named in {named} of {len(runs)}.")
    named = sum(bool(each["turned"]) for each in honest)
    text.append(f"- as they are: somebody is named in {named} of {len(honest)}.")
    mixed = [each for item, each in read.items() if item[:3] == ("regions", "", True)]
    left = sum(bool(each["leaves"]) for each in mixed)
    accused = sum(bool(each["turned"]) for each in mixed)
    text.append(
        f"- patients dealt at random: somebody leaves in {left} of {len(mixed)}, is named in {accused}."
    )
    return "\n".join(text)


def units_lines(found: Sequence[Mapping[str, Any]]) -> str:
    """Write what came of sites in another unit."""
    named = sum(each["other unit"] == [each["odd"]] for each in found)
    accused = sum(bool(each["converted"]) for each in found)
    shares = over_seeds([each["auto"] / each["pooled"] for each in found])
    return "\n".join(
        [
            f"- The site in another unit, and it alone, is named in {named} of {len(found)}.",
            f"- Once it is converted, somebody is named in {accused} of {len(found)}.",
            f"- RMSE on test rows is then that of least squares on all sites' rows times {shares}.",
        ]
    )


def main() -> None:
    """Run what is missing, and write the page."""
    parser = arguments(__doc__, page="TARGETS", folder=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=4001)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    note_commit(folder)
    seeds = range(given.first, given.first + given.seeds)
    shuffles = range(given.first, given.first + _SHUFFLES)
    events = pd.read_csv(TCGA).groupby("region")["event"].sum()
    turned = sorted(events.index[events >= _FEWEST])
    items: list[tuple[Any, ...]] = [
        *(
            ("groups", case, way, seed)
            for case in (*CASES, "diabetes")
            for way in (False, True)
            for seed in seeds
        ),
        *(("regions", region, False, seed) for region in ("", *turned) for seed in seeds[:_RUNS]),
        *(("regions", "", True, seed) for seed in shuffles),
        *(("units", "", False, seed) for seed in seeds),
    ]
    files = {each: folder / f"{'-'.join(map(str, each)).replace(' ', '_')}.json" for each in items}
    for place, item, found in side_by_side(
        run, [each for each in items if not files[each].exists()], given.workers
    ):
        files[item].write_text(json.dumps(found), encoding="utf-8")
        print(place, *item, flush=True)
    read = {each: json.loads(file.read_text(encoding="utf-8")) for each, file in files.items()}
    said = f"{given.seeds} seeds from {given.first}, {ROUNDS} rounds, a linear network."
    show("groups", "\n".join([groups_lines(read, seeds), "", said]), given.write, folder)
    text = units_lines([found for item, found in read.items() if item[0] == "units"])
    show("units", f"{text}\n\n{said}", given.write, folder)
    show("regions", "\n".join([regions_lines(read, seeds, turned), "", said]), given.write, folder)


if __name__ == "__main__":
    main()
