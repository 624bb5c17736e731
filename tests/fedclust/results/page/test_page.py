"""The page of a run and of a sweep, against folders worked out by hand."""

import base64
import json
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedclust.privacy import OF_ALL
from fedclust.results import Recorder
from fedclust.results.page import run
from fedclust.results.page.run import labels_apart, misread, tally, view_run
from fedclust.results.page.sweep import view_sweep
from fedclust.results.page.write import live_part
from fedclust.results.saved_run import evenly, pack, shorts

from .conftest import Page


def test_a_finished_run_beside_a_compared_one(finished_run: Path) -> None:
    view = view_run(finished_run)
    page = Page(view)
    assert (view["kind"], view["title"], view["finished"]) == ("run", "fedgwc", True)
    assert any(text.startswith("Finished, 3 rounds; as of ") for text in page.texts)
    # fedgwc: (1 + 0.5 + 1 + 0.75) / 4 = 0.8125; fedavg: (0.5 + 0.5 + 0.25 + 0.75) / 4 = 0.5.
    (row,) = [row for row in page.rows("table-figures") if row["figure"] == "client accuracy, mean"]
    assert row == {"figure": "client accuracy, mean", "fedgwc": "0.812", "fedavg": "0.500"}
    (best,) = [one for one in view["ended"]["rows"] if one["key"] == "mean_client_accuracy"]
    assert [cell["looks"] for cell in best["cells"]] == ["best", ""]
    assert any("AD: mean distance of the clients' accuracies from 1" in text for text in page.texts)
    assert page.rows("table-changes") == [
        {"after round": "2", "what happened": "cluster 0 split in 2", "cluster sizes": "2, 2"}
    ]
    first, second = page.rows("table-clusters")
    assert (first["clients"], first["accuracy"], first["range"]) == ("2", "0.750", "0.500 to 1.000")
    assert (first["same clients, fedavg"], first["training rows"]) == ("0.500", "16")
    assert second["known groups (clients)"] == "1 (2)"
    assert page.column("table-clients", "accuracy of fedavg") == ["0.500", "0.500", "0.250", "0.750"]
    assert "known group" in page.tables["table-clients"][0]
    assert view["data"]["moves"] == [[[0, 0]], [[0, 0]], [[0, 0], [2, 1]], [[0, 0], [2, 1]]]
    # Affinities within: 0.9 and 0.8, each twice; between: 0.1, 0.2, 0.1, 0.1, each twice.
    (matrix,) = page.rows("table-matrices")
    assert (matrix["within clusters"], matrix["between clusters"]) == ("0.85", "0.125")
    spread = {row["measure"]: row["value"] for row in page.rows("table-spread")}
    assert spread["classes of a client"] == "1 to 2 of 2"
    # Shares of class 0: 6/8, 4/8, 1/8, 0/8 against 11/32: distances 13/32, 5/32, 7/32, 11/32, mean 36/128.
    assert spread["distance of label shares"] == "0.281"
    assert any("was made from Python" in text for text in page.texts)


def test_figures_that_differ_in_the_last_bit_are_equally_good(finished_run: Path) -> None:
    path = finished_run / "summary.json"
    summary = json.loads(path.read_text()) | {"balanced_accuracy": 0.2333333333333333}
    summary["compare"]["fedavg"]["balanced_accuracy"] = 0.23333333333333336
    path.write_text(json.dumps(summary))
    (row,) = [each for each in view_run(finished_run)["ended"]["rows"] if each["key"] == "balanced_accuracy"]
    assert [cell["looks"] for cell in row["cells"]] == ["", ""]


def test_fewer_newcomers_in_no_cluster_are_better(finished_run: Path) -> None:
    path = finished_run / "summary.json"
    summary = json.loads(path.read_text())
    newcomers = {"clients": 3, "accuracy": 0.5, "adjusted_rand": None, "common": 0}
    summary["newcomers"] = newcomers | {"none": 2}
    summary["compare"]["fedavg"]["newcomers"] = newcomers | {"none": 1}
    path.write_text(json.dumps(summary))
    (row,) = [each for each in view_run(finished_run)["ended"]["rows"] if each["key"] == "newcomers.none"]
    assert [(cell["text"], cell["looks"]) for cell in row["cells"]] == [("2", ""), ("1", "best")]


