"""A killed run is resumed, and its results equal an uninterrupted run's bit by bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

import fedclust
from fedclust.clients.node import _prepare
from fedclust.federation import FederationError, RunFailed
from fedclust.results import SavedRun, comparable
from fedclust.settings.composition import ConfigError, compose
from fedclust.settings.folders import check_same_run, expand
from fedclust.training.trainer import Trainer

SMALL = [
    "partition.num_clients=8",
    "partition.groups=[5,3]",
    "participation=0.8",
    "training.steps=1",
    "checkpoint_every=3",
]
ROUNDS = 6
# It splits while it trains, in round 4. That every strategy resumes to the bit is part of its contract
# (tests/strategies/test_contract.py).
SPLITS = [
    "strategy=fedgwc",
    "aggregator=fedadam",
    *(
        f"strategy.parameters.{name}={value}"
        for name, value in {
            "step_size": 0.1, "max_clusters": 2, "min_cluster_size": 3, "patience": 4,
            "tolerance": 1, "max_davies_bouldin": 10,
        }.items()
    ),
]  # fmt: skip


class Forked:
    """Starts the command line in forked processes."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("forked.py")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, *arguments: str) -> int:
        """Start a run; return its process id."""
        self._server.stdin.write(json.dumps(arguments) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def wait(self) -> int:
        """Wait until the run is over; return its exit status."""
        return int(self._server.stdout.readline())

    def run(self, *arguments: str) -> int:
        self.start(*arguments)
        return self.wait()

    def close(self) -> None:
        self._server.communicate(timeout=60)


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    server = Forked()
    yield server
    server.close()


def _lines(folder: Path) -> int:
    """Count the rounds written so far, of the run and of the one it is compared with."""
    files = [folder / "rounds.jsonl", folder / "compare" / "fedavg" / "rounds.jsonl"]
    return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())


def _assert_equal(one: Path, other: Path) -> None:
    first, second = SavedRun(one), SavedRun(other)
    assert comparable(first.rounds) == comparable(second.rounds)
    assert first.changes == second.changes
    pd.testing.assert_frame_equal(first.clients, second.clients, check_exact=True)
    (summary,), (again,) = comparable([first.summary]), comparable([second.summary])
    assert summary == again
    assert first.compared.keys() == second.compared.keys()
    for name in first.compared:
        _assert_equal(first.compared[name].folder, second.compared[name].folder)


