"""The commands of docs/TRACKERS.md for Hydra's plugins, three trials each."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedclust
from fedclust.data.loading import load
from fedclust.settings.composition import ConfigError, compose, plain

QUICK = (
    *("rounds=3", "strategy=fedavg", "compare=[]", "proof=false", "training.mode=sequential"),
    # A model that does not beat guessing ends its job with 3: this one does, at all rates of the tests.
    *("training.steps=20", "training.optimizer=adam", "partition.num_clients=3", "partition.groups=[3]"),
)


def sweep(folder: Path, figure: str, *arguments: str) -> list[float]:
    """Run a sweep and return a figure of each of its jobs, which print a line each."""
    done = subprocess.run(
        [sys.executable, "-m", "fedclust", "-m", *arguments, *QUICK, f"output_dir={folder}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
    )
    assert done.returncode == 0, done.stderr
    jobs = [folder / str(job) for job in range(3)]
    for job in jobs:  # a line each, after the name of its process under Ray
        assert done.stdout.count(f"{os.path.relpath(job)} (") == 1
    return [json.loads((job / "summary.json").read_text())[figure] for job in jobs]


def needs(plugin: str, extra: str) -> None:
    if importlib.util.find_spec("hydra_plugins") is None or not importlib.util.find_spec(plugin):
        pytest.skip(f"needs fedclust[{extra}]")


def test_optuna_searches_an_interval_for_the_best_score_of_held_out_rows(tmp_path) -> None:
    needs("hydra_plugins.hydra_optuna_sweeper", "optuna")
    scores = sweep(
        tmp_path,
        "validation_brier",
        "hydra/sweeper=optuna",
        "objective=validation_brier",
        "hydra.sweeper.direction=minimize",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.n_jobs=1",
        "training.learning_rate=tag(log,interval(0.001,0.1))",
    )
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert found["best_value"] == min(scores)
    assert 0.001 <= found["best_params"]["training.learning_rate"] <= 0.1


@pytest.mark.parametrize("personal", ["none", "prior"])
def test_a_job_is_scored_on_held_out_rows_and_not_on_test_rows(tmp_path: Path, personal: str) -> None:
    given = ["objective=validation_brier", f"personal={personal}", "seed=3", *QUICK[:-2], "rounds=3"]
    given += ["partition=dirichlet", "partition.num_clients=4", f"output_dir={tmp_path / 'run'}"]
    result = fedclust.run(given)
    config = compose(given)
    data = load(plain(config.dataset), plain(config.partition), 3)
    sums, scores = {"validation": 0, "test": 0}, {"validation": 0.0, "test": 0.0}
    for part in sums:
        for client, rows in enumerate(getattr(data, part)):
            chances = result.predict(client, np.asarray(data.inputs[rows])).numpy()
            for row, chance in zip(rows, chances, strict=True):
                right = np.eye(data.num_classes)[data.labels[row]]
                scores[part] += float(np.square(chance - right).sum())
                sums[part] += 1
    assert sums["validation"] > 20  # a tenth of the training rows, without being asked for
    assert result.summary["validation_brier"] == pytest.approx(
        scores["validation"] / sums["validation"], 1e-4
    )
    assert result.summary["validation_brier"] != pytest.approx(scores["test"] / sums["test"], 1e-2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["partition.validation_fraction=0"],
            "must be > 0 for objective=validation_brier, which measures on ",
        ),
        (["privacy=client_dp"], "objective must be other than validation_brier with privacy=client_dp"),
    ],
)
def test_what_has_no_score_of_held_out_rows(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedclust.run(["objective=validation_brier", "strategy=fedavg", "compare=[]", *given])


def test_ray_launches_the_jobs_of_a_sweep(tmp_path) -> None:
    needs("hydra_plugins.hydra_ray_launcher", "ray-launcher")
    accuracies = sweep(
        tmp_path,
        "mean_client_accuracy",
        "hydra/launcher=ray",
        "+hydra.launcher.ray.init.num_cpus=2",
        "training.learning_rate=0.1,0.01,0.001",
    )
    assert len(accuracies) == 3