def test_labels_are_named_only_beyond_chance() -> None:
    # 10 of 16 rows against 11 of 32: 0.28 apart. Without replacement a share of 16 of 32 rows has deviation
    # √(11/32 · 21/32 / 16 · 16/31) = 0.085; for four tests the bound is 3.02 deviations, 0.258.
    assert labels_apart(np.array([10, 6]), np.array([11, 21]), 4) == [0, 1]
    # For 400 tests it is 4.2 deviations, 0.36.
    assert labels_apart(np.array([10, 6]), np.array([11, 21]), 400) == []
    # 12 % against 10 % of 426 of 1,278 rows: the deviation is 0.012, and the bound 3.5 of them.
    counts, everyone = np.array([51, 375]), np.array([128, 1150])
    assert labels_apart(counts, everyone, 20) == []
    # Of many more rows it is beyond chance; class 1 differs by less than a tenth.
    assert labels_apart(100 * counts, 100 * everyone, 20) == [0]
    assert labels_apart(everyone, everyone, 20) == labels_apart(np.zeros(2, int), everyone, 20) == []


def test_names_failures_and_histories(hostile_run: Path) -> None:
    view = view_run(hostile_run)
    page = Page(view)
    for title, expected in (
        ("rounds it took part in", ["2", "1", "1"]),
        ("failures", ["0", "1", "0"]),
        ("accuracy", ["0.500", "–", "1.000"]),
    ):
        assert page.column("table-clients", title) == expected
    assert page.column("table-clients", "name")[1:] == ["Beta & Söhne", "gamma"]
    assert page.column("table-clusters", "accuracy")[1] == "1.000"  # of the client that has one
    (accuracies,) = view["data"]["accuracies"]
    assert (accuracies["name"], accuracies["rounds"]) == ("", [1, 2])
    codes = np.frombuffer(base64.b64decode(accuracies["values"]), dtype="<u2").reshape(2, 3)
    # Codes are the accuracy times 65534, rounded to even; 65535 where there is none.
    np.testing.assert_array_equal(codes, [[16384, 32767, 49150], [32767, 65535, 65534]])
    assert any(text.startswith("fedclust seed=1 'a=") for text in page.texts)


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    config = {"rounds": 9, "choices": {"strategy": "ifca"}, "compare": ["fedavg"]}
    line = {"round": 1, "client_accuracy": [0.25, 0.75], "seconds": 2.0, "bytes_up": 7}
    with Recorder(tmp_path / "run", config) as recorder:
        recorder.assignment(0, [0, 1], "before round 1")
        recorder.round(line | {"mean_client_accuracy": 0.5})
        with (recorder.folder / "rounds.jsonl").open("a") as file:
            file.write('{"round": 2, "mean_')  # as it is while a line is being written
        view = view_run(recorder.folder)
    page = Page(view)
    assert (view["title"], view["finished"]) == ("ifca", False)
    assert any(text.startswith("Not finished: round 1 of 9; as of") for text in page.texts)
    assert "ifca, round 1 of 9" in page.texts
    assert "table-figures" not in page.tables
    assert page.column("table-clients", "accuracy") == ["0.250", "0.750"]
    assert page.tables["table-costs"][1][:4] == ["ifca", "2.0 s", "0 B", "7 B"]


def test_a_run_is_finished_once_all_it_is_compared_with_is(finished_run: Path) -> None:
    (finished_run / "config.yaml").write_text("compare: [fedavg, fedgwc]\n")
    assert view_run(finished_run)["finished"]
    summary = json.loads((finished_run / "summary.json").read_text())
    (finished_run / "summary.json").write_text(json.dumps(summary | {"compare": {}}))
    assert not view_run(finished_run)["finished"]
    with pytest.raises(FileNotFoundError, match="folder must hold a run"):
        view_run(Path("nowhere"))


