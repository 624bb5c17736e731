"""The papers' tables and figures of several runs, and the genomic reads they need."""

import importlib
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from fedclust.results.charts.chart import specification
from fedclust.settings import compose

ROOT = Path(__file__).parents[2]


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("papers")


@pytest.fixture
def sensg(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("sensg")


def test_one_run_of_each_item_composes_small_and_full(papers: ModuleType) -> None:
    for item in papers.ITEMS.values():
        overrides = list(item.runs.values())[-1]
        compose([*overrides, "dataset.path=here"])
        small = compose([*overrides, *item.small, "dataset.path=here"])
        assert small.rounds <= 30


def test_table_8_is_two_methods_with_two_to_five_clusters(papers: ModuleType) -> None:
    runs = papers.ITEMS["fedgwc-table-8"].runs
    assert list(runs) == [f"{name}-{k}" for name in ("ifca_paper", "fesem") for k in (2, 3, 4, 5)]


def test_missing_data_is_one_line(papers: ModuleType, tmp_path: Path, capsys) -> None:
    assert papers.main([str(tmp_path / "out"), "fedgwc-figure-4", "--data", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert f"needs the data in {tmp_path / 'cifar10'}, there is none" in captured.err
    assert papers.main([str(tmp_path / "out"), "fedgmcc-csgd", "--data", str(tmp_path)]) == 1
    assert "python benchmarks/sensg.py makes it" in capsys.readouterr().err


def test_losses_are_a_panel_per_setting_and_a_line_per_method(papers: ModuleType) -> None:
    class Run:
        def __init__(self, values: list[float]) -> None:
            self.values = values

        def series(self, key: str):
            import numpy as np

            assert key == "test_loss"
            return np.arange(1, len(self.values) + 1), np.array(self.values)

    drawn = papers.loss_per_round(
        {"EMD 1": {"a": Run([3.0, 2, 1]), "b": Run([2.0, 2, 2])}, "EMD 2": {"b": Run([5.0])}}
    )
    spec = specification(drawn)
    left, right = spec["concat"]
    assert [each["title"] for each in (left, right)] == ["EMD 1", "EMD 2"]
    assert [row["y"] for row in spec["datasets"][left["data"]["name"]]] == [[3, 2, 1], [2, 2, 2]]
    (last,) = spec["datasets"][right.get("data", right["layer"][0].get("data"))["name"]]
    assert (last["line"], last["y"]) == ("b", [5])
    assert papers.loss_per_round({"EMD 1": {"a": Run([])}}) is None


def test_the_sets_have_the_individuals_of_the_appendix(sensg: ModuleType) -> None:
    drawn = sensg.chosen("R", 0)
    assert {name: len(individuals) for name, individuals in drawn.items()} == {
        "asian": 4, "african": 4, "european": 4,
    }  # fmt: skip
    for name, individuals in drawn.items():
        assert set(individuals) < set(sensg.POPULATIONS[name])
        assert len(set(individuals)) == 4
    assert sum(map(len, sensg.chosen("S", 0).values())) == 20
    assert sensg.shares(11, ["a", "b", "c"]) == {"a": 4, "b": 4, "c": 3}
    assert set(sensg.shares(7_500_000, [str(each) for each in range(12)]).values()) == {625_000}


def test_reads_of_all_individuals_are_written_with_a_label_per_base(
    sensg: ModuleType, tmp_path: Path
) -> None:
    populations = {"one": ["a", "b"], "two": ["c"]}
    frame = pd.read_parquet(sensg.write(tmp_path / "reads", populations, reads=7, seed=0, invented=500))
    assert frame["individual"].tolist() == ["a"] * 3 + ["b"] * 2 + ["c"] * 2
    assert frame["population"].tolist() == ["one"] * 5 + ["two"] * 2
    assert set(frame["read"].str.len()) == set(frame["labels"].str.len()) == {150}
    assert set("".join(frame["read"])) == set("ACGT")
    assert set("".join(frame["labels"])) == set("01")
    assert [path.name for path in (tmp_path / "reads").iterdir()] == ["reads.parquet"]


def test_folders_of_runs_have_names_that_the_command_line_takes(
    papers, tmp_path, monkeypatch, capsys
) -> None:
    folders = []
    monkeypatch.setattr(papers, "run", lambda overrides, folder, threads: folders.append(folder.name) or 1)
    (tmp_path / "emnist62").mkdir()
    item = papers.ITEMS["fedgmcc-figure-3-emnist62"]
    monkeypatch.setitem(
        papers.ITEMS, "one", papers.Item("", dict([list(item.runs.items())[1]]), (), "emnist62", "")
    )
    assert papers.main([str(tmp_path / "out"), "one", "--data", str(tmp_path)]) == 1
    assert folders == ["EMD-17.1-fedprox"]  # with a comma it would be a list
