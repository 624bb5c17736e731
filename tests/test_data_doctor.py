"""Sites' data are checked before anything is sent: fedclust check, and before round 1 of a run."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedclust import run
from fedclust.data import load
from fedclust.data.sites import OwnSitesPartition
from fedclust.data.sites.agreement import Column, Moments, Statement, Wanted, agree
from fedclust.data.sites.rows import builder_of, read_site
from fedclust.federation import FederationError
from fedclust.results.report import print_report
from fedclust.results.saved_run import SavedRun
from fedclust.results.summary import never_predicted_line
from fedclust.settings.composition import compose, plain

SHORT = ["strategy=fedavg", "compare=[]", "proof=false", "rounds=1", "dataset=csv", "dataset.label=y"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def _table(size: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    age = draws.normal(60, 10, size).round(1)
    return pd.DataFrame({"age": age, "sex": ["f", "m"] * (size // 2), "y": np.where(age > 60, "bad", "good")})


def _write(folder: Path, **tables: pd.DataFrame) -> str:
    folder.mkdir()
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return f"partition.sites={folder}"


def test_sites_whose_data_have_errors_are_left_out_and_named(tmp_path: Path, pages: None) -> None:
    stray = _table(100, 3).astype({"age": object})
    stray.loc[::20, "age"] = "unknown"
    shouting = _table(80, 4).replace({"y": {"bad": "BAD"}})
    tables = {"east": _table(60, 1), "north": _table(70, 2), "ward": stray, "west": shouting}
    sites = _write(tmp_path / "sites", **tables)
    (tmp_path / "sites" / "broken.csv").write_text('age,sex,y\n1,"f\n')
    (tmp_path / "sites" / "south.xlsx").write_bytes(b"PK")
    short = ["strategy=auto", "compare=[fedavg]", *SHORT[3:]]
    result = run([*short, "partition=own", sites, f"output_dir={tmp_path / 'run'}"])
    assert result.clients["name"].tolist() == ["east", "north"]
    left = result.summary["sites_left_out"]
    assert left["broken"].startswith("cannot read its data")
    assert left["ward"].startswith("age: texts in a column of numbers; correct these cells")
    assert left["west"] == "label 'BAD' must be spelt 'bad', as at most sites"
    assert left["south.xlsx"].startswith("its data must end in one of .parquet, .csv")
    assert result.verdict["text"].endswith("; without broken, south.xlsx, ward, west: left out")
    assert "unknown" not in (result.folder / "agreement.json").read_text()  # no value has left
    page, printed = (result.folder / "report.html").read_text(), io.StringIO()
    print_report(SavedRun(result.folder), Console(file=printed))
    for site in left:
        assert f"Left out: {site}: " in page
        assert f"Left out: {site}: " in "".join(printed.getvalue().splitlines()[:5])


def test_amounts_are_no_classes_anywhere(tmp_path: Path) -> None:
    table = _table(60, 1).assign(y=lambda rows: rows.age)
    sites = _write(tmp_path / "sites", east=table, north=table, west=table)
    with pytest.raises(FederationError, match="refused: east, north, west: y: too many different values"):
        run([*SHORT, "partition=own", sites, f"output_dir={tmp_path / 'own'}"])
    pooled = [f"dataset.path={tmp_path / 'sites' / 'east.csv'}", "partition=iid"]
    with pytest.raises(
        ValueError, match="too many different values to be classes .*; to predict amounts give "
    ):
        run([*SHORT, *pooled, f"output_dir={tmp_path / 'pooled'}"])


def test_warnings_and_a_class_that_is_never_predicted_are_shown(tmp_path: Path) -> None:
    rare = pd.DataFrame({"x": np.random.default_rng(0).normal(size=200), "y": ([1] + [0] * 24) * 8})  # 4 %
    other = rare.assign(y=[1, 0] * 4 + [0] * 192)  # 2 %
    sites = _write(tmp_path / "sites", east=rare, north=other, west=rare.assign(y=[1, 1, 0, 0] * 50))
    result = run([*SHORT, "partition=own", sites, f"output_dir={tmp_path / 'run'}"])
    warned = [line.partition(":")[0] for line in result.summary["data_warnings"]]
    assert warned == ["east", "north"]
    never = {"rows": 100, "classes": [{"name": "0"}, {"name": "1"}], "confusion": [[96, 0], [4, 0]]}
    expected = "Never predicted: 1 (4 of 100 test rows); accuracy over all test rows 0.960, and 0.960 by "
    expected += "always answering 0"
    assert never_predicted_line({"decisions": never}) == expected
    assert never_predicted_line({"decisions": never | {"confusion": [[95, 1], [4, 0]]}}) is None


def test_no_person_is_divided(tmp_path: Path) -> None:
    table = _table(120, 1).assign(person=[f"p{k % 40}" for k in range(120)])
    table.loc[:2, "person"] = None  # three rows, each a person of its own
    path = tmp_path / "a.csv"
    table.to_csv(path, index=False)
    builder = builder_of(_node(path), path)
    own = OwnSitesPartition(group="person", validation_fraction=0.25)
    rows = read_site("a", builder, own, 0)
    parts = [np.concatenate(part) for part in (rows.train, rows.test, rows.validation)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(120))
    persons = [set(table["person"].iloc[part].dropna()) for part in parts]
    assert sum(map(len, persons)) == len(set.union(*persons)) == 40
    assert [len(part) > 0 for part in parts] == [True] * 3
    assert 20 <= len(parts[1]) <= 28  # a fifth of 40 persons with 3 rows each, and of the three
    assert "person" not in rows.builder.kinds(rows.parts[0])
    alone = read_site("a", builder_of(_node(path) | {"ignore": ["person"]}, path), OwnSitesPartition(), 0)
    assert len(alone.test[0]) == 24  # of 120 rows, as without a key


def _node(path: Path) -> dict[str, object]:
    return {"_target_": "fedclust.data.tables.Tables", "name": "csv", "label": "y", "path": str(path)}


def test_what_only_all_sites_together_show() -> None:
    def site(stages: tuple[str, ...], dose: Moments) -> Statement:
        stage = Column("category", values=stages, trained=(True,) * len(stages))
        return Statement(("bad", "good"), {"stage": stage, "dose": Column("number", dose)})

    varied, fixed = Moments.of(np.array([1.0, 2.0, 4.0])), Moments.of(np.array([2.1] * 3))
    sites = {"a": site(("I", "II"), varied), "b": site(("I", "II", "ii"), varied), "c": site(("I",), fixed)}
    assert agree(sites, Wanted(columns=True)).cautions == (
        "c: stage has one value in all rows; leave it out with 'dataset.ignore=[stage]', or ask why",
        "b: no other site has 'ii' in stage (elsewhere 'II'); check how it is coded",
        "c: dose has one value in all rows; leave it out with 'dataset.ignore=[dose]', or ask why",
    )
    two = {"a": Statement(("bad", "good")), "b": Statement(("BAD", "good"))}
    with pytest.raises(ValueError, match="spell a class alike.*got 'BAD' at b, 'bad' at a: correct"):
        agree(two, Wanted())


def test_a_pooled_file_needs_no_counting_and_a_saved_folder_is_read(tmp_path: Path) -> None:
    import datasets

    table = _table(80, 1).assign(stage=["A", "B", "C", "D"] * 20)
    table.to_csv(tmp_path / "a.csv", index=False)
    given = [f"dataset.path={tmp_path / 'a.csv'}", "dataset.label=y"]
    node = plain(compose(["dataset=csv", *given]).dataset)
    sizes = node["num_classes"], node["input_shape"], node["category_sizes"]
    assert sizes == (2, [7], None)  # age; f, m; A to D
    node = plain(compose(["dataset=csv", *given, "dataset.encoding=index"]).dataset)
    assert (node["input_shape"], node["category_sizes"]) == ([3], [3, 5])
    whole = datasets.Dataset.from_pandas(table, preserve_index=False)
    datasets.DatasetDict(train=whole, test=whole.select(range(20))).save_to_disk(str(tmp_path / "saved"))
    saved = [f"dataset.path={tmp_path / 'saved'}", "partition=iid", "partition.num_clients=2"]
    result = run([*SHORT, *saved, f"output_dir={tmp_path / 'run'}"])
    assert int(result.clients["num_test"].sum()) > 0
    assert json.loads((result.folder / "summary.json").read_text())["num_clients"] == 2


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "natural"])
def test_no_person_of_a_pooled_file_is_divided(tmp_path: Path, partition: str) -> None:
    # 40 persons of three rows; the file's owners are two wards, and a person's rows are in one of them.
    person = np.arange(120) % 40
    table = _table(120, 1).assign(pat_nr=[f"P{each:02d}" for each in person], ward=person // 20)
    table.to_csv(tmp_path / "a.csv", index=False)
    given = ["dataset=csv", "dataset.label=y", f"dataset.path={tmp_path / 'a.csv'}", "partition.group=pat_nr"]
    given += ["dataset.natural=ward", f"partition={partition}", "partition.validation_fraction=0.3"]
    given += [] if partition == "natural" else ["partition.num_clients=3"]
    config = compose(given)
    dataset = plain(config.dataset)
    assert dataset["input_shape"] == [3]  # age; f, m
    data = load(dataset, plain(config.partition), 0)
    parts = [set(person[rows]) for name in ("train", "validation", "test") for rows in getattr(data, name)]
    assert min(map(len, [*data.train, *data.test])) > 0
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
    assert sum(len(rows) for name in ("train", "validation", "test") for rows in getattr(data, name)) == 120
    np.testing.assert_array_equal(data.persons, person)
    with pytest.raises(ValueError, match="partition.group must be null with a dataset .* got pat_nr"):
        load({**dataset, "group": None, "ignore": ["pat_nr"]}, plain(config.partition), 0)
