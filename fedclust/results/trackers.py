"""Send a run's metrics to TensorBoard, MLflow, Weights & Biases or a tracker of your own."""

import importlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedclust.results.saved_run import SavedRun, flat
from fedclust.settings.composition import ConfigError
from fedclust.settings.folders import of_sweep
from fedclust.support.checks import check_value, dumps, replace_file

Setting = bool | int | float | str


@dataclass(frozen=True)
class TrackedRun:
    """One strategy's run, as a tracker sees it.

    Attributes
    ----------
    name
        Group and strategy, such as ``"12-30-05/fedgwc"``.
    group
        Name of the results folder, of a sweep's job behind the sweep's, such as ``"12-30-05/0"``; compared
        strategies share it.
    folder
        The run's own folder.
    settings
        The configuration by dotted key, such as ``"partition.alpha"``; lists as text.
    kept
        What :meth:`Tracker.start` returned for this run before it was resumed; None for a new one.
    rounds
        Rounds finished before the run was resumed; 0 for a new one.
    parent
        What ``start`` returned for the chosen strategy's run; None for that run itself.
    """

    name: str
    group: str
    folder: Path
    settings: Mapping[str, Setting]
    kept: str | None = None
    rounds: int = 0
    parent: str | None = None


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of one run. One object is built per run, and not used after an error."""

    def start(self, run: TrackedRun) -> str:
        """Begin a run or continue it; return an id to continue it with, which is kept in its folder."""

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; all are finite.

        A resumed run logs the rounds after its checkpoint again, with the same values.
        """

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """End the run.

        Parameters
        ----------
        figures
            The numbers of ``summary.json``; empty if the run failed before it was written.
        files
            Files and folders to keep with the run.
        failed
            Whether the run failed or was interrupted.
        """


def optional(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of fedclust installs.

    Raises
    ------
    ModuleNotFoundError
        If it, or a package that it needs, is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"tracker={extra} needs fedclust[{extra}], pip install 'fedclust[{extra}]': {error}"
        ) from error


FAILURES = "failures"
"""The number of clients that failed, which every round has."""

_ID = "tracker.json"
_KEPT = ("summary.json", "clients.parquet", "report.html", "plots")
_NO_SETTINGS = ("overrides", "choices.tracker", "tracker", "resume", "searchpath", "output_dir")


