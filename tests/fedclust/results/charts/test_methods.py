import json
from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder
from fedclust.results.charts import run as charts
from fedclust.results.charts.chart import Picture
from fedclust.results.charts.run import method_pictures, pictures, rewards_of
from fedclust.results.saved_run import SavedRun

from .data import lines, marks, names, rows


def saved(folder: Path, reports: list[dict] | None = None, tolerance: float | None = None) -> SavedRun:
    reported = [{"round": 1}] if reports is None else reports
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reported))
    if tolerance is not None:
        (folder / "config.yaml").write_text(f"strategy: {{parameters: {{tolerance: {tolerance}}}}}\n")
    return SavedRun(folder)


def made(folder: Path, small: dict | None = None, **run: object) -> dict[str, Picture]:
    return {each.name: each for each in method_pictures(saved(folder, **run), small or {})}  # type: ignore[arg-type]


def test_choices_say_which_number_is_best(tmp_path: Path) -> None:
    small = {
        "silhouette_numbers": np.array([2, 3, 4]), "silhouette_scores": np.array([0.25, 0.5, np.nan]),
        "error_ratio_numbers": np.array([2, 3]), "error_ratios": np.array([0.75, 0.875]),
        "error_ratio_limit": np.array(0.7),
    }  # fmt: skip
    found = made(tmp_path, small)
    assert lines(found["silhouette"]) == {"mean silhouette": [0.25, 0.5, None]}
    assert found["silhouette"].note == "The best is 3 clusters, 0.500."
    assert lines(found["error_ratios"])["clients are split below 0.7"] == [0.7, 0.7]
    assert found["error_ratios"].note == "The best is 2 clusters, 0.750."


def test_separations_of_each_cluster(tmp_path: Path) -> None:
    # Round, cluster, parts, separation, what came of it. Of two fits in a round that of which something came.
    tests = np.array(
        [[2, 0, 2, 0.5, 0], [4, 0, 2, 1.25, 2], [4, 0, 3, 1.5, 0], [6, 1, 2, np.nan, 0], [8, 1, 3, 1.125, 1]]
    )
    drawn = made(tmp_path, {"separations": tests})["separations"]
    assert [(row["x"], row["y"]) for row in rows(drawn)] == [([2, 4], [0.5, 1.25]), ([8], [1.125])]
    assert marks(drawn) == [(4, "cluster 0: split, 2 parts"), (8, "cluster 1: proposed, 3 parts")]


def test_chains_between_models(tmp_path: Path) -> None:
    small = {
        "curve_pairs": np.array([[0, 2], [1, 2]]), "curve_points": np.array([0.0, 0.5, 1.0]),
        "curve_losses": np.array([[0.2, 0.1, 0.0], [0.3, np.inf, 0.0]]),
        "line_losses": np.array([[0.2, 0.4, 0.0], [0.3, 0.5, 0.0]]),
    }  # fmt: skip
    (tmp_path / "clusters.json").write_text('[{"round": 0, "assignment": [0, 1, 0]}]')
    first, second = made(tmp_path, small).values()
    assert first.title == "From client 0's model to client 2's, same cluster"
    assert second.title == "From client 1's model to client 2's, apart"
    assert lines(first) == {"fitted chain": [0.2, 0.1, 0], "straight line": [0.2, 0.4, 0]}
    assert lines(second)["fitted chain"] == [0.3, None, 0]


def test_traces_of_losses(tmp_path: Path) -> None:
    # Round, client, entry, part: clients 5 and 9 in part 0; client 7 in part 1, not asked in round 2.
    entries = np.array([[1, 5, 1, 0], [1, 7, -4, 1], [1, 9, 3, 0], [2, 5, 2, 0], [2, 9, 2, 0]], dtype=float)
    drawn, heat = made(tmp_path, {"loss_trace_cluster_3_round_7": entries}).values()
    assert (drawn.name, drawn.title) == (
        "loss_trace_cluster_3_round_7",
        "Losses in cluster 3, up to its split in round 7",
    )
    assert [(row["line"], row["y"], row["low"], row["high"]) for row in rows(drawn)] == [
        ("part 0, 2 clients", [2, 2], [1, 2], [3, 2]),
        ("part 1, 1 client", [-4], [-4], [-4]),
    ]
    assert rows(heat, "rect") == [1, 2, 3, 2, -4, ""]
    assert names(heat) == (["client 5", "client 9", "client 7"], ["round 1", "round 2"])
    assert heat.page_only


def test_long_traces_are_shrunk(tmp_path: Path) -> None:
    # 200 clients over 300 rounds, each entry its client's number: two clients and three rounds in a cell.
    rounds, clients = np.meshgrid(np.arange(300), np.arange(200))
    entries = (
        np.stack([rounds, clients, clients, np.zeros_like(rounds)], axis=-1).reshape(-1, 4).astype(float)
    )
    drawn, heat = made(tmp_path, {"loss_trace_cluster_0": entries}).values()
    assert len(rows(heat, "rect")) == 100 * 100
    assert rows(heat, "rect")[0] == 0.5  # the mean of 0 and 1
    assert names(heat)[0][1] == "client 2 and 1 more"
    assert len(rows(drawn)[0]["x"]) == 300


