import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedclust.results.live_panel import LivePanel, duration, sparkline


def draw(panel: LivePanel, width: int = 70, encoding: str = "utf-8", **options: object) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    options = {"color_system": None, **options}
    Console(file=file, width=width, force_terminal=True, legacy_windows=False, **options).print(panel)  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


def panel_of(*records: dict[str, object], total: int = 10, **details: object) -> LivePanel:
    panel = LivePanel("fedgwc", total, lambda: 61.0, **details)  # type: ignore[arg-type]
    for record in records:
        panel.update(record)
    return panel


def failure(client: int, **more: object) -> dict[str, object]:
    return {"client": client, "phase": "train", "reason": "no reply", **more}


def test_all_lines() -> None:
    panel = panel_of(
        {"round": 1, "mean_client_accuracy": 0.2, "num_clusters": 1, "failures": [failure(7)]},
        {"round": 2, "mean_client_accuracy": 0.9, "num_clusters": 2, "cluster_sizes": [3, 0, 9],
         "failures": [failure(7), failure(7), failure(4, name="north")]},
        task=(2, 3),
    )  # fmt: skip
    panel.changed(2, "cluster 0 split in 2")
    lines = draw(panel).splitlines()
    assert lines[0].startswith("╭─ 2 of 3: fedgwc ─")
    # 70 − 4 for the frame, − 10 for the titles, − 18 for the text after it: a bar of 38. Two of ten rounds
    # are 7 of it.
    assert lines[1] == f"│ round     {'━' * 7}{'─' * 31}   2/10, ETA  1:01 │"
    assert lines[2].startswith("│ accuracy  0.900  ▁█  0.20 to 0.90 ")
    assert lines[3].startswith("│ clusters  2: 9 + 3 clients ")
    assert lines[4].startswith("│           round 2: cluster 0 split in 2 ")
    assert lines[5].startswith("│ failing   north, client 7 (2 rounds) ")
    assert len(lines) == 7


def test_clients_that_failed_before_are_told_from_those_that_fail_now() -> None:
    failed = [failure(client) for client in range(8)]
    panel = panel_of({"round": 1, "failures": failed}, {"round": 2, "failures": []})
    text = draw(panel, 100)
    assert "failed    client 7, client 6, client 5, client 4, client 3, client 2 and 2 more" in text
    assert "failing" not in text


@pytest.mark.parametrize("width", [20, 40, 70, 200])
def test_no_line_is_wider_than_the_terminal_or_wrapped(width: int) -> None:
    panel = panel_of(
        {"round": 9, "mean_client_accuracy": 0.5, "num_clusters": 30, "cluster_sizes": list(range(1, 31)),
         "failures": [failure(client, name="a" * 30) for client in range(9)]},
        total=20_000,
    )  # fmt: skip
    panel.changed(9, "cluster 0 split in 30 " * 9)
    lines = draw(panel, width).splitlines()
    assert len(lines) == 7
    assert {len(line) for line in lines} == {min(width, 88)}


def test_without_colours_and_without_unicode() -> None:
    panel = panel_of({"round": 5, "mean_client_accuracy": 0.25}, {"round": 6, "mean_client_accuracy": 0.5})
    plain = draw(panel, 60, no_color=True, color_system="standard")
    assert "\x1b[3" not in plain  # no colour
    text = draw(panel, 60, "ascii")
    assert text.isascii()
    assert "_#  0.25 to 0.50" in text


def test_names_from_data_cannot_move_the_cursor() -> None:
    panel = panel_of({"round": 1, "failures": [failure(0, name="\x1b[2J[bold]x\n")]})
    text = draw(panel)
    assert "\x1b" not in text
    assert " [2J[bold]x " in text


def test_a_run_that_is_not_evaluated_shows_its_loss() -> None:
    assert "loss      0.5000" in draw(panel_of({"round": 1, "loss": 0.5}))
    assert "accuracy  0.300" in draw(panel_of({"round": 1, "mean_client_accuracy": 0.3}, {"round": 2}))
    assert "accuracy  nan" in draw(panel_of({"round": 1, "mean_client_accuracy": math.nan}))


def test_of_many_rounds_few_accuracies_are_kept() -> None:
    records = ({"round": number, "mean_client_accuracy": number / 9999} for number in range(1, 10_000))
    panel = panel_of(*records)
    assert len(panel._accuracies) < 1024
    assert "0.00 to 1.00" in draw(panel)


def test_bars_by_hand() -> None:
    # From 0 to 7 there are eight heights, one for each.
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 4) == "▂▄▆█"  # every second one, with the last
    assert sparkline([3, 3], 8) == "▁▁"
    assert sparkline([0.0, 5e-324], 8) == "▁█"  # the smallest number above 0
    assert sparkline([], 8) == ""


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 90))
def test_as_many_bars_as_fit_and_the_last_value_is_the_last_bar(values: list[float], width: int) -> None:
    bars = sparkline(values, width)
    assert len(bars) == min(width, len(values))
    low, high = min(values), max(values)
    height = round((values[-1] - low) / (high - low) * 7) if high > low else 0
    assert bars[-1] == "▁▂▃▄▅▆▇█"[height]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.2, "1:00"), (3601, "1:00:01")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
