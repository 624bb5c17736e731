"""Follow the runs of one command with a tracker; an error of the tracker never ends a run."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fedclust.results.saved_run import SavedRun
from fedclust.results.trackers.protocol import Setting, TrackedRun, Tracker
from fedclust.support.strict_json import dumps, replace_file

__all__ = ["Tracking", "final_figures", "flat_settings", "round_metrics"]

_ID = "tracker.json"
_KEPT = ("summary.json", "clients.parquet", "report.html", "plots")
_NO_SETTINGS = ("overrides", "choices.tracker", "tracker", "resume", "searchpath")


class Tracking:
    """The tracked runs of one command: the chosen strategy's, and those that it is compared with.

    A context; leaving it ends the runs that are still open, as failed ones.

    Parameters
    ----------
    make
        Builds a tracker for one run; None to track nothing. It is called once now, so that a missing package
        is reported before anything is computed.
    folder
        The results' folder.
    say
        Prints a line. The first error of a tracker is printed; the run that had it is no longer tracked.

    Raises
    ------
    TypeError
        If what was built is no tracker.
    """

    def __init__(self, make: Callable[[], Tracker] | None, folder: Path, say: Callable[[str], None]) -> None:
        self._make, self._folder, self._say = make, folder, say
        self._ready = None if make is None else make()
        if self._ready is not None and not isinstance(self._ready, Tracker):
            kind = type(self._ready).__name__
            raise TypeError(f"tracker must have the methods start, log and finish, got a {kind}")
        self._open: dict[str, tuple[Tracker, Path, int]] = {}  # the last round that the tracker has
        self._chosen: str | None = None
        self._warned = False

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in [*self._open]:
            self.end(name, failed=True)

    def begin(self, name: str, folder: Path) -> Callable[[Mapping[str, Any]], None]:
        """Start to track a strategy's run; the chosen strategy's comes first.

        Parameters
        ----------
        name
            The strategy's name.
        folder
            The run's folder, with its ``config.yaml`` and the rounds that it has already.

        Returns
        -------
        To call after every round with its line of ``rounds.jsonl``.
        """
        if self._make is not None:
            self._attempt(name, lambda: self._begin(name, folder))
        return lambda record: self._round(name, record)

    def _begin(self, name: str, folder: Path) -> None:
        assert self._make is not None
        tracker = self._make() if self._ready is None else self._ready
        self._ready = None
        kind = f"{type(tracker).__module__}.{type(tracker).__qualname__}"
        saved = SavedRun(folder)
        run = TrackedRun(
            name=f"{self._folder.name}/{name}",
            group=self._folder.name,
            folder=folder,
            settings=flat_settings(saved.config),
            kept=_kept(folder / _ID, kind),
            rounds=len(saved.rounds),
            parent=self._chosen,
        )
        number, last = tracker.start(run)
        self._open[name] = tracker, folder, last
        if self._chosen is None:
            self._chosen = number
        replace_file(folder / _ID, dumps({"tracker": kind, "id": number}) + "\n")
        for record in saved.rounds:
            self._log(name, record)

    def _round(self, name: str, record: Mapping[str, Any]) -> None:
        if name in self._open:
            self._attempt(name, lambda: self._log(name, record))

    def _log(self, name: str, record: Mapping[str, Any]) -> None:
        tracker, _, last = self._open[name]
        if record["round"] > last:
            tracker.log(int(record["round"]), round_metrics(record))

    def end(self, name: str, failed: bool = False) -> None:
        """End a strategy's run, with the results that its folder has now."""
        if name not in self._open:
            return
        tracker, folder, _ = self._open[name]
        self._attempt(name, lambda: _finish(tracker, folder, failed))
        self._open.pop(name, None)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever is wrong with the tracker, the run is worth more
            self._open.pop(name, None)
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if not self._warned:
                self._say(f"{name}: warning: no longer tracked, results are in its folder: {reason}")
            self._warned = True


def _finish(tracker: Tracker, folder: Path, failed: bool) -> None:
    # A run that failed before its end may be a resumed one: what it has in its folder is then of before.
    figures = {} if failed else final_figures(SavedRun(folder).summary)
    files = [] if failed else [folder / name for name in _KEPT if (folder / name).exists()]
    tracker.finish(figures, files, failed)


def _kept(path: Path, kind: str) -> str | None:
    """Read a tracked run's id; None if there is none, or it is of another tracker."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return str(kept["id"]) if kept["tracker"] == kind else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def round_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line of ``rounds.jsonl``, by name.

    ``failures`` is the number of clients that failed, ``cluster_0/accuracy`` the mean accuracy of the clients
    of cluster 0.
    """
    metrics = final_figures({key: value for key, value in record.items() if key != "round"})
    metrics["failures"] = float(len(record.get("failures") or ()))
    for part in ("accuracy", "size"):
        source = {"accuracy": "cluster_accuracy", "size": "cluster_sizes"}[part]
        for cluster, value in enumerate(record.get(source) or ()):
            if _finite(value):
                metrics[f"cluster_{cluster}/{part}"] = float(value)
    return metrics


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a summary, by name; nested ones are left out."""
    return {_metric_name(key): float(value) for key, value in summary.items() if _finite(value)}


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _metric_name(key: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", key)


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Setting]:
    """List the settings of a configuration by dotted key; a list or None becomes text."""
    flat: dict[str, Setting] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if key in _NO_SETTINGS:
            continue
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{key}.")
        else:
            flat[_metric_name(key)] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat
