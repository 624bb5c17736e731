import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from PIL import Image

from fedclust.results import Recorder, trackers as module
from fedclust.results.summary import means_by_cluster
from fedclust.settings.composition import ConfigError

NAN = float("nan")


class Memory:
    """A tracker of a user's own; `broken` names the method that fails."""

    def __init__(self, calls: list, broken: str = "") -> None:
        self.calls, self.broken = calls, broken

    def _note(self, method: str, *values: object) -> None:
        self.calls.append((method, *values))
        if method == self.broken:
            raise RuntimeError("no route to host\nsecond line")

    def start(self, run: module.TrackedRun) -> str:
        self._note("start", run.name, run.kept, run.parent, dict(run.settings))
        return f"id of {run.name}"

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        self._note("log", server_round, dict(metrics))

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        self._note("finish", dict(figures), [path.name for path in files], failed)


def record(server_round: int) -> dict:
    return {"round": server_round, "loss": 1.5, "failures": []}


def test_a_round_becomes_its_finite_numbers_failures_and_figures_per_cluster() -> None:
    line = {"round": 7, "loss": 0.5, "test_loss": NAN, "private": True, "my metric!": 3, "was": None}
    line |= {"strategy": {"splits": 2}, "failures": [{"client": 3}, {"client": 4}]}
    found = module.round_metrics(line | {"cluster_sizes": [2, 1], "cluster_accuracy": [0.25, None]})
    of_clusters = {"cluster_0/accuracy": 0.25, "cluster_0/size": 2.0, "cluster_1/size": 1.0}
    assert found == {"loss": 0.5, "my metric_": 3.0, "failures": 2.0} | of_clusters


def test_settings_are_flattened_by_dotted_key() -> None:
    left_out = {"overrides": ["seed=3"], "tracker": {"tracking_uri": "http://user:secret@host"}}
    partition = {"alpha": 0.1, "groups": [2, 1], "file": None}
    config = {"partition": partition, "choices": {"strategy": "fmcl", "tracker": "mlflow"}, **left_out}
    flat = {"partition.alpha": 0.1, "partition.groups": "[2, 1]", "partition.file": "None"}
    assert module.flat_settings(config) == flat | {"choices.strategy": "fmcl"}


def test_the_mean_of_a_cluster_is_of_the_clients_that_measured() -> None:
    # cluster 0: clients 0 and 2, (0.5 + 1) / 2; cluster 1: client 1; cluster 2: its client did not measure
    assert means_by_cluster([0.5, 0.25, 1.0, NAN], [0, 1, 0, 2]) == [0.75, 0.25, None]


def test_compared_runs_are_nested_and_a_run_ends_with_its_results(tmp_path) -> None:
    calls: list = []
    with module.Tracking(lambda: Memory(calls), tmp_path / "run", print) as tracking:
        assert isinstance(Memory(calls), module.Tracker)
        with Recorder(tmp_path / "run", {"seed": 3}) as recorder:
            follow = tracking.begin("fmcl", recorder.folder)
            follow(record(1))
            with Recorder(tmp_path / "run" / "compare" / "fedavg", {"seed": 3}) as other:
                tracking.begin("fedavg", other.folder)(record(1))
                other.summary({"auc": 0.25})
                tracking.end("fedavg")
            recorder.summary({"auc": 0.5})
        tracking.end("fmcl")
    logged = ("log", 1, {"loss": 1.5, "failures": 0.0})
    assert calls == [
        ("start", "run/fmcl", None, None, {"seed": 3}),
        logged,
        ("start", "run/fedavg", None, "id of run/fmcl", {"seed": 3}),
        logged,
        ("finish", {"auc": 0.25}, ["summary.json"], False),
        ("finish", {"auc": 0.5}, ["summary.json"], False),
    ]


def test_first_jobs_of_two_sweeps_are_two_groups(tmp_path) -> None:
    calls: list = []
    for sweep in ("12-00-00", "13-00-00"):
        (tmp_path / sweep).mkdir()
        (tmp_path / sweep / "multirun.yaml").touch()
        folder = tmp_path / sweep / "0"
        with Recorder(folder, {}), module.Tracking(lambda: Memory(calls), folder, print) as tracking:
            tracking.begin("fmcl", folder)(record(1))
    assert [call[1] for call in calls if call[0] == "start"] == ["12-00-00/0/fmcl", "13-00-00/0/fmcl"]


