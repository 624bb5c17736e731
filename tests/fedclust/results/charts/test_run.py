import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedclust.results import Recorder, SavedRun, client_table
from fedclust.results.charts import run as charts
from fedclust.results.charts.chart import Picture
from fedclust.results.charts.run import draw, label_counts, matrix_picture, method_pictures, pictures

from .data import layers, lines, marks, names, rows


def made(run: SavedRun) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(run)}


def table(picture) -> list:
    return rows(picture, "rect")


def test_curves_marks_and_clusters(finished_run: Path) -> None:
    found = made(SavedRun(finished_run))
    # (1 + 0.5 + 1 + 0.75) / 4 = 0.8125 and (0.5 + 0.5 + 0.25 + 0.75) / 4 = 0.5 in the last round.
    expected = {"FedGWC": [0.6125, 0.7125, 0.8125], "FedAvg": [0.3, 0.4, 0.5]}
    assert lines(found["accuracy_per_round"]) == expected
    assert marks(found["accuracy_per_round"]) == [(2, "cluster 0 split in 2")]
    assert lines(found["clusters_per_round"]) == {"FedGWC": [1, 2, 2], "FedAvg": [1, 1, 1]}
    assert lines(found["loss"])["FedGWC"] == [1.0, 0.5, 0.333333]
    assert "test_loss" not in found
    # fedgwc's clients have 0.5, 0.75, 1 and 1: up to 25 % the first, then up to 50 % the second.
    worst = lines(found["accuracy_ecdf"])
    assert [worst["FedGWC"][at] for at in (0, 25, 26, 50, 51, 100)] == [0.5, 0.5, 0.75, 0.75, 1, 1]
    assert [worst["FedAvg"][at] for at in (0, 25, 26, 51, 100)] == [0.25, 0.25, 0.5, 0.5, 0.75]


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
        recorder.clients(found.assign(personal=["prior", "none", "none"], accuracy_none=[0.75, 0.25, np.nan]))
        recorder.summary({"strategy": "fedavg", "personal": {"choice": "prior"}})
    drawn = lines(made(SavedRun(tmp_path))["accuracy_ecdf"])
    assert [(name, values[0], values[-1]) for name, values in drawn.items()] == [
        ("FedAvg", 0.25, 0.5), ("FedAvg, without layer", 0.25, 0.75),
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
    assert "were not compared are left blank" in matrix_picture("affinity", values, np.zeros(3, int)).note
    endless = matrix_picture("distances", np.array([[0, np.inf], [np.inf, 0]]), np.zeros(2, dtype=int))
    assert "Black: no match" in endless.note


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


def test_files_of_a_finished_run_again_and_elsewhere(finished_run: Path) -> None:
    first = {path.name: path.read_bytes() for path in draw(finished_run)}
    drawn = "accuracy_per_round accuracy_ecdf affinity labels_per_cluster labels_per_client"
    assert [name.removesuffix(".png") for name in first] == drawn.split()
    for path in (finished_run / "plots").iterdir():
        with Image.open(path) as image:
            assert len(image.convert("L").getcolors()) > 20  # something is on it
    moved = finished_run.rename(finished_run.with_name("moved"))
    assert {path.name: path.read_bytes() for path in draw(moved)} == first
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        draw(finished_run)


# ---- what belongs to one method


def saved(folder: Path, reports: list[dict] | None = None, tolerance: float | None = None) -> SavedRun:
    reported = [{"round": 1}] if reports is None else reports
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reported))
    if tolerance is not None:
        (folder / "config.yaml").write_text(f"strategy: {{parameters: {{tolerance: {tolerance}}}}}\n")
    return SavedRun(folder)


def of_method(folder: Path, small: dict | None = None, **run: object) -> dict[str, Picture]:
    return {each.name: each for each in method_pictures(saved(folder, **run), small or {})}  # type: ignore[arg-type]


