"""``flwr run`` from the command line: Flower's own simulation, in separate processes."""

import importlib
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from flwr.cli.app import app as flwr
from typer.testing import CliRunner

import fedclust
from fedclust.results import SavedRun
from fedclust.settings.allowed import from_run_config
from fedclust.settings.composition import CONF, plain

APP = CONF.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))
# Splits in round 4, so that there is an assignment to agree on, and trains the same way everywhere.
OVERRIDES = (
    "rounds=6",
    "partition.num_clients=8",
    "partition.groups=[5,3]",
    "compare=[]",
    "personal=finetune",
    "seed=2",
    "training.mode=sequential",
    "participation=1",
    "strategy=fedgwc",
    "strategy.parameters.step_size=0.1",
    "strategy.parameters.max_clusters=2",
    "strategy.parameters.min_cluster_size=3",
    "strategy.parameters.patience=4",
    "strategy.parameters.tolerance=1",
    "strategy.parameters.max_davies_bouldin=10",
)


@dataclass(frozen=True)
class Flower:
    """Flower's command line, with a home folder and a SuperLink of the test's own."""

    environment: dict[str, str]
    folder: Path

    def start(self, *arguments: str, command: str = "flwr") -> subprocess.Popen:
        """Start a command in a folder that is not the app's."""
        return subprocess.Popen(
            [SCRIPTS / command, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *arguments: str) -> str:
        """Run one of Flower's quick commands in this process; give what it prints."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            return CliRunner().invoke(flwr, arguments).output


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Start the SuperLink that `flwr run` would start, so as to be able to stop it."""
    folder = tmp_path_factory.mktemp("flower")
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(APP / "benchmarks")
        deployment = importlib.import_module("deployment")
    quick = {"OMP_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}
    with deployment.flower(folder / "home", 0, os.environ | quick) as started:
        yield Flower(started.env, folder)


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """The same federation in this process."""
    return fedclust.run([*OVERRIDES, f"output_dir={tmp_path_factory.mktemp('local')}"]).saved


def _assert_same(run: SavedRun, local: SavedRun, tolerance: float = 1e-5) -> None:
    """Expect the same assignment, and the same figures to float tolerance."""
    assert run.changes == local.changes
    assert [line["cohort"] for line in run.rounds] == [line["cohort"] for line in local.rounds]
    for line, expected in zip(run.rounds, local.rounds, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=tolerance)
    for key in ("global_accuracy", "mean_client_accuracy", "balanced_accuracy", "macro_f1", "ad", "sdad"):
        assert run.summary[key] == pytest.approx(local.summary[key], abs=tolerance), key
    assert run.summary["failed_replies"] == 0
    figures, expected = (each.summary["personal"]["figures"]["finetune"] for each in (run, local))
    assert figures["mean_client_accuracy"] == pytest.approx(expected["mean_client_accuracy"], abs=tolerance)


def test_this_federation_splits(local_run: SavedRun) -> None:
    assert local_run.summary["num_clusters"] > 1


@pytest.fixture(scope="module")
def bundle(flower: Flower) -> Path:
    """Build the file that `flwr build` makes, and unpack it as Flower does where it runs it."""
    flower("build", "--app", str(APP))
    (file,) = flower.folder.glob("*.fab")
    flower("install", str(file))
    (unpacked,) = (flower.folder / "home" / "apps").glob("fedclust.fedclust.*")
    return unpacked


def test_what_flwr_build_makes(bundle: Path) -> None:
    """The four folders beside each other, whole, and nothing else."""
    kinds = {"fedclust": "*.py", "strategies": "*.py", "clients": "*.py", "conf": "*.yaml"}
    expected = {path.relative_to(APP) for part, kind in kinds.items() for path in (APP / part).rglob(kind)}
    assert expected > {Path("strategies/fedgwc.py"), Path("clients/app.py"), Path("conf/config.yaml")}
    expected |= {path.relative_to(APP) for path in (APP / "fedclust").rglob("*.md")}
    found = {path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file()}
    assert found == expected | {Path("pyproject.toml"), Path("LICENSE")}


def test_a_run_is_resumed_by_the_bundle_on_flowers_nodes(
    flower: Flower, bundle: Path, local_run: SavedRun
) -> None:
    """Four rounds in this process, two more on Flower's nodes by the bundle: as six without a break.

    ``engine=superlink`` is ``flwr run`` with another face; a relative folder is the caller's. The split of
    round 4 is in the checkpoint.
    """
    results = flower.folder / "resumed"
    before = fedclust.run([*OVERRIDES, "rounds=4", f"output_dir={results}"]).saved
    unpacked = replace(flower, environment=flower.environment | {"PYTHONPATH": str(bundle)})
    nodes = "engine.federation_config='num-supernodes=3 client-resources-num-cpus=2'"
    engine = ("engine=superlink", "engine.connection=local", nodes)
    process = unpacked.start(*engine, "resume=resumed", "rounds=6", command="fedclust")
    printed, _ = process.communicate(timeout=600)
    assert f"results: {results}" in printed, printed
    run = SavedRun(results)
    assert run.config["output_dir"] == str(results)
    assert 'data-live="no"' in (results / "report.html").read_text()
    # To the byte: they were not run again. The fourth was, as it had been evaluated for being the last.
    assert run.rounds[:3] == before.rounds[:3]
    _assert_same(run, local_run, tolerance=1e-6)
    np.testing.assert_array_equal(run.clients["cluster"], local_run.clients["cluster"])
    np.testing.assert_allclose(run.clients["accuracy"], local_run.clients["accuracy"], atol=1e-6)
    # `flwr run` may be told ``resume=`` itself: it is composed to the same configuration.
    told = from_run_config({"overrides": f"resume={results} rounds=6"})
    written = {"output_dir": None, "overrides": None}  # in other words
    assert {**plain(told), **written} == {**run.config, **written}
