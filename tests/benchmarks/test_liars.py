"""Clients that claim rows, or vote against groups, in whole runs: others hardly lose, and they are named."""

import json
from pathlib import Path

import pandas as pd
import pytest

ALIKE = (
    "strategy=fedavg",
    "partition=iid",
    "partition.num_clients=30",
    "row_cap=3",
    "evaluate_every=99",
    "personal=none",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[float, str]]]:
    """Return the folder of the runs that tests share, and what was found of each."""
    return tmp_path_factory.mktemp("liars"), {}


@pytest.fixture
def honest_accuracy(run, scripts, runs):
    """Return what runs with a lie, once: the honest clients' mean accuracy and what was printed."""
    liars, (folder, found) = scripts("liars"), runs

    def accuracy(lie: str, number: int) -> tuple[float, str]:
        where = f"{lie}_{number}"
        if where not in found:
            outcome = run(*ALIKE, f"client_app=liars.{where}", "rounds=40", f"output_dir={folder / where}")
            assert outcome.code == 0, outcome.complained
            rows = pd.read_parquet(folder / where / "clients.parquet")
            honest = rows[~rows["client"].isin(liars.who(number))]["accuracy"].mean()
            found[where] = honest, outcome.printed
        return found[where]

    return accuracy


def test_one_client_cannot_ruin_the_mean_by_its_rows(honest_accuracy) -> None:
    honest, printed = honest_accuracy("none", 0)
    assert "says" not in printed
    for lie in ("reversed_many", "only_many"):
        accuracy, printed = honest_accuracy(lie, 1)
        assert accuracy > honest - 0.02
        assert printed.count("client 2 says") == 1
    assert honest_accuracy("reversed_many", 3)[0] > honest - 0.05


@pytest.mark.parametrize("lie", ["constant", "random_many"])
def test_three_that_send_no_training_are_left_out_and_named(lie: str, honest_accuracy, runs) -> None:
    honest, _ = honest_accuracy("none", 0)
    accuracy, _ = honest_accuracy(lie, 3)
    assert accuracy > honest - 0.05
    rounds = map(json.loads, (runs[0] / f"{lie}_3" / "rounds.jsonl").read_text().splitlines())
    failures = [each for one in rounds for each in one.get("failures", [])]
    # Read without objection, and left out for their length.
    assert {each["client"] for each in failures} == {2, 11, 26}
    assert all("update must be at most 10 times as long as the median" in each["reason"] for each in failures)
    rounds = (runs[0] / "none_0" / "rounds.jsonl").read_text().splitlines()
    assert not any(json.loads(each).get("failures") for each in rounds)


def test_one_client_cannot_make_the_global_accuracy_by_its_test_rows(honest_accuracy, runs) -> None:
    # 29 clients of accuracy a and one that says 1 and counts for three: (29 a + 3) / 32, or nearly, as
    # clients have 11 or 12 test rows.
    accuracy, printed = honest_accuracy("test_rows", 1)
    summary = json.loads((runs[0] / "test_rows_1" / "summary.json").read_text())
    assert summary["global_accuracy"] == pytest.approx((29 * accuracy + 3) / 32, abs=0.005)
    assert "client 2 says" in printed


def test_three_of_thirty_cannot_vote_groups_away(run, scripts, tmp_path: Path) -> None:
    liars, accuracies = scripts("liars"), []
    for where in ("none_0", "votes_against_3"):
        outcome = run(
            *("strategy=auto", "partition=conventions", "partition.groups=[20,10]", "rounds=40"),
            *("evaluate_every=99", "seed=71", f"client_app=liars.{where}", f"output_dir={where}"),
        )
        assert outcome.code == 0, outcome.complained
        rows = pd.read_parquet(tmp_path / where / "clients.parquet")
        accuracies.append(rows[~rows["client"].isin(liars.who(3))]["accuracy"].mean())
    summary = json.loads((tmp_path / "votes_against_3" / "summary.json").read_text())
    assert summary["verdict"]["grouped"]
    assert accuracies[1] > accuracies[0] - 0.05
    # The votes were accepted as such, and left out for their value; and nobody else's were.
    unheard = {each["client"]: each["reason"] for each in summary["proof"]["did_not_vote"]}
    assert [*unheard] == [*liars.who(3)]
    assert all("vote must be likely" in reason and "got -2.00 on" in reason for reason in unheard.values())
    assert json.loads((tmp_path / "none_0" / "summary.json").read_text())["failed_replies"] == 0


def test_one_of_four_sites_cannot_reverse_the_model_for_all(run, scripts, tmp_path: Path) -> None:
    liars, accuracies, named, reasons = scripts("liars"), [], [], []
    for where in ("none_0", "sign_flip_1", "all_reversed_1"):
        outcome = run(
            *("strategy=auto", "partition=iid", "partition.num_clients=4", "rounds=20", "compare=[]"),
            *("evaluate_every=99", "seed=1", f"client_app=liars.{where}", f"output_dir={where}"),
        )
        assert outcome.code == 0, outcome.complained
        rows = pd.read_parquet(tmp_path / where / "clients.parquet")
        accuracies.append(rows[~rows["client"].isin(liars.who(1))]["accuracy"].mean())
        summary = json.loads((tmp_path / where / "summary.json").read_text())
        found = [each for each in summary["site_findings"] if each["kind"] == "harmful"]
        named.append([each["client"] for each in found])
        rounds = map(json.loads, (tmp_path / where / "rounds.jsonl").read_text().splitlines())
        failures = (each["reason"] for one in rounds for each in one.get("failures", []))
        reasons.append({each.split(": ", 1)[1] for each in failures})
    assert named == [[], [*liars.who(1)], [*liars.who(1)]]
    assert min(accuracies[1:]) > accuracies[0] - 0.05
    turned = "updates must point the same way as those without a fold of its rows, they point the other way"
    # Read without objection; whoever lies about all models is found by the others' scores alone.
    assert reasons[1] == {turned}
    assert turned not in reasons[2]
