import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import fedclust
from fedclust.clients.node import _prepare
from fedclust.data import load as load_data
from fedclust.data.input_encoders import ArrayEncoder
from fedclust.data.targets import Amounts, Target, Times
from fedclust.messages.models import to_state
from fedclust.models.construction import build
from fedclust.models.sequences import EmbeddingLSTM
from fedclust.runs.predict import main
from fedclust.serving import export as formats
from fedclust.serving.served import Served, Site
from fedclust.settings.composition import build as build_settings, compose, plain
from fedclust.training.cohort import Job
from fedclust.training.trainer import Trainer

SITES = ["north", "south", "west"]


def settings(folder, strategy, personal):
    return [
        f"strategy={strategy}", "compare=[]", "proof=false", "serve=cluster", "dataset=csv",
        f"dataset.path={folder / 'patients.csv'}", "dataset.label=diagnosis", "dataset.num_classes=2",
        "dataset.input_shape=[3]", "partition=natural", "dataset.natural=hospital", "rounds=2",
        f"personal={personal}", "model.hidden=[8]", f"output_dir={folder / strategy}", "device=cpu",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three hospitals, each with other shares of the classes."""
    folder = tmp_path_factory.mktemp("hospitals")
    draw = np.random.default_rng(0)
    age, sex = draw.normal(60, 10, 240).round(1), draw.choice(["f", "m"], 240)
    site = draw.choice(SITES, 240)
    ill = age + 6 * (sex == "m") > np.select([site == "north", site == "south"], [56, 64], 70)
    diagnosis = np.where(ill, "ill", "well")
    frame = pd.DataFrame({"age": age, "sex": sex, "hospital": site, "diagnosis": diagnosis})
    frame.loc[::9, "age"] = np.nan
    frame.to_csv(folder / "patients.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def common(folder):
    """One model for all, and each site's label-prior correction."""
    return fedclust.run(settings(folder, "fedavg", "prior"))


@pytest.fixture(scope="module")
def local(folder):
    """A model per site."""
    return fedclust.run([*settings(folder, "local", "none"), "save_predictions=true"])


@pytest.fixture(scope="module")
def exported(local, folder):
    return local.export(folder / "exported")


def test_raw_rows_are_predicted_to_the_bits_of_the_run(local, exported, folder) -> None:
    """What a client's trainer computes from its encoded rows, a site computes from its file."""
    config = compose(settings(folder, "local", "none"))
    data = load_data(plain(config.dataset), plain(config.partition), 0)
    trainer = Trainer(build(plain(config.model), 0), data, build_settings(config.training), 0)
    served = fedclust.load_export(exported)
    table = pd.read_csv(folder / "patients.csv")
    assert served.clusters == (0, 1, 2)
    for client, name in enumerate(SITES):
        rows = data.test[client]
        state = to_state(local._state.models[client])
        logits, labels = trainer.logits([Job(client, rows, state)])[0]
        found = served.predict(table.iloc[rows].drop(columns="diagnosis"), site=name)
        assert found.columns.tolist() == ["ill", "well"]
        np.testing.assert_array_equal(found.to_numpy(), torch.from_numpy(logits).softmax(-1).numpy())
        assert found.index.tolist() == rows.tolist()
        # The labels are those of the names: ill is 0, well is 1.
        assert [found.columns[label] for label in labels] == table["diagnosis"].iloc[rows].tolist()


def test_the_label_prior_correction_is_applied_for_its_site(common, tmp_path, folder) -> None:
    served = fedclust.load_export(common.export(tmp_path / "out"))
    table = pd.read_csv(folder / "patients.csv").head(20)
    inputs = served.inputs(table)
    plain_model = served.probabilities(table, cluster=0)
    for client, name in enumerate(SITES):
        shift = torch.tensor(common.clients["prior_shift"][client])
        assert shift.abs().max() > 0.01
        found = served.probabilities(table, site=name)
        assert torch.equal(found, common.predict(client, inputs))
        by_hand = plain_model.double().log() + shift
        torch.testing.assert_close(found.double(), by_hand.softmax(-1), atol=1e-6, rtol=0)


def test_a_fine_tuned_client_is_served_what_the_run_measured(folder, tmp_path) -> None:
    table = pd.read_csv(folder / "patients.csv")
    table.to_csv(tmp_path / "patients.csv", index=False)
    overrides = [*settings(tmp_path, "fedavg", "finetune"), "personal.learning_rate=0.5"]
    run = fedclust.load(fedclust.run(overrides).folder)
    config = compose(overrides)
    data = load_data(plain(config.dataset), plain(config.partition), 0)
    served = fedclust.load_export(run.export(tmp_path / "out"))
    bare = fedclust.load_export(run.export(tmp_path / "bare", sites=[]))
    assert "this is its cluster's model" in (tmp_path / "bare" / "index.json").read_text()
    for name, here in (("out", 3), ("bare", 0)):
        assert f"of their own; {here} of them are" in (tmp_path / name / "README.md").read_text()
    (tmp_path / "bare" / "client-1").mkdir()  # as a site does, whose node wrote the file
    own = "client-1/model.safetensors"
    shutil.copy(tmp_path / "out" / own, tmp_path / "bare" / own)
    given = fedclust.load_export(tmp_path / "bare")
    for client, name in enumerate(SITES):
        rows, truth = table.iloc[data.test[client]], table["diagnosis"].iloc[data.test[client]]
        found, before = served.predict(rows, site=name), bare.predict(rows, site=name)
        assert (found.idxmax(axis=1) == truth).mean() == run.clients["accuracy"][client]
        assert (before.idxmax(axis=1) == truth).mean() == run.clients["accuracy_none"][client]
        np.testing.assert_array_equal(run.predict(client, served.inputs(rows)).numpy(), found.to_numpy())
        assert given.predict(rows, site=name).equals(found if client == 1 else before)
    assert (run.clients["accuracy_none"] != run.clients["accuracy"]).any()
    table["diagnosis"] = table["diagnosis"].map({"ill": "well", "well": "ill"})
    table.to_csv(tmp_path / "patients.csv", index=False)
    _prepare.cache_clear()  # as in a new process
    with pytest.raises(ValueError, match="rows must be on this machine .* label counts differ"):
        fedclust.load(run.folder).finetuned(0)


def test_the_folder_says_what_was_measured_and_nothing_else(exported, local) -> None:
    card = (exported / "README.md").read_text()
    for name, accuracy in zip(SITES, local.clients["accuracy"], strict=True):
        assert f"| {name} |" in card
        assert f"{accuracy:.3f}" in card
    assert "- clients: 3" in card
    alone = (exported / "cluster-1" / "README.md").read_text()
    assert "| south |" in alone
    assert "| north |" not in alone
    assert "\n- clients of the whole run: 3, with " in alone  # its table has one
    one = fedclust.load_export(exported / "cluster-1")
    assert one.clusters == (1,)
    assert one.sites == ()


def test_only_a_model_that_is_meant_is_used(exported) -> None:
    served = fedclust.load_export(exported)
    rows = pd.DataFrame({"age": [50.0], "sex": ["f"]})
    for arguments, message in [
        ({}, "cluster must be one of 0, 1, 2, or site must be given, got None"),
        ({"site": "east"}, "site must be one of north, south, west, got east"),
        ({"cluster": 3}, "cluster must be one of 0, 1, 2, or site must be given, got 3"),
        ({"cluster": "1"}, "cluster must be one of 0, 1, 2, or site must be given, got '1'"),
        ({"site": "north", "cluster": 0}, "must not both be given"),
    ]:
        with pytest.raises(ValueError, match=message):
            served.predict(rows, **arguments)
    assert served.predict(rows, site=2).equals(served.predict(rows, site="west"))
    assert served.predict(rows, site="west").equals(served.predict(rows, cluster=2))


def change(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


TOUCH = {"_target_": "os.system", "command": "touch gone"}
MLP = "fedclust.models.dense.MLP"
NINE = {"_target_": MLP, "hidden": [9], "input_shape": [3], "num_classes": 2}
HOSTILE = [
    ({"model": TOUCH}, r"model\._target_ must be allowed, got .os"),
    ({"model": {"_target_": MLP, "inner": [{"_target_": "builtins.eval"}]}}, "builtins.eval"),
    ({"model": {"_target_": MLP, "hidden": "${oc.env:HOME}"}}, "must not be resolved"),
    ({"model": NINE}, "must hold the weights of the network"),
    ({"model": NINE | {"hidden": [10**6, 10**6]}}, "must hold the weights of the network"),  # before 4 TB
    ({"model": {"_target_": MLP, "hidden": "x"}}, "model cannot be built"),
    ({"model": ["a"]}, "model must have a _target_"),
    ({"model": None}, "model must be given"),
    ({"class_names": ["ill"]}, "class_names must be at least two texts"),
    ({"encoder": {"kind": "pickle"}}, "encoder must be one of"),
    ({"format": 2}, "must be an export of format 1"),
]


@pytest.mark.parametrize(("values", "message"), HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line(exported, tmp_path, monkeypatch, values, message) -> None:
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(exported / "cluster-0", tmp_path / "copy")
    change(copy, "cluster.json", **values)
    with pytest.raises(ValueError, match=message) as caught:
        fedclust.load_export(copy)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("part", ["model", "training", "encoder"])
def test_a_hostile_run_is_refused_in_one_line(local, folder, tmp_path, run, part) -> None:
    copy = shutil.copytree(local.folder, tmp_path / "copy")
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config[part] = TOUCH
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    refused = rf"config.yaml: {part}\._target_ must be allowed, got .os.system.; load\("
    with pytest.raises(ValueError, match=refused):
        fedclust.load(copy)
    # The folder says itself whether it is an export or a run: a run's folder is no way round the list.
    assert re.search(refused, run("predict", str(copy), str(folder / "patients.csv")).complained)
    assert not (tmp_path / "gone").exists()


def test_a_huge_network_in_a_run_is_refused_before_it_is_built(local, tmp_path) -> None:
    copy = shutil.copytree(local.folder, tmp_path / "copy")
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["model"] = NINE | {"hidden": [10**6, 10**6]}
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match="weights must be the network's: unexpected are "):
        fedclust.load(copy).model_of(0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state, first: {**state, first: torch.zeros(2, 2)}, "must hold the weights of the network"),
        (lambda state, first: {k: v for k, v in state.items() if k != first}, "must hold .*missing"),
        (
            lambda state, _: state | {f"{n}": torch.zeros(0) for n in range(9)},
            "unexpected are 0, 1, 2, 3, 4 and 4",
        ),
        (lambda state, first: {**state, first: state[first].where(state[first] > 0, torch.nan)}, "finite"),
        (None, "must hold the weights of the network"),  # a pickle
    ],
)
def test_weights_are_read_from_safetensors_only_and_must_fit(exported, tmp_path, damage, message) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    weights = copy / "cluster-0" / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(weights).items()}  # not a map of the file
    if damage is None:
        torch.save(state, weights)
    else:
        save_file(damage(state, next(iter(state))), weights)
    with pytest.raises(ValueError, match=message):
        fedclust.load_export(copy)


