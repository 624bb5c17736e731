"""Which claims of the four papers do runs show? One table, of the runs of benchmarks/paper_table.py.

    python benchmarks/claims.py FOLDER               what is in FOLDER/own and FOLDER/encoder
    python benchmarks/claims.py FOLDER --commands    the commands that make all these runs
    python benchmarks/claims.py FOLDER --run         makes those of the page's rows first, some 100 hours
    … --write                                        into docs/CLAIMS.md, where rows without runs stay
    python benchmarks/claims.py --readme             README's table, of what docs/CLAIMS.md has

benchmarks/claims.yaml has the claims: that a row of a table is ahead of others, in the mean of its columns.
The difference of each seed is one measurement; their mean has a 95 % interval (Student's t). Words are by the
last round. Where the paper has the round with the best mean over the seeds, that one has a column, too.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from common import ROOT, arguments, finished, over_seeds, show, table
from paper_table import Column, Run, best_round, check_settings, columns_of, figures_of, runs_of
from published_rows import tables_of
from scipy import stats

from fedclust.results import SavedRun

tables = cache(tables_of)
CLAIMS = Path(__file__).with_suffix(".yaml")
SEEDS = (0, 1, 2)
READS = ("--synthetic", "100000", "--reads", "5000")
"""How benchmarks/sensg.py makes the reads of the way *reads*."""


@dataclass(frozen=True, eq=False)  # hashed by its identity: `why` is a dictionary
class Claim:
    """That a row of a paper's table is ahead of others.

    Attributes
    ----------
    paper, claim
        The method, and the claim in words.
    experiment
        The experiment, as paper_table.py takes it; empty if it cannot be run here.
    key
        What is compared, by its key in ``summary.json`` or else in the last of ``rounds.jsonl``.
    ahead, behind
        Rows; of several in `behind` the best one counts.
    lower
        Whether less is better.
    reach
        A row of which the figure after the last round is to be reached: what is compared is the share of the
        rounds that this takes, 1 if it never is. Empty if the figures themselves are compared.
    why
        What we think of the result, by the way of its runs.
    ways
        The ways to run it, by name.
    hours
        Of one core, for all runs of the last way.
    missing
        Why it is not in the table: it cannot be run here, or
    below
        it has figures of another kind, in a section of its own further down.
    headline
        The claim in README's words; empty if it is not there.
    """

    paper: str
    claim: str
    experiment: str = ""
    key: str = ""
    ahead: str = ""
    behind: tuple[str, ...] = ()
    lower: bool = False
    reach: str = ""
    why: Mapping[str, str] = field(default_factory=dict)
    ways: tuple[str, ...] = ("own", "encoder")
    hours: float = 0
    missing: str = ""
    below: bool = False
    headline: str = ""

    def lead(self, figures: Mapping[str, float | None]) -> tuple[float, float] | None:
        """Return the figures of the row ahead and of the best one behind; None without either.

        A silhouette of one cluster is undefined, and a paper leaves some cells empty.
        """
        ahead = figures.get(self.ahead)
        behind = [figure for row in self.behind if (figure := figures.get(row)) is not None]
        return (ahead, min(behind) if self.lower else max(behind)) if ahead is not None and behind else None

    def signed(self, difference: float) -> float:
        """Return a difference that is above 0 where the claim holds."""
        return -difference if self.lower else difference


@dataclass(frozen=True)
class Measured:
    """A claim in some runs.

    Attributes
    ----------
    columns
        Titles of the table's columns in which all its rows have run, with every seed.
    ahead, behind
        Their mean figures over these columns, one per seed.
    published
        The same two of the paper; empty if it prints none.
    rounds
        Of each run.
    best
        The two of the round in which each row's mean over the seeds is best, means over seeds and columns;
        empty unless the paper has that round and more than one was scored.
    """

    columns: tuple[str, ...]
    ahead: tuple[float, ...]
    behind: tuple[float, ...]
    published: tuple[float, ...]
    rounds: int
    best: tuple[float, ...] = ()


def read() -> tuple[dict[str, tuple[str, list[str]]], list[Claim]]:
    """Read the ways to run and the claims."""
    given = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    ways = {way: (title, list(overrides)) for way, (title, overrides) in given["ways"].items()}
    lists = [
        (paper, {name: tuple(value) if isinstance(value, list) else value for name, value in each.items()})
        for paper, claims in given["papers"].items()
        for each in claims
    ]
    return ways, [Claim(paper, **each) for paper, each in lists]


def measure(claim: Claim, folder: Path) -> Measured | None:
    """Read what runs show of a claim; None if no column is complete.

    Parameters
    ----------
    claim
        One with an experiment.
    folder
        That of paper_table.py.

    Raises
    ------
    ValueError
        If runs that are compared differ in their number of rounds.
    """
    rows = (claim.ahead, *claim.behind)
    columns = {column.title: column for column in columns_of(tables(claim.experiment))}
    found: dict[int, dict[str, dict[str, SavedRun]]] = {}  # by seed, column and row
    runs = _runs(claim, rows, folder / claim.experiment)
    for run in runs:
        found.setdefault(run.seed, {}).setdefault(run.column.title, {})[run.row] = SavedRun(run.folder)
    whole: dict[int, dict[str, tuple[float, float]]] = {}
    for seed, by_column in found.items():
        for title, each in by_column.items():
            figures = _figures(claim, each)
            if set(figures) == set(rows) and (pair := claim.lead(figures)):
                whole.setdefault(seed, {})[title] = pair
    seeds = sorted(whole)
    used = [title for title in columns if seeds and all(title in whole[seed] for seed in seeds)]
    if not used:
        return None
    pairs = np.array([[whole[seed][title] for title in used] for seed in seeds])
    ahead, behind = pairs.mean(axis=1).T.tolist()
    published = published_of(claim, [columns[title] for title in used])
    compared = [run for seed in seeds for title in used for run in found[seed][title].values()]
    lengths = sorted({int(run.summary["rounds"]) for run in compared})
    if len(lengths) > 1:
        raise ValueError(
            f"runs that are compared must have one number of rounds, got {lengths}: {claim.claim}"
        )
    best = _best(claim, [run for run in runs if run.seed in seeds], used)
    return Measured(tuple(used), tuple(ahead), tuple(behind), published, lengths[0], best)


def _figures(claim: Claim, runs: Mapping[str, SavedRun]) -> dict[str, float | None]:
    """Read what is compared, by row; a row without it is left out."""
    figures: dict[str, float | None] = {}
    for row, run in runs.items():
        if claim.key in run.summary:
            figures[row] = run.summary[claim.key]
        elif len(values := run.series(claim.key)[1]):
            figures[row] = float(values[-1])
    if not claim.reach:
        return figures
    if (target := figures.get(claim.reach)) is None:
        return {}
    shares = {}
    for row in figures:
        numbers, values = runs[row].series(claim.key)
        there = np.flatnonzero(values >= target)
        shares[row] = numbers[there[0]] / numbers[-1] if len(there) else 1.0
    return shares


def _runs(claim: Claim, rows: Sequence[str], folder: Path) -> list[Run]:
    """List the finished runs of some rows, with every seed that has any."""
    given = arguments(None).parse_args([])
    vars(given).update(experiment=claim.experiment, rows=list(rows), columns=None, clients=None, set=[])
    given.seeds = sorted({int(path.name[5:]) for path in folder.glob("*/clients-own/*/seed-*")})
    return [run for run in runs_of(given, "dataset.path=.", folder) if finished(run.folder)]


def _best(claim: Claim, runs: Sequence[Run], used: Sequence[str]) -> tuple[float, ...]:
    """Compute :attr:`Measured.best` over the columns `used`."""
    if claim.reach or not tables(claim.experiment).get("best_round"):
        return ()
    figures: dict[str, float | None] = {}
    for row in (claim.ahead, *claim.behind):
        by_column = [
            best_round([run for run in runs if (run.row, run.column.title) == (row, title)], claim.key)
            for title in used
        ]
        if not all(by_column):
            return ()
        figures[row] = float(np.mean(by_column))
    return claim.lead(figures) or ()


def published_of(claim: Claim, columns: Sequence[Column]) -> tuple[float, ...]:
    """Return the paper's mean figures over some columns: of the row ahead, and of the best one behind.

    It is empty if the paper prints none.
    """
    rows = (claim.ahead, *claim.behind)
    pairs = [
        pair
        for column in columns
        if not claim.reach and (pair := claim.lead({row: _published(claim, row, column) for row in rows}))
    ]
    return tuple(np.mean(pairs, axis=0).tolist()) if pairs else ()


@cache
def _published(claim: Claim, row: str, column: Column) -> float | None:
    own = tables(claim.experiment)
    if column.title:
        given = dict(each.split("=", 1) for each in own["rows"][row])
        method = "/".join(given[group] for group in ("strategy", "aggregator", "selection") if group in given)
        values = own["by_setting"].get(method, {}).get(claim.key)
        figure = values[column.place] if values else own.get("figures", {}).get(method, {}).get(claim.key)
    else:  # the settings are of the strategy
        figure = figures_of(claim.experiment, row, column).get(claim.key)
    return figure[0] if isinstance(figure, list) else figure


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean by Student's t; without end for one value."""
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return -np.inf, np.inf
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def word(differences: Sequence[float], published: float) -> str:
    """Say in a word whether differences, positive where a claim holds, show it.

    Returns
    -------
    *shown* if the interval is above 0 and the mean at least half of the published difference; *partly* if the
    mean is less than half; *the opposite* if the interval is below 0; otherwise *not shown*.
    """
    low, high = interval(differences)
    if low > 0:
        return "shown" if np.mean(differences) >= published / 2 else "partly"
    return "the opposite" if high < 0 else "not shown"


