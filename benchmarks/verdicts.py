"""Is the last word of a run right? Federations whose groups are known, and what `auto` says of them.

    python benchmarks/verdicts.py FOLDER [--seeds 20] [--first 3001] [--workers 2] [--write]

Makes the runs that FOLDER lacks: `auto` with the rounds and the local training of a run by default, a linear
network, and 30 clients unless a case says otherwise. A row's class is that of a noisy first column;
in a turned client it is the other one. Where nothing differs, each split is a false one; where groups
contradict each other, they must be found without a client in the wrong one, and the verdict must be to train
in them. Units are said before round 1, of four sites' columns. benchmarks/sites.py has the sentences to
a handful of sites.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import DATA, arguments, note_commit, over_seeds, show, side_by_side, table
from sklearn.metrics import adjusted_rand_score
from torch import nn

from fedclust import simulate
from fedclust.data.sites.agreement import Column, Moments, Statement, Wanted, agree
from fedclust.training import LocalTraining

ROUNDS, CLIENTS, COLUMNS = 60, 30, 6
TRAINING = LocalTraining(learning_rate=0.1, steps=3, batch_size=8)  # as conf/training/default.yaml
EPOCH = LocalTraining(learning_rate=0.1, epochs=1, batch_size=8)
_ALLOWED, _WANTED = 0.05, 0.9
SENSORS = DATA.parent / "cases" / "sensors" / "sensors.csv"

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A federation that can be drawn again.

    Attributes
    ----------
    draw
        Draws each client's rows.
    groups
        Each client's group; None where nobody differs.
    training
        A client's work in a round.
    """

    draw: Callable[[np.random.Generator], list[Rows]]
    groups: tuple[int, ...] | None = None
    training: LocalTraining = TRAINING


def drawn(
    sizes: Sequence[int],
    *,
    turned: Sequence[int] = (),
    angle: float = np.pi,
    rare: float = 0.0,
    shift: float = 0.0,
    signal: float = 2.0,
    training: LocalTraining = TRAINING,
) -> Case:
    """Describe clients of some rows; the direction that tells the classes apart is turned at some of them.

    With `rare`, that share of rows is of class 1; with `shift`, the means of clients' columns differ by it.
    """

    def draw(draws: np.random.Generator) -> list[Rows]:
        clients = []
        for client, rows in enumerate(sizes):
            inputs = draws.normal(size=(rows, COLUMNS))
            way = angle if client in turned else 0.0
            inputs += shift * draws.normal(size=COLUMNS)
            seen = signal * (inputs[:, 0] * np.cos(way) + inputs[:, 1] * np.sin(way))
            seen = seen + draws.logistic(size=rows) * (0.5 if signal else 1.0)
            labels = (seen > (np.quantile(seen, 1 - rare) if rare else 0)).astype(np.int64)
            clients.append((inputs.astype(np.float32), labels))
        return clients

    groups = tuple(int(client in turned) for client in range(len(sizes))) if turned else None
    return Case(draw, groups, training)


def sensors(draws: np.random.Generator) -> list[Rows]:
    """Return twenty sensors' rows in a random order, which also draws the test rows."""
    rows = pd.read_csv(SENSORS)
    labels, names = rows.pop("state").astype("category").cat.codes.to_numpy(np.int64), rows.pop("sensor")
    inputs = pd.get_dummies(rows).to_numpy(np.float32)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    places = [draws.permutation(np.flatnonzero(names == name)) for name in sorted(set(names))]
    return [(inputs[place], labels[place]) for place in places]


