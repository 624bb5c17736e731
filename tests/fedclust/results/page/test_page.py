"""The view of a run and of a sweep, against folders worked out by hand."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust.results import Recorder
from fedclust.results.page import View, run, view_run, view_sweep
from fedclust.results.page.parts import (
    Cell,
    More,
    Pair,
    Table,
    duration,
    number,
    percent,
    size,
    span,
    written_as,
)
from fedclust.results.page.run import labels_apart, tally
from fedclust.results.thinned import evenly, pack, short


def parts(found: Any) -> list[Any]:
    """Return all parts, those inside others too."""
    inside = (
        [each for section in found.sections for each in section.parts] if isinstance(found, View) else found
    )
    more = [each for part in inside if isinstance(part, (More, Pair)) for each in parts(part.parts)]
    return [*inside, *more]


def table(view: View, name: str) -> Table:
    return next(each for each in parts(view) if isinstance(each, Table) and each.name == name)


def texts(found: Table) -> list[dict[str, str]]:
    heads = [column.title for column in found.columns]
    return [dict(zip(heads, (cell.text for cell in row), strict=True)) for row in found.cells]


def column(view: View, name: str, title: str) -> list[str]:
    return [row[title] for row in texts(table(view, name))]


def test_a_finished_run_beside_a_compared_one(finished_run: Path) -> None:
    view = view_run(finished_run)
    assert (view.kind, view.title, view.finished, view.status) == (
        "run",
        "fedgwc",
        True,
        "Finished, 3 rounds",
    )
    # fedgwc: (1 + 0.5 + 1 + 0.75) / 4 = 0.8125; fedavg: (0.5 + 0.5 + 0.25 + 0.75) / 4 = 0.5.
    (row,) = [row for row in texts(table(view, "table-figures")) if row["figure"] == "client accuracy, mean"]
    assert row == {"figure": "client accuracy, mean", "fedgwc": "0.812", "fedavg": "0.500"}
    best = {row[0].text: [cell.looks for cell in row[1:]] for row in table(view, "table-figures").cells}
    assert best["client accuracy, mean"] == ["number best", ""] or best["client accuracy, mean"] == [
        "best",
        "",
    ]
    assert "AD: mean distance of the clients' accuracies from 1" in table(view, "table-figures").note
    assert texts(table(view, "table-changes")) == [
        {"after round": "2", "what happened": "cluster 0 split in 2", "cluster sizes": "2, 2"}
    ]
    first, second = texts(table(view, "table-clusters"))
    assert (first["clients"], first["accuracy"], first["least to most"]) == ("2", "0.750", "0.500 to 1.000")
    assert (first["same clients, fedavg"], first["training rows"]) == ("0.500", "16")
    assert second["known groups (clients)"] == "1 (2)"
    assert column(view, "table-clients", "accuracy of fedavg") == ["0.500", "0.500", "0.250", "0.750"]
    assert view.data["moves"] == [[[0, 0]], [[0, 0]], [[0, 0], [2, 1]], [[0, 0], [2, 1]]]
    # Affinities within: 0.9 and 0.8, each twice; between: 0.1, 0.2, 0.1, 0.1, each twice.
    (matrix,) = texts(table(view, "table-matrices"))
    assert (matrix["within clusters"], matrix["between clusters"]) == ("0.85", "0.125")
    spread = {row["measure"]: row["value"] for row in texts(table(view, "table-spread"))}
    assert spread["classes of a client"] == "1 to 2 of 2"
    # Shares of class 0: 6/8, 4/8, 1/8, 0/8 against 11/32: distances 13/32, 5/32, 7/32, 11/32, mean 36/128.
    assert spread["distance of label shares"] == "0.281"
    assert "was made from Python" in next(each.text for each in view.sections[-1].parts)


def test_labels_are_named_only_beyond_chance() -> None:
    # 10 of 16 rows against 11 of 32: 0.28 apart. Without replacement a share of 16 of 32 rows has deviation
    # √(11/32 · 21/32 / 16 · 16/31) = 0.085; for four tests the bound is 3.02 deviations, 0.258.
    assert labels_apart(np.array([10, 6]), np.array([11, 21]), 4) == [0, 1]
    # For 400 tests it is 4.2 deviations, 0.36.
    assert labels_apart(np.array([10, 6]), np.array([11, 21]), 400) == []
    # 12 % against 10 % of 426 of 1,278 rows: the deviation is 0.012, and the bound 3.5 of them.
    counts, everyone = np.array([51, 375]), np.array([128, 1150])
    assert labels_apart(counts, everyone, 20) == []
    assert labels_apart(100 * counts, 100 * everyone, 20) == [
        0
    ]  # many more rows; class 1 differs by less than a tenth
    assert labels_apart(everyone, everyone, 20) == labels_apart(np.zeros(2, int), everyone, 20) == []


def test_names_failures_and_histories(hostile_run: Path) -> None:
    view = view_run(hostile_run)
    assert column(view, "table-clients", "name")[1:] == ["Beta & Söhne", "gamma"]
    assert column(view, "table-clients", "rounds it took part in") == ["2", "1", "1"]
    assert column(view, "table-clients", "failures") == ["0", "1", "0"]
    assert column(view, "table-clients", "accuracy") == ["0.500", "–", "1.000"]
    assert column(view, "table-clusters", "accuracy")[1] == "1.000"  # of the client that has one
    (accuracies,) = view.data["accuracies"]
    assert (accuracies["name"], accuracies["rounds"]) == ("", [1, 2])
    assert view.data["failures"][0][:3] == [1, 2, "evaluate"]
    codes = np.frombuffer(base64.b64decode(accuracies["values"]), dtype="<u2").reshape(2, 3)
    # Codes are the accuracy times 65534, rounded to even; 65535 where there is none.
    np.testing.assert_array_equal(codes, [[16384, 32767, 49150], [32767, 65535, 65534]])
    command = [part.text for part in view.sections[-1].parts if getattr(part, "code", False)]
    assert command[0].startswith("fedclust seed=1 'a=")


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    config = {"rounds": 9, "choices": {"strategy": "ifca"}, "compare": ["fedavg"]}
    line = {
        "round": 1,
        "mean_client_accuracy": 0.5,
        "client_accuracy": [0.25, 0.75],
        "seconds": 2.0,
        "bytes_up": 7,
    }
    with Recorder(tmp_path / "run", config) as recorder:
        recorder.assignment(0, [0, 1], "before round 1")
        recorder.round(line)
        with (recorder.folder / "rounds.jsonl").open("a") as file:
            file.write('{"round": 2, "mean_')  # as it is while a line is being written
        view = view_run(recorder.folder)
    assert (view.title, view.finished, view.status) == ("ifca", False, "Not finished: round 1 of 9")
    assert view.headline == "ifca, round 1 of 9"
    assert "table-figures" not in [getattr(each, "name", "") for each in parts(view)]
    assert column(view, "table-clients", "accuracy") == ["0.250", "0.750"]
    (costs,) = texts(table(view, "table-costs"))
    assert (costs["part"], costs["time"], costs["sent to clients"], costs["received"]) == (
        "ifca",
        "2.0 s",
        "0 B",
        "7 B",
    )


def test_a_run_is_finished_once_all_it_is_compared_with_is(finished_run: Path) -> None:
    (finished_run / "config.yaml").write_text("compare: [fedavg, fedgwc]\n")
    assert view_run(finished_run).finished
    summary = json.loads((finished_run / "summary.json").read_text())
    (finished_run / "summary.json").write_text(json.dumps(summary | {"compare": {}}))
    assert not view_run(finished_run).finished
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        view_run(Path("nowhere"))


def test_models_across_clusters(finished_run: Path) -> None:
    # Clients of cluster 4 with the model of cluster 7: 3 of 4 right.
    confusion = np.array([[[[1, 1], [0, 2]], [[2, 0], [1, 1]]], [[[0, 0], [0, 0]], [[5, 0], [0, 5]]]])
    np.savez(finished_run / "matrices.npz", confusion=confusion, confusion_clusters=[4, 7])
    assert [list(row.values()) for row in texts(table(view_run(finished_run), "table-across"))] == [
        ["4", "75 %", "75 %"], ["7", "–", "100 %"],
    ]  # fmt: skip


def test_histories_beside_a_compared_run(finished_run: Path) -> None:
    for folder, accuracy in ((finished_run, 1.0), (finished_run / "compare" / "fedavg", 0.25)):
        lines = [{"round": number, "client_accuracy": [accuracy, 0.0]} for number in (1, 2)]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own, beside = view_run(finished_run).data["accuracies"]
    assert (own["name"], beside["name"], beside["rounds"]) == ("", "fedavg", [1, 2])
    codes = np.frombuffer(base64.b64decode(beside["values"]), dtype="<u2").reshape(2, 2)
    np.testing.assert_array_equal(codes, [[16384, 0], [16384, 0]])  # a quarter of 65534 is 16383.5


def test_of_many_clients_the_first_are_listed(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CLIENTS", 3)
    view = view_run(finished_run)
    assert column(view, "table-clients", "client") == ["0", "1", "2"]
    assert table(view, "table-clients").caption.startswith("The first 3 of 4 clients")
    assert len(view.data["moves"]) == 3
    assert column(view, "table-clusters", "clients") == ["2", "2"]  # all count in the clusters' figures


def test_a_sweep(finished_run: Path) -> None:
    view = view_sweep(finished_run.parent)
    assert (view.kind, view.finished, view.status, view.jobs) == (
        "sweep",
        True,
        "1 run, all finished",
        ["run"],
    )
    assert view.headline == "fedgwc has the highest accuracy, 0.812; next fedavg, 0.500"
    assert column(view, "table-sweep", "client accuracy") == ["0.812", "0.500"]
    (job,) = texts(table(view, "table-jobs"))
    assert (job["folder"], job["seed"], job["rounds"]) == ("run", "7", "3")
    with pytest.raises(FileNotFoundError):
        view_sweep(Path("nowhere"))


def test_values() -> None:
    assert short(1 / 3) == 0.333333
    assert short(float("nan")) is None
    assert short(np.int64(12_345_678)) == 12_345_678
    assert evenly(5, 9) == [0, 1, 2, 3, 4]
    assert evenly(101, 3) == [0, 50, 100]
    assert base64.b64decode(pack([0.0, 1.0])) == b"\x00\x00\xfe\xff"  # 65534 = 0xfffe
    drawn, failed = tally([{"cohort": [0, 2], "failures": [{"client": 2}]}, {"cohort": [2]}], 3)
    assert (drawn.tolist(), failed.tolist()) == ([1, 0, 2], [0, 0, 1])


def test_how_values_are_written() -> None:
    assert [number(value) for value in (1234.5678, -0.0001, None, float("nan"))] == [
        "1,234.568",
        "0.000",
        "–",
        "–",
    ]
    assert [size(value) for value in (7, 999.4, 1_449_086, 5e15)] == ["7 B", "999 B", "1.45 MB", "5000 TB"]
    assert [duration(value) for value in (4.94, 125, 7_500)] == ["4.9 s", "2 min 5 s", "2 h 5 min"]
    assert [percent(value) for value in (0.004, 0.94, 0.0, None)] == ["0.4 %", "94 %", "0 %", "–"]
    assert (span((0.1, 0.25)), span(None), span([None, None])) == ("0.100 to 0.250", "–", "–")
    assert [written_as("chance", value) for value in (0.0001, 0.5)] == ["< 0.001", "0.500"]
    assert written_as("tight", 1.5e-7) == "1.5e-07"
    assert Table("a", "", [], []).cells == []
    assert Cell("x").sort is None
