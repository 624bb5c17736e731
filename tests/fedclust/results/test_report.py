import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedclust.proof.scores import SCALE
from fedclust.results import Recorder, SavedRun, client_table, print_report, summarise
from fedclust.results.report import (
    duration,
    number,
    percent,
    size,
    span,
    trials_table,
    went_back_line,
    written,
)


def back(cluster: int, clients: int, reason: str = "not finite") -> dict:
    return {"cluster": cluster, "clients": clients, "reason": reason, "in_a_row": 1}


def test_the_clusters_that_lost_most_rounds_come_first_with_their_last_reason() -> None:
    rounds = [
        {"round": 1, "went_back": [back(0, 1)]},
        {"round": 2, "went_back": [back(3, 5), back(3, 5)]},  # twice in one round: one round
        {"round": 3},
        {"round": 4, "went_back": [back(3, 4, "too large")]},
    ]
    assert went_back_line(rounds) == (
        "Went back to an earlier model: cluster 3 in 2 of 4 rounds (round 4 with 4 clients: too large); "
        "cluster 0 in 1 of 4 rounds (round 1: not finite)"
    )


def test_many_clusters_are_counted() -> None:
    line = went_back_line([{"round": 1, "went_back": [back(cluster, 1) for cluster in range(7)]}])
    assert line.count("cluster") == 5
    assert line.endswith("; and 2 more")


def test_without_any_there_is_no_line_and_runs_of_before_have_no_number_of_clients() -> None:
    assert went_back_line([{"round": 1}]) is None
    old = [{"round": 1, "went_back": [{"cluster": 2, "reason": "not finite", "in_a_row": 1}]}]
    assert went_back_line(old) == (
        "Went back to an earlier model: cluster 2 in 1 of 1 rounds (round 1: not finite)"
    )


def trial(rounds: int = 7, kept: bool = False, **figures: object) -> dict:
    known = {"look": 1, "cluster": 0, "source": "updates", "sizes": [20, 10], "why": "no gain"}
    return {**known, "rounds": rounds, "kept": kept, **figures}


def test_what_was_kept_comes_first_and_the_rest_is_counted() -> None:
    tested = {"gain": 0.1234, "p_value_corrected": 0.0004}
    table = trials_table([trial(1), trial(7), trial(7, kept=True, **tested)])
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    text = console.file.getvalue()
    first, second = [line for line in text.splitlines() if "update" in line]
    assert "20, 10   0.123   < 0.001        7   kept" in first
    assert "dropped: no gain" in second
    assert "1 more in summary.json" in text


def printed(folder: Path, **given: bool) -> str:
    out = io.StringIO()
    print_report(SavedRun(folder), Console(file=out, width=60), **given)
    return out.getvalue()


def test_how_values_are_written() -> None:
    assert [number(value) for value in (1234.5678, -0.0001, None, np.nan)] == ["1,234.568", "0.000", "–", "–"]
    assert [size(value) for value in (7, 999.4, 1_449_086, 5e15)] == ["7 B", "999 B", "1.45 MB", "5000 TB"]
    assert [duration(value) for value in (4.94, 125, 7_500)] == ["4.9 s", "2 min 5 s", "2 h 5 min"]
    assert [percent(value) for value in (0.004, 0.94, 0.0, None)] == ["0.4 %", "94 %", "0 %", "–"]
    assert (span((0.1, 0.25)), span(None), span([None, None])) == ("0.100 to 0.250", "–", "–")
    assert [written(value, "chance") for value in (0.0001, 0.5)] == ["< 0.001", "0.500"]
    assert (written(1.5e-7, "tight"), written(None, "text"), written("<", "whole")) == ("1.5e-07", "–", "<")