def test_folders_of_clusters_that_were_exchanged_are_refused(exported, tmp_path) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    for old, new in (("cluster-0", "kept"), ("cluster-1", "cluster-0"), ("kept", "cluster-1")):
        (copy / old).rename(copy / new)
    with pytest.raises(ValueError, match=r"cluster-0/cluster\.json: cluster must be 0, got 1"):
        fedclust.load_export(copy)
    with pytest.raises(ValueError, match="site must not be given to the models of one cluster's folder"):
        fedclust.load_export(exported / "cluster-0").predict(pd.DataFrame({"age": [50.0]}), site="north")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clients": [{"client": 0, "cluster": 7}]}, "client 0 must have a cluster with a model, got 7"),
        ({"clients": [{"client": 0, "cluster": 0, "prior_shift": [1.0]}]}, "prior_shift must have 2 values"),
        ({"clusters": ["../../x"]}, "must be a whole number, got"),
    ],
)
def test_an_index_that_cannot_be_is_refused(exported, tmp_path, values, message) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    change(copy, "index.json", **values)
    with pytest.raises(ValueError, match=message):
        fedclust.load_export(copy)
    with pytest.raises(FileNotFoundError, match="must hold an export"):
        fedclust.load_export(tmp_path)


def test_an_export_replaces_nothing(local, exported) -> None:
    with pytest.raises(FileExistsError, match="empty folder"):
        local.export(exported)
    with pytest.raises(ValueError, match="formats must be among onnx, torch, got pickle"):
        local.export(exported / "new", formats=["pickle"])
    assert not (exported / "new").exists()


