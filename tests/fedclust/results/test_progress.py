import io
import logging
import sys
from contextlib import suppress

import pytest
from rich.console import Console

from fedclust.results import Progress


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def run(rounds: int, seconds_per_round: float, **console: object) -> str:
    clock = Clock()
    out = io.StringIO()
    with Progress(rounds, "fedgwc", Console(file=out, **console), clock) as progress:  # type: ignore[arg-type]
        for number in range(1, rounds + 1):
            clock.seconds += seconds_per_round
            progress.update(
                {"round": number, "num_clusters": 1 + number // 50, "loss": 0.5, "extra": object()}
            )
    return out.getvalue()


def test_plain_lines_every_half_minute_and_at_the_end() -> None:
    estimate, *lines = run(100, seconds_per_round=2).splitlines()
    assert estimate == "fedgwc: about 3:18 to go by the first round: 99 more rounds"  # of 2 s
    # 2 s a round: a line each 15 rounds.
    assert [line.split(",")[0] for line in lines] == [
        f"fedgwc: round {number}/100" for number in (*range(15, 91, 15), 100)
    ]
    assert lines[0] == "fedgwc: round 15/100, ETA 2:50, 1 cluster, loss 0.5000"
    assert lines[-1] == "fedgwc: round 100/100, ETA 0:00, 3 clusters, loss 0.5000"


def test_plain_lines_when_rounds_are_slow() -> None:
    _, *lines = run(50, seconds_per_round=40).splitlines()
    assert len(lines) == 50
    # 49 rounds of 40 s are left: 1,960 s.
    assert "ETA 32:40" in lines[0]
    assert "ETA 1:20:00" in run(121, seconds_per_round=40).splitlines()[1]  # 120 rounds: 4,800 s
    assert len(run(2_000, seconds_per_round=0.01).splitlines()) == 1


@pytest.mark.parametrize(
    ("later", "accuracy"),
    [
        ((), "client accuracy"),
        (("layers",), "client accuracy before layers"),
        (("proof", "layers"), "client accuracy before proof and layers"),
    ],
)
def test_the_last_known_accuracy_stays(later: tuple[str, ...], accuracy: str) -> None:
    out = io.StringIO()
    with Progress(2, "[fedgwc]", Console(file=out), later=later) as progress:
        progress.update({"round": 1, "mean_client_accuracy": 0.51239, "loss": float("nan")})
        progress.update({"round": 2, "mean_client_accuracy": None})
    lines = out.getvalue().splitlines()
    assert lines == [f"[fedgwc]: round 2/2, ETA 0:00, {accuracy} 0.512, loss nan"]


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(width: int = 80, **options: object) -> Console:
    return Console(file=Terminal(), width=width, legacy_windows=False, force_terminal=True, **options)  # type: ignore[arg-type]


def written(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bar_on_a_terminal_and_one_line_at_the_end() -> None:
    console, clock = terminal(color_system=None), Clock()
    with Progress(4, "fedgwc", console, clock, task=(2, 3)) as progress:
        for number in (1, 2):
            clock.seconds += 5.0
            progress.update({"round": number, "num_clusters": number})
        progress._bar.refresh()
    text = written(console)
    # 2 rounds of 5 s are left.
    for part in ("2 of 3: fedgwc", "━", "2/4", "ETA 0:10, 2 clusters"):
        assert part in text
    assert text.endswith("fedgwc: round 2/4, stopped early, 2 clusters\n")


@pytest.mark.parametrize("options", [{}, {"force_terminal": True}])
def test_what_cannot_redraw_gets_plain_lines(options: dict[str, object]) -> None:
    # A file or a pipe, with FORCE_COLOR too, which only says that colours are wanted.
    console = Console(file=io.StringIO(), **options)  # type: ignore[arg-type]
    with Progress(2, "fedgwc", console, Clock(), task=(1, 2)) as progress:
        progress.update({"round": 1})
        progress.update({"round": 2})
    assert written(console) == "fedgwc: round 2/2, ETA 0:00\n"


@pytest.mark.parametrize(
    ("rounds", "first", "seconds", "task", "then", "expected"),
    [
        # 9 rounds of this run and 10 of the next, of 6 s each: 114 s.
        (10, 1, [6], (1, 2), 10, "about 1:54 to go by the first round: 9 more rounds, and 1 compared"),
        # 10 that take a fifth as long: 9 + 2 rounds of 6 s.
        (10, 1, [6], (1, 2), 2, "about 1:06 to go by the first round: 9 more rounds, and 1 compared"),
        (10, 1, [6], (1, 1), 0, "about 0:54 to go by the first round: 9 more rounds"),
        (10, 4, [6], (1, 1), 0, "about 0:36 to go by the first round: 6 more rounds"),  # resumed after 3
        (10, 1, [6], (2, 3), 10, "about 1:54 to go by the first round: 9 more rounds, and 1 compared"),
        (10, 1, [6], (2, 2), 0, "about 0:54 to go by the first round: 9 more rounds"),
        (10, 6, [6], (1, 1), 0, None),  # 24 s
        # The first round warms up, the next two take 0.4 and 0.2 s: 197 of 0.3 s, 157 of a resumed run.
        (200, 1, [1.5, 0.4, 0.2], (1, 1), 0, "about 1:00 to go by the first 3 rounds: 197 more rounds"),
        (200, 41, [1.5, 0.4, 0.2], (1, 1), 0, "about 0:48 to go by the first 3 rounds: 157 more rounds"),
        (100, 1, [0.5, 0.5, 0.5], (1, 1), 0, None),  # 1.5 s are too short to judge by
    ],
)
def test_the_time_is_estimated_by_the_first_rounds(
    rounds: int, first: int, seconds: list[float], task: tuple[int, int], then: float, expected: str | None
) -> None:
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    with Progress(rounds, "fedgwc", console, clock, task=task, then=then) as progress:
        for number, each in enumerate(seconds, start=first):
            clock.seconds += each
            progress.update({"round": number})
        assert written(console).splitlines() == [f"fedgwc: {expected}"] * (expected is not None)
        clock.seconds += 0.3
        progress.update({"round": first + len(seconds)})
    assert len(written(console).splitlines()) == (expected is not None) + 1  # the end's line


@pytest.mark.parametrize("first", [True, False])
def test_a_job_of_a_sweep_prints_no_end_and_the_first_one_how_long_it_takes(first: bool) -> None:
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    with Progress(10, "fedgwc", console, clock, summarised=True, first=first) as progress:
        clock.seconds += 6.0
        progress.update({"round": 1})
    line = "fedgwc: about 0:54 to go by the first round: 9 more rounds; "
    assert written(console) == f"{line}each of the sweep's jobs may take as long\n" * first


def test_time_of_the_verdicts_own_models_is_not_estimated() -> None:
    console, clock = Console(file=io.StringIO(), width=200), Clock()
    with Progress(10, "auto", console, clock, task=(1, 2), then=9, proves=True) as progress:
        clock.seconds += 6.0
        progress.update({"round": 1})
        wanted = "9 more rounds, and 1 compared, without the verdict's own models"
        assert written(console) == f"auto: about 1:48 to go by the first round: {wanted}\n"


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    with Progress(10, "fedgwc", console, Clock()) as progress:
        for number in range(1, 11):
            progress.update({"round": number})
    assert len(written(console).splitlines()) == 1


def test_log_lines_are_written_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal(color_system=None)
    monkeypatch.setattr(sys, "stderr", console.file)
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("fedclust.test_progress")
    monkeypatch.setattr(logger, "propagate", False)  # other tests may have left handlers above it
    logger.addHandler(handler)
    try:
        with Progress(2, "fedgwc", console, Clock()) as progress:
            progress.update({"round": 1})
            progress._bar.refresh()
            assert handler.stream is not console.file  # one that moves the bar down
            logger.warning("client 3 is slow")
        assert handler.stream is console.file
    finally:
        logger.removeHandler(handler)
    # The bar is erased, the line is a whole one, and the bar is drawn again below it.
    before, after = written(console).split("client 3 is slow")
    assert "━" in before
    assert before.endswith("\x1b[2K")
    assert after.lstrip(" ").startswith("\n")
    assert "━" in after


def test_a_resumed_run_says_what_is_left_of_it() -> None:
    clock, out = Clock(), io.StringIO()
    with suppress(KeyboardInterrupt), Progress(100, "fedgwc", Console(file=out), clock) as progress:
        clock.seconds += 2.0
        progress.update({"round": 91})
        raise KeyboardInterrupt
    assert out.getvalue() == "fedgwc: round 91/100, ETA 0:18\n"  # 9 rounds of 2 s, not of 2 s / 91
    with pytest.raises(ValueError, match="total_rounds must be >= 1, got 0"):
        Progress(0, "fedgwc")
