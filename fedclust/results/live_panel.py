"""The panel that a terminal shows while a run goes on."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.text import Text

__all__ = ["LivePanel", "duration", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.:-=+*#"
_MOST_ACCURACIES = 1024  # of more, every second one is kept
_WIDEST = 88
_TITLE_ROOM = 10
_MOST_SIZES = 12
_MOST_NAMED = 6


@dataclass
class LivePanel:
    """What a run has done so far, drawn as a panel of at most seven lines.

    It is filled from the run's thread and drawn from another one, a few times a second: filling it costs
    microseconds, whatever the number of rounds.

    Attributes
    ----------
    title
        Name of the run, such as its strategy's.
    total
        Rounds of the run.
    seconds_left
        Returns the estimated seconds until the last round; None before the first one.
    task
        Number of this run and number of runs, such as (2, 3) for the second of three.
    """

    title: str
    total: int
    seconds_left: Callable[[], float | None]
    task: tuple[int, int] = (1, 1)
    _round: int = 0
    _record: dict[str, Any] = field(default_factory=dict)
    _accuracies: list[float] = field(default_factory=list)
    _lowest: float = math.inf
    _highest: float = -math.inf
    _every: int = 1
    _turn: int = 0
    _reason: tuple[int, str] | None = None
    _rounds_failed: dict[str, int] = field(default_factory=dict)  # the latest client last
    _failed_in: int = 0
    _lock: Lock = field(default_factory=Lock)

    def update(self, record: Mapping[str, Any]) -> None:
        """Take a finished round: the line for ``rounds.jsonl``."""
        with self._lock:
            self._round = int(record["round"])
            for key in ("num_clusters", "loss", "mean_client_accuracy", "cluster_sizes"):
                if record.get(key) is not None:
                    self._record[key] = record[key]
            accuracy = record.get("mean_client_accuracy")
            if accuracy is not None and math.isfinite(accuracy):
                self._keep(float(accuracy))
            for name in dict.fromkeys(_name(failure) for failure in record.get("failures") or ()):
                self._rounds_failed[name] = self._rounds_failed.pop(name, 0) + 1
                self._failed_in = self._round

    def changed(self, server_round: int, reason: str) -> None:
        """Take a change of the clusters."""
        with self._lock:
            self._reason = server_round, reason

    def _keep(self, accuracy: float) -> None:
        self._lowest, self._highest = min(self._lowest, accuracy), max(self._highest, accuracy)
        self._turn += 1
        if self._turn % self._every:
            return
        self._accuracies.append(accuracy)
        if len(self._accuracies) >= _MOST_ACCURACIES:
            self._accuracies = self._accuracies[1::2]
            self._every *= 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it, as wide as the terminal and at most 88 characters."""
        width = min(options.max_width, _WIDEST)
        room = max(1, width - 4 - _TITLE_ROOM)  # without the frame
        with self._lock:
            lines = [
                self._rounds(room, options.ascii_only),
                *self._accuracy(room, options.ascii_only),
                *self._clusters(),
                *self._failures(),
            ]
        number, of = self.task
        title = f"{number} of {of}: {self.title}" if of > 1 else self.title
        body = Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
        yield Panel(body, title=Text(_printable(title)), title_align="left", width=width, border_style="dim")

    def _rounds(self, room: int, ascii_only: bool) -> Text:
        left = self.seconds_left()
        said = f"  {self._round:>{len(str(self.total))}}/{self.total}"  # as wide in every round
        said += "" if left is None else f", ETA {duration(left):>5}"
        bar = max(4, room - len(said))
        done = bar * min(self._round, self.total) // self.total
        full, empty = "#." if ascii_only else "━─"
        return _line("round", (full * done, "green"), (empty * (bar - done), "dim"), said)

    def _accuracy(self, room: int, ascii_only: bool) -> list[Text]:
        last = self._record.get("mean_client_accuracy")
        if last is None:
            loss = self._record.get("loss")
            return [] if loss is None else [_line("loss", f"{loss:.4f}")]
        if not self._accuracies:
            return [_line("accuracy", f"{last:.3f}")]
        before, after = f"{last:.3f}  ", f"  {self._lowest:.2f} to {self._highest:.2f}"
        drawn = sparkline(self._accuracies, max(1, room - len(before) - len(after)), ascii_only)
        return [_line("accuracy", before, (drawn, "green"), (after, "dim"))]

    def _clusters(self) -> list[Text]:
        number = self._record.get("num_clusters")
        if number is None:
            return []
        sizes = sorted(filter(None, self._record.get("cluster_sizes") or ()), reverse=True)
        said = str(number)
        if number > 1 and sizes:
            shown = " + ".join(map(str, sizes[:_MOST_SIZES])) + (" + …" if len(sizes) > _MOST_SIZES else "")
            said += f": {shown} clients"
        lines = [_line("clusters", said)]
        if self._reason is not None:
            moment, reason = self._reason
            lines.append(_line("", (f"round {moment}: {_printable(reason)}", "dim")))
        return lines

    def _failures(self) -> list[Text]:
        if not self._rounds_failed:
            return []
        latest = list(self._rounds_failed.items())[: -_MOST_NAMED - 1 : -1]
        named = [f"{name} ({count} rounds)" if count > 1 else name for name, count in latest]
        more = len(self._rounds_failed) - len(named)
        said = ", ".join(named) + (f" and {more} more" if more else "")
        now = self._failed_in == self._round
        return [_line("failing" if now else "failed", (said, "yellow" if now else ""))]


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Draw numbers as a row of bars, the smallest as the lowest bar and the largest as the highest.

    Parameters
    ----------
    values
        Finite numbers. With more than fit, they are taken at even distances, the last one always.
    width
        Most bars.
    ascii_only
        Whether the terminal has only ASCII characters.

    Returns
    -------
    min(width, number of values) characters; all of them the lowest if the values are equal.
    """
    count = min(width, len(values))
    if not count:
        return ""
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, high = min(values), max(values)
    bars = _ASCII_BARS if ascii_only else _BARS
    if high == low:
        return bars[0] * count
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1))] for value in shown)


def duration(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours if there are any: ``1:05`` or ``2:00:07``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _name(failure: Mapping[str, Any]) -> str:
    return _printable(str(failure["name"])) if "name" in failure else f"client {failure['client']}"


def _printable(text: str) -> str:
    """Return a text without what could move the cursor; names come from data."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _line(title: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{title:<{_TITLE_ROOM}}", "bold"), *parts)
