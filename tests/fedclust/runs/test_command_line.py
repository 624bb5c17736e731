"""``python -m fedclust`` as it is typed."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from ray import cloudpickle

from fedclust.results import comparable
from fedclust.settings.composition import compose_with_hydra, plain
from tests.conftest import Outcome

QUICK = ("rounds=2", "compare=[]", "training.mode=sequential")


def _assert_one_line(outcome: Outcome, said: str, code: int = 2) -> None:
    assert outcome.code == code
    assert outcome.complained.startswith("fedclust: ")
    assert len(outcome.complained.splitlines()) == 1, outcome.complained
    assert said in outcome.complained


# -- What cannot be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["federation.clients=3"], "unknown key 'federation': did you mean 'selection'? there is aggregator"),
        (["dataset.options.no.depth=3"], "unknown key 'dataset.options': dataset=digits has "),
        (["rounds.first=3"], "rounds has no keys below it, got rounds.first=3"),
        (["model.hidden.x=3"], "model.hidden is a list, and set as a whole (model.hidden=[…])"),
        (["compare={a:1}"], "compare={a:1}: Cannot merge"),
        (["strategy=null"], "strategy must be one of"),
        (["experiment=null"], "experiment must be one of"),
        (["model=[mlp,5]"], "model must be one of"),
        (["hydra.searchpath=5"], "hydra.searchpath must be a list of folders, got 5"),
        (["training.loss=foo"], "training.loss must be a function, named by a _target_, got 'foo'"),
        (["seed=${nope}"], "seed=${nope}: Interpolation key 'nope' not found"),
        (["rounds=???"], "rounds must be given"),
        (["~rounds"], "rounds must be given"),
        (["output_dir=null"], "output_dir must be a text, got null"),
        (["~aggregator"], "Missing key aggregator"),
        (["partition.num_clients=null"], "partition.num_clients must be >= 1, got null"),
        (
            ["--config-name=foo"],
            "--config-name must be config or a file of the folder --config-dir, got 'foo'",
        ),
        (["--config-dir=none"], "--config-dir must name a folder that exists, got none"),
        (["--config-path=none"], "--config-path must not be given: --config-dir adds a folder"),
        (["output_dir=/dev/null/x"], "output_dir must be a folder that can be created and written to"),
        (["engine.num_nodes=0"], "num_nodes must be >= 1, got 0"),
        (
            ["client_app=fedclust.clients.node"],
            "must be a ClientApp, 'fedclust.clients.node' is a module",
        ),
        # What every client would refuse.
        (["model.num_classes=5"], "model must have >= 10 outputs (model.num_classes), an output per class, "),
        (["partition=iid", "partition.num_clients=100000"], "100000"),
        # In a sweep before its first job.
        (["strategy=fedavg,fedawg", "-m"], "strategy must be one of"),
        (["strategy=fedavg", "seed=0,-1", "-m"], "seed must be >= 0, got -1"),
        (["partition=iid,dirichlet", "partition.num_clints=2,3", "-m"], "did you mean 'num_clients'?"),
    ],
)
def test_the_impossible_is_refused_in_one_line(run, tmp_path: Path, arguments: list[str], said: str) -> None:
    outcome = run(*QUICK[1:], *arguments)
    _assert_one_line(outcome, said)
    assert "round 1/" not in outcome.printed
    assert not list(tmp_path.iterdir())  # no empty folder is left


def test_another_runs_folder_is_refused(run, tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("mine\n")
    outcome = run(*QUICK, f"output_dir={folder}")
    _assert_one_line(outcome, f"output_dir must not hold another run, got {folder}")
    assert (folder / "rounds.jsonl").read_text() == "mine\n"


# -- What Hydra offers ----------------------------------------------------------------------------------


def test_the_configuration_is_shown_without_running(run, tmp_path: Path) -> None:
    outcome = run("--cfg", "job", "partition=dirichlet", "partition.alpha=0.25")
    assert outcome.code == 0
    shown = yaml.safe_load(outcome.printed)
    assert shown["partition"]["alpha"] == 0.25
    assert (shown["strategy"]["_target_"], shown["rounds"]) == ("fedclust.strategies.Auto", 60)
    assert not list(tmp_path.iterdir())


def test_results_go_where_output_dir_says(run, tmp_path: Path) -> None:
    outcome = run(*QUICK, "strategy=fedavg", "output_dir=here")
    assert outcome.code == 0
    assert f"results: {tmp_path / 'here'}" in outcome.printed
    written = {path.name for path in (tmp_path / "here").iterdir()}
    assert written == {
        "checkpoints", "clients.parquet", "clusters.json", "config.yaml", "inputs.json",
        "matrices.npz", "rounds.jsonl", "summary.json",
    }  # fmt: skip


Started = list[tuple[dict[str, Any], Path]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """List the configuration and folder of each run that would start, in place of running it."""
    runs: Started = []
    monkeypatch.setattr(
        "fedclust.runs.server.federate",
        lambda config, grid, folder: runs.append((plain(config), folder)) or {},
    )
    return runs


def test_a_sweep_may_set_what_only_its_choices_have(run, started: Started) -> None:
    # The default partition has no such key; both of these have.
    arguments = ("-m", "partition=dirichlet,quantity_skew")
    outcome = run(*arguments, "partition.min_samples=3")
    _assert_one_line(outcome, "put ++ before a key that only the swept choices have")
    assert started == []
    outcome = run(*arguments, "++partition.min_samples=3")
    assert (outcome.code, outcome.complained) == (0, "")
    assert [config["choices"]["partition"] for config, _ in started] == ["dirichlet", "quantity_skew"]
    assert [config["partition"]["min_samples"] for config, _ in started] == [3, 3]


def test_multirun_may_stand_last_where_the_folder_is_named_by_the_time(
    run, started: Started, tmp_path: Path
) -> None:
    outcome = run("strategy=local", "compare=[]", "-m")
    assert outcome.code == 0, outcome.complained
    ((_, folder),) = started
    assert folder.match("outputs/*/*/0")
    assert folder.is_relative_to(tmp_path)


def _launch_in_a_worker(launcher: BasicLauncher, job_overrides, initial_job_idx: int) -> list[JobReturn]:
    """Run the jobs as Hydra's launchers for Ray, joblib and Slurm do: pickled, in another process."""
    jobs = []
    for number, overrides in enumerate(job_overrides, start=initial_job_idx):
        config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
        jobs.append(config)
    worker = """
import sys
from ray import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals

context, task, jobs, state = cloudpickle.load(sys.stdin.buffer)
setup_globals()
Singleton.set_state(state)
returned = []
for config in jobs:
    HydraConfig.instance().set_config(config)
    returned.append(run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", context))
with open(sys.argv[1], "wb") as file:  # the run prints to stdout
    cloudpickle.dump(returned, file)
"""
    sent = cloudpickle.dumps((launcher.hydra_context, launcher.task_function, jobs, Singleton.get_state()))
    with tempfile.NamedTemporaryFile() as answer:
        done = subprocess.run([sys.executable, "-c", worker, answer.name], input=sent, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return list(cloudpickle.loads(Path(answer.name).read_bytes()))


@pytest.mark.parametrize("in_a_worker", [False, True])
def test_a_bad_job_does_not_end_a_sweep(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_worker: bool
) -> None:
    if in_a_worker:
        monkeypatch.setattr(BasicLauncher, "launch", _launch_in_a_worker)
    asked = ("-m", "strategy=fmcl", "strategy.parameters.num_clusters=7,2", *QUICK)
    small = ("partition.num_clients=6", "partition.groups=[3,3]", "training.steps=1", "output_dir=sweep")
    outcome = run(*asked, *small)
    assert outcome.code == 1
    *_, heading, job = outcome.complained.splitlines()
    assert heading == "fedclust: 1 job of the sweep failed", outcome.complained
    assert job.startswith("job 0 (strategy=fmcl strategy.parameters.num_clusters=7 ")
    assert "num_clusters must be <= 6, the number of clients, got 7" in job
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"1", "multirun.yaml", "report.html"}
    assert json.loads((tmp_path / "sweep" / "1" / "summary.json").read_text())["num_clusters"] == 2