def test_every_section_of_a_summary(finished_run: Path) -> None:
    test = {"cluster": 1, "clients": 2, "voted": 2, "gain": 0.1, "interval": [0.05, 0.15], "p_value": 1e-4}
    test |= {"better_for": 2, "proven": True, "accuracy_of_groups": 0.9, "accuracy_of_one_model": 0.5}
    trial = {"look": 1, "cluster": 0, "source": "updates", "sizes": [2, 2], "rounds": 3, "kept": False}
    rates = {"sensitivity": 0.5, "specificity": None, "sensitivity_interval": [0.25, 0.75]}
    named = {"name": "0", "rows": 8, "specificity_interval": [None, None], **rates}
    errors = {"brier": 0.5, "calibration_error": 0.125}
    of_cluster = {"cluster": 1, "rows": 1, "confusion": [[1]], **errors}
    counts = {"classes": [named], "confusion": [[8]], "clusters": [of_cluster]}
    personal = {"choice": "auto", "clients": {"none": 4}, "figures": {"none": {"ad": 0.5}}}
    summary = json.loads((finished_run / "summary.json").read_text()) | {
        "verdict": {"text": "Train 2 groups", "gain": 0.1},
        "proof": {"clusters": [test], "did_not_vote": [{"client": 3, "reason": "no reply"}]},
        "trials": [trial | {"why": "no gain"}],
        "decisions": {"rows": 8, "accuracy_interval": [0.25, 0.5], **errors, **counts},
        "personal": personal | {"failures": [{"client": 2, "reason": "non-finite loss"}]},
    }
    (finished_run / "summary.json").write_text(json.dumps(summary))
    page = Page(view_run(finished_run))
    rows = {name: [row[:] for row in table[1:]] for name, table in page.tables.items()}
    assert rows["table-tests"] == [
        ["1", "2", "0.900", "0.500", "0.100", "0.050 to 0.150", "< 0.001", "2", "shown to be better"]
    ]
    assert rows["table-trials"] == [["1", "0", "updates", "2 + 2", "3", "–", "–", "refused", "no gain"]]
    assert rows["table-decisions"] == [["0", "8", "0.500", "0.250 to 0.750", "–", "–"]]
    assert rows["table-confusion-1"] == [["class 0", "1"]]
    assert rows["table-personal"] == [["none", "4", "–", "–", "–", "0.500"]]
    assert page.column("table-clusters", "gain over one model for all") == ["–", "0.100, shown"]
    for text in ("client 3: no reply", "client 2: non-finite loss"):
        assert text in page.texts
    assert "Train 2 groups." in page.texts
    # Where sites chose by cross-fitting, no cluster was tested.
    site = {"client": 0, "name": "north", "train_with": [], "correction": "none", "text": "north: stay out."}
    (finished_run / "summary.json").write_text(json.dumps(summary | {"sites": [site], "trials": []}))
    np.savez(finished_run / "matrices.npz", cross_site=np.eye(4))
    page = Page(view_run(finished_run))
    assert page.column("table-sites", "trains with") == ["nobody"]
    assert {"table-tests", "table-matrices"}.isdisjoint(page.tables)
    assert not any(name.startswith("gain") for name in page.tables["table-clusters"][0])
    assert any("its own cross-fitted scores favour" in text for text in page.texts)


@pytest.mark.parametrize("figures", [f"{OF_ALL}, with noise", "each site's accuracy, with noise"])
def test_a_private_run_shows_nothing_in_place_of_what_is_not_known(finished_run: Path, figures: str) -> None:
    clients = pd.read_parquet(finished_run / "clients.parquet")
    clients.assign(num_train=0).to_parquet(finished_run / "clients.parquet")
    summary = json.loads((finished_run / "summary.json").read_text())
    (finished_run / "summary.json").write_text(json.dumps(summary | {"privacy": {"figures": figures}}))
    tables = Page(view_run(finished_run)).tables
    assert "training rows" not in tables["table-clients"][0] + tables["table-clusters"][0]
    each = not figures.startswith(OF_ALL)
    assert ("accuracy" in tables["table-clients"][0]) == ("test rows" in tables["table-clients"][0]) == each
    assert ("range" in tables["table-clusters"][0]) == each


