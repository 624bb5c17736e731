"""Weights & Biases: a run per strategy; compared strategies are in one group."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedclust.results.trackers.protocol import TrackedRun, optional

__all__ = ["WandB"]


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
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"mode must be online, offline, disabled or null, got {mode!r}")
        self._module = optional("wandb", "wandb")
        self._project, self._entity, self._mode = project, entity, mode
        self._run: Any = None

    def start(self, run: TrackedRun) -> tuple[str, int]:
        """Start the run, or continue the one with the id that was kept."""
        self._run = self._module.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            name=run.name,
            group=run.group,
            dir=str(run.folder),
            config=dict(run.settings),
            id=run.kept,
            resume="allow",
            allow_val_change=True,  # such as more rounds
            reinit="create_new",  # that of the chosen strategy stays open while compared ones run
        )
        # An offline run cannot ask what the server has: it writes all rounds again, and the server keeps one.
        return str(self._run.id), max(int(self._run.step) - 1, 0) if self._run.resumed else 0

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round."""
        self._run.log(dict(metrics), step=server_round, commit=True)

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:
        """Write the final figures into the run's summary, add the files as one artifact, and end the run."""
        self._run.summary.update({f"final/{name}": value for name, value in figures.items()})
        kept = self._module.Artifact(f"results-{self._run.id}", type="results")
        for path in files:
            kept.add_dir(str(path), path.name) if path.is_dir() else kept.add_file(str(path))
        if files:
            self._run.log_artifact(kept)
        self._run.finish(exit_code=int(failed))