@pytest.mark.parametrize("fails", [True, False])
def test_a_sweeper_may_want_the_best_of_jobs_that_all_failed(run, monkeypatch, fails: bool) -> None:
    sweep = BasicSweeper.sweep

    def best(sweeper: BasicSweeper, arguments: list[str]) -> None:  # as Optuna's does
        sweep(sweeper, arguments)
        raise ValueError("No trials are completed yet.")

    monkeypatch.setattr(BasicSweeper, "sweep", best)
    number = 7 if fails else 2
    asked = ("-m", "strategy=fmcl", f"strategy.parameters.num_clusters={number}", *QUICK)
    small = ("partition.num_clients=6", "partition.groups=[3,3]", "training.steps=1", "output_dir=sweep")
    if fails:
        outcome = run(*asked, *small)
        assert outcome.code == 1
        assert "fedclust: 1 job of the sweep failed" in outcome.complained
        assert "No trials" not in outcome.complained
    else:
        with pytest.raises(ValueError, match="No trials are completed yet"):
            run(*asked, *small)


def test_models_that_predict_no_better_than_class_shares_end_with_code_3(run) -> None:
    quick = ("strategy=fedavg", "partition=iid", "training.mode=sequential", "personal=none")
    quick = (*quick, "partition.num_clients=8")
    said = "The models that serve predict no better than each client's class shares"
    # Of the 1,797 digits each client has 225 or 224, and trains on 180 or 179: 3 batches of 64, or 23 of 8.
    outcome = run(*quick, "rounds=1", "training.learning_rate=1e-9", "output_dir=short")
    few = "1 round of 3 steps of 8 rows: 0.11 passes over the median client's 180 training rows"
    share = "(a client trains in 88% of the rounds); rounds= adds more"  # 7 of 8 clients
    assert outcome.code == 0, outcome.complained
    assert outcome.printed.splitlines()[-1] == f"The models have learnt too little. {few} {share}"
    quick = (*quick, "training.batch_size=64")
    outcome = run(*quick, "rounds=7", "training.learning_rate=1e-9", "output_dir=chance")
    assert (outcome.code, outcome.printed.splitlines()[-1]) == (3, said)
    summary = json.loads(Path("chance/summary.json").read_text())
    assert (summary["collapsed"], "few_passes" in summary) == (True, False)
    outcome = run("-m", *quick, "rounds=10", "training.learning_rate=0.1,1e-9", "output_dir=sweep")
    *_, heading, job = outcome.complained.splitlines()
    assert (outcome.code, heading) == (3, "fedclust: 1 job of the sweep fell to chance"), outcome.complained
    assert job.startswith("job 1 (")
    assert job.endswith(said)
    assert "collapsed" not in json.loads(Path("sweep/0/summary.json").read_text())


