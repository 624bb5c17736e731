"""Every figure on a page is listed with its command, and is of the code beside it or says that it is not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from figures import FORMER, Figure, figures, left_their_spread  # noqa: E402

FIGURES = figures()


def _history() -> bool:
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    return (
        subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() == "false"
    )


@pytest.mark.skipif(not _history(), reason="figures' commits are looked up in the repository's whole history")
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_of_the_code_beside_it_or_says_that_it_is_not(figure: Figure) -> None:
    changed = figure.changed()
    whole = figure.page.read_text("utf-8")
    outside_parts = re.sub(r"<!-- ([^/].*?) -->\n.*?<!-- /\1 -->", "", whole, flags=re.DOTALL)
    page = outside_parts if figure.is_picture else figure.text()
    told = f"{figure.name}: measure it again (benchmarks/figures.py), or note '{FORMER}': {changed}"
    assert (FORMER in page) == bool(changed), told


def test_every_part_and_picture_of_a_page_is_listed() -> None:
    listed = {figure.name for figure in FIGURES}
    whole = {figure.page for figure in FIGURES if figure.part is None}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name, text = page.relative_to(ROOT), page.read_text("utf-8")
        for part in re.findall(r"^<!-- /(.*) -->$", text, flags=re.MULTILINE):
            assert f"{name}: {part}" in listed
    drawn = {figure.part for figure in FIGURES if figure.is_picture}
    on_whole_pages = {
        str((page.parent / path).resolve().relative_to(ROOT))
        for page in whole
        for path in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", page.read_text("utf-8"))
    }
    pictures = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "images").glob("*.png")}
    assert pictures == drawn | on_whole_pages


def test_what_figures_depend_on_is_there() -> None:
    for figure in FIGURES:
        for path in figure.needs:
            assert (ROOT / path.removeprefix(":!")).exists(), f"{figure.name} names {path}"


def test_a_cell_that_leaves_its_spread_is_named() -> None:
    head = "| | one | two |\n| --- | ---: | ---: |\n"
    before = f"**Digits.**\n{head}| a | 0.950 ± 0.004 | 0.90 |\n| b | 0.5 ± 0.1 | 0.7 ± 0.1 |"
    after = f"**Digits.**\n{head}| a | 0.945 ± 0.009 | 0.80 |\n| b | 0.6 ± 0.1 | 0.75 ± 0.0 |"
    # 0.950 − 0.945 = 0.005 > 0.004; 0.6 − 0.5 is not beyond 0.1, nor 0.05; cells without ± are not compared.
    assert left_their_spread(before, after) == ["Digits. a, one: 0.950 ± 0.004, now 0.945 ± 0.009"]
