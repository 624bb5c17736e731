"""Sites whose operators decide what leaves them, in whole runs over nodes with their own data."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import RecordDict
from rich.console import Console

from fedclust import clients, load
from fedclust.clients.sites import OwnSites
from fedclust.data.sites.rows import builder_of, wanted_of
from fedclust.data.sites.rules import OURS, Rules as OfSite
from fedclust.data.targets import from_text
from fedclust.grids.client_grid import WrappedGrid
from fedclust.grids.local_grid import LocalGrid
from fedclust.grids.site_grid import Rules, SiteGrid
from fedclust.privacy.accountant import epsilon_of_runs, epsilon_of_steps, multiplier_of
from fedclust.runs.server import federate, make_engine
from fedclust.settings.allowed import SiteSettings, known_of
from fedclust.settings.composition import compose, to_run_config
from fedclust.settings.folders import expand
from fedclust.support.reasons import FederationError, RunFailed

SITES = {"north": 60, "east": 80, "south": 100}  # rows
REFUSES = 'questions = ["description", "train", "evaluate"]\nown_models = false\n'


def _tables(folder: Path) -> dict[str, Path]:
    draws, paths = np.random.default_rng(0), {}
    for site, size in SITES.items():
        dose = draws.normal(size=size)
        table = pd.DataFrame({"dose": dose.round(3), "ward": draws.choice(["a", "b"], size)})
        table["days"], table["died"] = (100 * np.exp(dose)).round(1), np.arange(size) % 3 > 0
        table["ill"] = np.where(dose + draws.normal(size=size) / 2 > 0, "yes", "no")
        table.to_csv(paths.setdefault(site, folder / f"{site}.csv"), index=False)
    return paths


def _run(folder: Path, overrides: list[str], rules: dict[str, str] | None = None) -> str:
    """Run over deployed nodes with these rules, or simulate the sites without; return what is printed."""
    paths = _tables(folder)
    named = ", ".join(f"{site}: {path}" for site, path in paths.items())
    config = compose(
        expand(
            [
                *("dataset=csv", "dataset.label=ill", "partition=own", "partition.settle=0", "wait=0.05"),
                "dataset.ignore=[days,died]",
                *("model=mlp", "training.steps=2", "rounds=2", "compare=[]", f"output_dir={folder / 'out'}"),
                *overrides,
                *([f"partition.sites={{{named}}}"] if rules is None else []),
            ]
        )
    )
    grid = make_engine(config)
    if rules is not None:
        grid = LocalGrid(clients.app, to_run_config(config), len(SITES))
        for (site, path), context in zip(paths.items(), grid._contexts.values(), strict=True):
            context.node_config = {"data": str(path), "name": site}
            if site in rules:
                (folder / f"{site}.toml").write_text(rules[site])
                context.node_config["rules"] = str(folder / f"{site}.toml")
        grid = WrappedGrid(grid)  # so that the server does not take these nodes for simulated ones
    (folder / "out").mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        federate(config, grid, folder / "out", Console(file=log, width=400))
    return (folder / "log").read_text()


@pytest.mark.parametrize(
    ("strategy", "refused"),
    [
        (["strategy=fedavg", "proof=false"], ""),
        (["strategy=fmcl", "proof=false"], "its rules do not answer prototypes, which fmcl asks for"),
        (
            ["strategy=fedavg", "proof=false", "compare=[ifca]"],
            "its rules do not answer losses, which ifca asks for",
        ),
        (["strategy=auto"], "its rules send no model to other sites, which coalitions of auto do"),
    ],
)
def test_a_site_takes_part_in_the_methods_that_do_not_ask_what_it_refuses(
    strategy: list[str], refused: str, tmp_path: Path
) -> None:
    said = _run(tmp_path, strategy, {"north": REFUSES}).splitlines()
    rules = (
        'questions = ["description", "train", "evaluate"]; own_models = false; min_cell = 5; max_values = 100'
    )
    first = next(number for number, line in enumerate(said) if "round 1" in line or "round 2" in line)
    printed = [line for line in said[:first] if line.startswith(("rules of north", "north is refused"))]
    summary = load(tmp_path / "out").summary
    assert printed[0] == f"rules of north: {rules}"
    assert printed[1:] == ([f"north is refused: {refused}"] if refused else [])
    assert summary["sites_left_out"] == ({"north": refused} if refused else {})
    assert summary["num_clients"] == (2 if refused else 3)
    assert summary["failed_replies"] == 0
    assert summary["site_rules"]["south"] == "min_cell = 5; max_values = 100"


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ('methods = ["fedgwc"]', "strategy and compare must be fedgwc for this site, got fedavg"),
        ("layers = []", "personal must be one of none for this site, got finetune"),
        ('labels = "ill"', "reading the site's rules failed on this node with ValueError"),
        ('labels = ["ward"]', "dataset.label must be allowed by the site's rules, got ill"),
        ('inputs = ["dose"]', "it lacks the columns ward, which most sites have"),
        ('inputs = ["dose", "ward", "height"]', ""),
    ],
)
def test_a_site_whose_rules_forbid_a_run_is_left_out_by_name(rules: str, reason: str, tmp_path: Path) -> None:
    _run(tmp_path, ["strategy=fedavg", "proof=false", "personal=finetune"], {"north": rules})
    summary = load(tmp_path / "out").summary
    left = summary["sites_left_out"]
    assert list(left) == (["north"] if reason else [])
    assert left.get("north", "").startswith(reason)
    assert summary["failed_replies"] == 0


def test_a_run_that_would_spend_more_than_patients_may_is_refused_before_round_1() -> None:
    # Four steps of noise 2 are a release of noise 1: that of all together decides, not of one round.
    spent = epsilon_of_runs([(1.0, 1.0, 1)], 1e-5)
    run = Rules(noise=1.0, clip=1.0, spends=[(2.0, 1.0, 4)])
    assert run.unanswered(OfSite(patient_noise=1.0, patient_epsilon=spent + 1e-3)) is None
    why = run.unanswered(OfSite(patient_noise=1.0, patient_epsilon=spent - 1e-3))
    most = f"its patients spend at most ε = {spent - 1e-3:g} at δ = 1e-05 in all runs"
    assert why == f"{most}, this one would spend {spent:.3g}"


def test_a_method_that_no_site_answers_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="its rules do not answer descriptor, which flux asks for"):
        _run(tmp_path, ["strategy=flux", "proof=false"], {})


def test_a_node_that_starts_again_under_its_id_is_sent_the_encoding_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restarted(WrappedGrid):
        def send_and_receive(self, messages, *, timeout=None):
            sent = list(messages)
            replies = list(super().send_and_receive(sent, timeout=timeout))
            if self.trains and sent[0].metadata.message_type == "train":
                self.trains = False
                next(iter(self._grid._contexts.values())).state = RecordDict()
            return replies

    Restarted.trains = True
    monkeypatch.setattr("tests.test_site_rules.WrappedGrid", Restarted)
    said = _run(tmp_path, ["strategy=fedavg", "proof=false", "rounds=4", "evaluate_every=1"], {})
    failures = {line["round"]: line["failures"] for line in load(tmp_path / "out").saved.rounds}
    assert [len(each) for each in failures.values()] == [1, 0, 0, 0]
    assert failures[1][0]["reason"].endswith("before anything else, this one was not")
    assert "failed replies" in said


def test_centralised_training_ends_where_each_node_has_its_own_rows(tmp_path: Path) -> None:
    reason = "must be on the rows of all 3 clients, a node used those of 1"
    with pytest.raises(RunFailed, match=f"centralised training {reason}"):
        _run(tmp_path, ["strategy=centralised", "proof=false"], {})


def test_sites_with_rules_predict_times_as_the_simulation(tmp_path: Path) -> None:
    times = ["strategy=fedavg", "proof=false", "dataset.label=days", "dataset.event=died"]
    for name, rules in (("deployed", {"north": 'labels = ["days"]'}), ("simulated", None)):
        (tmp_path / name).mkdir()
        _run(tmp_path / name, times, rules)
    deployed, simulated = (load(tmp_path / name / "out") for name in ("deployed", "simulated"))
    refused = "dataset.event must be allowed by the site's rules, got died"
    refused += "; its operator can allow it in the labels of the rules"
    assert deployed.summary["sites_left_out"] == {"north": refused}
    agreed = [
        from_text(json.loads((run.folder / "agreement.json").read_text())["agreement"]["target"])
        for run in (deployed, simulated)
    ]
    assert simulated.summary["num_clients"] == 3
    # Of few rows in each of 16 bins, a fifth of them to test on.
    assert deployed.clients["num_train"].tolist() == [64, 80]
    assert deployed.clients["num_test"].tolist() == [16, 20]
    # Two of three sites, in blocks of at least five rows.
    assert agreed[0].cuts == pytest.approx(agreed[1].cuts, rel=0.3)


def test_models_that_stay_at_a_site_stop_its_coalitions_only(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "none").mkdir()
    rules, short = {"south": "own_models = false"}, ["strategy=auto"]
    _run(tmp_path / "with", short, rules)
    reason = "its rules send no model to other sites, which coalitions of auto do"
    assert load(tmp_path / "with" / "out").summary["sites_left_out"] == {"south": reason}
    _run(tmp_path / "none", [*short, "strategy.parameters.coalitions=none"], rules)
    assert load(tmp_path / "none" / "out").summary["sites_left_out"] == {}


@pytest.mark.parametrize("strategy", ["fedavg", "fmcl"])
def test_where_nothing_is_of_few_rows_the_rules_change_no_result(strategy: str, tmp_path: Path) -> None:
    for name, rules in (("deployed", {}), ("simulated", None)):
        (tmp_path / name).mkdir()
        _run(tmp_path / name, [f"strategy={strategy}", "proof=false"], rules)
    deployed, simulated = (load(tmp_path / name / "out") for name in ("deployed", "simulated"))
    assert deployed.clients["accuracy"].tolist() == simulated.clients["accuracy"].tolist()
    assert deployed.assignment.tolist() == simulated.assignment.tolist()
    agreed = [json.loads((run.folder / "agreement.json").read_text()) for run in (deployed, simulated)]
    assert agreed[0]["agreement"] == agreed[1]["agreement"]


def test_the_site_clips_whatever_the_run_says(tmp_path: Path) -> None:
    moved = {}
    for name, rules in (("clipped", dict.fromkeys(SITES, "clip = 1e-9")), ("free", {})):
        (tmp_path / name).mkdir()
        _run(tmp_path / name, ["strategy=fedavg", "proof=false", "evaluate_every=1"], rules)
        first, second = (each["test_loss"] for each in load(tmp_path / name / "out").saved.rounds)
        moved[name] = abs(second - first)
    assert moved["clipped"] < 1e-6 < moved["free"]


def test_a_site_that_sends_no_test_figure_is_counted_and_named(tmp_path: Path) -> None:
    answered = json.dumps([each for each in OURS if each != "figure"])
    _run(tmp_path, ["strategy=fmcl", "proof=true", "compare=[fedavg]"], {"north": f"questions = {answered}"})
    summary = load(tmp_path / "out").summary
    (failure,) = summary["late_failures"]
    assert (failure["name"], failure["phase"]) == ("north", "query.figure")
    assert "this site does not answer figure, by the rules of its operator" in failure["reason"]
    assert summary["failed_replies"] == 1


@pytest.mark.parametrize(
    ("privacy", "rules", "reason"),
    [
        (["privacy=none"], "patient_noise = 1.5", "privacy must be patient_dp at this site, by the rules of"),
        ([], "patient_noise = 1.5", "patient_noise must be at least 1.5 at this site, got 1.2"),
        ([], "patient_noise = 1\npatient_clip = 0.5", "patient_clip must be at most 0.5 at this site, got 1"),
        ([], "patient_noise = 1.2\npatient_clip = 1.0", ""),
    ],
)
def test_a_site_trains_only_with_the_noise_for_patients_that_it_demands(
    privacy: list[str], rules: str, reason: str, tmp_path: Path
) -> None:
    noise = ["privacy=patient_dp", "privacy.epsilon=null", "privacy.noise_multiplier=1.2"]
    said = _run(tmp_path, ["strategy=fedavg", "proof=false", *(privacy or noise)], {"north": rules})
    summary = load(tmp_path / "out").summary
    left = summary["sites_left_out"]
    assert list(left) == (["north"] if reason else [])
    assert left.get("north", "").startswith(reason)
    assert summary["failed_replies"] == 0
    assert f"rules of north: min_cell = 5; max_values = 100; {rules[:15]}" in said
    if not privacy:
        # Two rounds of two steps that draw a quarter of the patients; three accuracies in [0, 1] with noise.
        assert summary["epsilon"] == pytest.approx(epsilon_of_steps(1.2, 0.25, 4, 1e-5))
        assert summary["privacy"]["noise_from"] == "the system"
        assert load(tmp_path / "out").clients["balanced_accuracy"].isna().all()


def test_a_site_whose_noise_an_accuracy_would_lack_is_left_out_before_round_1(tmp_path: Path) -> None:
    # Four steps of noise z with everyone cost as much as one accuracy of noise z/2.
    given = ["privacy.epsilon=null", "privacy.noise_multiplier=2", "privacy.sampling=1", "evaluate_every=2"]
    run = ["strategy=fedavg", "proof=false", "privacy=patient_dp", *given]
    _run(tmp_path, run, {"north": "patient_noise = 1.1", "east": "patient_noise = 0.99"})
    summary = load(tmp_path / "out").summary
    assert summary["sites_left_out"] == {"north": "patient_noise must be at least 1.1 at this site, got 1"}
    assert summary["failed_replies"] == 0


def test_what_patients_have_spent_is_kept_beside_the_checkpoints(tmp_path: Path) -> None:
    run = ["strategy=fedavg", "proof=false", "privacy=patient_dp", "privacy.delta=1e-3"]
    _run(tmp_path, run, {})
    assert json.loads((tmp_path / "out" / "spent.json").read_text()) == {
        "trained": [2, 2, 2],
        "measured": [2, 2, 2],
    }
    (tmp_path / "out").rename(tmp_path / "deployed")
    _run(tmp_path, [*run, "engine.num_nodes=3"])  # noise of simulated sites is the same again
    assert not (tmp_path / "out" / "spent.json").exists()
    (tmp_path / "out" / "spent.json").write_text('{"trained": [2, -1], "measured": []}')
    (tmp_path / "out").rename(tmp_path / "simulated")
    shutil.copy(tmp_path / "simulated" / "spent.json", tmp_path / "deployed")
    shutil.move(tmp_path / "deployed", tmp_path / "out")
    with pytest.raises(RunFailed, match=r"spent.json must hold the rounds of each client, .* got .*-1"):
        _run(tmp_path, [*run, f"resume={tmp_path / 'out'}"], {})


def test_a_patient_of_several_wards_takes_part_with_no_noise_in_each(tmp_path: Path) -> None:
    rows = [f"{k % 7},{'xy'[k % 2]},p{k % 12},{'ab'[k // 30]}" for k in range(60)]
    (path := tmp_path / "a.csv").write_text("\n".join(["dose,label,person,ward", *rows]))
    run = ["dataset=csv", "dataset.label=label", "partition=own", "partition.group=person", "strategy=fedavg"]
    wards, private = ["dataset.natural=ward"], ["privacy=patient_dp", "proof=false", "compare=[]"]
    why = "a patient must have rows in one client of the site with privacy=patient_dp, some have in several"
    for added, refused in ((wards, {}), (private, {}), ([*wards, *private], {"a": why})):
        settings = SiteSettings(json.dumps(known_of(compose([*run, *added]))))
        registered = OwnSites({"a": path}, settings).registered()
        assert {
            site: reason.partition(", and would")[0] for site, reason in registered.refused.items()
        } == refused


def test_noise_for_patients_of_sites_is_refused_for_times_before_round_1(tmp_path: Path) -> None:
    times = ["dataset.label=days", "dataset.event=died", "dataset.ignore=[ill]", "privacy=patient_dp"]
    with pytest.raises(RunFailed, match="privacy=patient_dp must have classes or amounts at sites"):
        _run(tmp_path, ["strategy=fedavg", "proof=false", *times], {})


def test_a_site_answers_no_run_once_its_patients_have_spent_what_they_may(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("FEDCLUST_ACCOUNTS", str(tmp_path / "accounts"))
    noise = ["privacy=patient_dp", "privacy.epsilon=null", "privacy.noise_multiplier=1.2"]
    # Two rounds of two steps that draw a quarter of the patients; three accuracies that cost the same ε.
    steps = epsilon_of_steps(1.2, 0.25, 4, 1e-5)
    one_run = [(1.2, 0.25, 4), (multiplier_of(steps, 1.0, 3, 1e-5), 1.0, 3)]
    allowed = f"patient_noise = 1.2\npatient_epsilon = {epsilon_of_runs(one_run, 1e-5) + 1e-6}"
    refused = []
    for number in (0, 1):
        monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / f"cache{number}"))  # that of the first is deleted
        (folder := tmp_path / f"{number}").mkdir()
        _run(folder, ["strategy=fedavg", "proof=false", *noise], {"north": allowed})
        rounds = load(folder / "out").saved.rounds
        refused.append([each for line in rounds for each in line["failures"]])
    assert refused[0] == []
    assert {each["name"] for each in refused[1]} == {"north"}
    assert {each["phase"] for each in refused[1]} == {"train", "evaluate"}
    assert all("this site's patients spend at most ε = 4." in each["reason"] for each in refused[1]), refused


def test_a_sites_group_is_its_operators(tmp_path: Path) -> None:
    of = {"north": "siemens", "east": "siemens", "south": "ge"}
    rules = {site: f'group = "{vendor}"\n' for site, vendor in of.items()}
    said = _run(tmp_path, ["strategy=known_groups", "proof=false"], rules)
    assert 'rules of south: group = "ge"; min_cell = 5; max_values = 100' in said
    table = load(tmp_path / "out").clients.set_index("name")["cluster"]
    assert table["north"] == table["east"] != table["south"]


def test_a_sites_group_may_be_a_column_with_one_value(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="dataset.groups must be a column with one value in all rows"):
        _run(tmp_path, ["strategy=known_groups", "dataset.groups=ward", "proof=false"], {})


@pytest.mark.parametrize(
    "target",
    [
        ["dataset.label=ill", "dataset.ignore=[stay, died]"],
        ["dataset.label=stay", "dataset.target=amounts", "dataset.ignore=[ill, died]"],
        ["dataset.label=stay", "dataset.event=died", "dataset.natural=ward", "dataset.ignore=[ill]"],
    ],
)
def test_a_resumed_run_goes_on_without_a_site_of_other_rows_until_it_has_its_own(
    target: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclust.grids.nodes._AGAIN", 0.0)  # ask a site again at once
    config, sites, draws = (
        compose(["dataset=csv", *target, "partition=own"]),
        ("east", "north"),
        np.random.default_rng(0),
    )
    tables = {
        site: pd.DataFrame(
            {
                "age": draws.normal(60, 9, 80).round(1),
                "ill": ["yes", "no"] * 40,
                "stay": draws.exponential(9, 80).round(2) + 0.5,
                "died": [0, 1] * 40,
                "ward": ["a", "b"] * 40,
            }
        )
        for site in sites
    }

    def connected(north: pd.DataFrame, *before: Any, key: str = "") -> SiteGrid:
        local = LocalGrid(clients.app, to_run_config(config), len(sites))
        for site, context in zip(sites, local.contexts, strict=True):
            path = tmp_path / f"{site}.csv"
            (north if site == "north" else tables[site]).to_csv(path, index=False)
            context.node_config.clear()
            context.node_config.update({"data": str(path), "name": site})
        wanted = wanted_of(builder_of(known_of(config)["dataset"], Path()), None, None)
        grid = SiteGrid(local, Rules(1, 0), wanted, key, poll=0.01, wait=60, say=lambda _: None)
        grid.connect(*before)
        return grid

    right = tables["north"]
    first = connected(right)
    before = first.names, (first.agreement, first.names)
    everyone = first.get_node_ids()
    corrected = right.assign(age=[70.5, *right["age"][1:]])
    for north in (right[::-1], pd.concat([right, right[:3]]), corrected):
        grid = connected(north, *before, key=first.key)
        assert (grid.stood, grid.agreement, grid.refused) == (True, first.agreement, {})
        assert grid.get_node_ids() == everyone[: len(everyone) // 2]  # east's
        rule = "north: its data(, and the rules by which it states them,)? must not change during a run"
        assert re.match(rule, grid.cautions[-1])
        right.to_csv(tmp_path / "north.csv", index=False)
        assert grid.get_node_ids() == everyone
    assert not connected(right, *before, key=first.key).stood
