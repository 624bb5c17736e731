"""What liars and attackers can do: the tables of docs/ATTACKS.md.

    python benchmarks/attacks.py FOLDER [--parts liars models rows] [--seeds 71] [--rounds 60]

Makes the runs that FOLDER lacks and writes each part's tables into docs/ATTACKS.md, between its two marks;
--no-run writes only. Accuracy is the mean over the honest clients.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from common import finished, grid_arguments, over_seeds, show, table
from federations import PARTITIONS, Cell, run, summaries
from liars import LIES, who
from sklearn.metrics import adjusted_rand_score

FEDAVG = "fedavg"
_FEDERATIONS = ("conventions-20-10", "iid")

# -- What clustering reads ----------------------------------------------------------------------------------

_LOSSES = ("losses_random", "losses_zero", "losses_huge", "losses_spiked", "losses_flipped", "losses_copied")
_COUNTS = ("counts_one_class", "counts_huge", "counts_huge_class", "counts_permuted")
_PROTOTYPES = ("prototypes_random", "prototypes_scaled", "prototypes_rolled")
_VOTES = ("votes_for", "votes_against", "votes_wide")
READ: dict[str, tuple[str, ...]] = {
    "fedgwc": ("none", *_LOSSES, *_VOTES),
    "clust_psi_pfl": ("none", *_COUNTS, *_VOTES),
    "fmcl": ("none", *_COUNTS, *_PROTOTYPES, *_VOTES),
    "auto": ("none", *_COUNTS, *_VOTES),
}
"""The lies that each method could be misled by."""
_LIARS = (1, 3)

# -- Models -------------------------------------------------------------------------------------------------

ATTACKED: dict[str, tuple[int, ...]] = {
    "none": (0,),
    "sign_flip": (1, 3, 6),
    "near_cap": (1, 3, 6),
    "many_rows": (1, 3),
    "constant": (3,),
    "random_many": (3,),
    "noise": (3,),
    "label_flip": (3, 6),
    "little": (3, 6),
    "inner": (3, 6),
}
"""How many attack FedAvg on IID, by attack."""
RULES: dict[str, tuple[str, ...]] = {
    "mean": ("aggregator=fedavg", "row_cap=3"),
    "mean without caps": ("aggregator=fedavg", "row_cap=null"),
    "mean with capped pulls": ("aggregator=fedavg", "row_cap=3", "update_pull_cap=5"),
    "trimmed mean": ("aggregator=fedtrimmedavg",),
    "median": ("aggregator=fedmedian",),
    "geometric median": ("aggregator=geometric_median",),
    "Krum": ("aggregator=krum", "aggregator.num_malicious_nodes=6"),
    "Multi-Krum": ("aggregator=multikrum", "aggregator.num_malicious_nodes=6"),
    "Bulyan": ("aggregator=bulyan", "aggregator.num_malicious_nodes=6"),
}
"""The rules; those that must be told a number of attackers are told six, however many there are."""
_CLUSTERED: dict[str, tuple[str, ...]] = {
    "known_groups": tuple(RULES),
    "auto": tuple(RULES),
    "fedgwc": ("mean", "mean without caps", "geometric median"),
    "fmcl": ("mean", "mean without caps", "geometric median"),
}
"""The rules inside each method's clusters."""
_CLUSTERS_ATTACKED: dict[str, tuple[int, ...]] = {
    "none": (0,),
    "sign_flip": (1, 3, 6),
    "many_rows": (1,),
    "label_flip": (3,),
}
_GROUPING = (
    *("auto", "cfl", "clove", "clust_psi_pfl", "fecfl", "fedclust_weights"),
    *("fedgwc", "fedsoft", "fesem", "fl_hc", "fmcl", "ifca", "pacfl"),
)
_CLAIMED: dict[str, tuple[tuple[str, str, int], ...]] = {
    "reversed_many": (
        *(("fedavg", "iid", number) for number in (1, 3)),
        *((method, "conventions-20-10", number) for method in _GROUPING for number in (1, 3)),
    ),
    "reversed_hundred": (("fedavg", "iid", 1),),
    "only_many": (("fedavg", "iid", 1), ("fedavg", "iid", 3)),
    "near_cap": (("fedavg", "iid", 1), ("fedavg", "iid", 3)),
    "many_rows": (("fedavg", "iid", 1), ("fedavg", "iid", 3)),
}
"""Attacks on means by claimed rows and long updates: the method, its federation and how many attack."""
_SKEWED = "dirichlet-0.1"  # where rules cost most when nobody attacks
_ATTACKERS = (1, 3, 6)
_ROUNDS_ON_IID = 20  # enough to tell the rules apart


