from pathlib import Path

import numpy as np
import pytest

from fedclust.data.sites import OwnSitesPartition, SiteError, site_here, sites_in_turn
from fedclust.data.sites.agreement import Wanted, agree
from fedclust.data.sites.rows import builder_of, describe, prepare_site, read_site
from fedclust.data.sites.rules import Rules
from fedclust.grids.nodes import read_site_hosts
from fedclust.support.reasons import discreet

TABLE = {"_target_": "fedclust.data.tables.Tables", "name": "t", "label": "y"}


def _read(path: Path, **dataset):
    return read_site("north", builder_of({**TABLE, **dataset}, path), OwnSitesPartition(), 0)


def _csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("lines", "dataset", "reason"),
    [
        (("x,y", "1,a"), {}, "a client must have at least 2 rows, got 1"),
        (("x,z", "1,a", "2,b"), {}, "label must be a column of the source, got y"),
        (("x,y", "1,a", "2,b"), {"natural": "ward"}, "natural must be a column of the source, got ward"),
        (("x,y", "1,a", "2,"), {}, "label must have a value in every row, 1 examples have none in y"),
        (("x,y", '1,"a', "2,b"), {}, "cannot read its data"),
        (("x;y", "1;a", "2;b"), {}, "its data has one column"),
        (("x,ward,y", "1,b\a,p", "2,b\a,q"), {"natural": "ward"}, "at most 300 printable characters"),
        ((), {}, "its data must be a file or folder that exists"),
        (
            ("x,y", "1,3.5", "2,3.5"),
            {"target": "amounts"},
            "^amounts must differ between rows, all are alike$",
        ),
        (("x,y", "1,3.5", "2,"), {"target": "amounts"}, "^y: rows without a value"),
        (("x,y", "1,3.5", "2,inf"), {"target": "amounts"}, "^y: infinite numbers"),
        (("x,y,e", "1,3.5,1", "2,-7,0"), {"event": "e"}, "^y: times that are not above 0"),
        (("x,y,e", "1,3.5,1", "2,7,2"), {"event": "e"}, "^e: events that are neither 0 nor 1"),
        (("x,y", "1,3.5", "2,7"), {"event": "e"}, "event must be a column of the source, got e"),
    ],
)
def test_a_site_that_does_not_fit_says_why_and_not_where_its_data_is(
    tmp_path: Path, lines: tuple[str, ...], dataset: dict, reason: str
) -> None:
    path = _csv(tmp_path / "patients.csv", *lines) if lines else tmp_path / "patients.csv"
    with pytest.raises(SiteError, match=reason) as error:
        _read(path, **dataset)
    assert "patients" not in str(error.value)
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    ("row", "dataset", "problem"),
    [
        ("2,-777,1", {"event": "e"}, "y: times that are not above 0"),
        ("2,777,5", {"event": "e"}, "e: events that are neither 0 nor 1, false nor true"),
        ("2,,1", {"event": "e"}, "y: rows without a value"),
        ("2,,1", {"target": "amounts"}, "y: rows without a value"),
    ],
)
def test_a_deployed_site_says_what_is_wrong_without_a_value(
    tmp_path: Path, row: str, dataset: dict, problem: str
) -> None:
    path = _csv(tmp_path / "a.csv", "x,y,e", *(f"{n},{n + 1},{n % 2}" for n in range(12)), row)
    builder = builder_of({**TABLE, **dataset}, path)
    with discreet(), pytest.raises(SiteError, match=f"^{problem}; fedclust check FILE shows where") as error:
        read_site("north", builder, OwnSitesPartition(), 0, Rules(min_cell=3))
    assert "7" not in str(error.value)