def line(claim: Claim, title: str, found: Measured | None) -> list[str]:
    """Write a claim's row for runs of one network."""
    every = columns_of(tables(claim.experiment))
    if found is None:
        cost = f", about {claim.hours:g} h" if claim.hours else ""
        return [claim.claim, _pair(published_of(claim, every)) or "–", *["–"] * 6, f"not measured{cost}"]
    differences = [
        claim.signed(ahead - behind) for ahead, behind in zip(found.ahead, found.behind, strict=True)
    ]
    low, high = interval(differences)
    ends = f" ({low:+.3f} to {high:+.3f})" if np.isfinite(low) else ""
    columns, without = "", [each.title for each in every if each.title not in found.columns]
    if without:
        few = ", ".join(found.columns)
        named = few if len(found.columns) <= len(without) else f"all but {', '.join(without)}"
        columns = f"; {len(found.columns)} of {len(every)} columns ({named})"
    return [
        f"{claim.claim}{columns}",
        _pair(found.published) or "–",
        title,
        f"{over_seeds(found.ahead)}, {over_seeds(found.behind)}",
        _pair(found.best) or "–",
        f"{np.mean(differences):+.3f}{ends}",
        str(len(differences)),
        f"{found.rounds:,}",
        word(differences, claim.signed(found.published[0] - found.published[1]) if found.published else 0),
    ]


