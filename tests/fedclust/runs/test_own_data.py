"""Sites that hold their own rows train together, as on the pooled file."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from PIL import Image

from fedclust import clients, load_export, run
from fedclust.data.loading import make_builder
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.data.sites import OwnSitesPartition
from fedclust.data.sites.rows import builder_of, read_site
from fedclust.federation import FederationError
from fedclust.messages.description import Registered, read_from_node
from fedclust.models.encoders import RandomEncoder
from fedclust.results import Recorder
from fedclust.runs.own_data import _check_same
from fedclust.runs.predict import main as predict
from fedclust.settings.composition import ConfigError, compose, plain, to_run_config
from fedclust.support.flower import assume_identity
from fedclust.support.reasons import RunFailed

COLUMNS = "age,sex,stage,diagnosis"
SHORT = [
    "strategy=fedavg",
    "compare=[]",
    "proof=false",
    "rounds=3",
    "training.batch_size=16",
    "evaluate_every=3",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def _rows(size: int, seed: int, stages: str, shift: float = 0.0) -> list[str]:
    draws = np.random.default_rng(seed)
    rows = []
    for _ in range(size):
        age, stage = draws.normal(60 + shift, 10), str(draws.choice(list(stages)))
        ill = age + 8 * "ABC".index(stage) + draws.normal(0, 4) > 66
        rows.append(f"{age:.2f},{draws.choice(['f', 'm'])},{stage},{'ill' if ill else 'well'}")
    return rows


def _csv(path: Path, rows: list[str], columns: str = COLUMNS) -> Path:
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Path]:
    """Three hospitals; south has a stage that the others lack."""
    folder = tmp_path / "sites"
    folder.mkdir()
    tables = {"east": _rows(60, 1, "AB"), "north": _rows(90, 2, "AB", 5), "south": _rows(75, 3, "ABC", -5)}
    return {site: _csv(folder / f"{site}.csv", rows) for site, rows in tables.items()}


def _own(sites) -> list[str]:
    given = sites if isinstance(sites, str) else "{" + ",".join(f"{k}: '{v}'" for k, v in sites.items()) + "}"
    return ["dataset=csv", "dataset.label=diagnosis", "partition=own", f"partition.sites={given}"]


def test_three_sites_reach_what_the_pooled_file_reaches(sites: dict[str, Path], tmp_path: Path) -> None:
    own = run(
        [
            *(*_own(str(tmp_path / "sites")), *SHORT, "engine.num_nodes=1", "save_predictions=true"),
            f"output_dir={tmp_path / 'own'}",
        ]
    )
    assert own.clients["name"].tolist() == ["east", "north", "south"]
    _assert_its_export_predicts_the_same(own, sites)

    # The pooled file: each site's rows in turn, with the site's name, and the same rows to train and test.
    lines = [f"{row},{site}" for site, path in sites.items() for row in path.read_text().split()[1:]]
    pooled = _csv(tmp_path / "pooled.csv", lines, f"{COLUMNS},hospital")
    config = plain(
        compose(["dataset=csv", "dataset.label=diagnosis", *_shape(), "dataset.natural=hospital"]).dataset
    )
    config["path"] = str(pooled)
    read = [
        read_site(site, builder_of(config | {"natural": None}, path), OwnSitesPartition(), 0)
        for site, path in sites.items()
    ]
    starts = np.cumsum([0] + [len(each.labels) for each in read])
    train, test = (
        tuple(getattr(each, part)[0] + start for each, start in zip(read, starts, strict=False))
        for part in ("train", "test")
    )
    rows = ClientRows(train, test, None, (None,) * 3)
    save_client_rows(rows, make_builder(config).load(), tmp_path / "rows.parquet")
    natural = run(
        [
            "dataset=csv", f"dataset.path={pooled}", "dataset.label=diagnosis", *_shape(),
            "dataset.natural=hospital", "partition=natural", f"partition.file={tmp_path / 'rows.parquet'}",
            *SHORT, f"output_dir={tmp_path / 'pooled'}",
        ]
    )  # fmt: skip
    for column in ("num_train", "num_test", "accuracy"):
        if column in own.clients:
            np.testing.assert_allclose(
                own.clients[column], natural.clients[column], rtol=1e-9, err_msg=column
            )
    assert (
        own.summary["loss"] == pytest.approx(natural.summary["loss"], rel=1e-5)
        if "loss" in own.summary
        else True
    )
    first, second = (each.model_for(0).state_dict() for each in (own, natural))
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-4, atol=1e-6, err_msg=name)


def _assert_its_export_predicts_the_same(own, sites: dict[str, Path]) -> None:
    """Predict every site's raw file, and compare with what the run's clients predicted of their test rows."""
    served = own.folder.parent / "served"
    own.export(served)
    inside = pd.read_parquet(own.folder / "predictions.parquet")
    for site, path in sites.items():
        out = served.parent / f"{site}-predictions.csv"
        assert predict([str(served), str(path), "--site", site, "--out", str(out)]) == 0
        outside = pd.read_csv(out)
        here = inside[inside["name"] == site]
        there = outside.iloc[here["row"]]  # rows are of the site's own file
        assert here["label"].tolist() == pd.read_csv(path)["diagnosis"].iloc[here["row"]].tolist()
        assert len(here) == round(0.2 * len(outside))
        assert here["predicted"].tolist() == there["predicted"].tolist()
        for name in ("ill", "well"):
            np.testing.assert_allclose(here[f"p: {name}"], there[name], atol=1e-6)


@pytest.mark.parametrize(
    ("predicted", "column"),
    [
        (["dataset.label=stay", "dataset.target=amounts", "dataset.unit=days"], "amount (days)"),
        (["dataset.label=stay", "dataset.event=died"], "risk"),
    ],
    ids=["amounts", "times"],
)
def test_sites_predict_amounts_and_times(predicted: list[str], column: str, tmp_path: Path) -> None:
    draws, paths = np.random.default_rng(3), {}
    for site, size in {"east": 70, "north": 90, "south": 60}.items():
        ages = draws.normal(60, 10, size)
        stay = np.exp((ages - 60) / 10 + draws.normal(0, 0.2, size)) * 20
        rows = zip(ages, draws.integers(0, 2, size), stay, strict=True)
        lines = [f"{age:.1f},{died},{days:.2f}" for age, died, days in rows]
        paths[site] = _csv(tmp_path / f"{site}.csv", lines, "age,died,stay")
    own = ["dataset=csv", "partition=own", *_own(paths)[-1:], *predicted]
    short = [each for each in SHORT if not each.startswith("rounds")]
    found = run([*own, *short, "rounds=12", f"output_dir={tmp_path / 'own'}"])
    assert found.clients["name"].tolist() == sorted(paths)
    found.export(tmp_path / "served")
    table = pd.read_csv(paths["north"])
    outside = load_export(tmp_path / "served").predict(table, site="north")
    # Who is older stays longer, so that the event comes later.
    order = np.corrcoef(outside[column].rank(), table["stay"].rank())[0, 1]
    assert (order if column != "risk" else -order) > 0.8
    again = run([*own, *short, "rounds=12", "engine.num_nodes=2", f"output_dir={tmp_path / 'two'}"])
    np.testing.assert_allclose(again.clients["accuracy"], found.clients["accuracy"])


def _shape() -> list[str]:
    return ["dataset.num_classes=2", "dataset.input_shape=[6]"]  # age, f, m, A, B, C


def test_the_number_of_nodes_does_not_matter_and_a_run_resumes(
    sites: dict[str, Path], tmp_path: Path
) -> None:
    whole = run([*_own(sites), *SHORT, "engine.num_nodes=2", f"output_dir={tmp_path / 'whole'}"])
    folder = tmp_path / "part"
    run([*_own(sites), *SHORT, "rounds=2", f"output_dir={folder}"])
    resumed = run([f"resume={folder}", "rounds=3"])
    assert resumed.clients.equals(whole.clients)
    with sites["north"].open("a") as file:
        file.write("70,f,A,ill\n")
    with pytest.raises(ConfigError, match="must have the encoding of"):
        run([f"resume={folder}", "rounds=4"])
    # One that no longer fits is left out by name, also where one process serves all of them.
    text = sites["north"].read_text()
    sites["north"].write_text(text.replace("age,", "years,", 1))
    left = run([f"resume={folder}", "rounds=4"]).summary
    assert list(left["sites_left_out"]) == ["north"]
    assert left["sites_left_out"]["north"].startswith("it lacks the columns age")
    assert left["failed_replies"] == 2  # it is offline in rounds 3 and 4
    sites["north"].write_text(text)
    # A site may be gone when a run goes on; a simulation that no longer names it is another one.
    fewer = {site: path for site, path in sites.items() if site != "south"}
    with pytest.raises(ConfigError, match="must have the configuration of .*partition.sites.south"):
        run([f"resume={folder}", "rounds=4", _own(fewer)[-1]])


def test_a_run_that_was_rescued_can_be_resumed(
    sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, write = tmp_path / "run", Recorder.round

    def removed(self: Recorder, record: dict[str, object]) -> None:
        if self.folder == folder and record["round"] == 2:
            shutil.rmtree(folder)
        write(self, record)

    monkeypatch.setattr(Recorder, "round", removed)
    with pytest.raises(RunFailed, match="everything up to this round is now in") as caught:
        run([*_own(sites), *SHORT, f"output_dir={folder}"])
    rescued = str(caught.value).rpartition("resume=")[2]
    whole = run([*_own(sites), *SHORT, f"output_dir={tmp_path / 'whole'}"])
    assert run([f"resume={rescued}"]).clients.equals(whole.clients)


def test_a_run_resumed_without_a_site_keeps_the_warnings_of_its_agreement(
    sites: dict[str, Path], tmp_path: Path
) -> None:
    table = pd.read_csv(sites["south"])
    table.assign(age=100 * table["age"]).to_csv(sites["south"], index=False)
    folder = tmp_path / "run"
    warnings = run([*_own(sites), *SHORT, "rounds=2", f"output_dir={folder}"]).summary["data_warnings"]
    assert any(line.startswith("south: column age may be in another unit") for line in warnings)
    sites["east"].unlink()
    summary = run([f"resume={folder}", "rounds=3"]).summary
    assert list(summary["sites_left_out"]) == ["east"]
    assert summary["data_warnings"] == warnings
    agreement = folder / "agreement.json"
    for damaged in (agreement.read_text()[:200], "{}"):
        agreement.write_text(damaged)
        with pytest.raises(
            ConfigError, match="resume must have the agreement of its sites in .*/agreement.j"
        ):
            run([f"resume={folder}", "rounds=4"])


def test_who_does_not_fit_is_refused_by_name_and_the_others_train(
    sites: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    def changed(name: str, rows: list[str], old: str, new: str, columns: str = COLUMNS) -> Path:
        return _csv(tmp_path / f"{name}.csv", [re.sub(old, new, row) for row in rows], columns)

    wrong = {
        "bern": changed("b", _rows(20, 4, "A"), ",[fm]", "", "age,stage,diagnosis"),
        "cork": _csv(tmp_path / "c.csv", _rows(1, 5, "A")),
        "dover": tmp_path / "nothing.csv",
        "essen": changed("e", _rows(30, 6, "AB"), "ill|well", "1"),
        "faro": changed("f", _rows(30, 7, "AB"), r"^(\d)(\d)\.", r"0.\1\2"),  # in hundreds of years
    }
    folder = tmp_path / "out"
    result = run(
        [*_own({**wrong, **sites}), *SHORT, "rounds=1", f"output_dir={folder}"], Console(soft_wrap=True)
    )
    assert result.clients["name"].tolist() == ["east", "faro", "north", "south"]
    about = json.loads((folder / "agreement.json").read_text())
    assert about["clients"] == ["east", "faro", "north", "south"]
    assert about["refused"] == {
        "bern": "it lacks the columns sex, which most sites have",
        "cork": "a client must have at least 2 rows, got 1",
        "dover": "its data must be a file or folder that exists",
        "essen": "labels must be texts as at most sites, got numbers",
    }
    printed = capsys.readouterr().out
    for site, reason in about["refused"].items():
        assert f"{site} is refused: {reason}" in printed
    assert "warning: faro: column age may be in another unit" in printed
    assert str(tmp_path / "b.csv") not in printed


def test_a_wrong_number_of_classes_or_columns_is_one_error(sites: dict[str, Path], tmp_path: Path) -> None:
    for given, message in (
        ("dataset.num_classes=3", r"num_classes must be 2, as the sites' labels are ill, well, got 3"),
        (
            "dataset.input_shape=[9]",
            r"dataset.input_shape must be \[6\], as the sites have it, got \[9\]",
        ),
    ):
        with pytest.raises((ConfigError, FederationError), match=message):
            run([*_own(sites), *SHORT, given, f"output_dir={tmp_path / 'out'}"])


def test_weights_by_the_counts_of_all_and_a_bad_file_of_hosts_are_refused(
    sites: dict[str, Path], tmp_path: Path
) -> None:
    short = [*_own(sites), *SHORT, f"output_dir={tmp_path / 'out'}"]
    with pytest.raises(ConfigError, match="class_weights must be numbers with partition=own, got bal"):
        run([*short, "loss=weighted_cross_entropy"])
    with pytest.raises(ConfigError, match="hosts must be a TOML file"):
        run([*short, f"hosts={tmp_path / 'nothing.toml'}"])


def test_sites_embed_their_own_images_and_an_export_takes_raw_ones(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for site in ("north", "south"):
        for label, light in (("dark", 0), ("light", 150)):
            (folder := tmp_path / "sites" / site / label).mkdir(parents=True)
            for number in range(20):
                pixels = draws.integers(light, light + 100, (6, 6, 3)).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{number}.png")
    own = ["dataset=image_folder", "dataset.input_shape=[3,6,6]", "partition=own"]
    encoded = ["features=encoder", "encoder=random", "encoder.dimension=7", "model=linear"]
    given = [*own, f"partition.sites={tmp_path / 'sites'}", *encoded, *SHORT]
    result = run([*given, f"output_dir={tmp_path / 'run'}"])
    agreed = json.loads((tmp_path / "run" / "agreement.json").read_text())["agreement"]
    encoder = RandomEncoder([3, 6, 6], 7, 0, None)
    assert agreed["embedding"] == {"fingerprint": encoder.fingerprint, "dimension": 7}
    # By hand: raw pixels, normalised by what the sites agreed on, embedded, through one linear layer.
    seen = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    (weight, bias) = result.model_for(1).parameters()
    with torch.no_grad():
        logits = encoder.encode(seen, agreed["mean"], agreed["std"]) @ weight.T + bias
    assert weight.shape == (2, 7)
    raw = result.predict(1, seen.numpy())
    torch.testing.assert_close(raw, logits.softmax(-1))
    result.export(tmp_path / "served")
    served = load_export(tmp_path / "served").predict([folder / f"{number}.png"], site="south")
    np.testing.assert_allclose(served[["dark", "light"]], raw, atol=1e-6)
    # A newcomer's folder of images is what its pixels are.
    names = sorted(folder.iterdir())
    as_pixels = np.stack([np.asarray(Image.open(name)).transpose(2, 0, 1) for name in names])
    assert result.place(str(folder)) == result.place(names) == result.place(as_pixels)
    # The run is resumed with the same encoder only.
    with pytest.raises(
        FederationError,
        match=r"refused: north, south: its encoder must be random-\w+ as in the run, got random-",
    ):
        run([f"resume={tmp_path / 'run'}", "rounds=4", "encoder.seed=1"])


def _ask(node: dict, overrides: list[str]) -> Message:
    assume_identity()
    context = Context(1, 2, node, RecordDict(), to_run_config(compose(overrides)))
    return clients.app(Message(RecordDict(), 2, "query.clients"), context)


def test_a_deployed_node_reads_its_own_file_and_no_run_can_change_that(sites: dict[str, Path]) -> None:

    node = {"data": str(sites["north"]), "name": "north"}
    elsewhere = f"dataset.path='{sites['south']}'"
    said = read_from_node(Registered, _ask(node, [*_own(sites), elsewhere]).content)
    assert said.clients == {"north": ("north",)}
    with pytest.raises(ValueError, match="partition must be own on this node"):
        _ask(node, ["dataset=digits"])
    with pytest.raises(ValueError, match="must have data and a name"):
        _ask({"partition-id": 0, "num-partitions": 1}, _own(sites))


def test_a_node_says_how_its_own_csv_is_written(tmp_path: Path) -> None:

    path = _csv(tmp_path / "a.csv", ["1,5;x", "2,5;y", "3,5;x", "4,5;y"] * 5, "age;diagnosis")
    node = {"data": str(path), "name": "north"}
    refused = read_from_node(Registered, _ask(node, _own("nowhere")[:3]).content).refused
    assert "separator" in refused["north"]
    said = read_from_node(Registered, _ask({**node, "sep": ";", "decimal": ","}, _own("nowhere")[:3]).content)
    assert said.clients == {"north": ("north",)}


ENCODING = {"numbers": 1, "words": []}


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (None, "resume must be a run of sites with their own data, here is not"),
        ({"clients": ["a", "c"], "agreement": ENCODING}, "clients of here, got others, without c; also b"),
        ({"clients": ["a", "b", "c"], "agreement": ENCODING}, "got others, without c$"),
        ({"clients": ["b", "a"], "agreement": ENCODING}, "got them in another order$"),  # with other ids
        (
            {"clients": ["a", "b"], "agreement": ENCODING | {"numbers": 2}},
            r"resume must have the encoding of here, got another: a site's rows have changed \(numbers\)$",
        ),
    ],
)
def test_a_run_to_resume_must_have_had_the_same_clients_and_encoding(saved, message: str) -> None:
    now = {"clients": ["a", "b"], "agreement": ENCODING}
    _check_same(dict(now), now, Path("here"))
    with pytest.raises(ConfigError, match=message):
        _check_same(saved, now, Path("here"))