def test_blocks_of_values_hold_enough_rows_that_train(tmp_path: Path) -> None:
    lines = [f"{n % 7},{n * 37 % 50 + 1},{int(n % 10 == 0)}" for n in range(100)]
    path = _csv(tmp_path / "a.csv", "x,y,e", *lines)
    for dataset in ({"event": "e"}, {"target": "amounts", "ignore": ["e"]}):
        builder = builder_of({**TABLE, **dataset}, path)
        rows = read_site("north", builder, OwnSitesPartition(), 0, Rules(min_cell=6))
        stated = describe(rows)
        assert not stated.labels
        assert min(each.rows for each in stated.values) >= 6
        assert sum(each.rows for each in stated.values) == len(rows.trained) == 80
        mean = sum(each.rows * each.mean[0] for each in stated.values) / 80
        assert mean == pytest.approx(np.mean([int(lines[row].split(",")[1]) for row in rows.trained]))


def test_clients_are_the_values_of_the_natural_column(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "x,ward,y", "1,b,p", "2,a,q", "3,b,q", "4,c,p", "5,a,p", "6,,p")
    rows = _read(path, natural="ward")
    assert rows.clients == ("north/a", "north/b")
    (nobodys,) = (each for each in rows.findings if each.rule == "no owner")
    assert nobodys.line.startswith("ward: rows without the name of a client, in 1 of 6 rows; fill in")
    (warning,) = (each for each in describe(rows).warnings if each.startswith("ward"))
    assert warning == nobodys.public
    held = sorted([*rows.train[0], *rows.test[0]]), sorted([*rows.train[1], *rows.test[1]])
    assert held == ([1, 4], [0, 2])


