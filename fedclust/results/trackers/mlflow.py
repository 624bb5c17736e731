"""MLflow: a run with parameters, metrics and artifacts; compared strategies are nested in it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedclust.results.trackers.protocol import TrackedRun, optional

__all__ = ["MLflow"]

_METRICS_AT_ONCE = 500  # MLflow takes at most 1,000 metrics and 100 parameters in one request
_PARAMS_AT_ONCE = 100
_LONGEST_VALUE = 6_000
_ROUND = "round"


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
        self._uri, self._experiment = tracking_uri, experiment
        self._client: Any = None
        self._id = ""

    def start(self, run: TrackedRun) -> tuple[str, int]:
        """Create the run, or continue the one that was kept if it still exists."""
        self._client = self._module.MlflowClient(tracking_uri=self._uri)
        found = self._existing(run.kept)
        if found is None:
            experiment = self._client.get_experiment_by_name(self._experiment)
            experiment_id = (
                self._client.create_experiment(self._experiment)
                if experiment is None
                else experiment.experiment_id
            )
            tags = {"fedclust.group": run.group}
            if run.parent is not None:
                tags["mlflow.parentRunId"] = run.parent
            found = self._client.create_run(experiment_id, run_name=run.name, tags=tags)
        else:
            self._client.update_run(found.info.run_id, status="RUNNING")
        self._id = found.info.run_id
        make = self._module.entities.Param
        new = [  # a parameter cannot be changed, so a resumed run keeps those of its start
            make(key, str(value)[:_LONGEST_VALUE])
            for key, value in run.settings.items()
            if key not in found.data.params
        ]
        for part in _parts(new, _PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=part)
        return self._id, int(found.data.metrics.get(_ROUND, 0))

    def _existing(self, kept: str | None) -> Any:
        if kept is None:
            return None
        try:
            found = self._client.get_run(kept)
        except self._module.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return found if found.info.lifecycle_stage == "active" else None

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round, and its number last: a resumed run goes on after it."""
        self._metrics({**metrics, _ROUND: float(server_round)}, server_round)

    def _metrics(self, metrics: Mapping[str, float], step: int) -> None:
        now, make = int(time.time() * 1000), self._module.entities.Metric
        for part in _parts([make(key, value, now, step) for key, value in metrics.items()], _METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=part)

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """Log the final figures as ``final/…``, upload the files, and end the run."""
        self._metrics({f"final/{name}": value for name, value in figures.items()}, 0)
        for path in files:
            if path.is_dir():
                self._client.log_artifacts(self._id, str(path), path.name)
            else:
                self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]
