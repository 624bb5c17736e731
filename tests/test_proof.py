"""Whole runs that prove themselves: the verdict, and who is served what."""

import dataclasses
import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

import fedclust
from fedclust import clients
from fedclust.clustering.auto import Parameters
from fedclust.data.arrays import from_arrays
from fedclust.data.targets import CLASSES
from fedclust.federation import Clusters
from fedclust.grids.local_grid import LocalGrid
from fedclust.layers.coalitions import Coalitions, chosen_without
from fedclust.messages.models import to_state
from fedclust.messages.packer import unpack
from fedclust.personal.layers import FINETUNE, NONE, Finetune
from fedclust.results import Checkpoints, SavedRun, comparable, print_report
from fedclust.runs.leave import main
from fedclust.runs.server import federate
from fedclust.serving.left import Left, without
from fedclust.settings.composition import compose, to_run_config
from fedclust.settings.folders import expand
from fedclust.strategies import Auto, ClusteredStrategy, FeSEM
from fedclust.support.reasons import FederationError
from fedclust.training import LocalTraining
from fedclust.training.trainer import Trainer

FRACTION = "partition.validation_fraction"


class Known(ClusteredStrategy):
    """The known groups; halves of the clients where none are known."""

    serves = "best"

    def begin(self, federation, model) -> Clusters:
        groups = federation.describe().groups
        halves = np.arange(federation.num_clients) * 2 // federation.num_clients
        return Clusters.of(halves if groups is None else groups, model)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make Known a choice of strategy; the folder of its configuration."""
    module = types.ModuleType("known_groups")
    module.Known = Known  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    folder = tmp_path_factory.mktemp("conf")
    (folder / "strategy").mkdir()
    (folder / "strategy" / "known.yaml").write_text("_target_: known_groups.Known\n")
    return folder


ROUNDS = 24
QUICK = ("strategy=known", f"rounds={ROUNDS}", "evaluate_every=1000", "training.mode=sequential")
QUICK = (*QUICK, f"{FRACTION}=0.1")


def _run(folder: Path, known: Path, *overrides: str) -> tuple[SavedRun, str]:
    config = compose(expand([*overrides, f"hydra.searchpath=[file://{known}]"]))
    out = io.StringIO()
    federate(config, LocalGrid(clients.app, to_run_config(config), 2), folder, Console(file=out))
    return SavedRun(folder), out.getvalue()


@pytest.fixture(scope="module")
def conventions(known: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedRun, str]:
    return _run(tmp_path_factory.mktemp("conventions"), known, *QUICK)


@pytest.fixture(scope="module")
def alike(known: Path, tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("alike")
    return _run(folder, known, *QUICK, "partition=iid", f"output_dir={folder}")[0]


# -- The verdict ----------------------------------------------------------------------------------------


def test_two_conventions_are_trained_in_two_groups(conventions: tuple[SavedRun, str]) -> None:
    run, printed = conventions
    verdict = run.summary["verdict"]
    accuracies = f"{verdict['accuracy_of_groups']:.3f} instead of {verdict['accuracy_of_one_model']:.3f}"
    assert verdict["text"].startswith(f"Train in 2 groups: {accuracies} of test rows predicted right (+0.")
    assert verdict["grouped"] is True
    assert verdict["better_for"] == 30
    assert 0 < verdict["interval"][0] < verdict["gain"] < verdict["interval"][1]
    assert verdict["p_value"] < 1e-6
    assert next(iter(json.loads((run.folder / "summary.json").read_text()))) == "verdict"
    report = printed[printed.index("Train in") :]
    assert report.startswith(f"{verdict['text']}.\n")
    assert "Served: every client its cluster's model (serve=best)" in report


def test_served_its_own_model_a_cluster_has_its_own_figures(conventions: tuple[SavedRun, str]) -> None:
    run, _ = conventions
    assert set(run.clients["served"]) == {"cluster"}
    last = run.rounds[-1]
    assert run.summary["mean_client_accuracy"] == pytest.approx(last["mean_client_accuracy"])
    assert run.summary["serve_cluster"]["mean_client_accuracy"] == run.summary["mean_client_accuracy"]
    assert run.summary["proof"]["did_not_vote"] == []
    assert [each["clients"] for each in run.summary["proof"]["clusters"]] == [20, 10]


def test_clients_that_are_alike_are_trained_by_one_model(alike: SavedRun) -> None:
    verdict, common = alike.summary["verdict"], alike.summary["compare"]["fedavg"]
    assert verdict["text"].startswith(
        "Train one model for all: no grouping was shown to be better; known's 2"
    )
    assert verdict["grouped"] is False
    assert set(alike.clients["served"]) == {"common"}
    figures = ("mean_client_accuracy", "balanced_accuracy", "macro_f1", "auc", "pooled_auc", "ad", "sdad")
    for key in figures:
        assert alike.summary[key] == common[key]
    # Clusters that do not serve are not credited with the model for all: their own figures are kept.
    own = alike.rounds[-1]["mean_client_accuracy"]
    assert alike.summary["serve_cluster"]["mean_client_accuracy"] == pytest.approx(own) != common[figures[0]]
    out = io.StringIO()
    print_report(alike, Console(file=out))
    assert f"its own, mean client accuracy would be {own:.3f} (serve=best)" in out.getvalue()


def test_a_compared_strategy_serves_as_it_does_by_itself(
    alike: SavedRun, known: Path, tmp_path: Path
) -> None:
    """Also where one model for all is the chosen strategy."""
    asked = (*QUICK, "strategy=fedavg", "partition=iid")
    run, _ = _run(tmp_path / "run", known, *asked, "compare=[known]")
    compared = run.summary["compare"]["known"]
    for key in ("mean_client_accuracy", "auc", "serve", "serve_cluster", "assignment"):
        assert compared[key] == alike.summary[key]
    assert compared["verdict"] == alike.summary["verdict"]
    assert "verdict" not in run.summary
    # A model per client serves, whatever was shown, unless another rule is asked for.
    for rule, given in (("cluster", ()), ("best", ("serve=best",))):
        run, _ = _run(tmp_path / rule, known, *asked, "compare=[local]", "rounds=2", *given)
        local = run.summary["compare"]["local"]
        assert (local["serve"], local["verdict"]["grouped"]) == (rule, False)


def test_sentences_name_a_method_by_its_paper_or_its_choice() -> None:
    draws = np.random.default_rng(0)
    arrays = [_client(draws, False), _client(draws, False)]
    auto = Auto(parameters=Parameters(coalitions="none"))
    for strategy, name in ((FeSEM(), "FeSEM"), (auto, "auto"), (Known(), "known")):
        given = {"rounds": 1, "training": TRAINING, "proof": True}
        result = fedclust.simulate(strategy, nn.Linear(8, 4), arrays, **given)
        assert name in result.verdict["text"]


def test_the_models_of_a_result_are_those_that_serve(alike: SavedRun) -> None:
    common = Checkpoints(alike.folder / "compare" / "fedavg" / "checkpoints", ROUNDS).newest()
    wanted = to_state(common.models[0])
    result = fedclust.load(alike.folder)
    for client in (0, 29):
        for name, tensor in result.model_for(client).state_dict().items():
            assert torch.equal(tensor, wanted[name])


def test_a_resumed_run_repeats_its_proof(alike: SavedRun, known: Path) -> None:
    before = dict(alike.summary)
    again, _ = _run(alike.folder, known, f"resume={alike.folder}")
    assert comparable([again.summary]) == comparable([before])
    table = pd.read_parquet(alike.folder / "clients.parquet")
    assert set(table["served"]) == {"common"}
    clustered, printed = _run(alike.folder, known, f"resume={alike.folder}", "serve=cluster")
    assert clustered.summary["verdict"] == before["verdict"]
    assert set(clustered.clients["served"]) == {"cluster"}
    figure = before["serve_cluster"]["mean_client_accuracy"]
    assert clustered.summary["mean_client_accuracy"] == figure
    assert "serve_cluster" not in clustered.summary
    assert "Served: every client its cluster's model (serve=cluster)" in printed
    own = Checkpoints(alike.folder / "checkpoints", ROUNDS).newest()
    served = fedclust.load(alike.folder).model_for(29).state_dict()
    state = to_state(own.models[1])
    assert all(torch.equal(served[name], state[name]) for name in state)


NO_VERDICT = "No verdict on training in groups: proof=true compare=[fedavg] compares with one model for all"


@pytest.mark.parametrize(
    ("override", "line"),
    [("proof=false", NO_VERDICT), ("compare=[]", NO_VERDICT), ("strategy=fedavg", "No verdict: this is one")],
)
def test_a_run_without_proof_says_how_to_get_one(
    override: str, line: str, known: Path, tmp_path: Path
) -> None:
    run, printed = _run(tmp_path / "run", known, *QUICK, "rounds=1", override)
    assert line in printed
    assert "verdict" not in run.summary
    assert "served" not in run.clients


def test_a_client_that_fails_in_the_proof_does_not_vote(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Trainer.logits

    def logits(self: Trainer, jobs):
        if any(job.client == 3 for job in jobs):
            raise KeyError("an odd row")
        return honest(self, jobs)

    monkeypatch.setattr(Trainer, "logits", logits)
    run, printed = _run(tmp_path / "run", known, *QUICK, "rounds=3")
    assert run.summary["proof"]["did_not_vote"] == [{"client": 3, "reason": "KeyError: 'an odd row'"}]
    assert "did not vote: client 3: KeyError: 'an odd row'" in printed
    assert "(1 client has no usable answer and did not vote)" in run.summary["verdict"]["text"]
    assert sum(each["voted"] for each in run.summary["proof"]["clusters"]) == 29
    # Test rows are compared once more: the figure of the same client.
    failures = [(each["client"], each["phase"]) for each in run.summary["late_failures"]]
    assert (failures, run.summary["failed_replies"]) == ([(3, "query.figure")], 1)


def test_a_paper_method_trains_on_all_rows_and_is_compared_on_test_rows(tmp_path: Path) -> None:
    run = fedclust.run(
        ["strategy=fmcl", "rounds=12", "training.mode=sequential", f"output_dir={tmp_path}"]
    ).saved
    assert run.summary["serve"] == "cluster"
    text = run.summary["verdict"]["text"]
    assert " clusters have " in text
    assert text.endswith("; no rows were held out to decide")  # which would make the figure a winner's
    verdict = run.summary["verdict"]
    assert (verdict["grouped"], verdict["p_value"]) == (False, None)
    assert verdict["test_rows"] == 360
    assert run.clients["num_train"].sum() == 1437  # of 1,797 digits, a fifth are test rows; none are held out
    out = io.StringIO()
    print_report(run, Console(file=out))
    assert "(serve=cluster); strategy=auto trains in groups only where that proves" in out.getvalue()


# -- A user's own arrays --------------------------------------------------------------------------------


def _client(draws: np.random.Generator, flipped: bool, rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    labels = draws.integers(0, 4, rows)
    inputs = 2.0 * np.eye(4, 8)[labels] + 0.3 * draws.normal(size=(rows, 8))
    return inputs.astype("f4"), 3 - labels if flipped else labels


TRAINING = fedclust.LocalTraining(learning_rate=0.2, batch_size=10, epochs=1, mode="sequential")


def test_two_clients() -> None:
    draws = np.random.default_rng(0)
    arrays = [_client(draws, False, 400), _client(draws, True, 400)]
    result = fedclust.simulate(
        Known(), nn.Linear(8, 4), arrays, rounds=10, training=TRAINING, proof=True, serve="best"
    )
    assert result.verdict["text"].startswith("Train in 2 groups")
    assert result.verdict["better_for"] == 2
    # 400 rows: a fifth, 80, test; a tenth of the 320 left, 32, held out to decide who serves.
    assert result.clients["num_test"].tolist() == [80, 80]
    assert result.clients["num_train"].tolist() == [288, 288]
    assert result.verdict["test_rows"] == 160
    assert (
        result.summary["compare"]["fedavg"]["mean_client_accuracy"] < result.summary["mean_client_accuracy"]
    )


def test_without_the_proof_nothing_is_held_out() -> None:
    draws = np.random.default_rng(0)
    arrays = [_client(draws, False), _client(draws, True)]
    result = fedclust.simulate(Known(), nn.Linear(8, 4), arrays, rounds=1, training=TRAINING)
    assert result.verdict is None
    assert result.clients["num_train"].tolist() == [64, 64]


def test_a_client_without_held_out_rows_is_named() -> None:
    draws = np.random.default_rng(0)
    whole = [_client(draws, k >= 3) for k in range(6)]
    triples: list = [((x[:50], y[:50]), (x[50:65], y[50:65]), (x[65:], y[65:])) for x, y in whole]
    triples[4] = (triples[4][0], None, triples[4][2])
    network = nn.Linear(8, 4)
    result = fedclust.simulate(Known(), network, triples, rounds=10, training=TRAINING, proof=True)
    assert result.summary["proof"]["did_not_vote"] == [{"client": 4, "reason": "no held-out rows"}]
    assert result.verdict["text"].endswith(
        "for 6 of 6 clients (1 client has no held-out rows and did not vote)"
    )
    # It is served with the others of its cluster.
    assert result.clients["served"].tolist() == ["cluster"] * 6


def test_test_rows_decide_nothing() -> None:
    draws = np.random.default_rng(1)
    arrays = [_client(draws, k >= 2) for k in range(4)]
    data = from_arrays(arrays, seed=0, validation_fraction=0.1)
    other = data.labels.clone()
    other[np.concatenate(data.test)] = 0  # whatever the test rows show
    network = nn.Linear(8, 4)
    one, two = (
        fedclust.simulate(Known(), network, each, rounds=3, training=TRAINING, proof=True)
        for each in (data, dataclasses.replace(data, labels=other))
    )
    for key in ("voted", "held_out_gain", "p_value", "proven"):
        assert [each[key] for each in one.summary["proof"]["clusters"]] == [
            each[key] for each in two.summary["proof"]["clusters"]
        ]
    assert one.clients["served"].tolist() == two.clients["served"].tolist()
    assert one.verdict["p_value"] == two.verdict["p_value"]
    assert one.verdict["gain"] != two.verdict["gain"]  # which is what test rows are for
    assert one.summary["mean_client_accuracy"] != two.summary["mean_client_accuracy"]


def test_serve_is_checked() -> None:
    with pytest.raises(ValueError, match="serve must be one of cluster, best, auto, got 'all'"):
        fedclust.simulate(Known(), nn.Linear(8, 4), [], rounds=1, training=TRAINING, serve="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(("personal", "better"), [("none", 1), ("prior", 1), (Finetune(epochs=16), 0)])
def test_a_client_that_is_better_off_alone_is_counted(personal: str | Finetune, better: int) -> None:
    # Two classes told apart by one column; client 0 of twelve calls each by the other's name.
    draws, sites = np.random.default_rng(0), []
    for client in range(12):
        parts = []
        for count in (40, 30, 20):
            labels = draws.integers(0, 2, count)
            inputs = (draws.normal(size=(count, 2)) + [[3.0, 0.0]] * labels[:, None]).astype(np.float32)
            parts.append((inputs, 1 - labels if client == 0 else labels))
        sites.append(tuple(parts))
    training = LocalTraining(learning_rate=0.3, epochs=2, batch_size=20)
    torch.manual_seed(0)
    result = fedclust.simulate(
        "auto", nn.Linear(2, 2), sites, rounds=8, training=training, proof=True, personal=personal
    )
    # The label-prior correction does not exchange classes; fine-tuned on its own rows, its model does.
    assert result.summary["better_alone"] == {"better": better, "clients": 12}
    said = f"; for {better} of 12 clients a model of their own, trained for 8 epochs, is better"
    assert result.verdict["text"].endswith(said)


# -- Groups that people named ---------------------------------------------------------------------------

_VENDORS = ["siemens", "ge"] * 8


def _vendors_table(folder: Path, contrary: bool) -> Path:
    """Write 16 hospitals of 100 rows; with `contrary`, low values mean illness with one vendor's machines."""
    draws = np.random.default_rng(7)
    tables = []
    for number, vendor in enumerate(_VENDORS):
        value = draws.normal(size=100)
        sign = -1 if contrary and vendor == "ge" else 1
        ill = np.where(sign * value + draws.normal(size=100) / 3 > 0, "yes", "no")
        about = {"hospital": f"h{number:02}", "vendor": vendor}
        tables.append(pd.DataFrame({"value": value.round(4), "ill": ill, **about}))
    path = folder / "scans.csv"
    pd.concat(tables).to_csv(path, index=False)
    return path


