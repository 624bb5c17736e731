"""The commands of docs/TRACKERS.md for Hydra's plugins, three trials each."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

QUICK = (
    *("rounds=3", "strategy=fedavg", "compare=[]", "proof=false", "training.mode=sequential"),
    # A model that does not beat guessing ends its job with 3: this one does, at all rates of the tests.
    *("training.steps=20", "training.optimizer=adam", "partition.num_clients=3", "partition.groups=[3]"),
)


def sweep(folder: Path, *arguments: str) -> list[float]:
    """Run a sweep and return its jobs' accuracies."""
    done = subprocess.run(
        [sys.executable, "-m", "fedclust", "-m", *arguments, *QUICK, f"output_dir={folder}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr
    paths = [folder / str(job) / "summary.json" for job in range(3)]
    return [json.loads(path.read_text())["mean_client_accuracy"] for path in paths]


def needs(plugin: str, extra: str) -> None:
    if importlib.util.find_spec("hydra_plugins") is None or not importlib.util.find_spec(plugin):
        pytest.skip(f"needs fedclust[{extra}]")


def test_optuna_searches_an_interval_for_the_best_accuracy(tmp_path) -> None:
    needs("hydra_plugins.hydra_optuna_sweeper", "optuna")
    accuracies = sweep(
        tmp_path,
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.n_jobs=1",
        "training.learning_rate=tag(log,interval(0.001,0.1))",
    )
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert found["best_value"] == max(accuracies)
    assert 0.001 <= found["best_params"]["training.learning_rate"] <= 0.1


def test_ray_launches_the_jobs_of_a_sweep(tmp_path) -> None:
    needs("hydra_plugins.hydra_ray_launcher", "ray-launcher")
    accuracies = sweep(
        tmp_path,
        "hydra/launcher=ray",
        "+hydra.launcher.ray.init.num_cpus=2",
        "training.learning_rate=0.1,0.01,0.001",
    )
    assert len(accuracies) == 3
