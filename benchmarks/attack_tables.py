"""Tables of attacks by models: what new runs give, merged with what the page has, and the worst of each."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common import table

__all__ = ["MISSING", "Table", "merged", "read_commits", "read_tables", "worst", "write_tables"]

MISSING = "–"
_ENDED = "run ended"
_NOBODY = 0


@dataclass
class Table:
    """A method on a federation: accuracy by attack and rule, as texts.

    Attributes
    ----------
    rules
        Names of the rules, which are the columns.
    cells
        By attack and number of attackers, such as ``"3/30"``, a text per rule.
    """

    rules: tuple[str, ...]
    cells: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def read_tables(lines: Sequence[str]) -> dict[str, Table]:
    """Read the tables that :func:`write_tables` wrote, by title."""
    found: dict[str, Table] = {}
    title = ""
    for line in lines:
        parts = [part.strip() for part in line.strip().strip("|").split(" | ")]
        if line.startswith("### "):
            title = line.removeprefix("### ")
        elif line.startswith("| attack "):
            found[title] = Table(tuple(parts[2:]))
        elif line.startswith("| ") and not line.startswith("| ---"):
            found[title].cells[parts[0], parts[1]] = parts[2:]
    return found


def write_tables(tables: Mapping[str, Table]) -> Iterator[str]:
    """Write a title and a table for each."""
    for title, each in tables.items():
        rows = [[*row, *cells] for row, cells in each.cells.items()]
        yield from (f"### {title}", "", table(["attack", "attackers", *each.rules], rows), "")


def merged(new: Mapping[str, Table], old: Mapping[str, Table]) -> dict[str, Table]:
    """Take what new runs give; tables, rows and cells that they do not have stay as they were.

    Raises
    ------
    ValueError
        If a table has other rules than before.
    """
    made = {title: Table(each.rules, {**each.cells}) for title, each in old.items()}
    for title, each in new.items():
        before = made.setdefault(title, Table(each.rules))
        if before.rules != each.rules:
            raise ValueError(f"rules of {title} must be {before.rules}, got {each.rules}")
        for row, cells in each.cells.items():
            kept = before.cells.get(row, cells)
            pairs = zip(cells, kept, strict=True)
            before.cells[row] = [was if now == MISSING else now for now, was in pairs]
    return made


def read_commits(lines: Sequence[str]) -> list[str]:
    """Read the commits that an earlier note names."""
    notes = [found[1] for line in lines if (found := re.match(r"Commit (.*?), digits", line))]
    return re.findall(r"[0-9a-f]{7}", notes[0]) if notes else []


def worst(tables: Mapping[str, Table], titles: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    """Write each rule's accuracy when nobody attacks, and under the worst attack of each number."""
    for title in titles:
        if title not in tables:
            continue
        each, rows = tables[title], []
        for column, rule in enumerate(each.rules):
            found: dict[int, list[tuple[float, str]]] = {}
            for (attack, attackers), cells in each.cells.items():
                if cells[column] != MISSING:
                    of = found.setdefault(int(attackers.partition("/")[0]), [])
                    of.append((_accuracy(cells[column]), attack))
            row = [rule, f"{found[_NOBODY][0][0]:.3f}" if _NOBODY in found else MISSING]
            for number in numbers:
                value, attack = min(reversed(found.get(number, [(2.0, "")])), key=lambda pair: pair[0])
                shown = _ENDED if value < 0 else f"{value:.3f}"
                row.append(f"{shown}, {attack}" if attack else MISSING)
            if any(cell != MISSING for cell in row[1:]):
                rows.append(row)
        yield from (f"{title}:", "")
        header = ["rule", "nobody attacks", *(f"worst with {number} in 30" for number in numbers)]
        yield from (table(header, rows), "")


def _accuracy(cell: str) -> float:
    return -1.0 if cell == _ENDED else float(cell.split()[0])