@dataclass(frozen=True)
class Attacked(Cell):
    """A federation of which some clients lie.

    Attributes
    ----------
    lie, number
        What they do, and how many of them.
    rounds
        Of each run.
    """

    lie: str = "none"
    number: int = 0
    rounds: int = 60

    def overrides(self, name: str, data: Path | None) -> list[str]:
        """List what makes a method's run."""
        told = f"client_app=liars.{self.lie}_{self.number}"
        return [*super().overrides(name, data), f"rounds={self.rounds}", told]


def _cell(
    folder: Path, partition: str, seed: int, lie: str, number: int, rounds: int, methods: Sequence[str]
) -> Attacked:
    given: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(methods):
        strategy, _, rule = name.partition(" with ")
        # Of rules, each cluster's own model is measured, whatever serving would have made of it.
        given[name] = (f"strategy={strategy}", *((*RULES[rule], "compare=[]") if rule else ()))
    where = folder / partition / f"{lie}-{number}" / f"seed-{seed}"
    return Attacked("digits", partition, seed, given, where, lie, number, rounds)


def liars(folder: Path, seeds: Sequence[int], rounds: int) -> list[Attacked]:
    """List the runs with liars in what clustering reads."""
    found = []
    for seed in seeds:
        for number in _LIARS:
            for lie in dict.fromkeys(lie for lies in READ.values() for lie in lies):
                methods = [FEDAVG, *(method for method, lies in READ.items() if lie in lies)]
                if lie == "none" and number > 1:
                    continue
                for partition in _FEDERATIONS:
                    count = 0 if lie == "none" else number
                    found.append(_cell(folder / "liars", partition, seed, lie, count, rounds, methods))
    return found


def models(folder: Path, seeds: Sequence[int], rounds: int) -> list[Attacked]:
    """List the runs with attackers that send models: every rule, with FedAvg on IID and with clusters."""
    found = []
    alone = [f"{FEDAVG} with {rule}" for rule in RULES]
    mixed = [f"{method} with {rule}" for method, rules in _CLUSTERED.items() for rule in rules]
    for seed in seeds:
        for where, attacks, names, lasts in (
            ("iid", ATTACKED, alone, min(rounds, _ROUNDS_ON_IID)),
            ("conventions-20-10", _CLUSTERS_ATTACKED, mixed, rounds),
            (_SKEWED, {"none": (0,)}, alone, rounds),
        ):
            for attack, numbers in attacks.items():
                for number in numbers:
                    found.append(_cell(folder / "models", where, seed, attack, number, lasts, names))
    return found


def rows(folder: Path, seeds: Sequence[int], rounds: int) -> list[Attacked]:
    """List the runs of means under attacks by claimed rows and long updates, with caps and without."""
    cells = [(lie, *each) for lie, several in _CLAIMED.items() for each in several]
    cells = [*dict.fromkeys(("none", method, where, 0) for _, method, where, _ in cells), *cells]
    names = ("mean without caps", "mean", "mean with capped pulls")
    return [
        _cell(folder / "rows", where, seed, lie, number, rounds, [f"{method} with {each}" for each in names])
        for seed in seeds
        for lie, method, where, number in cells
    ]


# -- Tables -------------------------------------------------------------------------------------------------


def measured(grid: Sequence[Attacked]) -> pd.DataFrame:
    """Read the figures of the honest clients of all runs that were begun, a row each.

    Returns
    -------
    partition, lie, number, name
        Of the run.
    accuracy
        Mean accuracy; not a number where the run ended because no client could train any more.
    rand, clusters
        Adjusted Rand index of the clusters with the known groups, and how many have an honest client in them.
    code
        The exit code of the command line.
    """
    found = []
    for cell, name, summary in summaries(grid):
        assert isinstance(cell, Attacked)
        rows = pd.read_parquet(cell.folder / name / "clients.parquet")
        rows = rows[~rows["client"].isin(who(cell.number, len(rows)))]
        truth = rows["group"] if PARTITIONS[cell.partition].num_groups > 1 else 0 * rows["cluster"]
        figures = (
            rows["accuracy"].mean(),
            adjusted_rand_score(truth, rows["cluster"]),
            rows["cluster"].nunique(),
            3 if summary.get("collapsed") else 0,
        )
        found.append((cell.partition, cell.lie, cell.number, name, *figures))
    for cell in grid:
        for name in cell.methods:
            if (cell.folder / name / "rounds.jsonl").is_file() and not finished(cell.folder / name):
                found.append((cell.partition, cell.lie, cell.number, name, np.nan, np.nan, 0, 1))
    names = ("partition", "lie", "number", "name", "accuracy", "rand", "clusters", "code")
    frame = pd.DataFrame(found, columns=names)
    frame[["method", "rule"]] = frame["name"].str.split(" with ", n=1, expand=True).reindex(columns=[0, 1])
    return frame