def _by_vendor(folder: Path, contrary: bool, *overrides: str) -> tuple[fedclust.Result, str]:
    path = _vendors_table(folder, contrary)
    out = io.StringIO()
    given = ("dataset.label=ill", "dataset.natural=hospital", "dataset.groups=vendor", "model=linear")
    config = compose(
        expand(["dataset=csv", f"dataset.path={path}", "partition=natural", *given, "compare=[]", *overrides])
    )
    (folder / "out").mkdir()
    grid = LocalGrid(clients.app, to_run_config(config), 2)
    federate(config, grid, folder / "out", Console(file=out, width=300))
    return fedclust.load(folder / "out"), out.getvalue()


@pytest.mark.parametrize("contrary", [True, False])
def test_groups_that_people_named_are_tested_like_any_other_proposal(contrary: bool, tmp_path: Path) -> None:
    result, printed = _by_vendor(tmp_path, contrary, "rounds=20", "seed=5")
    (trial,) = [each for each in result.summary["trials"] if each.get("named")]
    assert trial["source"] == "vendor"
    assert sorted(trial["sizes"]) == [8, 8]
    assert trial["look"] == 1
    assert trial["gain"] > 0.1 if contrary else trial["gain"] < 0.02
    ends = "is better by" if contrary else "is not shown to help: better by"
    reach = 1.959964 * trial["gain_error"]
    gained = f"{trial['gain']:z.2f} ({trial['gain'] - reach:z.2f} to {trial['gain'] + reach:z.2f})"
    assert f"vendor: training by vendor {ends} {gained}" in result.summary["decision"]
    assert "vendor: training by vendor" in printed
    groups = result.clients["cluster"].to_numpy()
    assert len(set(groups)) == 1 + contrary
    if contrary:
        assert len(set(zip(groups.tolist(), _VENDORS, strict=True))) == 2


