from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedclust.results.charts import chart, chart as module

from .data import layers, lines, marks, names, rows


def test_lines_hold_their_names_as_values_and_unknown_ones_are_left_out() -> None:
    both = [module.Line("a.b[0]", [1, 2], [0.5, np.nan]), module.Line("c", [1], [1 / 3])]
    drawn = module.curves(both, "round", marks=[(2, "split")])
    assert lines(drawn) == {"a.b[0]": [0.5, None], "c": [0.333333]}
    assert marks(drawn) == [(2, "split")]
    assert [row["line"] for row in rows(drawn, "point")] == ["a.b[0]", "c"]  # fewer than three values


def test_a_logarithmic_scale_has_at_most_eight_powers_of_ten() -> None:
    drawn = module.curves([module.Line("mse", [1, 2, 3], [0.5, 0.0, 1e-30])], "round", log=True)
    line = next(each for each in layers(drawn) if each["mark"]["type"] == "line")
    low, high = line["encoding"]["y"]["scale"]["domain"]
    assert (low, high) == (pytest.approx(0.5e-8 / 1.2), pytest.approx(0.6))


def test_many_values_have_their_running_mean_and_bands_their_ends() -> None:
    drawn = module.curves([module.Line("long", range(401), np.zeros(401))], "round")
    assert len([each for each in layers(drawn) if each["mark"]["type"] == "line"]) == 2
    drawn = module.curves([module.Line("a", [1], [2], [1], [3]), module.Line("b", [1], [2])], "round")
    assert [(row["low"], row["high"]) for row in rows(drawn, "area")] == [([1], [3])]


def test_49_lines_differ() -> None:
    drawn = module.curves([module.Line(str(place), [1], [place]) for place in range(49)], "round")
    dashes = layers(drawn)[0]["encoding"]["strokeDash"]["scale"]["range"]
    looks = {(place % len(chart.COLOURS), tuple(dash)) for place, dash in enumerate(dashes)}
    assert len(looks) == 49
    assert len({tuple(dash) for dash in dashes[:7]}) == 7


def test_cells_know_rows_columns_and_what_is_missing() -> None:
    drawn = module.cells(
        [[0.12344, np.nan], [np.inf, 2.0]], module.Side("ab", [0, 0]), module.Side("cd"), title="loss"
    )
    assert rows(drawn, "rect") == [0.1234, "", "∞", 2.0]
    assert names(drawn) == (["a", "b"], ["c", "d"])
    assert [each["encoding"]["color"].get("value") for each in layers(drawn)] == [None, "black"]
    assert layers(drawn)[0]["encoding"]["color"]["scale"]["domain"] == [0.12344, 2.0]


def test_edges_stand_between_bands_and_names_in_their_middle() -> None:
    drawn = module.cells(
        np.eye(4), module.Side("abcd", [5, 5, 5, 7]), module.Side("abcd", "xyzw"), strip=[1, 1, 8, 8]
    )
    assert rows(drawn, "rule") == [{"r": 3}]  # single columns need no edges
    axis = layers(drawn)[0]["encoding"]["y"]["axis"]
    assert axis["values"] == [1.5, 3.5]
    assert axis["labelExpr"].startswith('["5", "7"]')
    assert [rows(drawn, "rect", place) for place in (1, 2)] == [[{"r": 0, "r2": 2}], [{"r": 2, "r2": 4}]]
    assert chart.COLOURS[1] in [each["mark"].get("color") for each in layers(drawn)]


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_a_table_with_nothing_to_tell_apart(value: float) -> None:
    (layer,) = layers(module.cells(np.full((3, 3), value), module.Side("abc"), module.Side("abc")))
    low, high = layer["encoding"]["color"]["scale"]["domain"]
    assert low < high


def test_blocks_are_averaged_over_what_is_known() -> None:
    table = np.array([[1.0, np.nan, 5.0], [3.0, np.nan, np.inf], [7.0, np.inf, 9.0]])
    found = module.cells_from(table, [0, 2], [0, 1, 2])
    np.testing.assert_array_equal(found, [[2.0, np.nan, 5.0], [7.0, np.inf, 9.0]])


def test_points_have_one_scale_for_both_axes() -> None:
    drawn = module.points(
        [{"name": "a", "group": "g", "x": 0.0, "y": 0.0}, {"name": "b", "group": "h", "x": 4.0, "y": 1.0}]
    )
    domains = [layers(drawn)[0]["encoding"][axis]["scale"]["domain"] for axis in "xy"]
    assert domains == [pytest.approx([-0.2, 4.2]), pytest.approx([-1.7, 2.7])]


def test_intervals_and_dots() -> None:
    drawn = module.intervals([("cluster 0", 0.2, 0.1, 0.3, True)], "gain")
    assert rows(drawn, "rule", 1) == [
        {"name": "cluster 0", "x": 0.2, "low": 0.1, "high": 0.3, "shown": "shown"}
    ]
    assert (
        rows(module.strip([{"row": "fmcl", "name": "fmcl, seed 1", "auc": 0.5}], ["auc"]), "point")[0]["name"]
        == "fmcl, seed 1"
    )


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_a_file_is_the_same_on_every_run_and_has_no_date(tmp_path: Path, ending: str) -> None:
    drawn = module.curves([module.Line("α", [1, 2], [1, 2])], "round")
    first, again = (module.save(drawn, tmp_path / name / f"a.{ending}").read_bytes() for name in "ab")
    assert ending == "pdf" or first == again  # the order of a PDF's parts is not fixed
    assert b"Date" not in first
    assert b"/Type3" not in first  # publishers refuse such fonts


def test_a_paper_has_its_width(tmp_path: Path) -> None:
    drawn = module.curves([module.Line("a", [1, 2], [1, 2])], "round")
    with Image.open(module.save(drawn, tmp_path / "a.png", inches=3.4)) as image:
        assert image.width == pytest.approx(1020, abs=1)  # 300 dots to the inch
    assert 'width="244.80pt"' in module.save(drawn, tmp_path / "a.svg", inches=3.4).read_text()
    assert b"[0 0 244.8 " in module.save(drawn, tmp_path / "a.pdf", inches=3.4).read_bytes()
    with pytest.raises(ValueError, match=r"path must end in one of \.svg, \.pdf, \.png, got .*a\.tiff"):
        module.save(drawn, tmp_path / "a.tiff")


def test_the_bundle_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(chart.vl_convert, "javascript_bundle", lambda text: made.append(text) or "script")
    for _ in range(2):
        chart.bundle.cache_clear()
        assert chart.bundle() == "script"
    assert len(made) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")  # cannot be written: made again, and no error
    chart.bundle.cache_clear()
    assert chart.bundle() == "script"
    chart.bundle.cache_clear()
