"""Show a run's progress: a bar on a terminal, a few plain lines elsewhere."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_TO_JUDGE_BY = 2.0  # the first round alone also warms up


class Progress:
    """The progress display of a run.

    On a terminal a bar is redrawn in place and ends as one line. Elsewhere (a file, a notebook,
    ``flwr run``'s log, ``TERM=dumb``) a plain line is printed at the end, and before it 30 s after the
    previous line.

    After the first round, or after 2 s of shorter ones, a line says how long the run and the later ones will
    take, if that is 30 s or more.

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
        Number of this run and number of runs, such as (2, 3) for the second of three; the bar shows it.
    then
        Rounds of the runs after this one, each counted by how long it takes: 25.0 are 25 rounds of this run.
    summarised
        Whether someone else prints how the run ended: no line is printed at the end, and how long it will
        take only in the `first` of several.
    first
        Whether it is the first job of a sweep, whose others take about as long.
    later
        What follows the rounds and changes the models that serve, such as ``("proof", "layers")``: the
        accuracy is named as that before it.
    proves
        Whether a verdict follows all runs, for which clients train models of their own: that time does not
        count.

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
        then: float = 0.0,
        later: Sequence[str] = (),
        summarised: bool = False,
        first: bool = False,
        proves: bool = False,
    ) -> None:
        if total_rounds < 1:
            raise ValueError(f"total_rounds must be >= 1, got {total_rounds}")
        self._total, self._title, self._clock = total_rounds, title, clock
        self._console = console or Console()
        self.share = "accuracy"
        """What the clients' figure is."""
        self._before = f" before {' and '.join(later)}" if later else ""
        self._summarised, self._then, self._after = summarised, then, task[1] - task[0]
        self._of_several, self._proves = first, proves
        self._shown: dict[str, Any] = {}
        self._round = self._last = 0
        self._earlier = 0  # rounds before this process, of a resumed run
        self._first = 0.0  # seconds of the first round of this process
        self._estimated = False
        self._started = self._updated = self._printed = clock()
        self._handlers: list[tuple[logging.StreamHandler, Any]] = []
        self._bar = None
        if _redraws(self._console):
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn

            text = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[text]"))
            columns = next(text), BarColumn(), MofNCompleteColumn(), next(text)
            self._bar = Bar(*columns, console=self._console, transient=True)
            described = f"{task[0]} of {task[1]}: {title}" if task[1] > 1 else title
            self._bar.add_task(described, total=total_rounds, text="")

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            before = sys.stdout, sys.stderr
            self._bar.start()  # replaces both streams by ones that write above the bar
            self._handlers = _redirect_handlers(dict(zip(before, (sys.stdout, sys.stderr), strict=True)))
        self._started = self._updated = self._printed = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            self._bar.stop()
        if self._round != self._last and not self._summarised:
            self._print(stopped=kind is None and self._round < self._total)

    def update(self, record: Mapping[str, Any]) -> None:
        """Show a finished round.

        Parameters
        ----------
        record
            The line for ``rounds.jsonl``; the latest ``round``, ``num_clusters``, ``loss`` and
            ``mean_client_accuracy`` are shown.
        """
        for key in ("num_clusters", "loss", "mean_client_accuracy"):
            if record.get(key) is not None:
                self._shown[key] = record[key]
        first, self._round = not self._round, int(record["round"])
        self._updated = self._clock()
        if first:
            self._earlier, self._first = self._round - 1, self._updated - self._started
        if not self._estimated and self._updated - self._started >= _SECONDS_TO_JUDGE_BY:
            self._estimated = True
            self._estimate()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._round, text=", ".join(self._parts()))
            return
        if self._updated - self._printed >= _SECONDS_BETWEEN_LINES:
            self._print()
            self._printed, self._last = self._updated, self._round

    def _estimate(self) -> None:
        """Print how long all runs will take if every round takes as long as the first ones."""
        done, left = self._round - self._earlier, self._total - self._round
        passed = self._updated - self._started
        each = passed if done == 1 else (passed - self._first) / (done - 1)  # the first one also warms up
        seconds = each * (left + self._then)
        if seconds >= _SECONDS_BETWEEN_LINES and (self._of_several or not self._summarised):
            by = "the first round" if done == 1 else f"the first {done} rounds"
            what = f"{left} more rounds" + f", and {self._after} compared" * bool(self._after)
            what += ", without the verdict's own models" * self._proves
            what += "; each of the sweep's jobs may take as long" * self._of_several
            line = f"{self._title}: about {_duration(seconds)} to go by {by}: {what}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _print(self, stopped: bool = False) -> None:
        parts = ["stopped early", *self._parts()[1:]] if stopped else self._parts()
        line = ", ".join([f"{self._title}: round {self._round}/{self._total}", *parts])
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _parts(self) -> list[str]:
        """List the last round's figures, the most important first: a narrow terminal cuts off the end."""
        shown, passed = self._shown, self._updated - self._started
        left = passed / (self._round - self._earlier) * (self._total - self._round)
        parts = [f"ETA {_duration(left)}"]
        if "mean_client_accuracy" in shown:
            parts.append(f"client {self.share}{self._before} {shown['mean_client_accuracy']:.3f}")
        if "num_clusters" in shown:
            parts.append(f"{shown['num_clusters']} cluster{'' if shown['num_clusters'] == 1 else 's'}")
        if "loss" in shown:
            parts.append(f"loss {shown['loss']:.4f}")
        return parts


def _duration(seconds: float) -> str:
    """Format a time as minutes and seconds, with hours if there are any: ``1:05`` or ``2:00:07``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _redraws(console: Console) -> bool:
    """Return whether a console can redraw lines: FORCE_COLOR alone, as in many CI logs, is no terminal."""
    is_a_terminal = getattr(console.file, "isatty", lambda: False)
    return console.is_terminal and not console.is_dumb_terminal and bool(is_a_terminal())


def _redirect_handlers(streams: Mapping[Any, Any]) -> list[tuple[logging.StreamHandler, Any]]:
    """Redirect log handlers from old streams to new ones; return them with their old streams."""
    moved = []
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            if isinstance(handler, logging.StreamHandler) and handler.stream in streams:
                moved.append((handler, handler.stream))
                handler.setStream(streams[handler.stream])
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
