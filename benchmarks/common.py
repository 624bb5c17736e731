"""What the benchmarks share: arguments, notes of commit and machine, processes, turns, and tables."""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DATA = ROOT.parent / "shared" / "data"
T = TypeVar("T")


def arguments(description: str | None, *, page: str = "", folder: bool = False) -> argparse.ArgumentParser:
    """Begin a command line: of a script that writes into a page of docs/, that keeps its runs in a folder."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if folder:
        parser.add_argument("folder", type=Path)
    if page:
        path = DOCS / f"{page}.md"
        parser.add_argument("--write", action="store_const", const=path, help=f"into docs/{page}.md")
    return parser


def grid_arguments(description: str | None, seeds: Sequence[int], page: str) -> argparse.ArgumentParser:
    """Begin the command line of a script that makes the runs of a grid and writes a page of docs/."""
    parser = arguments(description, folder=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-run", action="store_true", help="write the tables of what is there")
    parser.add_argument("--out", type=Path, default=DOCS / f"{page}.md")
    return parser


# -- Commit and machine -------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Run a git command in this repository."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def checked_out() -> str:
    """Name the commit that is checked out; changed, if a file that can move a figure differs from it."""
    differs = git("status", "--porcelain", "-uno", "--", ".", ":!*.md", ":!*.png", ":!tests")
    return git("rev-parse", "HEAD")[:8] + (", changed" if differs else "")


def note_commit(folder: Path, **more: Any) -> None:
    """Note in ``provenance.json`` of which commits the runs of a folder are: of every one that made some."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [each for each in commit_of(folder).split(" and ") if each != "unknown"]
    note = {"commits": list(dict.fromkeys([*there, checked_out()]))}
    (folder / "provenance.json").write_text(json.dumps(note | more, indent=2) + "\n", encoding="utf-8")


def commit_of(*folders: Path) -> str:
    """Read which commits the runs of folders are of."""
    notes = [path for folder in folders if (path := folder / "provenance.json").is_file()]
    found = [commit for path in notes for commit in json.loads(path.read_text(encoding="utf-8"))["commits"]]
    return " and ".join(dict.fromkeys(found)) or "unknown"


def finished(folder: Path) -> bool:
    """Say whether a run has finished."""
    path = folder / "summary.json"
    return path.is_file() and "compare" in json.loads(path.read_text(encoding="utf-8"))


def machine() -> str:
    """Describe the machine of the measurement."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, load {load} at the end, {date.today()}"


# -- Processes and turns -----------------------------------------------------------------------------------


def side_by_side(
    work: Callable[..., Any], items: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[str, Any, Any]]:
    """Do work in processes of one thread each; yield its place, such as 3/7, the item, and its result."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # of the workers, which start anew
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(work, *item): item for item in items}
        for number, done in enumerate(as_completed(waiting), start=1):
            yield f"{number}/{len(items)}", waiting[done], done.result()


def answer_of(script: str, *given: object, **variables: str) -> Any:
    """Run ``script --one ...`` in a process of its own; read the JSON of its last line."""
    command = [sys.executable, script, "--one", *map(str, given)]
    done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_turns(ways: Mapping[str, Callable[[int], T]], turns: int) -> dict[str, list[T]]:
    """Call each way in every turn, with the turn's number; what the first, a warm-up, gave is dropped."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for turn in range(1, turns + 2):
        for name, way in ways.items():
            result = way(turn)
            if turn > 1:
                found[name].append(result)
    return found


def free_ports(number: int) -> list[int]:
    """Find ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# -- Tables and pages ---------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def records(rows: Sequence[Mapping[str, str]]) -> str:
    """Write a table of rows whose keys are its head."""
    return table([*rows[0]], [[*row.values()] for row in rows]) if rows else ""


def spread(values: Sequence[float], digits: int = 0) -> list[str]:
    """Write median, minimum and maximum."""
    return [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]


def rates(head: str, found: Mapping[str, Sequence[float]], base: str, digits: int = 0) -> str:
    """Write a table of rates, larger ones with fewer decimals, and how often each is that of the base."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    rows = [
        [
            name,
            *spread(values, digits or int(middle[name] < 100)),
            f"{middle[name] / middle[base]:.2f}" if base in middle else "",
        ]
        for name, values in found.items()
    ]
    return table([head, "median", "minimum", "maximum", f"× {base}"], rows)


def over_seeds(values: Sequence[float], digits: int = 3) -> str:
    """Write a mean with its sample standard deviation over the seeds, as ``0.950 ± 0.004``; – for none."""
    found = np.array([value for value in values if value is not None], dtype=float)
    if not len(found):
        return "–"
    mean = f"{found.mean():.{digits}f}"
    return mean if len(found) == 1 else f"{mean} ± {found.std(ddof=1):.{digits}f}"


def show(name: str, text: str, page: Path | None, *folders: Path, kept: bool = False) -> None:
    """Print a text and the commit of the folders' runs, else the one checked out.

    If a page is given, put both there between ``<!-- name -->`` and ``<!-- /name -->``; with `kept`, parts of
    the text stood there before, and their commits are named first.
    """
    commits = commit_of(*folders) if folders else checked_out()
    marked = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    there = page.read_text(encoding="utf-8") if page else ""
    if kept and (part := marked.search(there)) and (earlier := re.search(r"\nCommit (.*)\.\n", part[0])):
        commits = " and ".join(dict.fromkeys(f"{earlier[1]} and {commits}".split(" and ")))
    text += f"\n\nCommit {commits}."
    print(text, flush=True)
    if page:
        changed, number = marked.subn(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", there)
        if not number:
            raise ValueError(f"{page} must have the markers <!-- {name} --> and <!-- /{name} -->")
        page.write_text(changed, encoding="utf-8")


def show_parts(parts: Mapping[str, Callable[[int], str]], description: str | None, prefix: str = "") -> None:
    """Run the command line of a script whose tables, by name, take a number of turns."""
    parser = arguments(description, page="PERFORMANCE")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(parts)}; all by default")
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()
    if unknown := set(asked.parts) - parts.keys():
        parser.error(f"parts must be among {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    for part in asked.parts or parts:
        text = parts[part](asked.turns)
        show(prefix + part, f"{machine()}, {asked.turns} turns.\n\n{text}", asked.write)
