import json

import pytest
from omegaconf import DictConfig, OmegaConf

from fedclust.runs.sweep import (
    add_failure,
    any_failed,
    check_sweeper,
    choices,
    go_on,
    jobs,
    objective,
    take_from_sweep,
)
from fedclust.settings.composition import ConfigError, compose


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=0,1", ["seed=0", "seed=1"]),
        ("strategy=fedavg", ["strategy=fedavg"]),
        ("compare=[fedavg,fmcl]", ["compare=[fedavg,fmcl]"]),
        ("++partition.alpha=0.1,1", ["++partition.alpha=0.1", "++partition.alpha=1"]),
        ("seed=(", ["seed=("]),  # does not parse: reported elsewhere
        ("lr=interval(0.1, 2)", ["lr=0.1", "lr=2.0"]),  # its two ends
        ("lr=tag(log,interval(0.001,0.1))", ["lr=0.001", "lr=0.1"]),
    ],
)
def test_choices_of_an_override(override: str, expected: list[str]) -> None:
    assert choices(override) == expected


def test_each_choice_is_in_a_job() -> None:
    # 1 + (2 - 1) + (3 - 1) jobs in place of 2 * 3.
    found = [" ".join(job) for job in jobs([["a=0", "a=1"], ["b=0", "b=1", "b=2"]])]
    assert found == ["a=0 b=0", "a=1 b=0", "a=0 b=1", "a=0 b=2"]


def test_failures_are_named_when_they_happen_and_at_the_end(tmp_path, capsys) -> None:
    file = tmp_path / "failures"
    assert not any_failed(file)
    assert add_failure(file, 0, ["seed=-1"], ValueError("seed must be >= 0,\n got -1"), expected=True)
    add_failure(file, 3, ["a=1", "b=2"], ZeroDivisionError(), expected=False)
    said = capsys.readouterr().err
    assert said.startswith("fedclust: job 0 (seed=-1): seed must be >= 0, got -1\n")
    # A traceback ends so.
    assert said.endswith("ZeroDivisionError\nfedclust: job 3 (a=1 b=2): ZeroDivisionError\n")
    assert any_failed(file)
    assert capsys.readouterr().err.splitlines() == [
        "fedclust: 2 jobs of the sweep failed",
        "job 0 (seed=-1): seed must be >= 0, got -1",
        "job 3 (a=1 b=2): ZeroDivisionError",
    ]
    elsewhere = tmp_path / "elsewhere" / "failures"  # on another machine
    assert not add_failure(elsewhere, 1, ["a=1"], ValueError("no"), expected=True)


def _composed(sweeper: str, direction: object = None) -> DictConfig:
    """Return what a sweeper's configuration has of it; Hydra's own has no direction."""
    chosen = {"runtime": {"choices": {"hydra/sweeper": sweeper, "strategy": "fmcl"}}}
    return OmegaConf.create({"hydra": chosen | ({"sweeper": {"direction": direction}} if direction else {})})


@pytest.mark.parametrize(
    ("sweeper", "direction", "figure", "warned"),
    [
        ("basic", None, "mean_client_accuracy", False),
        ("optuna", "maximize", "mean_client_accuracy", True),
        ("optuna", "minimize", "seconds", True),
        ("optuna", "minimize", "validation_brier", False),
        ("optuna", ["minimize"], "validation_brier", False),
    ],
)
def test_who_searches_by_test_rows_is_told(
    sweeper: str, direction: object, figure: str, warned: bool
) -> None:
    line = check_sweeper(["a=interval(0,1)"] * (sweeper != "basic"), _composed(sweeper, direction), figure)
    assert line.startswith(f"warning: objective={figure} is measured on test rows; ") is warned
    assert ("objective=validation_brier hydra.sweeper.direction=minimize" in line) is warned


@pytest.mark.parametrize(
    ("direction", "figure", "right"),
    [
        ("minimize", "mean_client_accuracy", "maximize"),
        ("minimize", "balanced_accuracy", "maximize"),  # Optuna minimises unless asked
        ("minimize", "concordance", "maximize"),
        ("maximize", "validation_brier", "minimize"),
        ("maximize", "rmse", "minimize"),
        ("maximize", "bytes_up_unbundled", "minimize"),
    ],
)
def test_no_sweeper_searches_for_the_worst(direction: str, figure: str, right: str) -> None:
    rule = f"^hydra.sweeper.direction must be {right} for objective={figure}, got {direction}$"
    with pytest.raises(ConfigError, match=rule):
        check_sweeper([], _composed("optuna", direction), figure)


@pytest.mark.parametrize(
    ("figure", "strategy", "metrics", "refused"),
    [
        ("rmse", "fmcl", {}, False),
        ("concordance", "fmcl", {}, False),
        ("kappa", "fmcl", {}, True),
        ("kappa", "mine", {}, False),  # its findings may have it
        ("mean_client_acuracy", "mine", {}, True),
        ("top_two", "fmcl", {"top_two": 1}, False),
    ],
)
def test_an_objective_that_no_summary_has_ends_before_the_first_job(
    figure: str, strategy: str, metrics: dict[str, int], refused: bool
) -> None:
    composed = _composed("basic", None)
    composed.hydra.runtime.choices.strategy, composed.metrics = strategy, metrics
    if not refused:
        assert check_sweeper([], composed, figure) == ""
        return
    with pytest.raises(ConfigError, match=f"^objective must be one of .*auc, .* got '{figure}'"):
        check_sweeper([], composed, figure)


