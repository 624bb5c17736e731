import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fedclust.results import Recorder, SavedRun, comparable


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 1})
    with pytest.raises(FileExistsError, match="output_dir must not hold another run, got .*rounds.jsonl"):
        Recorder(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round": 1}\n'


def test_a_folder_with_other_things_is_used(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("from Hydra")
    Recorder(tmp_path).close()
    assert (tmp_path / "rounds.jsonl").exists()


def test_configuration_as_text_or_mapping(tmp_path: Path) -> None:
    config = {"seed": np.int64(3), "strategy": {"name": "fedgwc", "steps": (1, 2)}}
    Recorder(tmp_path / "mapping", config).close()
    Recorder(tmp_path / "text", "seed: 3  # ours\n").close()
    read = yaml.safe_load((tmp_path / "mapping" / "config.yaml").read_text())
    assert read == {"seed": 3, "strategy": {"name": "fedgwc", "steps": [1, 2]}}
    assert (tmp_path / "text" / "config.yaml").read_text() == "seed: 3  # ours\n"


def test_rounds_are_there_before_the_run_ends(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.round({"round": 1, "loss": np.float32(0.5), "cohort": np.array([2, 0]), "auc": float("nan")})
    recorder.round({"round": np.int64(5)})
    assert SavedRun(tmp_path).rounds == [
        {"round": 1, "loss": 0.5, "cohort": [2, 0], "auc": None},
        {"round": 5},
    ]
    recorder.close()


@pytest.mark.parametrize("number", [None, 2, 1, 2.5, "3"])
def test_rounds_must_rise(tmp_path: Path, number: object) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.round({"round": 2})
        with pytest.raises(ValueError, match="round must be an integer > 2, got"):
            recorder.round({"round": number})
        with pytest.raises(TypeError, match="value must be something JSON can hold"):
            recorder.round({"round": 3, "loss": object()})
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round": 2}\n'


def test_every_change_of_assignment_is_kept_and_no_other(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    given = [
        (0, [0, 0, 0], "start"),
        (3, [0, 0, 0], "none"),
        (4, [0, 1, 1], "split"),
        (9, [0, 1, 2], "split ü"),
    ]
    changed = []
    for number, assignment, reason in given:
        changed.append(recorder.assignment(number, np.array(assignment), reason))
        json.loads((tmp_path / "clusters.json").read_text())  # whole after every change
    assert changed == [True, False, True, True]
    assert SavedRun(tmp_path).changes == [
        {"round": number, "assignment": assignment, "reason": reason}
        for (number, assignment, reason), kept in zip(given, changed, strict=True)
        if kept
    ]
    recorder.close()


def test_an_assignment_changed_by_its_owner_afterwards_counts_as_new(tmp_path: Path) -> None:
    assignment = np.array([0, 0])
    with Recorder(tmp_path) as recorder:
        recorder.assignment(0, assignment, "start")
        assignment[1] = 1
        assert recorder.assignment(1, assignment, "split")


def test_client_table_needs_its_two_columns(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path) as recorder,
        pytest.raises(ValueError, match=r"client and cluster, got \['client'\]"),
    ):
        recorder.clients(pd.DataFrame({"client": [0]}))


def test_matrices_add_up_and_replace(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.matrices(affinity=[[1.0, 0.5], [0.5, 1.0]], class_names=["cat", "dog"])
        recorder.matrices(affinity=np.eye(2), distances=np.zeros((2, 2)))
    arrays = dict(SavedRun(tmp_path).matrices())
    assert list(arrays) == ["affinity", "class_names", "distances"]
    np.testing.assert_array_equal(arrays["affinity"], np.eye(2))
    assert arrays["class_names"].tolist() == ["cat", "dog"]


def test_matrices_hold_no_python_objects(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path) as recorder,
        pytest.raises(ValueError, match="matrix x must hold numbers or strings"),
    ):
        recorder.matrices(x=np.array([object()]))


def test_summary_is_strict_json(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.summary({"strategy": "fedgwc", "auc": float("nan"), "assignment": np.array([0, 1])})
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "strategy": "fedgwc",
        "auc": None,
        "assignment": [0, 1],
    }


def test_compared_strategies_have_their_own_folders(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with recorder.compared("fedavg", {"seed": 1}) as beside:
            beside.round({"round": 1})
        with pytest.raises(FileExistsError):
            recorder.compared("fedavg")
        for name in ("", ".", "..", "a/b"):
            with pytest.raises(ValueError, match="name must be usable as a folder name"):
                recorder.compared(name)
    assert (tmp_path / "compare" / "fedavg" / "rounds.jsonl").read_text() == '{"round": 1}\n'
    assert (tmp_path / "rounds.jsonl").read_text() == ""


def test_two_runs_compare_but_for_their_times() -> None:
    first = {
        "round": 1,
        "seconds": 0.1,
        "loss": 2.0,
        "bytes_down": 7,
        "strategy": {"fit_seconds": 1, "mse": [{"seconds": 3, "a": 1}]},
    }
    assert comparable([first]) == [{"round": 1, "loss": 2.0, "strategy": {"mse": [{"a": 1}]}}]
    assert first["seconds"] == 0.1  # the records themselves stay
