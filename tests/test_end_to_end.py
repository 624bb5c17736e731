"""Whole runs on real handwriting, in this process."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import fedclust
from fedclust.results import SavedRun, comparable
from fedclust.training.trainer import Trainer
from tests.fedclust.results.test_summary import KEYS

AUTO_KEYS = {
    "verdict", "decision", "decisions", "trials", "looks", "trial_trainings", "trial_rounds",
    "trial_bytes_down", "trial_bytes_up", "serve", "serve_cluster", "proof", "personal",
}  # fmt: skip


def _run(folder: Path, *overrides: str, num_nodes: int = 1) -> SavedRun:
    return fedclust.run([*overrides, f"output_dir={folder}", f"engine.num_nodes={num_nodes}"]).saved


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory, pages: None) -> SavedRun:
    """The default federation, auto and FedAvg; evaluated only at the end."""
    return _run(tmp_path_factory.mktemp("default"), "seed=1", "evaluate_every=1000")


# -- What it is for -------------------------------------------------------------------------------------


def test_the_known_grouping_is_found_and_serves_better_than_one_model(default_run: SavedRun) -> None:
    summary, common = default_run.summary, default_run.summary["compare"]["fedavg"]
    assert summary["rand_index"] >= 0.9
    assert summary["adjusted_rand_index"] >= 0.9
    # One model for all finds no groups, although the plain index is not 0.
    assert common["adjusted_rand_index"] == 0
    assert summary["mean_client_accuracy"] - common["mean_client_accuracy"] >= 0.2


# -- What it leaves behind ------------------------------------------------------------------------------


def test_a_run_leaves_every_file(default_run: SavedRun) -> None:
    folder = default_run.folder
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = {"config.yaml", "rounds.jsonl", "clients.parquet", "clusters.json", "summary.json"}
    own.add("checkpoints/round-000060.safetensors")
    beside = {f"compare/fedavg/{name}" for name in own}
    assert own | beside | {"report.html"} <= names
    assert not [name for name in names if name.endswith(".partial")]


def test_the_summary_has_every_key(default_run: SavedRun) -> None:
    summary = json.loads((default_run.folder / "summary.json").read_text())
    assert summary.keys() >= {*KEYS} | AUTO_KEYS
    assert summary["compare"].keys() == {"fedavg"}
    assert summary["compare"]["fedavg"].keys() >= {*KEYS}
    told = {"strategy": "auto", "seed": 1, "rounds": 60, "num_clients": 30}
    assert {key: summary[key] for key in told} == told


def test_the_files_agree(default_run: SavedRun) -> None:
    summary, last = default_run.summary, default_run.rounds[-1]
    table = pd.read_parquet(default_run.folder / "clients.parquet")
    assert [line["round"] for line in default_run.rounds] == list(range(1, 61))
    assert table["client"].tolist() == list(range(30))
    assert table["cluster"].tolist() == summary["assignment"] == default_run.changes[-1]["assignment"]
    sizes = np.bincount(summary["assignment"]).tolist()
    assert sizes == summary["cluster_sizes"] == last["cluster_sizes"]
    assert len(sizes) == summary["num_clusters"] == last["num_clusters"]
    for key in ("global_accuracy", "mean_client_accuracy", "balanced_accuracy"):
        assert summary[key] == pytest.approx(last[key])
    assert summary["mean_client_accuracy"] == pytest.approx(table["accuracy"].mean())
    assert summary["share_weighted_accuracy"] == pytest.approx(table["share_weighted_accuracy"].mean())
    weights = table["num_test"] / table["num_test"].sum()
    assert last["test_loss"] == pytest.approx((weights * table["loss"]).sum())
    # All that travels is in some round's line; what is asked before round 1, in that of round 1.
    for key in ("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled"):
        assert sum(line[key] for line in default_run.rounds) == summary[key] > 0
    assert table["bytes_down"].sum() == summary["bytes_down_unbundled"]
    assert table["bytes_up"].sum() == summary["bytes_up_unbundled"]
    assert (table["num_train"] > 0).all()
    assert (table["num_test"] > 0).all()


def test_an_assignment_never_changes_without_an_entry(default_run: SavedRun) -> None:
    changes = {change["round"]: max(change["assignment"]) + 1 for change in default_run.changes}
    assert changes[0] == 1
    for line in default_run.rounds:
        known = max(number for number in changes if number <= line["round"])
        assert line["num_clusters"] == changes[known]


def test_the_saved_configuration_is_that_of_the_run(default_run: SavedRun) -> None:
    own, common = default_run.config, default_run.compared["fedavg"].config
    assert own["seed"] == 1
    assert own["choices"]["strategy"] == "auto"
    assert common["choices"]["strategy"] == "fedavg"
    assert common["partition"] == own["partition"]


# -- Names ----------------------------------------------------------------------------------------------


def test_hospitals_and_diagnoses_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    hospitals = ["St. Anna"] * 10 + ["Mercy"] * 10 + ["Cottage"]
    diagnosis = np.where(draws.random(21) < 0.5, "ill", "well")
    frame = pd.DataFrame({"x": draws.random(21), "diagnosis": diagnosis, "hospital": hospitals})
    frame.to_csv(tmp_path / "patients.csv", index=False)
    honest = Trainer.evaluate

    def evaluate(self: Trainer, jobs, **options):
        if any(job.client == 1 for job in jobs):
            raise KeyError("an odd batch")
        return honest(self, jobs, **options)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    out = io.StringIO()
    result = fedclust.run(
        [
            "dataset=csv", f"dataset.path={tmp_path / 'patients.csv'}", "dataset.label=diagnosis",
            "dataset.natural=hospital", "dataset.num_classes=2", "dataset.input_shape=[1]",
            "partition=natural", "model=mlp", "strategy=fedavg", "compare=[]", "rounds=1", "training.steps=1",
            "training.epochs=null", f"output_dir={tmp_path / 'run'}",
        ],
        Console(file=out),
    )  # fmt: skip
    run = result.saved
    assert out.getvalue().startswith("left out, too few examples for a client: 1, Cottage (1)\n")
    assert run.clients["name"].tolist() == ["Mercy", "St. Anna"]
    assert run.rounds[0]["failures"] == [
        {"client": 1, "name": "St. Anna", "phase": "evaluate", "reason": "KeyError: 'an odd batch'"}
    ]
    assert dict(run.matrices())["class_names"].tolist() == ["ill", "well"]
    assert "Mercy, St. Anna" in out.getvalue()


# -- Reproducible ---------------------------------------------------------------------------------------

# The default model always trains in one way; for others it is timed, unless training.mode says which.
SHORT = ("compare=[]", "rounds=10", "evaluate_every=4")


def test_a_seed_gives_the_same_rounds_on_any_number_of_nodes_and_another_one_others(tmp_path: Path) -> None:
    first, spread, other = (
        comparable(_run(tmp_path / str(place), *SHORT, f"seed={seed}", num_nodes=nodes).rounds)
        for place, (seed, nodes) in enumerate(((0, 1), (0, 30), (1, 1)))
    )
    assert spread == first  # to the last bit
    assert [line["cohort"] for line in other] != [line["cohort"] for line in first]
    assert other[0]["loss"] != first[0]["loss"]