def _row(claim: Claim, title: str, folder: Path) -> list[str] | None:
    found = measure(claim, folder)
    return None if found is None else line(claim, title, found)


def _pair(figures: Sequence[float]) -> str:
    return ", ".join(f"{figure:.3f}" for figure in figures)


def commands(folder: Path, ways: Mapping[str, tuple[str, list[str]]], claims: Sequence[Claim]) -> list[str]:
    """List the commands that make all runs, one for each experiment and way, and before them their data."""
    rows: dict[tuple[str, str], list[str]] = {}
    for way, claim in ((way, claim) for way in ways for claim in claims if way in claim.ways):
        there = rows.setdefault((way, claim.experiment), [])
        there += [row for row in (claim.ahead, *claim.behind) if row not in there]
    made = {
        ("reads", "fedgmcc_sensg_a"): ["benchmarks/sensg.py", str(folder / "reads-a"), "S", *READS],
        ("reads", "fedgmcc_sensg_r"): ["benchmarks/sensg.py", str(folder / "reads-r"), "R", *READS],
        ("images", "fedgmcc_emnist62"): ["benchmarks/chains.py", str(folder / "images-20000"), "--images"],
    }
    return [shlex.join(["python", *command]) for runs, command in made.items() if runs in rows] + [
        shlex.join([
            "python", "benchmarks/paper_table.py", str(folder / way), experiment, "--rows", *asked,
            "--seeds", *map(str, SEEDS),
            *(["--data", made[way, experiment][1]] if (way, experiment) in made else []),
            *(["--set", *overrides] if (overrides := ways[way][1]) else []),
        ])
        for (way, experiment), asked in rows.items()
        if experiment
    ]  # fmt: skip


def run(folder: Path, ways: Mapping[str, tuple[str, list[str]]], claims: Sequence[Claim]) -> None:
    """Make the runs of the page's rows that a folder lacks; name the commands that fail."""
    there = standing((ROOT / "docs/CLAIMS.md").read_text(encoding="utf-8"))
    of_rows = [
        replace(claim, ways=tuple(way for way in claim.ways if (claim.claim, ways[way][0]) in there))
        for claim in claims
    ]
    for command in commands(folder, ways, of_rows):
        _, script, *rest = shlex.split(command)
        if not script.endswith("paper_table.py") and Path(rest[0]).is_dir():
            continue  # the data are there
        if subprocess.run([sys.executable, script, *rest], cwd=ROOT).returncode:
            print(f"failed: {command}", file=sys.stderr)