def test_an_empty_folder_is_written_into(local, tmp_path, monkeypatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there", target_is_directory=True)
    (tmp_path / "there").mkdir()
    assert (local.export(tmp_path / "link") / "index.json").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    local.export(".")
    assert sorted(os.listdir()) == sorted(os.listdir(tmp_path / "there"))


def test_a_client_s_id_is_not_another_one_s_name() -> None:
    served = Served(("a", "b"), ArrayEncoder((2,), "float32"), (Site(0, 0, "1"), Site(1, 0, "0")), (0,), None)
    assert [served.site(site).client for site in (0, 1, "0", "1")] == [0, 1, 1, 0]
    # Districts 3 and 7: there is no district 0.
    served = Served(("a", "b"), ArrayEncoder((2,), "float32"), (Site(0, 0, "3"), Site(1, 0, "7")), (0,), None)
    assert [served.site(site).client for site in (0, 1, "3", "7")] == [0, 1, 0, 1]
    rule = "site must be one of 3, 7, got 0"
    with pytest.raises(ValueError, match=f"{rule}$"):
        served.site("0")
    with pytest.raises(ValueError, match=f"{rule}; for another site choose a cluster$"):
        served.predict(np.zeros((1, 2), "f4"), site="0")


def test_a_network_of_ones_own_is_given_again(tmp_path) -> None:
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(12, 4)).astype(np.float32), draw.integers(0, 2, 12)) for _ in range(3)]
    network = torch.nn.Sequential(torch.nn.Linear(4, 2))
    training = fedclust.LocalTraining(steps=1, batch_size=4, learning_rate=0.1)
    result = fedclust.simulate("fedavg", network, clients, rounds=1, training=training)
    target = result.export(tmp_path / "out")
    with pytest.raises(ValueError, match="model must be given"):
        fedclust.load_export(target)
    served = fedclust.load_export(target, torch.nn.Sequential(torch.nn.Linear(4, 2)))
    assert torch.equal(served.probabilities(clients[0][0]), result.predict(0, clients[0][0]))