def test_the_objective_is_a_number_of_the_summary() -> None:
    summary = {"strategy": "fmcl", "rounds": 3, "auc": None, "verdict": {}, "proven": True}
    assert objective(summary, "rounds") == 3.0
    assert objective(summary, "auc") is None  # not measured
    assert objective({"task": "partition"}, "rounds") is None
    for key in ("acc", "verdict", "proven"):
        with pytest.raises(ConfigError, match=f"a number of summary.json, one of rounds, got {key}"):
            objective(summary, key)


@pytest.mark.parametrize(("proof", "checkpoint", "taken"), [(1, 1, True), (1, 0, False), (0, 0, True)])
def test_a_run_without_its_checkpoint_cannot_be_proved_against(tmp_path, proof, checkpoint, taken) -> None:
    given = f"proof={'true' if proof else 'false'}"
    run = tmp_path / "0"
    run.mkdir()
    (tmp_path / "multirun.yaml").touch()
    config = compose(["strategy=fedavg", "rounds=1", given])
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    (run / "rounds.jsonl").write_text(json.dumps({"round": 1}) + "\n")
    summary = {"strategy": "fedavg", "rounds": 1, "mean_client_accuracy": 0.5, "compare": {}, "made": {}}
    (run / "summary.json").write_text(json.dumps(summary))
    if checkpoint:
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "round-000001.safetensors").touch()
    found = take_from_sweep("fedavg", config, tmp_path / "1")
    assert (found is not None) == taken
    if found is not None:
        assert found["taken_from"] == "../0"
        assert found["mean_client_accuracy"] == 0.5


def test_a_run_is_taken_once_its_job_has_ended_and_stays_if_it_stopped_early(tmp_path) -> None:
    config, beside = compose(["strategy=fedavg", "rounds=9"]), tmp_path / "0" / "compare" / "fedavg"
    (beside / "checkpoints").mkdir(parents=True)
    (beside / "checkpoints" / "round-000002.safetensors").touch()
    (tmp_path / "multirun.yaml").touch()
    (beside / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    (beside / "rounds.jsonl").write_text('{"round": 1}\n{"round": 2}\n')  # two of the nine
    (beside / "summary.json").write_text('{"strategy": "fedavg", "rounds": 2}')
    summary = tmp_path / "0" / "summary.json"
    summary.write_text('{"strategy": "fmcl", "rounds": 9}')  # its layers are still to come
    assert take_from_sweep("fedavg", config, tmp_path / "1") is None
    summary.write_text('{"strategy": "fmcl", "rounds": 9, "made": {}}')
    taken = {"strategy": "fedavg", "rounds": 2, "taken_from": "../0/compare/fedavg"}
    assert take_from_sweep("fedavg", config, tmp_path / "1") == taken
    assert take_from_sweep("fedavg", config, tmp_path / "1") == taken  # the job is resumed
    config.rounds = 10
    assert take_from_sweep("fedavg", config, tmp_path / "1") is None


@pytest.mark.parametrize(("name", "taken"), [("fedavg", True), ("fmcl", False)])
def test_which_models_serve_matters_to_groups(tmp_path, name: str, taken: bool) -> None:
    for job, serve in (("0", "best"), ("1", "cluster")):
        config = compose([f"strategy={name}", "compare=[fedavg]", f"serve={serve}", "rounds=1"])
        config.partition.validation_fraction = 0.1  # best has rows held out: as if both had been asked to
        if job == "0":
            (folder := tmp_path / "0" / "checkpoints").mkdir(parents=True)
            (folder / "round-000001.safetensors").touch()
            (tmp_path / "multirun.yaml").touch()
            (tmp_path / "0" / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
            (tmp_path / "0" / "rounds.jsonl").write_text('{"round": 1}\n')
            text = json.dumps({"strategy": name, "rounds": 1, "made": {}})
            (tmp_path / "0" / "summary.json").write_text(text)
    assert (take_from_sweep(name, config, tmp_path / "1") is not None) is taken


def test_a_sweep_goes_on_in_its_folder(tmp_path, capsys) -> None:
    begun = compose(["rounds=3", "seed=1", "output_dir=elsewhere"])
    assert go_on(begun, tmp_path) is None
    assert begun.resume is None  # a job that had not begun
    (tmp_path / "rounds.jsonl").touch()
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(begun, resolve=True))
    for summary in (
        {},
        {"strategy": "auto", "rounds": 3},
    ):  # layers and other strategies come after the rounds
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        again = compose(["seed=1", "rounds=3"])
        assert go_on(again, tmp_path) is None
        assert again.resume == str(tmp_path)
    finished = {"strategy": "auto", "rounds": 3, "made": {}}
    (tmp_path / "summary.json").write_text(json.dumps(finished))
    again, other = compose(["seed=1", "rounds=3"]), compose(["seed=1", "rounds=4"])
    assert go_on(again, tmp_path) == finished
    assert again.resume is None
    assert capsys.readouterr().out == f"{tmp_path}: finished before, kept\n"
    assert go_on(other, tmp_path) is None
    assert other.resume is None  # so that the run refuses the folder
    inspected = {"task": "inspect", "num_clients": 4}
    (tmp_path / "summary.json").write_text(json.dumps(inspected))
    assert go_on(again, tmp_path) == inspected