def test_a_sweep_over_data_of_the_users_own_must_say_how_they_are_split(run, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(
        "x,ward,ill\n" + "".join(f"{row / 7:.3f},{row % 4},{row % 3 % 2}\n" for row in range(120))
    )
    own = ["dataset=csv", f"dataset.path={table}", "dataset.label=ill", "task=inspect"]
    for swept in ("seed=0,1", "dataset.natural=ward,null"):
        outcome = run("-m", *own, swept, f"output_dir={tmp_path / 'sweep'}")
        _assert_one_line(outcome, "a sweep must say how data of your own are split: partition=natural")
    swept = run("-m", *own, "partition=iid,quantity_skew", f"output_dir={tmp_path / 'both'}")
    assert swept.code == 0, swept.complained
    assert "Rows are dealt" not in swept.printed
    single = run(*own, f"output_dir={tmp_path / 'one'}")
    assert (single.code, "Rows are dealt at random to 30 clients" in single.printed) == (0, True)
    assert "Rows are dealt" not in run("--cfg", "job", *own).printed


def test_a_sweep_trains_its_baseline_once(run, tmp_path: Path) -> None:
    arguments = ("strategy=fmcl,clust_psi_pfl", "rounds=1", "training.mode=sequential", "compare=[fedavg]")
    small = ("partition.num_clients=6", "partition.groups=[3,3]", "personal=none")
    outcome = run("-m", *arguments, *small, "output_dir=sweep")
    assert outcome.code == 0, outcome.complained
    lines = outcome.printed.splitlines()
    # A line a job; then a blank one, the table's head. Warnings come before, each once.
    begun = [line for line in lines[: lines.index("")] if "warning: " not in line]
    assert [line.partition(" ")[0] for line in begun] == ["sweep/0", "sweep/1"], outcome.printed
    assert begun[0].startswith("sweep/0 (strategy=fmcl rounds=1 training.mode=sequential compare=[fedavg] ")
    assert ["0/compare/fedavg" in line for line in begun] == [False, True]
    assert outcome.printed.endswith(f"\npage: {tmp_path / 'sweep' / 'report.html'}\n")
    own, taken = (
        json.loads((tmp_path / "sweep" / job / "summary.json").read_text())["compare"]["fedavg"]
        for job in ("0", "1")
    )
    assert own.pop("compare") == {}
    assert taken == {**own, "taken_from": "../0/compare/fedavg"}
    copied = tmp_path / "sweep" / "1" / "compare" / "fedavg" / "rounds.jsonl"
    assert copied.is_file()
    # A job is resumed like any run: what it took stays taken, and with more rounds it trains its own.
    summary = tmp_path / "sweep" / "1" / "summary.json"
    before = json.loads(summary.read_text())
    assert run("resume=sweep/1").code in (0, 3)  # one round of little training
    assert comparable([json.loads(summary.read_text())]) == comparable([before])
    assert run("resume=sweep/1", "rounds=2").code in (0, 3)
    (longer,) = json.loads(summary.read_text())["compare"].values()
    assert longer["rounds"] == 2
    assert "taken_from" not in longer
    assert copied.read_text().count("\n") == 2
    trained = tmp_path / "sweep" / "0" / "compare" / "fedavg"
    assert (trained / "rounds.jsonl").read_text().count("\n") == 1  # the other job's is as it was
    assert json.loads((trained / "summary.json").read_text())["rounds"] == 1


def test_tab_completion(run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "complete -o nospace" in run("-sc", "install=bash").printed
    monkeypatch.setenv("COMP_LINE", "fedclust strategy=fm")
    monkeypatch.setenv("COMP_POINT", "20")
    assert run("-sc", "query=bash").printed.split() == ["strategy=fmcl"]


def test_two_runs_in_one_second(run, tmp_path: Path) -> None:
    # A name without the time of day, so that both have the same.
    arguments = ("task=inspect", "output_dir='outputs/${now:%Y}'")
    assert (run(*arguments).code, run(*arguments).code) == (0, 0)
    first, second = sorted(path.name for path in (tmp_path / "outputs").iterdir())
    assert second == f"{first}-2"


# -- Looking at a partition -----------------------------------------------------------------------------


def test_inspecting_a_partition(run, tmp_path: Path) -> None:
    outcome = run("task=inspect", "partition=dirichlet", "partition.num_clients=10", "output_dir=here")
    assert outcome.code == 0
    assert "dirichlet, seed 0" in outcome.printed
    assert "weighted psi" in outcome.printed
    picture = tmp_path / "here" / "plots" / "label_counts.png"
    assert f"picture: {picture}" in outcome.printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert (summary["task"], summary["partition"], summary["num_clients"]) == ("inspect", "dirichlet", 10)
    held_out = summary["num_validation"]
    assert held_out > 0  # for the proof
    assert summary["num_train"] + summary["num_test"] + held_out == 1797  # all of the digits
    assert not (tmp_path / "here" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("place", "folder", "code", "said"),
    [
        ("command_line._job", "run", 130, "interrupted before round 1"),
        ("server.federate", "a run", 130, "interrupted; to resume: fedclust resume='{}'"),
        ("server.federate", "run", 143, "terminated; to resume: fedclust resume={}"),  # 128 + 15
    ],
)
def test_a_run_that_is_ended_says_how_to_go_on(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, folder: str, code: int, said: str
) -> None:
    def ended(*_: object) -> None:
        if code == 130:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(f"fedclust.runs.{place}", ended)
    outcome = run(f"output_dir='{tmp_path / folder}'")
    assert (outcome.code, outcome.complained) == (code, f"fedclust: {said.format(tmp_path / folder)}\n")


def test_a_verb_that_is_terminated_leaves_no_temporary_folder(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def exporting(*_: object) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    monkeypatch.setattr("fedclust.runs.command_line._answer", exporting)
    assert run("export", "run") == (143, "", "")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "code", "composed", "rounds"),
    [
        (("rounds=2",), 0, [False], [True]),
        (("-m", "rounds=2,3"), 0, [True] * 3, [True] * 2),
        (("rounds=-1",), 2, [False], []),
    ],
)
def test_garbage_is_collected_from_a_run_s_start_and_a_sweep_s_first_composition(
    run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, composed: list, rounds: list
) -> None:
    seen: dict[str, list[bool]] = {"compose": [], "federate": [], "freeze": []}

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: seen[name].append(gc.isenabled()) or work(*given, **named)

    composing = noted("compose", compose_with_hydra)
    monkeypatch.setattr("fedclust.settings.composition.compose_with_hydra", composing)
    monkeypatch.setattr("fedclust.runs.command_line.compose_with_hydra", composing)
    monkeypatch.setattr(
        "fedclust.runs.server.federate", noted("federate", lambda *_: {"mean_client_accuracy": 0.5})
    )
    monkeypatch.setattr("gc.freeze", noted("freeze", lambda: None))
    assert run(*arguments).code == code
    # What there was is set aside once, also in a sweep: a job's garbage is not to stay.
    assert seen == {"compose": composed, "federate": rounds, "freeze": [False] * bool(rounds)}
    assert gc.isenabled()


def test_a_single_run_is_the_one_that_hydra_would_start(
    run, started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hydras: list[int] = []
    monkeypatch.setattr(
        "fedclust.runs.command_line.HydraConfig.get",
        lambda get=HydraConfig.get: hydras.append(len(started)) or get(),
    )
    for option in ((), ("hydra.verbose=false",)):
        assert run("strategy=fedgwc", "seed=3", "output_dir=here", *option).code == 0
    assert run("strategy=fedgwc", "seed=3").code == 0
    assert hydras == [1]  # a run with settings only does not ask Hydra
    assert started[0] == started[1]
    (config, folder), by_time = started[0], started[2]
    assert (config["output_dir"], folder) == ("here", tmp_path / "here")
    assert by_time[1] == tmp_path / by_time[0]["output_dir"]
    assert by_time[0]["overrides"][2:] == [f"output_dir='{by_time[0]['output_dir']}'"]


@pytest.mark.parametrize("option", ["seed=3", "hydra.verbose=false"])  # the second is a run of Hydra's
def test_a_class_of_the_users_may_ask_hydra_for_its_settings(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    asked: list[Any] = []

    def federate(config: DictConfig, grid: object, folder: Path) -> dict[str, object]:
        found = HydraConfig.get()
        asked.extend([found.mode, found.runtime.output_dir, [*found.overrides.task], found.run.dir])
        return {}

    monkeypatch.setattr("fedclust.runs.server.federate", federate)
    before = HydraConfig.instance().cfg
    assert run("output_dir=here", option).code == 0
    given = ["output_dir=here", *[option] * option.startswith("seed")]
    assert asked == [RunMode.RUN, str(tmp_path / "here"), given, "here"]
    assert HydraConfig.instance().cfg is before


def test_a_run_that_fails_says_why_and_keeps_its_rounds(run, tmp_path: Path) -> None:
    outcome = run(*QUICK, "strategy=fedavg", "training.learning_rate=1e6", "output_dir=here")
    # 0.8 of the 30 clients take part.
    said = "the run failed in round 1 of 2, no client was trained: 24 of 24 clients: loss above 2^24 nats"
    _assert_one_line(outcome, said, 1)
    (line,) = (tmp_path / "here" / "rounds.jsonl").read_text().splitlines()
    assert len(json.loads(line)["failures"]) == 24
    assert not (tmp_path / "here" / "summary.json").exists()
