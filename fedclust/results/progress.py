"""Show a run's progress: a live panel on a terminal, a few plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from fedclust.results.live_panel import LivePanel, duration

__all__ = ["Progress", "quiet_flower"]

_REFRESH_PER_SECOND = 4
_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """The progress display of a run.

    On a terminal a panel is redrawn in place, four times a second, and ends as one line. Elsewhere (a file, a
    notebook, ``flwr run``'s log, ``TERM=dumb``) a plain line is printed for the first and the last round, at
    each tenth of the rounds, and 30 s after the previous line.

    Parameters
    ----------
    total_rounds
        Rounds of the run.
    title
        Name of the run, such as its strategy's.
    console
        Where to print; standard output unless given.
    clock
        Function that returns the time in seconds; for tests.
    task
        Number of this run and number of runs, such as (2, 3) for the second of three; the panel shows it.

    Raises
    ------
    ValueError
        If ``total_rounds`` is less than 1.
    """

    def __init__(
        self,
        total_rounds: int,
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        task: tuple[int, int] = (1, 1),
    ) -> None:
        if total_rounds < 1:
            raise ValueError(f"total_rounds must be >= 1, got {total_rounds}")
        self._total = total_rounds
        self._title = title
        self._console = console or Console()
        self._clock = clock
        self._shown: dict[str, Any] = {}
        self._round = self._tenth = 0
        self._earlier = 0  # rounds before this process, of a resumed run
        self._started = self._updated = self._printed = clock()
        self._live: Live | None = None
        self._panel = LivePanel(title, total_rounds, self._seconds_left, task)
        if _redraws(self._console):
            self._live = Live(
                self._panel, console=self._console, refresh_per_second=_REFRESH_PER_SECOND, transient=True
            )
        self._handlers: list[tuple[logging.StreamHandler, Any]] = []

    def __enter__(self) -> "Progress":
        if self._live is not None:
            before = sys.stdout, sys.stderr
            self._live.start()  # puts streams in their place that write above the panel
            self._handlers = _move_handlers(before, (sys.stdout, sys.stderr))
        self._started = self._updated = self._printed = self._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            self._live.stop()
            if self._round:
                self._print()

    def changed(self, server_round: int, reason: str) -> None:
        """Show that the clusters changed.

        Parameters
        ----------
        server_round
            Round after which they did; changes before round 1 are not shown.
        reason
            Why, such as ``"cluster 0 split in 2"``.
        """
        if server_round:
            self._panel.changed(server_round, reason)

    def update(self, record: Mapping[str, object]) -> None:
        """Show a finished round.

        Parameters
        ----------
        record
            The line for ``rounds.jsonl``; the latest ``round``, ``num_clusters``, ``loss`` and
            ``mean_client_accuracy`` are shown, and on a terminal ``cluster_sizes`` and ``failures``.
        """
        for key in ("num_clusters", "loss", "mean_client_accuracy"):
            if record.get(key) is not None:
                self._shown[key] = record[key]
        first, self._round = not self._round, int(record["round"])  # type: ignore[call-overload]
        if first:
            self._earlier = self._round - 1
        self._updated = self._clock()
        if self._live is not None:
            self._panel.update(record)  # drawn by another thread
            return
        tenth = self._round * 10 // self._total
        late = self._updated - self._printed >= _SECONDS_BETWEEN_LINES
        if first or tenth > self._tenth or late:
            self._print()
            self._tenth, self._printed = tenth, self._updated

    def _print(self) -> None:
        self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)

    def _seconds_left(self) -> float | None:
        if not self._round:
            return None
        passed = self._updated - self._started
        return passed / (self._round - self._earlier) * (self._total - self._round)

    def _line(self) -> str:
        parts = [f"{self._title}: round {self._round}/{self._total}"]
        left = self._seconds_left()
        if left is not None:
            parts.append(f"ETA {duration(left)}")
        shown = self._shown
        # The most important values come first: a narrow terminal cuts the end.
        if "mean_client_accuracy" in shown:
            parts.append(f"accuracy {shown['mean_client_accuracy']:.3f}")
        if "num_clusters" in shown:
            parts.append(f"{shown['num_clusters']} cluster{'' if shown['num_clusters'] == 1 else 's'}")
        if "loss" in shown:
            parts.append(f"loss {shown['loss']:.4f}")
        return ", ".join(parts)


def _redraws(console: Console) -> bool:
    """Whether a console can redraw lines: FORCE_COLOR alone, as in many CI logs, makes no terminal of it."""
    is_a_terminal = getattr(console.file, "isatty", lambda: False)
    return console.is_terminal and not console.is_dumb_terminal and bool(is_a_terminal())


def _move_handlers(before: tuple[Any, Any], now: tuple[Any, Any]) -> list[tuple[logging.StreamHandler, Any]]:
    """Let log handlers that hold a stream of before write into the one that is in its place now.

    Returns
    -------
    The handlers moved, with their streams of before.
    """
    moved = []
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            for old, new in zip(before, now, strict=True):
                if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                    moved.append((handler, old))
                    handler.setStream(new)
                    break
    return moved


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Mute Flower's ten log lines a round; ``rounds.jsonl`` has the same information."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