def test_a_run_killed_three_times_equals_an_uninterrupted_one(forked: Forked, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    overrides = [*SMALL, *SPLITS, f"rounds={ROUNDS}"]
    assert forked.run(*overrides, f"output_dir={whole}") == 0
    assert [change["round"] for change in SavedRun(whole).changes] == [0, 4]
    # Three points over both strategies' rounds, and anywhere within a round or the writing of a checkpoint.
    draws = random.Random(0)
    points = sorted(draws.sample(range(1, 2 * ROUNDS - 2), 3))
    arguments = [*overrides, f"output_dir={killed}"]
    for point in points:
        pid = forked.start(*arguments)
        deadline = time.monotonic() + 120
        while _lines(killed) <= point and time.monotonic() < deadline:
            time.sleep(0.004)
        time.sleep(draws.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert forked.wait() == -signal.SIGKILL
        arguments = [f"resume={killed}"]
    assert forked.run(*arguments) == 0
    _assert_equal(killed, whole)


def test_a_finished_run_continues_with_more_rounds(tmp_path: Path) -> None:
    short, whole = tmp_path / "short", tmp_path / "whole"
    overrides = ["strategy=fedgwc", "aggregator=fedavgm", *SMALL, "evaluate_every=4"]
    fedclust.run([*overrides, "rounds=10", f"output_dir={whole}"])
    fedclust.run([*overrides, "rounds=6", f"output_dir={short}"])
    fedclust.run([f"resume={short}", "rounds=10", "engine.num_nodes=3"])
    # Round 6 was the last of the short run: it was evaluated, and in full, and that travelled.
    _assert_equal(short, whole)
    assert [line["round"] for line in SavedRun(short).rounds if "mean_client_accuracy" in line] == [4, 8, 10]
    fedclust.run([f"resume={short}"])  # nothing is left to do
    _assert_equal(short, whole)
    found = SavedRun(short)  # whose seconds are not those of this process alone
    assert found.summary["seconds"] >= sum(line["seconds"] for line in found.rounds)
    with pytest.raises(ConfigError, match="rounds must be >= 10, the rounds that .* has, got 9"):
        fedclust.run([f"resume={short}", "rounds=9"])


def test_a_finished_run_gets_a_comparison_a_verdict_and_its_predictions(tmp_path: Path) -> None:
    own, more = ["strategy=fmcl", *SMALL, "rounds=2"], ["compare=[fedavg]", "save_predictions=true"]
    fedclust.run([*own, "compare=[]", f"output_dir={tmp_path / 'alone'}"])
    fedclust.run([f"resume={tmp_path / 'alone'}", *more])
    fedclust.run([*own, *more, f"output_dir={tmp_path / 'at_once'}"])
    _assert_equal(tmp_path / "alone", tmp_path / "at_once")
    assert SavedRun(tmp_path / "alone").summary["verdict"]
    found = tmp_path / "alone" / "predictions.parquet"
    os.link(found, tmp_path / "link")  # as a sweep's other job has one to what it took
    fedclust.run([f"resume={tmp_path / 'alone'}", "rounds=3"])
    assert not found.samefile(tmp_path / "link")


def test_a_run_that_failed_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What made every client of round 4 fail is mended, and the run goes on as if it had never been."""
    overrides = ["strategy=fmcl", "aggregator=fedyogi", *SMALL, "rounds=5", "compare=[]"]
    fedclust.run([*overrides, f"output_dir={tmp_path / 'whole'}"])
    honest = Trainer.train

    def train(self: Trainer, jobs, server_round: int, **options):
        if server_round == 4:
            raise OSError("disk full")
        return honest(self, jobs, server_round, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", train)
        with pytest.raises(RunFailed, match="disk full"):
            fedclust.run([*overrides, f"output_dir={tmp_path / 'failed'}"])
    assert not (tmp_path / "failed" / "summary.json").exists()
    fedclust.run([f"resume={tmp_path / 'failed'}"])
    _assert_equal(tmp_path / "failed", tmp_path / "whole")
    assert all(not line["failures"] for line in SavedRun(tmp_path / "failed").rounds)


def test_another_configuration_is_refused_with_the_keys(tmp_path: Path) -> None:
    config = compose(["strategy=fmcl", "seed=3"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    kept = expand([f"resume={tmp_path}", "rounds=200", "engine=ray", "wait=3"])
    assert kept == [
        "strategy=fmcl",
        "seed=3",
        "++partition.validation_fraction=0.0",  # what auto stood for
        "rounds=200",
        "engine=ray",
        "wait=3",
        f"resume='{tmp_path}'",
        f"output_dir='{tmp_path}'",
    ]
    check_same_run(OmegaConf.to_container(compose(kept), resolve=True), tmp_path)
    other = OmegaConf.to_container(compose([*kept, "training.batch_size=4"]), resolve=True)
    with pytest.raises(ConfigError, match=r"configuration of .*: training.batch_size was 8, is 4$"):
        check_same_run(other, tmp_path)
    # A learning rate that follows the number of rounds would have been another all along.
    (tmp_path / "config.yaml").write_text(
        OmegaConf.to_yaml(compose(["training.schedule=cosine", "rounds=50"]), resolve=True)
    )
    longer = OmegaConf.to_container(compose(["training.schedule=cosine", "rounds=60"]), resolve=True)
    with pytest.raises(ConfigError, match="training.schedule_rounds was 50, is 60"):
        check_same_run(longer, tmp_path)


def test_another_value_of_a_setting_is_named(tmp_path: Path) -> None:
    config = OmegaConf.to_container(compose(["dataset=adult"]), resolve=True)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(config))
    check_same_run(config, tmp_path)
    changed = {**config, "dataset": {**config["dataset"], "keep": ["age"]}}
    with pytest.raises(ConfigError, match=r"dataset.keep was \[\], is \['age'\]"):
        check_same_run(changed, tmp_path)


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume must be the folder of a run, there is no config.yaml in"):
        expand([f"resume={tmp_path}"])
    for text, said in (("rounds: 3", "config.yaml has no overrides"), ("- 3", "holds no configuration")):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            expand([f"resume={tmp_path}"])


def _table(path: Path, owners: str) -> None:
    """Write ten rows of each owner; "c" has twice as many. A process keeps the data that it has read."""
    _prepare.cache_clear()
    rows = [(owner, row % 5, row % 2) for owner in owners for row in range(20 if owner == "c" else 10)]
    pd.DataFrame(rows, columns=["owner", "x", "label"]).to_csv(path, index=False)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_client_that_the_data_have_more_joins_a_resumed_run(tmp_path: Path, nodes: int) -> None:
    file, folder = tmp_path / "rows.csv", tmp_path / "run"
    own = ["dataset=csv", f"dataset.path={file}", "dataset.label=label", "dataset.natural=owner"]
    own += ["strategy=fedavg", f"engine.num_nodes={nodes}"]
    _table(file, "bcd")
    fedclust.run([*own, "rounds=2", "checkpoint_every=1", f"output_dir={folder}"])
    _table(file, "abcd")  # clients are numbered by their names: a is 0 now, and b is 1
    with pytest.raises(FederationError, match=r"client 0 was b: \d+ rows .* to test on; it is a: \d+ rows"):
        fedclust.run([f"resume={folder}", "rounds=3"])
    _table(file, "bcde")
    result = fedclust.run([f"resume={folder}", "rounds=3"])
    assert result.clients[["name", "joined"]].to_numpy().tolist() == [
        ["b", 0],
        ["c", 0],
        ["d", 0],
        ["e", 2],
    ]  # round 2, the last, is repeated


def test_without_resume_nothing_changes() -> None:
    assert expand(["a=1", "+b=2", "resume=null"]) == ["a=1", "+b=2", "resume=null"]


def test_a_run_with_an_exponential_rate_may_have_more_rounds(tmp_path: Path) -> None:
    exponential = ["training.schedule=exponential", "training.decay=0.9"]
    for schedule in (exponential, []):
        short, longer = (compose([*schedule, f"rounds={rounds}"]) for rounds in (50, 60))
        (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(short, resolve=True))
        check_same_run(OmegaConf.to_container(longer, resolve=True), tmp_path)


def test_options_come_before_overrides(tmp_path: Path) -> None:
    """argparse takes no positional argument after an option that follows one."""
    (tmp_path / "config.yaml").write_text("overrides: [rounds=3]\n")
    end = [f"resume='{tmp_path}'", f"output_dir='{tmp_path}'"]
    asked = ["seed=1", f"resume={tmp_path}", "--config-dir", "mine"]
    assert expand(asked) == ["--config-dir", "mine", "rounds=3", "seed=1", *end]
    assert expand([f"+resume={tmp_path}", "--cfg=job"]) == ["--cfg=job", "rounds=3", *end]


def test_one_run_is_resumed_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume must not be combined with -m"):
        expand(["-m", f"resume={tmp_path}", "rounds=7,8"])
    with pytest.raises(ConfigError, match="resume must be the folder of a run, got none"):
        expand(["resume="])
    (tmp_path / "multirun.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"resume must be the folder of a run, such as .*/0 of this sweep$"):
        expand([f"resume={tmp_path}"])


def test_resume_is_quoted_for_folders_with_spaces(tmp_path: Path) -> None:
    for name in ("a run, of mine", "a 'run' of \"mine\"", "it's mine'"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text("overrides: [rounds=3]\n")
        assert compose(expand([f"resume={folder}"])).resume == str(folder)
    assert compose(expand([f"resume='{tmp_path / 'a run, of mine'}'"])).resume.endswith("/a run, of mine")


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for damage in (b"a: [1", b"\xff\xfe\x00"):
        (tmp_path / "config.yaml").write_bytes(damage)
        with pytest.raises(ConfigError, match="config.yaml must be YAML: ") as error:
            expand([f"resume={tmp_path}"])
        assert "\n" not in str(error.value)
