"""Every aggregator works inside clusters, on real digits."""

from pathlib import Path

import pytest

import fedclust
from fedclust.settings.composition import CONF, ConfigError

AGGREGATORS = sorted(path.stem for path in (CONF / "aggregator").glob("*.yaml"))
SMALL = ["rounds=2", "compare=[]", "partition.num_clients=10", "partition.groups=[5,5]", "training.steps=2"]


def _run(folder: Path, *overrides: str) -> dict:
    return fedclust.run([*SMALL, *overrides, f"output_dir={folder}"]).summary


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_works_inside_clusters(aggregator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedclust.results.charts.draw", lambda folder: [])  # drawing is tested elsewhere
    summary = _run(tmp_path / "run", "strategy=fmcl", f"aggregator={aggregator}")
    assert summary["failed_replies"] == 0
    assert 0 < summary["mean_client_accuracy"] <= 1
    assert summary["cluster_sizes"] == [5, 5]


def test_fedgmcc_says_in_one_line_what_cannot_apply(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="aggregator must be fedavg or fedprox .*, got krum") as error:
        _run(tmp_path / "run", "strategy=fedgmcc", "aggregator=krum")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
