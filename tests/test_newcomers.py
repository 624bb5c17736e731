"""Clients that are left out of training, placed after it and measured, on the digits."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord

import fedclust
from fedclust import data
from fedclust.clustering import clust_psi_pfl
from fedclust.clustering.placement import LabelRule
from fedclust.data.dataset import newcomers_last
from fedclust.federation import FederationError
from fedclust.federation.clusters import Clusters, Findings
from fedclust.messages.description import Description
from fedclust.newcomers.placing import Placement, packed
from fedclust.results import SavedRun
from fedclust.runs.place import main as place
from fedclust.settings.checks import check
from fedclust.settings.composition import ConfigError, compose, plain
from fedclust.strategies import ClustPSIPFL

LEFT_OUT = 0.2
CONVENTIONS = ["partition=conventions"]
TWO = ["strategy=fmcl", "strategy.parameters.num_clusters=2", "compare=[]"]
ROTATION = [
    "partition=domains",
    "partition.num_clients=30",
    *(f"partition.{name}={share}" for name, share in (("clean", 0.5), ("rotation", 0.5), ("noise", 0))),
    "partition.blur=0",
]


def _run(folder: Path, *overrides: str) -> fedclust.Result:
    return fedclust.run([f"holdout_clients={LEFT_OUT}", f"output_dir={folder}", "device=cpu", *overrides])


@pytest.fixture(scope="module")
def conventions(tmp_path_factory) -> fedclust.Result:
    """A run of FMCL on two conventions, in which six of thirty clients are left out."""
    folder = tmp_path_factory.mktemp("conventions") / "run"
    return _run(folder, *TWO, "rounds=2", "checkpoint_every=1", *CONVENTIONS)


def test_newcomers_find_the_known_convention(conventions) -> None:
    _all_found(conventions)


def test_newcomers_find_the_known_rotation(tmp_path: Path) -> None:
    result = _run(tmp_path / "run", *TWO, "rounds=6", *ROTATION)
    _all_found(result)
    # Without labels, by the inputs where the models are not certain; inverted they fit no group.
    cfg = compose([f"holdout_clients={LEFT_OUT}", *ROTATION])
    rows = newcomers_last(data.load(plain(cfg.dataset), plain(cfg.partition), 0), LEFT_OUT, 0)
    for placed in result.summary["newcomers"]["placements"]:
        found = result.place(rows.inputs[rows.train[placed["client"]]])
        assert found.cluster == placed["cluster"], found.reason
    assert result.place(255 - rows.inputs[rows.train[24]]).cluster is None


def _all_found(result: fedclust.Result) -> None:
    newcomers = result.summary["newcomers"]
    assert len(result.assignment) == 24
    assert newcomers["clients"] == 6
    assert newcomers["adjusted_rand"] == 1.0
    assert newcomers["none"] == 0
    table = result.saved.newcomers
    assert table["client"].tolist() == list(range(24, 30))
    assert newcomers["accuracy"] == pytest.approx(table["accuracy"].mean())


def test_losses_find_the_known_group_and_beat_one_model_for_all(tmp_path: Path) -> None:
    result = _run(tmp_path / "run", "strategy=known_groups", "rounds=6", *CONVENTIONS)
    newcomers, common = result.summary["newcomers"], result.summary["compare"]["fedavg"]["newcomers"]
    assert newcomers["adjusted_rand"] == 1.0
    assert newcomers["accuracy"] > common["accuracy"] + 0.1
    # From the finished folder, by the models' losses: the same clusters as in the federation's own groups.
    cfg = compose([f"holdout_clients={LEFT_OUT}", "strategy=known_groups", *CONVENTIONS])
    rows = newcomers_last(data.load(plain(cfg.dataset), plain(cfg.partition), 0), LEFT_OUT, 0)
    for placed in newcomers["placements"]:
        own = rows.train[placed["client"]]
        inputs, labels = rows.inputs[own], rows.labels[own]
        assert result.assign(inputs, labels) == placed["cluster"]
    # A third convention, class y called (y + 3) mod 10: both models are worse than a guess, ln 10 nats.
    third = result.place(inputs, (labels + 3) % 10)
    assert third.cluster is None
    assert min(third.evidence["losses"].values()) > np.log(10)
    # Without labels nothing tells conventions apart: the images are the same.
    assert result.place(inputs).cluster is None


def test_prototypes_of_a_third_convention_fit_no_group(conventions) -> None:
    cfg = compose([f"holdout_clients={LEFT_OUT}", *TWO, *CONVENTIONS])
    rows = newcomers_last(data.load(plain(cfg.dataset), plain(cfg.partition), 0), LEFT_OUT, 0)
    for placed in conventions.summary["newcomers"]["placements"][::5]:
        own = rows.train[placed["client"]]
        inputs, labels = rows.inputs[own], rows.labels[own]
        found = conventions.place(inputs, labels)
        assert (found.cluster, found.reason) == (placed["cluster"], placed["reason"])
        assert conventions.assign(inputs, (labels + 3) % 10) is None


def test_a_resumed_run_places_newcomers_alike(conventions, tmp_path: Path) -> None:
    _run(tmp_path, *TWO, "rounds=1", "checkpoint_every=1", *CONVENTIONS)
    resumed = fedclust.run([f"resume={tmp_path}", "rounds=2"])
    assert resumed.summary["newcomers"] == conventions.summary["newcomers"]
    saved = SavedRun(tmp_path)
    assert saved.placing["rule"] == "prototype_distances"
    assert len(saved.clients) == 24
    assert saved.newcomers["served"].tolist() == ["cluster"] * 6


@pytest.mark.parametrize("value", ["-1", "1.5", "all"])
def test_what_cannot_be_left_out_is_refused_before_round_1(value: str) -> None:
    with pytest.raises(ConfigError, match="holdout_clients"):
        check(compose([f"holdout_clients={value}"]))


def test_too_many_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="must leave a client to train, got 30 of 30"):
        fedclust.run(["holdout_clients=30", f"output_dir={tmp_path}/run"])


def test_raw_rows_are_placed_with_and_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "sites").mkdir()
    for seed, name in enumerate(("east", "west", "new")):
        age = np.random.default_rng(seed).normal(60, 10, 60).round(1)
        table = pd.DataFrame({"age": age, "y": np.where(age > 60, "bad", "good")})
        table.to_csv(tmp_path / ("new.csv" if name == "new" else f"sites/{name}.csv"), index=False)
    short = ["strategy=local", "compare=[]", "proof=false", "rounds=2", "dataset=csv", "dataset.label=y"]
    sites, folder = f"partition.sites={tmp_path / 'sites'}", tmp_path / "run"
    result = fedclust.run([*short, "partition=own", sites, f"output_dir={folder}"])
    labelled = result.place(table, table["y"])  # the last table, of the new client
    losses = labelled.evidence["losses"]
    assert labelled.cluster == min((0, 1), key=lambda cluster: losses[str(cluster)])
    assert place([str(folder), str(tmp_path / "new.csv")]) == 0  # the run's own label column is in the file
    printed, warned = (text.splitlines() for text in capsys.readouterr())
    assert warned == []
    table.assign(age=12 * table["age"]).to_csv(tmp_path / "months.csv", index=False)
    assert place([str(folder), str(tmp_path / "months.csv")]) == 0
    warned = capsys.readouterr().err  # ages of about 60 years
    assert re.match(r"fedclust place: column age may be in another unit: .* about 7\d\d,.* rows 6\d", warned)
    assert printed[-3] == f"cluster {labelled.cluster}: {labelled.reason}"
    assert printed[-2] == f"with {['east', 'west'][labelled.cluster]}"
    unlabelled = result.place(table.drop(columns="y"))
    assert set(unlabelled.evidence["confidences"]) == {"0", "1"}
    for labels in (None, []):
        with pytest.raises(ValueError, match="rows must have at least one row, got none"):
            result.place(table[:0], labels)
    with pytest.raises(ValueError, match="labels must be among bad, good, got odd"):
        result.place(table, ["odd"] * 60)
    with pytest.raises(ValueError, match="labels must be among bad, good, got 0, 1$"):
        result.place(table, table["y"] == "bad")


@pytest.mark.parametrize("event", [True, False])
def test_raw_rows_are_placed_with_their_times_or_amounts(tmp_path: Path, capsys, event: bool) -> None:
    (tmp_path / "sites").mkdir()
    for seed, name in enumerate(("east", "west", "new")):
        age = np.random.default_rng(seed).normal(60, 10, 60).round(1)
        table = pd.DataFrame({"age": age, "days": (200 - 2 * age).round(1), "died": [True, True, False] * 20})
        table = table if event else table.drop(columns="died")
        table.to_csv(tmp_path / ("new.csv" if name == "new" else f"sites/{name}.csv"), index=False)
    short = ["strategy=local", "compare=[]", "proof=false", "rounds=1", "dataset=csv", "dataset.label=days"]
    kind = "dataset.event=died" if event else "dataset.target=amounts"
    sites, folder = f"partition.sites={tmp_path / 'sites'}", tmp_path / "run"
    result = fedclust.run([*short, kind, "partition=own", sites, f"output_dir={folder}"])
    names = ["days", "died"] if event else ["days"]
    by_arrays = result.place(table[["age"]], table[names].to_numpy(dtype=float).reshape(60, *[2] * event))
    losses = by_arrays.evidence["losses"]
    assert by_arrays.cluster == min((0, 1), key=lambda cluster: losses[str(cluster)])
    assert result.place(str(tmp_path / "new.csv"), ("days", "died") if event else "days") == by_arrays
    assert place([str(folder), str(tmp_path / "new.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[-3] == f"cluster {by_arrays.cluster}: {by_arrays.reason}"
    table.astype({"days": object}).replace({"days": {table["days"][3]: "?"}}).to_csv(tmp_path / "odd.csv")
    with pytest.raises(ValueError, match="^days: texts where numbers are needed, in 1 of 60 rows"):
        place([str(folder), str(tmp_path / "odd.csv")])
    rule = "targets must be two columns, of times and of events" if event else "targets must be one column"
    for wrong in ["days", ("days", "days")] if event else [("days", "age")]:
        with pytest.raises(ValueError, match=f"^{rule}, got days"):
            result.place(table, wrong)
    with pytest.raises(ValueError, match="^targets must not be a column that the model reads, got age$"):
        place([str(folder), str(tmp_path / "new.csv"), "--label", "age"])


def test_newcomers_are_placed_in_the_group_that_people_named(tmp_path: Path) -> None:
    draws, parts = np.random.default_rng(0), []
    for site in range(8):
        vendor = ("ge", "siemens")[site % 2]
        dose = draws.normal(size=30)
        ill = np.where((dose > 0) == (vendor == "ge"), "yes", "no")
        parts.append(pd.DataFrame({"dose": dose, "ill": ill, "site": f"s{site}", "vendor": vendor}))
    pd.concat(parts).to_csv(tmp_path / "rows.csv", index=False)
    result = _run(
        tmp_path / "run", "dataset=csv", f"dataset.path={tmp_path / 'rows.csv'}", "dataset.label=ill",
        "dataset.natural=site", "dataset.groups=vendor", "partition=natural", "strategy=known_groups",
        "holdout_clients=3", "rounds=1",
    )  # fmt: skip
    groups = {f"s{site}": site % 2 for site in range(8)}
    trained = result.clients.set_index("name")["cluster"].to_dict()
    of_group = {groups[name]: cluster for name, cluster in trained.items() if name in groups}
    found = result.saved.newcomers.set_index("name")["cluster"].to_dict()
    assert len(found) == 3
    assert found == {name: of_group[groups[name]] for name in found}


def test_a_rule_places_nobody_in_a_cluster_whose_clients_have_moved() -> None:
    counts = np.array([[90, 5, 5]] * 2 + [[5, 90, 5]] * 2 + [[5, 5, 90]] * 2)
    rule = LabelRule(counts, np.array([0, 0, 1, 1, 2, 2]), clust_psi_pfl.Parameters())
    models = tuple(ArrayRecord([np.full(2, each, np.float32)]) for each in range(3))
    clusters = Clusters(np.array([0, 0, 1, 1, 1, 1]), models, Findings(placing=packed(rule)))

    class Told:
        """One newcomer, whose labels are those of the cluster without clients."""

        def describe_newcomers(self, _: object) -> dict[int, Description]:
            return {6: Description.of(np.array([5, 5, 90]), np.zeros(3, int))}

    def placed(clusters: Clusters, newcomers: object, _: object) -> dict[int, Placement]:
        assert newcomers == [6]
        return {6: Placement(1, "its model has the least loss")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedclust.strategies.base.by_least_loss", placed)
        assert ClustPSIPFL().place(clusters, [6], 3, Told())[6].cluster == 1  # type: ignore[arg-type]
