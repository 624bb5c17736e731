"""Which figures of the pages are of the code beside them; and measure those again that are not.

    python benchmarks/figures.py                   list every figure: fresh, or what changed since its commit
    python benchmarks/figures.py PROOF NATURAL     measure the figures of these pages again, and write them
    python benchmarks/figures.py stale             measure all that are of former code

How many hours each takes is in figures.toml. A cell ``0.950 ± 0.004`` that leaves its ± is named, and the
exit code is then 1.
"""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common import ROOT, arguments, git
from PIL import Image

TABLE = Path(__file__).with_name("figures.toml")
FORMER = "Of former code"
# Not the commit of a row, as in "engine=local, commit …".
_COMMIT = re.compile(r"(?<!, )\b[Cc]ommit:? `?([0-9a-f]{7,40}(?: and [0-9a-f]{7,40})*)(, changed)?")
_NUMBER = re.compile(r"(-?\d+\.\d+) ± (\d+\.\d+)")


@dataclass(frozen=True)
class Figure:
    """A part of a page, or a picture; how it is made; what it depends on, as git's path specifications."""

    page: Path
    part: str | None  # between the page's markers; a picture's path; None: the whole page
    command: str
    hours: float
    needs: tuple[str, ...]
    beyond_results: bool = False  # it shows times, or what a user reads of a fault
    same: tuple[str, ...] = ()  # commits that change nothing in it, though they do in others
    moved: tuple[str, ...] = ()  # commits that change it, though they do nothing else

    @property
    def name(self) -> str:
        """Name the figure."""
        return f"{self.page.relative_to(ROOT)}{f': {self.part}' if self.part else ''}"

    @property
    def is_picture(self) -> bool:
        """Say whether the figure is a picture."""
        return bool(self.part) and str(self.part).endswith(".png")

    def text(self) -> str:
        """Read the part; of a picture, the commit that it is of."""
        if self.is_picture:
            with Image.open(ROOT / str(self.part)) as image:
                return f"Commit {image.info.get('commit', 'unknown')}"
        text = self.page.read_text(encoding="utf-8")
        if self.part is None:
            return text
        begin, end = f"<!-- {self.part} -->\n", f"<!-- /{self.part} -->"
        found = re.search(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)
        if not found:
            raise ValueError(f"{self.page} must have the markers {begin.strip()} and {end}")
        return found[1]

    def changed(self) -> str | None:
        """Say why the figure is not of the code beside it: the last change that matters, or None."""
        found = _COMMIT.search(self.text())
        if not found:
            return "no commit is named"
        if found[2]:
            return f"measured on {found[1]} with files that were changed"
        commits = found[1].split(" and ")
        facts = self.needs, self.beyond_results, self.same, self.moved
        return next(filter(None, (_since(each, *facts) for each in commits)), None)


def figures() -> list[Figure]:
    """Read ``figures.toml``."""
    return [figure for each in _table()["figures"] for figure in _figures_of(each, _table()["needs"])]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def _figures_of(each: Mapping[str, Any], sets: Mapping[str, list[str]]) -> Iterator[Figure]:
    needs = tuple(path for need in each["needs"] for path in sets.get(need, [need]))
    script = f"benchmarks/{each['command'].split()[0]}"
    for part in each.get("parts", [None]):
        command = each["command"].replace("PART", part or "")
        further = each.get("beyond_results", False), *(tuple(each.get(key, ())) for key in ("same", "moved"))
        yield Figure(ROOT / each["page"], part, command, each["hours"], (*needs, script), *further)


# -- What changed -------------------------------------------------------------------------------------------


@cache
def _since(
    commit: str, needs: tuple[str, ...], beyond_results: bool, alone: tuple[str, ...], moved: tuple[str, ...]
) -> str | None:
    """Find the last commit that changed what a file means, without those shown to move no figure."""
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    if subprocess.run(asked, cwd=ROOT, capture_output=True).returncode:
        return f"{commit} is not an ancestor"
    same = (*_table()["same"], *alone, *(() if beyond_results else _same_results()))
    later = git("log", "--format=%H %s", f"{commit}..HEAD", "--", *needs).splitlines()
    counts = (each for each in later if each.startswith(moved) or not each.startswith(same))
    found = (each for each in counts if _means_more(each[:40], needs))
    return next((f"{each[:8]} {each[41:]}" for each in found), None)


@cache
def _same_results() -> tuple[str, ...]:
    """List the commits that move no result."""
    return tuple(
        commit
        for each in _table()["same_results"]
        for commit in git("rev-list", each["commits"]).splitlines()
        if not commit.startswith(tuple(each["except"]))
    )


@cache
def _means_more(commit: str, needs: tuple[str, ...]) -> bool:
    """Say whether a commit changed more than comments, docstrings and layout of the files."""
    changed = git("diff-tree", "-r", "--no-commit-id", "--name-only", commit, "--", *needs)
    return any(_meaning(f"{commit}^", path) != _meaning(commit, path) for path in changed.splitlines())


def _meaning(commit: str, path: str) -> str:
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        return ""
    if not path.endswith(".py"):
        return re.sub(r"^\s*#.*|\s+# .*", "", shown.stdout, flags=re.M)
    tree = ast.parse(shown.stdout)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a docstring, or any text that stands for itself
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


# -- Measuring again ----------------------------------------------------------------------------------------


def left_their_spread(before: str, after: str) -> list[str]:
    """List cells ``a ± b`` of tables, by row and head, whose new mean is farther from a than b."""
    was, now = _cells(before), _cells(after)
    return [
        f"{row}, {head}: {was[row, head]}, now {cell}"
        for (row, head), cell in now.items()
        if (old := _NUMBER.search(was.get((row, head), ""))) and (new := _NUMBER.search(cell))
        if abs(float(new[1]) - float(old[1])) > float(old[2])
    ]


def _cells(text: str) -> dict[tuple[str, str], str]:
    found, head = dict[tuple[str, str], str](), list[str]()
    title = ""
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            head = head or cells
            found |= {
                (f"{title} {cells[0]}".strip(), name): cell for name, cell in zip(head, cells, strict=False)
            }
        elif line.strip():
            head, title = [], line.strip("#* ")[:60]
    return found


def main() -> int:
    """Run the command line; return 1 if a cell left its spread, or a command failed."""
    parser = arguments(__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages without .md, or stale")
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "figures", help="where runs are kept")
    asked, wrong = parser.parse_args(), list[str]()
    commands: dict[str, list[Figure]] = {}
    for figure in figures():
        changed = figure.changed()
        if not asked.pages:
            print(f"{figure.name}: {changed or 'fresh'}")
        if figure.page.stem in asked.pages or ("stale" in asked.pages and changed):
            commands.setdefault(figure.command, []).append(figure)
    for command, some in commands.items():
        folder = asked.runs / git("rev-parse", "--short", "HEAD") / some[0].page.stem
        before = [figure.text() for figure in some]
        words = shlex.split(command.replace("FOLDER", str(folder)))
        print(f"about {some[0].hours:g} hours: {shlex.join(words)}", flush=True)
        if subprocess.run([sys.executable, *words], cwd=ROOT / "benchmarks").returncode:
            wrong.append(f"{command} failed")
        for figure, text in zip(some, before, strict=True):
            wrong += [f"{figure.name}: {each}" for each in left_their_spread(text, figure.text())]
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