def test_a_hospital_of_two_vendors_is_an_error_before_round_1(tmp_path: Path) -> None:
    rule = "dataset.groups must be a column with one value in all rows of a client, got no, yes for client 0"
    with pytest.raises(FederationError, match=rule):
        _by_vendor(tmp_path, False, "dataset.groups=ill", "dataset.label=vendor", "rounds=1")


def test_groups_without_two_large_ones_are_not_tested_and_the_run_says_why() -> None:
    draws = np.random.default_rng(0)
    rows = [(draws.normal(size=(40, 3)).astype("f4"), draws.integers(0, 2, 40)) for _ in range(12)]
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)
    named = ["a"] * 11 + ["b"]
    result = fedclust.simulate("auto", nn.Linear(3, 2), rows, rounds=18, training=training, groups=named)
    reason = "group: not tested, as two groups need 2 clients each with held-out rows"
    assert reason in result.summary["decision"]
    assert not any(each.get("named") for each in result.summary["trials"])


def test_a_handful_of_sites_in_named_groups_and_what_each_is_worth() -> None:
    """Of six sites two learn nothing useful for the other four; each is named by its vendor."""
    draws, rows = np.random.default_rng(3), []
    for site in range(6):
        inputs = draws.normal(size=(120, 4)).astype("f4")
        sign = 1 if site < 4 else -1
        rows.append((inputs, (sign * inputs[:, 0] + draws.normal(size=120) / 3 > 0).astype(int)))
    training = LocalTraining(learning_rate=0.1, batch_size=16, epochs=1)
    named = ["a"] * 4 + ["b"] * 2
    result = fedclust.simulate("auto", nn.Linear(4, 2), rows, rounds=8, training=training, groups=named)
    assert "; group: training by group is better by 0." in result.summary["decision"]
    sites = result.summary["sites"]
    assert [each["worth"].split(" ")[:5] for each in sites[4:]] == [
        ["without", f"site {number}"[:4], f"{number},", "the", "others"] for number in (4, 5)
    ]
    assert all(each["others_lose"] < 0 for each in sites[4:])  # they do better without
    low, high = sites[4]["others_lose_interval"]
    assert low < sites[4]["others_lose"] < high


