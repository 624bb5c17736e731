"""What the pages about a user's own strategy tell to write and run works as it is written there."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fedclust.messages.models import from_state
from tests.strategies.helpers import Weights

ROOT = Path(__file__).parent.parent
PAGES = {"by_size": "A_ONE_SHOT_STRATEGY.md", "by_loss": "A_STRATEGY_WITH_ROUNDS.md"}
SMALL = ("rounds=2", "partition.num_clients=6", "training.steps=2", "compare=[]")
ENDED = (0, 3)  # 3: two rounds need not be better than chance


def _blocks(name: str, language: str) -> list[str]:
    page = (ROOT / "docs" / PAGES[name]).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def _write(name: str, folder: Path) -> None:
    """Write the files of a page."""
    page = (ROOT / "docs" / PAGES[name]).read_text("utf-8")
    files = re.findall(r"^`(mine/\S+)`[^`]+```\w+\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(files) == 3
    for path, content in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, "utf-8")


def _type(line: str, folder: Path, *further: str, fedclust: Path) -> subprocess.CompletedProcess[str]:
    """Type a line of a page in a folder, with further settings, as the user of some copy of fedclust."""
    script = "import sys; from fedclust.runs.command_line import main; sys.path.remove(''); main()"
    words = {"fedclust": [sys.executable, "-c", script], "pytest": [sys.executable, "-m", "pytest"]}
    command, *rest = line.split()
    where = {**os.environ, "PYTHONPATH": str(fedclust)}
    return subprocess.run(
        [*words[command], *rest, *further], cwd=folder, env=where, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of both pages into a package of one's own, and return the folder that it is in."""
    folder = tmp_path_factory.mktemp("own")
    for name in PAGES:
        _write(name, folder)
    return folder


def _results(folder: Path) -> tuple[pd.DataFrame, list[dict], dict]:
    """Read a run's clients, assignments and configuration."""
    clusters = json.loads((folder / "clusters.json").read_text("utf-8"))
    config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    return pd.read_parquet(folder / "clients.parquet"), clusters, config


def test_clusters_formed_once(folder: Path, run, monkeypatch: pytest.MonkeyPatch, pages: None) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder to it
    _, *words = _blocks("by_size", "sh")[0].split()
    done = run(*words, *SMALL, "output_dir=once")
    assert done.code in ENDED, done.complained
    clients, clusters, _ = _results(folder / "once")
    assert set(clients.num_train >= 100) == {True, False}
    assert clients.cluster.tolist() == (clients.num_train >= 100).tolist()
    assert [each["reason"] for each in clusters] == ["before round 1"]
    assert (folder / "once" / "report.html").is_file()


def test_clusters_chosen_in_every_round(folder: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    _, *words = _blocks("by_loss", "sh")[0].split()
    done = run(*words, *SMALL, "partition.groups=[3,3]", "output_dir=chosen")
    assert done.code in ENDED, done.complained
    _, clusters, config = _results(folder / "chosen")
    assert config["strategy"]["parameters"]["num_clusters"] == 3
    assert [each["reason"] for each in clusters[:2]] == ["before round 1", "clients chose"]
    assert set(clusters[0]["assignment"]) == {0}
    assert len(set(clusters[-1]["assignment"])) > 1


@pytest.fixture
def by_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(folder)
    return import_module("mine.strategies.by_loss").ByLoss


def test_each_client_chooses_the_model_that_fits_it_best(by_loss, toy, watch) -> None:
    strategy = by_loss(network=Weights(5, 5))
    strategy.observer = watch
    federation = toy(num_clients=6, move=lambda *_: 0.0)
    strategy.start(federation.grid(2), from_state(Weights(5, 5).state_dict()), num_rounds=1)
    # The toy's loss is |client − first entry|: clients 0, 1, 2 are nearer to 0, clients 3, 4, 5 to 5.
    assert watch.assignments[1] == (1, [0, 0, 0, 1, 1, 1], "clients chose")
    started = {client: start for client, _, start in federation.trained}
    assert [round(started[client]) for client in range(6)] == [0, 0, 0, 5, 5, 5]


def test_a_client_that_cannot_choose_stays(by_loss, toy, watch) -> None:
    strategy = by_loss(network=Weights(5, 5))
    strategy.observer = watch
    federation = toy(num_clients=6, error=lambda client, r: "busy" if (client, r) == (5, 0) else None)
    strategy.start(federation.grid(), from_state(Weights(5, 5).state_dict()), num_rounds=1)
    assert strategy.assignment[5] == 0
    failed = [(failure["client"], failure["phase"]) for failure in watch.rounds[0]["failures"]]
    assert failed == [(5, "query.losses"), (5, "query.losses")]  # before the round, and before evaluation


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("by_size", "treshold=5", "unknown key 'strategy.treshold': did you mean 'threshold'? strategy=by_s"),
        ("by_size", "threshold=x", "strategy.threshold must be a whole number, got 'x'"),
        ("by_size", "threshold=0", "strategy.threshold must be >= 1, got 0"),
        ("by_loss", "parameters.num_clusters=0", "strategy.parameters.num_clusters must be >= 1, got 0"),
        ("by_loss", "parameters.clusters=2", "unknown key 'strategy.parameters.clusters': did you mean 'num"),
    ],
)
def test_a_wrong_setting_ends_in_one_line(
    name: str, setting: str, message: str, folder: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    done = run("--config-dir", f"{folder}/mine/conf", f"strategy={name}", f"strategy.{setting}")
    assert (done.code, done.printed, done.complained.count("\n")) == (2, "", 1)
    assert done.complained.startswith(f"fedclust: {message}")


def test_what_a_users_own_file_misspells_is_named(
    folder: Path, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(folder)
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "mine.yaml").write_text(
        "_target_: mine.strategies.by_size.BySize\ntreshold: 5\n"
    )
    slip = "unknown key 'strategy.treshold' (did you mean 'threshold'?)"
    known = "strategy has parameters, selection, threshold"
    assert run("--config-dir", ".", "strategy=mine").complained == f"fedclust: {slip}: {known}\n"


def test_in_this_repository(folder: Path, tmp_path: Path) -> None:
    """Type the page's last part in a copy; the contract tests then find the strategy by themselves."""
    for part in ("fedclust", "strategies", "clients", "conf", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(folder / "mine", tmp_path / "mine")
    _, copies, commands = _blocks("by_size", "sh")
    subprocess.run(copies, shell=True, check=True, cwd=tmp_path)
    shutil.rmtree(tmp_path / "mine")
    public = tmp_path / "strategies" / "__init__.py"
    text = public.read_text("utf-8")
    for line in _blocks("by_size", "text")[0].splitlines():
        neighbour = line[: line.index("by_size")] + "cfl"
        assert text.count(neighbour) == 1
        text = text.replace(neighbour, f"{line}\n{neighbour}")
    public.write_text(text, "utf-8")
    run, contract = commands.splitlines()
    done = _type(run, tmp_path, *SMALL, "output_dir=once", fedclust=tmp_path)
    assert done.returncode in ENDED, done.stderr
    clients, _, config = _results(tmp_path / "once")
    assert config["strategy"]["_target_"] == "fedclust.strategies.by_size.BySize"
    assert clients.cluster.tolist() == (clients.num_train >= 100).tolist()
    done = _type(contract, tmp_path, "--quiet", fedclust=tmp_path)
    assert re.search(r"^\d{1,2} passed", done.stdout, re.MULTILINE), done.stdout
