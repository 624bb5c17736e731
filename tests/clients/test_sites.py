"""A node's own sites: what they answer before the rounds, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from omegaconf import OmegaConf
from PIL import Image

from fedclust.clients.node import Node
from fedclust.clients.sites import OwnSites, own_sites
from fedclust.data.input_encoders import CategoryColumn, NumberColumn
from fedclust.data.sites import SiteError
from fedclust.data.sites.agreement import Agreement, Embedding
from fedclust.messages.codec import encode
from fedclust.messages.description import Agreed, Stated
from fedclust.models.encoders import RandomEncoder
from fedclust.settings.allowed import NotAllowed
from fedclust.settings.composition import COMPOSED, TARGET, compose, to_run_config
from fedclust.support.reasons import discreet

ROWS = ["age,diagnosis", *[f"{30 + number},{'ill' if number % 3 else 'well'}" for number in range(30)]]
ONLY = {"partition-id": 0, "num-partitions": 1}
OWN = ["dataset=csv", "dataset.label=diagnosis", "partition=own"]
PICTURES = ["dataset=image_folder", "dataset.input_shape=[3,4,4]", "partition=own"]
EMBEDDED = [*PICTURES, "features=encoder", "encoder=random"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def context(overrides: list[str], **node: str | int) -> Context:
    return Context(1, 2, dict(node), RecordDict(), to_run_config(compose(overrides)))


def sites(folder: Path, **texts: str) -> OwnSites:
    paths = {name: folder / f"{name}.csv" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    listed = ",".join(f"{name}: '{path}'" for name, path in paths.items())
    found = own_sites(context([*OWN, f"partition.sites={{{listed}}}"], allow="*", **ONLY))
    assert found is not None
    return found


def test_a_run_over_a_pooled_dataset_has_no_own_sites() -> None:
    assert own_sites(context(["dataset=digits"])) is None
    with pytest.raises(NotAllowed, match="^partition must be own on this node, which serves only its own"):
        own_sites(context(["dataset=digits"], data="/rows.csv", name="north"))


def test_whether_a_run_is_over_own_data_is_found_without_resolving_anything() -> None:
    looked_up: list[str] = []
    OmegaConf.register_new_resolver("looked", lambda: looked_up.append("here") or TARGET)
    try:
        asked = context(OWN, data="/rows.csv", name="north")
        sent = json.loads(str(asked.run_config[COMPOSED]))
        for partition in ({"_target_": "${looked:}"}, "${looked:}"):
            asked.run_config[COMPOSED] = json.dumps(sent | {"partition": partition})
            with pytest.raises(NotAllowed, match="^partition must be own on this node"):
                own_sites(asked)
    finally:
        OmegaConf.clear_resolver("looked")
    assert looked_up == []


def test_sites_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    found = sites(tmp_path, north="\n".join(ROWS) + "\n", south="age,other\n1,2\n")
    registered, stated = found.registered(), found.stated()
    assert registered.clients == {"north": ("north",)}
    assert list(stated.statements) == ["north"]
    for answer in (registered, stated):
        assert list(answer.refused) == ["south"]
        assert "diagnosis" in answer.refused["south"]
        assert answer.refused["south"].isprintable()


def test_a_site_states_its_encoder_or_why_it_has_none(tmp_path: Path) -> None:
    for color in ("red", "blue"):
        (tmp_path / color).mkdir()
        for number in range(3):
            Image.new("RGB", (4, 4), color).save(tmp_path / color / f"{number}.png")
    images = [*PICTURES, "features=encoder", f"partition.sites={{north: '{tmp_path}'}}"]

    def stated(*encoder: str) -> Stated:
        found = own_sites(context([*images, *encoder], allow="*", **ONLY))
        assert found is not None
        return found.stated()

    embedding = stated("encoder=random", "encoder.dimension=5").statements["north"].embedding
    assert embedding == Embedding(RandomEncoder([3, 4, 4], 5, 0, None).fingerprint, 5)
    lacking = stated("encoder=transformers", "encoder.path=/nowhere")
    assert not lacking.statements
    assert "encoder transformers: path must be a hub id, or a local folder" in lacking.refused["north"]
    assert lacking.refused["north"].isprintable()  # one line


@pytest.mark.parametrize(
    ("overrides", "operator", "reason"),
    [
        (EMBEDDED, {"encoder": "pixels"}, "^encoder must be one that this node's operator lists in its"),
        (EMBEDDED, {}, "^encoder must be one that this node's operator lists in its"),
        ([*OWN, "model._target_=os.system"], {}, "^model._target_ must be allowed on this node"),
    ],
)
def test_a_site_that_may_not_build_what_a_run_asks_for_is_refused_by_name(
    tmp_path: Path, overrides: list[str], operator: dict[str, str], reason: str
) -> None:
    (tmp_path / "site.toml").write_text('encoders = ["pixels"]')
    listed = operator or {"rules": str(tmp_path / "site.toml")}
    found = own_sites(context(overrides, data=str(tmp_path), name="north", **listed))
    assert found is not None
    assert re.search(reason, found.registered().refused["north"])
    with pytest.raises(SiteError, match=reason):
        found.held(context(overrides))


def test_a_site_with_two_lists_of_encoders_uses_those_of_both(tmp_path: Path) -> None:
    rules = tmp_path / "site.toml"
    rules.write_text('encoders = ["pixels", "random"]')
    found, about = deployed(patients(tmp_path), [], rules=str(rules), encoder="random,efficientnet_lite0")
    number = NumberColumn("age", 40.0, 40.0, 5.0)
    agreed = Agreement(("ill", "well"), ("ill", "well"), (1,), (number,), ())
    assert not found.agree(about, encode(Agreed(agreed, {"north": 0}, 1))).refused
    assert Node.of(about).encoders == ("random",)


@pytest.mark.parametrize("text", ["min_cel = 3", "min_cell = 2", None])
def test_rules_that_cannot_be_read_are_not_said_to_be_the_defaults(tmp_path: Path, text: str | None) -> None:
    rules = tmp_path / "site.toml"
    if text is not None:
        rules.write_text(text)
    found, _ = deployed(patients(tmp_path), [], rules=str(rules))
    registered = found.registered()
    assert list(registered.refused) == ["north"]
    assert registered.rules == {}


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    found = sites(tmp_path, north="\n".join(ROWS) + "\n")
    before = found.rows("north")
    assert found.rows("north") is before
    (tmp_path / "north.csv").write_text("\n".join(ROWS[:-1]) + "\n")
    after = found.rows("north")
    assert (len(before.labels), len(after.labels)) == (30, 29)


def test_a_node_must_have_an_agreement_first(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="^a node must be sent the encoding before anything else"):
        sites(tmp_path, north="\n".join(ROWS) + "\n").held(context(OWN))


# -- A deployed node, whose data a run cannot read otherwise ------------------------------------------------


def patients(folder: Path, **columns: list[str]) -> Path:
    """Write a table of 40 patients: 20 ill, 20 well."""
    own = {
        "age": [f"{30 + row % 20}.5" for row in range(40)],
        "ward": ["ab"[row % 2] for row in range(40)],
        "patient": [f"Smith {row}" for row in range(40)],
        "diagnosis": [("ill", "well")[row < 20] for row in range(40)],
        **columns,
    }
    lines = [",".join(own), *map(",".join, zip(*own.values(), strict=True))]
    (path := folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return path


def deployed(folder: Path, overrides: list[str], **node: str) -> tuple[OwnSites, Context]:
    pictures = "dataset=image_folder" in overrides
    left_out = [] if pictures else ["dataset.ignore=[patient]"]
    about = context([*OWN, *left_out, *overrides], data=str(folder), name="north", **node)
    found = own_sites(about)
    assert found is not None
    return found, about


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["+dataset.csv_options.skiprows=7"], "dataset.csv_options must not be set for a site's own data"),
        (["+dataset.csv_options.comment=S"], "dataset.csv_options must not be set"),
        (["dataset.csv_options.sep='|'"], "dataset.csv_options must not be set"),
        (["dataset.keep=[patient]"], "dataset.keep must not be set"),
        (["+dataset.only={ward: a}"], "dataset.only must not be set"),
        (["dataset.drop_labels=[ill]"], "dataset.drop_labels must not be set"),
        (["dataset.exclude=[x]"], "dataset.exclude must not be set"),
        (["dataset=image_folder", "dataset.label_pattern='(.*)'"], "dataset.label_pattern must not be set"),
        (["dataset.label=patient"], "dataset.label must not name an identifier or a date, got patient"),
        (["dataset.natural=patient"], "dataset.natural must not name an identifier"),
        (["dataset.categories=[patient]"], "dataset.categories must not name an identifier"),
        (["dataset.label=age"], "dataset.label must have at least 5 rows of each of its classes"),
        (["dataset.label=nobody"], "label must be a column of the source, got nobody$"),
        (["dataset.natural=age"], "a client must have at least 5 rows$"),
    ],
)
def test_no_run_says_how_a_site_reads_its_data(tmp_path: Path, overrides: list[str], reason: str) -> None:
    patients(tmp_path)
    with discreet():
        refused = deployed(tmp_path / "patients.csv", overrides)[0].registered().refused
    assert re.match(reason, refused["north"]), refused
    # A refusal names what the run has named, and no other column.
    assert not [name for name in ("ward", "Smith") if name in refused["north"]]


def test_the_operator_says_how_a_site_reads_its_data(tmp_path: Path) -> None:
    path = patients(tmp_path, patient=[f"Smith {row % 8}" for row in range(40)])  # five rows of each
    path.write_text("exported today\n" + path.read_text().replace(",", ";").replace(".5", ",5"))
    node = {"sep": ";", "decimal": ",", "skiprows": 1, "keep": "patient"}
    statement = deployed(path, ["dataset.ignore=[]"], **node)[0].stated().statements["north"]
    assert statement.labels == ("ill", "well")
    assert statement.columns["age"].kind == "number"
    assert statement.columns["patient"].values == tuple(f"Smith {row}" for row in range(8))


def test_the_operator_is_told_what_to_write_in_the_nodes_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = patients(tmp_path, code=["12?3"[row % 4] for row in range(40)])
    (warning,) = deployed(path, [])[0].stated().statements["north"].warnings
    assert warning == (
        "code: a category that means missing; leave these cells empty, or name it, as in na_values='?' "
        "(in --node-config)"
    )
    assert deployed(path, [], na_values="?")[0].stated().statements["north"].warnings == ()
    path.write_bytes(path.read_text().replace("ill", "kränklich").encode("latin-1"))
    with discreet():
        assert "reading the data failed" in deployed(path, [])[0].registered().refused["north"]
    assert "set its encoding, for example encoding='latin-1' (in --node-config)" in caplog.text
    assert "dataset.csv_options" not in caplog.text.rpartition("SourceError")[2]
    assert not deployed(path, [], encoding="latin-1")[0].registered().refused


def test_a_site_names_no_clients_by_a_column_until_its_operator_lists_it(tmp_path: Path) -> None:
    path, rules = patients(tmp_path), tmp_path / "site.toml"
    rules.write_text("groups = []\n")
    refused = deployed(path, ["dataset.natural=ward"], rules=str(rules))[0].registered().refused["north"]
    assert refused == (
        "dataset.natural must be allowed by the site's rules, got ward; its operator can allow it in the "
        "groups of the rules"
    )
    rules.write_text('groups = ["ward"]\n')
    registered = deployed(path, ["dataset.natural=ward"], rules=str(rules))[0].registered()
    assert registered.clients == {"north": ("north/a", "north/b")}


def test_what_is_of_fewer_than_five_rows_stays(tmp_path: Path) -> None:
    columns = {
        "stage": ["A"] * 36 + ["B"] * 4,
        "smoker": ["0"] * 18 + ["1"] + ["0"] * 18 + ["1"] * 3,  # 4 of 40
        "dose": [""] * 36 + ["7.25"] * 4,
        "gaps": ["", *[f"{row / 7:.3f}" for row in range(39)]],
    }
    path = patients(tmp_path, **columns)
    found, _ = deployed(path, [])
    described = found.stated().statements["north"].columns
    assert described["stage"].values == ("A",)
    smoker = described["smoker"].moments
    assert (smoker.count, smoker.mean, smoker.squares) == (smoker.rows, 0.0, 0.0)
    assert described["dose"].kind == "empty"
    assert described["dose"].moments.count == 0
    gaps = described["gaps"].moments
    assert gaps.count == gaps.rows


LISTED = 'labels = ["diagnosis"]\ninputs = ["age"]\ngroups = []\n'
FORBIDS = "partition.group must be allowed by the site's rules, got patient; its operator can allow it as"
DEMANDS = "partition.group must be patient at this site, by the rules of its operator, got none"


@pytest.mark.parametrize(
    ("rules", "key", "reason"),
    [
        ('patient = "patient"', "null", DEMANDS),
        ('patient = "patient"', "patient", None),
        (LISTED, "patient", FORBIDS),  # how many keys there are would leave the site
        (LISTED, "null", None),
        (LISTED + 'patient = "patient"', "patient", None),
        ("min_cell = 5", "patient", None),
    ],
)
def test_who_is_one_patient_is_decided_by_the_rules(
    rules: str, key: str, reason: str | None, tmp_path: Path
) -> None:
    (file := tmp_path / "site.toml").write_text(rules)
    path = patients(tmp_path)
    ignored = "[patient]" if key == "null" else "[]"
    given = [f"partition.group={key}", f"dataset.ignore={ignored}"]
    about = context([*OWN, *given], data=str(path), name="north", rules=str(file))
    refused = own_sites(about).registered().refused
    assert list(refused) == ([] if reason is None else ["north"])
    assert refused.get("north", "").startswith(reason or "")


def test_a_class_of_fewer_than_five_rows_and_too_many_classes_are_refused(tmp_path: Path) -> None:
    few = ["ill"] * 36 + ["rare"] * 4
    refused = deployed(patients(tmp_path, diagnosis=few), [])[0].registered().refused["north"]
    assert refused.startswith("dataset.label must have at least 5 rows of each")
    assert "rare" not in refused


def test_a_run_s_rows_are_noted_at_the_site(tmp_path: Path) -> None:
    number = NumberColumn("age", 40.0, 40.0, 5.0)
    agreed = Agreement(("ill", "well"), ("ill", "well"), (1,), (number,), ())
    other = replace(agreed, numbers=(replace(number, mean=41.0),))

    def refused(path: Path, key: str = "a run", encoding: Agreement = agreed, **options: str) -> list[str]:
        found, about = deployed(path, [], **options)
        return list(found.agree(about, encode(Agreed(encoding, {"north": 0}, 1, key))).refused.values())

    path = patients(tmp_path)
    assert refused(path) == []
    path.touch()
    assert refused(path) == []  # the same rows, in a file of another time
    stricter = tmp_path / "site.toml"
    stricter.write_text("min_cell = 8")
    assert refused(path, rules=str(stricter)) == refused(path, encoding=other) == []
    table = path.read_text().splitlines()
    path.write_text("\n".join([table[0], *sorted(table[1:], key=lambda row: row[::-1])]) + "\n")
    for case in ({}, {"rules": str(stricter)}, {"encoding": other}):
        (why,) = refused(path, **case)
        assert why.startswith("its data must not change during a run, or a model would be tested on rows")
    path.write_text("\n".join([table[0], *table[:0:-1]]) + "\n")  # labels in another order, too
    (looser := tmp_path / "looser.toml").write_text("min_cell = 4")
    assert refused(path, rules=str(looser)) != []  # and nothing is noted of these rows under these rules
    path.write_text("\n".join([table[0], *sorted(table[1:], key=lambda row: row[::-1])]) + "\n")
    assert refused(path, key="another run") == []
    path.write_text("\n".join(table) + "\n")
    assert refused(path) == refused(path, rules=str(looser)) == []  # it has its rows again


def test_a_site_states_its_data_in_one_way_in_a_run(tmp_path: Path) -> None:
    """From two means and sums of squares whoever corrects a cell tells what it was, and what it is."""
    path = patients(tmp_path)
    right = path.read_text()
    path.write_text(corrected := right.replace("30.5", "99.5", 1))
    assert deployed(path, [])[0].stated("one run").refused == {}
    path.write_text(right)  # mended before it takes part
    found, about = deployed(path, [])
    first = found.stated("one run").statements["north"]
    agreed = Agreement(("ill", "well"), ("ill", "well"), (1,), (NumberColumn("age", 40.0, 40.0, 5.0),), ())
    assert found.agree(about, encode(Agreed(agreed, {"north": 0}, 1, "one run"))).refused == {}
    path.write_text(corrected)
    found = deployed(path, [])[0]
    rule = "its data, and the rules by which it states them, must not change during a run"
    assert found.stated("one run").refused["north"].startswith(rule)
    assert found.stated("another run").statements["north"] != first
    path.write_text(right)
    (rules := tmp_path / "site.toml").write_text("min_cell = 4")  # nothing is of 4 rows
    for node in ({}, {"rules": str(rules)}):
        assert deployed(path, [], **node)[0].stated("one run").statements["north"] == first


def test_an_encoding_must_use_what_the_site_has_described(tmp_path: Path) -> None:
    found, about = deployed(patients(tmp_path, stage=["A"] * 36 + ["B"] * 4), [])
    number = NumberColumn("age", 40.0, 40.0, 5.0)
    stage = CategoryColumn("stage", ("A", "B"), (True, True))
    patient = CategoryColumn("patient", ("Smith 1",), (True,))
    labels = ("ill", "well")
    for columns, shape, refused in (
        (([number], [stage]), 3, {}),
        (([number], [patient]), 2, {"north": r"as the site has described them, got patient$"}),
        (([replace(number, name="ward")], []), 1, {"north": "got ward$"}),
    ):
        agreed = Agreement(labels, labels, (shape,), tuple(columns[0]), tuple(columns[1]))
        answer = found.agree(about, encode(Agreed(agreed, {"north": 0}, 1)))
        assert answer.refused.keys() == refused.keys()
        for site, reason in refused.items():
            assert re.search(reason, answer.refused[site])
        if not refused:
            folder = Path(found.held(about)[1]["north"])
            inputs = np.load(folder / "inputs.npy")
            # Four rows have stage B, which is too few: they are encoded like an unknown category.
            assert inputs[:, 1:].sum(axis=0).tolist() == [36.0, 0.0]
            assert inputs[0, 0] == np.float32((30.5 - 40) / 5)
            # What was encoded under other rules is not used: the operator has withdrawn the label since.
            stricter = replace(found, rules=replace(found.rules, labels=("nothing",)))
            with pytest.raises(SiteError, match="^the columns that a site's rules allow must not change"):
                stricter.held(about)


@pytest.mark.parametrize("key", ["rule", "Rules", "encoders", "model"])
def test_a_node_with_a_misspelt_key_does_not_go_on_without_it(tmp_path: Path, key: str) -> None:
    (tmp_path / "a.csv").write_text("\n".join(ROWS) + "\n")
    found = own_sites(context(OWN, data=str(tmp_path / "a.csv"), name="north", **{key: "x", "batch": 3}))
    assert found is not None
    hint = f"--node-config of this site has {key}: did you mean {key.lower().rstrip('s')}"
    assert found.registered().refused["north"].startswith(hint)