DAYS = Amounts(low=0.0, high=25.0, edges=(12.5,), unit="days")  # a network's unit is 10 days
UNTIL = Times(cuts=(10.0,), last=30.0, base=(0.5, -0.5), unit="days")


def own_target(target: Target) -> fedclust.Result:
    """Train a run whose second client has larger amounts, or fewer events, and uses its correction."""
    draw, clients = np.random.default_rng(0), []
    for client in range(2):
        inputs = draw.normal(size=(60, 3)).astype(np.float32)
        truth = 8 + 8 * client + draw.normal(size=60)
        if target == UNTIL:
            truth = np.stack([draw.uniform(1, 30, 60), draw.random(60) < 0.9 - 0.8 * client], axis=1)
        clients.append((inputs, truth.astype(np.float32)))
    network = torch.nn.Linear(3, target.outputs(4))
    training = fedclust.LocalTraining(steps=2, batch_size=8, learning_rate=0.05)
    run = {"rounds": 2, "training": training, "target": target, "personal": "prior"}
    return fedclust.simulate("fedavg", network, clients, **run)


def by_hand(target: Target, outputs: np.ndarray, moments: list[float]) -> np.ndarray:
    """Compute the amount, or the survival at moments and the risk, of each row."""
    if target == DAYS:
        return outputs * 10 + 12.5
    table = []
    for first, second in 1 / (1 + np.exp(-(outputs + np.array(UNTIL.base)))):
        ends = [1 - first, (1 - first) * (1 - second)]
        at = {10.0: ends[0], 20.0: (1 - first) * (1 - second) ** 0.5, 30.0: ends[1]}
        table.append([*(at[moment] for moment in moments), -sum(ends) / 2])
    return np.array(table)