def test_an_official_test_part_is_the_sites_own(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    _csv(folder / "train.csv", "x,y", "1,a", "2,b", "3,a")
    _csv(folder / "test.csv", "x,y", "4,b")
    rows = read_site("north", builder_of(TABLE, folder), OwnSitesPartition(test="official"), 0)
    assert rows.train[0].tolist() == [0, 1, 2]
    assert rows.test[0].tolist() == [3]


def test_a_client_that_trains_on_a_few_rows_is_left_out(tmp_path: Path) -> None:
    # Six rows, of which one tests: five train. Five rows, of which one tests: four, which is too few.
    lines = [f"{k},{'a' if k < 6 else 'b'},{k % 2}" for k in range(11)]
    path, rules = _csv(tmp_path / "a.csv", "x,ward,y", *lines), Rules(min_cell=5, groups=("ward",))
    builder = builder_of({**TABLE, "natural": "ward"}, path)
    rows = read_site("north", builder, OwnSitesPartition(), 0, rules)
    assert rows.clients == ("north/a",)
    assert [len(each) for each in (*rows.train, *rows.test)] == [5, 1]
    path = _csv(tmp_path / "b.csv", "x,y", *(f"{k},a" for k in range(5)))
    with pytest.raises(SiteError, match="^a client must train on at least 5 rows$"):
        read_site("north", builder_of(TABLE, path), OwnSitesPartition(), 0, Rules(min_cell=5))


def test_nothing_is_said_of_a_column_of_identifiers(tmp_path: Path) -> None:
    lines = [f"Smith {k},{k % 3},{k % 2}" for k in range(30)]
    column = describe(_read(_csv(tmp_path / "a.csv", "name,x,y", *lines))).columns["name"]
    assert column.unfit == "many distinct texts"
    assert column.values == ()
    dates = [f"2024-01-{k + 1:02d},{k % 3},{k % 2}" for k in range(30)]
    column = describe(_read(_csv(tmp_path / "b.csv", "day,x,y", *dates))).columns["day"]
    assert column.unfit == "dates or times"  # and no example of one


def test_a_column_with_an_infinite_number_refuses_the_site(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="^x: infinite numbers; correct these cells"):
        _read(_csv(tmp_path / "a.csv", "x,y", *["inf,a", "1,b"] * 5))


TEXTS = {"_target_": "fedclust.data.text.Text", "name": "texts", "label": "y", "text": "x"} | {
    "vocabulary_size": 100
}
IMAGES = {"_target_": "fedclust.data.images.Images", "name": "images", "label": "y", "image": "x"}
LONG = 1001 * "a"


@pytest.mark.parametrize(
    ("dataset", "lines", "message"),
    [
        (TABLE, ["x,y", *[f"1.5,{LONG}", "2.5,b"] * 5], "labels must have at most 1,000 characters"),
        (TABLE, [f"{LONG},x,y", *["1.5,2.5,a", "2.5,1.5,b"] * 5], "names of columns must have at most 1,000"),
        (TABLE | {"keep": ["x"]}, ["x,y", *[f"{LONG},a", "c,b"] * 5], "values of x must have at most 1,000"),
        (TEXTS, ["x,y", *[f"warm,{LONG}", "kalt,b"] * 5], "labels must have at most 1,000 characters"),
    ],
)
def test_what_no_message_takes_refuses_its_site_and_no_other_of_the_node(
    tmp_path: Path, dataset: dict, lines: list[str], message: str
) -> None:
    builder = builder_of(dataset, _csv(tmp_path / "a.csv", *lines))
    with pytest.raises(SiteError, match=f"^{message}") as error:
        describe(read_site("a", builder, OwnSitesPartition(), 0))
    assert "aa" not in str(error.value)


def test_a_word_that_no_message_takes_is_none_of_the_vocabulary(tmp_path: Path) -> None:
    lines = ["x,y", *[f"warm {LONG},a", f"kalt {LONG[1:]},b"] * 8]
    rows = read_site("a", builder_of(TEXTS, _csv(tmp_path / "a.csv", *lines)), OwnSitesPartition(), 0)
    assert {*describe(rows).words} == {"warm", "kalt", LONG[1:]}


@pytest.mark.parametrize("dataset", [TEXTS, IMAGES | {"input_shape": [1, 2, 2]}], ids=["texts", "images"])
def test_numbers_of_texts_and_images_are_amounts_and_no_classes(tmp_path: Path, dataset: dict) -> None:
    path = _csv(tmp_path / "a.csv", "x,y", *(f"{k},{k + 0.25}" for k in range(40)))
    rows = read_site("a", builder_of(dataset | {"target": "amounts"}, path), OwnSitesPartition(), 0)
    assert rows.labels.ravel().tolist() == [k + 0.25 for k in range(40)]
    with pytest.raises(SiteError, match="^y: too many different values to be classes"):
        read_site("a", builder_of(dataset, path), OwnSitesPartition(), 0)


@pytest.mark.parametrize("dataset", [TABLE, TEXTS, IMAGES | {"input_shape": [1, 2, 2]}])
def test_an_unlabelled_example_of_datasets_is_no_class_at_a_site(tmp_path: Path, dataset: dict) -> None:
    import datasets

    kinds = {"x": datasets.Value("string"), "y": datasets.ClassLabel(names=["ill", "well"])}
    held = {"x": ["warm", "kalt", "nass"] * 6, "y": [0, 1, -1] * 6}
    datasets.Dataset.from_dict(held, datasets.Features(kinds)).save_to_disk(str(tmp_path / "a"))
    with pytest.raises(SiteError, match="^y must have a label in every example, some have -1, which"):
        read_site("a", builder_of(dataset, tmp_path / "a"), OwnSitesPartition(), 0)
    kept = builder_of(dataset | {"drop_labels": [-1]}, tmp_path / "a")
    assert sorted({*read_site("a", kept, OwnSitesPartition(), 0).labels.tolist()}) == ["ill", "well"]


def test_only_what_sites_can_agree_on_is_read() -> None:
    digits = {"_target_": "fedclust.data.digits.Digits", "name": "digits"}
    with pytest.raises(SiteError, match="reads tables, images and texts, .* got dataset digits"):
        builder_of(digits, Path("digits.csv"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_clients": 0}, "min_clients must be >= 1, got 0"),
        ({"test_fraction": 1.0}, "test_fraction must be in"),
        ({"validation_fraction": -0.1}, "validation_fraction must be in"),
        ({"test": "uniform"}, "test must be one of holdout, official, got 'uniform'"),
        ({"sites": {"a/b": "x.csv"}}, "partition.sites: a site's name .* without '/', got 'a/b'"),
        ({"sites": []}, r"must be names, .* got \[\]"),
        ({"sites": 3}, "must be names, a mapping"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OwnSitesPartition(**settings)


def test_a_deployed_node_serves_its_own_data_only(tmp_path: Path) -> None:
    own = OwnSitesPartition(sites={"a": "a.csv", "b": "b.csv", "c": "c.csv"})
    deployed = {"data": str(tmp_path), "name": "north", "partition-id": 0, "num-partitions": 2}
    assert site_here(deployed) == {"north": tmp_path}
    # A run's configuration never says what a deployed node reads.
    with pytest.raises(SiteError, match="must have data and a name"):
        site_here({"partition-id": 0, "num-partitions": 2})
    with pytest.raises(SiteError, match="must have a name"):
        site_here({"data": str(tmp_path)})
    dealt = [list(sites_in_turn({"partition-id": k, "num-partitions": 2}, own)) for k in range(2)]
    assert dealt == [["a", "c"], ["b"]]


def test_a_folder_has_a_site_per_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "south").mkdir()
    (tmp_path / "north.csv.gz").touch()
    (tmp_path / ".hidden").touch()
    own = OwnSitesPartition(sites=str(tmp_path))
    assert own.paths() == {"north": tmp_path / "north.csv.gz", "south": tmp_path / "south"}
    assert own.expected() == {"north", "south"}
    (tmp_path / "west.2.xlsx").touch()  # which nobody can read, and the run names as it is
    assert own.expected() == {"north", "south", "west.2.xlsx"}
    (tmp_path / "north.parquet").touch()
    with pytest.raises(SiteError, match="has two for north"):
        own.paths()
    assert OwnSitesPartition(sites=["x"]).expected() == {"x"}
    with pytest.raises(SiteError, match="must give the path of each site's data"):
        OwnSitesPartition(sites=["x"]).paths()


def test_a_name_is_one_in_whatever_form_its_letters_come(tmp_path: Path) -> None:
    composed, apart = "Klinik S\u00fcd", "Klinik Su\u0308d"
    assert site_here({"data": str(tmp_path), "name": f" {apart} "}) == {composed: tmp_path}
    assert OwnSitesPartition(sites=[apart]).expected() == {composed}
    assert OwnSitesPartition(sites={apart: "a.csv"}).paths() == {composed: Path("a.csv")}
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / f"{apart}.csv").touch()
    assert list(OwnSitesPartition(sites=str(tmp_path / "sites")).paths()) == [composed]
    (tmp_path / "hosts.toml").write_text(f'"site-a" = "{apart}"\n')
    assert read_site_hosts(tmp_path / "hosts.toml") == {composed: "site-a"}
    with pytest.raises(ValueError, match=f"must have different names, got {composed} twice"):
        OwnSitesPartition(sites=[apart, composed])


def test_a_column_that_the_encoding_uses_and_the_rows_lack_is_named(tmp_path: Path) -> None:
    rows = _read(_csv(tmp_path / "a.csv", "x,z,y", "1,5,a", "2,7,b", "3,9,a", "4,1,b"))
    agreed = agree({"north": describe(rows), "south": describe(rows)}, Wanted(columns=True)).agreement
    assert agreed is not None
    lacking = _read(_csv(tmp_path / "b.csv", "x,y", "1,a", "2,b", "3,a", "4,b"))
    with pytest.raises(SiteError, match="^it lacks 'z'$"):
        prepare_site(lacking, agreed, "t", [])
