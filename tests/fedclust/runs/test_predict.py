"""``fedclust predict``: a table of predictions, with the models of an export or of a run."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedclust.data.input_encoders import TableEncoder
from fedclust.data.targets import CLASSES
from fedclust.runs import predict
from fedclust.runs.predict import _inert, main
from fedclust.serving import served


class _Served:
    """Predicts the class =ill with 0.75 for every row."""

    class_names = ("=ill", "well")
    encoder: object = None
    target = CLASSES

    def __init__(self, names: list[str] | None = None, note: str | None = None) -> None:
        self.names, self.note, self.asked = names, note, {}

    def read(self, rows: Path, csv_options: dict) -> tuple[list[int], list[str] | None]:
        self.asked["rows"], self.csv_options = rows, csv_options
        return [1, 2], self.names

    def predict(self, rows: list[int], **which: object) -> pd.DataFrame:
        self.asked |= which
        return pd.DataFrame([[0.75, 0.25], [0.125, 0.875]], columns=list(self.class_names))

    def site(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(note=self.note, label=name)


def test_a_table_has_a_line_per_row_and_no_formula(monkeypatch, capsys, tmp_path: Path) -> None:
    here = _Served()
    monkeypatch.setattr(predict, "_open", lambda folder, allow: here)
    assert main(["export", "rows.csv"]) == 0
    assert here.asked == {"rows": Path("rows.csv"), "site": None, "cluster": None, "times": None}
    table = "predicted,'=ill,well\n'=ill,0.75,0.25\nwell,0.125,0.875\n"
    assert capsys.readouterr() == (table, "")
    assert main(["export", "rows.csv", "--cluster", "1", "--out", str(tmp_path / "out.csv")]) == 0
    assert here.asked["cluster"] == 1
    assert ((tmp_path / "out.csv").read_text(), capsys.readouterr()) == (table, ("", ""))


def test_images_are_named_and_a_site_without_its_own_model_is_noted(monkeypatch, capsys) -> None:
    here = _Served(["+a.png", "b.png"], "no model of its own")
    monkeypatch.setattr(predict, "_open", lambda folder, allow: here)
    main(["export", "scans", "--site", "north"])
    printed, noted = capsys.readouterr()
    assert here.asked["site"] == "north"
    assert printed == "file,predicted,'=ill,well\n'+a.png,'=ill,0.75,0.25\nb.png,well,0.125,0.875\n"
    assert noted == "fedclust predict: no model of its own\n"
    here.names = ["a text per row and position"]  # then rows are not the files'
    main(["export", "scans"])
    assert capsys.readouterr() == ("predicted,'=ill,well\n'=ill,0.75,0.25\nwell,0.125,0.875\n", "")


def test_what_is_odd_in_a_table_is_noted_and_positions_are_numbered(monkeypatch, capsys) -> None:
    here = _Served()
    here.encoder = object.__new__(TableEncoder)
    monkeypatch.setattr(TableEncoder, "notes", lambda self, rows, site: [f"columns not used: note{site}"])
    places = pd.MultiIndex.from_product([[0], [0, 1]], names=["row", "position"])
    table = pd.DataFrame([[0.75, 0.25], [0.125, 0.875]], places, ["=ill", "well"])
    monkeypatch.setattr(here, "predict", lambda rows, **which: table)
    monkeypatch.setattr(predict, "_open", lambda folder, allow: here)
    main(["export", "rows.csv"])
    printed, noted = capsys.readouterr()
    assert printed.splitlines()[:2] == ["row,position,predicted,'=ill,well", "0,0,'=ill,0.75,0.25"]
    assert noted == "fedclust predict: columns not used: note\n"


@pytest.mark.parametrize(
    ("file", "opened"),
    [(served.INDEX, "export"), (served.CLUSTER, "export"), ("rounds.jsonl", "run"), (None, None)],
)
def test_a_folder_is_an_export_or_a_run(monkeypatch, tmp_path: Path, file: str, opened: str) -> None:
    run = SimpleNamespace(served=lambda: ("run", "mine"))
    monkeypatch.setattr(served, "load_export", lambda folder, allow: ("export", allow))
    monkeypatch.setattr("fedclust.runs.library.load", lambda folder, allow: run)
    if file is None:
        with pytest.raises(FileNotFoundError, match=f"folder must hold an export or a run, got {tmp_path}"):
            predict._open(tmp_path, "mine")
    else:
        (tmp_path / file).touch()
        assert predict._open(tmp_path, "mine") == (opened, "mine")


def test_a_class_may_be_named_like_the_first_column(monkeypatch, capsys) -> None:
    here = _Served()
    here.class_names = ("predicted", "well")
    monkeypatch.setattr(predict, "_open", lambda folder, allow: here)
    main(["export", "rows.csv"])
    assert capsys.readouterr().out == "predicted,predicted,well\npredicted,0.75,0.25\nwell,0.125,0.875\n"


def test_a_site_or_a_cluster_is_given(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["export", "rows.csv", "--site", "a", "--cluster", "1"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_no_cell_starts_a_formula_and_numbers_stay() -> None:
    cells = ["=1+1", "@sum", "+cmd|' /C calc'!A0", "-1", "-1.5e3", "ill", "", "\tx", 7]
    made = ["'=1+1", "'@sum", "'+cmd|' /C calc'!A0", "-1", "-1.5e3", "ill", "", "'\tx", "7"]
    assert list(map(_inert, cells)) == made
