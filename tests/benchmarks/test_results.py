"""How benchmarks/results.py makes docs/RESULTS.md from folders."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from fedclust.settings.composition import compose

SCRIPT = "results"

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_every_benchmark_finds_what_it_imports(name: str, scripts: Callable[[str], ModuleType]) -> None:
    scripts(name)


def test_over_seeds_the_sample_deviation(script: ModuleType) -> None:
    column = script.Column("accuracy", ("accuracy",))
    # 0.5, 0.7 and 0.9: mean 0.7, squared deviations 0.04, 0 and 0.04 over n - 1 = 2: 0.2.
    summaries = [{"accuracy": value} for value in (0.5, 0.7, 0.9)]
    assert script.measured(column, summaries) == "0.700 ± 0.200"
    assert script.measured(column, summaries[:1]) == "0.500"
    assert script.measured(column, [{"accuracy": None}, *summaries[1:2]]) == "0.700 (1 of 2)"
    assert script.measured(column, [{}]) == "–"


def test_a_pair_of_keys_is_averaged_each(script: ModuleType) -> None:
    column = script.Column("AD ± SDAD", ("ad", "sdad"))
    assert script.measured(column, [{"ad": 0.2, "sdad": 0.1}, {"ad": 0.4, "sdad": 0.2}]) == "0.300 ± 0.150"
    assert script.measured(column, [{"ad": 0.2, "sdad": None}]) == "–"


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"ad": 0.2, "sdad": 0.3}, "0.20 ± 0.30"),
        ({"ad": [0.534, 0.01]}, "0.534 ± 0.01"),
        ({"ad": 4}, "4"),
        ({}, "–"),
    ],
)
def test_published_figures_as_the_paper_has_them(script: ModuleType, figures: dict, text: str) -> None:
    assert script.published(script.Column("AD ± SDAD", ("ad", "sdad")), figures) == text


def test_counts_without_decimals_where_whole(script: ModuleType) -> None:
    column = script.Column("clusters", ("num_clusters",), 1)
    assert script.measured(column, [{"num_clusters": 11}]) == "11"
    assert script.measured(column, [{"num_clusters": 2}, {"num_clusters": 3}]) == "2.5 ± 0.7"


def write_run(folder: Path, compared: bool) -> None:
    figures = {
        "num_clients": 4,
        "rounds": 3,
        "seed": 0,
        "weighted_psi": 1.25,
        "num_clusters": 2,
        "seconds": 7.0,
    }
    beside = {"strategy": "fedavg", "global_accuracy": 0.5, **figures}
    folder.mkdir(parents=True)
    own = {"strategy": "clust_psi_pfl", "global_accuracy": 0.75, **figures}
    own["compare"] = {"fedavg": beside} if compared else {}
    (folder / "summary.json").write_text(json.dumps(own))
    (folder / "rounds.jsonl").write_text(
        '{"round": 2, "global_accuracy": 0.8}\n{"round": 3, "global_accuracy": 0.75}\n'
    )
    config = "evaluate_every: 2\ncompare: [fedavg]\npartition: {alpha: 0.05}\nparticipation: 0.9\n"
    choices = (
        "choices: {experiment: clust_psi_pfl_fmnist, aggregator: fedavg, partition: dirichlet_fedartml, "
        "dataset: fashion_mnist, model: cnn_fmnist}\n"
    )
    (folder / "config.yaml").write_text(config + choices)
    provenance = {
        "command": "python -m fedclust experiment=clust_psi_pfl_fmnist seed=0",
        "commits": ["0123456"],
    }
    provenance |= {"device": "cpu", "threads": 1}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    clients = pd.DataFrame(
        {
            "cluster": [0, 0, 0, 1],
            "num_train": [30, 10, 20, 40],
            "num_test": [10, 10, 20, 40],
            "label_counts": [[15, 15], [10, 0], [5, 15], [0, 40]],
            "accuracy": [1.0, 0.5, 0.5, 0.9],
        }
    )
    clients.to_parquet(folder / "clients.parquet")
    if compared:
        (folder / "compare" / "fedavg").mkdir(parents=True)
        clients.assign(accuracy=[0.0, 0.0, 0.5, 0.2]).to_parquet(folder / "compare/fedavg/clients.parquet")
        shutil.copy(folder / "rounds.jsonl", folder / "compare" / "fedavg")
        (folder / "compare" / "fedavg" / "summary.json").write_text(json.dumps(beside))


BEFORE = "# Results\n\n<!-- fmnist-alpha-0.05 -->\nearlier\n<!-- /fmnist-alpha-0.05 -->\n\nafter\n"


@pytest.fixture
def report(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[int, str]]:
    """Return what reports the runs in a folder, with the script's status and the page afterwards."""

    def run() -> tuple[int, str]:
        page = tmp_path / "RESULTS.md"
        page.write_text(BEFORE)
        monkeypatch.setattr(
            sys, "argv", ["results.py", str(tmp_path / "runs"), "--no-run", "--out", str(page)]
        )
        return script.main(), page.read_text()

    return run


def test_measured_figures_are_next_to_published_ones(report, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "fmnist-alpha-0.05" / "seed-0", compared=True)
    status, text = report()
    assert status == 0
    assert "earlier" not in text
    assert text.endswith("<!-- /fmnist-alpha-0.05 -->\n\nafter\n")
    assert "| strategy | clusters | global accuracy | published | best global accuracy |" in text
    # Table III at alpha = 0.05; the best of the scored rounds is 0.8.
    assert "| `clust_psi_pfl` | 2 | 0.750 | 0.83 ± 0.01 | 0.800 |" in text
    assert "| `fedavg` | 2 | 0.500 | 0.68 ± 0.03 | 0.800 |" in text
    # The paper's clusters take part with half of their clients.
    published = "Published: Clust-PSI-PFL, Tables III and IV, five seeds."
    assert f"{published} Otherwise than there: `participation` 0.9 (0.5)." in text
    assert "Command: `python -m fedclust experiment=clust_psi_pfl_fmnist`, seed 0." in text
    assert "- cpu, 1 thread." in text
    assert "Commit 0123456." in text
    assert "- Global accuracy of the rounds scored: `clust_psi_pfl` 0.800 (2), 0.750 (3)" in text
    # Three clients with 40 test images: 10 + 5 + 10 are right with their cluster's model, 0 + 0 + 10 with the
    # one of FedAvg;
    # their largest classes are 1/2, 1 and 3/4 of their images.
    assert "`fedavg`'s on the same clients): 3, 60, 0.75, 0.625, 0.250; 1, 40, 1.00, 0.900, 0.200." in text


def test_a_strategy_that_still_runs_is_named(report, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "fmnist-alpha-0.05" / "seed-0", compared=False)
    status, text = report()
    assert status == 0
    assert "- Not finished: `fedavg`." in text
    assert "| `fedavg`" not in text


def test_nothing_to_report(report) -> None:
    assert report() == (0, BEFORE)


def test_every_setting_of_the_issue_can_be_run(script: ModuleType) -> None:
    for experiment in script.EXPERIMENTS.values():
        assert compose(list(experiment.command(3))).seed == 3