def _accuracy(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "–"
    return "run ended" if runs["accuracy"].isna().any() else over_seeds(runs["accuracy"].tolist())


def page_of_liars(runs: pd.DataFrame) -> Iterator[str]:
    """Write the tables of liars in what clustering reads, one per federation."""
    for partition, here in runs.groupby("partition"):
        told = sorted({*here["number"]} - {0})
        rows = []
        for method, lies in READ.items():
            same_cells: dict[tuple[str, ...], list[str]] = {}
            for lie in lies:
                row = list[str]()
                for number in told:
                    same = here[(here["lie"] == lie) & (here["number"] == (lie != "none") * number)]
                    own, common = same[same["name"] == method], same[same["name"] == FEDAVG]
                    found = f"{own['rand'].mean():.2f} ({own['clusters'].mean():g})" if len(own) else "–"
                    row += [found, _accuracy(own), _accuracy(common)]
                if any(each != "–" for each in row):
                    same_cells.setdefault(tuple(row), []).append(LIES[lie].title)
            rows += [[f"`{method}`", "; ".join(titles), *cells] for cells, titles in same_cells.items()]
        header = ["method", "lie"]
        for number in told:
            header += [f"{number}: Rand (clusters)", "accuracy", "FedAvg's"]
        yield from (f"### {PARTITIONS[str(partition)].title}", "", table(header, rows), "")


def page_of_models(runs: pd.DataFrame) -> Iterator[str]:
    """Write the tables of attacks by models, one per method and federation with a column per rule."""
    for (method, partition), here in runs.groupby(["method", "partition"]):
        rows = []
        for number, lie in sorted({*zip(here["number"], here["lie"], strict=True)}):
            same = here[(here["number"] == number) & (here["lie"] == lie)]
            cells = [_accuracy(same[same["rule"] == rule]) for rule in RULES]
            rows.append([LIES[lie].title, f"{number}/30", *cells])
        title = f"`{method}`, {PARTITIONS[str(partition)].title}"
        yield from (f"### {title}", "", table(["attack", "attackers", *RULES], rows), "")


def page_of_rows(runs: pd.DataFrame) -> Iterator[str]:
    """Write the table of means with caps and without."""
    lines = []
    for (method, partition, number, lie), here in runs.groupby(["method", "partition", "number", "lie"]):
        line = [f"`{method}`, {PARTITIONS[str(partition)].title}", LIES[str(lie)].title, f"{number}/30"]
        for rule in ("mean without caps", "mean", "mean with capped pulls"):
            own = here[here["rule"] == rule]
            line.append(f"{_accuracy(own)}, {', '.join(map(str, sorted({*own['code']})))}")
        lines.append(line)
    settings = "without caps: accuracy, exit code", "as it is", "update_pull_cap=5"
    yield table(["method", "attack", "attackers", *settings], lines)


def worst(runs: pd.DataFrame) -> Iterator[str]:
    """Write each rule's accuracy when nobody attacks, and under the worst attack of each number."""
    for method, partition in _WORST:
        here, rows = runs[(runs["method"] == method) & (runs["partition"] == partition)], []
        for rule in RULES:
            row = [rule]
            for number in (0, *_ATTACKERS):
                same = here[(here["rule"] == rule) & (here["number"] == number)]
                # A run that ended is the worst.
                means = same.groupby("lie")["accuracy"].agg(lambda each: each.mean(skipna=False)).fillna(-1)
                lie = means.idxmin() if len(means) else ""
                row.append(
                    _accuracy(same[same["lie"] == lie]) + (f", {LIES[lie].title}" if number and lie else "")
                )
            rows.append(row)
        header = ["rule", "nobody attacks", *(f"worst with {number} in 30" for number in _ATTACKERS)]
        yield from (f"`{method}`, {PARTITIONS[partition].title}:", "", table(header, rows), "")


_WORST = (("fedavg", "iid"), ("auto", "conventions-20-10"), ("fedavg", _SKEWED))
PARTS = {"liars": liars, "models": models, "rows": rows}
PAGES = {
    "liars": {"liars": page_of_liars},
    "models": {"models": page_of_models, "worst": worst},
    "rows": {"rows": page_of_rows},
}


def main() -> int:
    """Run the command line; return 1 if a run failed."""
    parser = grid_arguments(__doc__, [71], "ATTACKS")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--only", default="", help="of the cells' folders, those that match, such as iid/none"
    )
    options = parser.parse_args()
    folder, whole = options.folder.resolve(), True
    for part in options.parts:
        grid = PARTS[part](folder, options.seeds, options.rounds)
        grid = [cell for cell in grid if re.search(options.only, str(cell.folder.relative_to(folder)))]
        whole &= options.no_run or run(grid, folder, options.workers)
        seeds = ", ".join(map(str, options.seeds))
        on_iid = f" ({min(options.rounds, _ROUNDS_ON_IID)} on IID)" if part == "models" else ""
        lasted = f"{options.rounds} rounds{on_iid}"
        note = f"Digits, 30 clients, {lasted}, seeds {seeds}."
        for mark, page in PAGES[part].items():
            show(mark, "\n".join([note, "", *page(measured(grid))]).rstrip(), options.out, folder)
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