def test_models_across_clusters(finished_run: Path) -> None:
    # Clients of cluster 4 with the model of cluster 7: 3 of 4 right.
    confusion = np.array([[[[1, 1], [0, 2]], [[2, 0], [1, 1]]], [[[0, 0], [0, 0]], [[5, 0], [0, 5]]]])
    np.savez(finished_run / "matrices.npz", confusion=confusion, confusion_clusters=[4, 7])
    rows = Page(view_run(finished_run)).tables["table-across"]
    assert rows[1:] == [["4", "75 %", "75 %"], ["7", "–", "100 %"]]


def test_classes_that_two_clusters_read_differently(finished_run: Path) -> None:
    # Clients of cluster 4 have 4 rows of each class; their own model is right on 3 of each. The model of
    # cluster 7 predicts 3 of their a as b, 3 of their b as a and 2 of their c as a. Its own clients have
    # 4 rows of a and 4 of c, on which it is right, and none of b; the model of cluster 4 predicts their a as
    # b, and is right on c.
    own, other = [[3, 1, 0], [0, 3, 1], [1, 0, 3]], [[1, 3, 0], [3, 1, 0], [2, 0, 2]]
    theirs = [[[0, 4, 0], [0, 0, 0], [0, 0, 4]], [[4, 0, 0], [0, 0, 0], [0, 0, 4]]]
    confusion = np.array([[own, other], theirs])
    sentences = [f"The model of cluster {one} reads cluster {two}'s a as b." for one, two in ((7, 4), (4, 7))]
    assert list(misread(confusion, [4, 7], "abc")) == sentences
    arrays = {"confusion": confusion, "confusion_clusters": [4, 7], "class_names": ["a", "b", "c"]}
    np.savez(finished_run / "matrices.npz", **arrays)
    assert any(text.endswith(" ".join(sentences)) for text in Page(view_run(finished_run)).texts)


def test_histories_beside_a_compared_run(finished_run: Path) -> None:
    for folder, accuracy in ((finished_run, 1.0), (finished_run / "compare" / "fedavg", 0.25)):
        lines = [{"round": number, "client_accuracy": [accuracy, 0.0]} for number in (1, 2)]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own, beside = view_run(finished_run)["data"]["accuracies"]
    assert (own["name"], beside["name"], beside["rounds"]) == ("", "fedavg", [1, 2])
    codes = np.frombuffer(base64.b64decode(beside["values"]), dtype="<u2").reshape(2, 2)
    np.testing.assert_array_equal(codes, [[16384, 0], [16384, 0]])  # a quarter of 65534 is 16383.5


def test_of_many_clients_the_first_are_listed(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CLIENTS", 3)
    view = view_run(finished_run)
    page = Page(view)
    assert page.column("table-clients", "client") == ["0", "1", "2"]
    assert any(text.startswith("The first 3 of 4 clients") for text in page.texts)
    assert len(view["data"]["moves"]) == 3
    assert page.column("table-clusters", "clients") == ["2", "2"]  # all count in the clusters' figures


def test_a_sweep(finished_run: Path) -> None:
    view = view_sweep(finished_run.parent)
    page = Page(view)
    assert (view["kind"], view["finished"], view["jobs"]) == ("sweep", True, ["run"])
    assert any(text.startswith("1 run, all finished; as of") for text in page.texts)
    assert view["lines"] == ["FedGWC has the highest accuracy", "0.812; next FedAvg, 0.500"]
    assert page.column("table-sweep", "strategy") == ["FedGWC", "FedAvg"]
    assert page.column("table-sweep", "client accuracy") == ["0.812", "0.500"]
    (job,) = page.rows("table-jobs")
    assert (job["folder"], job["seed"], job["rounds"]) == ("run", "7", "3")
    with pytest.raises(FileNotFoundError):
        view_sweep(Path("nowhere"))


def test_a_job_that_stopped_early_has_the_rounds_that_it_ran(finished_run: Path) -> None:
    config = finished_run / "config.yaml"
    config.write_text(f"{config.read_text()}\nrounds: 60\n")  # of which it ran three
    (job,) = Page(view_sweep(finished_run.parent)).rows("table-jobs")
    assert job["rounds"] == "3"


def test_a_sweep_says_with_what_it_was_made(finished_run: Path) -> None:
    def made(commit: str | None, time: str) -> dict:
        return {"versions": {"fedclust": "1", "torch": "2"}, "commit": commit, "cpu": "A", "cores": 1} | {
            "time": time
        }

    assert view_sweep(finished_run.parent)["facts"] == []  # a run of before
    for number, facts in enumerate(
        [made("a1", "2026-01-02"), made("b2", "2026-01-03"), made("a1", "2026-01-01")]
    ):
        shutil.copytree(finished_run, run := finished_run.parent / str(number))
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"seed": number, "made": facts}))
    assert view_sweep(finished_run.parent)["facts"] == [
        ("made with", "fedclust 1, torch 2"),
        ("commit", "a1; b2"),
        ("on", "A, 1 core"),
        ("finished", "2026-01-03"),
    ]


