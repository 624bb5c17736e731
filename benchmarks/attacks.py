"""What liars and attackers can do: the tables of docs/ATTACKS.md.

    python benchmarks/attacks.py FOLDER [--parts liars models worst] [--seeds 71] [--workers 2] [--rounds 60]

Makes the runs that FOLDER lacks and writes each part's table into docs/ATTACKS.md, between its two marks;
--no-run writes only. Cells of models that no run of FOLDER gives stay as they are in the page. Accuracy is
the mean over the honest clients.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from attack_tables import Table, merged, read_commits, read_tables, worst, write_tables
from common import DOCS, arguments, commit_of, finished, over_seeds, show, shown, table
from federations import PARTITIONS, Cell, run, summaries
from liars import LIES, who
from sklearn.metrics import adjusted_rand_score

FEDAVG = "fedavg"
_FEDERATIONS = ("conventions-20-10", "iid")

# -- What clustering reads ----------------------------------------------------------------------------------

_LOSSES = ("losses_random", "losses_zero", "losses_huge", "losses_flipped", "losses_copied")
_COUNTS = ("counts_one_class", "counts_huge", "counts_huge_class", "counts_permuted")
_PROTOTYPES = ("prototypes_random", "prototypes_scaled", "prototypes_rolled", "scatter_huge", "scatter_zero")
_VOTES = ("votes_for", "votes_against", "votes_wide")
READ: dict[str, tuple[str, ...]] = {
    "fedgwc": ("none", *_LOSSES, *_VOTES),
    "clust_psi_pfl": ("none", *_COUNTS, *_VOTES),
    "fmcl": ("none", *_COUNTS, *_PROTOTYPES, *_VOTES),
    "auto": ("none", *_LOSSES, *_COUNTS, *_PROTOTYPES, *_VOTES),
}
"""The lies that each method could be misled by."""
_LIARS = (1, 3)

# -- Models -------------------------------------------------------------------------------------------------

ATTACKED: dict[str, tuple[int, ...]] = {
    "none": (0,),
    "sign_flip": (1, 3, 6),
    "near_cap": (1, 3, 6),
    "many_rows": (1, 3),
    "noise": (3,),
    "label_flip": (3, 6),
    "little": (3, 6),
    "inner": (3, 6),
}
"""How many attack FedAvg on IID, by attack."""
RULES: dict[str, tuple[str, ...]] = {
    "mean": ("aggregator=fedavg",),
    "limited mean": ("aggregator=fedavg", "update_pull_cap=10"),
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
    "fedgwc": ("mean", "limited mean", "geometric median"),
    "fmcl": ("mean", "limited mean", "geometric median"),
}
"""The rules inside each method's clusters."""
_CLUSTERS_ATTACKED: dict[str, tuple[int, ...]] = {
    "none": (0,),
    "sign_flip": (1, 3, 6),
    "many_rows": (1,),
    "label_flip": (3,),
}
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
    folder: Path,
    part: str,
    partition: str,
    seed: int,
    lie: str,
    number: int,
    rounds: int,
    methods: Sequence[str],
) -> Attacked:
    given: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(methods):
        strategy, _, rule = name.partition(" with ")
        # Of rules, each cluster's own model is measured, whatever serving would have made of it.
        given[name] = (f"strategy={strategy}", *((*RULES[rule], "compare=[]") if rule else ()))
    where = folder / part / partition / f"{lie}-{number}" / f"seed-{seed}"
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
                    found.append(_cell(folder, "liars", partition, seed, lie, count, rounds, methods))
    return found


def models(folder: Path, seeds: Sequence[int], rounds: int) -> list[Attacked]:
    """List the runs with attackers that send models: every rule, with FedAvg on IID and with clusters."""
    found = []
    alone = [f"{FEDAVG} with {rule}" for rule in RULES]
    mixed = [f"{method} with {rule}" for method, rules in _CLUSTERED.items() for rule in rules]
    for seed in seeds:
        for where, attacks, names, number_of_rounds in (
            ("iid", ATTACKED, alone, min(rounds, _ROUNDS_ON_IID)),
            ("conventions-20-10", _CLUSTERS_ATTACKED, mixed, rounds),
            (_SKEWED, {"none": (0,)}, alone, rounds),
        ):
            for attack, numbers in attacks.items():
                for number in numbers:
                    found.append(
                        _cell(folder, "models", where, seed, attack, number, number_of_rounds, names)
                    )
    return found