@pytest.fixture(scope="module")
def four_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run four sites of a table, the last with its classes exchanged, by the command line's settings."""
    folder, draws, tables = tmp_path_factory.mktemp("leave"), np.random.default_rng(11), []
    for number, site in enumerate(["north", "south", "east", "west"]):
        value = draws.normal(size=300)
        sign = -1 if number == 3 else 1
        ill = np.where(sign * value + draws.normal(size=300) / 3 > 0, "yes", "no")
        tables.append(pd.DataFrame({"value": value.round(4), "ill": ill, "hospital": site}))
    pd.concat(tables).to_csv(folder / "rows.csv", index=False)
    given = ["dataset=csv", f"dataset.path={folder / 'rows.csv'}", "dataset.label=ill", "seed=4"]
    given += ["dataset.natural=hospital", "partition=natural", "model=linear", "rounds=12", "compare=[]"]
    fedclust.run([*given, f"output_dir={folder / 'run'}"])
    return folder


def test_the_others_are_served_what_trained_without_a_site_that_leaves(
    four_sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fedclust.load(four_sites / "run")
    found = [
        "south: value: one value in all rows",
        "west: no other site has what south has",
        "east: value: old",
        "north, south: value: empty",
        "south-east: value: another unit",
    ]
    summary = json.loads((four_sites / "run" / "summary.json").read_text())
    (four_sites / "run" / "summary.json").write_text(json.dumps(summary | {"data_warnings": found}))
    chose = result.sites.set_index("name")["train_with"]
    assert sorted(chose["north"]) == ["east", "south"]  # west's classes are exchanged
    target = four_sites / "without"
    assert main([str(four_sites / "run"), "south", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "east: the model that it trains with north",
        "north: the model that it trains with east",
        "west: the model that it trains with nobody",
    ]
    assert lines[3] == "in these models nothing of south remains: none of them has trained with it"
    served = fedclust.load_export(target)
    assert sorted(site.label for site in served.sites) == ["east", "north", "west"]
    # The coalition of east and north (clients 0 and 1 by name) as the checkpoint has it.
    trained = unpack(Coalitions.memory_type, result._state.layers["Coalitions"])
    place = trained.coalitions.index((0, 1))
    expected = to_state(trained.on_all_rows(place))
    state = served.network(served.site("north")).state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    rows = pd.DataFrame({"value": [2.0, -2.0]})
    assert served.predict(rows, site="north")["yes"].round().tolist() == [1.0, 0.0]
    assert served.predict(rows, site="west")["yes"].round().tolist() == [0.0, 1.0]
    card = (target / "README.md").read_text()
    assert "south" not in card.replace("`south-east: ", "")
    checks = [line for line in card.splitlines() if "Check the data of a site" in line]
    assert checks == [
        f"- Check the data of a site: `{line}`"
        for line in ("east: value: old", "south-east: value: another unit")
    ]
    assert "clients: 3, with" in card
    assert "- accuracy, mean over clients that have figures: " in card
    # North and east are served another coalition's model, west its own as before.
    why = "they did not answer, have no test rows, or are served another model since a site left."
    assert f"- 2 of 3 clients have no figures: {why}" in card


def test_a_site_whose_leaving_changes_nothing_keeps_its_figures(four_sites: Path) -> None:
    left = fedclust.load(four_sites / "run").without("west")
    table = left.run.clients
    assert table is not None
    assert left.run.summary["num_clusters"] == table["cluster"].nunique()
    assert "assignment" not in left.run.summary
    before = fedclust.load(four_sites / "run").clients.set_index("name")
    assert table.set_index("name").loc["north", "accuracy"] == before.loc["north", "accuracy"]
    assert set(table["name"]) == {"north", "south", "east"}
    gone = fedclust.load(four_sites / "run").without("south").run.clients
    assert gone is not None
    assert gone.set_index("name").loc[["north", "east"], "accuracy"].isna().all()


def test_a_site_leaves_with_all_its_clients(tmp_path: Path) -> None:
    draws = np.random.default_rng(5)
    for site, wards in {"north": 2, "north-east": 1, "south": 1, "east": 1, "west": 1}.items():
        value, ward = draws.normal(size=80 * wards), np.repeat(["a", "b"][:wards], 80)
        ill = np.where(value + draws.normal(size=len(value)) / 3 > 0, "yes", "no")
        pd.DataFrame({"value": value.round(4), "ward": ward, "ill": ill}).to_csv(
            tmp_path / f"{site}.csv", index=False
        )
    sites = ", ".join(f"{path.stem}: {path}" for path in sorted(tmp_path.glob("*.csv")))
    given = ["strategy=auto", "dataset=csv", "dataset.label=ill", "dataset.natural=ward", "partition=own"]
    given += [f"partition.sites={{{sites}}}", "model=linear", "rounds=4"]
    result = fedclust.run([*given, "compare=[]", f"output_dir={tmp_path / 'run'}"])
    trained = unpack(Coalitions.memory_type, result._state.layers["Coalitions"])
    left = result.without("north")
    assert left.label == "north"
    assert [site.label for site in left.served.sites] == ["east/a", "north-east/a", "south/a", "west/a"]
    # With six clients not all coalitions train, but that of all others does.
    assert (0, 1, 4, 5) in trained.coalitions
    for line, site in zip(left.lines, left.served.sites, strict=False):
        assert line.startswith(f"{site.label}: the model that it trains with ")
        assert "north/" not in line
    arms = chosen_without(trained, [2, 3], result.saved.label_counts, CLASSES.words)
    assert list(arms) == [0, 1, 4, 5]
    assert not {2, 3} & {each for arm in arms.values() for each in trained.trained_with[arm.coalition]}
    one = result.without("north/b").served.sites
    assert [site.label for site in one] == ["east/a", "north-east/a", "north/a", "south/a", "west/a"]


def test_models_that_nobody_has_measured_have_no_interval() -> None:
    """Three sites train together; when one leaves, the others' model is one without test rows' errors."""
    draws, rows = np.random.default_rng(0), []
    for _ in range(3):
        inputs = draws.normal(size=(120, 1)).astype("f4")
        rows.append((inputs, 10 * inputs[:, 0] + draws.normal(size=120).astype("f4")))
    training = LocalTraining(learning_rate=0.3, batch_size=20, epochs=2)
    result = fedclust.simulate("auto", nn.Linear(1, 1), rows, rounds=6, training=training, device="cpu")
    assert result.sites["train_with"].map(len).tolist() == [2, 2, 2]
    assert "90 % from" in result.served().predict(inputs, site=1)
    served = result.without(0).served
    assert served.clusters == (0,)
    assert served.margins == {}
    assert served.predict(inputs, site=1).columns.tolist() == ["amount"]


@pytest.fixture
def leaving(four_sites: Path) -> Callable[..., Left]:
    """Return what serves the others when one leaves, and some sites' entries are others."""
    result = fedclust.load(four_sites / "run")
    trained = unpack(Coalitions.memory_type, result._state.layers["Coalitions"])
    served = result.served()

    def leave(gone: str, sizes: dict[str, float] | None = None, **changes: dict[str, str]) -> Left:
        sites = tuple(dataclasses.replace(each, **changes.get(each.name, {})) for each in served.sites)
        (value,) = served.encoder.numbers
        column = dataclasses.replace(value, sizes=sizes or {})
        encoder = dataclasses.replace(served.encoder, numbers=(column,))
        changed = dataclasses.replace(served, sites=sites, encoder=encoder)
        return without(changed, result.saved, trained, result._built, gone)

    return leave


def test_who_loses_a_fine_tuned_model_keeps_no_figures_of_it(leaving: Callable[..., Left]) -> None:
    left = leaving("west", south={"personal": FINETUNE})  # none of the others had trained with west
    lines = {line.partition(":")[0]: line for line in left.lines}
    assert lines["south"].endswith("; not the one fine-tuned to it")
    assert "fine-tuned" not in lines["north"]
    assert left.served.site("south").personal == NONE
    accuracy = left.run.clients.set_index("name")["accuracy"]
    assert accuracy.isna().to_dict() == {"east": False, "north": False, "south": True}


def test_the_site_of_that_very_name_leaves(leaving: Callable[..., Left]) -> None:
    left = leaving("east", north={"name": "east/1"})
    assert [site.label for site in left.served.sites] == ["east/1", "south", "west"]


def test_nothing_about_the_columns_of_a_site_that_left_is_served(leaving: Callable[..., Left]) -> None:
    sizes = {"west": 12.0, "east": 15.0}
    (column,) = leaving("west", sizes=sizes).served.encoder.numbers
    assert column.sizes == {"east": 15.0}
    wards = {"west": {"name": "west/a"}, "south": {"name": "west/b"}}
    (column,) = leaving("west", sizes, **wards).served.encoder.numbers
    assert column.sizes == {"east": 15.0}


def test_a_correction_that_only_the_site_could_fit_decides_nothing_when_another_leaves() -> None:
    """One of five instruments reads 6 higher; with the corrections all train together."""
    draws, rows = np.random.default_rng(3), []
    for site in range(5):
        inputs = draws.normal(size=(120, 1)).astype("f4")
        amounts = 2 * inputs[:, 0] + draws.normal(size=120) + 6 * (site == 0)
        rows.append((inputs, amounts.astype("f4")))
    training = LocalTraining(learning_rate=0.3, batch_size=20, epochs=2)
    result = fedclust.simulate("auto", nn.Linear(1, 1), rows, rounds=12, training=training, device="cpu")
    assert result.clients["personal"].eq("prior").all()
    assert result.sites["train_with"].map(len).tolist() == [4] * 5
    left = result.without(4)
    assert left.lines[0] == "0: the model that it trains with nobody"
    assert left.lines[1].endswith("; without its correction by its mean residual")
    inputs, amounts = rows[0]
    apart = left.served.predict(inputs, site=0)["amount"].to_numpy() - amounts
    assert abs(apart.mean()) < 1  # of everyone's model it would be 4 or 5


def test_who_cannot_leave_is_told_in_one_line(four_sites: Path) -> None:
    with pytest.raises(ValueError, match="site must be one of east, north, south, west, got nowhere$"):
        main([str(four_sites / "run"), "nowhere", str(four_sites / "never")])
    draws = np.random.default_rng(0)
    rows = [(draws.normal(size=(40, 3)).astype("f4"), draws.integers(0, 2, 40)) for _ in range(3)]
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1)
    result = fedclust.simulate("fedavg", nn.Linear(3, 2), rows, rounds=1, training=training)
    with pytest.raises(ValueError, match="folder must hold a run in which a handful of sites chose"):
        result.without(0)