class Tracking:
    """The tracked runs of one command: the chosen strategy's, and those that it is compared with.

    A context manager; leaving it ends the runs that are still open, as failed ones. A tracker's error never
    ends a run: the first one is printed, and the run in which it occurred is no longer tracked.

    Parameters
    ----------
    make
        Builds a tracker for one run. It is called once at once, so that a missing package is reported before
        anything is computed.
    folder
        The results folder.
    say
        Prints a line.

    Raises
    ------
    ConfigError
        If `make` does not build a tracker.
    """

    def __init__(self, make: Callable[[], Tracker], folder: Path, say: Callable[[str], None]) -> None:
        self._make, self._say = make, say
        self._group = f"{folder.parent.name}/{folder.name}" if of_sweep(folder) else folder.name
        tracker = make()
        if not isinstance(tracker, Tracker):
            kind = type(tracker).__name__
            raise ConfigError(f"tracker must have the methods start, log and finish, got a {kind}")
        self._kind = f"{type(tracker).__module__}.{type(tracker).__qualname__}"
        self._ready: dict[str, TrackedRun] = {}  # not yet open
        self._open: dict[str, tuple[Tracker, Path]] = {}
        self._chosen: str | None = None
        self._warned = False

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._open]:
            self.end(name, failed=True)

    def begin(self, name: str, folder: Path) -> Callable[[Mapping[str, Any]], None]:
        """Prepare to track a strategy's run; the chosen strategy's must come first.

        The tracker hears of it with its first round, or its end: a run that is refused changes nothing there.

        Parameters
        ----------
        name
            The strategy's name.
        folder
            The run's folder, with its ``config.yaml`` and any earlier rounds.

        Returns
        -------
        A function to call after every round with its line of ``rounds.jsonl``.
        """

        def follow(record: Mapping[str, Any]) -> None:
            with self._attempt(name):
                self._start(name)
                if name in self._open:
                    self._open[name][0].log(int(record["round"]), round_metrics(record))

        with self._attempt(name):
            saved = SavedRun(folder)
            title, settings = f"{self._group}/{name}", flat_settings(saved.config)
            self._ready[name] = TrackedRun(title, self._group, folder, settings, None, len(saved.rounds))
        return follow

    def _start(self, name: str) -> None:
        """Start a run that is ready, after the chosen strategy's."""
        for each in dict.fromkeys([*[*self._ready][: self._chosen is None], name]):
            if (run := self._ready.pop(each, None)) is None:
                continue
            file, tracker = run.folder / _ID, self._make()
            ids = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}  # by tracker's class
            if "id" in ids:  # as version 0.3 wrote it
                ids = {ids["tracker"]: ids["id"]}
            try:
                number = tracker.start(replace(run, kept=ids.get(self._kind), parent=self._chosen))
            except Exception:
                with suppress(Exception):  # what it has begun of a run is not left as a running one
                    tracker.finish({}, [], True)
                raise
            self._open[each], self._chosen = (tracker, run.folder), self._chosen or number
            replace_file(file, dumps(ids | {self._kind: number}) + "\n")

    def end(self, name: str, failed: bool = False) -> None:
        """Stop tracking a strategy's run, with the results that its folder has now."""
        with self._attempt(name):
            if not failed:
                self._start(name)
            self._ready.pop(name, None)
            if name in self._open:
                tracker, folder = self._open.pop(name)
                # A failed run may be a resumed one, whose folder has results from before.
                figures = {} if failed else final_figures(SavedRun(folder).summary)
                files = [] if failed else [folder / each for each in _KEPT if (folder / each).exists()]
                tracker.finish(figures, files, failed)

    @contextmanager
    def _attempt(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a broken tracker must not end the run
            tracker, _ = self._open.pop(name, (None, None))
            if tracker is not None:
                with suppress(Exception):
                    tracker.finish({}, [], True)
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if not self._warned:
                self._say(f"{name}: warning: no longer tracked, results are in its folder: {reason}")
            self._warned = True


def round_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line of ``rounds.jsonl``, by name.

    ``failures`` is the number of clients that failed, ``cluster_0/accuracy`` the mean accuracy of cluster 0's
    clients.
    """
    numbers = {key: value for key, value in record.items() if key != "round"}
    numbers[FAILURES] = len(record.get("failures") or ())
    for part, source in (("accuracy", "cluster_accuracy"), ("size", "cluster_sizes")):
        numbers |= {f"cluster_{at}/{part}": each for at, each in enumerate(record.get(source) or ())}
    return final_figures(numbers)


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a summary, by name; nested ones are left out."""
    numbers = {k: v for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {_metric_name(key): float(value) for key, value in numbers.items() if math.isfinite(value)}


def _metric_name(key: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", key)


def flat_settings(config: Mapping[str, Any]) -> dict[str, Setting]:
    """List the settings of a configuration by dotted key; a list or None becomes text."""
    return {
        _metric_name(key): value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in flat(config)
        if value != {} and key not in _NO_SETTINGS and not key.startswith("tracker.")
    }


_AT_ONCE, _LONGEST_VALUE = 100, 6_000  # MLflow takes at most 100 parameters and 1,000 metrics in one request


class MLflow:
    """Log to an MLflow server or database.

    Parameters
    ----------
    tracking_uri
        Such as ``http://127.0.0.1:5000`` or ``sqlite:///mlflow.db``; None for ``MLFLOW_TRACKING_URI`` or
        MLflow's default.
    experiment
        Name of the experiment; made if missing.

    Raises
    ------
    ModuleNotFoundError
        If neither ``mlflow`` nor ``mlflow-skinny`` is installed.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "fedclust") -> None:
        self._module = optional("mlflow", "mlflow")
        # A server that has gone would hold up training for minutes: by default there are seven retries.
        for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "30")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        self._uri, self._experiment = tracking_uri, experiment
        self._client: Any = None
        self._id = ""
        self._there = 0  # the last round that the server has

    def start(self, run: TrackedRun) -> str:
        """Create the run, or continue the earlier one, which keeps its parameters."""
        self._client = self._module.MlflowClient(tracking_uri=self._uri)
        if run.kept is not None:
            self._client.update_run(run.kept, status="RUNNING")
            self._id = run.kept
            every_round = self._client.get_metric_history(self._id, FAILURES)
            self._there = max((each.step for each in every_round), default=0)
            return self._id
        there = self._client.get_experiment_by_name(self._experiment)
        made = there.experiment_id if there else self._client.create_experiment(self._experiment)
        nested = {} if run.parent is None else {"mlflow.parentRunId": run.parent}
        tags = {"fedclust.group": run.group, **nested}
        self._id = self._client.create_run(made, run_name=run.name, tags=tags).info.run_id
        make, settings = self._module.entities.Param, run.settings.items()
        self._send("params", [make(key, str(value)[:_LONGEST_VALUE]) for key, value in settings])
        return self._id

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; a resumed run's only if the server does not have it."""
        if server_round > self._there:
            self._log(server_round, metrics)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        now, make = int(time.time() * 1000), self._module.entities.Metric
        self._send("metrics", [make(key, value, now, step) for key, value in metrics.items()])

    def _send(self, kind: str, values: Sequence[Any]) -> None:
        for begin in range(0, len(values), _AT_ONCE):
            self._client.log_batch(self._id, **{kind: values[begin : begin + _AT_ONCE]})

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """Log the final figures as ``final/…``, upload the files, and end the run."""
        self._log(0, {f"final/{name}": value for name, value in figures.items()})
        for path in files:
            if path.is_dir():
                self._client.log_artifacts(self._id, str(path), path.name)
            else:
                self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


class TensorBoard:
    """Write event files to ``<run's folder>/tensorboard``, with the pictures.

    Raises
    ------
    ModuleNotFoundError
        If ``tensorboard`` is not installed.
    """

    def __init__(self) -> None:
        self._module = optional("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._last = 0

    def start(self, run: TrackedRun) -> str:
        """Open the event files; those of a resumed run are continued, and its later rounds are hidden."""
        # Without this mark TensorBoard would show the rounds after the checkpoint twice.
        purge = None if run.kept is None else run.rounds + 1
        self._writer = self._module.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        self._last = run.rounds
        rows = ["| setting | value |", "| --- | --- |"]
        for key, value in run.settings.items():
            text = str(value).replace("|", "\\|").replace("\n", " ")
            rows.append(f"| {key} | {text} |")
        self._writer.add_text("config", "\n".join(rows), self._last)
        return "tensorboard"

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; they are on disk when this returns."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()
        self._last = server_round

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:  # noqa: ARG002
        """Write the final figures and the pictures."""
        from PIL import Image

        self.log(self._last, {f"final/{name}": value for name, value in figures.items()})
        for picture in (each for path in files for each in sorted(path.glob("*.png"))):
            with Image.open(picture) as image:
                pixels = np.asarray(image.convert("RGB"))
            self._writer.add_image(f"plots/{picture.stem}", pixels, self._last, dataformats="HWC")
        self._writer.close()


class WandB:
    """Log to Weights & Biases.

    Parameters
    ----------
    project
        The project's name.
    entity
        A team's name; None for your own account.
    mode
        ``"online"``, ``"offline"`` or ``"disabled"``; None for ``WANDB_MODE``.

    Raises
    ------
    ModuleNotFoundError
        If ``wandb`` is not installed.
    ValueError
        If the mode is not one of these.
    """

    def __init__(self, project: str = "fedclust", entity: str | None = None, mode: str | None = None) -> None:
        check_value("mode", mode, "online or offline or disabled or None")
        self._module = optional("wandb", "wandb")
        self._given = {"project": project, "entity": entity, "mode": mode}
        self._run: Any = None

    def start(self, run: TrackedRun) -> str:
        """Start the run, or continue the earlier one by its id.

        Of itself Weights & Biases would also send the command line, what is printed, and the machine's facts.
        """
        nothing_else = self._module.Settings(
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            host="-",
        )
        self._run = self._module.init(
            **self._given,
            dir=str(run.folder),
            name=run.name,
            group=run.group,
            config=dict(run.settings),
            id=run.kept,
            resume="allow",
            allow_val_change=True,  # such as more rounds
            settings=nothing_else,
            reinit="create_new",  # the chosen strategy's run stays open while compared ones run
        )
        return str(self._run.id)

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; the server ignores those of a round that it has."""
        self._run.log(dict(metrics), step=server_round, commit=True)

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """Write the final figures into the run's summary, add the files as one artifact, and end the run."""
        self._run.summary.update({f"final/{name}": value for name, value in figures.items()})
        kept = self._module.Artifact(f"results-{self._run.id}", type="results")
        here: dict[str, Any] = {"skip_cache": True, "policy": "immutable"}  # no copies in the home folder
        for path in files:
            kept.add_dir(str(path), path.name, **here) if path.is_dir() else kept.add_file(str(path), **here)
        if files:
            self._run.log_artifact(kept)
        self._run.finish(exit_code=int(failed))