@pytest.mark.parametrize(
    ("target", "times", "columns"),
    [
        (DAYS, None, ["amount (days)", "90 % from", "90 % to"]),
        (UNTIL, None, ["survival at 10 days", "survival at 30 days", "risk"]),
        (UNTIL, [20.0], ["survival at 20 days", "risk"]),
    ],
)
def test_amounts_and_times_are_predicted_with_the_client_s_correction(
    tmp_path, target, times, columns
) -> None:
    result = own_target(target)
    rows = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    weight, bias = (each.detach().numpy() for each in result.model_for(1).parameters())
    shift = np.array(result.clients["prior_shift"].iloc[1])
    assert (np.abs(shift) > 0.1).all()
    exported = result.export(tmp_path / "out", formats=["torch"])
    served = fedclust.load_export(exported, torch.nn.Linear(3, target.outputs(4)))
    assert served.target == target
    for site, added in ((1, shift), (None, 0)):
        moments = [10.0, 30.0] if times is None else times
        expected = by_hand(target, rows @ weight.T + bias + added, moments)
        if target == DAYS:  # of normal residuals 90 % are within 1.645 root mean squares
            table = result.clients
            mean = (table["num_test"] * table["rmse"] ** 2).sum() / table["num_test"].sum()
            expected = expected[:, :1] + 1.644854 * mean**0.5 * np.array([0.0, -1.0, 1.0])
            if site is None:  # these are errors of predictions with the corrections
                expected = expected[:, :1]
        found = served.predict(rows, site=site, times=times)
        assert list(found) == columns[: expected.shape[1]]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        if site is not None:
            own = result.predict(1, rows, times=times).numpy().reshape(5, -1)
            np.testing.assert_allclose(own, expected[:, : own.shape[1]], rtol=1e-4)
        elif times is None:
            file = torch.export.load(exported / "cluster-0" / "model.pt2").module()
            own = file(torch.from_numpy(rows)).detach().numpy().reshape(5, -1)
            np.testing.assert_allclose(own, expected[:, : own.shape[1]], rtol=1e-4)
    text = (exported / "README.md").read_text()
    assert target.words.share in text
    of_cluster = (exported / "cluster-0" / "README.md").read_text()
    # Measured with the corrections, which a cluster's folder lacks.
    assert ("root mean squared error" in text) is (target == DAYS)
    assert "root mean squared error" not in of_cluster
    assert not [word for word in ("accuracy", "classes", "label") if word in text]


def test_only_times_have_survival_at_times() -> None:
    served = Served(("a", "b"), ArrayEncoder((2,), "float32"), (), (0,), lambda _: torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"times must be None for classes, got \[3\]"):
        served.predict(np.zeros((1, 2), dtype=np.float32), times=[3])


