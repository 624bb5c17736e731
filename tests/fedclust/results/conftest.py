"""A small finished run, with a strategy compared beside it."""

from pathlib import Path

import numpy as np
import pytest

from fedclust.results import Recorder, client_table, summarise

GROUPS = np.array([0, 0, 1, 1])
AFFINITY = [[1.0, 0.9, 0.1, 0.2], [0.9, 1.0, 0.1, 0.1], [0.1, 0.1, 1.0, 0.8], [0.2, 0.1, 0.8, 1.0]]
COUNTS = np.array([[6, 2], [4, 4], [1, 7], [0, 8]])


def write_run(recorder: Recorder, strategy: str, seed: int, accuracy: list[float], **details: object) -> dict:
    """Write the files of a run of four clients over three rounds into a recorder's folder."""
    assignment = np.zeros(4, dtype=int)
    recorder.assignment(0, assignment, "start")
    for number in (1, 2, 3):
        if number == 2 and strategy != "fedavg":
            assignment = GROUPS
            recorder.assignment(2, assignment, "cluster 0 split in 2")
        line = {"round": number, "seconds": 0.25 * number, "loss": 1.0 / number, "failures": []}
        line["num_clusters"] = int(assignment.max()) + 1
        line["mean_client_accuracy"] = float(np.mean(accuracy)) - 0.1 * (3 - number)
        recorder.round(line)
    figures = ("accuracy", "balanced-accuracy", "macro-f1", "auc")
    evaluation = [dict.fromkeys(figures, value) for value in accuracy]
    table = client_table(assignment, COUNTS.sum(axis=1), np.full(4, 2), COUNTS, evaluation, GROUPS)
    recorder.clients(table)
    summary = summarise(table, strategy=strategy, seed=seed, rounds=3, seconds=1.5, **details)
    recorder.summary(summary)
    return summary


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    """Folder of a FedGWC run that was compared with FedAvg."""
    folder = tmp_path / "run"
    with Recorder(folder, {"seed": 7, "choices": {"strategy": "fedgwc", "dataset": "digits"}}) as recorder:
        with Recorder(folder / "compare" / "fedavg") as beside:
            fedavg = write_run(beside, "fedavg", 7, [0.5, 0.5, 0.25, 0.75])
        write_run(recorder, "fedgwc", 7, [1.0, 0.5, 1.0, 0.75], compare={"fedavg": fedavg})
        recorder.matrices(affinity=AFFINITY)
    return folder
