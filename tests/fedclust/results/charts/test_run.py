from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedclust.results import Recorder, SavedRun, client_table
from fedclust.results.charts.chart import Picture
from fedclust.results.charts.run import advice_map, client_sizes, draw, label_counts, matrix_picture, pictures

from .data import layers, lines, marks, names, rows


def made(run: SavedRun) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(run)}


def table(picture: Any) -> list[Any]:
    return rows(picture, "rect")


def test_curves_marks_and_clusters(finished_run: Path) -> None:
    found = made(SavedRun(finished_run))
    # (1 + 0.5 + 1 + 0.75) / 4 = 0.8125 and (0.5 + 0.5 + 0.25 + 0.75) / 4 = 0.5 in the last round.
    assert lines(found["accuracy_per_round"]) == {
        "fedgwc": [0.6125, 0.7125, 0.8125],
        "fedavg": [0.3, 0.4, 0.5],
    }
    assert marks(found["accuracy_per_round"]) == [(2, "cluster 0 split in 2")]
    assert lines(found["clusters_per_round"]) == {"fedgwc": [1, 2, 2], "fedavg": [1, 1, 1]}
    assert lines(found["loss"])["fedgwc"] == [1.0, 0.5, 0.333333]
    assert "test_loss" not in found
    # fedgwc's clients have 0.5, 0.75, 1 and 1: up to 25 % the first, then up to 50 % the second.
    worst = lines(found["accuracy_ecdf"])
    assert [worst["fedgwc"][at] for at in (0, 25, 26, 50, 51, 100)] == [0.5, 0.5, 0.75, 0.75, 1, 1]
    assert [worst["fedavg"][at] for at in (0, 25, 26, 51, 100)] == [0.25, 0.25, 0.5, 0.5, 0.75]


def recorded(folder: Path, rounds: int, changes: int = 0, evaluated: bool = True) -> SavedRun:
    with Recorder(folder) as recorder:
        for number in range(1, rounds + 1):
            accuracy = {"mean_client_accuracy": 0.5} if evaluated else {}
            recorder.round({"round": number, "num_clusters": 1} | accuracy)
        for change in range(changes + 1):
            recorder.assignment(change, [0, change], "regrouped")
    return SavedRun(folder)


def test_one_cluster_needs_no_curve_and_frequent_changes_no_marks(tmp_path: Path) -> None:
    assert "clusters_per_round" not in made(recorded(tmp_path / "one", 3))
    assert "accuracy_per_round" not in made(recorded(tmp_path / "none", 3, evaluated=False))
    assert len(marks(made(recorded(tmp_path / "few", 50, 40))["accuracy_per_round"])) == 40
    many = made(recorded(tmp_path / "many", 50, 41))["accuracy_per_round"]
    assert {each["mark"]["type"] for each in layers(many)} == {"line"}