def test_the_command_line_writes_a_row_per_row(exported, folder, tmp_path, capsys, run) -> None:
    rows = pd.DataFrame({"sex": ["f", "q"], "age": [40.0, None], "note": ["a", "b"]})
    rows.to_csv(tmp_path / "new.csv", index=False)
    assert main([str(exported), "--site", "north", str(tmp_path / "new.csv")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "predicted,ill,well"
    assert len(lines) == 3
    assert "columns not used: note" in printed.err
    assert "sex: 1 rows have an unknown category: q" in printed.err
    out = tmp_path / "out.csv"
    assert main([str(folder / "local"), "--cluster", "0", str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    assert out.read_text().splitlines() == lines  # north is client 0, alone in cluster 0
    capsys.readouterr()
    # A hospital's file as its node reads it is predicted as well, once it is told how that is.
    rows.to_csv(tmp_path / "german.csv", index=False, sep=";", decimal=",", na_rep="k.A.")
    written = ["--sep", ";", "--decimal", ",", "--csv", "na_values=k.A."]
    assert main([str(exported), "--site", "north", str(tmp_path / "german.csv"), *written]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    rows.drop(columns="age").to_csv(tmp_path / "less.csv", index=False)
    code, _, complained = run("predict", str(exported), "--site", "north", str(tmp_path / "less.csv"))
    assert code == 2
    assert re.match("fedclust predict: rows must have .* age missing", complained)
    assert "folder must hold an export or a run" in run("predict", ".", "new.csv").complained


def test_a_format_that_predicts_something_else_is_refused(tmp_path, monkeypatch) -> None:
    network = torch.nn.Linear(3, 2).eval()
    encoder = ArrayEncoder((3,), "float32")
    path = formats.write_format("torch", network, tmp_path, encoder)
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    found = torch.export.load(path).module()(rows)
    torch.testing.assert_close(found, network(rows).softmax(-1))

    def wrong(module, rows, path):
        path.write_bytes(b"")
        return [module(part).detach().numpy() + 0.01 for part in (rows, rows[:1])]

    for example, message in (
        (torch.ones(1, 3), "example must have at least 2 rows, got 1"),
        (torch.ones(2, 4), r"example must fit the network, torch\.float32 of shape \(2, 4\) does not"),
    ):
        with pytest.raises(ValueError, match=message):
            formats.write_format("torch", network, tmp_path, encoder, example)
    monkeypatch.setattr(formats, "_write_torch", wrong)
    with pytest.raises(ValueError, match=r"got 0\.01"):
        formats.write_format("torch", network, tmp_path, encoder)
    assert not path.exists()


def test_onnx_predicts_what_the_network_does(tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = torch.nn.Linear(3, 2).eval()
    path = formats.write_format("onnx", network, tmp_path, ArrayEncoder((3,), "float32"))
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    (found,) = onnxruntime.InferenceSession(str(path)).run(None, {"inputs": rows.numpy()})
    np.testing.assert_allclose(found, network(rows).softmax(-1).detach().numpy(), atol=1e-6)


class Halves(torch.nn.Linear):
    """A layer that computes in halves."""

    def forward(self, inputs):
        return super().forward(inputs).to(torch.bfloat16)


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_predictions_of_a_network_of_halves_are_no_halves(name, tmp_path) -> None:
    """A half's output is exact as a float, but not multiplied by 5,000: 1/3 g would be off by up to 10 g."""
    pytest.importorskip("onnxruntime") if name == "onnx" else None
    network, target = Halves(3, 1).eval(), Amounts(0, 5000, (), unit="g")
    path = formats.write_format(name, network, tmp_path, ArrayEncoder((3,), "float32"), target=target)
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    if name == "torch":
        found = torch.export.load(path).module()(rows).detach()
    else:
        import onnxruntime

        found = torch.from_numpy(
            onnxruntime.InferenceSession(str(path)).run(None, {"inputs": rows.numpy()})[0]
        )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, target.predictions(network(rows).float()).detach())


class FixedRows(torch.nn.Module):
    """Broadcasting makes the exporter take the example's number of rows for a constant."""

    def forward(self, inputs):
        return inputs.take_along_dim(inputs.long().argmax(dim=1)[:, None], dim=1).expand(-1, 2)


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_a_format_of_a_fixed_number_of_rows_is_refused(name, tmp_path) -> None:
    pytest.importorskip("onnxruntime") if name == "onnx" else None
    with pytest.raises(ValueError, match=f"format {name} does not support this network"):
        formats.write_format(name, FixedRows().eval(), tmp_path, ArrayEncoder((3,), "float32"))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_the_network_for_texts_is_written_for_any_number_of_rows(name, tmp_path) -> None:
    pytest.importorskip("onnxruntime") if name == "onnx" else None
    network = EmbeddingLSTM([6], 2, 9, embedding=4, hidden=3, dropout=0.5, input_dropout=0.2).eval()
    assert formats.write_format(name, network, tmp_path, ArrayEncoder((6,), "int64")).exists()


def test_predictions_of_test_rows_are_saved_and_are_those_of_the_export(exported, local, folder) -> None:
    """And the figures for people who decide are from the same rows."""
    saved = pd.read_parquet(folder / "local" / "predictions.parquet")
    table = pd.read_csv(folder / "patients.csv")
    served = fedclust.load_export(exported)
    for name, mine in saved.groupby("name"):
        assert mine["label"].tolist() == table["diagnosis"].iloc[mine["row"]].tolist()
        expected = served.predict(table.iloc[mine["row"]], site=name)
        np.testing.assert_allclose(mine[["p: ill", "p: well"]], expected, atol=1e-6)
    found = local.summary["decisions"]
    is_well = saved["label"] == "well"
    assert (found["positive"], found["rows"]) == ("well", len(saved))
    assert found["confusion"] == pd.crosstab(saved["label"], saved["predicted"]).to_numpy().tolist()
    of_both = 2 * ((saved["p: well"] - is_well) ** 2).mean()
    assert found["brier"] == pytest.approx(of_both, abs=0.003)
    north = saved[saved["name"] == "north"]
    of_the_ill = (north["predicted"] == "ill")[north["label"] == "ill"].mean()
    assert local.clients["specificity"][0] == pytest.approx(of_the_ill)
    assert np.sum(local.clients["confusion"][0]) == len(north)