def test_a_resumed_run_continues_with_its_id(tmp_path) -> None:
    with (
        Recorder(tmp_path, {"seed": 3}) as recorder,
        module.Tracking(lambda: Memory([]), tmp_path, print) as first,
    ):
        follow = first.begin("fmcl", tmp_path)
        for number in (1, 2):
            recorder.round(record(number))
            follow(record(number))
    calls: list = []
    with module.Tracking(lambda: Memory(calls), tmp_path, print) as second:
        follow = second.begin("fmcl", tmp_path)
        follow(record(3))
    assert calls[0][2] == f"id of {tmp_path.name}/fmcl"
    assert [call[1] for call in calls if call[0] == "log"] == [3]


@pytest.mark.parametrize("ids", [{"tracker": "another.Tracker", "id": "7"}, {"another.Tracker": "7"}])
def test_another_tracker_does_not_take_the_id(tmp_path, ids) -> None:
    (tmp_path / "tracker.json").write_text(json.dumps(ids))  # as version 0.3 wrote it, and now
    calls: list = []
    with Recorder(tmp_path, {}), module.Tracking(lambda: Memory(calls), tmp_path, print) as tracking:
        tracking.begin("fmcl", tmp_path)(record(1))
    assert calls[0][2] is None
    kept = json.loads((tmp_path / "tracker.json").read_text())  # either goes on when it is given again
    assert kept["another.Tracker"] == "7"
    assert kept[f"{Memory.__module__}.{Memory.__qualname__}"] == f"id of {tmp_path.name}/fmcl"


@pytest.mark.parametrize("broken", ["start", "log", "finish"])
def test_a_tracker_that_fails_costs_one_line_and_is_left_alone(tmp_path, broken) -> None:
    calls, said = [], []
    with Recorder(tmp_path, {}) as recorder:
        with module.Tracking(lambda: Memory(calls, broken), tmp_path, said.append) as tracking:
            follow = tracking.begin("fmcl", tmp_path)
            for number in (1, 2):
                follow(record(number))
            recorder.summary({})
            tracking.end("fmcl")
        assert [call[0] for call in calls if call[0] != "finish"].count(broken) == (broken != "finish")
        assert broken == "finish" or calls[-1] == ("finish", {}, [], True)  # which may have begun a run
    assert said == [
        "fmcl: warning: no longer tracked, results are in its folder: no route to host second line"
    ]


def test_a_run_that_fails_ends_as_failed(tmp_path) -> None:
    calls: list = []
    tracking = module.Tracking(lambda: Memory(calls), tmp_path, print)
    with Recorder(tmp_path, {}):
        tracking.begin("fmcl", tmp_path)(record(1))
        tracking.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert calls[-1] == ("finish", {}, [], True)


def test_a_run_that_is_refused_changes_nothing(tmp_path) -> None:
    calls: list = []
    with Recorder(tmp_path, {}), module.Tracking(lambda: Memory(calls), tmp_path, print) as tracking:
        tracking.begin("fmcl", tmp_path)  # of a run that has ended; settings that do not fit are found later
    assert calls == []


def test_a_compared_run_that_goes_on_alone_has_its_parent(tmp_path) -> None:
    calls: list = []
    with (
        Recorder(tmp_path, {}),
        Recorder(tmp_path / "fedavg", {}),
        module.Tracking(lambda: Memory(calls), tmp_path, print) as tracking,
    ):
        tracking.begin("fmcl", tmp_path)
        tracking.begin("fedavg", tmp_path / "fedavg")(record(2))
    assert [call[1:4:2] for call in calls if call[0] == "start"] == [
        (f"{tmp_path.name}/fmcl", None),
        (f"{tmp_path.name}/fedavg", f"id of {tmp_path.name}/fmcl"),
    ]


def test_what_is_no_tracker_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="tracker must have the methods start, log and finish, got a dict"):
        module.Tracking(dict, tmp_path, print)  # type: ignore[arg-type]


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tracker=mlflow needs fedclust\[mlflow\]"):
        module.optional("a_package_that_nobody_has", "mlflow")