def test_choices_say_which_number_is_best(tmp_path: Path) -> None:
    small = {
        "silhouette_numbers": np.array([2, 3, 4]), "silhouette_scores": np.array([0.25, 0.5, np.nan]),
    }  # fmt: skip
    found = of_method(tmp_path, small)
    assert lines(found["silhouette"]) == {"mean silhouette": [0.25, 0.5, None]}
    assert found["silhouette"].note == "The best is 3 clusters, 0.500."


def test_chains_between_models(tmp_path: Path) -> None:
    small = {
        "curve_pairs": np.array([[0, 2], [1, 2]]), "curve_points": np.array([0.0, 0.5, 1.0]),
        "curve_losses": np.array([[0.2, 0.1, 0.0], [0.3, np.inf, 0.0]]),
        "line_losses": np.array([[0.2, 0.4, 0.0], [0.3, 0.5, 0.0]]),
    }  # fmt: skip
    (tmp_path / "clusters.json").write_text('[{"round": 0, "assignment": [0, 1, 0]}]')
    first, second = of_method(tmp_path, small).values()
    assert first.title == "From client 0's model to client 2's, same cluster"
    assert second.title == "From client 1's model to client 2's, apart"
    assert lines(first) == {"fitted chain": [0.2, 0.1, 0], "straight line": [0.2, 0.4, 0]}
    assert lines(second)["fitted chain"] == [0.3, None, 0]


def report(mse: float, **more: object) -> dict:
    return {"mse": mse, "pair_coverage": 0.5, **more}


def test_convergence_of_each_cluster_and_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [
        {"round": 1, "strategy": {"0": report(0.5)}},
        {"round": 2, "strategy": {"0": report(0.01, split=True)}},
        {"round": 4, "strategy": {"0": report(1), "10": report(0.25), "2": report(1)}},
    ]
    drawn = of_method(tmp_path, reports=reports, tolerance=0.05)["interaction_convergence"]
    # Cluster 2 stays at 1: no two of its clients have met.
    assert [(row["line"], row["x"], row["y"]) for row in rows(drawn)] == [
        ("cluster 0", [1, 2, 4], [0.5, 0.01, 1]),
        ("cluster 10", [4], [0.25]),
        ("split is tried below", [1, 4], [0.05, 0.05]),
    ]
    assert marks(drawn) == [(2, "cluster 0 was split")]
    monkeypatch.setattr(charts, "_MOST_CLUSTERS", 1)
    assert of_method(tmp_path, reports=reports)["interaction_convergence"].note.endswith(
        "The first 1 of 2 clusters."
    )


def test_of_a_long_run_the_rounds_of_splits_are_kept(tmp_path: Path) -> None:
    reports = [{"round": number, "strategy": {"0": report(0.5)}} for number in range(1, 1001)]
    reports[499]["strategy"] = {"0": report(0.25, split=True)}
    (row,) = rows(of_method(tmp_path, reports=reports)["interaction_convergence"])
    # 300 of 1,000 rounds, every 999/299th: round 500 is not among them (1 + 149 · 3.34 = 498.8, then 502.2).
    assert len(row["x"]) == 301
    assert row["y"][row["x"].index(500)] == 0.25


@pytest.mark.parametrize("strategy", [{}, {"decision": "none"}, {"0": {"parts": 2}}])
def test_other_methods_have_no_convergence(tmp_path: Path, strategy: dict) -> None:
    assert of_method(tmp_path, reports=[{"round": 1, "strategy": strategy}]) == {}


