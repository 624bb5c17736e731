from pathlib import Path

import pytest
from PIL import Image

from fedclust.results.plots.paper import line_style, new_paper_figure, save_paper_figure


def test_a_pdf_has_no_date_and_no_type_3_fonts(tmp_path: Path) -> None:
    contents = []
    for name in ("first.pdf", "again.pdf"):
        figure = new_paper_figure("column", 1)
        figure.subplots().set_axis_off()
        figure.text(0.5, 0.5, "α")
        contents.append(save_paper_figure(figure, tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    assert b"CreationDate" not in contents[0]
    assert b"/Type3" not in contents[0]


def test_a_png_has_300_dots_per_inch(tmp_path: Path) -> None:
    path = save_paper_figure(new_paper_figure("column", 1), tmp_path / "made" / "a.png")
    with Image.open(path) as image:
        assert image.size == (1020, 300)  # 3.4 by 1 inch


def test_49_lines_differ() -> None:
    assert len({(style["color"], str(style["linestyle"])) for style in map(line_style, range(49))}) == 49
    assert len({str(line_style(place)["linestyle"]) for place in range(7)}) == 7


def test_another_format_or_width(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in one of \.svg, \.pdf, \.png, got .*a\.tiff"):
        save_paper_figure(new_paper_figure("page", 1), tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="width must be one of column, page, got 'wide'"):
        new_paper_figure("wide", 1)  # type: ignore[arg-type]