def test_a_personal_layer_has_a_line_and_silent_clients_none(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        evaluated = [{"accuracy": 0.5}, {"accuracy": 0.25}, None]
        found = client_table([0] * 3, [1] * 3, [1] * 3, [[1]] * 3, evaluated)
        recorder.clients(
            found.assign(personal=["prior", "none", "none"], personal_accuracy=[0.75, 0.25, np.nan])
        )
        recorder.summary({"strategy": "fedavg", "personal": {"choice": "prior"}})
    drawn = lines(made(SavedRun(tmp_path))["accuracy_ecdf"])
    assert [(name, values[0], values[-1]) for name, values in drawn.items()] == [
        ("fedavg", 0.25, 0.5), ("fedavg, personal", 0.25, 0.75),
    ]  # fmt: skip


def test_rows_and_columns_stand_by_cluster_then_group() -> None:
    values = np.arange(16.0).reshape(4, 4)
    drawn = matrix_picture("affinity_round_7", values, np.array([1, 0, 1, 0]), np.array([0, 1, 0, 0]))
    # Cluster 0 has clients 1 (group 1) and 3 (group 0), cluster 1 clients 0 and 2: order 3, 1, 0, 2.
    order = [3, 1, 0, 2]
    assert table(drawn) == values[np.ix_(order, order)].ravel().tolist()
    assert names(drawn)[0] == [f"client {client}, known group {int(client == 1)}" for client in order]
    assert (drawn.title, drawn.note) == (
        "Affinity, round 7",
        "Larger is more alike. Colours beside the rows are known groups.",
    )


@pytest.mark.parametrize(
    ("name", "reverse"), [("interaction_round_60", None), ("distances", True), ("pair_scores", True)]
)
def test_bright_is_alike(name: str, reverse: bool | None) -> None:
    drawn = matrix_picture(name, np.array([[0.5, 0.0], [1.0, 0.5]]), np.zeros(2, dtype=int))
    scale = layers(drawn)[0]["encoding"]["color"]["scale"]
    assert (scale["scheme"], scale.get("reverse")) == ("viridis", reverse)


def test_the_scale_leaves_out_the_diagonal_and_the_farthest_pairs() -> None:
    values = np.tile(np.linspace(0, 1, 50), (50, 1))
    values[0, 1], values[np.diag_indices(50)] = 1e6, -1e6
    drawn = matrix_picture("distances", values, np.zeros(50, dtype=int))
    assert layers(drawn)[0]["encoding"]["color"]["scale"]["domain"] == pytest.approx([0, 1], abs=0.03)


def test_large_matrices_are_averaged() -> None:
    # 300 clients in clusters of 100 and 200, 1 within and 0 between: three clients become one cell.
    assignment = np.repeat([1, 0], [200, 100])
    drawn = matrix_picture("distances", assignment[:, None] == assignment[None, :], assignment)
    assert len(table(drawn)) == 100 * 100
    assert names(drawn)[0][:2] == ["client 200 and 2 more", "client 203 and 2 more"]
    assert (table(drawn)[0], table(drawn)[99]) == (1, 0)


def test_pairs_that_a_method_does_not_compare_are_said_to_be_blank() -> None:
    values = np.array([[1, 0.5, np.nan], [0.5, 1, np.nan], [np.nan, np.nan, 1]])
    apart = matrix_picture("interaction", values, np.array([0, 0, 1]))
    assert "only within their cluster; all other pairs are left blank" in apart.note
    assert table(apart) == [1, 0.5, "", 0.5, 1, "", "", "", 1]
    assert (
        "were not compared are left blank" in matrix_picture("affinity", values, np.zeros(3, dtype=int)).note
    )
    endless = matrix_picture("distances", np.array([[0, np.inf], [np.inf, 0]]), np.zeros(2, dtype=int))
    assert "Black: no match" in endless.note
    with pytest.raises(ValueError, match=r"matrix affinity must have shape \(3, 3\), got \(2, 2\)"):
        matrix_picture("affinity", np.eye(2), np.zeros(3, dtype=int))


def test_labels_of_clients_and_clusters(finished_run: Path) -> None:
    counts = np.array([[3, 1], [0, 4], [1, 1]])
    drawn = label_counts(counts, np.array([1, 0, 1]), ["ill", "well"], ["Mercy", "St. Anna", "Hope"])
    assert table(drawn) == [0, 3, 1, 4, 1, 1]  # clients 1, 0, 2 across
    assert names(drawn) == (
        ["ill", "well"],
        ["client 1 (St. Anna), group 0", "client 0 (Mercy), group 1", "client 2 (Hope), group 1"],
    )
    assert len(names(label_counts(np.ones((1000, 3), dtype=int)))[1]) == 400
    # Cluster 0 (clients 0 and 1) has 10 of 16 rows of class 0, cluster 1 one of 16.
    assert table(made(SavedRun(finished_run))["labels_per_cluster"]) == [62.5, 37.5, 6.25, 93.75]
    assert rows(client_sizes(np.array([4, 9, 6])), "bar")[0] == {"client": 1, "rows": 9}


def test_the_advices_map_keeps_distances() -> None:
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    distances = np.linalg.norm(corners[:, None] - corners[None], axis=-1)
    drawn = rows(advice_map(distances, np.array([1, 0, 0, 1]), np.arange(4)), "point")
    assert [one["group"] for one in drawn] == ["group 0 (2)", "group 0 (2)", "group 1 (2)", "group 1 (2)"]
    at = np.array([[one["x"], one["y"]] for one in drawn])
    order = [1, 2, 0, 3]
    np.testing.assert_allclose(
        np.linalg.norm(at[:, None] - at[None], axis=-1), distances[np.ix_(order, order)], atol=1e-6
    )


def test_files_of_a_finished_run_again_and_elsewhere(finished_run: Path) -> None:
    first = {path.name: path.read_bytes() for path in draw(finished_run)}
    assert list(first) == [
        f"{name}.png"
        for name in (
            "accuracy_per_round",
            "accuracy_ecdf",
            "affinity",
            "labels_per_cluster",
            "labels_per_client",
        )
    ]
    for path in (finished_run / "plots").iterdir():
        with Image.open(path) as image:
            assert len(image.convert("L").getcolors()) > 20  # something is on it
    moved = finished_run.rename(finished_run.with_name("moved"))
    assert {path.name: path.read_bytes() for path in draw(moved)} == first
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        draw(finished_run)