def test_rewards_are_ordered_and_named(tmp_path: Path) -> None:
    # Steps: 1, 2, 3 and 2, 4, 6: means 2 and 4, sample deviations 1 and 2. Client 8 is at the mean, reward 1;
    # the others are one deviation away at both steps, exp(-1/2) = 0.606531.
    cohort = {"cohort_clients": np.array([5.0, 8.0, 9.0]), "cohort_round": np.array(3.0)}
    small = {"cohort_losses": np.array([[1.0, 2], [2, 4], [3, 6]]), **cohort}
    drawn, heat = of_method(tmp_path, small).values()
    assert drawn.title == "Losses of the 3 clients of round 3, and their rewards"
    rewarded = {"client 8, reward 1.00": [2, 4], "client 9, reward 0.61": [3, 6]}
    assert lines(drawn) == {"cohort's mean": [2, 4], **rewarded}
    assert [(row["low"], row["high"]) for row in rows(drawn, "area")] == [([1, 2], [3, 6])]
    assert rows(heat, "rect") == [2, 4, 1, 2, 3, 6]
    found = charts.rewards_of(small)
    np.testing.assert_allclose(found[1], [1, 0.606531, 0.606531], atol=1e-6)
    assert charts.rewards_of({}) is None


def test_a_split_in_its_plane(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients 0, 1 and 3, 4 are alike; client 2 is in another cluster. The change after round 2 parts them.
    groups = [0, 0, 1, 2, 2]
    affinity = np.where(np.equal.outer(groups, groups), 0.9, 0.1)
    np.fill_diagonal(affinity, 1)
    affinity[2] = affinity[:, 2] = np.nan
    (finished_run / "clusters.json").write_text(json.dumps([{"round": 2, "assignment": groups}]))
    small = {"affinity_round_2": affinity, "affinity_round_3": affinity}  # round 3 has no assignment
    (drawn,) = method_pictures(SavedRun(finished_run), small)
    found = rows(drawn, "point")
    assert drawn.title == "Split in round 2"
    assert [one["name"] for one in found] == ["client 0", "client 1", "client 3", "client 4"]
    assert [one["group"] for one in found] == ["cluster 0, 2 clients"] * 2 + ["cluster 2, 2 clients"] * 2
    # The eigenvector of the second least eigenvalue has one sign on each pair, and one size.
    first = np.array([one["x"] for one in found])
    assert first[0] * first[2] < 0
    np.testing.assert_allclose(np.abs(first), np.abs(first[0]), rtol=1e-4)
    monkeypatch.setattr(charts, "_MOST_DOTS", 3)
    (drawn,) = method_pictures(SavedRun(finished_run), small)
    assert drawn.note.endswith("3 of 4 clients are drawn.")


def test_what_each_clusters_model_answers_and_nothing_of_empty_arrays(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        recorder.assignment(0, [0, 1], "start")
        # Clients of cluster 4 with the model of cluster 7: label 0 always right, label 1 once of two.
        confusion = np.array([[[[1, 1], [0, 2]], [[2, 0], [1, 1]]], [[[0, 0], [0, 0]], [[5, 0], [0, 5]]]])
        recorder.matrices(
            confusion=confusion, confusion_clusters=[4, 7], silhouette_numbers=[], silhouette_scores=[],
            curve_points=[0.0, 1.0], curve_pairs=np.empty((0, 2)),
            curve_losses=np.empty((0, 2)), line_losses=np.empty((0, 2)),
        )  # fmt: skip
    (drawn,) = pictures(SavedRun(tmp_path / "run"))
    assert rows(drawn, "rect") == [50, 50, 100, 0, 0, 100, 50, 50, 0, 0, 100, 0, 0, 0, 0, 100]
    assert names(drawn)[0][:2] == ["clients of cluster 4, class 0", "clients of cluster 4, class 1"]
    assert names(drawn)[1][2] == "model of cluster 7 predicts 0"


def test_a_cohort_as_large_as_the_federation_is_no_matrix(finished_run: Path) -> None:
    losses = np.arange(16.0).reshape(4, 4)  # four clients, four steps
    np.savez(
        finished_run / "matrices.npz", cohort_losses=losses, cohort_clients=np.arange(4.0), cohort_round=3.0
    )
    found = [picture.name for picture in pictures(SavedRun(finished_run))]
    assert "rewards" in found
    assert "cohort_losses" not in found
