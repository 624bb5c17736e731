"""When a sweep's job takes a compared strategy's run from another job."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedclust.runs.sweep import take_from_sweep
from fedclust.settings.composition import compose


def _finished_run(sweep: Path, *overrides: str) -> Path:
    """Leave what a finished job of FedAvg leaves, as far as it is read."""
    folder = sweep / "0"
    folder.mkdir(parents=True)
    (sweep / "multirun.yaml").touch()
    config = compose(["strategy=fedavg", "rounds=1", *overrides])
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    (folder / "rounds.jsonl").write_text(json.dumps({"round": 1}) + "\n")
    summary = {"strategy": "fedavg", "rounds": 1, "mean_client_accuracy": 0.5, "compare": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.parametrize(("proof", "checkpoint", "taken"), [(1, 1, True), (1, 0, False), (0, 0, True)])
def test_a_run_without_its_checkpoint_cannot_be_proved_against(
    tmp_path: Path, proof: int, checkpoint: int, taken: bool
) -> None:
    given = f"proof={'true' if proof else 'false'}"
    run = _finished_run(tmp_path, given)
    if checkpoint:
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "round-000001.safetensors").touch()
    wanted = compose(["strategy=fedavg", "rounds=1", given])
    found = take_from_sweep("fedavg", wanted, tmp_path / "1")
    assert (found is not None) == taken
    if found is not None:
        assert found["taken_from"] == "../0"
        assert found["mean_client_accuracy"] == 0.5