def report(mse: float, **more: object) -> dict:
    return {"mse": mse, "pair_coverage": 0.5, **more}


def test_convergence_of_each_cluster_and_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [
        {"round": 1, "strategy": {"0": report(0.5)}},
        {"round": 2, "strategy": {"0": report(0.01, split=True)}},
        {"round": 4, "strategy": {"0": report(1), "10": report(0.25), "2": report(1)}},
    ]
    drawn = made(tmp_path, reports=reports, tolerance=0.05)["interaction_convergence"]
    # Cluster 2 stays at 1: no two of its clients have met.
    assert [(row["line"], row["x"], row["y"]) for row in rows(drawn)] == [
        ("cluster 0", [1, 2, 4], [0.5, 0.01, 1]),
        ("cluster 10", [4], [0.25]),
        ("split is tried below", [1, 4], [0.05, 0.05]),
    ]
    assert marks(drawn) == [(2, "cluster 0 was split")]
    monkeypatch.setattr(charts, "_MOST_CLUSTERS", 1)
    assert made(tmp_path, reports=reports)["interaction_convergence"].note.endswith(
        "The first 1 of 2 clusters."
    )


def test_of_a_long_run_the_rounds_of_splits_are_kept(tmp_path: Path) -> None:
    reports = [{"round": number, "strategy": {"0": report(0.5)}} for number in range(1, 1001)]
    reports[499]["strategy"] = {"0": report(0.25, split=True)}
    (row,) = rows(made(tmp_path, reports=reports)["interaction_convergence"])
    # 300 of 1,000 rounds, every 999/299th: round 500 is not among them (1 + 149 · 3.34 = 498.8, then 502.2).
    assert len(row["x"]) == 301
    assert row["y"][row["x"].index(500)] == 0.25


@pytest.mark.parametrize("strategy", [{}, {"decision": "none"}, {"0": {"parts": 2}}])
def test_other_methods_have_no_convergence(tmp_path: Path, strategy: dict) -> None:
    assert made(tmp_path, reports=[{"round": 1, "strategy": strategy}]) == {}


def test_rewards_are_ordered_and_named(tmp_path: Path) -> None:
    # Steps: 1, 2, 3 and 2, 4, 6: means 2 and 4, sample deviations 1 and 2. Client 8 is at the mean, reward 1;
    # the others are one deviation away at both steps, exp(-1/2) = 0.606531.
    small = {
        "cohort_losses": np.array([[1.0, 2], [2, 4], [3, 6]]),
        "cohort_clients": np.array([5.0, 8.0, 9.0]),
        "cohort_round": np.array(3.0),
    }
    drawn, heat = made(tmp_path, small).values()
    assert drawn.title == "Losses of the 3 clients of round 3, and their rewards"
    assert lines(drawn) == {
        "cohort's mean": [2, 4],
        "client 8, reward 1.00": [2, 4],
        "client 9, reward 0.61": [3, 6],
    }
    assert [(row["low"], row["high"]) for row in rows(drawn, "area")] == [([1, 2], [3, 6])]
    assert rows(heat, "rect") == [2, 4, 1, 2, 3, 6]
    found = rewards_of(small)
    assert found is not None
    np.testing.assert_allclose(found[1], [1, 0.606531, 0.606531], atol=1e-6)
    assert rewards_of({}) is None


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
            loss_trace_cluster_0=np.empty((0, 4)), error_ratio_numbers=[], error_ratios=[],
            separations=[[6, 0, 2, -np.inf, 0]], curve_points=[0.0, 1.0], curve_pairs=np.empty((0, 2)),
            curve_losses=np.empty((0, 2)), line_losses=np.empty((0, 2)),
        )  # fmt: skip
    (drawn,) = pictures(SavedRun(tmp_path / "run"))
    assert rows(drawn, "rect") == [50, 50, 100, 0, 0, 100, 50, 50, 0, 0, 100, 0, 0, 0, 0, 100]
    assert names(drawn)[0][:2] == ["clients of cluster 4, class 0", "clients of cluster 4, class 1"]
    assert names(drawn)[1][2] == "model of cluster 7 says 0"


def test_a_cohort_as_large_as_the_federation_is_no_matrix(finished_run: Path) -> None:
    losses = np.arange(16.0).reshape(4, 4)  # four clients, four steps
    np.savez(
        finished_run / "matrices.npz", cohort_losses=losses, cohort_clients=np.arange(4.0), cohort_round=3.0
    )
    found = [picture.name for picture in pictures(SavedRun(finished_run))]
    assert "rewards" in found
    assert "cohort_losses" not in found