def test_a_page_has_the_settings_but_those_of_a_tracker(finished_run: Path) -> None:
    told = "overrides: [tracker=mlflow, 'tracker.tracking_uri=https://me:secret@host', +tracker.token=secret]"
    token = "choices: {tracker: mlflow}\ntracker: {tracking_uri: https://me:secret@host}\nseed: 7\n"
    (finished_run / "config.yaml").write_text(token + told)
    view = view_run(finished_run)
    assert view["settings"] == [["choices.tracker", "mlflow"], ["seed", "7"]]
    assert "tracker=mlflow" in (whole := live_part(view))
    assert "secret" not in whole


def test_a_sweep_of_several_settings_names_none_of_them_the_best(finished_run: Path) -> None:
    for number in range(2):
        shutil.copytree(finished_run, run := finished_run.parent / str(number))
        for folder in (run, run / "compare" / "fedavg"):
            (folder / "config.yaml").write_text(f"seed: 7\npartition: {{alpha: {number}}}\n")
    shutil.rmtree(finished_run)
    first, *lines = view_sweep(finished_run.parent)["lines"]
    assert first == "The best methods of each setting"
    assert [line.partition(":")[0] for line in lines] == ["alpha 0", "alpha 1"]


def test_a_sweep_of_runs_with_layers_and_guesses(finished_run: Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    summary |= {"without_layer": {"mean_client_accuracy": 0.25}, "groups_guessed": 3}
    (finished_run / "summary.json").write_text(json.dumps(summary))
    view = view_sweep(finished_run.parent)
    page = Page(view)
    assert page.column("table-sweep", "client accuracy, without layer") == ["0.250", "–"]
    assert page.column("table-sweep", "strategy") == ["FedGWC†", "FedAvg"]
    # The four clients of the run are of two groups.
    note = "† number of groups not given: 3 by default; the data have 2"
    assert f"AD: mean distance of the clients' accuracies from 1. {note}" in page.texts
    spec = view["pictures"]["seeds"].chart.to_dict(validate=False)
    (dots,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    assert [dot["client accuracy"] for dot in dots] == [0.8125, 0.5]
    assert [dot["client accuracy, without layer"] for dot in dots] == [0.25, None]


def test_values() -> None:
    assert shorts([1 / 3, float("nan"), None]) == [0.333333, None, None]
    assert shorts(np.array([12_345_678])) == [12_345_678]
    assert evenly(5, 9) == [0, 1, 2, 3, 4]
    assert evenly(101, 3) == [0, 50, 100]
    assert base64.b64decode(pack([0.0, 1.0])) == b"\x00\x00\xfe\xff"  # 65534 = 0xfffe
    drawn, failed = tally([{"cohort": [0, 2], "failures": [{"client": 2}]}, {"cohort": [2]}], 3)
    assert (drawn.tolist(), failed.tolist()) == ([1, 0, 2], [0, 0, 1])


def test_without_matrices_nothing_is_made_of_all_pairs_of_clients() -> None:
    many = SimpleNamespace(assignment=np.zeros(20_000, dtype=int), matrices=list)
    tracemalloc.start()
    run._matrices(many, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6  # one byte for each of 20,000 · 20,000 pairs would be 400 MB
