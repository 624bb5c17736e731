"""Write tables to the terminal and into a page of docs/, between markers with their names."""

import argparse
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

__all__ = ["machine", "show", "show_parts", "spread", "table"]

DOCS = Path(__file__).resolve().parent.parent / "docs"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown with aligned columns; numbers to the right."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    written = [
        "| "
        + " | ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    ]
    rule = (
        "|"
        + "|".join("-" * (width + 1) + ("-" if column == 0 else ":") for column, width in enumerate(widths))
        + "|"
    )
    return "\n".join([written[0], rule, *written[1:]])


def spread(values: Sequence[float], digits: int = 0) -> list[str]:
    """Write median, minimum and maximum."""
    return [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]


def machine() -> str:
    """Describe the machine of the measurement."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, load {load} at the end, {date.today()}"


def show(name: str, text: str, write: bool, page: str = "PERFORMANCE") -> None:
    """Print a text, and put it between the markers ``<!-- name -->`` and ``<!-- /name -->`` of a page."""
    print(text, flush=True)
    if not write:
        return
    path = DOCS / f"{page}.md"
    document = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(document):
        raise ValueError(f"{path} must have the markers <!-- {name} --> and <!-- /{name} -->")
    changed = pattern.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", document)
    path.write_text(changed, encoding="utf-8")


def show_parts(parts: Mapping[str, Callable[[int], str]], description: str | None, prefix: str = "") -> None:
    """Run the command line of a script whose tables, by name, take a number of turns."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(parts)}; all by default")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="into docs/PERFORMANCE.md")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - parts.keys():
        parser.error(f"parts must be among {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    for part in asked.parts or parts:
        text = parts[part](asked.turns)
        show(prefix + part, f"{machine()}, {asked.turns} turns.\n\n{text}", asked.write)
