"""FedGMCC, Appendix B: whose reads are made, and what is written."""

import importlib
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sensg(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("sensg")


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