# -- Tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """A run's figures of its honest clients.

    Attributes
    ----------
    accuracy
        Mean accuracy.
    rand
        Adjusted Rand index of the clusters with those of a reference.
    clusters
        Number of clusters with an honest client in them.
    alone
        The clients that the run said stand alone.
    """

    accuracy: float
    rand: float
    clusters: int
    alone: tuple[int, ...]


def _honest(number: int, folder: Path) -> pd.DataFrame:
    rows = pd.read_parquet(folder / "clients.parquet")
    return rows[~rows["client"].isin(who(number, len(rows)))]


def measured(grid: Sequence[Attacked]) -> Mapping[tuple[str, str, int, str], list[Figures]]:
    """Read the figures of all runs that have finished, by partition, lie, number of liars and method."""
    found: dict[tuple[str, str, int, str], list[Figures]] = {}
    for cell, name, summary in summaries(grid):
        assert isinstance(cell, Attacked)
        rows = _honest(cell.number, cell.folder / name)
        truth = rows["group"] if PARTITIONS[cell.partition].num_groups > 1 else 0 * rows["cluster"]
        figures = Figures(
            float(rows["accuracy"].mean()),
            float(adjusted_rand_score(truth, rows["cluster"])),
            int(rows["cluster"].nunique()),
            tuple(summary.get("alone", ())),
        )
        found.setdefault((cell.partition, cell.lie, cell.number, name), []).append(figures)
    return found


def page_of_liars(grid: Sequence[Attacked]) -> Iterator[str]:
    """Write the tables of liars in what clustering reads, one per federation."""
    found = measured(grid)
    for partition in _FEDERATIONS:
        if all(where != partition for where, *_ in found):
            continue
        yield from (f"### {PARTITIONS[partition].title}", "")
        rows, told = [], sorted({number for where, _, number, _ in found if where == partition and number})
        for method, lies in READ.items():
            for lie in lies:
                row = [f"`{method}`", LIES[lie].title]
                for number in (0,) if lie == "none" else told:
                    own = found.get((partition, lie, number, method), [])
                    common = found.get((partition, lie, number, FEDAVG), [])
                    row += [_rand(own), over_seeds([each.accuracy for each in own])]
                    row += [over_seeds([each.accuracy for each in common])]
                row += ["–"] * (2 + 3 * len(told) - len(row))
                if any(each != "–" for each in row[2:]):
                    rows.append(row)
        header = ["method", "lie"]
        for number in told:
            header += [f"{number}: Rand (clusters), named", "accuracy", "FedAvg's"]
        yield from (table(header, rows), "")


def _rand(runs: Sequence[Figures]) -> str:
    if not runs:
        return "–"
    named = "".join(f", names {list(each.alone)}" for each in runs[:1] if each.alone)
    return f"{np.mean([e.rand for e in runs]):.2f} ({np.mean([e.clusters for e in runs]):g}){named}"


def _ended(grid: Sequence[Attacked]) -> set[tuple[str, str, int, str]]:
    """List the runs that ended before their last round, because no client could train any more."""
    return {
        (cell.partition, cell.lie, cell.number, name)
        for cell in grid
        for name in cell.methods
        if (cell.folder / name / "rounds.jsonl").is_file() and not finished(cell.folder / name)
    }


def tables_of_models(grid: Sequence[Attacked]) -> dict[str, Table]:
    """Make the tables of attacks by models: one per method and federation, with a column per rule."""
    found, ended = measured(grid), _ended(grid)
    known = {*found, *ended}
    of_method = {(where, name.partition(" with ")[0]) for where, _, _, name in known}
    tables = {}
    for partition, method in sorted(of_method, key=lambda each: (each[1] != FEDAVG, each)):
        cells = {
            (lie, number)
            for where, lie, number, name in known
            if (where, name.partition(" with ")[0]) == (partition, method)
        }
        own = tables[_title(method, partition)] = Table(tuple(RULES))
        for lie, number in sorted(cells, key=lambda each: (list(LIES).index(each[0]), each[1])):
            row = own.cells[LIES[lie].title, f"{number}/30"] = []
            for rule in RULES:
                key = partition, lie, number, f"{method} with {rule}"
                row.append("run ended" if key in ended else _accuracy(found.get(key, []), partition))
    return tables


def _title(method: str, partition: str) -> str:
    return f"`{method}`, {PARTITIONS[partition].title}"


def _accuracy(runs: Sequence[Figures], partition: str) -> str:
    """Write the accuracy; where there are groups that were not found, how many clusters there are."""
    wrong = [each for each in runs if each.rand < 1 and PARTITIONS[partition].num_groups > 1]
    clusters = f" ({np.mean([each.clusters for each in runs]):g} clusters)" if wrong else ""
    return over_seeds([each.accuracy for each in runs]) + clusters


def _only(grid: Sequence[Attacked], methods: Sequence[str], rules: Sequence[str]) -> list[Attacked]:
    """Leave out the runs of other methods and with other rules; those without a rule stay."""

    def wanted(name: str) -> bool:
        method, _, rule = name.partition(" with ")
        return not rule or (method in methods and rule in rules)

    return [
        replace(cell, methods={name: given for name, given in cell.methods.items() if wanted(name)})
        for cell in grid
    ]


_WORST = (("fedavg", "iid"), ("auto", "conventions-20-10"), ("fedavg", _SKEWED))
PARTS = {"liars": liars, "models": models, "worst": models}


def main() -> int:
    """Run the command line; return 1 if a run failed."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=sorted(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[71])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--lies", nargs="+", choices=sorted(LIES), default=sorted(LIES))
    parser.add_argument("--numbers", type=int, nargs="+", default=[0, 1, 3, 6], help="liars in 30")
    parser.add_argument("--partitions", nargs="+", default=[*_FEDERATIONS, _SKEWED])
    known = [FEDAVG, *_CLUSTERED]
    parser.add_argument("--methods", nargs="+", choices=known, default=known, help="with rules, to run now")
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES), help="to run now")
    parser.add_argument("--suffix", help="of the marks, where a page has several tables of one part")
    parser.add_argument("--no-run", action="store_true", help="write the tables of what is there")
    parser.add_argument("--out", type=Path, default=DOCS / "ATTACKS.md")
    options = parser.parse_args()
    folder, whole = options.folder.resolve(), True
    for part in options.parts:
        grid = [
            cell
            for cell in PARTS[part](folder, options.seeds, options.rounds)
            if cell.lie in options.lies
            and cell.number in options.numbers
            and cell.partition in options.partitions
        ]
        whole = (
            options.no_run or run(_only(grid, options.methods, options.rules), folder, options.workers)
        ) and whole
        suffix = f"-{options.suffix}" if options.suffix else ""
        commits = [each for each in [commit_of(folder)] if each != "unknown"]
        if part == "liars":
            page = page_of_liars(grid)
        else:
            old = shown(f"models{suffix}", options.out).splitlines()
            tables = merged(tables_of_models(grid), read_tables(old))
            earlier = [each for each in read_commits(old) if all(each not in new for new in commits)]
            commits = [*earlier, *commits]
            titles = [_title(*each) for each in _WORST]
            page = write_tables(tables) if part == "models" else worst(tables, titles, _ATTACKERS)
        seeds = ", ".join(map(str, options.seeds))
        on_iid = "" if part == "liars" else f" ({min(options.rounds, _ROUNDS_ON_IID)} on IID)"
        lasted = f"{options.rounds} rounds{on_iid}"
        note = f"Commit {' and '.join(commits)}, digits, 30 clients, {lasted}, seeds {seeds}."
        show(f"{part}{suffix}", "\n".join([note, "", *page]).rstrip(), options.out)
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
