"""The rows and the summary of clients that were left out of training."""

import numpy as np
import pandas as pd
import pytest

from fedclust.clustering.shared.placement import Placement
from fedclust.federation.answering import Failure
from fedclust.federation.run import Measured
from fedclust.messages.description import Description
from fedclust.newcomers.placing import Newcomers
from fedclust.runs.newcomers import add_newcomers, newcomers_summary, newcomers_table


def _described(train: list[int], test: list[int], group: int | None, name: str | None) -> Description:
    return Description(np.array(train), np.array(test), group=group, name=name)


def _newcomers(groups: tuple[int | None, ...] = (0, 1, 1)) -> Newcomers:
    """Clients 2, 3 and 4 of five: in cluster 1, in none, and without an answer."""
    names = ("north", "south")
    described = {
        2: _described([3, 1], [2, 0], groups[0], names[0]),
        3: _described([0, 5], [0, 1], groups[1], names[1]),
    }
    if len(groups) > 2:
        described[4] = _described([1, 1], [1, 1], groups[2], "west")
    placements = {2: Placement(1, "near"), 3: Placement(None, "far"), 4: Placement(None, "did not answer")}
    figures = {
        "accuracy": np.array([9, 9, 0.5, 1.0, np.nan]),
        "balanced-accuracy": np.array([9, 9, 0.25, np.nan, np.nan]),
    }
    failures = [Failure(client=4, phase="describe", reason="offline")]
    served = {2: "cluster", 3: "common", 4: "common"}
    return Newcomers(placements, served, Measured(figures, {}), described, failures)


def test_a_row_per_newcomer() -> None:
    table = newcomers_table(_newcomers((0, None)), 2, with_names=True)
    assert table["client"].tolist() == [2, 3, 4]
    assert table["cluster"].tolist() == [1, -1, -1]
    assert table["num_train"].tolist() == [4, 5, 0]
    assert table["num_test"].tolist() == [2, 1, 0]
    assert [list(each) for each in table["label_counts"]] == [[3, 1], [0, 5], [0, 0]]
    assert table["name"].tolist() == ["north", "south", "4"]  # whoever did not answer has its id
    assert table["group"].isna().all()  # one has none
    np.testing.assert_array_equal(table["accuracy"], [0.5, 1.0, np.nan])
    assert table["served"].tolist() == ["cluster", "common", "common"]
    assert table["placed_by"].tolist() == ["near", "far", "did not answer"]
    assert table["newcomer"].tolist() == [True] * 3
    assert "name" not in newcomers_table(_newcomers(), 2, with_names=False)


@pytest.mark.parametrize("with_names", [False, True])
def test_the_tables_are_joined_and_the_summary_has_the_means(with_names: bool) -> None:
    trained = pd.DataFrame({"client": [0, 1], "cluster": [0, 1], "accuracy": [1.0, 1.0], "gain": [0.1, 0.2]})
    trained["label_counts"] = [[1, 1], [2, 2]]
    if with_names:
        trained["name"] = ["east", "mid"]
    clients, summary = add_newcomers(trained, {"rounds": 3}, _newcomers())
    assert clients["client"].tolist() == [0, 1, 2, 3, 4]
    assert clients["newcomer"].tolist() == [False, False, True, True, True]
    assert clients["gain"].isna().tolist() == [False, False, True, True, True]
    assert [clients[name].dtype for name in ("client", "cluster", "newcomer")] == ["int64", "int64", "bool"]
    found = summary["newcomers"]
    assert (summary["rounds"], found["clients"], found["none"], found["common"]) == (3, 3, 2, 2)
    assert (found["accuracy"], found["balanced_accuracy"]) == (0.75, 0.25)  # of those that have one
    # Groups 0, 1, 1 and clusters 1 and two of their own: no pair is together in both, so the index is 0.
    assert found["adjusted_rand"] == pytest.approx(0.0)
    named = {"name": "west"} if with_names else {}
    assert found["failures"] == [{"client": 4, **named, "phase": "describe", "reason": "offline"}]
    assert found["placements"][0] == {"client": 2, "cluster": 1, "reason": "near", "evidence": {}}


def test_newcomers_use_no_personal_layer() -> None:
    trained = pd.DataFrame({"client": [0], "cluster": [0], "accuracy": [1.0], "label_counts": [[1, 1]]})
    trained = trained.assign(personal="prior", accuracy_none=0.5)
    clients, _ = add_newcomers(trained, {}, _newcomers())
    assert clients["personal"].tolist() == ["prior", "none", "none", "none"]
    np.testing.assert_array_equal(clients["accuracy_none"], [0.5, 0.5, 1.0, np.nan])


def test_without_groups_or_figures_there_is_nothing_to_compare() -> None:
    newcomers = _newcomers((None, None))
    table = newcomers_table(newcomers, 2, with_names=False).assign(accuracy=np.nan)
    found = newcomers_summary(newcomers, table, [])
    assert (found["adjusted_rand"], found["accuracy"]) == (None, None)
    one = newcomers_table(_newcomers(), 2, with_names=False).iloc[:1]
    assert newcomers_summary(newcomers, one, [])["adjusted_rand"] is None  # one client agrees with anything
