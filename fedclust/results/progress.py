"""Show how far a run is: one live line on a terminal, a few plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as LiveProgress
from rich.text import Text

__all__ = ["Progress"]

_REFRESH_PER_SECOND = 4
_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """What a run prints while it runs.

    On a terminal one line is redrawn in place, at most four times a second. Elsewhere a plain line is
    printed for the first round, the last, each tenth of the rounds, and when the last one is 30 s old.

    Parameters
    ----------
    total_rounds
        Rounds of the run.
    title
        What runs, such as the strategy's name.
    console
        Where to print; standard output unless given.
    clock
        Seconds since some moment; for tests.

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
    ) -> None:
        if total_rounds < 1:
            raise ValueError(f"total_rounds must be >= 1, got {total_rounds}")
        self._total = total_rounds
        self._title = title
        self._console = console or Console()
        self._clock = clock
        self._record: dict[str, object] = {}
        self._started = self._printed = clock()
        self._tenth = 0
        self._live: LiveProgress | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = LiveProgress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                _Figures(self._record),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self._console,
                refresh_per_second=_REFRESH_PER_SECOND,
            )
            self._task = self._live.add_task(title, total=total_rounds)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        self._started = self._printed = self._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, record: Mapping[str, object]) -> None:
        """Take note of a finished round.

        Parameters
        ----------
        record
            The line for ``rounds.jsonl``; ``round``, ``num_clusters``, ``loss`` and
            ``mean_client_accuracy`` are shown, each as last known.
        """
        for key in ("num_clusters", "loss", "mean_client_accuracy"):
            if record.get(key) is not None:
                self._record[key] = record[key]
        number = int(record["round"])  # type: ignore[call-overload]
        if self._live is not None:
            self._live.update(self._task, completed=number)
            return
        now = self._clock()
        tenth = number * 10 // self._total
        if number == 1 or tenth > self._tenth or now - self._printed >= _SECONDS_BETWEEN_LINES:
            left = (now - self._started) / number * (self._total - number)
            figures = _figures(self._record)
            line = f"{self._title}: round {number}/{self._total}, {figures}ETA {_duration(left)}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._tenth, self._printed = tenth, now


class _Figures(TextColumn):
    """The figures of the latest round, put together only when the line is drawn."""

    def __init__(self, record: Mapping[str, object]) -> None:
        super().__init__("")
        self._latest = record

    def render(self, task: Task) -> Text:  # noqa: ARG002
        return Text(_figures(self._latest).rstrip(", "))


def _figures(record: Mapping[str, object]) -> str:
    parts = []
    if "num_clusters" in record:
        parts.append(f"{record['num_clusters']} cluster{'' if record['num_clusters'] == 1 else 's'}")
    if "loss" in record:
        parts.append(f"loss {record['loss']:.4g}")
    if "mean_client_accuracy" in record:
        parts.append(f"accuracy {record['mean_client_accuracy']:.3f}")
    return "".join(f"{part}, " for part in parts)


def _duration(seconds: float) -> str:
    whole = math.ceil(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
