"""FedGWC's own figures on the page, against values worked out by hand."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from fedclust.results.page import fedgwc
from fedclust.results.page.fedgwc import view_convergence, view_rewards, view_splits
from fedclust.results.saved_run import SavedRun


def saved(folder: Path, lines: list[dict], tolerance: float | None = None) -> SavedRun:
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if tolerance is not None:
        (folder / "config.yaml").write_text(f"strategy: {{parameters: {{tolerance: {tolerance}}}}}\n")
    return SavedRun(folder)


def report(mse: float, **more: object) -> dict:
    return {"mse": mse, "pair_coverage": 0.5, **more}


def test_a_curve_per_cluster_and_a_mark_per_split(tmp_path: Path) -> None:
    run = saved(
        tmp_path,
        [
            {"round": 1, "strategy": {"0": report(0.5)}},
            {"round": 2, "strategy": {"0": report(0.01, split=True)}},
            {"round": 4, "strategy": {"0": report(1), "10": report(0.25), "2": report(1)}},
        ],
        tolerance=0.05,
    )
    (curve,) = view_convergence(run)
    assert curve.logarithmic
    assert curve.x == [1, 2, 4]
    # Cluster 2 stays at 1: no two of its clients have met.
    assert [(line.name, line.y) for line in curve.lines] == [
        ("cluster 0", [0.5, 0.01, 1]),
        ("cluster 10", [None, None, 0.25]),
        ("split is tried below", [0.05, 0.05, 0.05]),
    ]
    assert curve.marks == [[2, "cluster 0 was split"]]


def test_of_a_long_run_the_rounds_of_splits_are_kept(tmp_path: Path) -> None:
    lines = [{"round": number, "strategy": {"0": report(0.5)}} for number in range(1, 1001)]
    lines[499]["strategy"] = {"0": report(0.25, split=True)}
    (curve,) = view_convergence(saved(tmp_path, lines))
    # 300 of 1,000 rounds, every 999/299th: round 500 is not among them (1 + 149 * 3.34 = 498.8, then 502.2).
    assert len(curve.x) == 301
    assert curve.lines[0].y[curve.x.index(500)] == 0.25
    assert len(curve.lines) == 1


def test_of_many_clusters_the_first_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedgwc, "_MOST_CLUSTERS", 2)
    reports = {str(cluster): report(0.5, split=True) for cluster in range(3)}
    (curve,) = view_convergence(saved(tmp_path, [{"round": 1, "strategy": reports}]))
    assert [line.name for line in curve.lines] == ["cluster 0", "cluster 1"]
    assert len(curve.marks) == 2
    assert curve.note.endswith("The first 2 of 3 clusters.")


@pytest.mark.parametrize("strategy", [{}, {"decision": "none"}, {"0": {"parts": 2}}])
def test_other_methods_have_no_convergence(tmp_path: Path, strategy: dict) -> None:
    assert view_convergence(saved(tmp_path, [{"round": 1, "strategy": strategy}])) == []


def test_rewards_are_ordered_and_named() -> None:
    # Steps: 1, 2, 3 and 2, 4, 6: means 2 and 4, sample deviations 1 and 2. Client 8 is at the mean, reward 1;
    # the others are one deviation away at both steps, exp(-1/2) = 0.606531.
    found = view_rewards(
        {
            "cohort_losses": np.array([[1.0, 2], [2, 4], [3, 6]]),
            "cohort_clients": np.array([5.0, 8.0, 9.0]),
            "cohort_round": np.array(3.0),
        }
    )
    assert found is not None
    assert found.clients == [8, 5, 9]
    assert found.rewards == [1, 0.606531, 0.606531]
    assert found.losses == [3, 1.5, 4.5]
    trace = found.trace
    assert trace.title == "Losses of the 3 clients of round 3, and their rewards"
    assert trace.members == [[8], [5], [9]]
    assert trace.notes == ["reward 1.00", "reward 0.61", "reward 0.61"]
    assert (trace.spans, trace.column, trace.parts) == ([[1, 1], [2, 2]], "step", [])
    codes = np.frombuffer(base64.b64decode(trace.values), dtype="<u2").reshape(3, 2)
    # (value - 1) / 5 of 65533: 2 is 13106.6, 4 is 39319.8, 3 is 26213.2.
    np.testing.assert_array_equal(codes, [[13107, 39320], [0, 13107], [26213, 65533]])
    assert [(line.name, line.y, line.low, line.high) for line in trace.means.lines] == [
        ("cohort's mean", [2, 4], [1, 2], [3, 6]),
        ("client 8, reward 1.00", [2, 4], None, None),
        ("client 9, reward 0.61", [3, 6], None, None),
    ]


def test_without_losses_there_are_no_rewards() -> None:
    assert view_rewards({}) is None


def test_a_split_in_its_plane(finished_run: Path) -> None:
    # Clients 0, 1 and 3, 4 are alike; client 2 is in another cluster. The change after round 2 parts them.
    groups = [0, 0, 1, 2, 2]
    affinity = np.where(np.equal.outer(groups, groups), 0.9, 0.1)
    np.fill_diagonal(affinity, 1)
    affinity[2] = affinity[:, 2] = np.nan
    np.savez(finished_run / "matrices.npz", affinity_round_2=affinity, affinity_round_3=affinity)
    (finished_run / "clusters.json").write_text(json.dumps([{"round": 2, "assignment": groups}]))
    (dots,) = view_splits(SavedRun(finished_run))  # round 3 has no assignment
    assert dots.title == "Split in round 2"
    assert dots.clients == [0, 1, 3, 4]
    assert dots.clusters == [0, 0, 2, 2]
    # The eigenvector of the second least eigenvalue has one sign on each pair, and one size.
    first = np.array(dots.x, dtype=float)
    assert first[0] * first[2] < 0
    np.testing.assert_allclose(np.abs(first), np.abs(first[0]), rtol=1e-4)


def test_of_many_clients_some_are_drawn(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedgwc, "_MOST_DOTS", 3)
    rng = np.random.default_rng(0)
    affinity = rng.random((5, 5))
    np.savez(finished_run / "matrices.npz", affinity_round_2=(affinity + affinity.T) / 2)
    (finished_run / "clusters.json").write_text(json.dumps([{"round": 2, "assignment": [0, 0, 1, 1, 1]}]))
    (dots,) = view_splits(SavedRun(finished_run))
    assert dots.clients == [0, 2, 4]
    assert dots.note.endswith("3 of 5 clients are drawn.")
