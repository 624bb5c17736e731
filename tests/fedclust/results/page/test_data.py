"""The view of a run, against folders worked out by hand."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder
from fedclust.results.page import tables, view_run
from fedclust.results.page.curves import view_curves, view_traces
from fedclust.results.page.matrices import view_across, view_matrix
from fedclust.results.page.tables import Column, tally
from fedclust.results.page.values import evenly, pack, short


def column(view: object, key: str) -> Column:
    return next(each for each in view.clients.columns if each.key == key)  # type: ignore[attr-defined]


def test_a_finished_run_beside_a_compared_one(finished_run: Path) -> None:
    view = view_run(finished_run)
    assert (view.kind, view.title, view.finished, view.done) == ("run", "fedgwc", True, 3)
    assert view.columns == ["fedgwc", "fedavg"]
    # fedgwc: (1 + 0.5 + 1 + 0.75) / 4 = 0.8125; fedavg: (0.5 + 0.5 + 0.25 + 0.75) / 4 = 0.5.
    cells = {row.key: row.cells for row in view.figures}
    assert cells["mean_client_accuracy"] == [[0.8125], [0.5]]
    run, beside = view.courses
    assert (run.name, run.round, run.total) == ("fedgwc", [1, 2, 3], 3)
    assert run.values["accuracy"] == [0.6125, 0.7125, 0.8125]
    assert run.values["loss"] == [1.0, 0.5, 0.333333]
    assert "test_loss" not in run.values
    assert run.changes == [
        {"round": 0, "reason": "start", "sizes": [4]},
        {"round": 2, "reason": "cluster 0 split in 2", "sizes": [2, 2]},
    ]
    assert beside.values["clusters"] == [1, 1, 1]
    # Everyone has 11 of 32 rows of class 0; cluster 0 (clients 0 and 1) 10 of 16, cluster 1 one of 16.
    first, second = view.clusters
    assert (first.clients, first.samples, first.accuracy, first.lowest, first.highest) == (
        2,
        16,
        0.75,
        0.5,
        1.0,
    )
    assert first.without == {"fedavg": 0.5}
    assert first.labels == [0.625, 0.375]
    assert first.apart == [[0, 0.625, 0.34375], [1, 0.375, 0.65625]]
    assert second.groups == [[1, 2]]
    assert column(view, "accuracy of fedavg").values == [0.5, 0.5, 0.25, 0.75]
    assert view.histories.moves == [[[0, 0]], [[0, 0]], [[0, 0], [2, 1]], [[0, 0], [2, 1]]]
    # Affinities within: 0.9 and 0.8, each twice; between: 0.1, 0.2, 0.1, 0.1, each twice.
    (matrix,) = view.matrices
    assert (matrix.within, matrix.between) == (0.85, 0.125)
    spread = {row[0]: row[1] for row in view.spread}
    assert spread["classes of a client"] == "1 to 2 of 2"
    # Shares of class 0: 6/8, 4/8, 1/8, 0/8 against 11/32: distances 13/32, 5/32, 7/32, 11/32, mean 36/128.
    assert spread["distance of label shares"] == "0.281"
    assert view.command is None


def test_names_failures_and_histories(hostile_run: Path) -> None:
    view = view_run(hostile_run)
    assert column(view, "name").values[1:] == ["Beta & Söhne", "gamma"]
    assert column(view, "took_part").values == [2, 1, 1]
    assert column(view, "failures").values == [0, 1, 0]
    assert column(view, "accuracy").values == [0.5, None, 1.0]
    assert view.clusters[1].accuracy == 1.0  # of the client that has one
    (accuracies,) = view.histories.accuracies
    assert (accuracies.name, accuracies.rounds) == ("", [1, 2])
    assert view.histories.failures[0][:3] == [1, 2, "evaluate"]
    codes = np.frombuffer(base64.b64decode(accuracies.values), dtype="<u2").reshape(2, 3)
    # Codes are the accuracy times 65533; 65535 where there is none.
    np.testing.assert_array_equal(codes, [[16383, 32766, 49150], [32766, 65535, 65533]])
    assert (view.command or "").startswith("fedclust seed=1 'a=")


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    config = {"rounds": 9, "choices": {"strategy": "ifca"}, "compare": ["fedavg"]}
    with Recorder(tmp_path / "run", config) as recorder:
        recorder.assignment(0, [0, 1], "before round 1")
        recorder.round(
            {
                "round": 1,
                "mean_client_accuracy": 0.5,
                "client_accuracy": [0.25, 0.75],
                "seconds": 2.0,
                "bytes_up": 7,
            }
        )
        with (recorder.folder / "rounds.jsonl").open("a") as file:
            file.write('{"round": 2, "mean_')  # as it is while a line is being written
        view = view_run(recorder.folder)
    assert (view.title, view.finished, view.done, view.rounds) == ("ifca", False, 1, 9)
    assert view.verdict_lines == []
    assert view.figures == []
    assert column(view, "accuracy").values == [0.25, 0.75]
    assert view.costs[0] == {
        "name": "ifca", "seconds": 2.0, "bytes_down": 0, "bytes_up": 7, "bytes_down_unbundled": 0,
        "bytes_up_unbundled": 0,
    }  # fmt: skip


def test_a_run_is_finished_once_all_it_is_compared_with_is(finished_run: Path) -> None:
    (finished_run / "config.yaml").write_text("compare: [fedavg, fedgwc]\n")
    assert view_run(finished_run).finished
    summary = json.loads((finished_run / "summary.json").read_text())
    (finished_run / "summary.json").write_text(json.dumps(summary | {"compare": {}}))
    assert not view_run(finished_run).finished


def test_no_run() -> None:
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        view_run(Path("nowhere"))


def test_large_matrices_are_shrunk() -> None:
    # 300 clients in clusters of 100 and 200, 1 within and 0 between: two clients become one cell.
    assignment = np.repeat([1, 0], [200, 100])
    values = (assignment[:, None] == assignment[None, :]).astype(float)
    matrix = view_matrix("distances", values, assignment)
    assert matrix.cells == 150
    assert matrix.members[0] == [200, 201]
    assert matrix.clusters == [0] * 50 + [1] * 100
    assert (matrix.within, matrix.between, matrix.colours) == (1.0, 0.0, "reversed")
    codes = np.frombuffer(base64.b64decode(matrix.values), dtype="<u2").reshape(150, 150)
    assert codes[0, 0] == 65533
    assert codes[0, 149] == 0


def test_unknown_pairs_and_pairs_without_a_match() -> None:
    values = np.array([[0.0, np.nan, np.inf], [np.nan, 0.0, 2.0], [np.inf, 2.0, 0.0]])
    matrix = view_matrix("anything", values, np.zeros(3, dtype=int))
    codes = np.frombuffer(base64.b64decode(matrix.values), dtype="<u2").reshape(3, 3)
    np.testing.assert_array_equal(codes[0], [0, 65535, 65534])
    assert (matrix.within, matrix.between) == (2.0, None)


def test_models_across_clusters_and_choices() -> None:
    # Clients of cluster 4 with the model of cluster 7: 3 of 4 right.
    confusion = np.array([[[[1, 1], [0, 2]], [[2, 0], [1, 1]]], [[[0, 0], [0, 0]], [[5, 0], [0, 5]]]])
    small = {"confusion": confusion, "confusion_clusters": np.array([4, 7])}
    across = view_across(small)
    assert across is not None
    assert across.accuracy == [[0.75, 0.75], [None, 1.0]]
    assert view_across({}) is None
    curves = view_curves(
        {"silhouette_numbers": np.array([2, 3]), "silhouette_scores": np.array([0.5, np.nan])}
    )
    assert [(curve.x, curve.lines[0].y) for curve in curves] == [([2, 3], [0.5, None])]


def test_histories_beside_a_compared_run(finished_run: Path) -> None:
    for folder, accuracy in ((finished_run, 1.0), (finished_run / "compare" / "fedavg", 0.25)):
        lines = [{"round": number, "client_accuracy": [accuracy, 0.0]} for number in (1, 2)]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own, beside = view_run(finished_run).histories.accuracies
    assert (own.name, beside.name, beside.rounds) == ("", "fedavg", [1, 2])
    codes = np.frombuffer(base64.b64decode(beside.values), dtype="<u2").reshape(2, 2)
    np.testing.assert_array_equal(codes, [[16383, 0], [16383, 0]])  # a quarter of 65533 is 16383.25


def test_chains_between_models() -> None:
    small = {
        "curve_pairs": np.array([[0, 2], [1, 2]]), "curve_points": np.array([0.0, 0.5, 1.0]),
        "curve_losses": np.array([[0.2, 0.1, 0.0], [0.3, np.inf, 0.0]]),
        "line_losses": np.array([[0.2, 0.4, 0.0], [0.3, 0.5, 0.0]]),
    }  # fmt: skip
    first, second = view_curves(small, np.array([0, 1, 0]))
    assert first.title == "From client 0's model to client 2's, same cluster"
    assert second.title == "From client 1's model to client 2's, apart"
    assert first.x == [0, 0.5, 1]
    assert [(line.name, line.y) for line in first.lines] == [
        ("fitted chain", [0.2, 0.1, 0]),
        ("straight line", [0.2, 0.4, 0]),
    ]
    assert second.lines[0].y == [0.3, None, 0]


def test_separations_of_each_cluster() -> None:
    # Round, cluster, parts, separation, what came of it. Of two fits in a round that of which something came.
    tests = np.array(
        [[2, 0, 2, 0.5, 0], [4, 0, 2, 1.25, 2], [4, 0, 3, 1.5, 0], [6, 1, 2, np.nan, 0], [8, 1, 3, 1.125, 1]]
    )
    (curve,) = view_curves({"separations": tests})
    assert curve.x == [2, 4, 8]
    assert [(line.name, line.y) for line in curve.lines] == [
        ("cluster 0", [0.5, 1.25, None]),
        ("cluster 1", [None, None, 1.125]),
    ]
    assert curve.marks == [[4, "cluster 0: split, 2 parts"], [8, "cluster 1: proposed, 3 parts"]]
    assert view_curves({"separations": tests[3:4]}) == []


def test_traces_of_losses() -> None:
    # Round, client, entry, part: clients 5 and 9 in part 0; client 7 in part 1, not asked in round 2.
    entries = np.array([[1, 5, 1, 0], [1, 7, -4, 1], [1, 9, 3, 0], [2, 5, 2, 0], [2, 9, 2, 0]], dtype=float)
    (trace,) = view_traces({"loss_trace_cluster_3_round_7": entries, "confusion": np.zeros(1)})
    assert trace.title == "Losses in cluster 3, up to its split in round 7"
    assert (trace.members, trace.parts, trace.spans) == ([[5], [9], [7]], [0, 0, 1], [[1, 1], [2, 2]])
    assert (trace.low, trace.high) == (-4, 3)
    codes = np.frombuffer(base64.b64decode(trace.values), dtype="<u2").reshape(3, 2)
    # (value + 4) / 7 of 65533: 1 is 46809.3, 2 is 56171.1, 3 the highest, -4 the lowest.
    np.testing.assert_array_equal(codes, [[46809, 56171], [65533, 56171], [0, 65535]])
    assert [(line.name, line.y, line.low, line.high) for line in trace.means.lines] == [
        ("part 0, 2 clients", [2, 2], [1, 2], [3, 2]),
        ("part 1, 1 client", [-4, None], [-4, None], [-4, None]),
    ]


def test_accuracies_from_the_worst_client_to_the_best(finished_run: Path) -> None:
    curve = view_run(finished_run).accuracies
    assert curve is not None
    assert curve.x == list(range(101))
    values = {line.name: line.y for line in curve.lines}
    # fedgwc's clients have 0.5, 0.75, 1 and 1: up to 25 % the first, then up to 50 % the second.
    at = (0, 25, 26, 50, 51, 100)
    assert [values["fedgwc"][percent] for percent in at] == [0.5, 0.5, 0.75, 0.75, 1, 1]
    assert [values["fedavg"][percent] for percent in at] == [0.25, 0.25, 0.5, 0.5, 0.5, 0.75]


def test_long_traces_are_shrunk() -> None:
    # 240 clients over 360 rounds, each entry its client's number: two clients and three rounds in a cell.
    rounds, clients = np.meshgrid(np.arange(360), np.arange(240))
    entries = (
        np.stack([rounds, clients, clients, np.zeros_like(rounds)], axis=-1).reshape(-1, 4).astype(float)
    )
    (trace,) = view_traces({"loss_trace_cluster_0": entries})
    assert (len(trace.members), len(trace.spans)) == (120, 120)
    assert (trace.members[1], trace.spans[1]) == ([2, 3], [3, 5])
    assert (trace.low, trace.high) == (0.5, 238.5)  # means of 0 and 1, and of 238 and 239
    assert len(trace.means.x) == 300


def test_values() -> None:
    assert short(1 / 3) == 0.333333
    assert short(float("nan")) is None
    assert short(np.int64(12_345_678)) == 12_345_678
    assert evenly(5, 9) == [0, 1, 2, 3, 4]
    assert evenly(101, 3) == [0, 50, 100]
    assert base64.b64decode(pack([0.0, 1.0], 0.0, 1.0)) == b"\x00\x00\xfd\xff"  # 65533 = 0xfffd
    drawn, failed = tally([{"cohort": [0, 2], "failures": [{"client": 2}]}, {"cohort": [2]}], 3)
    assert (drawn.tolist(), failed.tolist()) == ([1, 0, 2], [0, 0, 1])


def test_of_many_clients_the_first_are_listed(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_CLIENTS", 3)
    view = view_run(finished_run)
    assert view.clients.total == 4
    assert column(view, "client").values == [0, 1, 2]
    assert {len(each.values) for each in view.clients.columns} == {3}
    assert len(view.histories.moves) == 3
    assert sum(each.clients for each in view.clusters) == 4  # all count in the clusters' figures