HEAD = [
    "claim", "published", "network", "ours", "ours, best round", "difference (95 % interval)", "seeds",
    "rounds", "outcome",
]  # fmt: skip
_BEST = HEAD.index("ours, best round")
WORDS = ("the opposite", "not shown", "partly", "shown")


def standing(page: str) -> dict[tuple[str, str], list[str]]:
    """Read the rows of a page's tables by claim and network, each with the cells of :data:`HEAD`."""
    rows = {}
    for text in page.splitlines():
        cells = text.removeprefix("| ").removesuffix(" |").split(" | ")
        if len(cells) == len(HEAD) - 1:
            cells.insert(_BEST, "–")
        if len(cells) == len(HEAD):
            rows[cells[0].partition("; ")[0], cells[HEAD.index("network")]] = cells
    return rows


def page(folder: Path, before: str = "") -> str:
    """Write the tables, one for each paper.

    Parameters
    ----------
    folder
        Of the runs.
    before
        The page as it was: its rows stay where `folder` has no runs.
    """
    ways, claims = read()
    stand = standing(before)
    parts = []
    for paper in dict.fromkeys(claim.paper for claim in claims):
        rows, notes = [], []
        for claim in (each for each in claims if each.paper == paper):
            if claim.missing:
                rows.append([claim.claim, *["–"] * 7, "further down" if claim.below else "not measured"])
                notes.append(f"- {claim.claim}: {claim.missing}.")
                continue
            found = {
                way: row
                for way in claim.ways
                if (row := _row(claim, ways[way][0], folder / way) or stand.get((claim.claim, ways[way][0])))
            }
            rows += list(found.values()) or [line(claim, "", None)]
            notes += [
                f"- {claim.claim}, {ways[way][0]}: {claim.why[way]}" for way in found if way in claim.why
            ]
        empty = all(row[_BEST] == "–" for row in rows)
        head, *rows = ([*row[:_BEST], *row[_BEST + empty :]] for row in (HEAD, *rows))
        parts.append("\n\n".join([f"## {paper}", table(head, rows), *(["\n".join(notes)] if notes else [])]))
    return "\n\n".join(parts)


def headlines(claims_page: str) -> str:
    """Write README's table from the page of claims.

    Of several networks, that of most seeds counts, then of most rounds, then the one that shows the least.
    """
    stand = standing(claims_page)
    rows = []
    for claim in (each for each in read()[1] if each.headline):
        ways = [dict(zip(HEAD, row, strict=True)) for (name, _), row in stand.items() if name == claim.claim]
        # Seeds are a digit; rounds are as "5,000" and "20,000"; without runs there is one row, of dashes.
        shows = {text: -place for place, text in enumerate(WORDS)}
        cells = max(
            ways,
            key=lambda row: (row["seeds"], len(row["rounds"]), row["rounds"], shows.get(row["outcome"], 0)),
        )
        columns = "".join(cells["claim"].partition("; ")[1:])
        name = f"{claim.paper}: {claim.headline}{columns}"
        rows.append([name, cells["published"], cells["network"], cells["ours"], cells["outcome"]])
    return table(["claim", "published", "our network", "ours", "outcome"], rows)


def main() -> int:
    """Run the command line."""
    if sys.argv[1:] == ["--readme"]:
        readme = ROOT / "README.md"
        text = headlines((ROOT / "docs/CLAIMS.md").read_text(encoding="utf-8"))
        there = re.compile(rf"^{re.escape(text.splitlines()[0])}$(\n\|.*)+", re.MULTILINE)
        changed = there.sub(lambda _: text, readme.read_text(encoding="utf-8"), count=1)
        readme.write_text(changed, encoding="utf-8")
        return 0
    parser = arguments(__doc__, page="CLAIMS", folder=True)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    ways, claims = read()
    if given.run:
        run(given.folder.resolve(), ways, claims)
    if given.commands:
        print("\n".join(commands(given.folder, ways, claims)))
        return 0
    folders = [path.parent for way in ways for path in sorted((given.folder / way).glob("*/provenance.json"))]
    if not folders:
        parser.error(f"FOLDER must have runs of {' or '.join(ways)}, got {given.folder}")
    try:
        for way, (_, overrides) in ways.items():
            for place in (given.folder / way).glob("*/"):
                check_settings(place, overrides)
    except ValueError as error:
        parser.error(str(error))
    before = given.write.read_text(encoding="utf-8") if given.write else ""
    show("claims", page(given.folder, before), given.write, *folders, kept=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