HALF = range(15)
CASES: dict[str, Case] = {
    "alike, 60 rows each": drawn([60] * CLIENTS),
    "alike, 300 rows each": drawn([300] * CLIENTS),
    "alike, 8 rows each": drawn([8] * CLIENTS),
    "alike, 20 to 500 rows, other inputs": drawn(
        np.random.default_rng(0).integers(20, 500, CLIENTS).tolist(), shift=1.0
    ),
    "labels at random, 100 rows each": drawn([100] * CLIENTS, signal=0.0),
    "15 and 15 turned, 60 rows each": drawn([60] * CLIENTS, turned=HALF),
    "15 and 15 turned, 7 % positive, 300 rows each, an epoch a round": drawn(
        [300] * CLIENTS, turned=HALF, rare=0.07, training=EPOCH
    ),
    "15 and 15 at right angles, 120 rows each": drawn([120] * CLIENTS, turned=HALF, angle=np.pi / 2),
    "1 of 30 turned, 400 rows each": drawn([400] * CLIENTS, turned=[7]),
    "1 of 30 turned, with 90 % of all rows": drawn([60] * 3 + [16_000] + [60] * 26, turned=[3]),
    "20 sensors in four groups of 5": Case(sensors, tuple(place // 5 for place in range(20))),
}


def run(case: str, seed: int) -> dict[str, Any]:
    """Run `auto`; return what it says last."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    clients = CASES[case].draw(np.random.default_rng(seed))
    classes = 1 + max(int(labels.max()) for _, labels in clients)
    model = nn.Linear(clients[0][0].shape[1], classes)
    given: dict[str, Any] = {"training": CASES[case].training, "seed": seed, "num_classes": classes}
    summary = simulate("auto", model, clients, rounds=ROUNDS, proof=True, **given).summary
    verdict = summary["verdict"]
    return {
        "assignment": summary["assignment"],
        "grouped": verdict["grouped"],
        "text": verdict["text"],
        "one_model": verdict["accuracy_of_one_model"],
        "groups": verdict["accuracy_of_groups"],
        "served": summary["mean_client_accuracy"],
    }


def line(case: str, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Write a case's row, and what of it falls short of the bar."""
    number, groups = len(runs), CASES[case].groups
    split = sum(len(set(each["assignment"])) > 1 or each["grouped"] for each in runs)
    cells, short = [case], []
    if groups is None:
        cells += [f"{split} of {number}", "–", "–"]
        if split > _ALLOWED * number:
            short.append(f"{case}: split in {split} of {number}, more than 5 %")
    else:
        exact = [adjusted_rand_score(groups, each["assignment"]) == 1 for each in runs]
        told = sum(found and each["grouped"] for found, each in zip(exact, runs, strict=True))
        cells += ["–", f"{sum(exact)} of {number}", f"{told} of {number}"]
        if told < _WANTED * number:
            short.append(f"{case}: found and said in {told} of {number}, fewer than 18 of 20")
    cells += [over_seeds([each[name] for each in runs]) for name in ("one_model", "groups", "served")]
    return cells, short


def units(seeds: Sequence[int]) -> str:
    """Draw four sites with eight lognormal columns; count where a unit is called another one."""
    false, missed = 0, 0
    for seed in seeds:
        draws = np.random.default_rng(seed)
        for factor in (1.0, 18.0):  # mg/dl of glucose in mmol/l
            statements = {}
            for site in range(4):
                rows, columns = int(draws.integers(30, 300)), {}
                for column in range(8):
                    values = draws.lognormal(column - 4, 1.0, rows) * (factor if site == column == 0 else 1)
                    columns[f"x{column}"] = Column("number", Moments.of(values))
                statements[str(site)] = Statement(("0", "1"), columns)
            said = [each for each in agree(statements, Wanted(columns=True)).cautions if "unit" in each]
            right = [each for each in said if factor > 1 and each.startswith("0: column x0 ")]
            false += len(said) > len(right)
            missed += factor > 1 and not right
    number = len(seeds)
    return (
        f"Units, four sites with eight columns: one is called another in {false} of {2 * number} "
        f"federations, and one that is 18 times another is missed in {missed} of {number}."
    )


def main() -> None:
    """Run what is missing, and write the page."""
    parser = arguments(__doc__, page="PROOF", folder=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=3001)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    note_commit(folder)
    seeds = range(given.first, given.first + given.seeds)
    files = {(case, seed): folder / f"{case}-{seed}.json" for case in CASES for seed in seeds}
    for place, item, found in side_by_side(
        run, [each for each in files if not files[each].exists()], given.workers
    ):
        files[item].write_text(json.dumps(found), encoding="utf-8")
        print(place, *item, flush=True)
    read = {each: json.loads(file.read_text(encoding="utf-8")) for each, file in files.items()}
    lines = [line(case, [read[case, seed] for seed in seeds]) for case in CASES]
    head = ["30 clients", "split", "exactly these groups", "and told to train in them"]
    head += ["accuracy of one model", "of the groups", "served, mean over clients"]
    short = [f"- {each}" for _, some in lines for each in some]
    text = [table(head, [cells for cells, _ in lines]), "", units(seeds), ""]
    text += ["Short of the bar:", "", *short] if short else ["No case falls short of the bar."]
    text += ["", f"{given.seeds} seeds from {given.first}, {ROUNDS} rounds."]
    show("known truth", "\n".join(text), given.write, folder)


if __name__ == "__main__":
    main()