def row(text: str, title: str) -> list[str]:
    """Cells of the line that starts with a title, split where two blanks part them."""
    line = next(line for line in text.splitlines() if line.strip().startswith(title))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_clusters_figures_and_folder(finished_run: Path) -> None:
    text = printed(finished_run)
    assert "fedgwc, 4 clients, 3 rounds, seed 7" in text
    # Clients 0 and 1: 8 + 8 samples, accuracies 1 and 0.5.
    assert row(text, "0 ") == ["0", "2", "16", "0.750", "0 (2)"]
    assert row(text, "1 ") == ["1", "2", "16", "0.875", "1 (2)"]
    assert row(text, "clusters") == ["clusters", "2", "1"]
    assert row(text, "Rand index, known")[1:] == ["1.000", "0.333"]  # one cluster: pairs 01 and 23 of 6 agree
    assert row(text, "Rand index, adjusted")[1:] == ["1.000", "0.000"]
    # Rows only for a paper's figures, and figures not counted, are left out.
    for title in ("pooled", "training shares", "sent to", "received"):
        assert title not in text
    # Distances from 1 are 0, 0.5, 0, 0.25: mean 0.1875, variance (0.25 + 0.0625)/4 - 0.1875² = 0.04297.
    assert row(text, "AD")[1:] == ["0.188 ± 0.207", "0.500 ± 0.177"]
    assert row(text, "failed replies")[1:] == ["0", "0"]
    assert text.endswith(f"results: {finished_run.resolve()}\n")  # whole, however narrow the console


@pytest.mark.parametrize("brief", [False, True])
def test_a_number_of_groups_that_nobody_gave_is_marked(finished_run: Path, brief: bool) -> None:
    path = finished_run / "summary.json"
    assert "†" not in printed(finished_run, brief=brief)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"groups_guessed": 3}))
    text = printed(finished_run, brief=brief)
    assert any(line.split() == ["FedGWC†", "FedAvg"] for line in text.splitlines())
    # The four clients are of two groups.
    assert "† number of groups not given: 3 by default; the data have 2\n" in text


def test_bytes_in_units_that_can_be_read(finished_run: Path) -> None:
    path = finished_run / "summary.json"
    summary = json.loads(path.read_text())
    summary |= {"bytes_down": 12_345_678, "bytes_up": 999}
    summary["compare"]["fedavg"] |= {"bytes_down": 999_600, "bytes_up": 5_000_000_000_000_000}
    path.write_text(json.dumps(summary))
    text = printed(finished_run)
    assert row(text, "sent to clients")[1:] == ["12.3 MB", "1 MB"]
    assert row(text, "received from clients")[1:] == ["999 B", "5000 TB"]


def told(folder: Path, table: pd.DataFrame, **more: str) -> str:
    """Print the report of a run that has only its clients and its summary."""
    with Recorder(folder) as recorder:
        recorder.clients(table)
        recorder.summary(summarise(table, strategy="fmcl", seed=0, rounds=1, seconds=1, **more))
    return printed(folder)


def test_clients_are_named_where_they_have_names(tmp_path: Path) -> None:
    names = ["[Charité]", *(f"clinic {number}" for number in range(6))]
    table = client_table([0] * 6 + [1], [1] * 7, [1] * 7, [[1]] * 7, [{"accuracy": 1.0}] * 7, names=names)
    text = told(tmp_path, table)
    assert row(text, "0 ")[-1] == "[Charité], clinic 0, clinic 1, clinic 2, clinic 3 and 1 more"
    assert row(text, "1 ")[-1] == "clinic 5"


def test_many_clusters_are_cut_short_and_silent_clients_named(tmp_path: Path) -> None:
    assignment = np.repeat(np.arange(20), 2)
    assignment[:3] = 19  # the largest has five
    evaluation = [{"accuracy": 0.5}] * 38 + [None] * 2
    table = client_table(assignment, np.ones(40), np.ones(40), np.ones((40, 2)), evaluation)
    text = told(tmp_path, table)
    assert "the 11 largest of 19 clusters; … are the others together\n" in text  # in one line
    assert row(text, "19 ")[:2] == ["19", "5"]
    assert "known groups" not in text
    assert "Rand index" not in text
    assert "2 of 40 clients without accuracy: left out of the means" in text


