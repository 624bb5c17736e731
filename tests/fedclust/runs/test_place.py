"""``fedclust place``: the cluster of a new client."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedclust.clustering.shared.placement import Placement
from fedclust.data.input_encoders import TableEncoder
from fedclust.runs.place import main

ROWS = pd.DataFrame({"age": [60, 70], "ill": ["yes", "no"], "other": ["a", "b"]})


class _Result:
    """A run with clients north and east in cluster 0 and west in cluster 1."""

    def __init__(self, found: Placement, rows: object = ROWS, encoder: object = None) -> None:
        sites = [SimpleNamespace(label=name, cluster=cluster) for name, cluster in self.clients]
        self.saved = SimpleNamespace(config={"dataset": {"label": "ill"}})
        self.found, self.placed = found, []
        self.served = lambda: SimpleNamespace(
            read=lambda path, csv: (rows, None), sites=sites, encoder=encoder
        )

    clients = (("north", 0), ("west", 1), ("east", 0))

    def place(self, rows: object, labels: object) -> Placement:
        self.placed.append((rows, labels))
        return self.found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    def use(result: _Result) -> _Result:
        monkeypatch.setattr("fedclust.runs.library.load", lambda folder, allow: result)
        return result

    return use


def test_the_cluster_its_reason_and_its_clients_are_printed(opened, capsys) -> None:
    result = opened(_Result(Placement(0, "least loss")))
    assert main(["run", "new.csv"]) == 0
    lines = ["cluster 0: least loss", "with north, east"]
    lines.append("to predict: fedclust predict run new.csv --cluster 0")
    assert capsys.readouterr() == ("\n".join(lines) + "\n", "")
    main(["run", "new.csv", "--label", "other"])
    assert [labels for _, labels in result.placed] == ["ill", "other"]
    capsys.readouterr()
    main(["run", "new.csv", "--sep", ";", "--csv", "na_values=?"])  # it is read in the same way to predict
    again = "fedclust predict run new.csv --sep ';' --csv 'na_values=?' --cluster 0"
    assert capsys.readouterr().out.splitlines()[-1] == f"to predict: {again}"


def test_no_cluster_is_one_line(opened, capsys) -> None:
    opened(_Result(Placement(None, "none fits")))
    assert main(["run", "new.csv"]) == 0
    assert capsys.readouterr().out == "no cluster: none fits\n"


@pytest.mark.parametrize("rows", [ROWS.drop(columns="ill"), ["a.png"]])
def test_rows_without_labels_are_placed_by_the_models(opened, rows) -> None:
    result = opened(_Result(Placement(1, "certain"), rows))
    main(["run", "new.csv"])
    assert result.placed == [(rows, None)]
    rule = "left out, as images have no columns" if isinstance(rows, list) else "a column of the rows, one of"
    with pytest.raises(ValueError, match=f"--label must be {rule}.*got '?sick"):
        main(["run", "new.csv", "--label", "sick"])


@pytest.mark.parametrize("label", [["diagnosis", "ill"], ["ill", "other"]])
def test_of_several_names_of_the_label_the_first_that_the_rows_have_is_meant(opened, label) -> None:
    result = opened(_Result(Placement(1, "certain")))
    result.saved.config = {"dataset": {"label": label}}  # as of dataset=adult
    main(["run", "new.csv"])
    assert result.placed[0][1] == "ill"


def test_times_are_placed_with_their_events(opened) -> None:
    rows = pd.DataFrame({"age": [60, 70], "days": [5.0, 9.0], "died": [1, 0]})
    result = opened(_Result(Placement(1, "certain"), rows))
    result.saved.config = {"dataset": {"label": "days", "event": "died"}}
    main(["run", "new.csv"])
    assert result.placed[0][1] == ("days", "died")
    rows.pop("died")
    rule = "^rows must have a column died, the events of the times in days, got age, days$"
    with pytest.raises(ValueError, match=rule):
        main(["run", "new.csv"])


def test_a_run_without_a_name_of_its_label_and_a_further_name_to_build(monkeypatch, capsys) -> None:
    result = _Result(Placement(1, "certain"))
    result.saved.config = {}
    given = []
    monkeypatch.setattr(
        "fedclust.runs.library.load", lambda folder, allow: given.append((folder, allow)) or result
    )
    main(["run", "new.csv", "--allow", "mine.Net"])
    assert (given, result.placed[0][1]) == ([(Path("run"), "mine.Net")], None)
    assert capsys.readouterr().out.splitlines()[1] == "with west"


def test_what_is_odd_in_the_rows_is_noted_without_the_label(opened, capsys, monkeypatch) -> None:
    monkeypatch.setattr(TableEncoder, "notes", lambda self, rows: [f"columns {', '.join(rows.columns)}"])
    opened(_Result(Placement(1, "certain"), encoder=object.__new__(TableEncoder)))
    main(["run", "new.csv"])
    assert capsys.readouterr().err == "fedclust place: columns age, other\n"
