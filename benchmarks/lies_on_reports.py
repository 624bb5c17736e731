"""One and three liars in 30, on reports that were recorded once: the first table of docs/ATTACKS.md.

    python benchmarks/lies_on_reports.py FOLDER [--seeds 71 72] [--before FOLDER/COMMIT.json]

Label counts, prototypes and losses do not depend on what liars say of theirs: losses not until a cluster is
split, and here only the first split counts. So honest reports are recorded once, in FOLDER, and lies are put
into them. What comes of them is kept in FOLDER, in a file named after the commit; the table, of the honest
clients' groups, is written into docs/ATTACKS.md between its two marks. With --before it has two commits.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import DOCS, arguments, git, show, table
from federations import PARTITIONS
from liars import LOSSES, who
from sklearn.metrics import adjusted_rand_score

import fedclust
from fedclust.clustering import label_groups, loss_traces, prototype_groups

FEDERATIONS = ("conventions-20-10", "iid")
_CLASS = np.arange(10) == 3
Draws = np.random.Generator

COUNTS: dict[str, Callable[[np.ndarray, Draws], np.ndarray]] = {
    "one class only": lambda own, _: np.where(_CLASS, own.sum(), 0),
    "counts times 1e6": lambda own, _: own * 10**6,
    "2⁴⁸ of one class": lambda *_: np.where(_CLASS, 2**48, 0),
    "permuted counts": lambda own, draws: draws.permutation(own),
}
Prototypes = tuple[np.ndarray, np.ndarray, np.ndarray]
PROTOTYPES: dict[str, Callable[[Prototypes, Draws], Prototypes]] = {
    "random prototypes": lambda own, draws: (
        draws.normal(own[0].mean(), own[0].std(), own[0].shape),
        *own[1:],
    ),
    "prototypes times 1e3": lambda own, _: (1e3 * own[0], *own[1:]),
    "prototypes of 1e38": lambda own, _: (np.sign(own[0] - 0.2) * 1e38, *own[1:]),
    "another class's prototypes": lambda own, _: (np.roll(own[0], 1, axis=0), *own[1:]),
    "scatter times 1e6": lambda own, _: (*own[:2], 1e6 * own[2]),
    "scatter of 0": lambda own, _: (*own[:2], 0 * own[2]),
    "counts times 1e6": lambda own, _: (own[0], 10**6 * own[1], own[2]),
    "both wrong class and counts": lambda own, _: (np.roll(own[0], 1, axis=0), 10**6 * own[1], own[2]),
}


def record(partition: str, seed: int, folder: Path) -> dict[str, Any]:
    """Record what honest clients report in a federation."""
    path = folder / f"{partition}-{seed}.pickle"
    if path.is_file():
        return dict(pickle.loads(path.read_bytes()))
    rounds: list[Any] = []
    found: dict[str, Any] = {"losses": rounds}
    step, assign = loss_traces.step, prototype_groups.assign

    def recorded_step(state: Any, cohort: Any, losses: Any, parameters: Any, seed: int) -> Any:
        rounds.append((np.array(cohort), [np.array(each[:10]) for each in losses], seed))
        return step(state, cohort, losses, parameters, seed)

    def recorded_assign(prototypes: Any, counts: Any, scatter: Any, *rest: Any) -> Any:
        found["prototypes"] = prototypes, counts, scatter
        return assign(prototypes, counts, scatter, *rest)

    given = ["dataset=digits", "model=mlp", *PARTITIONS[partition].overrides, f"seed={seed}", "proof=true"]
    given += ["compare=[]", "evaluate_every=40", "checkpoint_every=0"]
    runs = folder / f"{partition}-{seed}"
    with mock.patch.object(loss_traces, "step", recorded_step):
        never = "strategy.parameters.significance=1e-12"  # no split, so that all tests are made
        fedclust.run([*given, "strategy=fedgwc", "rounds=40", never, f"output_dir={runs / 'fedgwc'}"])
    with mock.patch.object(prototype_groups, "assign", recorded_assign):
        fedclust.run([*given, "strategy=fmcl", "rounds=1", f"output_dir={runs / 'fmcl'}"])
    path.write_bytes(pickle.dumps(found))
    return found


def by_losses(found: Mapping[str, Any], liars: tuple[int, ...], lie: str) -> tuple[np.ndarray, list[int]]:
    """Split clients by their losses as `fedgwc` does; return the first split and who stands alone."""
    parameters = loss_traces.Parameters().resolve(0.8)
    state, draws = loss_traces.start(np.arange(30), parameters), np.random.default_rng(5)
    labels = np.zeros(30, dtype=int)
    for cohort, true, seed in found["losses"]:
        others = [own for client, own in zip(cohort, true, strict=True) if client not in liars]
        told = [
            LOSSES[lie](own, others, draws) if client in liars else own
            for client, own in zip(cohort, true, strict=True)
        ]
        state, outcome = loss_traces.step(state, cohort, told, parameters, seed)
        if outcome.labels is not None:
            labels = outcome.labels
            break
    return labels, loss_traces.alone([state])


def by_counts(found: Mapping[str, Any], liars: tuple[int, ...], lie: str) -> tuple[np.ndarray, list[int]]:
    """Split clients by label counts as `clust_psi_pfl` does."""
    counts, draws = found["prototypes"][1].copy(), np.random.default_rng(5)
    for client in liars:
        counts[client] = COUNTS[lie](counts[client], draws)
    labels, details = label_groups.assign(counts, label_groups.Parameters(), 0)
    return labels, details.alone.tolist()


def by_prototypes(found: Mapping[str, Any], liars: tuple[int, ...], lie: str) -> tuple[np.ndarray, list[int]]:
    """Split clients by class prototypes as `fmcl` does."""
    means, counts, scatter = (np.array(each) for each in found["prototypes"])
    draws = np.random.default_rng(5)
    for client in liars:
        own = means[client].astype(float), counts[client], scatter[client]
        means[client], counts[client], scatter[client] = PROTOTYPES[lie](own, draws)
    labels, details = prototype_groups.assign(means, counts, scatter, prototype_groups.Parameters(), 0)
    return labels, details.alone.tolist()


METHODS = {
    "fedgwc": (LOSSES, by_losses),
    "clust_psi_pfl": (COUNTS, by_counts),
    "fmcl": (PROTOTYPES, by_prototypes),
}
NUMBERS = (1, 3)
# By method, lie, partition and number of liars: the least index of all seeds, and who is named in the first.
Figures = dict[str, list[Any]]


def measure(method: str, lie: str, reports: Mapping[str, list[Any]]) -> Figures:
    """Put one lie into all reports."""
    group, figures = METHODS[method][1], {}
    for partition, recorded in reports.items():
        # The conventions' clusters are no clusters of labels.
        grouped = partition != "iid" and method != "clust_psi_pfl"
        for number in NUMBERS:
            liars = who(number)
            honest = np.setdiff1d(np.arange(30), liars)
            truth = (honest >= 20).astype(int) * grouped
            told = [group(each, liars, lie) for each in recorded]
            indices = [float(adjusted_rand_score(truth, labels[honest])) for labels, _ in told]
            figures[f"{method}, {lie}, {partition}, {number}"] = [min(indices), told[0][1]]
    return figures


def page(now: Figures, before: Figures | None) -> str:
    """Write the table: of each federation and number of liars, the index before and now, and who is named."""
    rows = []
    for method, (lies, _) in METHODS.items():
        for lie in lies:
            row = [f"`{method}`", lie]
            for partition in FEDERATIONS:
                for number in NUMBERS:
                    key = f"{method}, {lie}, {partition}, {number}"
                    row += [] if before is None else [_index(before[key][0])]
                    named = [client for client in now[key][1] if client in who(number)]
                    others = len(now[key][1]) - len(named)
                    said = f", names {len(named)}" if named else ""
                    said += f" and {others} honest" if others else ""
                    row.append(_index(now[key][0]) + said)
            rows.append(row)
    header = ["method", "lie"]
    for title in ("conventions", "IID"):
        for number in NUMBERS:
            header += [f"{title}, {number}: before", "now"] if before else [f"{title}, {number}"]
    return table(header, rows)


def _index(value: float) -> str:
    return f"{value:.2f}" if value > 0.995 else f"**{value:.2f}**"


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[71, 72])
    parser.add_argument("--before", type=Path, help="the file of an earlier commit")
    parser.add_argument("--no-run", action="store_true", help="write the table of what is there")
    parser.add_argument("--out", type=Path, default=DOCS / "ATTACKS.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "HEAD")[:7]
    kept, now = options.folder / f"{commit}.json", Figures()
    if kept.is_file():
        now = json.loads(kept.read_text(encoding="utf-8"))
    reports = {
        partition: [record(partition, seed, options.folder) for seed in options.seeds]
        for partition in (() if options.no_run else FEDERATIONS)
    }
    for method, (lies, _) in METHODS.items():
        for lie in () if options.no_run else lies:
            if f"{method}, {lie}, iid, {NUMBERS[-1]}" not in now:
                now |= measure(method, lie, reports)
                kept.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
                print(method, lie, flush=True)
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else None
    seeds = ", ".join(map(str, options.seeds))
    note = f"Commit {commit}{f', before: {options.before.stem}' if before else ''}; digits, seeds {seeds}."
    show("reports", f"{note}\n\n{page(now, before)}", options.out)


if __name__ == "__main__":
    main()