def test_what_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").touch()
    with pytest.raises(ValueError, match=r"summary.json must have the key strategy, got \[\]"):
        print_report(SavedRun(tmp_path))


def test_brier_scores_are_explained_where_there_are_some(tmp_path: Path) -> None:
    table = client_table([0, 0], [1, 1], [1, 1], [[1], [1]], [{"accuracy": 1.0}] * 2)
    more = {"verdict": {"text": "Train", "gain": 0.1}}
    site = {"name": "north", "train_with": [], "correction": "none", "text": "north: stay out: 0.90."}
    assert SCALE in told(tmp_path / "groups", table, **more)
    text = told(tmp_path / "sites", table, **more, sites=[site])
    assert "north: stay out: 0.90." in text
    assert SCALE not in text


def test_the_decision_of_a_method_is_printed(tmp_path: Path) -> None:
    table = client_table([0, 0], [1, 1], [1, 1], [[1], [1]], [{"accuracy": 1.0}] * 2)
    why = "one cluster: clients' label shares differ no more than chance explains (p = 0.43)"
    assert why in told(tmp_path, table, decision=why).splitlines()


@pytest.mark.parametrize(
    ("charts", "ends"),
    [
        ("there", "; it writes the page, too"),
        (None, "; it writes the page, too, after pip install 'fedclust[charts]'"),
    ],
)
def test_a_run_without_a_page_ends_in_how_to_get_it(
    finished_run: Path, monkeypatch, charts: str | None, ends: str
) -> None:
    monkeypatch.setattr("fedclust.results.report.find_spec", lambda _: charts)
    out = io.StringIO()
    print_report(SavedRun(finished_run), Console(file=out), brief=True)
    (line,) = (each for each in out.getvalue().splitlines() if each.startswith("all figures: "))
    assert line.endswith(ends)


AMOUNTS = {"kind": "amounts", "low": 0.0, "high": 62.0, "edges": [31.0], "unit": "mg/dl"}
TIMES = {"kind": "times", "cuts": [10.0, 20.0], "last": 90.0}


@pytest.mark.parametrize(
    ("target", "own", "shown"),
    [
        (
            AMOUNTS,
            {"rmse": 9.5, "mae": 7.25, "r2": 0.5},
            [
                ("client share within 12.4 mg/dl, mean", "0.750"),  # a fifth of 62
                ("root mean squared error, mg/dl", "9.500"),
                ("mean absolute error, mg/dl", "7.250"),
                ("R²", "0.500"),
            ],
        ),
        (
            TIMES,
            {"concordance": 0.75, "integrated_brier": 0.125},
            [
                ("client concordance, mean", "0.750"),
                ("Harrell's concordance", "0.750"),
                ("integrated Brier score", "0.125"),
            ],
        ),
    ],
)
def test_what_is_predicted_has_its_own_words(tmp_path: Path, target: dict, own: dict, shown: list) -> None:
    figures = {"accuracy": 0.75, "balanced-accuracy": 0.625} | own
    table = client_table([0, 0], [1, 1], [1, 1], [[1], [1]], [figures] * 2)
    more = {"own_metrics": [*own], "target": target, "verdict": {"text": "Train", "gain": 0.1}}
    text = told(tmp_path, table, **more)
    for title, value in shown:
        assert row(text, title)[-1] == value
    for word in ("accuracy", "balanced", "class", "label", "nan", SCALE):
        assert word not in text


def test_the_targets_own_figures_are_in_the_brief_table(tmp_path: Path) -> None:
    table = client_table([0, 0], [1, 1], [1, 1], [[1], [1]], [{"accuracy": 1.0, "rmse": 9.5}] * 2)
    told(tmp_path, table, own_metrics=["rmse"], target=AMOUNTS)
    assert row(printed(tmp_path, brief=True), "root mean squared error, mg/dl")[-1] == "9.500"