def test_tensorboard_reads_back_what_was_logged(tmp_path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs fedclust[tensorboard]"
    )
    for done, logged in ((0, (1, 2, 3)), (2, (3, 4))):  # stopped after round 3, resumed from round 2
        tracker = module.TensorBoard()
        kept = "tensorboard" if done else None
        assert tracker.start(module.TrackedRun("run/fmcl", "run", tmp_path, {"seed": 3}, kept, done))
        for number in logged:
            tracker.log(number, {"loss": number / 4})
        (tmp_path / "plots").mkdir(exist_ok=True)
        Image.new("RGB", (3, 2)).save(tmp_path / "plots" / "affinity.png")
        tracker.finish({"auc": 0.5}, [tmp_path / "plots"], failed=False)
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    points = [(each.step, each.value) for each in read.Scalars("loss")]
    assert points == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert [each.value for each in read.Scalars("final/auc")][-1] == 0.5
    picture = read.Images("plots/affinity")[-1]
    assert (picture.step, picture.width, picture.height) == (4, 3, 2)


def test_mlflow_reads_back_what_was_logged(tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs fedclust[mlflow]")
    from fedclust.results.trackers import MLflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = f"file:{tmp_path / 'mlruns'}"
    (tmp_path / "summary.json").write_text("{}")
    first = MLflow(where)
    number = first.start(module.TrackedRun("run/fmcl", "run", tmp_path, {"seed": 3}))
    first.log(1, {"loss": 0.25, module.FAILURES: 0})
    first.log(2, {"loss": 0.5, module.FAILURES: 0})  # after the checkpoint
    first.finish({}, [], failed=True)
    second = MLflow(where)
    again = second.start(module.TrackedRun("run/fmcl", "run", tmp_path, {"seed": 4}, number, 1))
    assert again == number
    second.log(2, {"loss": 0.5, module.FAILURES: 0})
    second.log(3, {"loss": 0.75, module.FAILURES: 0})
    nested = MLflow(where).start(module.TrackedRun("run/fedavg", "run", tmp_path, {}, parent=number))
    second.finish({"auc": 0.5}, [tmp_path / "summary.json"], failed=False)
    client = mlflow.MlflowClient(where)
    read = client.get_run(number)
    assert read.info.status == "FINISHED"
    assert read.data.params == {"seed": "3"}
    assert read.data.metrics["final/auc"] == 0.5
    points = [(each.step, each.value) for each in client.get_metric_history(number, "loss")]
    assert points == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [each.path for each in client.list_artifacts(number)] == ["summary.json"]
    assert client.get_run(nested).data.tags["mlflow.parentRunId"] == number


def test_wandb_goes_on_offline_with_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs fedclust[wandb]")
    from fedclust.results.trackers import WandB

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "home"))  # by default in the home folder
    monkeypatch.setattr("sys.argv", ["fedclust", "--an-argument"])
    (tmp_path / "summary.json").write_text('{"a figure": 1}')
    first = WandB(mode="offline")
    number = first.start(module.TrackedRun("run/fmcl", "run", tmp_path / "before", {"rounds": 1}))
    print("a printed line")
    first.log(1, {"loss": 0.25})
    first.finish({}, [], failed=False)
    second = WandB(mode="offline")
    again = second.start(module.TrackedRun("run/fmcl", "run", tmp_path / "after", {"rounds": 2}, number, 1))
    second.finish({}, [tmp_path / "summary.json"], failed=False)
    assert again == number
    assert not [each for each in (tmp_path / "home").rglob("*") if each.is_file()]
    for folder in ("before", "after"):
        assert len(list((tmp_path / folder).glob(f"wandb/offline-run-*/run-{number}.wandb"))) == 1
    files = [each for each in tmp_path.rglob("*") if each.is_file() and each.suffix != ".log"]
    sent = b"".join(each.read_bytes() for each in files)
    assert b"loss" in sent
    for word in ("--an-argument", "a printed line", sys.executable, "scikit-learn=="):
        assert word.encode() not in sent, word
